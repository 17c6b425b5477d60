"""Our model as two graphs in ONNX (onnx.ai): an encoder, and the decoder's step with its cache.

A graph runs wherever ONNX Runtime does, without PyTorch and without Python. Of L layers, B sentences and H heads:

    encoder.onnx   ids (B, S), lengths (B,)  ->  source (L, 2, B, H, S, head_dim)
    step.onnx      ids (B,), past (L, 2, B, H, T, head_dim), source, lengths  ->  logits (B, vocabulary), present

`source` holds the keys and values of each cross-attention. `past` is empty (T = 0) at the first step, whose ids are the
begin mark; `present` is the next step's `past`, one longer. Ids end with the end mark, lengths count it, and what stands
behind them is padding. To reorder a beam, take other rows of `past`, `source` and `lengths`.

Positions are looked up in tables of so many rows as `to_onnx` was told; relative ones have no end.
"""

import contextlib
import io
import logging
import math
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from pellucid.config import ModelConfig
from pellucid.decoding.exported import places_of, require_library
from pellucid.errors import RunError
from pellucid.model import Transformer
from pellucid.model.positions import ALiBi, Positions, T5Relative, Turn

__all__ = ["to_onnx"]

OPSET = 18
# Example sizes, each its own, so that no two axes are taken for one.
BATCH, SOURCE, PAST = 2, 5, 3


def to_onnx(model: Transformer, folder: Path) -> None:
    """Write a model as `encoder.onnx` and `step.onnx`, in float32; the folder appears whole.

    Args:
        model: the network, with any positions, norms and activations.
        folder: a new one.

    Raises:
        InteropError: onnx or onnxscript, with which torch writes graphs, is not installed.
        RunError: the folder exists.
    """
    for module, name in (("onnx", "onnx"), ("onnxscript", "onnxscript")):
        require_library(module, name, "onnx")
    if folder.exists():
        raise RunError(f"{folder} exists already; choose a new folder")
    network = deepcopy(model).float().cpu().eval().requires_grad_(False)
    config, places = network.config, places_of(network.config)
    batch, source, past = (torch.export.Dim(name) for name in ("batch", "source", "past"))
    ids, lengths = torch.ones(BATCH, SOURCE, dtype=torch.long), torch.full((BATCH,), SOURCE)
    kept = [torch.zeros(_cache(config, length)) for length in (PAST, SOURCE)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        _write(
            Encoder(network, places), draft / "encoder.onnx", {"ids": ids, "lengths": lengths}, ["source"],
            ({0: batch, 1: source}, {0: batch}),
        )  # fmt: skip
        _write(
            Step(network, places), draft / "step.onnx",
            {"ids": ids[:, 0], "past": kept[0], "source": kept[1], "lengths": lengths}, ["logits", "present"],
            ({0: batch}, {2: batch, 4: past}, {2: batch, 4: source}, {0: batch}),
        )  # fmt: skip
        draft.chmod(0o755)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _cache(config: ModelConfig, length: int) -> tuple[int, ...]:
    """The shape of keys and values of so many tokens."""
    return (config.num_decoder_layers, 2, BATCH, config.num_heads, length, config.head_dim)


def _write(module: nn.Module, path: Path, given: dict[str, Tensor], results: list[str], axes: Any) -> None:
    """Trace a module and write its graph."""
    with _quiet():
        program = torch.onnx.export(
            module, tuple(given.values()), dynamo=True, opset_version=OPSET, input_names=list(given),
            output_names=results, dynamic_shapes=axes, verbose=False,
        )  # fmt: skip
        assert program is not None
        program.save(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch tells of its own parts while it traces."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class Told(nn.Module):
    """How one side is told its positions, as tables that a graph looks up."""

    added: Tensor | None
    cos: Tensor | None
    sin: Tensor | None
    near: Tensor | None

    def __init__(self, positions: Positions, places: int, d_model: int, head_dim: int) -> None:
        super().__init__()
        self.positions = positions
        told: Tensor = positions(torch.zeros(1, places, d_model))[0]
        self.register_buffer("added", told if told.any() else None)
        turn = positions.turn(places, 0, torch.zeros(1, head_dim))
        self.register_buffer("cos", None if turn is None else turn.cos)
        self.register_buffer("sin", None if turn is None else turn.sin)
        self.halves = turn is not None and turn.halves
        # from that distance on all offsets of T5 are alike
        self.reach = positions.max_distance if isinstance(positions, T5Relative) else 0
        near = positions.bias(self.reach + 1, self.reach + 1)
        self.register_buffer("near", near.table if isinstance(positions, T5Relative) and near is not None else None)

    def states(self, states: Tensor, at: Tensor) -> Tensor:
        """What the first layer is given of states (B, L, d_model) at those positions."""
        return states if self.added is None else states + self.added[at]

    def turned(self, heads: Tensor, at: Tensor) -> Tensor:
        """Queries or keys (B, H, L, head_dim) as self-attention takes them."""
        if self.cos is None or self.sin is None:
            return heads
        return Turn(self.cos[at], self.sin[at], self.halves).apply(heads)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """What is added to the scores of self-attention, (H, Q, K)."""
        offsets = keys - queries[:, None]
        if isinstance(self.positions, ALiBi):
            return -self.positions.slopes[:, None, None] * offsets.abs()
        if self.near is None:
            return None
        return self.near[:, offsets.clamp(-self.reach, self.reach) + self.reach]


class Encoder(nn.Module):
    """Sources -> keys and values of each layer's cross-attention."""

    def __init__(self, model: Transformer, places: int) -> None:
        super().__init__()
        self.model = model
        self.told = Told(model.source_positions, places, model.config.d_model, model.config.head_dim)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) and (B,) -> (L, 2, B, H, S, head_dim)."""
        stacks, at = cast("Any", self.model.stacks), torch.arange(ids.shape[1])
        hidden, relative = _padding(at, lengths), self.told.scores(at, at)
        if relative is not None:
            hidden = hidden + relative
        states = self.told.states(self.model.source_embedding(ids) * math.sqrt(self.model.config.d_model), at)
        for layer in stacks.encoder.layers:
            own, entered = layer.self_attention, layer.self_residual.enter(states)
            query, key, value = (_heads(part, own, entered) for part in (own.query, own.key, own.value))
            query, key = self.told.turned(query, at), self.told.turned(key, at)
            states = layer.self_residual.leave(states, _attended(own, query, torch.stack([key, value]), hidden))
            states = _fed(layer, states)
        if stacks.encoder.final_norm is not None:
            states = stacks.encoder.final_norm(states)
        crossing = [layer.cross_attention for layer in stacks.decoder.layers]
        return torch.stack(
            [torch.stack([_heads(part, own, states) for part in (own.key, own.value)]) for own in crossing]
        )


class Step(nn.Module):
    """One token of each sentence -> logits of the next, and keys and values that are one token longer."""

    def __init__(self, model: Transformer, places: int) -> None:
        super().__init__()
        self.model = model
        self.told = Told(model.target_positions, places, model.config.d_model, model.config.head_dim)

    def forward(self, ids: Tensor, past: Tensor, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B,), (L, 2, B, H, T, head_dim), (L, 2, B, H, S, head_dim), (B,) -> (B, vocabulary), present."""
        stacks, length = cast("Any", self.model.stacks), past.shape[4]
        at, keys = torch.arange(length, length + 1), torch.arange(length + 1)
        hidden, relative = _padding(torch.arange(source.shape[4]), lengths), self.told.scores(at, keys)
        scaled = self.model.target_embedding(ids[:, None]) * math.sqrt(self.model.config.d_model)
        states, present = self.told.states(scaled, at), []
        for index, layer in enumerate(stacks.decoder.layers):
            own, entered = layer.self_attention, layer.self_residual.enter(states)
            query, key, value = (_heads(part, own, entered) for part in (own.query, own.key, own.value))
            query, key = self.told.turned(query, at), self.told.turned(key, at)
            present.append(torch.cat([past[index], torch.stack([key, value])], dim=3))
            states = layer.self_residual.leave(states, _attended(own, query, present[-1], relative))
            cross, entered = layer.cross_attention, layer.cross_residual.enter(states)
            query = _heads(cross.query, cross, entered)
            states = layer.cross_residual.leave(states, _attended(cross, query, source[index], hidden))
            states = _fed(layer, states)
        if stacks.decoder.final_norm is not None:
            states = stacks.decoder.final_norm(states)
        return self.model.head(states)[:, 0], torch.stack(present)


def _padding(at: Tensor, lengths: Tensor) -> Tensor:
    """What hides the padding of sources, (B, 1, 1, S), to be added to scores."""
    return torch.where(at < lengths[:, None], 0.0, -math.inf)[:, None, None]


def _heads(part: nn.Linear, attention: Any, states: Tensor) -> Tensor:
    """(B, L, d_model) -> (B, H, L, head_dim)."""
    projected: Tensor = part(states)
    return projected.view(*states.shape[:2], attention.num_heads, -1).transpose(1, 2)


def _attended(attention: Any, query: Tensor, keys_values: Tensor, added: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(head_dim) + added) V, its heads side by side and projected."""
    key, value = keys_values.unbind()
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(2, 3)
    weights = (scores if added is None else scores + added).softmax(dim=-1)
    projected: Tensor = attention.output((weights @ value).transpose(1, 2).flatten(2))
    return projected


def _fed(layer: Any, states: Tensor) -> Tensor:
    """States behind the feed-forward sublayer."""
    residual = layer.feed_forward_residual
    left: Tensor = residual.leave(states, layer.feed_forward(residual.enter(states)))
    return left
