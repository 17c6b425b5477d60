"""Text to ids and back: nothing is lost, nothing is unknown, and nothing in a text or a model can break a line."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from pellucid.config import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from pellucid.errors import TokenizerError
from pellucid.text.tokenizer import Tokenizer

LINES = [
    "The open window lets the morning light into the room.",
    "Das offene Fenster lässt das Morgenlicht ins Zimmer.",
    "Save the document before you close the window.",
    "Speichern Sie das Dokument, bevor Sie das Fenster schließen.",
    "To open a document, choose File - Open.",
    "Um ein Dokument zu öffnen, wählen Sie Datei - Öffnen.",
]
EXTRA = [  # letters of the tests
    "0 1 2 3 4 5 6 7 8 9 < > / x a p d u n k s",
]
Kind = Literal["unigram", "bpe"]
KINDS: tuple[Kind, ...] = ("unigram", "bpe")
messages: Any = sentencepiece_model_pb2  # its classes are made when it is imported; mypy cannot see them
LEARNED = {kind: Tokenizer.learn([*LINES, *EXTRA] * 3, vocab_size=400, kind=kind) for kind in KINDS}
BYTE = 4  # the id of byte 0; the 256 bytes follow the four marks


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return LEARNED[request.param]


def spaced(line: str) -> str:
    """What identity makes of a line: no space at either end, and one where there were several."""
    return " ".join(word for word in line.split(" ") if word)


# --- there and back -----------------------------------------------------------------------------------------


def test_a_line_comes_back(tokenizer: Tokenizer) -> None:
    for line in LINES:
        ids = tokenizer.encode(line)
        assert tokenizer.decode(ids) == line
        assert len(ids) < len(line)
        assert all(3 < token < tokenizer.vocab_size for token in ids)  # no mark is added


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="▁"))


@given(TEXT, st.sampled_from(KINDS))
def test_whatever_the_script_a_line_comes_back_and_nothing_is_unknown(line: str, kind: Kind) -> None:
    ids = LEARNED[kind].encode(line)
    assert LEARNED[kind].decode(ids) == spaced(line)
    assert UNKNOWN_ID not in ids


@pytest.mark.parametrize(
    "line", ["<s>", "</s>", "<pad>", "<unk>", "a</s>b <s> </s>", "<0x41>", "<0x0A> <0x00>", "⁇", "a ⁇ b", "▅"]
)
def test_control_tokens_in_a_text_are_text(tokenizer: Tokenizer, line: str) -> None:
    ids = tokenizer.encode(line)
    assert not {PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID} & set(ids)
    assert len(ids) > 1  # "<0x41>" is six characters, not the byte
    assert tokenizer.decode(ids) == line


@pytest.mark.parametrize(
    ("line", "back"),
    [("a▁b", "a b"), ("▁", ""), ("a ▁", "a"), ("half \ud83d of a pair", "half \ufffd of a pair")],
)
def test_what_cannot_stand_in_a_text_is_replaced_as_stated(tokenizer: Tokenizer, line: str, back: str) -> None:
    assert tokenizer.decode(tokenizer.encode(line)).rstrip(" ") == back


def test_blank_lines_have_no_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_all(["", " ", "   "]) == [[], [], []]
    assert tokenizer.encode_all([]) == []
    assert tokenizer.decode([]) == ""


def test_many_lines_are_encoded_as_each_by_itself(tokenizer: Tokenizer) -> None:
    lines = [*LINES, "", "世界", *LINES] * 11
    assert tokenizer.encode_all(lines) == [tokenizer.encode(line) for line in lines]


# --- normalisation ------------------------------------------------------------------------------------------


def test_identity_changes_spaces_and_nothing_else(tokenizer: Tokenizer) -> None:
    kept = "a\tb\u00a0c\u3000d\u200be\ufefff ﬁ １ é e\u0301 …\u2003x"
    assert tokenizer.decode(tokenizer.encode(kept)) == kept
    assert tokenizer.decode(tokenizer.encode("\t \u00a0edge\u00a0 \t")) == "\t \u00a0edge\u00a0 \t"
    assert tokenizer.decode(tokenizer.encode("  two  spaces   here ")) == "two spaces here"


@pytest.mark.parametrize(
    ("normalization", "line", "back"),
    [
        ("nfkc", "ﬁ １ a\u00a0b \u3000c e\u0301", "fi 1 a b c é"),
        ("nfkc", "a\tb", "a\tb"),
        ("nmt_nfkc", "ﬁ １ a\u00a0b\tc\r\nd\x1fe\ufefff\u200bg", "fi 1 a b c de f g"),
    ],
)
def test_the_other_normalisations_do_as_stated(normalization: str, line: str, back: str) -> None:
    tokenizer = Tokenizer.learn(LINES, vocab_size=330, normalization=normalization)  # type: ignore[arg-type]
    assert tokenizer.decode(tokenizer.encode(line)) == back


# --- what a model may say -----------------------------------------------------------------------------------


@pytest.mark.parametrize("character", list("\n\r\0\v\f\x1c\x1d\x1e\x85\u2028\u2029"))
def test_a_generated_line_break_becomes_a_space(tokenizer: Tokenizer, character: str) -> None:
    spelled = [BYTE + byte for byte in character.encode()]
    ids = [*tokenizer.encode("one"), *spelled, *tokenizer.encode("two")]
    assert tokenizer.decode(ids).split() == ["one", "two"]
    assert tokenizer.decode(ids)[3] == " "
    assert len(tokenizer.decode(ids).encode().split(b"\n")) == 1


@given(st.lists(st.integers(0, 399), max_size=40), st.sampled_from(KINDS))
def test_any_ids_make_one_line_of_text(ids: list[int], kind: Kind) -> None:
    ids = [token for token in ids if token < LEARNED[kind].vocab_size]
    text = LEARNED[kind].decode(ids)
    text.encode("utf-8")
    assert not set(text) & set("\n\r\0\v\f\x1c\x1d\x1e\x85\u2028\u2029")
    assert len(LEARNED[kind].pieces(ids)) == len(ids)


def test_marks_are_left_out_and_broken_bytes_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The window")
    assert tokenizer.decode([BEGIN_ID, *ids[:1], PAD_ID, *ids[1:], END_ID, PAD_ID]) == "The window"
    assert tokenizer.decode([BYTE + 0xE4, BYTE + 0xB8]) == "\ufffd\ufffd"
    assert tokenizer.decode([UNKNOWN_ID]) == "\ufffd"
    assert tokenizer.decode(tuple(ids)) == "The window"


@pytest.mark.parametrize("ids", [[400_000], [-1], [5, 400]])
def test_an_id_that_is_not_in_the_vocabulary_is_named(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    last = tokenizer.vocab_size - 1
    for read in (tokenizer.decode, tokenizer.pieces):
        with pytest.raises(TokenizerError, match=rf"^id {ids[-1]} was given to a vocabulary that has ids 0 to {last};"):
            read(ids)


def test_pieces_are_labels_for_a_person(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("window")
    assert "".join(tokenizer.pieces(ids)) == "▁window"
    assert tokenizer.pieces([0, 1, 2, 3]) == ["<pad>", "<unk>", "<s>", "</s>"]
    world = [BYTE + byte for byte in "世é".encode()]
    assert tokenizer.pieces([*world, *ids]) == ["世", "·", "·", "é", "·", *tokenizer.pieces(ids)]
    assert tokenizer.pieces([*world[:2], BYTE + 0x41]) == ["<0xE4>", "<0xB8>", "A"]
    assert tokenizer.pieces([BYTE + 0x0A, BYTE, BYTE + 0xC2, BYTE + 0xA0]) == ["<0x0A>", "<0x00>", "<0xC2>", "<0xA0>"]


# --- learning -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_bytes(kind: Kind) -> None:
    again = Tokenizer.learn(iter([*LINES, *EXTRA] * 3), vocab_size=400, kind=kind)
    other = Tokenizer.learn(LINES, vocab_size=380, kind=kind)
    assert again.to_bytes() == LEARNED[kind].to_bytes()
    assert again == LEARNED[kind]
    assert hash(again) == hash(LEARNED[kind])
    assert again.fingerprint == LEARNED[kind].fingerprint
    assert other != again
    assert other.fingerprint != again.fingerprint


def test_the_kind_decides_how_pieces_are_chosen() -> None:
    kinds = [messages.ModelProto.FromString(LEARNED[kind].model) for kind in KINDS]
    assert [kind.trainer_spec.model_type for kind in kinds] == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_too_large_for_the_text_is_what_the_text_supports(kind: Kind) -> None:
    for asked in (8000, 10**12):
        large = Tokenizer.learn(["to be or not to be"], vocab_size=asked, kind=kind)
        assert 4 + 256 + 7 <= large.vocab_size < 300
        assert large.decode(large.encode("to be or not")) == "to be or not"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", [-7, 0, 3, 259, 266])
def test_a_vocabulary_too_small_says_the_least_that_works(kind: Kind, asked: int) -> None:
    lines = ["to be or not to be"]  # t o b e r n, and the space
    message = f"^a vocabulary of {asked} was asked for, but 4 marks, 256 bytes and the 7 characters .* at least 267;"
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.learn(lines, vocab_size=asked, kind=kind)
    assert Tokenizer.learn(lines, vocab_size=267, kind=kind).vocab_size == 267


@pytest.mark.parametrize("lines", [[], ["", "  ", "\t", "\0"]])
def test_a_vocabulary_needs_text(lines: list[str]) -> None:
    with pytest.raises(TokenizerError, match="learned from no text at all"):
        Tokenizer.learn(lines, vocab_size=300)


@pytest.mark.parametrize("option", [{"kind": "word"}, {"normalization": "nfc"}, {"sample_lines": 0}])
def test_an_option_that_does_not_exist_is_named(option: dict[str, object]) -> None:
    learn = getattr(Tokenizer.learn, "__wrapped__", None)  # beneath the tests' own check of types
    [(name, value)] = option.items()
    assert learn is not None
    with pytest.raises(TokenizerError, match=rf"^{name} was given {value!r}, but"):
        learn(Tokenizer, LINES, vocab_size=300, **option)


def test_learning_is_silent_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in KINDS:
        tokenizer = Tokenizer.learn(LINES, vocab_size=8000, kind=kind)
        tokenizer.decode(tokenizer.encode("bell\a and null\0"))
    with pytest.raises(TokenizerError):
        Tokenizer.learn(LINES, vocab_size=100)
    with pytest.raises(TokenizerError):
        Tokenizer.from_bytes(b"no model")
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_sample_is_taken_evenly_from_the_lines_that_are_not_blank() -> None:
    words = [f"{first}{second}" for first in "bcdfg" for second in "aeiou"]
    lines = [*[" ", ""] * 25, *words]
    sampled = Tokenizer.learn(lines, vocab_size=8000, kind="bpe", sample_lines=5)
    assert sampled == Tokenizer.learn(words[::5], vocab_size=8000, kind="bpe")
    assert sampled != Tokenizer.learn(words[:5], vocab_size=8000, kind="bpe")
    assert Tokenizer.learn(lines, vocab_size=8000, kind="bpe", sample_lines=25) == Tokenizer.learn(
        words, vocab_size=8000, kind="bpe"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_line_is_too_long_to_learn_from(kind: Kind) -> None:
    long = " ".join(["zyx"] * 20_000)
    run = "uu" * 1000 + "wv" * 10_000  # one word of 22,000 letters
    tokenizer = Tokenizer.learn([long, run, "a b c"], vocab_size=290, kind=kind)
    assert all(token >= BYTE + 256 for token in tokenizer.encode("zyx wvu"))  # letters, not bytes
    assert tokenizer.decode(tokenizer.encode(run)) == run


def test_null_and_tab_divide_words_and_cut_nothing_off() -> None:
    # Were a line cut at NUL, or its tab taken for the end of the word, these letters would be known as bytes only.
    tokenizer = Tokenizer.learn(["abc\0def\tghi\nkl"] * 5, vocab_size=300)
    assert all(token >= BYTE + 256 for token in tokenizer.encode("abcdefghikl"))
    ids = tokenizer.encode("abc\0def")
    assert BYTE in ids
    assert tokenizer.decode(ids) == "abc def"


def test_a_text_with_half_a_surrogate_pair_can_be_learned_from() -> None:
    assert Tokenizer.learn(["good \udfff text"], vocab_size=8000).vocab_size > 260


# --- files --------------------------------------------------------------------------------------------------


def test_a_tokenizer_comes_back_from_its_bytes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.model").write_bytes(tokenizer.to_bytes())
    for same in (
        Tokenizer.load(tmp_path / "a.model"),
        Tokenizer.load(str(tmp_path / "a.model")),
        Tokenizer.from_bytes(tokenizer.to_bytes()),
        pickle.loads(pickle.dumps(tokenizer)),  # noqa: S301 - our own bytes
        copy.deepcopy(tokenizer),
    ):
        assert same == tokenizer
        assert same.encode(LINES[0]) == tokenizer.encode(LINES[0])
        assert same.vocab_size == tokenizer.vocab_size


def test_a_tokenizer_cannot_be_changed(tokenizer: Tokenizer) -> None:
    with pytest.raises(AttributeError):
        tokenizer.model = b""  # type: ignore[misc]


def test_its_description_names_size_and_fingerprint(tokenizer: Tokenizer) -> None:
    assert repr(tokenizer) == f"Tokenizer(vocab_size={tokenizer.vocab_size}, fingerprint='{tokenizer.fingerprint}')"
    assert len(tokenizer.fingerprint) == 16


@pytest.mark.parametrize("content", [b"", b"hello", b"\0" * 100, LEARNED["bpe"].to_bytes()[:500]])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.model"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=rf"a\.model: {len(content)} bytes that are no SentencePiece model"):
        Tokenizer.load(path)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"none\.model cannot be read \(No such file or directory\); check"):
        Tokenizer.load(tmp_path / "none.model")


def test_a_model_with_its_marks_elsewhere_is_refused() -> None:
    proto = messages.ModelProto.FromString(LEARNED["bpe"].to_bytes())
    proto.pieces[0].piece, proto.pieces[2].piece = proto.pieces[2].piece, proto.pieces[0].piece
    with pytest.raises(TokenizerError, match=r"begin and end at ids \(2, 1, 0, 3\) was given, but \(0, 1, 2, 3\) are"):
        Tokenizer.from_bytes(proto.SerializeToString())


def test_the_same_bytes_come_from_another_process() -> None:
    code = "import sys; from pellucid.text.tokenizer import Tokenizer as T; "
    code += "print(T.learn(sys.argv[1:], vocab_size=330).fingerprint)"
    done = subprocess.run([sys.executable, "-c", code, *LINES], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == Tokenizer.learn(LINES, vocab_size=330).fingerprint
    assert done.stderr == ""
