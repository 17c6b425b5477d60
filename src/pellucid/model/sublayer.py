"""What stands around and between attentions: dropout, the residual connection, and the feed-forward block."""

from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pellucid.errors import ConfigError
from pellucid.shapes import States

__all__ = ["Activation", "Dropout", "FeedForward", "Norm", "Residual", "share"]

Norm = Literal["pre", "post"]
"""Where a sublayer's LayerNorm stands: before it (Xiong et al. 2020, arXiv 2002.04745) or after the sum (the paper)."""

Activation = Literal["relu", "gelu"]
"""The non-linearity of the feed-forward block; the paper's is relu."""


def share(rate: float) -> float:
    """The rate, which must be a share that dropout can drop: from 0 up to, but not, 1.

    Raises:
        ConfigError: it is not.
    """
    if not 0.0 <= rate < 1.0:
        raise ConfigError(
            f"a dropout of {rate} was given, but dropout is a share of 1; give a number from 0 to below 1"
        )
    return rate


class Dropout(nn.Module):
    """Set a share `rate` of the numbers to zero while training, and scale the rest by 1 / (1 - rate).

    (Srivastava et al. 2014, JMLR 15.) On a CPU, `torch.nn.functional.dropout` draws one random number for each element,
    which costs more than the layer around it; here one 64-bit draw decides four elements, 16 bits each, so `rate` is
    rounded to the nearest 1 / 65536.

    Raises:
        ConfigError: rate is not a share from 0 to below 1.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = share(rate)

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape."""
        if not self.training or self.rate == 0.0:
            return states
        if states.device.type != "cpu":
            return F.dropout(states, self.rate)
        draws = torch.empty((states.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[: states.numel()].view(states.shape)
        dropped = min(round(self.rate * 65536), 65535)
        kept = bits >= dropped - 32768
        return torch.where(kept, states * (65536 / (65536 - dropped)), 0.0)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"rate={self.rate}"


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between, the same at each position (section 3.3).

    FFN(x) = max(0, x W_1 + b_1) W_2 + b_2.

    Raises:
        ConfigError: the activation is unknown, or dropout is no share.
    """

    def __init__(
        self, d_model: int, d_ff: int, *, activation: Activation = "relu", bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if activation not in ("relu", "gelu"):
            raise ConfigError(f"activation {activation!r} was given, but known are 'relu' and 'gelu'; choose one")
        self.activation: Activation = activation
        self.inner = nn.Linear(d_model, d_ff, bias=bias)
        self.dropout = Dropout(dropout)
        self.outer = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, states: States) -> States:
        """(B, L, d_model) -> (B, L, d_model)."""
        inner: Tensor = self.inner(states)
        active = inner.relu() if self.activation == "relu" else F.gelu(inner)
        outer: Tensor = self.outer(self.dropout(active))
        return outer


class Residual(nn.Module):
    """The way around a sublayer, with dropout on the sublayer's output and a LayerNorm (sections 3.1 and 5.4).

    post: LayerNorm(x + Dropout(Sublayer(x))). pre: x + Dropout(Sublayer(LayerNorm(x))).
    A layer calls `enter` before its sublayer and `leave` after it.

    Raises:
        ConfigError: norm is neither "pre" nor "post", or dropout is no share.
    """

    def __init__(
        self, d_model: int, *, norm: Norm = "post", dropout: float = 0.0, eps: float = 1e-5, bias: bool = True
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise ConfigError(f"norm {norm!r} was given, but known are 'pre' and 'post'; choose one")
        self.pre = norm == "pre"
        self.norm = nn.LayerNorm(d_model, eps=eps, bias=bias)
        self.dropout = Dropout(dropout)

    def enter(self, states: States) -> States:
        """What the sublayer is given."""
        return self.norm(states) if self.pre else states

    def leave(self, states: States, update: States) -> States:
        """What the next sublayer is given: the states joined with this sublayer's update."""
        states = states + self.dropout(update)
        return states if self.pre else self.norm(states)
