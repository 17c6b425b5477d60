"""Files become pairs: every end of line, every packing, every way of being damaged, and nothing ever shifts."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.errors import TextError
from pellucid.text.corpus import Corpus, Pair, hold_out, name_lines, read_lines, read_parallel, read_tsv, split_lines

PACKERS: dict[str, Callable[[bytes], bytes]] = {".txt": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(PACKERS[path.suffix](content))
    return path


def pairs(count: int) -> Corpus:
    return Corpus(tuple(Pair(n, f"source {n}", f"target {n}") for n in range(1, count + 1)), count)


# --- lines --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", PACKERS)
def test_lines_are_read_plain_and_packed(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a{ending}", "Grüße\r\n\n世界\n last ".encode())
    assert list(read_lines(path)) == ["Grüße", "", "世界", " last "]
    assert list(read_lines(str(path))) == list(read_lines(path))


def test_an_ending_in_capitals_is_unpacked_too(tmp_path: Path) -> None:
    path = tmp_path / "A.GZ"
    path.write_bytes(gzip.compress(b"one\n"))
    assert list(read_lines(path)) == ["one"]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    odd = "a\u2028b\u2029c\u0085d\ve\ff\rg\x1ch\x1di\x1ej\0k"
    assert list(read_lines(write(tmp_path / "a.txt", f"{odd}\nnext\r\r\n\rlast\r".encode()))) == [
        odd,
        "next\r",  # one carriage return belongs to the end of the line, a second is text
        "\rlast\r",
    ]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),  # only where the file starts
        (b"\xef\xbb\xbf\xef\xbb\xbfone", ["\ufeffone"]),  # and only one
        (b"\xef\xbb\xbf\n", [""]),
        (b"\xef\xbb\xbf", []),
        (b"", []),
        (b"\n", [""]),
        (b"\n\n", ["", ""]),
    ],
)
def test_a_byte_order_mark_is_dropped_at_the_start(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    assert list(read_lines(write(tmp_path / "a.txt", content))) == lines


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]))), st.booleans())
def test_what_is_written_line_by_line_is_read_line_by_line(lines: list[str], windows: bool) -> None:
    end = b"\r\n" if windows else b"\n"
    rows = [line.encode() + end for line in lines]
    expected = [line.removeprefix("\ufeff") if index == 0 else line for index, line in enumerate(lines)]
    assert list(split_lines(rows, "a file")) == expected


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"good\nGr\xfc\xdfe\n")
    with pytest.raises(TextError, match=r"^line 2 of .*a\.txt is not UTF-8 \(byte 0xFC after 2 bytes\); save the file"):
        list(read_lines(path))


def test_lines_before_a_bad_one_have_their_numbers(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"^line 1 of "):  # UTF-16, as some editors save
        list(read_lines(write(tmp_path / "a.txt", "text".encode("utf-16"))))
    with pytest.raises(TextError, match=r"^line 3 of "):  # half of a surrogate pair is no character
        list(read_lines(write(tmp_path / "a.txt", b"a\nb\n\xed\xa0\x80\n")))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"none\.txt cannot be read \(No such file or directory\); check the path"):
        list(read_lines(tmp_path / "none.txt"))
    with pytest.raises(TextError, match="cannot be read"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("ending", [".gz", ".xz"])
@pytest.mark.parametrize("damage", ["not packed", "cut short", "bent"])
def test_a_damaged_packed_file_is_named(tmp_path: Path, ending: str, damage: str) -> None:
    packed = PACKERS[ending](b"".join(b"line %d\n" % n for n in range(1000)))
    middle = len(packed) // 2
    path = tmp_path / f"a{ending}"
    bent = packed[:middle] + bytes(255 - byte for byte in packed[middle : middle + 20]) + packed[middle + 20 :]
    path.write_bytes({"not packed": b"plain text\n", "cut short": packed[:middle], "bent": bent}[damage])
    with pytest.raises(TextError, match=rf"a\{ending} ends in \{ending}, but what it holds is not a whole"):
        list(read_lines(path))


# --- pairs --------------------------------------------------------------------------------------------------


def test_two_files_make_pairs_and_empty_sides_are_dropped_whole(tmp_path: Path) -> None:
    source = write(tmp_path / "a.gz", b"one\n\nthree\n \t\nfive\nsix\n")
    target = write(tmp_path / "b.xz", "eins\nzwei\n\n\u3000\n fünf\nsechs".encode())
    corpus = read_parallel(source, target)
    assert corpus.pairs == (Pair(1, "one", "eins"), Pair(5, "five", " fünf"), Pair(6, "six", "sechs"))
    assert (corpus.lines, corpus.empty, len(corpus)) == (6, (2, 3, 4), 3)
    assert corpus.report() == "dropped 3 of 6 pairs with an empty side: lines 2, 3 and 4"


@pytest.mark.parametrize(("first", "second"), [(3, 5), (5, 3), (0, 2)])
def test_unequal_files_are_refused_with_both_counts(tmp_path: Path, first: int, second: int) -> None:
    source, target = write(tmp_path / "a.txt", b"x\n" * first), write(tmp_path / "b.txt", b"y\n" * second)
    with pytest.raises(TextError, match=rf"a\.txt has {first} lines and .*b\.txt has {second}, but line n of one"):
        read_parallel(source, target)


def test_a_blank_line_counts_against_unequal_files(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"has 3 lines and .* has 2"):
        read_parallel(write(tmp_path / "a.txt", b"x\n\n\n"), write(tmp_path / "b.txt", b"x\n\n"))


def test_a_line_separator_inside_a_line_shifts_nothing(tmp_path: Path) -> None:
    source = write(tmp_path / "a.txt", "one\u2028still one\rstill\ntwo\n".encode())
    target = write(tmp_path / "b.txt", b"eins\nzwei\n")
    assert [pair.target for pair in read_parallel(source, target).pairs] == ["eins", "zwei"]
    assert read_parallel(source, target).pairs[0].source == "one\u2028still one\rstill"


@pytest.mark.parametrize(("content", "held"), [(b"", "no lines"), (b"\n \n", "2 lines, each with an empty side")])
def test_a_corpus_without_pairs_is_refused(tmp_path: Path, content: bytes, held: str) -> None:
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(TextError, match=rf"a\.txt and .*a\.txt: {held}, but at least one pair"):
        read_parallel(path, path)
    with pytest.raises(TextError, match=rf"a\.txt: {held}, but at least one pair"):
        read_tsv(path)


@pytest.mark.parametrize("ending", PACKERS)
def test_a_table_makes_pairs(tmp_path: Path, ending: str) -> None:
    content = "\ufeffone\teins\r\n\n \t \nfour\t\n\tfünf\n\t\t\nseven\tsieben  \n"
    corpus = read_tsv(write(tmp_path / f"a{ending}", content.encode()))
    assert corpus.pairs == (Pair(1, "one", "eins"), Pair(7, "seven", "sieben  "))
    assert (corpus.lines, corpus.empty) == (7, (2, 3, 4, 5, 6))


@pytest.mark.parametrize(("line", "tabs"), [("one eins", "no tab"), ("a\tb\tc", "2 tabs"), ("a\tb\t", "2 tabs")])
def test_a_table_line_without_exactly_one_tab_is_named(tmp_path: Path, line: str, tabs: str) -> None:
    path = write(tmp_path / "a.txt", f"x\ty\n{line}\n".encode())
    with pytest.raises(TextError, match=rf"^line 2 of .*a\.txt has {tabs}, but exactly one must stand"):
        read_tsv(path)


# --- reports ------------------------------------------------------------------------------------------------


def test_a_report_stays_short_however_much_was_dropped() -> None:
    assert name_lines([7, 9]) == "lines 7 and 9"
    assert name_lines(range(2, 7)) == "lines 2, 3, 4, 5 and 6"
    assert name_lines(range(2, 8)) == "lines 2, 3, 4, 5, 6 and 1 more"
    assert pairs(11).report() == "none of 11 pairs has an empty side"
    assert Corpus(pairs(3).pairs, 13, empty=(4,), repeated=(5, 6)).report() == (
        "dropped 1 of 13 pairs with an empty side: line 4; "
        "left 2 out of training because a side of theirs is held out: lines 5 and 6"
    )


# --- validation ---------------------------------------------------------------------------------------------


def test_held_out_pairs_leave_training_and_keep_their_lines() -> None:
    train, held = hold_out(pairs(110), 7, seed=1)
    assert len(held) == 7
    assert sorted((*train.pairs, *held.pairs)) == list(pairs(110).pairs)
    assert list(train.pairs) == sorted(train.pairs)
    assert list(held.pairs) == sorted(held.pairs)
    assert (train.lines, train.repeated, held.lines, held.empty) == (110, (), 110, ())


def test_the_seed_decides_what_is_held_out() -> None:
    lines = [tuple(pair.line for pair in hold_out(pairs(110), 7, seed)[1].pairs) for seed in (1, 1, 2)]
    assert lines[0] == lines[1]
    assert lines[0] != lines[2]
    assert lines[0] == (10, 25, 51, 54, 73, 85, 101)  # the same on every machine, so that a run can be resumed


@pytest.mark.parametrize(("size", "asked", "taken"), [(110, 500, 11), (19, 5, 1), (9, 5, 0), (110, 0, 0)])
def test_at_most_a_tenth_is_held_out(size: int, asked: int, taken: int) -> None:
    train, held = hold_out(pairs(size), asked, seed=3)
    assert (len(held), len(train)) == (taken, size - taken)


def test_what_repeats_a_held_out_side_is_not_trained_on() -> None:
    # Each source stands twice with different targets, and each target twice with different sources.
    corpus = Corpus(tuple(Pair(n, f"s{n // 2}", f"t{(n + 1) // 2}") for n in range(1, 111)), 113, empty=(111, 112, 113))
    train, held = hold_out(corpus, 5, seed=1)
    assert not {pair.source for pair in train.pairs} & {pair.source for pair in held.pairs}
    assert not {pair.target for pair in train.pairs} & {pair.target for pair in held.pairs}
    assert train.repeated
    lines = [pair.line for pair in (*train.pairs, *held.pairs)]
    assert sorted((*lines, *train.repeated)) == list(range(1, 111))
    assert (train.empty, held.empty) == ((111, 112, 113), ())


def test_a_corpus_of_one_sentence_cannot_be_divided() -> None:
    corpus = Corpus(tuple(Pair(n, "yes", "ja") for n in range(1, 12)), 11)
    with pytest.raises(TextError, match="each of the 10 pairs left for training repeats a side of the 1 held out"):
        hold_out(corpus, 5, seed=1)
