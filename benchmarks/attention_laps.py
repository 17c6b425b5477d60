"""What the ways of `attention_ways.py` cost: laps of all in turn, how far their results differ, and the memory of one."""

import ctypes
import gc
import math
import random
import re
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.utils import counters

from attention_ways import DENSE, SINGLE, WAYS, Case, Forward, Inputs, UnsupportedError
from pellucid.errors import PellucidError

PASSES = ("forward", "forward+backward")
SLOW = 3.0  # seconds: a call that takes longer is not made again just to warm up
LEAST = 0.005  # seconds of a lap; quick calls are made so often in a row
TROUBLES = (UnsupportedError, PellucidError, RuntimeError)


@dataclass(frozen=True)
class Pace:
    """How many laps at most, the seconds that those of one way may take in one table, and whether backward too."""

    laps: int
    budget: float
    backward: bool


@dataclass
class Row:
    """What one way showed in one table.

    Attributes:
        seconds: of each lap.
        laps: how many more it is given.
        repeats: calls in each lap.
        apart: the largest difference from the reference.
        peak: MB; None where it was not measured.
        trouble: why it has no figures.
    """

    seconds: list[float] = field(default_factory=list)
    laps: int = 0
    repeats: int = 1
    apart: float = 0.0
    peak: float | None = None
    trouble: str = ""


Table = dict[str, Row]


def call(forward: Forward, inputs: Inputs, pull: Tensor | None) -> list[Tensor]:
    """The result once; with a gradient `pull` of it, those of queries, keys and values too."""
    if pull is None:
        with torch.no_grad():
            return [forward(*inputs)]
    asked = [tensor.detach().requires_grad_() for tensor in inputs]
    output = forward(*asked)
    return [output.detach(), *torch.autograd.grad(output, asked, pull)]


def seconds(forward: Forward, inputs: Inputs, pull: Tensor | None, repeats: int = 1) -> float:
    """How long one call takes, as the mean of so many in a row."""
    began = time.perf_counter()
    for _ in range(repeats):
        call(forward, inputs, pull)
    return (time.perf_counter() - began) / repeats


def difference(expected: list[Tensor], got: list[Tensor], rows: int | None) -> float:
    """The largest difference of result (its first rows) and of gradients, over the largest number of its kind."""
    found = 0.0
    for place, (one, two) in enumerate(zip(expected, got, strict=True)):
        shown = slice(None) if place else slice(rows)
        # Where only one key is seen, gradients by queries and keys are rounding alone, which is small beside the values'.
        kind = expected[1:] if place else expected[:1]
        worst = (two[:, :, shown] - one[:, :, shown]).abs().max() / max(float(each.abs().max()) for each in kind)
        found = max(found, math.inf if worst.isnan() else worst.item())
    return found


def compilations() -> int:
    """Graphs that torch.compile has made in this process."""
    return counters["stats"]["unique_graphs"]


def prepared(case: Case, ways: tuple[str, ...]) -> dict[str, Forward | str]:
    """Each way that fits the case as a function, or why it cannot be one."""
    ready: dict[str, Forward | str] = {}
    for name in ways:
        if WAYS[name].fits(case):
            try:
                ready[name] = WAYS[name].prepare(case)
            except TROUBLES as error:
                ready[name] = reason(error)
    return ready


def reason(error: Exception) -> str:
    """What went wrong, on one line."""
    return " ".join(str(error).split())[:160] or type(error).__name__


def first_call(row: Row, forward: Forward, inputs: Inputs, pull: Tensor | None, pace: Pace) -> list[Tensor]:
    """What it computes; the row learns how many laps fit in the budget."""
    compiled, began = compilations(), time.perf_counter()
    results = call(forward, inputs, pull)
    took = time.perf_counter() - began
    steady = compiled == compilations()
    if steady and took > pace.budget:
        row.seconds.append(took)
        return results
    if not steady or took < SLOW:
        took = seconds(forward, inputs, pull)
    row.laps = min(pace.laps, max(1, int(pace.budget / took)))
    row.repeats = max(1, int(LEAST / took))
    return results


def first_calls(ready: dict[str, Forward | str], case: Case, pull: Tensor | None, pace: Pace) -> Table:
    """Call each once, and compare what they compute."""
    inputs, table = case.tensors()[0], {name: Row() for name in ready}
    expected: list[Tensor] | None = None
    for name in sorted(ready, key=[DENSE, *SINGLE, *WAYS].index):
        forward, row, way = ready[name], table[name], WAYS[name]
        if isinstance(forward, str):
            row.trouble = forward
        elif pull is not None and not way.backward:
            row.trouble = "it has no backward pass on a CPU"
        else:
            try:
                results = first_call(row, forward, inputs, pull, pace)
            except TROUBLES as error:
                row.trouble = reason(error)
                continue
            expected = expected or results
            row.apart = difference(expected, results, None if way.padded_rows else case.real)
    return table


def contest(case: Case, ways: tuple[str, ...], pace: Pace) -> dict[str, Table]:
    """Time all ways in turn, in another order at each lap: a table for each pass."""
    torch._dynamo.reset()  # or the kernels compiled for other cases would count against torch's limit of recompilations
    ready, (inputs, pull), tables = prepared(case, ways), case.tensors(), dict[str, Table]()
    order, shuffle = list(ready), random.Random(0).shuffle
    for name in PASSES[: 1 + pace.backward]:
        gradient = None if name == "forward" else pull
        table = tables[name] = first_calls(ready, case, gradient, pace)
        for turn in range(pace.laps):
            shuffle(order)
            for way in order:
                forward, row = ready[way], table[way]
                if turn < row.laps and not isinstance(forward, str):
                    row.seconds.append(seconds(forward, inputs, gradient, row.repeats))
    return tables


def ratio(one: Row, two: Row) -> float:
    """The median of one's seconds over the other's, lap by lap."""
    return statistics.median(first / second for first, second in zip(one.seconds, two.seconds, strict=False))


def best(table: Table) -> str | None:
    """The fastest single backend of ours."""
    timed = {name: statistics.median(table[name].seconds) for name in SINGLE if name in table and table[name].seconds}
    return min(timed, key=lambda name: timed[name]) if timed else None


def peak(forward: Forward, inputs: Inputs, pull: Tensor | None) -> float | None:
    """MB of resident memory that a call adds at its highest; None where Linux does not tell.

    The call is made once before, so that code it loads and kernels it compiles are not counted, unless it takes more
    than a few seconds and compiles nothing: then the first is the one that is measured.
    """
    mark = Path("/proc/self/clear_refs")
    if not mark.exists():
        return None
    for _ in range(2):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # or freed memory that is still resident would be taken up again unseen
        mark.write_text("5", encoding="ascii")  # sets the high-water mark to what is resident now
        start, compiled = _resident("VmRSS"), compilations()
        took = seconds(forward, inputs, pull)
        highest = _resident("VmHWM") - start
        if took > SLOW and compiled == compilations():
            break
    return highest


def _resident(name: str) -> float:
    """A line of this process's status, in MB."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else math.nan
