"""The step written for speed is the decoder, number by number, however its rows are chosen, repeated and dropped."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tiny_run
from pellucid.config import BEGIN_ID
from pellucid.decoding.engines import ModelEngine, ModelState
from pellucid.decoding.grid import Grid
from pellucid.decoding.past import BLOCK, WIDE
from pellucid.model import Cache, Transformer

SENTENCES, SOURCE = 3, 7
LENGTHS = (7, 3, 5)
WORDS = tiny_run.tokenizer().vocab_size
SCHEMES = ["sinusoidal", "learned", "rotary", "alibi", "t5", "none"]


@dataclass
class Plainly:
    """The same by `Transformer.decode`, whose cache is copied row by row."""

    model: Transformer
    memory: Tensor
    lengths: tuple[int, ...]
    cache: Cache | None = None

    def step(self, ids: Tensor) -> tuple[Tensor, "Plainly"]:
        logits, cache = self.model.decode(ids[:, None], self.memory, self.lengths, cache=self.cache)
        return logits[:, -1].log_softmax(dim=-1), Plainly(self.model, self.memory, self.lengths, cache)

    def select(self, rows: list[int]) -> "Plainly":
        chosen = torch.tensor(rows)
        cache = None if self.cache is None else self.cache.select(chosen)
        return Plainly(self.model, self.memory[chosen], tuple(self.lengths[row] for row in rows), cache)


def sources(seed: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, WORDS, (SENTENCES, SOURCE), generator=generator)


def begun(model: Transformer) -> tuple[ModelEngine, ModelState, Plainly]:
    engine = ModelEngine(model.eval())
    ids = sources()
    with torch.no_grad():
        return engine, engine.begin(ids, LENGTHS), Plainly(model, model.encode(ids, LENGTHS), LENGTHS)


def follow(model: Transformer, choices: list[list[int]]) -> None:
    """Take a step before each choice of rows and after the last, and compare all that is not a mark."""
    engine, state, plain = begun(model)
    generator = torch.Generator().manual_seed(1)
    ids = torch.full((SENTENCES,), BEGIN_ID)
    with torch.no_grad():
        for choice in [*choices, None]:
            found, state = engine.step(ids, state)
            expected, plain = plain.step(ids)
            torch.testing.assert_close(found[:, BEGIN_ID + 1 :], expected[:, BEGIN_ID + 1 :], rtol=0, atol=1e-11)
            if choice is None:
                return
            rows = [row % len(found) for row in choice]
            state, plain = state.select(torch.tensor(rows)), plain.select(rows)
            assert state.source_lengths == plain.lengths
            ids = torch.randint(4, WORDS, (len(rows),), generator=generator)


@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.parametrize(("norm", "activation"), [("pre", "relu"), ("post", "gelu")])
def test_the_step_is_the_decoder_while_a_beam_is_reordered(norm: str, activation: str, positions: str) -> None:
    model = tiny_run.model(norm=norm, activation=activation, positions=positions)
    beams = [[0, 0, 1, 1, 2], [1, 0, 3, 2, 4], [0, 1, 1, 4, 4], [2, 2, 3], [1, 0, 2]]
    follow(model, beams)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=7), max_size=6), st.sampled_from(["rotary", "alibi"]))
def test_rows_may_be_chosen_in_any_order_with_repeats(choices: list[list[int]], positions: str) -> None:
    follow(tiny_run.model(positions=positions), choices)


@pytest.mark.parametrize("positions", ["sinusoidal", "t5"])
def test_many_rows_of_a_sentence_are_kept_apart(positions: str) -> None:
    many = [0] * (WIDE + 3) + [1, 2, 2]
    follow(
        tiny_run.model(positions=positions),
        [many, [*range(WIDE), WIDE, 11, 12, 13], [1] * (WIDE + 2) + [9], [0, 10, 3]],
    )


def test_the_past_outgrows_its_block() -> None:
    follow(tiny_run.model(positions="rotary"), [[0, 0, 1, 2], *([[1, 0, 2, 3]] * (BLOCK + 3))])


@pytest.mark.parametrize("positions", SCHEMES)
def test_slots_that_no_row_comes_from_stay_behind(positions: str) -> None:
    """Rows of a sentence part at every step, and all but one of them die at the next; sentences leave later."""
    model = tiny_run.model(positions=positions)
    parting = [[0, 0, 1, 2, 2, 2], *([[0, 0, 2, 3, 3, 3]] * (5 * BLOCK)), [1, 0, 2, 4], [3, 2, 3, 0]]
    follow(model, [*parting, *([[0, 0, 2, 3]] * BLOCK)])
    engine, state, _ = begun(model)
    for rows in parting:
        _, state = engine.step(torch.full((len(state.source_lengths),), 9), state)
        state = state.select(torch.tensor(rows))
    assert state.past.length == len(parting)
    assert state.past.used <= len(parting) + 5 * BLOCK  # and not 3 slots a step


def test_states_that_share_a_past_do_not_write_over_each_other() -> None:
    engine, state, _ = begun(tiny_run.model())
    _, state = engine.step(torch.full((SENTENCES,), BEGIN_ID), state)
    one, other = torch.tensor([5, 6, 7]), torch.tensor([8, 9, 10])
    _, left = engine.step(one, state)
    expected, _ = engine.step(one, left)
    _, right = engine.step(other, state)  # at the same place as `left` stands
    engine.step(other, right)
    again, _ = engine.step(one, left)
    assert torch.equal(again, expected)
    swapped = state.select(torch.tensor([1, 0, 2]))
    engine.step(other, swapped)
    once_more, _ = engine.step(one, left)
    assert torch.equal(once_more, expected)


@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_reader_is_the_encoder(norm: str, positions: str) -> None:
    model = tiny_run.model(norm=norm, positions=positions).eval()
    engine, ids = ModelEngine(model), sources()
    with torch.no_grad():
        expected = model.encode(ids, LENGTHS)
        found = engine._laid_out()[0].read(ids, LENGTHS)
        whole = engine._laid_out()[0].read(ids, (SOURCE,) * SENTENCES)
        torch.testing.assert_close(whole, model.encode(ids), rtol=0, atol=1e-11)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(found[row, :length], expected[row, :length], rtol=0, atol=1e-11)


def test_weights_that_were_changed_are_laid_out_anew() -> None:
    model = tiny_run.model()
    engine = ModelEngine(model)
    ids, first = sources(), torch.full((SENTENCES,), BEGIN_ID)

    def answer() -> Tensor:
        log_probs, _ = engine.step(first, engine.begin(ids, LENGTHS))
        with torch.no_grad():
            expected, _ = Plainly(model, model.encode(ids, LENGTHS), LENGTHS).step(first)
        torch.testing.assert_close(log_probs[:, BEGIN_ID + 1 :], expected[:, BEGIN_ID + 1 :], rtol=0, atol=1e-11)
        return log_probs

    before = answer()
    kept = engine._laid_out()
    assert engine._laid_out() is kept  # and not while they are the same
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(ids, ids).sum().backward()
    optimizer.step()
    last = answer()
    assert not torch.equal(last, before)
    named = dict(model.named_parameters())
    for weight in (named["head.weight"], named["stacks.decoder.layers.1.cross_attention.value.weight"]):
        weight.data.mul_(-1)  # counts no version
        assert not torch.equal(answer(), last)
        last = answer()
    model.head = torch.nn.Linear(model.config.d_model, WORDS, bias=False).double()
    answer()
    model.train()
    answer()
    assert not model.training


def test_rows_of_a_sentence_share_a_row_of_the_grid() -> None:
    grid = Grid((0, 2, 0, 1), torch.device("cpu"))
    assert (grid.count, grid.width, grid.places) == (3, 2, (0, 0, 1, 0))
    rows = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    assert grid.spread(rows)[:, :, 0].tolist() == [[1, 3], [4, 0], [2, 0]]
    assert torch.equal(grid.gather(grid.spread(rows)), rows)
    chosen, kept = grid.select([1, 3, 1])
    assert (chosen.groups, kept) == ((0, 1, 0), [2, 1])
