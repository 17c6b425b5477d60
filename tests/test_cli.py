"""The command line: what each command prints, and that a slip costs one sentence, status 2, and nothing else."""

import io
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import pellucid
import tiny
import tiny_run
from pellucid import cli
from pellucid.config import RunConfig
from pellucid.decoding import load
from pellucid.jobs.mask import Attention, Size, describe, planned
from pellucid.jobs.scoring import Scores, score_corpus
from pellucid.run import Run
from shell import Shell, shell_in

SENTENCES = tiny_run.SENTENCES


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    """Runs the command line in this process, in a folder of the test's own."""
    return shell_in(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody trained."""
    return tiny_run.write_run(tmp_path_factory.mktemp("run") / "run")


def write(name: str, text: str) -> Path:
    """A file in the test's own folder, its line ends as they are."""
    Path(name).write_bytes(text.encode())
    return Path(name)


def lines(text: str) -> list[str]:
    """Lines that all end."""
    assert text.endswith("\n") or not text
    return text.split("\n")[:-1]


# --- what is printed -----------------------------------------------------------------------------------------


def test_the_version_and_the_help(shell: Shell) -> None:
    assert shell("--version") == (0, f"pellucid {pellucid.__version__}\n", "")
    whole = shell("--help")
    assert whole.status == 0
    assert all(command in whole.out for command in ("demo", "train", "translate", "evaluate", "score", "info"))
    assert shell() == shell("-h") == whole
    for command, option in (("train", "--resume"), ("translate", "--n-best"), ("evaluate", "--target-language")):
        assert option in shell(command, "--help").out


@pytest.mark.parametrize("beam", [1, 2])
def test_n_lines_in_n_lines_out(shell: Shell, run_folder: Path, beam: int) -> None:
    given = [SENTENCES[1], "", "   ", SENTENCES[3], "cat\u2028cat\x85cat\x0ccat\rcat", "cat\x00cat", SENTENCES[1]]
    ended = shell("translate", run_folder, "--beam", beam, stdin="\n".join(given).encode())  # no end to the last line
    assert (ended.status, ended.err) == (0, "")
    assert lines(ended.out) == [one.text for one in load(run_folder).translate(given, beam=beam)]
    assert lines(ended.out)[1:3] == ["", ""]
    assert lines(ended.out)[0] == lines(ended.out)[6] != ""


def test_line_ends_and_a_byte_order_mark_change_nothing(shell: Shell, run_folder: Path) -> None:
    plain = shell("translate", run_folder, "--beam", 1, stdin=b"a window\n\nsmall cat\n")
    windows = shell("translate", run_folder, "--beam", 1, stdin="\ufeffa window\r\n\r\nsmall cat".encode())
    assert windows == plain
    assert len(lines(plain.out)) == 3
    assert "\r" not in windows.out


@pytest.mark.parametrize("given", [b"", b"\xef\xbb\xbf"])
def test_nothing_in_nothing_out(shell: Shell, run_folder: Path, given: bytes) -> None:
    assert shell("translate", run_folder, stdin=given) == (0, "", "")


def test_files_in_and_out(shell: Shell, run_folder: Path) -> None:
    given = write("in.txt", "small cat\n\ncat\n")
    assert shell("translate", run_folder, "--input", given, "--output", "out.txt", "--beam", 1) == (0, "", "")
    printed = shell("translate", run_folder, "--input", given, "--beam", 1).out
    assert Path("out.txt").read_bytes() == printed.encode()
    assert shell("translate", run_folder, "--input", given, "--output", given, "--beam", 1).status == 0
    assert given.read_bytes() == printed.encode()  # read to its end, and then replaced
    assert sorted(path.name for path in Path().iterdir()) == ["in.txt", "out.txt"]


@pytest.mark.parametrize("k", [2, 3])
def test_k_candidates_are_k_lines_a_sentence(shell: Shell, run_folder: Path, k: int) -> None:
    given = [SENTENCES[3], "", SENTENCES[1]]
    ended = shell("translate", run_folder, "--n-best", k, "--beam", 3, stdin="\n".join(given).encode())
    expected = load(run_folder).translate(given, beam=3, n_best=k)
    rows = [line.split("\t", 2) for line in lines(ended.out)]
    assert [int(number) for number, _, _ in rows] == [*[1] * k, *[2] * k, *[3] * k]
    assert all(re.fullmatch(r"-?\d+\.\d{6}", score) for _, score, _ in rows)
    found = [(score, text) for _, score, text in rows]
    assert found == [(f"{best.score:.6f}", best.text) for one in expected for best in one.hypotheses]


def test_translations_are_drawn_where_that_is_asked_for(shell: Shell, run_folder: Path) -> None:
    given = [SENTENCES[3], "", SENTENCES[1]]
    cuts = ("--temperature", 0.8, "--top-k", 50, "--top-p", 0.9, "--min-p", 0.01)
    stdin = "\n".join(given).encode()
    plain = shell("translate", run_folder, "--sample", "--seed", 7, stdin=stdin)
    cut = shell("translate", run_folder, "--sample", "--seed", 7, *cuts, "--n-best", 2, stdin=stdin)
    way = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.01}
    expected = load(run_folder).translate(given, sampling=way, seed=7, n_best=2)
    assert [line.split("\t", 2)[2] for line in lines(cut.out)] == [
        best.text for one in expected for best in one.hypotheses
    ]
    assert lines(plain.out) == [one.text for one in load(run_folder).translate(given, sampling={}, seed=7)]


@pytest.mark.parametrize("cut", ["--temperature 0", "--top-k 1", "--top-p 1e-9", "--min-p 1"])
def test_each_option_of_sampling_arrives(shell: Shell, run_folder: Path, cut: str) -> None:
    hot = ("translate", run_folder, "--sample", "--temperature", 5, "--seed", 7)
    given = SENTENCES[1].encode()
    greedy = shell("translate", run_folder, "--beam", 1, stdin=given)
    assert shell(*hot, *cut.split(), stdin=given) == greedy  # of one option given twice, the later one counts
    assert shell(*hot, stdin=given) != greedy


def test_json_is_one_object_a_sentence(shell: Shell, run_folder: Path) -> None:
    given = [SENTENCES[3], "", "Straße\t“\u2028”"]
    ended = shell("translate", run_folder, "--json", "--n-best", 2, "--beam", 2, stdin="\n".join(given).encode())
    records = [json.loads(line) for line in lines(ended.out)]
    expected = load(run_folder).translate(given, beam=2, n_best=2)
    for number, (record, one) in enumerate(zip(records, expected, strict=True), start=1):
        assert list(record) == ["line", "source", "text", "score", "log_prob", "tokens", "hypotheses"]
        assert (record["line"], record["source"], record["text"]) == (number, one.source, one.text)
        assert (record["score"], record["log_prob"]) == (one.score, one.log_prob)
        assert record["tokens"] == record["hypotheses"][0]["tokens"] == list(one.tokens)
        assert [best["finished"] for best in record["hypotheses"]] == [best.finished for best in one.hypotheses]
    assert "Straße" in ended.out


def test_an_evaluation_is_three_figures_with_their_signatures(shell: Shell, run_folder: Path) -> None:
    source, gold = write("t.en", "\n".join(SENTENCES[:3]) + "\n"), list(map(tiny_run.german, SENTENCES[:3]))
    reference = write("t.de", "\n".join(gold) + "\n")
    words = ("evaluate", run_folder, "--source", source, "--reference", reference, "--beam", 2)
    ended = shell(*words, "--output", "kept.de")
    made = lines(Path("kept.de").read_text(encoding="utf-8"))
    assert made == [one.text for one in load(run_folder).translate(SENTENCES[:3], beam=2)]
    scores: Scores = score_corpus(made, gold)
    assert (ended.status, ended.err) == (0, "")
    assert lines(ended.out) == [
        f"{metric.name}\t{metric.value:.2f}\t{metric.signature}" for metric in (scores.bleu, scores.chrf, scores.ter)
    ]
    assert [line.split("\t")[0] for line in lines(ended.out)] == ["BLEU", "chrF", "TER"]
    chinese = shell(*words, "--target-language", "zh-CN")
    assert "tok:zh" in lines(chinese.out)[0]


def test_a_score_is_one_number_a_line_and_the_log_probability(shell: Shell, run_folder: Path) -> None:
    translator = load(run_folder)
    [found] = translator.translate([SENTENCES[5]], n_best=4)
    one = next(best for best in found.hypotheses if best.finished and best.text)
    source = write("a", f"{found.source}\n{SENTENCES[0]}\ncat\n")
    target = write("b", f"{one.text}\n{tiny_run.german(SENTENCES[0])}\n\n")
    ended = shell("score", run_folder, "--source", source, "--target", target)
    assert (ended.status, ended.err) == (0, "")
    numbers = [float(line) for line in lines(ended.out)]
    expected = translator.score([found.source, SENTENCES[0], "cat"], [one.text, tiny_run.german(SENTENCES[0]), ""])
    assert numbers == pytest.approx(expected, abs=1e-6)
    assert numbers[0] == pytest.approx(one.log_prob, abs=1e-4)
    assert max(numbers) < 0.0


def test_info_is_toml_that_says_everything(shell: Shell, run_folder: Path) -> None:
    ended = shell("info", run_folder)
    assert (ended.status, ended.err) == (0, "")
    config = Run.open(run_folder).config
    assert RunConfig.from_toml(ended.out) == config
    assert tomllib.loads(ended.out)["model"]["num_heads"] == 3
    comments = [line for line in lines(ended.out) if line.startswith("#")]
    assert comments[0] == f"# {run_folder}: step 0 of 20,000"
    assert "# newest validation: step 20, loss 3.250, bleu 1.500, chrf 12.125" in comments
    assert "# best validation: step 20, loss 3.250, bleu 1.500, chrf 12.125" in comments
    assert "# vocabulary: 340 source, 340 target" in comments
    assert f"# parameters: all {sum(p.numel() for p in tiny_run.model().parameters()):,}" in comments


def test_what_is_trained_can_be_used(shell: Shell, tmp_path: Path) -> None:
    files = tiny.write_text(tmp_path, 40)
    asked = {"training.steps": 6, "training.validate_every": 3, "training.log_every": 2, "training.validation_lines": 2}
    settings = [word for one in tiny.overrides(asked) for word in ("--set", one)]
    words = ("train", "--source", files.source, "--target", files.target)
    ended = shell(*words, "--out", "run", *settings)
    assert ended.status == 0
    assert lines(ended.out) == ["the run is in run; try: echo 'A sentence.' | pellucid translate run"]
    said = lines(ended.err)
    assert all(re.match(r"\[ +\d+\.\d s\] ", line) for line in said)
    for what in ("read 40 pairs", "held out 4 pairs", "step 2 of 6: loss ", "step 3: validation loss ", "best so far"):
        assert any(what in line for line in said), what
    assert len(lines(shell("translate", "run", stdin=b"the cat\n\nthe dog\n").out)) == 3
    assert "step 6 of 6" in lines(shell("info", "run").out)[0]

    again = shell(*words, "--out", "run")
    assert (again.status, again.out) == (2, "")
    assert again.err == "pellucid: run already holds a run; continue it with --resume, or choose another folder\n"
    longer = shell(*words, "--out", "run", "--resume", "--set", "training.steps=8")
    assert longer.status == 0, longer.err
    assert any("resumed at step 6 of 8" in line for line in lines(longer.err))
    config = write("run.toml", shell("info", "run").out)  # the settings of one run can begin another
    other = shell(*words, "--out", "other", "--config", config, "--set", "training.steps=1")
    assert other.status == 0, other.err


def test_the_demo_is_handed_what_is_asked(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def play(out: Path, *, minutes: float, show: Callable[[str], None], **rest: object) -> None:
        asked.update(rest, out=out, minutes=minutes)
        show("Schöne Grüße")

    monkeypatch.setattr("pellucid.jobs.demo.demo", play)
    assert shell("demo", "--out", "here", "--minutes", 0.5) == (0, "Schöne Grüße\n", "")
    assert (asked["out"], asked["minutes"]) == (Path("here"), 0.5)
    assert shell("demo").status == 0
    assert asked["out"] == Path("demo")
    assert asked["minutes"] < 5  # type: ignore[operator]


# --- how it is written ---------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole_or_not_at_all(shell: Shell, run_folder: Path) -> None:
    two = ("--read-ahead", 2)
    output = write("out.txt", "what was there before\n")
    given = b"cat\ncat\ncat\n\xff\n"
    ended = shell("translate", run_folder, "--beam", 1, *two, "--output", output, stdin=given)
    assert ended.status == 2
    assert "line 4 of standard input is not UTF-8" in ended.err
    assert output.read_bytes() == b"what was there before\n"
    assert list(Path().iterdir()) == [output]
    seen = shell("translate", run_folder, "--beam", 1, *two, stdin=given)
    assert len(lines(seen.out)) == 2  # standard output has what was done by then
    assert seen.err == ended.err


def test_a_link_stays_a_link_and_a_pipe_a_pipe(shell: Shell, run_folder: Path) -> None:
    Path("link").symlink_to(write("real.txt", ""))
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDWR)
    try:
        for name in ("link", "pipe"):
            assert shell("translate", run_folder, "--beam", 1, "--output", name, stdin=b"cat\n").status == 0
        piped = os.read(reader, 4096)
    finally:
        os.close(reader)
    assert Path("link").is_symlink()
    assert Path("pipe").is_fifo()
    printed = shell("translate", run_folder, "--beam", 1, stdin=b"cat\n").out
    assert Path("real.txt").read_bytes() == piped == printed.encode()


def test_output_is_utf_8_whatever_the_machine_s_habits(
    shell: Shell, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("Läufe").symlink_to(run_folder)
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", newline="\r\n")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert shell("info", "Läufe").status == 0
    assert narrow.buffer.getvalue().startswith("# Läufe: step 0 of 20,000\n# newest".encode())


@pytest.mark.parametrize(
    ("error", "status", "err"),
    [
        (KeyboardInterrupt(), 130, ""),
        (OSError(28, "No space left on device", "/x"), 2, r"/x cannot be used \(No space left on device\); see to"),
        (OSError("odd"), 2, r"a file cannot be used \(odd\); see to"),
        (pellucid.PellucidError("two\n  lines"), 2, "two lines"),
    ],
)
def test_however_a_command_is_ended_it_is_brief(
    shell: Shell, run_folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, err: str
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("pellucid.jobs.info.inspect", fail)
    ended = shell("info", run_folder)
    assert (ended.status, ended.out) == (status, "")
    assert re.fullmatch(rf"(pellucid: {err}[^\n]*\n)?", ended.err)
    assert bool(err) == bool(ended.err)


def test_a_fault_of_ours_is_not_hidden(shell: Shell, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.jobs.info.inspect", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        shell("info", run_folder)


def python(*words: object, given: bytes | None = None) -> subprocess.Popen[bytes]:
    """Another process, without the tests' checks of shapes."""
    process = subprocess.Popen(
        [sys.executable, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    if given is not None:
        assert process.stdin is not None
        process.stdin.write(given)
        process.stdin.close()
    return process


def test_help_needs_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, pellucid.cli\n"
        "sys.argv = ['pellucid', '--help']\n"
        "try:\n    pellucid.cli.main()\n"
        "finally:\n    print(sorted({'torch', 'matplotlib', 'sacrebleu', 'pydantic'} & set(sys.modules)))"
    )
    with python("-c", code) as process:
        out, err = process.communicate()
    assert err == b""
    assert out.endswith(b"[]\n")


@pytest.mark.slow
def test_a_reader_who_has_seen_enough_is_no_error(run_folder: Path) -> None:
    given = b"cat\n" * 3000  # two windows and more
    with python("-m", "pellucid", "translate", run_folder, "--beam", 1, "--device", "cpu", given=given) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        complaint = process.stderr.read()
    assert first.decode() == load(run_folder).translate(["cat"], beam=1)[0].text + "\n"
    assert (process.returncode, complaint) == (0, b"")


# --- slips ---------------------------------------------------------------------------------------------------

SMALL = "--set model.source_vocab_size=310 --set model.target_vocab_size=310 --set training.precision=float32"
TRAIN = "train --out new --source a.en --target a.de"
SLIPS = {
    # text
    "train --out new --source nowhere.en --target a.de": "nowhere.en cannot be read (No such file or directory); check",
    "train --out new --source a.en --target short.de": "a.en has 40 lines and short.de has 39, but line n of one must",
    "train --out new --source latin.en --target a.de": "line 2 of latin.en is not UTF-8 (byte 0xE9 after 3 bytes); save",
    "train --out new --pairs no_tab.tsv": "line 2 of no_tab.tsv has no tab, but exactly one must stand between",
    "train --out new --pairs empty.tsv": "empty.tsv: no lines, but at least one pair",
    "train --out new --source a.en": "the training text was given one side of its text only; give --source and --target",
    "train --out new --pairs a.tsv --source a.en": "the training text was given both as two files and as pairs; give",
    "train --out new": "no training text was given; give --source and --target, or --pairs",
    f"{TRAIN} --valid-source a.en": "the validation text was given one side of its text only; give --valid-source",
    f"{TRAIN} {SMALL} --set data.max_length=2": "no training pair is left: dropped 36 of 36 pairs",
    # settings
    f"{TRAIN} --set model.d_modle=16": "model: unknown setting 'd_modle'; did you mean 'd_model'?",
    f"{TRAIN} --set modle.d_model=16": "settings: unknown section 'modle'; did you mean 'model'?",
    f"{TRAIN} --set training.steps=0": "training: 'steps' was given 0, but it should be greater than or equal to 1",
    f"{TRAIN} --set training.steps=many": "training: 'steps' was given 'many', but it should be a valid integer",
    f"{TRAIN} --set training.steps": "--set was given 'training.steps', but it takes section.name=value",
    f"{TRAIN} --set steps=5": "--set was given 'steps=5', but it takes section.name=value",
    f"{TRAIN} --set model.num_heads=7": "model: d_model 256 does not divide into 7 heads; choose num_heads",
    f"{TRAIN} --set model.source_vocab_size=100 --set model.target_vocab_size=100": "a vocabulary of 100 was asked for",
    f"{TRAIN} --config nowhere.toml": "the settings nowhere.toml cannot be read (No such file or directory); check",
    f"{TRAIN} --config a.en": "a.en: the settings are not TOML: ",
    # places and devices
    "train --out RUN --source a.en --target a.de": "RUN already holds a run; continue it with --resume, or choose",
    "train --out full --source a.en --target a.de": "full holds 'mine.txt', which is no run's; choose an empty",
    "train --out a.en --source a.en --target a.de": "a.en is a file, but a run is a folder; choose another name",
    f"{TRAIN} --device abacus": "the device 'abacus' is not on this machine; take 'cpu' or 'auto'",
    "demo --out full": "full holds files that no demo wrote; choose another folder with --out",
    "demo --out a.en": "a.en cannot be written (File exists); see to the disk",
    "translate RUN --device cuda:99": "the device 'cuda:99' is not on this machine; take 'cpu' or 'auto'",
    "translate RUN --output nowhere/out": "nowhere/out cannot be written (No such file or directory); see to",
    "translate RUN --output full": "full cannot be written (Is a directory); see to",
    "translate RUN --output a.en/out": "a.en/out cannot be written (Not a directory); see to",
    "evaluate RUN --source a.en --reference a.de --output nowhere/out": "nowhere/out cannot be written (No such",
    # runs
    "translate nowhere": "nowhere holds no run (no run.toml); give the folder that `pellucid train --out` wrote",
    "info a.en": "a.en holds no run (no run.toml); give the folder",
    "translate torn_settings": "torn_settings/run.toml cannot be read: ",
    "translate odd_settings": "odd_settings/run.toml: model: unknown setting 'nonsense'; known are",
    "translate later_format": "later_format was written in format 99 by Pellucid",
    "translate torn_weights": "the weights torn_weights/best.safetensors cannot be read (",
    "translate other_weights": "'stacks.encoder.layers.0.self_attention.query.weight' has shape (12, 12) in the",
    "translate no_weights": "no_weights holds no weights yet; train it with --resume",
    "info no_vocabulary": "no_vocabulary/tokenizer.model cannot be read (No such file or directory); check",
    "score torn_vocabulary --source a.en --target a.de": "torn_vocabulary/tokenizer.model: ",
    # decoding
    "translate RUN --n-best 5": "n_best is 5, but a beam of 4 gives 1 to 4 candidates; widen the beam, or ask for fewer",
    "translate RUN --length-penalty nan": "decoding: 'length_penalty' was given nan, but it should be a finite number",
    "translate RUN --sample --beam 4": "beam was given 4 beside sampling, but a beam is not drawn; leave one of them out",
    "translate RUN --sample --top-p 1.5": "top_p was given 1.5, but it is the probability to draw from; give a number",
    "translate RUN --top-k 5": "--top-k was given 5, but it says how to sample; add --sample, or leave it out",
    "translate RUN --seed 0": "--seed was given 0, but it says how to sample; add --sample, or leave it out",
    "translate RUN --input nowhere.txt": "nowhere.txt cannot be read (No such file or directory); check",
    "translate RUN --input latin.en": "line 2 of latin.en is not UTF-8 (byte 0xE9 after 3 bytes); save",
    "translate RUN --input latin.en --output new": "line 2 of latin.en is not UTF-8 (byte 0xE9 after 3 bytes); save",
    "translate RUN": "line 2 of standard input is not UTF-8 (byte 0xFF after 0 bytes); save",
    "translate few_positions --input a.en --set too_long=refuse": "line 1 has 15 tokens, but 8 are read at most",
    "evaluate RUN --source a.en --reference short.de": "a.en has 40 lines and short.de has 39; give files that match",
    "evaluate RUN --source empty.tsv --reference empty.tsv": "empty.tsv and empty.tsv have no lines, but scores need",
    "score RUN --source short.de --target a.en": "short.de has 39 lines and a.en has 40; give files that match",
    # the call itself
    "tranlsate RUN": "no such command 'tranlsate'",
    "translate": "missing argument 'RUN'; see `pellucid translate --help`",
    "translate RUN --bem 4": "no such option: --bem",
    "translate RUN --beam 0": "invalid value for '--beam': ",
    "translate RUN --beam wide": "invalid value for '--beam': ",
    "translate RUN more": "got unexpected extra argument",
    "train --source a.en --target a.de": "missing option '--out'; see `pellucid train --help`",
    "score RUN --source a.en": "missing option '--target'; see `pellucid score --help`",
    "demo --minutes 0": "invalid value for '--minutes': ",
}


@pytest.fixture(scope="session")
def bad_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of things that nothing good can be made of, beside a few that are as they should be."""
    place = tmp_path_factory.mktemp("slips")
    text = tiny.lines(40)
    text[0][2] = "the cat sees the dog the bird hears"
    for name, side in zip(("a.en", "a.de"), text, strict=True):
        (place / name).write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    (place / "short.de").write_text("".join(f"{line}\n" for line in text[1][:39]), encoding="utf-8")
    (place / "a.tsv").write_text("the cat\tdie Katze\n", encoding="utf-8")
    (place / "no_tab.tsv").write_text("the cat\tdie Katze\nthe dog\n", encoding="utf-8")
    (place / "empty.tsv").write_bytes(b"")
    (place / "latin.en").write_bytes(b"the cat\ncaf\xe9\n")
    (place / "full").mkdir()
    (place / "full" / "mine.txt").write_text("mine", encoding="utf-8")
    for name in ("RUN", "torn_settings", "odd_settings", "later_format", "torn_weights", "other_weights"):
        tiny_run.write_run(place / name)
    for name in ("no_weights", "no_vocabulary", "torn_vocabulary"):
        tiny_run.write_run(place / name)
    tiny_run.write_run(place / "few_positions", positions="learned", max_positions=9)
    for name, old, new in (
        ("torn_settings", "[model]", "[model"),
        ("odd_settings", "[model]", "[model]\nnonsense = 1"),
        ("later_format", "format = 1", "format = 99"),
        ("other_weights", "d_model = 12", "d_model = 24"),
    ):
        file = place / name / "run.toml"
        settings = file.read_text(encoding="utf-8")
        assert old in settings
        file.write_text(settings.replace(old, new), encoding="utf-8")
    weights = (place / "torn_weights" / "best.safetensors").read_bytes()
    (place / "torn_weights" / "best.safetensors").write_bytes(weights[: len(weights) // 2])
    (place / "no_weights" / "best.safetensors").unlink()
    (place / "no_vocabulary" / "tokenizer.model").unlink()
    (place / "torn_vocabulary" / "tokenizer.model").write_bytes(b"torn")
    return place


@pytest.mark.parametrize("call", SLIPS)
def test_a_slip_costs_one_sentence_and_status_2(
    shell: Shell, bad_place: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.chdir(bad_place)
    before = {path: path.stat().st_mtime_ns for path in bad_place.rglob("*")}
    ended = shell(*call.split(), stdin=b"cat\n\xff\n")
    assert ended.status == 2, ended.err
    assert ended.out == ""
    said = [line for line in lines(ended.err) if not re.match(r"\[ +\d+\.\d s\] ", line)]  # what was done till then
    assert len(said) == 1
    assert said[0].startswith(f"pellucid: {SLIPS[call]}")
    assert len(said[0]) < 400
    assert {path: path.stat().st_mtime_ns for path in bad_place.rglob("*")} == before


def test_a_mask_is_drawn_converted_and_put_in_a_picture(shell: Shell) -> None:
    drawn = shell("mask", "causal & padding(2, 1)", "--queries", 3, "--first-query", 1)
    assert drawn == (0, describe("causal & padding(2, 1)", Size(queries=3, first_query=1)) + "\n", "")
    assert shell("mask", "causal", "--as", "sdpa").out.endswith("is_causal = True\n")
    pictured = shell("mask", "causal", "--png", "mask.png")
    assert (pictured.status, pictured.err) == (0, "the picture is in mask.png\n")
    assert Path("mask.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("caussal",), "unknown mask 'caussal'; did you mean 'causal'?"),
        (("causal and full",), "'causal and full' uses and, or, not; write a & b, a | b or ~a"),
        (("causal", "--as", "spda"), "unknown convention 'spda'; did you mean 'sdpa'?"),
        (("segments(0, 1)", "--keys", 3), "Segments(((0, 1),)) knows 2 keys and was asked for 3"),
        (("causal", "--queries", -1), "invalid value for '--queries'"),
        (("causal", "--png", "mask.jpg"), "a picture was to be written to mask.jpg, but it is PNG or SVG"),
        (("causal", "--plan", "--backend", "flax"), "unknown backend 'flax'; did you mean 'flex'?"),
        (
            ("causal", "--plan", "--backend", "cuda"),
            "unknown backend 'cuda'; known are auto, formula, fused, blocks, flex",
        ),
        (("causal", "--plan", "--dtype", "flaot32"), "unknown dtype 'flaot32'; did you mean 'float32'?"),
        (("causal", "--plan", "--dropout", 1), "a dropout of 1.0 was given, but dropout is a share of 1"),
        (
            ("causal", "--plan", "--queries", 0),
            "a plan was asked for with 0 queries, 8 keys, 8 heads of 64 and 1 samples",
        ),
        (("causal", "--plan", "--head-dim", 0), "invalid value for '--head-dim'"),
        (("padding(5, 3)", "--plan", "--batch", 1), "--batch is 1, but the mask is written for 2; leave --batch out"),
        (("heads(full, causal)", "--plan", "--heads", 8), "--heads is 8, but the mask is written for 2; leave --heads"),
        (("segments(0, 1)", "--plan", "--keys", 3), "Segments(((0, 1),)) knows 2 keys and was asked for 3"),
        *(
            (("causal", "--plan", *words), "--plan was given with --as or --causal-model, which are about a library's")
            for words in (("--as", "sdpa"), ("--causal-model",))
        ),
        *(
            (
                ("causal", *words),
                "--backend, --head-dim, --dtype, --learns or --dropout was given without --plan, to which",
            )
            for words in (
                ("--backend", "fused"),
                ("--head-dim", 3),
                ("--dtype", "float16"),
                ("--learns", "--as", "sdpa"),
                ("--dropout", 0.5),
            )
        ),
        ((), "missing argument 'MASK'"),
    ],
)
def test_a_slip_about_masks_is_one_sentence(shell: Shell, call: tuple[object, ...], said: str) -> None:
    ended = shell("mask", *call)
    assert ended.status == 2
    assert ended.err.startswith(f"pellucid: {said}")
    assert ended.err.count("\n") == 1


def test_a_plan_says_which_kernel_and_why_and_draws_the_blocks(shell: Shell) -> None:
    ended = shell("mask", "chunked(512)", "--plan", "--queries", 2048, "--keys", 2048)
    assert (ended.status, ended.err) == (0, "")
    said, tiles, legend, *rows = lines(ended.out)
    assert re.match(r"blocks: the tiles that are seen cost about \d\d% of ", said)
    assert tiles == "blocks computes 25.0% of the cells, in 4 tiles"
    assert legend.startswith("Chunked(512)   rows: 2,048 queries, 32 to a line, columns: 2,048 keys, 32 to a mark")
    chunks = ["·" * 16 * at + "█" * 16 + "·" * 16 * (3 - at) for at in range(4)]
    assert [row[-64:] for row in rows] == [chunk for chunk in chunks for _ in range(16)]


def test_a_plan_of_a_causal_window_shows_its_band(shell: Shell) -> None:
    ended = shell("mask", "causal & window(256, 0)", "--plan", "--queries", 2048, "--keys", 2048)
    said, _, _, *rows = lines(ended.out)
    assert said.startswith("blocks: ")
    ends = [("▒" if row >= 8 else "", max(0, row - 7)) for row in range(64)]  # 256 keys are eight marks
    bands = [edge + "█" * (row - start) + "▒" for row, (edge, start) in enumerate(ends)]
    assert [row[-64:] for row in rows] == [
        ("·" * max(0, at - 8) + band).ljust(64, "·") for at, band in enumerate(bands)
    ]


def test_a_plan_hears_what_else_is_asked(shell: Shell) -> None:
    size = ("--plan", "--queries", 300, "--keys", 300)
    assert shell("mask", "causal", *size).out.startswith("fused: torch's kernel has a flag that hides the future\n")
    assert shell("mask", "causal", *size, "--backend", "formula").out.startswith("formula: it was asked for")
    assert shell("mask", "causal", *size, "--backend", "flex", "--no-learns").out.startswith("flex: it was asked for")
    learned = shell("mask", "causal", *size, "--backend", "flex", "--learns")
    assert "flex was asked for, but FlexAttention has no backward pass on a CPU\n" in learned.out
    dropped = shell("mask", "causal", *size, "--backend", "flex", "--dropout", 0.5)
    assert "flex was asked for, but FlexAttention has no dropout\n" in dropped.out
    asked = shell("mask", "window(9, 0)", *size, "--batch", 3, "--heads", 5, "--head-dim", 7, "--dtype", "float64")
    attention = Attention(batch=3, heads=5, head_dim=7, dtype="float64")
    assert asked == (0, planned("window(9, 0)", Size(300, 300), attention) + "\n", "")
    assert asked != shell("mask", "window(9, 0)", *size)  # more samples, and a tile's own cost weighs less


def test_a_long_plan_is_made_and_a_small_one_put_in_a_picture(shell: Shell) -> None:
    long = shell("mask", "chunked(8192)", "--plan", "--queries", 2**16, "--keys", 2**16)
    assert lines(long.out)[1] == "blocks computes 12.5% of the cells, in 8 tiles"
    pictured = shell("mask", "causal", "--plan", "--png", "mask.png")
    assert (pictured.status, pictured.err) == (0, "the picture is in mask.png\n")
    assert pictured.out == shell("mask", "causal", "--plan").out
    assert pictured.out.startswith("fused: ")
    assert Path("mask.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("call", "terminal", "ahead"),
    [((), True, 1), ((), False, 1024), (("--read-ahead", 5), True, 5), (("--read-ahead", 5), False, 5)],
)
def test_a_terminal_is_answered_line_by_line(
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    call: tuple[object, ...],
    terminal: bool,
    ahead: int,
) -> None:
    typed = io.BytesIO(b"cat\n" * 1500)
    keyboard = io.TextIOWrapper(typed)
    monkeypatch.setattr(keyboard, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", keyboard)
    monkeypatch.setattr(sys, "argv", ["pellucid", "translate", str(run_folder), *map(str, call)])
    monkeypatch.setattr(
        "pellucid.cli.output._write_line", lambda *_: sys.exit(typed.tell() // 4)
    )  # at the first answer
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == ahead
    assert capsysbinary.readouterr() == (b"", b"")


def test_a_closed_standard_input_is_named(
    shell: Shell, run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("--version").status == 0
    monkeypatch.setattr(sys, "argv", ["pellucid", "translate", str(run_folder)])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "pellucid: standard input is closed, but lines to translate are needed; give --input\n"
    )
