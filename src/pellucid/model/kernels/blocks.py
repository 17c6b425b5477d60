"""Attention over the tiles that a mask lets be seen, forward and backward, in memory that is linear in the length.

Each tile gives its own softmax and the logarithm of the sum that it divided by; two tiles of one query are joined by
these logarithms exactly (Milakov and Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135, section 3.1).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from pellucid.model.bias import Relative
from pellucid.model.kernels import flash, written
from pellucid.model.kernels.added import Added
from pellucid.model.kernels.call import Call
from pellucid.model.kernels.runs import Run, runs, span
from pellucid.model.kernels.tiles import COLUMNS, Tile, cut, tiles
from pellucid.model.kernels.written import Gradients, Numbers

__all__ = ["blocks"]

WRITTEN = 2**21  # scores that are held at once where a tile writes them
LEAST = 2**12  # of each head and sample, however many there are
SEEDS = 2**62


def blocks(call: Call) -> Float[Tensor, "batch heads query value_dim"]:
    """`attend` over the tiles of its mask: what is hidden in whole blocks is neither computed nor held."""
    device = call.query.device.type
    tensors = [call.query, call.key, call.value]
    if torch.is_autocast_enabled(device) and call.query.dtype != torch.float64:
        tensors = [tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors]  # as torch's own kernel does
    seed = int(torch.randint(SEEDS, ())) if call.dropout else 0
    work = _Work(call, tiles(call.mask, *call.size, call.query.device), seed)
    with torch.autocast(device, enabled=False):
        attended: Tensor = _Blocks.apply(*tensors, call.bias_tensor, work)  # type: ignore[no-untyped-call]
    return attended


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """What is to be computed, beside the tensors that gradients may be asked of."""

    call: Call
    found: tuple[Tile, ...]
    seed: int


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, work: _Work) -> Tensor:
        tiled = _Tiled(work, Numbers(query, key, value), bias)
        attended, logsumexp = tiled.forward()
        given = attended.to(query.dtype)
        ctx.work = work
        ctx.save_for_backward(query, key, value, bias, given, logsumexp)
        return given

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, attended, logsumexp = ctx.saved_tensors
        tiled = _Tiled(ctx.work, Numbers(query, key, value), bias, wants_bias=ctx.needs_input_grad[3])
        with torch.autocast(query.device.type, enabled=False):
            return *tiled.backward(grad, attended, logsumexp), None


class _Tiled:
    """One attention tile by tile: which kernel computes each, and how they are joined."""

    def __init__(self, work: _Work, numbers: Numbers, bias: Tensor | None, *, wants_bias: bool = False) -> None:
        call, self.numbers = work.call, numbers
        self.wide = torch.promote_types(numbers.query.dtype, torch.float32)
        self.fused = flash.there(numbers) and not call.dropout
        self.written_back = not self.fused or wants_bias
        self.into_bias = None if bias is None or not wants_bias else torch.zeros_like(bias, dtype=self.wide)
        whole = Relative(bias, call.bias.least) if bias is not None and isinstance(call.bias, Relative) else bias
        self.added = Added(call.mask, whole, call.first_query, self.wide, numbers.query.device)
        self.found, self.dropout, self.seed = work.found, call.dropout, work.seed
        self.group = numbers.query.shape[1] // max(1, numbers.key.shape[1])

    def forward(self) -> tuple[Float[Tensor, "batch heads query value_dim"], Float[Tensor, "batch heads query"]]:
        """The attention, and the logarithm of what each query's softmax divides by: minus infinity where it is blind."""
        batch, heads, queries, _ = self.numbers.query.shape
        attended = self.numbers.query.new_zeros(
            batch, queries, heads, self.numbers.value.shape[-1], dtype=self.wide
        ).transpose(1, 2)
        logsumexp = attended.new_full((batch, heads, queries), -math.inf)
        for index, run in enumerate(self._pieces(written_out=not self.fused)):
            tile, numbers = run.tile, self._of(run)
            if self.fused:
                added = self.added.to(tile, past_too=False)
                part = flash.forward(numbers, added, tile.seen == "past" and added is None)
            else:
                part = written.forward(numbers, self.added.to(tile, past_too=True), self._kept(index, numbers))
            joined, sums = run.of_queries(attended), run.of_queries(logsumexp)
            if tile.first:
                joined[:], sums[:] = part
            else:
                _join(joined, sums, *part)
        return attended, logsumexp

    def backward(
        self, grad: Tensor, attended: Tensor, logsumexp: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The gradients of queries, keys, values and bias."""
        into = Numbers(*(torch.zeros_like(tensor, dtype=self.wide) for tensor in self.numbers))
        # Minus infinity, for a blind query, would make its weights infinite; this makes them 0.
        logsumexp = logsumexp.masked_fill(logsumexp == -math.inf, math.inf)
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        for index, run in enumerate(self._pieces(written_out=self.written_back)):
            tile, numbers = run.tile, self._of(run)
            past = (run.of_queries(grad), numbers, run.of_queries(attended), run.of_queries(logsumexp))
            if self.written_back:
                added = self.added.to(tile, past_too=True)
                part = written.backward(*past, added, self._kept(index, numbers))
            else:
                added = self.added.to(tile, past_too=False)
                part = flash.backward(*past, added, tile.seen == "past" and added is None)
            self._gather(run, part, into)
        dtype = self.numbers.query.dtype
        query, key, value = (tensor.to(dtype) for tensor in into)
        return query, key, value, self.into_bias

    def _pieces(self, *, written_out: bool) -> Iterator[Run]:
        """The tiles, cut to the size at which what is written for each of them stays small, and those in runs together."""
        batch, heads = self.numbers.query.shape[:2]

        def pieces(tile: Tile) -> Iterable[Tile]:
            samples = batch if tile.samples is None else tile.samples[1] - tile.samples[0]
            side = heads if tile.heads is None else tile.heads[1] - tile.heads[0]
            if written_out or self.added.bias is not None:
                return cut(tile, max(LEAST, WRITTEN // max(1, samples * side)))
            if tile.seen == "some":
                return cut(tile, max(LEAST, WRITTEN // (samples if tile.samples else 1)))
            return (tile,)

        found = chain.from_iterable(map(pieces, self.found))
        if written_out or isinstance(self.added.bias, Tensor):
            return map(Run, found)
        return runs(found, batch, COLUMNS)

    def _of(self, run: Run) -> Numbers:
        """The tensors of one run; keys and values that several heads share, once for each of them."""
        query, key, value = self.numbers
        shared = self._shared(run.tile)
        return Numbers(run.of_queries(query), run.of_keys(key, shared), run.of_keys(value, shared))

    def _gather(self, run: Run, part: Gradients, into: Numbers) -> None:
        """Add what a run gives to the gradients of all."""
        shared = self._shared(run.tile)
        run.of_queries(into.query).add_(part.query)
        run.add_to_keys(into.key, part.key, shared)
        run.add_to_keys(into.value, part.value, shared)
        if self.into_bias is not None and part.scores is not None:
            self.added.collect(run.tile, part.scores, self.into_bias)

    def _shared(self, tile: Tile) -> Tensor | None:
        """Which key head each query head of a tile looks at; None where each looks at its own."""
        if self.group == 1:
            return None
        heads = self.numbers.query.shape[1]
        return torch.arange(heads, device=self.numbers.key.device)[span(tile.heads)] // self.group

    def _kept(self, index: int, numbers: Numbers) -> Tensor | None:
        """What dropout multiplies a tile's weights by: drawn from the tile's own seed, so that it can be drawn again."""
        if not self.dropout:
            return None
        device = numbers.query.device
        draw = torch.Generator(device).manual_seed((self.seed + index) % SEEDS)
        shape = (*numbers.query.shape[:3], numbers.key.shape[2])
        kept = torch.rand(shape, generator=draw, device=device) >= self.dropout
        return kept.to(self.wide) / (1 - self.dropout)


def _join(before: Tensor, sum_before: Tensor, after: Tensor, sum_after: Tensor) -> None:
    """Join what later keys gave to what earlier keys gave, and the logarithms of both sums, in place."""
    both = torch.logaddexp(sum_before, sum_after)
    finite = both.masked_fill(both == -math.inf, 0.0)
    before.mul_((sum_before - finite).exp_()[..., None]).add_(after * (sum_after - finite).exp_()[..., None])
    sum_before.copy_(both)
