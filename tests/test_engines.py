"""A step of the model is the model itself: its training logits row by row, without the marks that are no words."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import tiny_run
from pellucid import check
from pellucid.config import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from pellucid.decoding.engines import ModelEngine, ModelState
from pellucid.decoding.precision import Precision
from pellucid.errors import PositionError
from pellucid.text.batch import Batch, Example, collate

BATCH, SOURCE, TARGET = 2, 5, 7
WORDS = tiny_run.tokenizer().vocab_size
MARKS = [PAD_ID, UNKNOWN_ID, BEGIN_ID]


def batch() -> Batch:
    """Two pairs of words, whose sources have 5 and 3 tokens, and whose targets 7 and 4, with their marks."""
    torch.manual_seed(3)

    def ids(count: int) -> Sequence[int]:
        drawn: list[int] = torch.randint(4, WORDS, (count,)).tolist()
        return drawn

    return collate([Example(1, ids(SOURCE - 1), ids(TARGET - 1)), Example(2, ids(2), ids(3))])


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
def test_step_t_is_row_t_of_training(norm: str, positions: str) -> None:
    given, model = batch(), tiny_run.model(norm=norm, positions=positions)
    engine = ModelEngine(model)
    state = engine.begin(given.source, given.source_lengths)
    model.eval()
    whole = model(given.source, given.target, given.source_lengths, given.target_lengths).log_softmax(dim=-1)
    for step in range(TARGET):
        log_probs, state = engine.step(given.target[:, step], state)
        assert log_probs.shape == (BATCH, WORDS)
        real = [row for row, length in enumerate(given.target_lengths) if step < length]
        words = [token for token in range(WORDS) if token not in MARKS]
        torch.testing.assert_close(log_probs[real][:, words], whole[real, step][:, words], rtol=0, atol=1e-12)
        assert torch.isneginf(log_probs[:, MARKS]).all()
        assert torch.isfinite(log_probs[:, END_ID]).all()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi", "t5"])
def test_the_check_of_batches_finds_nothing(positions: str, precision: Precision) -> None:
    """Whatever stands beside a sentence, and however much padding behind it."""
    model = tiny_run.model(positions=positions)
    engine = ModelEngine(model if precision == "float32" else model.float(), precision)

    def steps(source: Tensor, target: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        state = engine.begin(source, (source.shape[1],) * len(source) if lengths is None else tuple(lengths))
        rows = []
        for ids in target.T:
            log_probs, state = engine.step(ids, state)
            rows.append(log_probs[:, BEGIN_ID + 1 :])
        return torch.stack(rows, dim=1).clone()

    source, target = torch.randint(4, WORDS, (3, SOURCE)), torch.randint(4, WORDS, (3, TARGET))
    # of states that differ in their last bit, one may be rounded to the next of 8 bits
    tolerance = None if precision == "float32" else 0.02
    report = check.batching(
        steps, source, target, lengths=((SOURCE, 3, 2), None), tolerance=tolerance,
        call=lambda run, source, target, lengths=None, _=None: run(source, target, lengths),
    )  # fmt: skip
    assert report, str(report)


def test_a_step_leaves_the_state_it_was_given() -> None:
    given, engine = batch(), ModelEngine(tiny_run.model())
    first = engine.begin(given.source, given.source_lengths)
    assert first.past.length == 0
    _, second = engine.step(given.target[:, 0], first)
    once, _ = engine.step(given.target[:, 1], second)
    again, _ = engine.step(given.target[:, 1], second)
    assert torch.equal(once, again)
    assert (first.past.length, second.past.length) == (0, 1)


def test_a_selected_state_goes_on_as_its_rows_would() -> None:
    given, engine = batch(), ModelEngine(tiny_run.model())
    _, state = engine.step(given.target[:, 0], engine.begin(given.source, given.source_lengths))
    rows = torch.tensor([1, 0, 1])
    chosen = state.select(rows)
    assert isinstance(chosen, ModelState)
    assert chosen.source_lengths == (3, SOURCE, 3)
    expected, _ = engine.step(given.target[:, 1], state)
    found, later = engine.step(given.target[rows, 1], chosen)
    torch.testing.assert_close(found, expected[rows], rtol=0, atol=1e-12)
    assert later.select(torch.tensor([2])).source_lengths == (3,)
    assert state.source_lengths == (SOURCE, 3)  # and the old one is as it was


def test_a_state_can_be_selected_before_the_first_step() -> None:
    given, engine = batch(), ModelEngine(tiny_run.model())
    chosen = engine.begin(given.source, given.source_lengths).select(torch.tensor([1]))
    found, _ = engine.step(given.target[1:, 0], chosen)
    alone, _ = engine.step(given.target[1:, 0], engine.begin(given.source[1:, :3], (3,)))
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)


def test_half_precision_is_summed_in_single() -> None:
    given, engine = batch(), ModelEngine(tiny_run.model().bfloat16())
    log_probs, _ = engine.step(given.target[:, 0], engine.begin(given.source, given.source_lengths))
    assert log_probs.dtype == torch.float32
    assert log_probs.exp().sum(dim=-1).max() < 1.0  # the marks have their share, and it is not given to the words


def test_scores_are_sums_over_real_labels() -> None:
    given, model = batch(), tiny_run.model()
    found = ModelEngine(model).score(given)
    whole = model.eval()(given.source, given.target, given.source_lengths, given.target_lengths).log_softmax(dim=-1)
    whole = whole.detach()
    expected = [
        sum(float(whole[row, step, given.labels[row, step]]) for step in range(length))
        for row, length in enumerate(given.target_lengths)
    ]
    assert found == pytest.approx(expected, abs=1e-10)


def test_cross_attention_is_the_model_s_own() -> None:
    given, model = batch(), tiny_run.model()
    one = given.part(0, 2)
    found = ModelEngine(model).cross_attention(one)
    assert found.shape == (2, 3, TARGET, SOURCE)  # layers, heads
    _, weights = model.eval()(one.source, one.target, need_weights=True)
    torch.testing.assert_close(found[1], weights.cross[1][0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(2, 3, TARGET, dtype=torch.float64))


def test_an_engine_for_a_model_in_training_leaves_its_dropout_on_until_it_works() -> None:
    given, model = batch(), tiny_run.model()
    engine = ModelEngine(model)
    assert model.training
    twice = [engine.score(given) for _ in range(2)]
    assert twice[0] == twice[1]  # without dropout
    model.train()
    state = engine.begin(given.source, given.source_lengths)
    again = engine.begin(given.source, given.source_lengths)
    assert torch.equal(state.source.keys_values, again.source.keys_values)


def test_learned_positions_have_an_end_and_others_none() -> None:
    assert ModelEngine(tiny_run.model()).most_tokens is None
    engine = ModelEngine(tiny_run.model(positions="learned", max_positions=4))
    assert engine.most_tokens == 4
    assert engine.device == torch.device("cpu")
    given = batch()
    with pytest.raises(PositionError, match="max_positions=4 were learned"):
        engine.begin(given.source, given.source_lengths)
    with pytest.raises(PositionError, match="position 6, but max_positions=4"):
        engine.score(Batch(given.source[:, :3], (3, 3), given.target, given.labels, given.target_lengths, given.lines))


def test_attention_ends_with_the_last_learned_position() -> None:
    engine = ModelEngine(tiny_run.model(positions="learned", max_positions=4))
    pair = collate([Example(1, (270, 271), (272, 273, 274, 275))])  # four words: no position is left for the mark
    assert engine.cross_attention(pair).shape == (2, 3, 4, 3)
