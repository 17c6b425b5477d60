"""Two processes under torchrun take the steps that one takes: the same losses, gradients and weights, to rounding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny
from pellucid.run import Run

SETTINGS = {
    "model.dropout": 0.0,
    # Some batches have one row, so that the second process has none of its own; others have an odd number.
    "data.batch_tokens": 30,
    "training.precision": "float64",
    "training.accumulate": 2,
    "training.steps": 24,
    "training.log_every": 5,
    "training.validate_every": 10,
    "training.validation_lines": 2,
    "training.save_every": 8,
}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


def command(folder: Path, out: str, steps: int = 24, *more: str) -> list[str]:
    files = tiny.write_text(folder)
    given = [part for one in tiny.overrides({**SETTINGS, "training.steps": steps}) for part in ("--set", one)]
    text = ["--source", str(files.source), "--target", str(files.target), "--out", str(folder / out)]
    return ["-m", "pellucid", "train", *text, "--device", "cpu", *given, *more]


def done(arguments: list[str]) -> str:
    """Runs Python with these arguments to a good end, and hands back what it said."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stderr


def figures(run: Run) -> list[tuple[str, float, float, float]]:
    return [
        (record["kind"], record["step"], record["loss"], record.get("gradient_norm", record.get("chrf")))
        for record in run.metrics()
    ]


def assert_alike(one: Run, two: Run) -> None:
    alone, shared = figures(one), figures(two)
    assert [line[:2] for line in shared] == [line[:2] for line in alone]
    for ours, theirs in zip(shared, alone, strict=True):
        assert ours[2:] == pytest.approx(theirs[2:], rel=1e-9)
    paths = [folder.name for folder in one.checkpoints()]
    assert [folder.name for folder in two.checkpoints()] == paths
    for name in ("weights", "optimizer"):
        found, wanted = (load_file(run.checkpoints()[-1] / f"{name}.safetensors") for run in (two, one))
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_two_processes_give_what_one_gives_also_after_a_resumption(tmp_path: Path) -> None:
    done(command(tmp_path, "one"))
    one = Run.open(tmp_path / "one")
    said = done([*TORCHRUN, *command(tmp_path, "two")])
    assert said.count("training 0.0 M parameters") == 1, "the first process speaks for all"
    assert_alike(one, Run.open(tmp_path / "two"))
    assert [line[1] for line in figures(one)] == [5, 10, 10, 15, 20, 20, 24, 24]

    # Half of the way, then the rest, with a setting that every process must hear of.
    done([*TORCHRUN, *command(tmp_path, "halves", 13)])
    assert Run.open(tmp_path / "halves").config.training.steps == 13
    said = done([*TORCHRUN, *command(tmp_path, "halves", 24, "--resume")])
    assert said.count("resumed at step 13 of 24") == 1
    halves = Run.open(tmp_path / "halves")
    wanted = load_file(one.checkpoints()[-1] / "weights.safetensors")
    found = load_file(halves.checkpoints()[-1] / "weights.safetensors")
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_a_slip_ends_all_processes_with_one_sentence_and_no_run(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, *TORCHRUN, *command(tmp_path, "run"), "--set", "training.stpes=3"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert process.returncode != 0
    assert "pellucid: training: unknown setting 'stpes'; did you mean 'steps'?" in process.stderr
    assert not (tmp_path / "run").exists()
