"""What sentences must and must not be, held to an oracle that writes down every sentence and strikes out illegal ones."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.decoding import Rules, Sampling, sample
from pellucid.decoding.hypotheses import length_normaliser
from pellucid.decoding.phrases import Phrase, contains, needed, next_tokens, shared
from pellucid.decoding.search import Hypothesis, beam_search, greedy_search
from pellucid.decoding.stream import tokens_as_chosen
from pellucid.errors import DecodingError
from toy_search import END, START, Table, Toy, begin, next_log_probs, tables

VOCABULARY, LIMIT = 3, 5
PENALTIES = (-1.5, -0.3, 0.0, 0.6, 2.0)
phrases = st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=2).map(tuple)


def stands(ids: Phrase, phrase: Phrase) -> int:
    """How often a phrase stands in ids, by comparing texts."""
    text, part = "".join(f"<{token}>" for token in ids), "".join(f"<{token}>" for token in phrase)
    return sum(text.startswith(part, place) for place in range(len(text)))


def legal(ids: Phrase, rules: Rules) -> bool:
    """Whether a finished sentence keeps the rules."""
    size = rules.no_repeat_ngram
    runs = [ids[start : start + size] for start in range(len(ids) - size + 1)] if size else []
    return (
        len(ids) + 1 >= rules.min_length
        and len(set(runs)) == len(runs)
        and ids[: len(rules.prefix)] == rules.prefix
        and all(stands(ids, phrase) >= rules.forced.count(phrase) for phrase in rules.forced)
        and not any(stands(ids, phrase) for phrase in rules.forbidden)
    )


def oracle(table: Table, rules: Rules, normalise: Callable[[int], float]) -> dict[Phrase, tuple[float, float]]:
    """Each legal finished sentence with its log-probability and its score."""
    found: dict[Phrase, tuple[float, float]] = {}

    def visit(ids: Phrase, log_prob: float, lowered: float) -> None:
        for token, value in enumerate(next_log_probs(table, ids)):
            if value == -math.inf:
                continue
            gain = value * rules.repetition_penalty if token in ids else value
            if token == END:
                if legal(ids, rules):
                    found[ids] = (log_prob + value, (lowered + gain) / normalise(len(ids) + 1))
            elif len(ids) + 1 < LIMIT:
                visit((*ids, token), log_prob + value, lowered + gain)

    visit((), 0.0, 0.0)
    return found


def has_room(ids: Phrase, rules: Rules) -> bool:
    """Whether each beginning of a sentence leaves room to say what it lacks, phrase after phrase."""
    lacks = [needed(ids[:size], rules.forced) for size in range(len(ids) + 1)]
    return all(size + lack + 1 <= LIMIT for size, lack in enumerate(lacks) if lack)


def search(table: Table, rules: Rules, width: int, **more: Any) -> list[Hypothesis]:
    found: list[Hypothesis]
    [found] = beam_search(
        Toy([table]), begin(1), batch=1, start_id=START, end_id=END, beam=width, max_length=LIMIT, rules=rules, **more
    )
    return found


some_rules = st.fixed_dictionaries(
    {
        "min_length": st.integers(1, LIMIT),
        "no_repeat_ngram": st.sampled_from([0, 0, 1, 2, 3]),
        "repetition_penalty": st.sampled_from([1.0, 1.7]),
        "prefix": st.just(()) | phrases,
        "forced": st.lists(phrases, max_size=2).map(tuple),
        "forbidden": st.lists(phrases, max_size=1).map(tuple),
    }
)


def made(parts: dict[str, Any]) -> Rules:
    """Rules that do not contradict themselves at once; none where these do."""
    try:
        rules = Rules(**parts)
        rules.fit(LIMIT, END)
    except DecodingError:
        return Rules()
    return rules


@given(
    table=tables(VOCABULARY),
    parts=some_rules,
    penalty=st.sampled_from(PENALTIES),
    rule=st.sampled_from(["gnmt", "power"]),
)
@settings(max_examples=40, deadline=None)
def test_a_beam_over_the_whole_space_finds_every_legal_sentence_best_first(
    table: Table, parts: dict[str, Any], penalty: float, rule: Any
) -> None:
    rules = made(parts)
    width = VOCABULARY**LIMIT
    written = oracle(table, rules, lambda n: length_normaliser(n, penalty, rule))
    # a phrase that would be met by overlapping with another at the last moment has, by the rule, too little room
    expected = {ids: figures for ids, figures in written.items() if has_room(ids, rules)}
    found = search(table, rules, width, length_penalty=penalty, length_rule=rule, n_best=width)
    finished = [one for one in found if one.finished]
    assert [one.score for one in finished] == pytest.approx(
        sorted((score for _, score in expected.values()), reverse=True), abs=1e-12
    )
    assert {one.ids for one in finished} == expected.keys()
    for one in finished:
        assert one.log_prob == pytest.approx(expected[one.ids][0], abs=1e-12)
    [best] = search(table, rules, width, length_penalty=penalty, length_rule=rule)
    assert best == found[0]


@given(table=tables(VOCABULARY), parts=some_rules, width=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_whatever_is_finished_keeps_the_rules(table: Table, parts: dict[str, Any], width: int) -> None:
    rules = made(parts)
    for one in search(table, rules, width, n_best=width):
        assert not one.finished or legal(one.ids, rules)
        assert len(one.ids) + one.finished <= LIMIT
    [greedy] = greedy_search(Toy([table]), begin(1), batch=1, start_id=START, end_id=END, max_length=LIMIT, rules=rules)
    assert not greedy.finished or legal(greedy.ids, rules)
    if not rules.forced:
        [drawn] = sample(
            Toy([table]),
            begin(1),
            batch=1,
            start_id=START,
            end_id=END,
            max_length=LIMIT,
            rules=rules,
            samples=3,
            seed=1,
        )
        for one in drawn:
            assert not one.finished or legal(one.ids, rules)
            assert one.ids[: len(rules.prefix)] == rules.prefix[: len(one.ids)]


@given(
    table=st.lists(st.lists(st.integers(1, 9), min_size=4, max_size=4), min_size=7, max_size=7),
    forced=st.lists(phrases, max_size=2),
    width=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_where_every_token_has_a_chance_what_is_forced_stands_there(
    table: Table, forced: list[Phrase], width: int
) -> None:
    rules = Rules(forced=tuple(forced))
    for one in search(table, rules, width, n_best=width):
        if one.finished:
            assert legal(one.ids, rules)
    [best] = search(table, rules, width)
    assert legal(best.ids, rules)  # cut or not, for hypotheses without room for the rest do not live


@given(batch=st.lists(tables(VOCABULARY), min_size=3, max_size=3), parts=st.lists(some_rules, min_size=3, max_size=3))
@settings(max_examples=30, deadline=None)
def test_each_sentence_follows_its_own_rules(batch: list[Table], parts: list[dict[str, Any]]) -> None:
    each = [made(one) for one in parts]
    together = beam_search(
        Toy(batch), begin(3), batch=3, start_id=START, end_id=END, beam=2, max_length=LIMIT, rules=each, n_best=2
    )
    assert together == [search(table, rules, 2, n_best=2) for table, rules in zip(batch, each, strict=True)]


def test_what_is_streamed_follows_the_rules() -> None:
    table = [[5, 3, 1, 2], [1, 2, 6, 3], [4, 4, 1, 1]]
    rules = Rules(min_length=4, prefix=(3,), forbidden=((1, 2),))
    greedy = {"start_id": START, "end_id": END, "max_length": LIMIT, "rules": rules}
    said = list(tokens_as_chosen(Toy([table]), begin(1), sampling=Sampling(temperature=0), seed=1, **greedy))  # type: ignore[arg-type]
    [found] = greedy_search(Toy([table]), begin(1), batch=1, **greedy)  # type: ignore[arg-type]
    assert tuple(said) == found.ids
    assert said[0] == 3
    assert len(said) >= 3


def test_what_cannot_be_said_comes_back_unfinished() -> None:
    never_two = [[1, 1, 0]]
    for width in (1, 3):
        found = search(never_two, Rules(forced=((2,),)), width)
        assert not found[0].finished
        assert 2 not in found[0].ids


# --- length rules --------------------------------------------------------------------------------------------


def test_the_power_rule_divides_by_a_power_of_the_length(unchecked: None) -> None:
    assert length_normaliser(4, 0.5, "power") == 2.0
    assert length_normaliser(0, 0.5, "power") == 1.0  # a sentence of nothing that was cut
    assert length_normaliser(7, -1.0, "power") == pytest.approx(1 / 7)
    with pytest.raises(DecodingError, match="length_rule was given 'mean', but known are 'gnmt' and 'power'"):
        length_normaliser(4, 0.5, "mean")  # type: ignore[arg-type]


# --- phrases -------------------------------------------------------------------------------------------------


@given(ids=st.lists(st.integers(1, 2), max_size=6).map(tuple), forced=st.lists(phrases, min_size=1, max_size=3))
def test_what_is_needed_falls_with_each_token_that_goes_on(ids: Phrase, forced: list[Phrase]) -> None:
    need = needed(ids, forced)
    assert (need == 0) == all(stands(ids, phrase) >= forced.count(phrase) for phrase in forced)
    assert bool(next_tokens(ids, forced)) == (need > 0)
    for _ in range(need):
        if needed(ids, forced) == 0:
            break
        ids = min(((*ids, token) for token in next_tokens(ids, forced)), key=lambda more: needed(more, forced))
    assert needed(ids, forced) == 0


def test_a_beam_is_shared_by_what_is_still_needed() -> None:
    assert shared(4, [3, 3, 3, 3, 3]) == [0, 1, 2, 3]
    assert shared(4, [3, 3, 3, 1, 3, 0]) == [0, 1, 3, 5]
    assert shared(1, [2, 2, 0]) == [2]
    assert shared(2, []) == []
    assert contains((1, 2, 1), (2, 1))
    assert not contains((1, 2), (1, 2, 1))


# --- diverse groups and traces -------------------------------------------------------------------------------

TABLE = [[1, 5, 4, 3], [3, 2, 5, 5], [6, 1, 2, 4], [2, 7, 1, 3], [1, 1, 8, 2]]


def test_one_group_is_the_plain_beam_and_no_diversity_repeats_it() -> None:
    plain = search(TABLE, Rules(), 2, n_best=2)
    assert search(TABLE, Rules(), 2, n_best=2, groups=1, diversity=9.0) == plain
    alike = search(TABLE, Rules(), 4, n_best=2, groups=2, diversity=0.0)
    assert alike == plain  # both groups found the same


def test_a_group_avoids_what_the_one_before_it_chose() -> None:
    first, other = search(TABLE, Rules(min_length=3), 2, n_best=2, groups=2, diversity=50.0)
    assert first.score >= other.score
    told = beam_search(
        Toy([TABLE, TABLE]), begin(2), batch=2, start_id=START, end_id=END, beam=2, max_length=LIMIT, n_best=2, groups=2,
        diversity=50.0, rules=Rules(min_length=3),
    )  # fmt: skip
    assert told == [[first, other]] * 2
    shorter = min(len(first.ids), len(other.ids))
    assert all(one != two for one, two in zip(first.ids[:shorter], other.ids[:shorter], strict=True))
    greedy = search(TABLE, Rules(min_length=3), 1)[0]
    assert greedy in (first, other)  # the first group is a beam by itself
    for one in (first, other):
        said = [*one.ids, END][: len(one.ids) + one.finished]
        total = sum(next_log_probs(TABLE, one.ids[:place])[token] for place, token in enumerate(said))
        assert one.log_prob == pytest.approx(total)  # the penalty chooses, and is not counted


def test_a_long_phrase_is_forbidden_at_its_last_token_alone() -> None:
    rules = Rules(forbidden=((1, 2, 3), (2, 5), (4,)))
    told = {(1,): {4}, (1, 2): {3, 4, 5}, (2, 2): {4, 5}, (3, 1, 2): {3, 4, 5}, (1, 2, 2): {4, 5}, (): {4}}
    assert {ids: rules.banned(ids, END) for ids in told} == told


def test_of_equals_the_first_group_s_stands_first() -> None:
    """So that the best is the same however many are asked for."""
    even = [[1, 1, 1, 1]] * 7
    for n_best in (1, 2, 4):
        found = search(even, Rules(min_length=2), 4, n_best=n_best, groups=2, diversity=9.0)
        assert [one.ids for one in found] == [(1,), (3,), (1, 1), (3, 3)][:n_best]


def test_a_trace_tells_what_became_of_each_candidate() -> None:
    [found], [trace] = beam_search(
        Toy([TABLE]), begin(1), batch=1, start_id=START, end_id=END, beam=2, max_length=LIMIT, n_best=2, trace=True
    )
    assert [found] == [search(TABLE, Rules(), 2, n_best=2)]
    ended = {
        trace.tokens(step, place)
        for step, tried in enumerate(trace.steps)
        for place, one in enumerate(tried)
        if one.fate == "finished"
    }
    assert {(*one.ids, END) for one in found if one.finished} <= ended
    assert ended
    for step, tried in enumerate(trace.steps):
        assert [one.sum for one in tried] == sorted((one.sum for one in tried), reverse=True)
        assert len(trace.lived(step)) <= 2
        for place, one in enumerate(tried):
            ids = trace.tokens(step, place)
            assert len(ids) == step + 1
            total = sum(next_log_probs(TABLE, ids[:at])[token] for at, token in enumerate(ids))
            assert one.sum == pytest.approx(total)
    fates = {one.fate for tried in trace.steps for one in tried}
    assert {"lives on", "finished", "outside the beam"} <= fates
    text = str(trace)
    assert text.startswith("step 1\n")
    assert text.splitlines()[-1].startswith("over: ")


def test_a_trace_tells_of_dead_ends_and_of_too_little_room() -> None:
    _, [trace] = beam_search(
        Toy([[[0, 1, 1], [0, 0, 0]]]), begin(1), batch=1, start_id=START, end_id=END, beam=3, max_length=3, trace=True
    )
    assert "no token to go on with" in str(trace)
    assert trace.ending == "over: no hypothesis lives on"
    _, [trace] = beam_search(
        Toy([TABLE]), begin(1), batch=1, start_id=START, end_id=END, beam=3, max_length=3, trace=True,
        rules=Rules(forced=((1, 2),)),
    )  # fmt: skip
    assert {one.token: one.fate for one in trace.steps[0]} == {
        token: "lives on" if token == 1 else "no room left for what is forced" for token in (1, 2, 3)
    }


# --- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_length": 0}, "min_length was given 0, but it counts tokens, the end mark too"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram was given -1, but it is a length, or 0 for none; give"),
        ({"repetition_penalty": 0.5}, "repetition_penalty was given 0.5, but it lowers"),
        ({"repetition_penalty": math.nan}, "repetition_penalty was given nan"),
        ({"forced": ((),)}, "a forced phrase is empty"),
        ({"forbidden": ((5,), ())}, "a forbidden phrase is empty"),
        ({"forbidden": ((5, 6),), "forced": ((4, 5, 6),)}, "holds the forbidden phrase"),
        ({"forbidden": ((5,),), "prefix": (5,)}, "the prefix .5. holds the forbidden phrase"),
    ],
)
def test_rules_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodingError, match=message):
        Rules(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rules": Rules(min_length=6)}, "ask for 6 tokens, end mark counted, but at most 5 may be said"),
        ({"rules": Rules(forced=((1, 2), (2, 1), (1,)))}, "ask for 6 tokens"),
        ({"rules": Rules(prefix=(1, END))}, "holds the end mark 0"),
        ({"rules": [Rules(), Rules()]}, "2 rules were given for a batch of 1"),
        ({"rules": Rules(prefix=(9,))}, "name token 9, but the step knows 3"),
        ({"groups": 2}, "groups was given 2 with a beam of 3"),
        ({"groups": 3, "diversity": -1.0}, "diversity was given -1.0"),
        ({"groups": 3, "trace": True}, "trace was asked for with 3 groups"),
    ],
)
def test_searches_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodingError, match=message):
        beam_search(
            Toy([[[1, 1, 1]]]), begin(1), batch=1, start_id=START, end_id=END, beam=3, max_length=LIMIT, **given
        )  # fmt: skip


def test_phrases_are_not_forced_into_what_is_drawn() -> None:
    rules = Rules(forced=((1,),))
    with pytest.raises(DecodingError, match="cannot be forced into what is drawn"):
        sample(Toy([[[1, 1, 1]]]), begin(1), batch=1, start_id=START, end_id=END, max_length=LIMIT, rules=rules)
    with pytest.raises(DecodingError, match="cannot be forced into what is said token by token"):
        list(
            tokens_as_chosen(
                Toy([[[1, 1, 1]]]), begin(1), start_id=START, end_id=END, max_length=LIMIT, rules=rules,
                sampling=Sampling(temperature=0), seed=1,
            )
        )  # fmt: skip


def test_a_penalty_lowers_the_score_and_not_the_log_probability() -> None:
    flat = [[1, 1, 1]]
    [one] = search(flat, Rules(repetition_penalty=2.0, min_length=4, prefix=(1, 1, 1)), 1, length_penalty=0.0)
    assert one.ids == (1, 1, 1)
    assert one.log_prob == pytest.approx(4 * math.log(1 / 3))
    assert one.score == pytest.approx(6 * math.log(1 / 3))
