"""Sampling against exact probabilities, a slow oracle of the cuts, and the laws that draws must keep."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any, Self

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pellucid.decoding import greedy_search, length_normaliser, sample
from pellucid.decoding.chances import Sampling, own_seed, pick, weigh
from pellucid.decoding.search import Hypothesis
from pellucid.decoding.stream import tokens_as_chosen
from pellucid.errors import DecodingError

START, END = 4, 0
LAST = 1 - 2**-53  # the highest of torch's uniform numbers
Table = list[list[int]]  # the weights of the next token, by the last one


@dataclass(frozen=True)
class Sentences:
    """A state that remembers which sentence each row is of."""

    numbers: Tensor

    def select(self, rows: Tensor) -> Self:
        return type(self)(self.numbers[rows])


@dataclass
class Markov:
    """A model with one table a sentence; it notes which sentences each step had."""

    tables: Sequence[Table]
    seen: list[list[int]] = field(default_factory=list)

    def __call__(self, ids: Tensor, state: Sentences, /) -> tuple[Tensor, Sentences]:
        self.seen.append(state.numbers.tolist())
        rows = [self.tables[number][last] for number, last in zip(state.numbers.tolist(), ids.tolist(), strict=True)]
        weights = torch.tensor(rows, dtype=torch.float64)
        return (weights / weights.sum(dim=-1, keepdim=True).clamp(min=1)).log(), state


def draw(tables: Sequence[Table], limits: int | list[int] = 5, **options: Any) -> list[list[Hypothesis]]:
    state = Sentences(torch.arange(len(tables)))
    return sample(
        Markov(tables), state, batch=len(tables), start_id=START, end_id=END, max_length=limits, **options
    )  # fmt: skip


def greedy(tables: Sequence[Table], limits: int | list[int] = 5) -> list[Hypothesis]:
    state = Sentences(torch.arange(len(tables)))
    return greedy_search(Markov(tables), state, batch=len(tables), start_id=START, end_id=END, max_length=limits)


def kept(weights: Sequence[int], top_k: int | None, top_p: Fraction | None, min_p: Fraction | None) -> set[int]:
    """The oracle: what may be drawn, by the words of the definition and without any rounding."""
    ranked = [token for token in sorted(range(len(weights)), key=lambda token: -weights[token]) if weights[token]]
    ranked = ranked[:top_k]
    if top_p is not None:
        mass = sum(weights[token] for token in ranked)
        sums = [Fraction(sum(weights[token] for token in ranked[: n + 1]), mass) for n in range(len(ranked))]
        ranked = ranked[: 1 + next(n for n, reached in enumerate(sums) if reached >= top_p)]
    return {token for token in ranked if min_p is None or weights[token] >= min_p * weights[ranked[0]]}


def log_of(weights: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
    return (torch.tensor([weights], dtype=torch.float64) / sum(weights)).log().to(dtype)


rows = st.lists(st.integers(0, 9), min_size=5, max_size=5)
batches = st.lists(st.lists(rows, min_size=5, max_size=5), min_size=3, max_size=3)
limits_of_three = st.lists(st.integers(1, 7), min_size=3, max_size=3)
shares = st.integers(1, 20).map(lambda part: Fraction(part, 20))
ways = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.5, 1.0, 1.7]),
        "top_k": st.integers(1, 5),
        "top_p": shares.map(float),
        "min_p": shares.map(float),
    },
)
TABLE = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [5, 8, 9, 7, 0], [9, 3, 2, 3, 8], [4, 6, 2, 6, 4]]

# --- how often -----------------------------------------------------------------------------------------------

# What a chi-square of so many degrees of freedom is above once in a thousand times.
RARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52, 6: 22.46}
DRAWS = 3000


def chi_square(counts: Counter[Any], exact: dict[Any, float]) -> float:
    total = sum(counts.values())
    assert set(counts) <= set(exact)
    assert sum(exact.values()) == pytest.approx(1)
    return sum((counts[what] - total * p) ** 2 / (total * p) for what, p in exact.items())


@pytest.mark.parametrize(
    ("options", "powers", "tokens"),
    [
        ({}, 1.0, {0, 1, 2, 4, 5, 6}),
        ({"temperature": 2.0}, 0.5, {0, 1, 2, 4, 5, 6}),
        ({"temperature": 0.5}, 2.0, {0, 1, 2, 4, 5, 6}),
        ({"top_k": 3}, 1.0, {1, 2, 5}),
        ({"top_k": 4}, 1.0, {0, 1, 2, 5}),
        ({"top_p": 0.5}, 1.0, {1, 5}),
        ({"top_k": 3, "top_p": 0.75}, 1.0, {1, 5}),
        ({"min_p": 0.5}, 1.0, {1, 2, 5}),
        ({"temperature": 2.0, "min_p": 0.5}, 0.5, {0, 1, 2, 4, 5, 6}),
        ({"temperature": 0.5, "top_p": 0.85}, 2.0, {1, 2, 5}),
    ],
)
def test_tokens_come_as_often_as_their_probability_says(
    options: dict[str, Any], powers: float, tokens: set[int]
) -> None:
    weights = [3, 9, 6, 0, 3, 11, 3]
    exact = {token: weights[token] ** powers for token in tokens}
    exact = {token: weight / sum(exact.values()) for token, weight in exact.items()}
    [found] = draw([[weights] * 7], 1, samples=DRAWS, seed=5, **options)
    counts = Counter(one.ids[0] if one.ids else END for one in found)
    assert chi_square(counts, exact) < RARE[len(exact) - 1]


def test_sentences_come_as_often_as_the_product_of_their_tokens_says() -> None:
    table = [[1, 1, 1], [2, 3, 0], [3, 0, 2], [0, 0, 0], [1, 2, 3]]
    exact = {(): 1 / 6, (1,): 2 / 15, (2,): 3 / 10, (1, 1): 3 / 15, (2, 2): 2 / 10}
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(DRAWS // 100):  # many seeds and many places: they must not repeat each other
        for found in draw([table] * 20, 2, samples=5, seed=seed):
            counts.update(one.ids for one in found)
    assert chi_square(counts, exact) < RARE[4]


def test_draws_of_one_sentence_after_each_other_are_independent() -> None:
    even = [[0, 1, 1, 0, 0]] * 5
    [found] = draw([even], 2, samples=DRAWS, seed=3)
    counts = Counter(one.ids for one in found)
    assert chi_square(counts, dict.fromkeys(product((1, 2), repeat=2), 0.25)) < RARE[3]


# --- what may be drawn ---------------------------------------------------------------------------------------


@given(
    weights=st.lists(st.integers(0, 9), min_size=7, max_size=7).filter(any),
    top_k=st.none() | st.integers(1, 11),
    top_p=st.none() | shares,
    min_p=st.none() | shares,
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=200)
def test_what_is_kept_is_what_the_oracle_keeps(
    weights: list[int], top_k: int | None, top_p: Fraction | None, min_p: Fraction | None, dtype: torch.dtype
) -> None:
    cut = Sampling(1.0, top_k, *(None if share is None else float(share) for share in (top_p, min_p)))
    [found] = weigh(log_of(weights, dtype), cut).tolist()
    expected = kept(weights, top_k, top_p, min_p)
    assert {token for token, weight in enumerate(found) if weight} == expected
    assert len(expected) >= 1
    for token in expected:
        assert found[token] == pytest.approx(weights[token] / max(weights), rel=1e-5)


@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.9375])
@pytest.mark.parametrize("flat", [1, 997])
def test_a_large_vocabulary_is_cut_like_a_small_one(flat: int, top_p: float) -> None:
    draws = torch.randint(1, 1000, (3, 997)).tolist()
    weights = [[weight if token % 997 < flat or token % 31 == 0 else 1 for token, weight in enumerate(row)]
               for row in draws]  # fmt: skip
    found = weigh(torch.cat([log_of(row) for row in weights]), Sampling(top_p=top_p))
    for row, values in zip(weights, found.tolist(), strict=True):
        assert {token for token, value in enumerate(values) if value} == kept(row, None, Fraction(top_p), None)


def test_of_equals_at_the_cut_the_lowest_ids_stay() -> None:
    even = log_of([2, 5, 2, 5, 2, 5, 2])
    assert weigh(even, Sampling(top_k=2))[0].nonzero().flatten().tolist() == [1, 3]
    assert weigh(even, Sampling(top_k=4))[0].nonzero().flatten().tolist() == [0, 1, 3, 5]
    assert weigh(even, Sampling(top_p=0.4))[0].nonzero().flatten().tolist() == [1, 3]
    assert weigh(even, Sampling(min_p=1.0))[0].nonzero().flatten().tolist() == [1, 3, 5]
    assert weigh(even, Sampling(min_p=0.4))[0].nonzero().flatten().tolist() == list(range(7))


@pytest.mark.parametrize("number", [0.0, 0.3, LAST])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_has_no_probability_is_never_drawn(number: float, dtype: torch.dtype) -> None:
    weights = [0, 0, 7, 0, 3, 0, 0]
    [found] = pick(log_of(weights, dtype), [number], Sampling()).tolist()
    assert found == (4 if number == LAST else 2)
    many = torch.full((1, 1009), -math.inf, dtype=dtype)
    many[0, 11:991] = -math.log(980)
    assert pick(many, [number], Sampling()).item() == pytest.approx(11 + 980 * number, abs=1)
    assert pick(many, [number], Sampling()).item() <= 990


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_temperature_near_zero_takes_the_likeliest(temperature: float, dtype: torch.dtype) -> None:
    log_probs = log_of([0, 3, 5, 4, 1], dtype)
    for number in (0.0, 0.5, LAST):
        assert pick(log_probs, [number], Sampling(temperature=temperature)).item() == 2
    assert weigh(log_probs, Sampling(temperature=1e300)).tolist() == [[0, 1, 1, 1, 1]]


# --- laws ----------------------------------------------------------------------------------------------------


@given(batch=batches, limits=limits_of_three, seed=st.integers(0, 2**64))
@settings(max_examples=30)
def test_without_chance_it_is_greedy_search(batch: list[Table], limits: list[int], seed: int) -> None:
    expected = greedy(batch, limits)
    assert draw(batch, limits, temperature=0, seed=seed) == [[one] for one in expected]
    assert draw(batch, limits, temperature=0.0, samples=3, top_p=0.1, seed=seed) == [[one] * 3 for one in expected]
    for cut in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-9}):
        if cut != {"temperature": 1e-9} or all(len(set(row)) == 5 for table in batch for row in table):
            assert draw(batch, limits, seed=seed, **cut) == [[one] for one in expected]


@given(batch=batches, limits=limits_of_three, seed=st.integers(0, 99))
@settings(max_examples=30)
def test_a_cut_that_cuts_nothing_changes_no_draw(batch: list[Table], limits: list[int], seed: int) -> None:
    plain = draw(batch, limits, seed=seed, samples=3)
    for cut in ({"top_p": 1.0}, {"top_p": 1}, {"min_p": 0.0}, {"top_k": 5}, {"top_k": 99}, {"temperature": 1}):
        assert draw(batch, limits, seed=seed, samples=3, **cut) == plain


@given(batch=batches, limits=limits_of_three, way=ways, order=st.permutations(range(3)))
@settings(max_examples=50)
def test_a_sentence_is_drawn_as_if_it_were_alone(
    batch: list[Table], limits: list[int], way: dict[str, Any], order: list[int]
) -> None:
    seeds = [11, 7, 2**64 + 5]
    together = draw(batch, limits, seed=seeds, samples=2, **way)
    assert together == [
        draw([table], [limit], seed=[seed], samples=2, **way)[0]
        for table, limit, seed in zip(batch, limits, seeds, strict=True)
    ]
    shuffled = draw(
        [batch[i] for i in order], [limits[i] for i in order], seed=[seeds[i] for i in order], samples=2, **way
    )
    assert shuffled == [together[i] for i in order]


def test_a_sentence_s_seed_comes_from_its_place_and_its_samples_from_their_number() -> None:
    five = draw([TABLE] * 5, 7, seed=1, samples=3)
    assert draw([TABLE] * 3, 7, seed=1, samples=3) == five[:3]
    assert draw([TABLE] * 5, 7, seed=1) == [found[:1] for found in five]
    assert draw([TABLE] * 2, 7, seed=[own_seed(1, 3), own_seed(1, 0)], samples=3) == [five[3], five[0]]
    assert len({one.ids for found in five for one in found}) > 9  # same table, and other draws
    neighbours = draw([TABLE] * 5, 7, seed=2, samples=3)
    assert neighbours[:4] != five[1:]
    assert draw([TABLE] * 5, 7, seed=-1) != draw([TABLE] * 5, 7, seed=1)


def test_without_a_seed_torch_s_generator_settles_it() -> None:
    torch.manual_seed(17)
    first, second = draw([TABLE] * 5, 7), draw([TABLE] * 5, 7)
    assert first != second
    torch.manual_seed(17)
    assert draw([TABLE] * 5, 7) == first
    before = torch.get_rng_state()
    assert draw([TABLE] * 5, 7, seed=3) == draw([TABLE] * 5, 7, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


@given(batch=batches, limits=limits_of_three, way=ways, penalty=st.sampled_from([-1.5, 0.0, 0.6]))
@settings(max_examples=50)
def test_log_probabilities_are_the_step_s_own(
    batch: list[Table], limits: list[int], way: dict[str, Any], penalty: float
) -> None:
    for table, limit, found in zip(
        batch, limits, draw(batch, limits, seed=1, samples=2, length_penalty=penalty, **way), strict=True
    ):
        for one in found:
            said = [*one.ids, END] if one.finished else [*one.ids]
            total = sum(
                math.log(table[last][token] / sum(table[last]))
                for last, token in zip([START, *said], said, strict=False)
            )
            assert one.log_prob == pytest.approx(total, abs=1e-12)
            assert one.score == pytest.approx(one.log_prob / length_normaliser(len(said), penalty), abs=1e-12)
            assert END not in one.ids
            stuck = not any(table[said[-1] if said else START])
            assert one.finished or len(one.ids) == limit or stuck


def test_a_greedy_score_has_its_penalty_too() -> None:
    [[one]] = draw([TABLE], 7, temperature=0, length_penalty=1.0)
    assert one.score == one.log_prob / length_normaliser(len(one.ids) + one.finished, 1.0) != one.log_prob


def test_what_is_over_leaves_the_batch_and_the_first_step_is_shared() -> None:
    ends = [[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]]
    stuck = [[0] * 5, [0] * 5, [0] * 5, [0] * 5, [0, 0, 1, 0, 0]]
    on = [[0, 0, 1, 0, 0]] * 5
    step = Markov([ends, stuck, on])
    found = sample(
        step, Sentences(torch.arange(3)), batch=3, start_id=START, end_id=END, max_length=[9, 9, 3], samples=2, seed=1
    )
    assert step.seen == [[0, 1, 2], [0, 0, 1, 1, 2, 2], [2, 2]]
    assert [[(one.ids, one.finished) for one in two] for two in found] == [
        [((1,), True)] * 2, [((2,), False)] * 2, [((2, 2, 2), False)] * 2,
    ]  # fmt: skip


def test_tokens_as_chosen_are_those_of_the_search_one_step_at_a_time() -> None:
    ways: list[dict[str, Any]] = [{}, {"temperature": 0}, {"top_k": 3, "temperature": 0.7}]
    for way, seed in product(ways, range(5)):
        step = Markov([TABLE])
        given_out = tokens_as_chosen(
            step, Sentences(torch.arange(1)), start_id=START, end_id=END, max_length=7, sampling=Sampling(**way),
            seed=seed,
        )  # fmt: skip
        [[one]] = draw([TABLE], 7, seed=[seed], **way)
        assert step.seen == []
        for number, token in enumerate(one.ids, start=1):
            assert next(given_out) == token
            assert len(step.seen) == number
        assert list(given_out) == []
        assert len(step.seen) == len(one.ids) + one.finished


def test_no_gradients_are_kept_inside_and_outside_all_is_as_it_was() -> None:
    inside: list[bool] = []

    def step(ids: Tensor, state: Sentences, /) -> tuple[Tensor, Sentences]:
        inside.append(torch.is_grad_enabled())
        return torch.tensor([[-1.0, math.log(1 - math.exp(-1))]]), state

    state = Sentences(torch.arange(1))
    marks: dict[str, Any] = {"start_id": START, "end_id": END, "max_length": 7}
    given_out = tokens_as_chosen(step, state, sampling=Sampling(top_k=1), seed=1, **marks)
    next(given_out)
    assert torch.is_grad_enabled()
    sample(step, state, batch=1, top_k=1, **marks)
    assert inside == [False] * 8


# --- slips ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature was given -0.1, but it divides log-probabilities; give a number above 0"),
        ({"temperature": math.inf}, "temperature was given inf"),
        ({"temperature": math.nan}, "temperature was given nan"),
        ({"temperature": "hot"}, "temperature was given 'hot'"),
        ({"temperature": None}, "temperature was given None"),
        ({"temperature": True}, "temperature was given True"),
        ({"top_k": 0}, "top_k was given 0, but it counts the tokens to draw from; give 1 or more, or leave it out"),
        ({"top_k": 2.5}, "top_k was given 2.5"),
        ({"top_p": 0.0}, "top_p was given 0.0, but it is the probability to draw from; give a number above 0"),
        ({"top_p": 1.01}, "top_p was given 1.01"),
        ({"top_p": math.nan}, "top_p was given nan"),
        (
            {"min_p": -0.5},
            "min_p was given -0.5, but it is a share of the likeliest token's probability; give a number",
        ),
        ({"min_p": 1.5}, "min_p was given 1.5"),
        ({"samples": 0}, "samples was given 0, but it counts hypotheses to draw; give 1 or more"),
        ({"seed": 1.5}, "seed was given 1.5, but it is a whole number; give one such as 1"),
        ({"seed": True}, "seed was given True"),
        ({"seed": [1, 2.5]}, "seed was given 2.5"),
        ({"seed": [1]}, "1 seeds were given for a batch of 2; give one number for all sentences, or one for each"),
        ({"limits": 0}, "max_length was given 0"),
        ({"limits": [1]}, "1 length limits were given for a batch of 2"),
        ({"length_penalty": math.nan}, "length_penalty nan over 5 tokens"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(unchecked: None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodingError, match=re.escape(message)):
        draw([TABLE] * 2, **options)


def test_settings_by_name_are_checked() -> None:
    assert Sampling.of({"temperature": 0.8, "top_k": 3}) == Sampling(temperature=0.8, top_k=3)
    assert Sampling.of(Sampling(top_p=0.5)) == Sampling(top_p=0.5)
    with pytest.raises(DecodingError, match=r"unknown setting 'temprature'; did you mean 'temperature'\?"):
        Sampling.of({"temprature": 0.8})
    with pytest.raises(DecodingError, match="'seed'; known are temperature, top_k, top_p, min_p"):
        Sampling.of({"seed": 1})


def test_settings_without_names_are_refused(unchecked: None) -> None:
    with pytest.raises(DecodingError, match=r"sampling was given 0\.8, but it takes settings by name"):
        Sampling.of(0.8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (torch.tensor([[-1.0, math.nan, -2.0]]), "NaN in row 0"),
        (torch.tensor([[-1.0, 3.5, -2.0]]), "the step gave 3.5 in row 0, but a log-probability is at most 0"),
        (torch.tensor([[-1, -2, -3]]), "the step gave torch.int64 of shape (1, 3) for 1 ids"),
        (torch.zeros(2, 3), "the step gave torch.float32 of shape (2, 3) for 1 ids"),
    ],
)
def test_answers_that_are_no_log_probabilities_are_refused(row: Tensor, message: str) -> None:
    def step(ids: Tensor, state: Sentences, /) -> tuple[Tensor, Sentences]:
        return row, state

    with pytest.raises(DecodingError, match=re.escape(message)):
        sample(step, Sentences(torch.arange(1)), batch=1, start_id=START, end_id=END, max_length=5)


def test_an_empty_batch_never_asks_the_model() -> None:
    assert draw([], []) == []
    assert draw([], [], seed=1, temperature=0) == []


def test_rounding_above_zero_does_not_lift_a_score() -> None:
    def step(ids: Tensor, state: Sentences, /) -> tuple[Tensor, Sentences]:
        return torch.tensor([[1e-5, -41.0]]), state

    [[one]] = sample(step, Sentences(torch.arange(1)), batch=1, start_id=START, end_id=END, max_length=5, seed=1)
    assert one == Hypothesis((), 0.0, 0.0, True)
