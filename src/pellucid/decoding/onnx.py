"""Translates with an exported model by ONNX Runtime (onnxruntime.ai), with our own searches around its steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pellucid.decoding.exported import NATIVE, PLACES, require_library, require_places
from pellucid.decoding.stepping import SteppingEngine, log_softmax, words_alone
from pellucid.errors import ConfigError, DecodingError, RunError
from pellucid.shapes import Ids, Rows
from pellucid.text.batch import Batch

__all__ = ["OnnxEngine", "OnnxState"]


@dataclass(frozen=True, slots=True)
class OnnxState:
    """What is remembered of each live hypothesis, as arrays that the next step is given.

    Attributes:
        source: keys and values of each layer's cross-attention, (layers, 2, rows, heads, S, head_dim).
        lengths: real tokens of each source.
        past: keys and values of each layer's self-attention, (layers, 2, rows, heads, T, head_dim).
    """

    source: Any
    lengths: Any
    past: Any

    def select(self, rows: Rows) -> "OnnxState":
        """The state of the given hypotheses in the given order."""
        chosen = rows.numpy()
        return OnnxState(self.source[:, :, chosen], self.lengths[chosen], self.past[:, :, chosen])


class OnnxEngine(SteppingEngine[OnnxState]):
    """Takes steps with ONNX Runtime on the CPU: all searches, drawing, streaming and scoring, but no attention.

    Args:
        folder: what `pellucid export --to onnx` wrote.
        precision: "float32", the one that is exported, or None.
        most_tokens: positions that the model has.
        threads: how many a step is computed with; None takes torch's number.

    Raises:
        InteropError: ONNX Runtime is not installed.
        RunError: it cannot read the folder.
        ConfigError: the precision is another.
    """

    def __init__(
        self, folder: Path, precision: str | None = None, *, most_tokens: int = PLACES, threads: int | None = None
    ) -> None:
        require_library("onnxruntime", "ONNX Runtime", "onnx")
        import onnxruntime

        if precision not in (None, "float32", "auto"):
            raise ConfigError(f"precision was given {precision!r}, but exports to ONNX are in 'float32'; choose it")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        try:
            self._encoder, self._step = (
                onnxruntime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])
                for name in ("encoder.onnx", "step.onnx")
            )
        except Exception as error:  # ONNX Runtime has a class of errors for each of its own codes
            told = " ".join(str(error).split())
            raise RunError(f"ONNX Runtime cannot read {folder} ({told}); export the run again") from None
        layers, _, _, heads, _, head_dim = next(
            given.shape for given in self._step.get_inputs() if given.name == "past"
        )
        self._empty = (layers, 2, heads, head_dim)
        self._most_tokens = most_tokens

    @property
    def most_tokens(self) -> int | None:
        """How many tokens a sentence may have, its mark counted."""
        return self._most_tokens

    def begin(self, source: Ids, source_lengths: tuple[int, ...]) -> OnnxState:
        """Read the sources (B, S); the first step follows.

        Raises:
            PositionError: a source is longer than the positions that the export knows.
        """
        require_places(source.shape[1], self._most_tokens)
        lengths = np.array(source_lengths, dtype=np.int64)
        [keys_values] = self._encoder.run(None, {"ids": source.numpy(), "lengths": lengths})
        layers, two, heads, head_dim = self._empty
        past = np.zeros((layers, two, len(source), heads, 0, head_dim), dtype=np.float32)
        return OnnxState(keys_values, lengths, past)

    def step(self, ids: Int[Tensor, " rows"], state: OnnxState) -> tuple[Float[Tensor, "rows vocabulary"], OnnxState]:
        """Log-probabilities of each hypothesis' next token, in nats, and the state after it.

        Raises:
            PositionError: there is no position for it.
        """
        log_probs, state = self._plain_step(ids, state)
        return words_alone(log_probs), state

    def _plain_step(self, ids: Tensor, state: OnnxState) -> tuple[Tensor, OnnxState]:
        """The same with whatever probability padding, unknown and begin have."""
        require_places(state.past.shape[4] + 1, self._most_tokens)
        given = {"ids": ids.numpy(), "past": state.past, "source": state.source, "lengths": state.lengths}
        logits, past = self._step.run(None, given)
        return log_softmax(torch.from_numpy(logits)), OnnxState(state.source, state.lengths, past)

    def score(self, batch: Batch) -> list[float]:
        """The log-probability of each target given its source, in nats, the end mark counted."""
        gold = self.log_probs(batch).gather(2, batch.labels[:, :, None])[:, :, 0]
        return [float(row[:length].sum()) for row, length in zip(gold, batch.target_lengths, strict=True)]

    def log_probs(self, batch: Batch) -> Float[Tensor, "batch target vocabulary"]:
        """The log-probability in nats of every token at each place of the targets.

        Where a target fills the last position, no place is left for its end mark.
        """
        state, rows = self.begin(batch.source, batch.source_lengths), []
        for ids in batch.target[:, : self.most_tokens].T.contiguous():
            log_probs, state = self._plain_step(ids, state)
            rows.append(log_probs)
        return torch.stack(rows, dim=1)

    def cross_attention(
        self,
        batch: Batch,  # noqa: ARG002 - it is the interface's
    ) -> Float[Tensor, "layers heads target source"]:
        """Nothing: the exported step does not hand it out.

        Raises:
            DecodingError: always.
        """
        raise DecodingError(f"an export to ONNX does not hand out the attention of its layers; {NATIVE}")
