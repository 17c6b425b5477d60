"""Greedy and beam search against a brute-force oracle, a plain loop, and the laws that a search must keep."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pellucid.decoding.search import Hypothesis, beam_search, greedy_search, length_normaliser
from pellucid.errors import DecodingError
from toy_search import (
    END,
    START,
    History,
    Path,
    Table,
    beam,
    begin,
    enumerate_all,
    greedy,
    next_log_probs,
    ranked,
    tables,
)


def plain_beam(table: Table, width: int, limit: int, penalty: float) -> list[Hypothesis]:
    """The beam of one sentence, as slow as it is plain: it never stops early."""
    ended: list[Path] = []
    cut: list[Path] = []
    live: list[Path] = [((), 0.0)]
    for _ in range(limit):
        branches: list[tuple[float, int, tuple[int, ...]]] = []
        for ids, total in live:
            values = next_log_probs(table, ids)
            if max(values) == -math.inf:
                cut.append((ids, total))
            likeliest_first = sorted(range(len(values)), key=lambda token: -values[token])
            branches += [(total + values[t], t, ids) for t in likeliest_first if values[t] > -math.inf]
        branches.sort(key=lambda branch: -branch[0])
        ended += [(ids, total) for total, token, ids in branches[:width] if token == END]
        live = [((*ids, token), total) for total, token, ids in branches if token != END][:width]
    return ranked(ended, cut + live, penalty)


PENALTIES = (-1.5, -0.3, 0.0, 0.6, 2.0)

sizes = st.sampled_from([(2, 5), (3, 4), (5, 3)])  # vocabulary, limit
sized_tables = sizes.flatmap(lambda size: st.tuples(tables(size[0]), st.just(size[1])))
batches = st.integers(2, 7).flatmap(lambda v: st.lists(tables(v), min_size=5, max_size=5))
limits_of_five = st.lists(st.integers(1, 5), min_size=5, max_size=5)


@given(sized=sized_tables, penalty=st.sampled_from(PENALTIES), data=st.data())
@settings(max_examples=60)
def test_a_beam_over_the_whole_space_finds_what_the_oracle_finds(
    sized: tuple[Table, int], penalty: float, data: st.DataObject
) -> None:
    table, limit = sized
    width = len(table[0]) ** limit
    n_best = data.draw(st.integers(1, width))
    oracle = enumerate_all(table, limit, penalty)
    [found] = beam([table], width, limit, penalty, n_best)

    assert [one.finished for one in found] == [one.finished for one in oracle[:n_best]]
    assert [one.score for one in found] == pytest.approx([one.score for one in oracle[:n_best]], abs=1e-12)
    assert len({(one.ids, one.finished) for one in found}) == len(found)
    assert set(found) <= set(oracle)


@given(batch=batches, width=st.integers(1, 5), penalty=st.sampled_from(PENALTIES), limits=limits_of_five)
@settings(max_examples=60)
def test_batched_beam_with_early_stopping_equals_the_plain_beam_of_each_sentence(
    batch: list[Table], width: int, penalty: float, limits: list[int]
) -> None:
    found = beam(batch, width, limits, penalty, n_best=width)
    pairs = zip(batch, limits, strict=True)
    assert found == [plain_beam(table, width, limit, penalty)[:width] for table, limit in pairs]


@given(batch=batches, width=st.integers(2, 5), penalty=st.sampled_from(PENALTIES), limits=limits_of_five)
@settings(max_examples=20)
def test_the_best_hypotheses_do_not_depend_on_how_many_are_wanted(
    batch: list[Table], width: int, penalty: float, limits: list[int]
) -> None:
    everything = beam(batch, width, limits, penalty, n_best=width)
    for n_best in range(1, width):
        assert beam(batch, width, limits, penalty, n_best) == [found[:n_best] for found in everything]


@given(batch=batches, limits=limits_of_five)
@settings(max_examples=20)
def test_a_sentence_alone_is_searched_as_in_a_batch(batch: list[Table], limits: list[int]) -> None:
    pairs = list(zip(batch, limits, strict=True))
    assert beam(batch, 3, limits, n_best=2) == [beam([table], 3, [limit], n_best=2)[0] for table, limit in pairs]
    assert greedy(batch, limits) == [greedy([table], limit)[0] for table, limit in pairs]


@given(batch=batches, limits=limits_of_five)
@settings(max_examples=20)
def test_greedy_equals_a_plain_loop(batch: list[Table], limits: list[int]) -> None:
    for found, table, limit in zip(greedy(batch, limits), batch, limits, strict=True):
        ids: tuple[int, ...] = ()
        log_prob, finished = 0.0, False
        while len(ids) < limit and not finished and max(values := next_log_probs(table, ids)) > -math.inf:
            token = values.index(max(values))
            log_prob += values[token]
            finished = token == END
            ids += () if finished else (token,)
        assert found == Hypothesis(ids, log_prob, log_prob, finished)


@given(batch=batches, limits=limits_of_five, penalty=st.sampled_from([-1.5, -0.3, 0.0]))
@settings(max_examples=20)
def test_a_beam_of_one_is_greedy_search_unless_length_is_favoured(
    batch: list[Table], limits: list[int], penalty: float
) -> None:
    found = [(best.ids, best.log_prob, best.finished) for [best] in beam(batch, 1, limits, penalty)]
    assert found == [(best.ids, best.log_prob, best.finished) for best in greedy(batch, limits)]


@dataclass
class Scripted:
    """A model that says 1 and 1 again, and ends sentence i for sure after lengths[i] tokens."""

    lengths: Sequence[int]
    rows: list[int] = field(default_factory=list)
    seen: list[set[int]] = field(default_factory=list)

    def __call__(self, ids: Tensor, state: History, /) -> tuple[Tensor, History]:
        tokens = torch.cat([state.tokens, ids[:, None]], dim=1)
        self.rows.append(len(ids))
        self.seen.append(set(state.sentences.tolist()))
        ends = tokens.shape[1] > torch.tensor(self.lengths)[state.sentences]
        answers = torch.where(ends[:, None], torch.tensor([1.0, 0, 0]), torch.tensor([0.0, 0.75, 0.25])).log()
        return answers, History(state.sentences, tokens)


def test_finished_sentences_leave_the_batch() -> None:
    lengths = [2, 0, 5, 3]
    step = Scripted(lengths)
    found = greedy_search(step, begin(4), batch=4, start_id=START, end_id=END, max_length=11)
    assert [best.ids for best in found] == [(1,) * length for length in lengths]
    assert step.rows == [4, 3, 3, 2, 1, 1]
    assert step.seen == [{0, 1, 2, 3}, {0, 2, 3}, {0, 2, 3}, {2, 3}, {2}, {2}]

    step = Scripted(lengths)
    beams = beam_search(step, begin(4), batch=4, start_id=START, end_id=END, beam=3, max_length=[11, 11, 4, 11])
    assert [best.ids for [best] in beams] == [(1, 1), (), (1, 1, 1, 1), (1, 1, 1)]
    assert [best.finished for [best] in beams] == [True, True, False, True]
    assert step.rows == [4, 3 * 2, 3 * 3, 2 * 3]  # two tokens after one step, then a full beam of three
    assert step.seen == [{0, 1, 2, 3}, {0, 2, 3}, {0, 2, 3}, {2, 3}]


class Nothing:
    """A state that remembers nothing."""

    def select(self, rows: Tensor) -> Self:
        return self


@dataclass
class Constant:
    """A model that gives every row the same answer, as it stands."""

    row: Tensor
    calls: int = 0

    def __call__(self, ids: Tensor, state: Nothing, /) -> tuple[Tensor, Nothing]:
        self.calls += 1
        return self.row.expand(len(ids), -1), state


def constant_beam(
    step: Constant,
    *,
    batch: int = 1,
    end_id: int = END,
    beam: int = 4,
    max_length: int | list[int] = 5,
    length_penalty: float = 0.6,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    return beam_search(
        step,
        Nothing(),
        batch=batch,
        start_id=START,
        end_id=end_id,
        beam=beam,
        max_length=max_length,
        length_penalty=length_penalty,
        n_best=n_best,
    )


def test_a_sentence_stops_as_soon_as_nothing_can_beat_its_best_and_not_before() -> None:
    likely_end = torch.tensor([0.8, 0.2]).log()
    # () has log 0.8 = -0.22, and k tokens live on with k log 0.2 = -1.61 k, to be divided by 17.5 ** penalty at most
    for penalty, n_best, calls in [(0.0, 1, 1), (0.6, 1, 1), (-1.0, 1, 1), (0.0, 2, 2), (-1.0, 2, 2), (1.0, 1, 3)]:
        step = Constant(likely_end)
        [found] = constant_beam(step, max_length=100, length_penalty=penalty, n_best=n_best)
        assert [best.ids for best in found] == [(), (1,)][:n_best]
        assert step.calls == calls


def test_a_sentence_goes_on_while_the_next_token_can_win_though_the_last_one_allowed_cannot() -> None:
    def step(ids: Tensor, state: Nothing, /) -> tuple[Tensor, Nothing]:
        return torch.where(ids[:, None] == START, torch.tensor([0.4, 0.6]), torch.tensor([1.0, 0.0])).log(), state

    [[best]] = beam_search(
        step, Nothing(), batch=1, start_id=START, end_id=END, beam=2, max_length=100, length_penalty=-1.0
    )
    assert best.ids == (1,)  # 7 / 6 log 0.6 = -0.60 is above log 0.4 = -0.92, but 105 / 6 log 0.6 is not


def test_the_length_penalty_chooses_between_short_and_long() -> None:
    step = Constant(torch.tensor([0.4, 0.6], dtype=torch.float64).log())
    [[raw]] = constant_beam(step, max_length=7, length_penalty=0.0)
    assert raw.ids == ()
    assert raw.score == raw.log_prob == pytest.approx(math.log(0.4))
    [[long]] = constant_beam(step, max_length=7, length_penalty=3.0)
    assert long.ids == (1,) * 6
    assert long.log_prob == pytest.approx(6 * math.log(0.6) + math.log(0.4))
    assert long.score == pytest.approx(long.log_prob / 8)  # seven tokens with the end mark: (5 + 7) / 6 = 2


def test_the_normaliser_is_gnmts() -> None:
    assert length_normaliser(1, 0.6) == 1.0
    assert length_normaliser(13, 1.0) == 3.0
    assert length_normaliser(13, -2.0) == pytest.approx(1 / 9)
    assert length_normaliser(13, 0.0) == 1.0


def test_unfinished_hypotheses_are_flagged_and_come_last() -> None:
    rare_end = Constant(torch.tensor([0.001, 0.499, 0.5]).log())
    [found] = constant_beam(rare_end, beam=3, max_length=2, n_best=3)
    assert [(one.ids, one.finished) for one in found] == [((), True), ((2, 2), False), ((2, 1), False)]
    assert found[0].log_prob < found[1].log_prob  # and yet it stands first, since it is whole
    [cut] = greedy_search(rare_end, Nothing(), batch=1, start_id=START, end_id=END, max_length=3)
    assert (cut.ids, cut.finished) == ((2, 2, 2), False)
    assert cut.log_prob == pytest.approx(3 * math.log(0.5))


def test_what_is_impossible_is_never_found() -> None:
    one_way = Constant(torch.tensor([0.0, 1.0, 0.0]).log())
    [found] = constant_beam(one_way, max_length=3, n_best=4)
    assert [(one.ids, one.log_prob, one.finished) for one in found] == [((1, 1, 1), 0.0, False)]
    no_way = Constant(torch.full((3,), -math.inf))
    stuck = Hypothesis((), 0.0, 0.0, False)
    assert constant_beam(no_way, batch=2, n_best=2) == [[stuck], [stuck]]
    assert greedy_search(no_way, Nothing(), batch=1, start_id=START, end_id=END, max_length=5) == [stuck]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_of_equally_likely_tokens_the_lowest_ids_are_taken(dtype: torch.dtype) -> None:
    row = torch.full((997,), -7.0, dtype=dtype)
    row[[5, 601, 11]] = -2.0
    for batch in (1, 7):
        found = constant_beam(Constant(row), batch=batch, beam=5, max_length=1, n_best=5)
        assert [one.ids for one in found[0]] == [(), (5,), (11,), (601,), (1,)]
        assert all(other == found[0] for other in found)


def test_half_precision_is_summed_in_single() -> None:
    step = Constant(torch.tensor([-9.0, -0.40625], dtype=torch.bfloat16))
    [found] = greedy_search(step, Nothing(), batch=1, start_id=START, end_id=END, max_length=200)
    assert found.log_prob == 200 * -0.40625


def test_an_empty_batch_never_asks_the_model() -> None:
    step = Constant(torch.zeros(3))
    assert constant_beam(step, batch=0) == []
    assert greedy_search(step, Nothing(), batch=0, start_id=START, end_id=END, max_length=[]) == []
    assert step.calls == 0


def test_rounding_above_zero_is_forgiven_but_does_not_lift_a_score() -> None:
    [[best]] = constant_beam(Constant(torch.tensor([1e-5, -11.0])))
    assert best == Hypothesis((), 0.0, 0.0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam was given 0"),
        ({"n_best": 0}, "n_best was given 0 with a beam of 4"),
        ({"n_best": 5}, "n_best was given 5 with a beam of 4"),
        ({"max_length": 0}, "max_length was given 0"),
        ({"batch": 2, "max_length": [3, -1]}, "max_length was given -1"),
        ({"batch": 2, "max_length": [3, 3, 3]}, "3 length limits were given for a batch of 2"),
        ({"batch": -1}, "batch of -1"),
        ({"end_id": 3}, "end_id was given 3, but the step knows 3 tokens"),
        ({"end_id": -1}, "end_id was given -1"),
        ({"length_penalty": math.nan}, "length_penalty nan over 5 tokens"),
        ({"length_penalty": math.inf}, "length_penalty inf over 5 tokens"),
        ({"length_penalty": 1e5}, "length_penalty 100000.0 over 5 tokens"),
        ({"length_penalty": -1e5}, "length_penalty -100000.0 over 5 tokens"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodingError, match=re.escape(message)):
        constant_beam(Constant(torch.tensor([0.1, 0.6, 0.3]).log()), **options)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (torch.tensor([-1.0, math.nan, -2.0]), "NaN in row 0"),
        (torch.tensor([-1.0, 3.5, -2.0]), "the step gave 3.5 in row 0, but a log-probability is at most 0"),
        (torch.tensor([-1.0, math.inf, -2.0]), "the step gave inf in row 0"),
        (torch.tensor([-1, -2, -3]), "the step gave torch.int64 of shape (1, 3) for 1 ids"),
        (torch.zeros(2, 3), "the step gave torch.float32 of shape (2, 3) for 1 ids"),
        (torch.zeros(1, 1, 3), "the step gave torch.float32 of shape (1, 1, 3) for 1 ids"),
    ],
)
def test_answers_that_are_no_log_probabilities_are_refused(row: Tensor, message: str) -> None:
    def step(ids: Tensor, state: Nothing, /) -> tuple[Tensor, Nothing]:
        return row if row.ndim > 1 else row[None], state

    with pytest.raises(DecodingError, match=re.escape(message)):
        beam_search(step, Nothing(), batch=1, start_id=START, end_id=END, max_length=5)
    with pytest.raises(DecodingError, match=re.escape(message)):
        greedy_search(step, Nothing(), batch=1, start_id=START, end_id=END, max_length=5)


def test_a_negative_count_of_tokens_has_no_normaliser() -> None:
    with pytest.raises(DecodingError, match="over -1 tokens"):
        length_normaliser(-1, 0.6)
