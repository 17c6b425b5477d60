"""Text becomes ids and ids become text, by SentencePiece; the one place where str meets int.

SentencePiece (Kudo and Richardson 2018, arXiv 1808.06226) cuts a line into pieces of a learned vocabulary: "unigram"
(Kudo 2018, arXiv 1804.10959) or "bpe" (Sennrich et al. 2016, arXiv 1508.07909). In a piece "▁" stands for the space
before a word. A character that is no piece becomes the bytes of its UTF-8, so that nothing is unknown.

What normalisation changes, before text is cut:

=============  =====================================================================================================
"identity"     runs of spaces become one, spaces at both ends go; tabs, no-break spaces and all else stay as they are
"nfkc"         that, and Unicode's NFKC: "ﬁ" becomes "fi", "１" becomes "1", a no-break space becomes a space
"nmt_nfkc"     that, and tabs, line breaks, U+200B and U+FEFF become spaces, and other control characters go
=============  =====================================================================================================

Under each of them "▁" (U+2581) in a text is read as a space, and half of a surrogate pair as U+FFFD. Control tokens
that stand in a text, as "</s>", "<unk>" or "<0x41>", are text: they come back as they were and end nothing.
"""

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, Self, final

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from pellucid.config import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from pellucid.errors import TokenizerError

__all__ = ["Tokenizer"]

IDS = (PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID)
BREAKS = str.maketrans(dict.fromkeys("\n\r\0\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "))
"""What some reader of lines takes for the end of one, and NUL, which ends a string in C."""

BETWEEN_WORDS = re.compile(r"[ \t\n\r\0\v\f]+")
HALF_A_PAIR = re.compile(r"[\ud800-\udfff]")
TOO_SMALL = re.compile(r"smaller than required_chars\. -?\d+ vs (\d+)")
REST_OF_A_CHARACTER = "·"
MOST_PIECES = 1_000_000
LONGEST_WORD = 1000  # characters: learning takes the square of it; what is longer is learned from in parts

# Of SentencePiece's own settings, four make unigram learning four times as quick, and on this package's languages
# the sentences come out no longer: words with their counts instead of lines, five seeds for each piece wanted,
# halving at each round of pruning, one round of EM between. Threads add up numbers in an order that depends on how
# many they are, so they are as many on every machine.
LEARNING: dict[str, Any] = {
    "input_format": "tsv",
    "num_sub_iterations": 1,
    "shrinking_factor": 0.5,
    "num_threads": 16,
    "pad_id": PAD_ID,
    "unk_id": UNKNOWN_ID,
    "bos_id": BEGIN_ID,
    "eos_id": END_ID,
    "unk_surface": "\ufffd",
    "byte_fallback": True,
    "hard_vocab_limit": False,  # a vocabulary larger than the text supports is cut down, not refused
    "max_sentence_length": 2**30,  # in bytes; whatever is longer would be left out without a word
    "minloglevel": 3,
}


def _clean(line: str) -> str:
    """The line as UTF-8 can hold it."""
    return HALF_A_PAIR.sub("\ufffd", line)


def _sample(lines: Iterable[str], most: int) -> list[str]:
    """At most so many of the lines that are not blank, taken evenly from the first to the last."""
    kept = [line for line in lines if line.strip()]
    count = min(most, len(kept))
    return [kept[index * len(kept) // count] for index in range(count)]


def _count_words(lines: Iterable[str]) -> list[str]:
    """Each word and its count, tab between. Pieces never cross a space, so this says all that lines would say."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(BETWEEN_WORDS.split(_clean(line)))
    parts: Counter[str] = Counter()
    for word, count in counts.items():
        for start in range(0, len(word), LONGEST_WORD):
            parts[word[start : start + LONGEST_WORD]] += count
    return [f"{part}\t{count}" for part, count in parts.items()]


def _explain(error: Exception, vocab_size: int) -> TokenizerError:
    """SentencePiece's complaint about learning, as one sentence of ours."""
    if needed := TOO_SMALL.search(str(error)):
        least = int(needed[1])
        return TokenizerError(
            f"a vocabulary of {vocab_size} was asked for, but 4 marks, 256 bytes and the {least - 260} characters of "
            f"this text need at least {least}; raise the vocabulary's size"
        )
    reason = str(error).rstrip(". ").replace(". ", "; ")
    return TokenizerError(
        f"SentencePiece cannot learn a vocabulary of {vocab_size} from this text ({reason}); "
        "give it lines of words, and a size of some thousands"
    )


@final
@dataclass(frozen=True)
class Tokenizer:
    """A learned vocabulary; equal to another where the bytes of their models are equal.

    Ids 0 to 3 are pad, unknown, begin and end. `encode` adds none of them: a batch does.

    >>> tokenizer = Tokenizer.learn(["the cat sat", "the mat"], vocab_size=280)
    >>> tokenizer.decode(tokenizer.encode("the cat sat on 1 mat …"))
    'the cat sat on 1 mat …'

    Attributes:
        model: The SentencePiece model, as it stands in its file.
    """

    model: bytes = field(repr=False)
    _processor: SentencePieceProcessor = field(init=False, repr=False, compare=False)
    _bytes: dict[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        processor = SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(self.model)
        except (RuntimeError, OSError):
            raise TokenizerError(
                f"{len(self.model)} bytes that are no SentencePiece model were given for a tokenizer; "
                "give a model that Pellucid or spm_train wrote"
            ) from None
        found = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        if found != IDS:
            raise TokenizerError(
                f"a SentencePiece model with pad, unknown, begin and end at ids {found} was given, but {IDS} are "
                "needed; train it with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3"
            )
        values = {i: int(processor.IdToPiece(i)[3:5], 16) for i in range(len(processor)) if processor.IsByte(i)}
        object.__setattr__(self, "_processor", processor)
        object.__setattr__(self, "_bytes", values)

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, fingerprint={self.fingerprint!r})"

    @classmethod
    def learn(
        cls,
        lines: Iterable[str],
        *,
        vocab_size: int,
        kind: Literal["unigram", "bpe"] = "unigram",
        normalization: Literal["identity", "nfkc", "nmt_nfkc"] = "identity",
        sample_lines: int = 200_000,
    ) -> Self:
        """Learn a vocabulary: the same one every time from the same text, in silence, and without writing a file.

        Args:
            lines: The text; lines of two languages one after the other make one vocabulary for both.
            vocab_size: Ids wanted, marks and bytes among them, a million at most; a small text may support fewer.
            kind: How pieces are chosen.
            normalization: What is done to text first, here and in `encode`; the room's docstring tells what.
            sample_lines: Lines learned from at most, taken evenly; blank ones do not count.

        Returns:
            The tokenizer; its `vocab_size` is the size it really has.

        Raises:
            TokenizerError: there is no text, or `vocab_size` cannot hold its characters.
        """
        for name, value, known in (
            ("kind", kind, ("unigram", "bpe")),
            ("normalization", normalization, ("identity", "nfkc", "nmt_nfkc")),
        ):
            if value not in known:
                raise TokenizerError(f"{name} was given {value!r}, but it is one of {', '.join(known)}; choose one")
        if sample_lines < 1:
            raise TokenizerError(f"sample_lines was given {sample_lines}, but at least 1 is needed; raise it")
        words = _count_words(_sample(lines, sample_lines))
        if not words:
            raise TokenizerError(
                "a vocabulary was to be learned from no text at all, but at least one word is needed; check the files"
            )
        model = io.BytesIO()
        # Too small a size is answered with the least that works, if it holds the marks and one piece at least.
        size = min(max(vocab_size, len(IDS) + 1), MOST_PIECES)
        try:
            SentencePieceTrainer.Train(
                **LEARNING,
                sentence_iterator=iter(words),
                model_writer=model,
                model_type=kind,
                vocab_size=size,
                normalization_rule_name=normalization,
                seed_sentencepiece_size=max(1000, min(5 * size, MOST_PIECES)),
            )
        except (RuntimeError, OSError) as error:
            raise _explain(error, vocab_size) from None
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a model from a file.

        Raises:
            TokenizerError: the file cannot be read, is no SentencePiece model, or has its marks at other ids.
        """
        try:
            return cls(Path(path).read_bytes())
        except OSError as error:
            raise TokenizerError(f"{path} cannot be read ({error.strerror}); check the path") from None
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from None

    @classmethod
    def from_bytes(cls, model: bytes) -> Self:
        """The tokenizer whose `to_bytes` these are; TokenizerError where they are no such thing."""
        return cls(model)

    def to_bytes(self) -> bytes:
        """The SentencePiece model, to be written to a file."""
        return self.model

    @property
    def vocab_size(self) -> int:
        """How many ids there are, the four marks and 256 bytes among them."""
        return len(self._processor)

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that tell one vocabulary from another."""
        return hashlib.sha256(self.model).hexdigest()[:16]

    def encode(self, line: str) -> list[int]:
        """Ids of a line, without begin and end marks; none for a blank line."""
        return self.encode_all([line])[0]

    def encode_all(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line, as `encode` gives them, on all cores."""
        if not lines:
            return []
        ids: list[list[int]] = self._processor.Encode([_clean(line) for line in lines], num_threads=-1)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, always one line.

        Pad, begin and end are left out. A line break, NUL, or anything else that some reader takes for a line's end
        becomes a space; bytes that are no UTF-8, and the unknown id, become U+FFFD.

        Raises:
            TokenizerError: an id is not in the vocabulary.
        """
        text: str = self._processor.Decode(self._known(ids))  # which leaves marks out by itself
        return text.translate(BREAKS)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A label for each id, to be read by a person.

        "▁" stands for the space before a word. Where bytes spell a character, it stands at the first of them and
        "·" at the rest; a byte that spells nothing visible is written as <0x0A>.

        Raises:
            TokenizerError: an id is not in the vocabulary.
        """
        known = self._known(ids)
        labels: list[str] = [self._processor.IdToPiece(token) for token in known]
        place = 0
        while place < len(known):
            length, character = self._spelled(known[place : place + 4])
            if character:
                labels[place : place + length] = [character, *[REST_OF_A_CHARACTER] * (length - 1)]
            place += length
        return labels

    def names(self) -> list[str]:
        """What SentencePiece calls each id."""
        return [self._processor.IdToPiece(token) for token in range(self.vocab_size)]

    def _spelled(self, ids: Sequence[int]) -> tuple[int, str]:
        """How many of the ids are the bytes of one visible character, and which; (1, "") where they spell none."""
        spelling = bytes(self._bytes[token] for token in takewhile(self._bytes.__contains__, ids))
        for length in range(1, len(spelling) + 1):
            character = spelling[:length].decode("utf-8", "replace")
            if character != "\ufffd" * len(character):
                return (length, character) if character.isprintable() and len(character) == 1 else (1, "")
        return 1, ""

    def _known(self, ids: Sequence[int]) -> list[int]:
        """The ids as plain numbers, each checked against the vocabulary."""
        known = [int(token) for token in ids]
        for token in known:
            if not 0 <= token < self.vocab_size:
                raise TokenizerError(
                    f"id {token} was given to a vocabulary that has ids 0 to {self.vocab_size - 1}; "
                    "use the tokenizer that made the ids"
                )
        return known
