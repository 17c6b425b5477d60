"""Text in, text out: N lines in, N out, each as if it were alone, with figures that mean what they say."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid
import tiny_run
from pellucid.config import END_ID, DecodingConfig
from pellucid.decoding import Translation, Translator, length_normaliser, load
from pellucid.decoding.engines import ModelEngine
from pellucid.decoding.units import batches_of
from pellucid.decoding.wish import Wish
from pellucid.errors import ConfigError, DecodingError, PositionError, RunError
from pellucid.text.batch import Example, collate

SENTENCES = tiny_run.SENTENCES
BLANK = ["", " ", "   ", "\t", "\u3000", "\u00a0 \u2003"]
TOKENIZER = tiny_run.tokenizer()


@cache
def translator() -> Translator:
    return tiny_run.translator()


@cache
def alone(line: str) -> Translation:
    """A line's translation when nothing stands beside it."""
    [found] = translator().translate([line], n_best=2)
    return found


def same(one: Translation, other: Translation) -> bool:
    """Whether two translations have the same tokens, and the same figures to rounding."""
    pairs = list(zip(one.hypotheses, other.hypotheses, strict=True))
    return one.source == other.source and all(
        left.tokens == right.tokens
        and left.text == right.text
        and left.finished == right.finished
        and (left.log_prob, left.score) == pytest.approx((right.log_prob, right.score), abs=1e-9)
        for left, right in pairs
    )


def test_the_toy_model_is_worth_testing_with() -> None:
    found = [alone(line) for line in SENTENCES]
    assert len({one.text for one in found}) > 3
    assert {best.finished for one in found for best in one.hypotheses} == {True, False}
    assert any(len(one.tokens) > 3 for one in found)


# --- lines ---------------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(st.lists(st.sampled_from([*SENTENCES, *BLANK]), max_size=9), st.sampled_from([1, 50, 333, 100_000]))
def test_lines_come_back_in_order_each_as_if_it_were_alone(lines: list[str], batch_tokens: int) -> None:
    crowd = Translator(
        tiny_run.engine(translator()).model,
        TOKENIZER,
        TOKENIZER,
        translator().settings.replace(batch_tokens=batch_tokens),
    )
    found = crowd.translate(lines, n_best=2)
    assert len(found) == len(lines)
    for one, line in zip(found, lines, strict=True):
        assert one.source == line
        assert same(one, alone(line))
        assert len(one.hypotheses) == 2


@pytest.mark.parametrize("line", BLANK)
def test_a_blank_line_stays_one(line: str) -> None:
    [found] = translator().translate([line], n_best=3, attention=True)
    assert [(one.text, one.tokens, one.log_prob, one.score) for one in found.hypotheses] == [("", (), 0.0, 0.0)] * 3
    assert found.source_tokens == ()
    assert found.attention is None
    assert found.text == ""


def test_a_line_is_cut_into_batches_of_like_length() -> None:
    lengths = {0: 3, 1: 7, 2: 7, 3: 2, 4: 5}  # tokens; each with its mark and for a beam of 2
    batches = list(batches_of(lengths, DecodingConfig(beam=2, batch_tokens=32)))
    assert batches == [[1, 2], [4, 0], [3]]
    assert list(batches_of(lengths, DecodingConfig(beam=2, batch_tokens=1))) == [[1], [2], [4], [0], [3]]
    assert list(batches_of({}, DecodingConfig())) == []


@pytest.mark.parametrize("ahead", [1, 3])
def test_lines_are_read_no_further_than_was_said(ahead: int) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for number in count():
            read += 1
            yield SENTENCES[number % 2]

    found = translator().translate_lines(endless(), beam=1, read_ahead=ahead)
    assert read == 0
    for number, one in enumerate(islice(found, 7)):
        assert one.source == SENTENCES[number % 2]
        assert number < read <= ahead * (number // ahead + 1)


def test_what_is_found_does_not_depend_on_what_is_read_with_it() -> None:
    lines = [SENTENCES[0], "", *SENTENCES[1:4]]
    found = list(translator().translate_lines(lines, n_best=2, read_ahead=2))
    assert [one.source for one in found] == [SENTENCES[0], "", *SENTENCES[1:4]]
    assert all(same(one, alone(one.source)) for one in found)


def test_line_ends_in_generated_text_break_no_line() -> None:
    bytes_of = {value: TOKENIZER.encode("\x01")[-1] - 1 + value for value in range(256)}
    said = [bytes_of[value] for value in "x\n\r\0\v\f\x1c\x85\u2028\u2029y".encode()]

    @dataclass(frozen=True)
    class Place:
        place: int = 0

        def select(self, _: object) -> "Place":
            return self

    class Parrot(ModelEngine):
        """An engine that says these bytes, whatever it is asked."""

        def begin(self, *_: object) -> Any:
            return Place()

        def step(self, ids: torch.Tensor, state: Any) -> Any:
            log_probs = torch.full((len(ids), TOKENIZER.vocab_size), float("-inf"))
            log_probs[:, [*said, END_ID][state.place]] = 0.0
            return log_probs, Place(state.place + 1)

    parroting = Translator(Parrot(tiny_run.model()), TOKENIZER, TOKENIZER, DecodingConfig(length_extra=50))
    for beam in (1, 2):
        [found] = parroting.translate(["cat"], beam=beam)
        assert found.text == "x         y"
        assert found.hypotheses[0].finished


# --- searches ------------------------------------------------------------------------------------------------


def test_n_best_are_different_and_in_order_and_the_first_is_the_best() -> None:
    for line in SENTENCES[:4]:
        [four] = translator().translate([line], n_best=4)
        [one] = translator().translate([line])
        assert len(four.hypotheses) == 4
        assert len({best.tokens for best in four.hypotheses}) == 4
        ended = [best.score for best in four.hypotheses if best.finished]
        cut = [best.score for best in four.hypotheses if not best.finished]
        assert [best.score for best in four.hypotheses] == sorted(ended, reverse=True) + sorted(cut, reverse=True)
        assert (one.text, one.tokens, one.score, one.log_prob) == (four.text, four.tokens, four.score, four.log_prob)
        assert four.text == four.hypotheses[0].text


@pytest.mark.parametrize(("n_best", "beam"), [(3, 2), (2, 1), (5, None)])
def test_more_candidates_than_the_beam_has_are_refused(n_best: int, beam: int | None) -> None:
    with pytest.raises(DecodingError, match=rf"n_best is {n_best}, but a beam of {beam or 4} gives 1 to"):
        translator().translate_lines(SENTENCES, beam=beam, n_best=n_best)


def test_settings_are_the_run_s_unless_said_otherwise() -> None:
    narrow = tiny_run.translator(DecodingConfig(beam=2, length_penalty=0.0, length_ratio=1.5))
    [bare] = narrow.translate([SENTENCES[0]])
    assert bare.score == bare.log_prob  # a penalty of 0
    [same_settings] = translator().translate([SENTENCES[0]], beam=2, length_penalty=0.0)
    assert same(bare, same_settings)
    with pytest.raises(ConfigError, match="'beam' was given 0"):
        narrow.translate(SENTENCES, beam=0)
    with pytest.raises(ConfigError, match="'length_penalty' was given nan"):
        narrow.translate(SENTENCES, length_penalty=float("nan"))


@pytest.mark.parametrize("beam", [1, 3])
def test_a_translation_is_as_long_as_its_source_allows(beam: int) -> None:
    short = tiny_run.translator(DecodingConfig(length_ratio=0.5, length_extra=3))
    for one in short.translate(SENTENCES, beam=beam):
        most = len(one.source_tokens) // 2 + 3
        tokens = len(one.tokens) + one.hypotheses[0].finished
        assert tokens == most if not one.hypotheses[0].finished else tokens <= most


# --- figures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 4])
def test_a_score_is_the_log_probability_over_gnmt_s_normaliser(beam: int) -> None:
    for one in translator().translate(SENTENCES, beam=beam, length_penalty=0.8, n_best=min(beam, 3)):
        for best in one.hypotheses:
            normaliser = length_normaliser(len(best.tokens) + best.finished, 0.8)
            assert best.score == pytest.approx(best.log_prob / normaliser, rel=1e-12)
            assert best.log_prob < 0.0


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 4])
def test_log_probabilities_are_those_of_the_whole_sentence_at_once(beam: int) -> None:
    model, settings, scored = tiny_run.engine(translator()).model, translator().settings.replace(beam=beam), 0
    for line in [*SENTENCES, *(source for source, _ in tiny_run.pairs(9 if beam == 1 else 2))]:
        source = TOKENIZER.encode(line)
        [found] = tiny_run.search(translator(), source, Wish(settings, n_best=beam))
        [one] = translator().translate([line], beam=beam, n_best=beam)
        for hypothesis, best in zip(found, one.hypotheses, strict=True):
            assert best.log_prob == hypothesis.log_prob
            batch = collate([Example(1, source, hypothesis.ids)])
            log_probs = model(batch.source, batch.target).log_softmax(dim=-1)[0]
            said = [*hypothesis.ids, END_ID][: len(hypothesis.ids) + hypothesis.finished]
            expected = sum(log_probs[place, token].item() for place, token in enumerate(said))
            assert best.log_prob == pytest.approx(expected, abs=1e-9)
            if best.finished and best.text and tuple(TOKENIZER.encode(best.text)) == hypothesis.ids:
                assert translator().score([line], [best.text]) == pytest.approx([best.log_prob], abs=1e-9)
                scored += 1
    assert scored > 0


def test_a_pair_s_score_does_not_depend_on_its_neighbours() -> None:
    targets = [tiny_run.german(line) for line in reversed(SENTENCES)]
    sources = [*SENTENCES, "", "cat"]
    targets += ["die Katze", ""]
    together = translator().score(sources, targets)
    small = Translator(tiny_run.engine(translator()).model, TOKENIZER, TOKENIZER, DecodingConfig(batch_tokens=1))
    assert together == pytest.approx(small.score(sources, targets), abs=1e-9)
    assert together == pytest.approx(
        [translator().score([source], [target])[0] for source, target in zip(sources, targets, strict=True)], abs=1e-9
    )
    assert len(set(together)) == len(together)
    assert translator().score([], []) == []


def test_attention_is_a_distribution_over_the_source_for_each_token_said() -> None:
    layers, heads = 2, 3
    for one in translator().translate(SENTENCES, attention=True):
        assert one.attention is not None
        assert one.attention.shape == (layers, heads, len(one.tokens) + 1, len(one.source_tokens))
        assert one.source_tokens == (*TOKENIZER.pieces(TOKENIZER.encode(one.source)), "</s>")
        torch.testing.assert_close(one.attention.sum(dim=-1), torch.ones(one.attention.shape[:3], dtype=torch.float64))
    assert all(one.attention is None for one in translator().translate(SENTENCES[:2]))


def test_a_record_is_the_translation_under_the_same_names() -> None:
    one = alone(SENTENCES[2])
    assert one.record() == {
        "source": SENTENCES[2],
        "text": one.text,
        "score": one.score,
        "log_prob": one.log_prob,
        "tokens": one.tokens,
        # what was not asked for is left out
        "hypotheses": [
            {name: value for name, value in asdict(best).items() if value is not None} for best in one.hypotheses
        ],
    }


# --- slips ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["translate", "translate_lines"])
def test_one_string_is_refused(job: str) -> None:
    with pytest.raises(DecodingError, match="was given the one string 'the cat', but it takes lines; put it in a list"):
        getattr(translator(), job)("the cat")


def test_scores_of_strings_and_of_unequal_lists_are_refused() -> None:
    with pytest.raises(DecodingError, match="score was given the one string 'cat'"):
        translator().score("cat", ["Katze"])
    with pytest.raises(DecodingError, match="score was given the one string 'Katze'"):
        translator().score(["cat"], "Katze")
    with pytest.raises(DecodingError, match="2 sources and 1 targets"):
        translator().score(["cat", "a"], ["Katze"])


@pytest.mark.parametrize("wrong", [None, 7, b"cat"])
def test_a_line_that_is_no_string_is_named(wrong: Any) -> None:
    with pytest.raises(DecodingError, match=rf"was given {wrong!r} as line 2, but a line is a string"):
        translator().translate(iter(["cat", wrong]))


@cache
def learned() -> Translator:
    return tiny_run.translator(positions="learned", max_positions=8)


def test_too_long_a_line_is_named_with_the_limit() -> None:
    most = " ".join(["window"] * 7)  # and the end mark
    assert len(TOKENIZER.encode(most)) == 7
    lines = ["a", most, "a", "window " + most]
    found = learned().translate_lines(lines, read_ahead=2, too_long="refuse")
    assert [next(found).source, next(found).source] == lines[:2]
    with pytest.raises(DecodingError, match=r"^line 4 has 8 tokens, but 7 are read at most; split the line, or choose"):
        next(found)
    with pytest.raises(PositionError, match=r"^line 2: .* max_positions=8"):
        learned().score(["a", "a", "a"], ["a", most + " window", "a"])


def test_a_translation_stops_where_the_learned_positions_end() -> None:
    line = " ".join(["window"] * 7)
    endless = tiny_run.translator(positions="learned", max_positions=8)
    with torch.no_grad():
        tiny_run.engine(endless).model.head.weight[END_ID, 0] = -20.0
    for beam in (1, 3):
        [found] = endless.translate([line], beam=beam, n_best=beam, attention=True)
        assert [(len(best.tokens), best.finished) for best in found.hypotheses] == [(8, False)] * beam
        assert found.attention is not None
        assert found.attention.shape[2] == 8  # no position is left for an end mark


# --- a run ---------------------------------------------------------------------------------------------------


def test_making_a_translator_leaves_a_training_in_peace() -> None:
    model = tiny_run.model()
    made = Translator(model, TOKENIZER, TOKENIZER, DecodingConfig(length_ratio=0.5, beam=2))
    assert model.training
    assert all(same(*pair) for pair in zip(made.translate(SENTENCES), made.translate(SENTENCES), strict=True))
    model.train()
    targets = [tiny_run.german(line) for line in SENTENCES]
    scores = made.score(SENTENCES, targets)
    model.train()
    assert made.score(SENTENCES, targets) == scores  # dropout is off again


def test_a_run_is_loaded_with_its_best_weights_and_settings(tmp_path: Path) -> None:
    run = tiny_run.write_run(tmp_path / "run")
    for path in (run, str(run)):
        made = load(path, "cpu")
        assert made.settings == DecodingConfig(length_ratio=1.5)
        assert made.source_tokenizer == TOKENIZER
        tiny_run.engine(made).model.double()  # a run is loaded in float32, and its numbers were float64
        found = made.translate(SENTENCES[:3])
        assert [one.tokens for one in found] == [alone(line).tokens for line in SENTENCES[:3]]
    assert pellucid.load is load
    with pytest.raises(RunError, match="holds no run"):
        load(tmp_path)


def test_no_lines_become_no_translations() -> None:
    assert translator().translate([]) == []
