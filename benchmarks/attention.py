"""Masked attention on a CPU: `attend` beside torch's fused kernel, FlexAttention and the formula, time and memory.

    python benchmarks/attention.py [--masks window packed ...] [--lengths 512 2048 ...] [--no-backward] [--no-memory]
    python benchmarks/attention.py --targets

Prints a table for each mask, length and pass: median milliseconds of interleaved laps, peak memory, the median of the
paired ratios to `attend(..., backend="auto")` (above 1 is slower than ours), and the largest difference from the dense
kernel (from our fused backend where that was not asked for), relative to its largest number. A slow way gets as many
laps as fit in its budget; one whose first call is longer than that is timed by this call. The targets come last;
`--targets` runs only what they need. Exit status 1 where results disagree.

The peak is that of a fresh process: resident memory at its highest in a call less that at the start of the call, result
and gradients included, in MB of a million bytes. Code that is loaded and kernels that are compiled are not counted.
It is read from Linux's /proc and is missing elsewhere.
"""

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass

import torch

from attention_laps import PASSES, Pace, Table, best, contest, peak, ratio
from attention_ways import CASES, DENSE, FLEX, IS_CAUSAL, OURS, SINGLE, WAYS, Shape

LONG = 1024  # tokens: below this the fixed cost of a call outweighs its work
TARGET_LENGTHS = (16, 64, 256, 1024, 4096, 16384)
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "bfloat16": 5e-2}

Place = tuple[str, int, str]  # mask, length and pass
Tables = dict[Place, Table]
Figures = dict[Place, float]


@dataclass(frozen=True)
class Plan:
    """One mask at one length: the ways to time, and those whose memory to measure."""

    mask: str
    length: int
    ways: tuple[str, ...]
    weighed: tuple[str, ...]


def shape_of(given: argparse.Namespace, length: int) -> Shape:
    """The sizes asked for, at one length."""
    return Shape(length, given.batch, given.heads, given.head_dim, getattr(torch, given.dtype))


def weigh(plan: Plan, way: str, tables: dict[str, Table], given: argparse.Namespace) -> None:
    """Measure the peak of each pass that a way has times of, in a process of its own."""
    passes = [name for name, table in tables.items() if way in table and table[way].seconds]
    if not passes:
        return
    sizes = {"--heads": given.heads, "--head-dim": given.head_dim, "--batch": given.batch, "--dtype": given.dtype}
    asked = {"--measure": way, "--masks": plan.mask, "--lengths": plan.length, "--threads": given.threads, **sizes}
    words = [str(word) for pair in asked.items() for word in pair]
    words.append("--backward" if PASSES[1] in passes else "--no-backward")
    command = [sys.executable, __file__, *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        print(f"the memory of {way} was not measured: exit status {ended.returncode}, {ended.stderr.strip()[-160:]}")
        return
    for name, peak_mb in json.loads(ended.stdout.splitlines()[-1]).items():
        tables[name][way].peak = peak_mb


def measure(given: argparse.Namespace) -> None:
    """Print the peaks of one way, as JSON: what the process of its own does."""
    case = CASES[given.masks[0]](shape_of(given, given.lengths[0]))
    forward, (inputs, pull) = WAYS[given.measure].prepare(case), case.tensors()
    gradients = dict(zip(PASSES, (None, pull), strict=True))
    asked = PASSES[: 1 + given.backward]
    print(json.dumps({name: peak(forward, inputs, gradients[name]) for name in asked}))


def show(table: Table, title: str, tolerance: float) -> bool:
    """Print a table; whether all ways agree."""
    print(f"\n{title}\n{'':16}{'ms':>12}{'peak MB':>10}{'/ auto':>9}{'apart':>10}")
    auto, agree = table[OURS], True
    for name, row in table.items():
        if not row.seconds:
            print(f"{name:16}{'unsupported':>12}: {row.trouble}")
            continue
        weight = "" if row.peak is None else f"{row.peak:,.1f}"
        times = f"{ratio(row, auto):.2f}" if auto.seconds else ""
        wrong = "" if row.apart <= tolerance else "   WRONG"
        agree = agree and not wrong
        print(f"{name:16}{statistics.median(row.seconds) * 1e3:12,.3f}{weight:>10}{times:>9}{row.apart:10.1e}{wrong}")
    fastest = best(table)
    if fastest and auto.seconds:
        print(f"auto / best single backend ({fastest}): {ratio(auto, table[fastest]):.2f}")
    sys.stdout.flush()
    return agree


def quotients(tables: Tables, one: str, two: str) -> Figures:
    """One's time over the other's wherever both have times."""
    return {
        place: ratio(table[one], table[two])
        for place, table in tables.items()
        if all(name in table and table[name].seconds for name in (one, two))
    }


def among(figures: Figures, mask: str, lengths: tuple[int, ...], passes: tuple[str, ...] = PASSES) -> Figures:
    """Those of one mask, at these lengths and in these passes."""
    return {
        place: figure
        for place, figure in figures.items()
        if place[0] == mask and place[1] in lengths and place[2] in passes
    }


def judge(what: str, figures: Figures, *, least: float | None = None, most: float = 0) -> None:
    """Print a target and the worst figure, with where it was found."""
    bound = f"at most {most}" if least is None else f"at least {least}"
    if not figures:
        print(f"{what}: not measured ({bound})")
        return
    worst = (max if least is None else min)(figures, key=lambda place: figures[place])
    met = figures[worst] <= most if least is None else figures[worst] >= least
    mask, length, name = worst
    print(f"{what}: {figures[worst]:.2f} ({bound}) {'met' if met else 'MISSED'}, {mask} at {length:,}, {name}")


def targets(tables: Tables) -> None:
    """Print how far each target is met, by the worst figure that it speaks of."""
    print("\ntargets")
    longest = (TARGET_LENGTHS[-1],)
    slower, flexed = quotients(tables, DENSE, OURS), quotients(tables, OURS, FLEX)
    flagged = quotients(tables, OURS, IS_CAUSAL)
    peaks = {place: table[OURS].peak for place, table in tables.items()}
    weights = {place: peak_mb for place, peak_mb in peaks.items() if peak_mb is not None}
    for one in PASSES:
        judge(f"window: dense SDPA / ours, {one}", among(slower, "window", longest, (one,)), least=20)
    judge("window: ours / FlexAttention", among(flexed, "window", longest), most=1.3)
    for one in PASSES:
        judge(f"window: peak MB of ours, {one}", among(weights, "window", longest, (one,)), most=200)
    lengths = tuple({length for _, length, _ in tables if length >= LONG})
    judge("causal-padding: ours / SDPA is_causal", among(flagged, "causal-padding", lengths), most=1.1)
    judge("packed: dense SDPA / ours", among(slower, "packed", longest), least=10)
    fastest = {place: best(table) for place, table in tables.items() if table[OURS].seconds}
    chosen = {place: ratio(tables[place][OURS], tables[place][name]) for place, name in fastest.items() if name}
    judge(f"auto / best single backend, {len(chosen)} cases", chosen, most=1.05)


def plans(given: argparse.Namespace) -> list[Plan]:
    """What is asked for: all ways in every case, or what the targets speak of."""
    everything = tuple(WAYS)
    if not given.targets:
        return [Plan(mask, length, everything, everything) for length in given.lengths for mask in given.masks]
    ours, long = (OURS, *SINGLE), TARGET_LENGTHS[-1]
    also: dict[tuple[str, int], tuple[str, ...]] = {("window", long): (DENSE, FLEX), ("packed", long): (DENSE,)}
    also |= {("causal-padding", length): (IS_CAUSAL,) for length in TARGET_LENGTHS if length >= LONG}
    return [
        Plan(mask, length, ours + also.get((mask, length), ()), (OURS,) if (mask, length) == ("window", long) else ())
        for length in TARGET_LENGTHS
        for mask in CASES
    ]


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192, 16384])
    parser.add_argument("--masks", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--laps", type=int, default=15)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for the laps of one way in one table")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", choices=tuple(TOLERANCE), default="float32")
    parser.add_argument("--backward", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--targets", action="store_true", help="only what the targets speak of")
    parser.add_argument("--measure", choices=tuple(WAYS), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Time what was asked for, and say how far the targets are met."""
    given = arguments()
    torch.set_num_threads(given.threads)
    if given.measure:
        measure(given)
        return
    tables, agree, pace = Tables(), True, Pace(given.laps, given.budget, given.backward)
    sizes = f"{given.batch} x {given.heads} heads of {given.head_dim}, {given.dtype}, {given.threads} threads"
    for plan in plans(given):
        case = CASES[plan.mask](shape_of(given, plan.length))
        passes = contest(case, plan.ways, pace)
        for way in plan.weighed if given.memory else ():
            weigh(plan, way, passes, given)
        for name, table in passes.items():
            tables[plan.mask, plan.length, name] = table
            title = f"{case.title} at {plan.length:,} tokens, {name}: {sizes}"
            agree = show(table, title, TOLERANCE[given.dtype]) and agree
    targets(tables)
    if not agree:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
