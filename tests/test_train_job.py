"""From text to a run folder: what is read, held out, said, chosen and refused, and ten pairs learned by heart."""

import importlib
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

import tiny
import tiny_run
from pellucid.config import PAD_ID, RunConfig
from pellucid.decoding import load
from pellucid.errors import ConfigError, DeviceError, PellucidError, RunError, TextError
from pellucid.jobs import material
from pellucid.jobs.material import TextFiles
from pellucid.jobs.train import train
from pellucid.jobs.validation import validator
from pellucid.run import Run, load_weights
from pellucid.text.batch import Example, collate
from pellucid.text.corpus import Corpus, Pair
from pellucid.training import Event, StepTaken, Trainer, Validated, smoothing_floor

SHORT = {
    "training.steps": 3,
    "training.log_every": 1,
    "training.validate_every": 2,
    "training.validation_lines": 2,
}


def job(folder: Path, files: TextFiles, changes: dict[str, object] | None = None, **more: Any) -> tuple[Run, list[str]]:
    """A short training and what it said on the way."""
    said: list[str] = []
    run = train(folder / "run", files, overrides=tiny.overrides({**SHORT, **(changes or {})}), note=said.append, **more)
    return run, said


def written(folder: Path, source: str, target: str) -> TextFiles:
    files = TextFiles(folder / "a.en", folder / "a.de")
    for path, text in ((files.source, source), (files.target, target)):
        assert path is not None
        path.write_text(text, encoding="utf-8")
    return files


# --- what is read and said ----------------------------------------------------------------------------------


def test_a_run_is_whole_and_can_translate(tmp_path: Path) -> None:
    run, said = job(tmp_path, tiny.write_text(tmp_path))
    assert sorted(place.name for place in run.path.iterdir()) == [
        "best.safetensors",
        "checkpoints",
        "metrics.jsonl",
        "run.toml",
        "tokenizer.model",
    ]
    assert [(record["kind"], record["step"]) for record in run.metrics()] == [
        ("step", 1),
        ("step", 2),
        ("validation", 2),
        ("step", 3),
        ("validation", 3),
    ]
    assert len(load(run.path, "cpu").translate(["the cat", ""])) == 2
    assert said[0] == "read 60 pairs"
    assert said[1].startswith("held out 6 pairs for validation, drawn with seed 1; ")
    assert said[2] == f"learned a vocabulary of {run.config.model.source_vocab_size}"
    assert said[-1].startswith("training 0.0 M parameters on ")
    model = Run.open(run.path).config.model
    assert (model.source_vocab_size, model.target_vocab_size) == (run.source_tokenizer.vocab_size,) * 2


def test_separate_vocabularies_are_learned_from_their_own_sides(tmp_path: Path) -> None:
    changes: dict[str, object] = {"data.shared_vocabulary": "false", "model.target_vocab_size": 290}
    run, said = job(tmp_path, tiny.write_text(tmp_path), changes)
    sizes = (run.source_tokenizer.vocab_size, run.target_tokenizer.vocab_size)
    assert f"learned a vocabulary of {sizes[0]} and {sizes[1]}" in said
    assert sizes[0] != sizes[1]
    assert {"source.model", "target.model"} < {place.name for place in run.path.iterdir()}
    assert Run.open(run.path) == run
    assert load(run.path, "cpu").translate(["the cat"])[0].source == "the cat"


def test_what_cannot_be_exported_is_named_before_it_is_trained(tmp_path: Path) -> None:
    _, said = job(tmp_path, tiny.write_text(tmp_path), {"model.positions": "rotary", "training.steps": 1})
    told = [line for line in said if "is not exported to CTranslate2; train with" in line]
    assert len(told) == 1
    assert said.index(told[0]) < len(said) - 1
    (tmp_path / "other").mkdir()
    _, said = job(tmp_path / "other", tiny.write_text(tmp_path / "other"), {"training.steps": 1})
    assert not any("export" in line for line in said)


def test_pairs_with_an_empty_side_are_counted_and_dropped_as_pairs(tmp_path: Path) -> None:
    sources, targets = tiny.lines(40)
    sources[6], targets[12] = " ", ""
    files = written(tmp_path, "\n".join(sources) + "\n", "\n".join(targets) + "\n")
    _, said = job(tmp_path, files)
    assert "read 38 pairs" in said
    assert "dropped 2 of 40 pairs with an empty side: lines 7 and 13" in said


@pytest.mark.parametrize(("policy", "word", "pairs"), [("drop", "dropped", 49), ("truncate", "truncated", 50)])
def test_pairs_that_are_too_long_are_named(tmp_path: Path, policy: str, word: str, pairs: int) -> None:
    sources, targets = tiny.lines(50)
    targets[4] = "Katze " * 40
    files = written(tmp_path, "\n".join(sources) + "\n", "\n".join(targets) + "\n")
    changes: dict[str, object] = {"data.max_length": 30, "data.over_length": policy}
    _, said = job(tmp_path, files, changes, validation=tiny.write_text(tmp_path, 20, seed=2))
    assert f"training: {word} 1 of 50 pairs with more than 30 tokens on a side: line 5" in said
    assert said[-1].endswith(f" on {pairs} pairs")


def test_a_validation_line_that_is_too_long_is_not_translated(tmp_path: Path) -> None:
    sources, targets = tiny.lines(12, seed=2)
    sources[0] = "cat " * 60
    validation = written(tmp_path, "\n".join(sources) + "\n", "\n".join(targets) + "\n")
    changes: dict[str, object] = {"data.max_length": 30, "model.positions": "learned", "model.max_positions": 30}
    run, said = job(tmp_path, tiny.write_text(tmp_path), changes, validation=validation)
    assert "validation: dropped 1 of 12 pairs with more than 30 tokens on a side: line 1" in said
    assert all("chrf" in record for record in run.metrics() if record["kind"] == "validation")


def test_what_is_held_out_is_drawn_from_the_seed_and_not_trained_on() -> None:
    corpus = Corpus(tuple(Pair(line, f"s{line}", f"t{line}") for line in range(1, 51)), lines=50)

    def split(seed: int) -> tuple[Corpus, Corpus]:
        settings = RunConfig.from_toml("", [f"training.seed={seed}", "data.held_out=4"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TextFiles, "read", lambda self, what, _: corpus if what == "the training text" else None)
            return material.read(TextFiles(), TextFiles(), settings, lambda _: None)

    train_, held = split(1)
    assert len(held.pairs) == 4
    assert {*train_.pairs} | {*held.pairs} == {*corpus.pairs}
    assert not {*train_.pairs} & {*held.pairs}
    assert split(1) == (train_, held)
    assert split(2)[1] != held


def test_a_validation_set_that_is_given_is_used(tmp_path: Path) -> None:
    _, said = job(tmp_path, tiny.write_text(tmp_path), validation=tiny.write_text(tmp_path, 20, seed=2))
    assert not any("held out" in line for line in said)
    assert said[-1].endswith("on 60 pairs")


def test_validation_measures_the_plain_loss_and_the_first_translations(tmp_path: Path) -> None:
    run, _ = job(tmp_path, tiny.write_text(tmp_path))
    objective = tiny.objective(run.config)
    load_weights(objective.model, run.weights_file())
    sources, targets = tiny.lines(20, seed=3)
    pairs = tuple(Pair(line, *sides) for line, sides in enumerate(zip(sources, targets, strict=True), 1))
    held = Corpus(pairs, lines=20)
    encoded = material.encode(held, held, run.source_tokenizer, run.target_tokenizer, run.config, lambda _: None)
    measure = validator(run, objective, encoded)
    objective.eval()  # as the trainer does
    with torch.no_grad():
        scores = measure()
        batch = collate(encoded.validation.examples)
        logits = objective.model(batch.source, batch.target, batch.source_lengths, batch.target_lengths)
    wanted = cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=PAD_ID)
    assert scores["loss"] == pytest.approx(wanted.item(), rel=1e-5)
    assert scores.keys() == {"loss", "bleu", "chrf"}
    echo = {source: [Hyp(target)] for source, target in zip(sources[:2], targets[:2], strict=True)}
    asked: list[str] = []

    def translate(_: object, lines: list[str], beam: int) -> list[Any]:
        assert beam == 1
        asked.extend(lines)
        return [echo[line][0] for line in lines]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pellucid.decoding.translate.Translator.translate", translate)
        with torch.no_grad():
            perfect = measure()
    assert asked == sources[:2]
    assert perfect["chrf"] == pytest.approx(100)
    settings = run.config.training.replace(validation_lines=0, best="loss")
    silent = validator(run.with_config(run.config.replace(training=settings)), objective, encoded)
    with torch.no_grad():
        assert silent().keys() == {"loss"}


class Hyp:
    """A translation, as far as a validation looks at it."""

    def __init__(self, text: str) -> None:
        self.text = text


# --- what is refused ----------------------------------------------------------------------------------------


def test_unequal_line_counts_are_told_and_nothing_is_written(tmp_path: Path) -> None:
    files = written(tmp_path, "one\ntwo\nthree\n", "eins\nzwei\n")
    with pytest.raises(
        TextError, match=r"a\.en has 3 lines and .*a\.de has 2, but line n of one must translate line n"
    ):
        job(tmp_path, files)
    assert not (tmp_path / "run").exists()
    with pytest.raises(TextError, match=r"a\.en has 3 lines and .*a\.de has 2"):
        job(tmp_path, tiny.write_text(tmp_path), validation=files)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (TextFiles(), r"no training text was given; give --source and --target, or --pairs"),
        (TextFiles(source=Path("a")), r"the training text was given one side of its text only; give --source and"),
        (TextFiles(Path("a"), Path("b"), Path("c")), r"given both as two files and as pairs; give --source and"),
        (TextFiles(Path("no.en"), Path("no.de")), r"no\.en cannot be read"),
    ],
)
def test_text_that_is_not_there_is_told(tmp_path: Path, files: TextFiles, message: str) -> None:
    with pytest.raises(TextError, match=message):
        job(tmp_path, files)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("count", "changes", "message"),
    [
        (9, {}, r"has 9 pairs, too few to hold a tenth of them out .*; give --valid-source and --valid-target"),
        (40, {"data.max_length": 2}, r"no training pair is left: dropped \d+ of \d+ pairs .*; raise data\.max_length"),
        (
            40,
            {"data.max_length": 2, "data.over_length": "truncate"},
            r"every validation pair has more than data\.max_length = 2 tokens .* training\.validation_lines = 0",
        ),
        (40, {"model.source_vocab_size": 270, "model.target_vocab_size": 270}, r"vocabulary of 270 was asked for"),
    ],
)
def test_text_that_leaves_nothing_to_learn_is_refused_and_nothing_is_written(
    tmp_path: Path, count: int, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(PellucidError, match=message):
        job(tmp_path, tiny.write_text(tmp_path, count), changes)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_taken_is_refused_before_any_text_is_read(tmp_path: Path) -> None:
    missing = TextFiles(tmp_path / "no.en", tmp_path / "no.de")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").touch()
    for resume in (False, True):
        with pytest.raises(RunError, match=r"run holds 'thesis\.txt', which is no run's; choose an empty or a new"):
            job(tmp_path, missing, resume=resume)
    (tmp_path / "run" / "thesis.txt").unlink()
    job(tmp_path, tiny.write_text(tmp_path))
    with pytest.raises(RunError, match=r"run already holds a run; continue it with --resume"):
        job(tmp_path, missing)


def test_a_device_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the device 'moon' is not on this machine; take 'cpu' or 'auto'"):
        job(tmp_path, tiny.write_text(tmp_path), device="moon")


def test_a_fingerprint_tells_texts_apart() -> None:
    one = [Example(1, [5, 6], [7]), Example(2, [8], [9])]
    same = [Example(4, (5, 6), (7,)), Example(9, (8,), (9,))]
    others = [one[:1], one[::-1], [Example(1, [5], [6, 7]), one[1]], [Example(1, [5, 6], [8]), one[1]]]
    assert material.fingerprint(one) == material.fingerprint(same)
    assert len({material.fingerprint(text) for text in (one, *others)}) == 5


# --- what is chosen, and written beside ---------------------------------------------------------------------


def test_minutes_become_steps_and_are_written_down(tmp_path: Path) -> None:
    changes: dict[str, object] = {
        "training.minutes": 0.01,
        "training.precision": "auto",
        "training.validate_every": 999,
    }
    run, said = job(tmp_path, tiny.write_text(tmp_path), {**changes, "training.log_every": 999})
    training = tomllib.loads((run.path / "run.toml").read_text(encoding="utf-8"))["training"]
    assert "minutes" not in training
    assert training["precision"] in ("float32", "bfloat16")
    assert training["warmup"] == max(1, min(5, training["steps"] // 5))
    assert f"timed this machine: {training['precision']}, {training['steps']:,} steps" in said
    assert run.metrics()[-1]["step"] == training["steps"]


def test_tensorboard_is_told_every_figure(tmp_path: Path) -> None:
    accumulators = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    run, _ = job(tmp_path, tiny.write_text(tmp_path), {"training.tensorboard": "true"})
    found = accumulators.EventAccumulator(str(run.path / "tensorboard"))
    found.Reload()
    for kind, name in (("step", "loss"), ("step", "learning_rate"), ("validation", "loss"), ("validation", "chrf")):
        wanted = [(record["step"], record[name]) for record in run.metrics() if record["kind"] == kind]
        scalars = [(scalar.step, scalar.value) for scalar in found.Scalars(f"{kind}/{name}")]
        assert [step for step, _ in scalars] == [step for step, _ in wanted]
        assert [value for _, value in scalars] == pytest.approx([value for _, value in wanted], rel=1e-6)


def test_tensorboard_shows_repeated_steps_once(tmp_path: Path) -> None:
    accumulators = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    files, changes = (
        tiny.write_text(tmp_path),
        {"training.tensorboard": "true", "training.steps": 6, "training.save_every": 3},
    )

    def kill(event: Event) -> None:
        if isinstance(event, StepTaken) and event.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(tmp_path, files, changes, tell=kill)
    job(tmp_path, files, changes, resume=True)
    found = accumulators.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    assert [scalar.step for scalar in found.Scalars("step/loss")] == [1, 2, 3, 4, 5, 6]


def test_memory_that_is_not_there_ends_a_training_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_loss", lambda _trainer, _batch: torch.empty(2**60))
    with pytest.raises(
        DeviceError, match=r"^training needs more memory .*; begin a run with a lower data\.batch_tokens"
    ):
        job(tmp_path, tiny.write_text(tmp_path))


def test_tensorboard_that_is_not_installed_is_told_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"TensorBoard is not installed; pip install 'pellucid\[tensorboard\]'"):
        job(tmp_path, tiny.write_text(tmp_path), {"training.tensorboard": "true"})
    assert not (tmp_path / "run").exists()


# --- ten pairs by heart -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_pairs_are_learned_by_heart_and_greedy_search_gives_them_back(tmp_path: Path) -> None:
    files = tiny.write_text(tmp_path, 10, seed=4)
    events: list[Event] = []
    changes: dict[str, object] = {
        "model.d_model": 32,
        "model.num_heads": 4,
        "model.d_ff": 64,
        "model.dropout": 0.0,
        "data.batch_tokens": 600,
        "training.precision": "float64",
        "training.steps": 130,
        "training.warmup": 20,
        "training.cooldown": 0.5,
        "training.log_every": 10,
        "training.validate_every": 999,
        "training.best": "loss",
        "training.validation_lines": 0,
        "decoding.length_extra": 10,
    }
    run, _ = job(tmp_path, files, changes, validation=files, tell=events.append)
    steps = [event for event in events if isinstance(event, StepTaken)]
    floor = smoothing_floor(run.config.model.target_vocab_size, run.config.training.label_smoothing)
    assert floor < steps[-1].loss < floor + 0.05
    assert steps[0].loss > floor + 2
    [validated] = [event for event in events if isinstance(event, Validated)]
    assert validated.scores["loss"] < 0.2
    weights = load_file(run.weights_file())
    assert {tensor.dtype for tensor in weights.values()} == {torch.float64}
    translator = load(run.path, "cpu")
    load_weights(tiny_run.engine(translator).model.double(), weights)
    sources, targets = tiny.lines(10, seed=4)
    assert len({*sources}) == 10
    found = translator.translate(sources, beam=1)
    assert [one.text for one in found] == targets
    assert all(one.hypotheses[0].finished for one in found)
