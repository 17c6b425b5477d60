"""A run on disk: its layout, what a kill leaves of it at any moment, and every way in which it can be damaged."""

import os
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import pellucid
import tiny
from pellucid.config import DataConfig, RunConfig
from pellucid.disk import write_atomically
from pellucid.errors import PellucidError, RunError, TokenizerError
from pellucid.model import Transformer
from pellucid.run import FORMAT, Checkpoint, Run, load_weights
from pellucid.text.tokenizer import Tokenizer

CORPUS = "sha256:0123"


@cache
def tokenizer(language: int = 0) -> Tokenizer:
    return Tokenizer.learn(tiny.lines(30)[language], vocab_size=300)


def settings(keep: int = 3, shared: bool = True) -> RunConfig:
    return RunConfig().replace(
        data=DataConfig(shared_vocabulary=shared),
        model=RunConfig().model.replace(tie_embeddings="decoder"),
        training=RunConfig().training.replace(keep=keep),
    )


def begin(path: Path, keep: int = 3) -> Run:
    return Run.create(path, settings(keep), tokenizer(), tokenizer(), CORPUS)


def checkpoint(step: int) -> Checkpoint:
    """Tensors and facts that tell which step they are of."""
    memory = {"a:step": torch.tensor(float(step)), "a:exp_avg": torch.full((2, 3), step / 7)}
    facts = {"step": step, "best_value": float("nan"), "window_loss": step / 3}
    return Checkpoint({"a": torch.full((2, 3), float(step), dtype=torch.float64)}, memory, facts)


def assert_is_of(found: Checkpoint | None, step: int) -> None:
    assert found is not None
    wanted = checkpoint(step)
    assert tiny.equal(found.weights, wanted.weights)
    assert found.weights["a"].dtype == torch.float64
    assert tiny.equal(found.optimizer, wanted.optimizer)
    assert str(found.state) == str(wanted.state)  # NaN equals nothing, but reads "nan"


def tree(path: Path) -> list[str]:
    return sorted(place.relative_to(path).as_posix() for place in path.rglob("*") if place.is_file())


# --- what lies where ----------------------------------------------------------------------------------------


def test_the_layout_is_the_one_that_is_written_down(tmp_path: Path) -> None:
    run = begin(tmp_path / "deep" / "run")
    run.save(checkpoint(5))
    run.save_best(checkpoint(5).weights, {"step": 5})
    run.log({"kind": "step", "step": 5})
    assert tree(run.path) == [
        "best.safetensors",
        "checkpoints/00000005/optimizer.safetensors",
        "checkpoints/00000005/state.toml",
        "checkpoints/00000005/weights.safetensors",
        "metrics.jsonl",
        "run.toml",
        "tokenizer.model",
    ]
    table = tomllib.loads((run.path / "run.toml").read_text(encoding="utf-8"))
    assert (table["format"], table["pellucid"], table["corpus"]) == (FORMAT, pellucid.__version__, CORPUS)
    assert table["training"]["keep"] == 3


def test_a_run_that_is_opened_is_the_one_that_was_written(tmp_path: Path) -> None:
    run = begin(tmp_path)
    assert Run.exists(tmp_path)
    assert Run.open(tmp_path) == run
    changed = run.with_config(settings(keep=9))
    assert Run.open(tmp_path) == run
    changed.write_settings()
    assert Run.open(tmp_path) == changed != run


@pytest.mark.parametrize("language", [0, 1])
def test_vocabularies_that_are_not_shared_have_a_file_each_even_where_they_are_equal(
    tmp_path: Path, language: int
) -> None:
    run = Run.create(tmp_path, settings(shared=False), tokenizer(), tokenizer(language), CORPUS)
    assert tree(tmp_path) == ["run.toml", "source.model", "target.model"]
    assert Run.open(tmp_path) == run
    assert (run.source_tokenizer == run.target_tokenizer) == (language == 0)


def test_files_of_weights_can_be_read_by_whoever_can_read_the_others(tmp_path: Path) -> None:
    run = begin(tmp_path)
    folder = run.save(checkpoint(5))
    run.save_best(checkpoint(5).weights, {})
    modes = {path: stat.S_IMODE((tmp_path / path).stat().st_mode) for path in tree(tmp_path)}
    assert set(modes.values()) == {modes["run.toml"]}
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE((tmp_path / "checkpoints").stat().st_mode)


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_checkpoints_stay(tmp_path: Path, keep: int) -> None:
    run = begin(tmp_path, keep)
    assert run.newest() is None
    for step in (5, 20, 100, 110, 100_000_000, 2_000_000_000):
        run.save(checkpoint(step))
    kept = [int(folder.name) for folder in run.checkpoints()]
    assert kept == [110, 100_000_000, 2_000_000_000][-keep:]
    assert sorted(os.listdir(tmp_path / "checkpoints")) == sorted(folder.name for folder in run.checkpoints())
    assert_is_of(run.newest(), 2_000_000_000)


def test_a_checkpoint_of_the_same_step_takes_the_place_of_the_old(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.save(Checkpoint({"a": torch.zeros(1)}, {}, {"step": 5}))
    run.save(checkpoint(5))
    assert_is_of(run.newest(), 5)
    assert os.listdir(tmp_path / "checkpoints") == ["00000005"]


def test_the_best_weights_carry_the_facts_of_their_validation(tmp_path: Path) -> None:
    run = begin(tmp_path)
    module = torch.nn.Linear(3, 2, bias=False)
    run.save_best({"weight": torch.full((2, 3), 7.0)}, {"step": 40, "chrf": 12.5})
    assert load_weights(module, run.weights_file()) == {"step": 40, "chrf": 12.5}
    assert module.weight.tolist() == [[7.0] * 3] * 2
    assert load_weights(module, {"weight": torch.ones(2, 3)}) == {}
    assert module.weight.tolist() == [[1.0] * 3] * 2


def test_weights_to_translate_with_are_the_best_or_else_the_newest(tmp_path: Path) -> None:
    run = begin(tmp_path)
    with pytest.raises(RunError, match=r"holds no weights yet; train it with --resume until"):
        run.weights_file()
    run.save(checkpoint(5))
    run.save(checkpoint(10))
    assert run.weights_file() == tmp_path / "checkpoints" / "00000010" / "weights.safetensors"
    run.save_best(checkpoint(5).weights, {})
    assert run.weights_file() == tmp_path / "best.safetensors"


@pytest.mark.parametrize(("tie", "matrices"), [("none", 3), ("decoder", 2), ("all", 1)])
def test_a_tied_matrix_is_stored_once_and_comes_back_tied(tmp_path: Path, tie: Any, matrices: int) -> None:
    sizes = tiny.config().model.replace(target_vocab_size=23, tie_embeddings=tie)
    model, other = Transformer(sizes), Transformer(sizes)
    run = begin(tmp_path)
    run.save_best(dict(model.named_parameters()), {})
    with safe_open(run.weights_file(), framework="pt") as file:
        stored = [name for name in file.keys() if file.get_slice(name).get_shape() == [23, 14]]  # noqa: SIM118
    assert len(stored) == matrices
    load_weights(other, run.weights_file())
    assert tiny.equal(dict(model.state_dict()), dict(other.state_dict()))
    assert (other.head.weight is other.target_embedding.weight) == (tie != "none")
    assert (other.source_embedding.weight is other.target_embedding.weight) == (tie == "all")


# --- metrics ------------------------------------------------------------------------------------------------


def test_metrics_are_read_without_a_last_line_that_was_torn(tmp_path: Path) -> None:
    run = begin(tmp_path)
    assert run.metrics() == []
    records = [{"kind": "step", "step": step, "loss": step / 7} for step in (5, 10, 15)]
    for record in records:
        run.log(record)
    assert run.metrics() == records
    place = tmp_path / "metrics.jsonl"
    whole = place.read_bytes()
    for cut in range(1, 1 + len(whole) - whole[:-1].rindex(b"\n")):
        place.write_bytes(whole[: len(whole) - cut])
        assert run.metrics() == (records if cut == 1 else records[:2])


def test_reports_of_steps_to_be_taken_again_are_forgotten(tmp_path: Path) -> None:
    run = begin(tmp_path)
    for step in (5, 10, 15, 20):
        run.log({"kind": "step", "step": step})
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "st')
    run.forget_metrics_after(10)
    assert [record["step"] for record in run.metrics()] == [5, 10]
    run.log({"kind": "step", "step": 15})
    assert [record["step"] for record in run.metrics()] == [5, 10, 15]


# --- a kill at any moment -----------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: no handler of errors in between may catch it."""


@contextmanager
def killed_at(moment: int) -> Iterator[list[str]]:
    """Ends what runs inside before it does its n-th operation on the disk; what it did stands in the list."""
    done: list[str] = []

    def interrupted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def operation(*args: Any, **more: Any) -> Any:
            if len(done) + 1 == moment:
                raise Killed(name)
            done.append(name)
            return real(*args, **more)

        return operation

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir"):
            patch.setattr(os, name, interrupted(name))
        yield done


def every_moment(work: Callable[[], object], prepare: Callable[[], object]) -> Iterator[int]:
    """Prepares, does some of the work, and lets the caller look, once for each moment at which it may be killed."""
    for moment in range(1, 99):
        prepare()
        try:
            with killed_at(moment):
                work()
        except Killed:
            yield moment
        else:
            assert moment > 3, "there was nothing to interrupt"
            return
    raise AssertionError("the work never ended")


def test_a_save_that_is_killed_at_any_moment_leaves_the_old_checkpoint_or_the_new(tmp_path: Path) -> None:
    place = tmp_path / "run"
    begin(place, keep=1)
    steps = iter(range(10, 9999))
    now = next(steps)
    Run.open(place).save(checkpoint(now))
    seen = set()

    def save() -> None:
        Run.open(place).save(checkpoint(now + 1))

    for _ in every_moment(save, lambda: None):
        run = Run.open(place)
        folders = run.checkpoints()
        newest = int(folders[-1].name)
        assert newest in (now, now + 1)
        for folder in folders:
            assert sorted(os.listdir(folder)) == ["optimizer.safetensors", "state.toml", "weights.safetensors"]
        assert_is_of(run.newest(), newest)
        seen.add(newest - now)
        now = newest
        run.clear_drafts()
        assert all(name.isdecimal() for name in os.listdir(place / "checkpoints"))
    assert seen == {0, 1}


def test_a_save_over_one_of_the_same_step_leaves_no_half_of_either(tmp_path: Path) -> None:
    run = begin(tmp_path)

    def prepare() -> None:
        run.clear_drafts()
        for step in (5, 10):
            run.save(checkpoint(step))

    for _ in every_moment(lambda: run.save(checkpoint(10)), prepare):
        for folder in run.checkpoints():
            assert sorted(os.listdir(folder)) == ["optimizer.safetensors", "state.toml", "weights.safetensors"]
        assert_is_of(run.newest(), int(run.checkpoints()[-1].name))


def test_best_weights_are_the_old_or_the_new_ones(tmp_path: Path) -> None:
    run = begin(tmp_path)
    module, seen = torch.nn.Linear(3, 2, bias=False), set()

    def best(value: float) -> None:
        run.clear_drafts()
        run.save_best({"weight": torch.full((2, 3), value)}, {"value": value})

    for _ in every_moment(lambda: best(2.0), lambda: best(1.0)):
        facts = load_weights(module, run.weights_file())
        assert module.weight.tolist() == [[facts["value"]] * 3] * 2
        seen.add(facts["value"])
    assert seen == {1.0, 2.0}
    run.clear_drafts()
    assert tree(tmp_path) == ["best.safetensors", "run.toml", "tokenizer.model"]


def test_a_run_killed_while_it_began_can_be_begun_again(tmp_path: Path) -> None:
    places = iter(tmp_path / str(number) for number in range(99))
    place = next(places)

    def prepare() -> None:
        nonlocal place
        place = next(places)

    for _ in every_moment(lambda: begin(place), prepare):
        if not Run.exists(place):
            Run.require_free(place)
            begin(place)
        assert Run.open(place).corpus == CORPUS
        Run.open(place).clear_drafts()
        assert tree(place) == ["run.toml", "tokenizer.model"]


def test_a_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    place, seen = tmp_path / "file", set()
    for _ in every_moment(lambda: write_atomically(place, b"new"), lambda: place.write_bytes(b"old")):
        seen.add(place.read_bytes())
    assert seen == {b"old", b"new"}


def test_a_look_at_a_run_leaves_the_draft_of_whoever_is_writing(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.save(checkpoint(5))
    draft = tmp_path / "checkpoints" / "00000010.tmp"
    draft.mkdir()
    (draft / "weights.safetensors").write_bytes(b"half")
    (tmp_path / "run.toml.tmp").write_bytes(b"format =")
    assert_is_of(Run.open(tmp_path).newest(), 5)
    assert [folder.name for folder in run.checkpoints()] == ["00000005"]
    assert draft.is_dir()
    run.clear_drafts()
    assert not any(place.name.endswith(".tmp") for place in tmp_path.rglob("*"))
    assert_is_of(Run.open(tmp_path).newest(), 5)


# --- what is refused ----------------------------------------------------------------------------------------


def test_a_run_begins_in_a_folder_of_its_own(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    with pytest.raises(RunError, match=r"run already holds a run; continue it with --resume, or choose another"):
        begin(run.path)
    (tmp_path / "thesis.txt").write_text("my life's work", encoding="utf-8")
    with pytest.raises(RunError, match=r"holds '(thesis\.txt|run)', which is no run's; choose an empty or a new"):
        begin(tmp_path)
    with pytest.raises(RunError, match=r"thesis\.txt is a file, but a run is a folder; choose another name"):
        begin(tmp_path / "thesis.txt")
    run.save(checkpoint(5))
    (run.path / "run.toml").unlink()
    with pytest.raises(RunError, match=r"holds 'checkpoints', which is no run's"):
        begin(run.path)
    assert sorted(os.listdir(tmp_path)) == ["run", "thesis.txt"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(tmp_path)

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for name, write in {
        "00000005": lambda: run.save(checkpoint(5)),
        "best.safetensors": lambda: run.save_best(checkpoint(5).weights, {}),
        "run.toml": run.write_settings,
    }.items():
        with pytest.raises(RunError, match=rf"{name} cannot be written \(No space left on device\); see to the disk"):
            write()
    monkeypatch.undo()
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(RunError, match=r"metrics\.jsonl cannot be written \(Is a directory\)"):
        run.log({"step": 1})
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot be written \(.+\); see to the disk"):
        begin(tmp_path / "file" / "run")


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        assert not Run.exists(place)
        with pytest.raises(RunError, match=r"holds no run \(no run\.toml\); give the folder that"):
            Run.open(place)


@pytest.mark.parametrize("version", [FORMAT + 1, "none"])
def test_a_format_of_another_version_is_refused(tmp_path: Path, version: object) -> None:
    run = begin(tmp_path)
    place = run.path / "run.toml"
    text = place.read_text(encoding="utf-8").replace(f"format = {FORMAT}\n", "")
    text = text if version == "none" else f"format = {version}\n{text}"
    place.write_text(text.replace(f'pellucid = "{pellucid.__version__}"', 'pellucid = "99.1"'), encoding="utf-8")
    with pytest.raises(RunError, match=rf"in format (\d+|None) by Pellucid 99\.1, .* reads format {FORMAT}; use"):
        Run.open(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"format = ", r"run\.toml cannot be read: .*; restore it from a copy"),
        (b"\xff\xfe", r"run\.toml cannot be read: .*; restore it from a copy"),
        (b"format = 1\n[training]\nstpes = 3", r"run\.toml: .*unknown setting 'stpes'; did you mean 'steps'\?"),
    ],
)
def test_settings_that_are_damaged_are_named(tmp_path: Path, text: bytes, message: str) -> None:
    begin(tmp_path)
    (tmp_path / "run.toml").write_bytes(text)
    with pytest.raises(RunError, match=message) as caught:
        Run.open(tmp_path)
    assert_one_sentence(caught.value)


def test_a_tokenizer_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"moon")
    with pytest.raises(TokenizerError, match=r"tokenizer\.model"):
        Run.open(tmp_path)
    (tmp_path / "tokenizer.model").unlink()
    with pytest.raises(TokenizerError, match=r"tokenizer\.model"):
        Run.open(tmp_path)


def assert_one_sentence(error: PellucidError) -> None:
    message = str(error)
    assert "\n" not in message
    assert not message.endswith(".")


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "cut short": lambda content: content[:-3],
    "empty": lambda content: b"",
    "noise": lambda content: bytes(range(200, 256)) * 9,
    "missing": lambda content: None,
}


# Facts that are cut short are whole TOML of fewer facts, which the trainer refuses.
@pytest.mark.parametrize(
    ("name", "how"),
    [(f"{part}.safetensors", how) for part in ("weights", "optimizer") for how in DAMAGE]
    + [("state.toml", "noise"), ("state.toml", "missing")],
)
def test_a_checkpoint_that_is_damaged_is_named_and_the_one_before_can_be_used(
    tmp_path: Path, name: str, how: str
) -> None:
    run = begin(tmp_path)
    run.save(checkpoint(5))
    folder = run.save(checkpoint(10))
    content = DAMAGE[how]((folder / name).read_bytes())
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(
        RunError, match=r"00000010 is damaged \(.+\); remove that folder to continue from the"
    ) as caught:
        run.newest()
    assert_one_sentence(caught.value)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert_is_of(run.newest(), 5)


@pytest.mark.parametrize("how", DAMAGE)
def test_weights_that_cannot_be_read_are_named(tmp_path: Path, how: str) -> None:
    run = begin(tmp_path)
    run.save_best({"weight": torch.ones(2, 3)}, {})
    place = run.weights_file()
    content = DAMAGE[how](place.read_bytes())
    place.unlink()
    if content is not None:
        place.write_bytes(content)
    with pytest.raises(RunError, match=r"best\.safetensors cannot be read \(.+\); restore the file from a") as caught:
        load_weights(torch.nn.Linear(3, 2, bias=False), place)
    assert_one_sentence(caught.value)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"weight": torch.ones(2, 3)}, r"the weights lack 'bias', unlike the model; use the settings they were"),
        (
            {"weight": torch.ones(2, 3), "bias": torch.ones(2), "moon": torch.ones(1)},
            r"the weights have 'moon', unlike the model; use",
        ),
        (
            {"weight": torch.ones(2, 3), "bias": torch.ones(5)},
            r"'bias' has shape \(5,\) in the weights, but \(2,\) in the model; use the settings",
        ),
    ],
)
def test_weights_of_another_model_are_refused_and_none_of_them_is_used(
    weights: dict[str, Tensor], message: str
) -> None:
    module = torch.nn.Linear(3, 2)
    before = tiny.copied(dict(module.named_parameters()))
    with pytest.raises(RunError, match=message):
        load_weights(module, weights)
    assert tiny.equal(dict(module.named_parameters()), before)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    place, trace = tmp_path / "weights.safetensors", tmp_path / "trace"
    # A pickle that would make the file `trace`, as torch.load would.
    place.write_bytes(b"cbuiltins\nopen\n(V" + str(trace).encode() + b"\nVw\ntR.")
    with pytest.raises(RunError, match="cannot be read"):
        load_weights(torch.nn.Linear(3, 2), place)
    assert not trace.exists()
