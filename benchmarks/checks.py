"""How long a check takes: the influence of each target position on each other in a 6-layer decoder of the base size.

    python benchmarks/checks.py [--length 64] [--long 512] [--layers 6] [--laps 3]

The decoder is that of a `Transformer` (512 wide, 8 heads, 2,048 in the feed-forward layers), on token ids, in float64.
Beside ours stand the ways people write by hand: one backward pass after the other, and one changed position after the
other. Medians of interleaved laps, and the ratio to ours. At the long length ours looks at a sample of the positions
and says which; its target is 10 seconds at length 64.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from pellucid import ModelConfig, Transformer, check

VOCABULARY = 8000
SOURCE = 7
TARGET_SECONDS = 10.0


def ids(length: int) -> Tensor:
    """One sentence of random ids."""
    return torch.randint(4, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(length))


def by_backward_passes(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """What each position depends on, one backward pass a position, as it is written by hand."""
    embedded: list[Tensor] = []

    def keep(_: object, __: object, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    hook = model.target_embedding.register_forward_hook(keep)
    logits = model(source, target)
    hook.remove()
    rows = []
    for position in range(target.shape[1]):
        (slope,) = torch.autograd.grad(logits[0, position].sum(), embedded[-1], retain_graph=True)
        rows.append(slope[0].abs().amax(dim=-1) > 0)
    return torch.stack(rows)


def by_changes(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """What each position depends on, one changed token a position, as it is written by hand."""
    columns = []
    with torch.no_grad():
        base = model(source, target)
        for position in range(target.shape[1]):
            other = target.clone()
            other[0, position] = (other[0, position] - 3) % (VOCABULARY - 4) + 4
            columns.append((model(source, other) - base)[0].abs().amax(dim=-1) > 1e-9)
    return torch.stack(columns, dim=1)


def timed(call: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """Seconds of one call, and what it gave."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def compare(model: Transformer, length: int, laps: int) -> float:
    """Print the median seconds of each way and its ratio to ours; hand back ours."""
    source, target = ids(SOURCE), ids(length)
    double = model.double()
    ways: dict[str, Callable[[], Tensor]] = {
        "check.influence": lambda: check.influence(double, source, target),
        "one backward pass a position, by hand": lambda: by_backward_passes(double, source, target),
        "one changed token a position, by hand": lambda: by_changes(double, source, target),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    wanted = torch.ones(length, length).tril().bool()
    for _ in range(laps):
        for name, way in ways.items():
            taken, found = timed(way)
            seconds[name].append(taken)
            if not torch.equal(found, wanted):
                raise SystemExit(f"{name} did not find the causal mask")
    ours = seconds["check.influence"]
    print(f"length {length}, {len(model.stacks.decoder.layers)} layers, {torch.get_num_threads()} threads, float64")
    for name, laps_of_it in seconds.items():
        ratio = statistics.median(one / own for one, own in zip(laps_of_it, ours, strict=True))
        print(f"  {name:<40} {statistics.median(laps_of_it):8.2f} s {ratio:8.2f} times ours")
    return statistics.median(ours)


def sample(model: Transformer, length: int) -> None:
    """Print what the check says of a long sentence, and how long it takes."""
    source, target = ids(SOURCE), ids(length)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", check.SampledRows)
        taken, found = timed(lambda: check.influence(model.double(), source, target))
    print(f"length {length}: {taken:.2f} s for {len(found)} rows")
    for warning in caught:
        print(f"  {warning.message}")


def main() -> None:
    """Time the ways, and say whether the target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--long", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--laps", type=int, default=3)
    given = parser.parse_args()
    torch.manual_seed(0)
    config = ModelConfig.base(
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        num_encoder_layers=1,
        num_decoder_layers=given.layers,
    )
    model = Transformer(config).eval()
    ours = compare(model, given.length, given.laps)
    if given.long:
        sample(model, given.long)
    verdict = "met" if ours <= TARGET_SECONDS else "MISSED"
    print(f"target: at most {TARGET_SECONDS:.0f} s at length {given.length}: {ours:.2f} s, {verdict}")


if __name__ == "__main__":
    main()
