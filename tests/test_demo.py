"""The demo ends with scores, translations and pictures, keeps to its own folder, and travels with its corpus."""

import io
import lzma
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

import tiny
import tiny_run
from pellucid.errors import RunError
from pellucid.jobs import demo as room
from pellucid.jobs.demo import demo
from pellucid.jobs.scoring import Scores, score_corpus
from pellucid.run import Run
from pellucid.text.corpus import Corpus, read_tsv
from pellucid.training import Event, StepTaken, Stopped, Validated

PICTURES = ["attention.png", "curves.png", "masks.png", "positions.png"]
TINY = (
    *tiny.overrides({"model.source_vocab_size": "340", "model.target_vocab_size": "340", "decoding.beam": "2"}),
    "data.tokenizer=bpe",
    "training.validation_lines=3",
)
DATA = files("pellucid") / "data"


@pytest.fixture
def toy_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of the package's corpus, the toy language's; the lines of its test set."""
    folder = tmp_path / "package" / "data"
    folder.mkdir(parents=True)
    tests = ["red cat\trote Katze", "a small house\teine kleine Stätte", "the book opens\tdie Notiz öffnet"]
    long = " ".join(["window"] * 17) + "\t" + " ".join(["Wand"] * 17)
    known = ["\t".join(pair) for pair in tiny_run.pairs(90)]
    for name, rows in (("train", known), ("test", [*tests, long])):
        packed = lzma.compress("".join(f"{row}\n" for row in rows).encode())
        (folder / f"lohelp.en-de.{name}.tsv.xz").write_bytes(packed)
    monkeypatch.setattr(room, "files", lambda _: folder.parent)
    return tests


def played(out: Path, shown: list[str], events: list[Event]) -> Scores:
    """A demo of a moment."""
    return demo(out, minutes=0.002, overrides=TINY, note=shown.append, tell=events.append, show=shown.append)


def test_a_demo_ends_with_scores_translations_and_pictures(
    tmp_path: Path, toy_data: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, shown, events = tmp_path / "demo", list[str](), list[Event]()
    scores = played(out, shown, events)
    assert {type(event) for event in events} >= {StepTaken, Validated}
    written = (out / "translations.tsv").read_text(encoding="utf-8").removesuffix("\n")
    rows = [row.split("\t") for row in written.split("\n")]
    assert [f"{source}\t{target}" for source, target, _ in rows] == toy_data  # and not the long one
    assert scores == score_corpus([made for *_, made in rows], [target for _, target, _ in rows], "de")
    assert sorted(path.name for path in (out / "pictures").iterdir()) == PICTURES
    for name in PICTURES:
        assert (out / "pictures" / name).read_bytes().startswith(b"\x89PNG")
    assert Run.open(out / "run").weights_file().is_file()
    text = "\n".join(shown)
    assert "translating 3 held-out segments" in text
    assert re.search(rf"this model +{scores.bleu.value:.1f} +{scores.chrf.value:.1f}\n", text)
    copied = score_corpus([source for source, *_ in rows], [target for _, target, _ in rows], "de")
    assert re.search(rf"the source, copied +{copied.bleu.value:.1f} +{copied.chrf.value:.1f}\n", text)
    assert "the nearest training sentence's translation" in text
    assert scores.bleu.signature in text
    assert scores.chrf.signature in text
    assert all(made in text for *_, made in rows)

    # Called again, it replaces what it wrote, and leaves what somebody else put beside it.
    (out / "run" / "old").touch()
    (out / "pictures" / "old.png").touch()
    (out / "mine.txt").write_text("mine", encoding="utf-8")
    monkeypatch.setattr(room, "_draw", lambda folder, *_: folder.mkdir())  # which has been seen to draw
    assert played(out, [], []).chrf.name == "chrF"
    assert not (out / "run" / "old").exists()
    assert list((out / "pictures").iterdir()) == []
    assert (out / "mine.txt").read_text(encoding="utf-8") == "mine"


def a_file(out: Path) -> None:
    out.write_text("a file", encoding="utf-8")


def a_run(out: Path) -> None:
    tiny_run.write_run(out)


def a_run_inside(out: Path) -> None:
    tiny_run.write_run(out / "run")


def notes_of_one_s_own(out: Path) -> None:
    out.mkdir()
    (out / "ABOUT.txt").write_text("About my holidays.\n", encoding="utf-8")
    (out / "translations.tsv").write_text("mine", encoding="utf-8")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("make", [a_file, a_run, a_run_inside, notes_of_one_s_own])
def test_a_folder_that_no_demo_wrote_is_refused_and_left_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "out")
    before = contents(tmp_path)
    with pytest.raises(RunError, match=r"out (holds files that no demo wrote|cannot be written)"):
        played(tmp_path / "out", [], [])
    assert contents(tmp_path) == before


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    room._clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ABOUT.txt"]
    (tmp_path / "translations.tsv").touch()
    room._clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ABOUT.txt"]


def test_a_demo_that_is_stopped_shows_what_was_learned_and_listens_no_longer(
    tmp_path: Path, toy_data: list[str]
) -> None:
    events, listening = list[Event](), list[bool]()

    @contextmanager
    def stopping() -> Iterator[Callable[[], bool]]:
        listening.append(True)
        yield lambda: any(isinstance(event, StepTaken) for event in events)
        listening.append(False)

    def show(_line: str) -> None:
        assert listening == [True, False]  # whoever presses Ctrl-C now means the end

    steps = ("training.minutes=1", "training.log_every=2")
    demo(
        tmp_path / "demo",
        minutes=1.0,
        overrides=(*TINY, *steps),
        note=print,
        tell=events.append,
        show=show,
        stopping=stopping(),
    )
    assert events[-1] == Stopped(2)
    assert len((tmp_path / "demo" / "translations.tsv").read_text(encoding="utf-8").splitlines()) == len(toy_data)


# --- the corpus inside the package ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpora() -> dict[str, Corpus]:
    """The corpus inside the package."""
    return {name: read_tsv(Path(str(DATA / f"lohelp.en-de.{name}.tsv.xz"))) for name in ("train", "test")}


def test_the_corpus_is_inside_with_its_licence_and_small() -> None:
    sizes = {place.name: len(place.read_bytes()) for place in DATA.iterdir()}
    assert set(sizes) == {"LICENSE", "NOTICE", "lohelp.en-de.train.tsv.xz", "lohelp.en-de.test.tsv.xz"}
    assert sum(sizes.values()) <= 3_000_000
    assert "Mozilla Public License Version 2.0" in (DATA / "LICENSE").read_text(encoding="utf-8")
    notice = (DATA / "NOTICE").read_text(encoding="utf-8")
    assert all(name in notice for name in ("lohelp.en-de.train.tsv.xz", "lohelp.en-de.test.tsv.xz", "LibreOffice"))


def test_the_corpus_has_the_pairs_that_its_notice_counts(corpora: dict[str, Corpus]) -> None:
    notice = " ".join((DATA / "NOTICE").read_text(encoding="utf-8").split())
    assert f"{len(corpora['train']):,} pairs to train on and {len(corpora['test']):,} to test on" in notice
    assert all(not corpus.empty for corpus in corpora.values())


def test_no_test_segment_stands_in_the_training_text(corpora: dict[str, Corpus]) -> None:
    def bare(text: str) -> str:
        return re.sub(r"[\W\d_]+", "", text.casefold())

    for side in ("source", "target"):
        known = {getattr(pair, side) for pair in corpora["train"].pairs}
        asked = {getattr(pair, side) for pair in corpora["test"].pairs}
        assert known & asked == set()
        assert {bare(text) for text in known} & {bare(text) for text in asked} <= {""}


def test_the_packed_files_are_plain_lines_inside() -> None:
    packed = (DATA / "lohelp.en-de.test.tsv.xz").read_bytes()
    with io.TextIOWrapper(io.BytesIO(lzma.decompress(packed)), encoding="utf-8", newline="\n") as text:
        lines = list(text)
    assert len(lines) == 1000
    assert all(line.endswith("\n") and line.count("\t") == 1 and "\r" not in line for line in lines)
