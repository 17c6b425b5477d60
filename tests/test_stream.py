"""Translations drawn, and translations streamed: what stands in `translate` comes out in pieces, each settled."""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_run
from pellucid.config import END_ID, DecodingConfig
from pellucid.decoding import Sampling, Translator, length_normaliser
from pellucid.decoding.chances import Drawing
from pellucid.decoding.stream import settled_text
from pellucid.decoding.wish import Wish
from pellucid.errors import DecodingError

SENTENCES = tiny_run.SENTENCES
TOKENIZER = tiny_run.tokenizer()
BLANK = ["", "   ", "\u3000"]
WAYS: list[dict[str, Any]] = [{}, {"temperature": 0.8, "top_p": 0.9}, {"temperature": 1.5, "top_k": 7, "min_p": 0.01}]


@cache
def translator() -> Translator:
    return tiny_run.translator(DecodingConfig(length_ratio=0.8, length_extra=3))


def id_of(byte: int) -> int:
    """The id of a byte."""
    return TOKENIZER.encode("\x01")[-1] - 1 + byte


# --- drawn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "batch_tokens"), [*zip(WAYS, (1, 50, 99), strict=True)])
def test_a_line_s_draws_depend_on_its_number_and_the_seed_alone(way: dict[str, Any], batch_tokens: int) -> None:
    lines = [SENTENCES[0], "", SENTENCES[1], SENTENCES[0]]
    found = translator().translate(lines, sampling=way, seed=5, n_best=2)
    crowd = Translator(
        tiny_run.engine(translator()).model,
        TOKENIZER,
        TOKENIZER,
        translator().settings.replace(batch_tokens=batch_tokens),
    )
    others = [line if number in (2, 3) else SENTENCES[3] for number, line in enumerate(lines)]
    for again in (
        crowd.translate(lines, sampling=way, seed=5, n_best=2),
        list(crowd.translate_lines(others, sampling=way, seed=5, n_best=2, read_ahead=2)),
    ):
        for number in (2, 3):
            assert [one.tokens for one in again[number].hypotheses] == [one.tokens for one in found[number].hypotheses]
    [alone] = translator().translate([SENTENCES[0]], sampling=way, seed=5)
    assert alone.tokens == found[0].tokens  # the first draw, however many follow
    assert found[3].tokens != found[0].tokens  # the same line at another place
    assert translator().translate(lines, sampling=way, seed=6)[0].tokens != found[0].tokens


def test_blank_lines_stay_blank() -> None:
    for one in translator().translate(BLANK, sampling={}, seed=1, n_best=3):
        assert [(best.text, best.tokens, best.log_prob) for best in one.hypotheses] == [("", (), 0.0)] * 3


def test_a_temperature_of_zero_is_greedy_search() -> None:
    greedy = translator().translate(SENTENCES[:3], beam=1)
    for sampling in ({"temperature": 0}, Sampling(temperature=0.0, top_p=0.3)):
        assert translator().translate(SENTENCES[:3], sampling=sampling, seed=1) == greedy


def test_drawn_figures_are_the_model_s_own() -> None:
    scored, way = 0, Sampling(temperature=0.6)
    for line in SENTENCES[:4]:
        wish = Wish(translator().settings, 3, Drawing(way, 2))
        [found] = tiny_run.search(translator(), TOKENIZER.encode(line), wish)
        [one] = translator().translate([line], sampling=way, seed=2, n_best=3, length_penalty=0.8)
        for hypothesis, best in zip(found, one.hypotheses, strict=True):
            tokens = len(best.tokens) + best.finished
            assert best.score == pytest.approx(best.log_prob / length_normaliser(tokens, 0.8), rel=1e-12)
            assert best.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-9)
            if best.finished and tuple(TOKENIZER.encode(best.text)) == hypothesis.ids:
                assert translator().score([line], [best.text]) == pytest.approx([best.log_prob], abs=1e-9)
                scored += 1
    assert scored > 2


def test_drawn_candidates_have_attention_too() -> None:
    [one] = translator().translate([SENTENCES[0]], sampling={}, seed=2, attention=True)
    assert one.attention is not None
    assert one.attention.shape[2] == len(one.tokens) + 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": {}, "beam": 4}, "beam was given 4 beside sampling, but a beam is not drawn; leave one of them"),
        ({"sampling": {}, "n_best": 0}, "n_best was given 0, but it counts candidates; give a whole number from 1 up"),
        ({"sampling": {"top_q": 0.9}}, r"unknown setting 'top_q'; did you mean 'top_p'\?"),
        ({"sampling": {"top_p": 0}}, "top_p was given 0, but it is the probability to draw from"),
        ({"sampling": {}, "seed": 1.5}, "seed was given 1.5, but it is a whole number"),
        ({"seed": 1}, "seed was given 1, but without sampling nothing is drawn; give sampling too"),
    ],
)
def test_a_slip_is_refused_before_any_line_is_read(unchecked: None, options: dict[str, Any], message: str) -> None:
    def untouched() -> Iterator[str]:
        raise AssertionError("a line was read")
        yield ""

    with pytest.raises(DecodingError, match=message):
        translator().translate_lines(untouched(), **options)
    if not {"beam", "n_best"} & options.keys():
        with pytest.raises(DecodingError, match=message):
            translator().stream("cat", **options)


# --- settled text --------------------------------------------------------------------------------------------

BYTES = [id_of(byte) for byte in [*"é€😀 x\n\u2028\ufffd".encode(), 0xFF, 0xC3, 0x00]]
tokens = st.one_of(
    st.sampled_from([*BYTES, *TOKENIZER.encode("the cat öffnet Stätte"), 0, 1, 2, 3]),
    st.integers(0, TOKENIZER.vocab_size - 1),
)


@given(ids=st.lists(tokens, max_size=23))
@settings(max_examples=150)
def test_settled_pieces_together_are_the_text(ids: list[int]) -> None:
    pieces = list(settled_text(TOKENIZER, ids))
    assert "".join(pieces) == TOKENIZER.decode(ids)
    assert all(pieces)


@given(text=st.text(max_size=11))
def test_what_is_encoded_is_streamed_back(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert "".join(settled_text(TOKENIZER, ids)) == TOKENIZER.decode(ids)


def test_a_character_is_given_with_its_last_byte_and_a_word_with_its_piece() -> None:
    given_out: list[int] = []

    def noted(ids: list[int]) -> Iterator[int]:
        for token in ids:
            given_out.append(token)
            yield token

    word = TOKENIZER.encode("the")
    euro, smile = [id_of(byte) for byte in "€".encode()], [id_of(byte) for byte in "😀".encode()]
    ids = [*word, *euro, *smile, id_of(0xE2), id_of(0x82), *word]
    seen = [(piece, len(given_out)) for piece in settled_text(TOKENIZER, noted(ids))]
    first = len(word)
    assert seen[-len(word) - 2 :][:2] == [("€", first + 3), ("😀", first + 7)]
    assert (seen[-len(word)][0][:2], seen[-len(word)][1]) == ("\ufffd\ufffd", first + 10)
    given_out.clear()
    assert [*settled_text(TOKENIZER, noted(euro[:2]))] == ["\ufffd\ufffd"]


# --- streamed ------------------------------------------------------------------------------------------------


def test_greedy_pieces_together_are_the_translation() -> None:
    for line in SENTENCES:
        pieces = list(translator().stream(line))
        [one] = translator().translate([line], beam=1)
        assert "".join(pieces) == one.text
        assert len(pieces) > 1 or len(one.tokens) <= 1


@pytest.mark.parametrize("way", WAYS)
def test_drawn_pieces_together_are_the_translation(way: dict[str, Any]) -> None:
    for seed, line in enumerate(SENTENCES[:4]):
        [one] = translator().translate([line], sampling=way, seed=seed, n_best=2)
        assert "".join(translator().stream(line, sampling=way, seed=seed)) == one.text


def test_without_a_seed_each_stream_is_another() -> None:
    assert len({"".join(translator().stream(SENTENCES[0], sampling={})) for _ in range(3)}) > 1


@pytest.mark.parametrize("line", BLANK)
def test_a_blank_line_streams_nothing(line: str) -> None:
    assert list(translator().stream(line)) == []
    assert list(translator().stream(line, sampling={}, seed=1)) == []


def test_a_piece_is_given_before_the_next_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    made = tiny_run.translator()
    step = tiny_run.engine(made).step

    def counted(ids: Any, state: Any) -> Any:
        nonlocal steps
        steps += 1
        return step(ids, state)

    monkeypatch.setattr(made.engine, "step", counted)
    pieces = made.stream(SENTENCES[0])
    assert steps == 0
    seen = [(piece, steps) for piece in islice(pieces, 3)]
    assert [number for _, number in seen] == sorted({number for _, number in seen})
    assert seen[0][1] == 1
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_a_stream_stops_at_the_length_limit_and_at_the_last_learned_position() -> None:
    short = tiny_run.translator(DecodingConfig(length_ratio=0.5, length_extra=1))
    endless = tiny_run.translator(positions="learned", max_positions=8)
    with torch.no_grad():
        tiny_run.engine(endless).model.head.weight[END_ID, 0] = -20.0
    for made in (short, endless):
        [one] = made.translate([SENTENCES[1]], beam=1)
        assert not one.hypotheses[0].finished
        assert "".join(made.stream(SENTENCES[1])) == one.text
    long = " ".join(["window"] * 9)  # two parts
    assert "".join(endless.stream(long)) == endless.translate([long], beam=1)[0].text
    endless.settings = endless.settings.replace(too_long="refuse")
    with pytest.raises(DecodingError, match=r"^line 1 has 9 tokens, but 7 are read at most"):
        list(endless.stream(long))


@pytest.mark.parametrize("wrong", [None, 7, ["cat"]])
def test_a_line_that_is_no_string_is_refused_at_once(unchecked: None, wrong: Any) -> None:
    with pytest.raises(DecodingError, match=r"stream was given .* as line 1, but a line is a string"):
        translator().stream(wrong)
