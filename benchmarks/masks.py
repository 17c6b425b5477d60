"""What masks as values cost: `Causal() & Padding` beside the torch tensor built by hand, and what is held meanwhile.

    python benchmarks/masks.py [--length 8192] [--laps 9] [--threads 2]

Prints the median seconds of each and the median of the paired ratios (ours / by hand; below 1 is faster), for one sample
and for two, and the largest tensor that `counts`, `density`, `draw` and the export to FlexAttention make.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from pellucid.masks import Causal, Mask, Padding


def by_hand(lengths: tuple[int, ...], size: int) -> Tensor:
    """The mask as people write it: a triangle, and a row of real keys for each sample."""
    real = torch.arange(size) < torch.tensor(lengths)[:, None]
    return torch.ones(size, size, dtype=torch.bool).tril() & real[:, None, None, :]


def ours(lengths: tuple[int, ...], size: int) -> Tensor:
    """The same from an expression."""
    return (Causal() & Padding(lengths)).dense(size, size)


def seconds(make: Callable[[tuple[int, ...], int], Tensor], lengths: tuple[int, ...], size: int) -> float:
    """How long it takes once."""
    began = time.perf_counter()
    make(lengths, size)
    return time.perf_counter() - began


def held(make: Callable[[], object]) -> int:
    """Bytes of the largest tensor that any operation of torch gives on the way."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        make()
    return max(int(event.self_cpu_memory_usage) for event in seen.events())


def main() -> None:
    """Time both ways in turn, and look at what the others hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--laps", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    size = asked.length
    for lengths in ((size - 7,), (size - 7, size // 2)):
        assert torch.equal(ours(lengths, size), by_hand(lengths, size)), "the two are one mask"
        laps = [(seconds(ours, lengths, size), seconds(by_hand, lengths, size)) for _ in range(asked.laps)]
        mine, other = (statistics.median(side) for side in zip(*laps, strict=True))
        ratio = statistics.median(one / two for one, two in laps)
        print(f"{size} x {size}, {len(lengths)} samples: ours {mine:.4f} s, by hand {other:.4f} s, ratio {ratio:.2f}")
    mask: Mask = Causal() & Padding((size - 7,))
    jobs: dict[str, Callable[[], object]] = {
        "counts": lambda: mask.counts(size, size),
        "density": lambda: mask.density(size, size),
        "draw": lambda: mask.draw(size, size),
        "to('flex')": lambda: mask.to("flex", queries=size, keys=size, blind="ignore"),
    }
    for name, job in jobs.items():
        print(f"{name}: the largest tensor on the way has {held(job):,} bytes; all cells would be {size * size:,}")


if __name__ == "__main__":
    main()
