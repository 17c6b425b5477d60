"""A training that was killed or stopped, and resumed, ends as one that was left alone: the same bits, the same reports."""

import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tiny
from pellucid.config import RunConfig
from pellucid.errors import ConfigError, RunError, TextError
from pellucid.jobs.material import TextFiles
from pellucid.jobs.train import train
from pellucid.run import Checkpoint, Run
from pellucid.text.batch import plan_batches
from pellucid.training import Event, Saved, StepTaken, Stopped, Trainer, Validated

# --- the trainer --------------------------------------------------------------------------------------------

PAIRS = tiny.examples(19)
SETTINGS = tiny.config(
    {"steps": 23, "log_every": 3, "validate_every": 4, "save_every": 5, "accumulate": 2, "cooldown": 0.5}, dropout=0.4
)


@cache
def whole() -> tuple[tiny.Memory, list[Event]]:
    """An uninterrupted training."""
    keeper, events = tiny.Memory(), list[Event]()
    tiny.trainer(SETTINGS, PAIRS, keeper, tell=events.append, losses=losses(0)).run()
    return keeper, events


def losses(after: int) -> Iterator[float]:
    """What the validations after a step give: each step's own figure, not all of them better than the last."""
    return (float((step * 7) % 11) for step in itertools.count(1) if step > after and (step % 4 == 0 or step == 23))


def figures(events: list[Event], after: int = 0) -> list[dict[str, Any]]:
    """All that is told of steps after one, but what depends on the clock."""
    records = [event.record() for event in events if isinstance(event, StepTaken | Validated) and event.step > after]
    return [
        {name: value for name, value in one.items() if not name.startswith(("tokens", "seconds"))} for one in records
    ]


def assert_same(one: Checkpoint, other: Checkpoint) -> None:
    assert tiny.equal(one.weights, other.weights)
    assert tiny.equal(one.optimizer, other.optimizer)
    assert one.state == other.state


def standing_at(trainer: Trainer, step: int) -> Callable[[], bool]:
    return lambda: trainer.progress.step == step


def test_it_makes_several_passes_with_dropout_so_that_there_is_something_to_lose() -> None:
    per_pass = len(plan_batches(PAIRS, batch_tokens=61, seed=1, epoch=0))
    assert SETTINGS.training.steps * SETTINGS.training.accumulate > 3 * per_pass
    keeper, _ = whole()
    still = tiny.Memory()
    tiny.trainer(tiny.config({**SETTINGS.training.model_dump()}), PAIRS, still, losses=losses(0)).run()
    assert not tiny.equal(keeper.checkpoints[-1].weights, still.checkpoints[-1].weights)


@pytest.mark.slow
def test_resumed_from_any_checkpoint_it_ends_in_the_same_bits() -> None:
    keeper, events = whole()
    assert keeper.steps == [5, 10, 15, 20, 23]
    for checkpoint in keeper.checkpoints[:-1]:
        again, told, step = tiny.Memory(), list[Event](), checkpoint.state["step"]
        trainer = tiny.trainer(SETTINGS, PAIRS, again, tell=told.append, losses=losses(step))
        trainer.resume(checkpoint)
        trainer.run()
        wanted = [one for one in keeper.checkpoints if one.state["step"] > step]
        assert again.steps == [one.state["step"] for one in wanted]
        for one, other in zip(again.checkpoints, wanted, strict=True):
            assert_same(one, other)
        assert figures(told) == figures(events, after=step)
        best = [facts for _, facts in keeper.best if facts["step"] > step]
        assert [facts for _, facts in again.best] == best


@pytest.mark.slow
def test_stopped_after_any_step_it_ends_in_the_same_bits() -> None:
    keeper, events = whole()
    for stop in (1, 4, 22):
        again, told = tiny.Memory(), list[Event]()
        trainer = tiny.trainer(SETTINGS, PAIRS, again, tell=told.append, losses=losses(0))
        trainer.should_stop = standing_at(trainer, stop)
        trainer.run()
        assert told[-1] == Stopped(stop)
        rest = tiny.trainer(SETTINGS, PAIRS, again, tell=told.append, losses=losses(stop))
        rest.resume(again.checkpoints[-1])
        rest.run()
        assert_same(again.checkpoints[-1], keeper.checkpoints[-1])
        assert figures(told) == figures(events)


def test_a_checkpoint_that_was_resumed_from_stays_as_it_was() -> None:
    keeper, _ = whole()
    checkpoint = keeper.checkpoints[1]
    before = Checkpoint(tiny.copied(checkpoint.weights), tiny.copied(checkpoint.optimizer), dict(checkpoint.state))
    trainer = tiny.trainer(SETTINGS, PAIRS, tiny.Memory(), losses=losses(10))
    trainer.resume(checkpoint)
    trainer.run()
    assert_same(checkpoint, before)


def test_a_finished_training_resumed_takes_no_step_and_one_with_more_steps_goes_on() -> None:
    keeper, _ = whole()
    again, told = tiny.Memory(), list[Event]()
    trainer = tiny.trainer(SETTINGS, PAIRS, again, tell=told.append)
    trainer.resume(keeper.checkpoints[-1])
    trainer.run()
    assert told == []
    longer = SETTINGS.replace(training=SETTINGS.training.replace(steps=26))
    trainer = tiny.trainer(longer, PAIRS, again, tell=told.append)
    trainer.resume(keeper.checkpoints[-1])
    trainer.run()
    assert again.steps == [25, 26]


# --- the job ------------------------------------------------------------------------------------------------

JOB = {
    "model.dropout": 0.3,
    "training.steps": 17,
    "training.accumulate": 2,
    "training.log_every": 3,
    "training.validate_every": 6,
    "training.save_every": 4,
    "training.validation_lines": 2,
    "training.keep": 2,
}


class Killed(BaseException):
    """The process is gone."""


def job(folder: Path, out: str, changes: Mapping[str, object] | None = None, seed: int = 1, **more: Any) -> Run:
    return train(
        folder / out, tiny.write_text(folder, seed=seed), overrides=tiny.overrides({**JOB, **(changes or {})}), **more
    )


def kept(run: Run) -> dict[str, bytes]:
    """Every byte of a finished run but its metrics, which know the clock."""
    files = [place for place in run.path.rglob("*") if place.is_file() and place.name != "metrics.jsonl"]
    return {place.relative_to(run.path).as_posix(): place.read_bytes() for place in files}


def reports(run: Run) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in record.items() if not name.startswith(("tokens", "seconds"))}
        for record in run.metrics()
    ]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return job(tmp_path_factory.mktemp("untouched"), "run")


def killer(kind: type[Event], step: int) -> Callable[[Event], None]:
    """A listener at whom the process dies."""

    def listen(event: Event) -> None:
        if isinstance(event, kind) and event.step == step:
            raise Killed

    return listen


def test_a_run_killed_again_and_again_is_byte_for_byte_that_of_one_left_alone(tmp_path: Path, untouched: Run) -> None:
    # Before the first checkpoint; after a report that will come again; between a new best and the save behind it.
    for kind, step, left in (
        (StepTaken, 3, 0),
        (Saved, 8, 8),
        (StepTaken, 9, 8),
        (Validated, 12, 8),
        (StepTaken, 15, 12),
    ):
        with pytest.raises(Killed):
            job(tmp_path, "run", resume=True, tell=killer(kind, step))
        newest = Run.open(tmp_path / "run").newest()
        assert (newest.state["step"] if newest else 0) == left
    notes: list[str] = []
    run = job(tmp_path, "run", resume=True, note=notes.append)
    assert "resumed at step 12 of 17" in notes
    assert kept(run) == kept(untouched)
    assert reports(run) == reports(untouched)
    assert [record["step"] for record in reports(run)] == [3, 6, 6, 9, 12, 12, 15, 17, 17]
    assert [folder.name for folder in run.checkpoints()] == ["00000016", "00000017"]


def test_the_same_command_gives_the_same_bytes(tmp_path: Path, untouched: Run) -> None:
    run = job(tmp_path, "run")
    assert kept(run) == kept(untouched)
    assert reports(run) == reports(untouched)


def test_a_resumption_where_there_is_no_run_begins_one(tmp_path: Path, untouched: Run) -> None:
    (tmp_path / "run").mkdir()
    assert kept(job(tmp_path, "run", resume=True)) == kept(untouched)


def state_of(folder: Path) -> dict[str, bytes]:
    return {place.name: place.read_bytes() for place in folder.rglob("*") if place.is_file()}


@pytest.mark.parametrize(
    ("changes", "more", "error", "message"),
    [
        ({}, {"seed": 2}, RunError, r"run was begun on other text; resume it with the files it was begun with"),
        (
            {"model.d_ff": 32},
            {},
            ConfigError,
            r"model\.d_ff is 24 in the run .*run, and cannot become 32 in the middle",
        ),
        ({"data.batch_tokens": 99}, {}, ConfigError, r"data\.batch_tokens is 220 .* begin a new run"),
        ({"training.seed": 2}, {}, ConfigError, r"training\.seed is 1 .* begin a new run"),
        ({"training.minutes": 3}, {}, ConfigError, r"training\.minutes is None .* cannot become 3\.0"),
        ({}, {"config_file": Path("missing.toml")}, ConfigError, r"missing\.toml cannot be read"),
        ({"training.stpes": 2}, {}, ConfigError, r"did you mean 'steps'\?"),
    ],
)
def test_what_cannot_change_in_the_middle_of_a_run_is_refused_and_nothing_is_written(
    tmp_path: Path, changes: dict[str, object], more: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(Killed):
        job(tmp_path, "run", tell=killer(Saved, 4))
    before = state_of(tmp_path / "run")
    with pytest.raises(error, match=message):
        job(tmp_path, "run", changes, resume=True, **more)
    assert state_of(tmp_path / "run") == before


def test_text_of_unequal_lengths_is_refused_on_resumption_too(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        job(tmp_path, "run", tell=killer(Saved, 4))
    files = tiny.write_text(tmp_path)
    assert files.source is not None
    files.source.write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(TextError, match=r"has 2 lines and .* has 60"):
        train(tmp_path / "run", TextFiles(files.source, files.target), resume=True)


def test_training_settings_may_change_and_are_written_down(tmp_path: Path) -> None:
    job(tmp_path, "run", {"training.steps": 8})
    changes = {"training.steps": 10, "training.keep": 1, "training.learning_rate": 0.001, "decoding.beam": 2}
    events: list[Event] = []
    run = job(tmp_path, "run", changes, resume=True, tell=events.append)
    assert [event.step for event in events if isinstance(event, StepTaken)] == [9, 10]
    assert [folder.name for folder in run.checkpoints()] == ["00000010"]
    settings = Run.open(run.path).config
    assert settings == run.config
    assert (settings.training.steps, settings.training.learning_rate, settings.decoding.beam) == (10, 0.001, 2)


def test_what_a_measurement_chose_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ = {"training.precision": "auto", "training.minutes": 2, "training.warmup": 400}
    asked: list[object] = []

    def measured(_config: object, _examples: object, _device: object, names: tuple[str, ...]) -> dict[str, float]:
        asked.append(names)
        return {name: 10.0 if name == "float32" else 20.0 for name in names}

    monkeypatch.setattr("pellucid.training.pace.plausible", lambda *given: given[-1])
    monkeypatch.setattr("pellucid.training.pace.seconds_per_step", measured)
    with pytest.raises(Killed):
        job(tmp_path, "run", open_, tell=killer(Saved, 4))
    chosen = Run.open(tmp_path / "run").config.training
    assert (chosen.precision, chosen.steps, chosen.warmup, chosen.minutes) == ("float32", 12, 2, None)
    run = job(tmp_path, "run", open_, resume=True)
    assert asked == [("float32", "bfloat16")]
    assert Run.open(run.path).config.training == run.config.training == chosen
    assert [folder.name for folder in run.checkpoints()] == ["00000008", "00000012"]


def test_the_same_file_of_settings_resumes_a_run_and_another_network_in_it_does_not(tmp_path: Path) -> None:
    files, place = tiny.write_text(tmp_path), tmp_path / "settings.toml"
    # A vocabulary larger than the text can fill: the run has fewer pieces than were asked for, and goes on all the same.
    changes = {**JOB, "model.source_vocab_size": 900, "model.target_vocab_size": 900}
    settings = RunConfig.from_toml("", tiny.overrides(changes))
    place.write_text(settings.to_toml(), encoding="utf-8")
    with pytest.raises(Killed):
        train(tmp_path / "run", files, config_file=place, tell=killer(Saved, 4))
    assert Run.open(tmp_path / "run").config.model.source_vocab_size < 900
    place.write_text(settings.replace(model=settings.model.replace(d_ff=32)).to_toml(), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"model\.d_ff is 24 in the run"):
        train(tmp_path / "run", files, config_file=place, resume=True)
    place.write_text(settings.to_toml(), encoding="utf-8")
    run = train(tmp_path / "run", files, config_file=place, resume=True)
    assert [folder.name for folder in run.checkpoints()] == ["00000016", "00000017"]


# --- the command, in processes of its own -------------------------------------------------------------------

COMMAND = {
    **JOB,
    "training.steps": 240,
    "training.log_every": 1,
    "training.validate_every": 50,
    "training.save_every": 7,
    "training.keep": 2,
}


def command(folder: Path, out: str) -> list[str]:
    files = tiny.write_text(folder)
    given = [part for setting in tiny.overrides(COMMAND) for part in ("--set", setting)]
    text = ["--source", str(files.source), "--target", str(files.target), "--out", str(folder / out)]
    return [sys.executable, "-m", "pellucid", "train", *text, "--device", "cpu", "--resume", *given]


def begin(folder: Path, out: str) -> subprocess.Popen[str]:
    alone = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    return subprocess.Popen(
        command(folder, out), env={**alone, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )


def finished(folder: Path, out: str) -> tuple[Run, str]:
    process = begin(folder, out)
    _, said = process.communicate()
    assert process.returncode == 0, said
    return Run.open(folder / out), said


def read_until(process: subprocess.Popen[str], sign: str, times: int) -> list[str]:
    """What a process says, to the line that has the sign so many times, or to its end."""
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        times -= sign in line
        if times == 0:
            break
    return said


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finished(tmp_path_factory.mktemp("reference"), "run")[0]


def saved(out: Path) -> int:
    return max((int(folder.name) for folder in Run.open(out).checkpoints()), default=0) if Run.exists(out) else 0


@pytest.mark.slow
def test_ten_kills_lose_nothing_older_than_the_last_save(tmp_path: Path, reference: Run) -> None:
    draw, out, drafts = random.Random(29), tmp_path / "run", 0
    # While text is read, while the vocabulary is written, before the first checkpoint; then wherever chance has it,
    # and every other time once a draft is seen, which is in the middle of a save.
    moments = [("read", 1), ("learned", 1), ("step", draw.randint(1, 6))]
    moments += [("step", draw.randint(1, 20)) for _ in range(7)]
    for number, (sign, times) in enumerate(moments):
        before = saved(out)
        process = begin(tmp_path, "run")
        said = read_until(process, f"{sign} ", times)
        while number % 2 and process.poll() is None:
            if any((out / "checkpoints").glob("*.tmp")):
                drafts += 1
                break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "".join(said)
        steps = [int(line.split("step ")[1].split(" of")[0]) for line in said if "] step " in line and " of " in line]
        # A line of step n is written before that step is saved, and after the step before was.
        due = max((step - 1) // 7 * 7 for step in [*steps, 1])
        assert saved(out) >= max(before, due)
    assert drafts
    run, said_last = finished(tmp_path, "run")
    assert "resumed at step" in said_last
    assert kept(run) == kept(reference)
    assert reports(run) == reports(reference)
    assert not any(place.name.endswith(".tmp") for place in run.path.rglob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_by_a_signal_it_saves_and_ends_well(tmp_path: Path, reference: Run, number: signal.Signals) -> None:
    process = begin(tmp_path, "run")
    said = read_until(process, "step ", 11)
    process.send_signal(number)
    _, rest = process.communicate()
    assert process.returncode == 0, "".join(said) + rest
    assert "stopped at step" in rest
    assert "--resume goes on" in rest
    assert "Traceback" not in rest
    step = saved(tmp_path / "run")
    assert f"stopped at step {step};" in rest
    run, again = finished(tmp_path, "run")
    assert f"resumed at step {step} of 240" in again
    assert reports(run) == reports(reference)
    assert kept(run) == kept(reference)
