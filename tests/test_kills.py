"""A training that is killed, stopped or shared out ends as one that was left alone: the same bits, by the real command."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny_run

SETTINGS = [
    "model.source_vocab_size=340",
    "model.target_vocab_size=340",
    "model.d_model=16",
    "model.num_heads=2",
    "model.d_ff=24",
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "data.batch_tokens=300",
    "training.steps=600",
    "training.warmup=20",
    "training.accumulate=2",
    "training.save_every=25",
    "training.validate_every=150",
    "training.validation_lines=3",
    "training.log_every=11",
    "training.precision=float32",
    "decoding.length_extra=1",
]
KILLS = 10


def command(folder: Path, out: str, *more: str) -> list[str]:
    given = [part for setting in SETTINGS for part in ("--set", setting)]
    place = ["--pairs", str(folder / "pairs.tsv"), "--out", str(folder / out), "--device", "cpu"]
    return [sys.executable, "-m", "pellucid", "train", *place, *given, *more]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def train(folder: Path, out: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, out, *more), env=environment(), capture_output=True, text=True, check=True, timeout=300
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("kills")
    rows = [f"{source}\t{target}\n" for source, target in tiny_run.pairs(83)]
    (place / "pairs.tsv").write_text("".join(rows), encoding="utf-8")
    train(place, "whole")
    return place


def assert_same(whole: Path, other: Path) -> None:
    """Weights, best weights, and the optimiser's memory to the bit; every report of the training but the clock's."""
    for name in ("best", "checkpoints/00000600/weights", "checkpoints/00000600/optimizer"):
        ours, theirs = load_file(whole / f"{name}.safetensors"), load_file(other / f"{name}.safetensors")
        assert ours.keys() == theirs.keys()
        assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    assert (whole / "best.safetensors").read_bytes() == (other / "best.safetensors").read_bytes()
    assert reports(whole) == reports(other)


def reports(run: Path) -> list[dict[str, object]]:
    """The lines of metrics.jsonl, without what depends on the clock."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    return [
        {name: value for name, value in json.loads(line).items() if not name.startswith(("tokens", "seconds"))}
        for line in lines
    ]


@pytest.mark.slow
def test_ten_kills_change_nothing(folder: Path) -> None:
    draw = random.Random(11)
    killed = 0
    longest = 1.0
    seen = 0
    for _ in range(KILLS):
        began = time.monotonic()
        process = subprocess.Popen(
            command(folder, "killed", "--resume"), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            # The first kills may fall before the training has begun; later ones are let in a little longer.
            process.wait(timeout=longest * draw.uniform(0.3, 1.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
        longest = min(longest * 1.6, 14.0)
        assert time.monotonic() >= began
        steps = [int(place.name) for place in (folder / "killed" / "checkpoints").glob("*") if place.name.isdigit()]
        assert max(steps, default=0) >= seen, "a checkpoint that was there is gone"
        seen = max(steps, default=0)
    assert killed >= KILLS // 2, "the run was over before it could be killed"
    train(folder, "killed", "--resume")
    assert_same(folder / "whole", folder / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_stop_saves_and_ends_well(folder: Path, number: signal.Signals) -> None:
    out = f"stopped-{number.name}"
    said: list[str] = []
    with subprocess.Popen(command(folder, out), env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if "step 11 of" in line:
                process.send_signal(number)
        assert process.wait(timeout=60) == 0
    assert any("all is saved" in line for line in said), "".join(said)
    train(folder, out, "--resume")
    assert_same(folder / "whole", folder / out)


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(folder: Path) -> None:
    plain = ["--set", "model.dropout=0.0", "--set", "training.precision=float64", "--set", "training.steps=60"]
    train(folder, "one", *plain)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "pellucid"]
    shared = [sys.executable, *launcher, *command(folder, "two", *plain)[3:]]
    subprocess.run(shared, env=environment(), capture_output=True, text=True, check=True, timeout=300)
    one, two = (load_file(folder / name / "checkpoints/00000060/weights.safetensors") for name in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-9)
