"""Modules as people write them: each broken in one of the ways that are seen again and again, or right."""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

B, S, T, D, H, DH, V = 3, 5, 7, 12, 2, 6, 13


# --- attention, and what goes wrong with its mask ------------------------------------------------------------------


class Attention(nn.Module):
    """Causal self-attention by hand, with a fault."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.query, self.key, self.value, self.out = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        query, key, value = (
            part(x).unflatten(-1, (H, DH)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = query @ key.mT / math.sqrt(DH)
        ones = torch.ones(length, length, device=x.device)
        if self.fault == "float mask of 0 and 1":
            scores = scores + ones.tril()
        elif self.fault == "minus infinity where all is hidden":
            scores = scores.masked_fill(ones.tril(-1) == 0, float("-inf"))
        elif self.fault != "no mask":
            shift = {"tril shifted ahead": 1, "tril shifted behind": -1}.get(self.fault, 0)
            seen = ones.tril(shift) == 1
            scores = scores.masked_fill(seen if self.fault == "inverted" else ~seen, -1e9)
        weights = scores.softmax(dim=-2 if self.fault == "softmax over queries" else -1)
        return self.out((weights @ value).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A pre-norm layer around an attention, with a residual path."""

    def __init__(self, attention: nn.Module, between: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(D), attention
        self.between = between or nn.Identity()
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(D), nn.Linear(D, 17), nn.GELU(), nn.Dropout(0.5), nn.Linear(17, D)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.between(x + self.attention(self.norm(x)))
        return x + self.feed_forward(x)  # type: ignore[no-any-return]


def stack(fault: str = "", between: nn.Module | None = None) -> nn.Sequential:
    """Two layers, of which the second has the fault."""
    return nn.Sequential(Block(Attention()), Block(Attention(fault), between))


class MaskedOnce(nn.Module):
    """torch's layers, of which only the first is handed the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(D, H, 17, batch_first=True) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        blocked = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        for place, layer in enumerate(self.layers):
            x = layer(x, src_mask=blocked if place == 0 else None)
        return x


# --- what carries the future back between attentions ---------------------------------------------------------------


class BatchNormOverTime(nn.Module):
    """Features as channels, positions as what is averaged over."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]


class Convolution(nn.Module):
    """A convolution over positions that keeps their number by padding on both sides, or rightly on the left."""

    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.conv = nn.Conv1d(D, D, 3, padding=0 if causal else 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        return self.conv(F.pad(x, (2, 0)) if self.causal else x).transpose(1, 2)  # type: ignore[no-any-return]


class GlobalMaxPool(nn.Module):
    """Adds the largest of each feature over all positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.amax(dim=1, keepdim=True)


class ExpertChoice(nn.Module):
    """Each expert takes its best tokens out of the whole sentence, so that later tokens push out earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert = nn.Linear(D, 1), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        best = self.router(x)[..., 0].topk(3, dim=1).indices
        chosen = torch.zeros(x.shape[:2], dtype=x.dtype, device=x.device).scatter(1, best, 1.0)
        return x + chosen[..., None] * self.expert(x)  # type: ignore[no-any-return]


# --- padding -------------------------------------------------------------------------------------------------------


class Padded(nn.Module):
    """torch's attention that is told lengths, with a fault in what it makes of them."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x: Tensor, lengths: Any) -> Tensor:
        real = torch.arange(x.shape[1])[None] < torch.as_tensor(lengths)[:, None]
        named: dict[str, Any] = {"key_padding_mask": ~real}
        if self.fault == "inverted":
            named = {"key_padding_mask": real}
        elif self.fault == "ignored":
            named = {}
        elif self.fault in ("by queries", "tiled over heads", "interleaved over heads"):
            blocked = (~real)[:, :, None] if self.fault == "by queries" else (~real)[:, None, :]
            blocked = torch.where(blocked, -1e9, 0.0).to(x.dtype).expand(-1, x.shape[1], x.shape[1])
            tiled = self.fault == "tiled over heads"
            named = {"attn_mask": blocked.repeat(H, 1, 1) if tiled else blocked.repeat_interleave(H, dim=0)}
        return self.attention(x, x, x, need_weights=False, **named)[0]  # type: ignore[no-any-return]


class MeanOverPadding(nn.Module):
    """Takes the mean over a sentence, by the length of the tensor."""

    def forward(self, x: Tensor, lengths: Any) -> Tensor:
        real = torch.arange(x.shape[1])[None] < torch.as_tensor(lengths)[:, None]
        return x - (x * real[..., None]).sum(dim=1, keepdim=True) / x.shape[1]


class Translator(nn.Module):
    """An encoder and a decoder of torch's, whose cross-attention may not be told the source's padding."""

    def __init__(self, *, heeds: bool) -> None:
        super().__init__()
        self.heeds = heeds
        self.embedding = nn.Embedding(V, D)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(D, H, 17, batch_first=True), 1, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, 17, batch_first=True), 2)

    def forward(self, source: Tensor, target: Tensor, source_lengths: Any = None) -> Tensor:
        padded = None
        if source_lengths is not None:
            padded = torch.arange(source.shape[1])[None] >= torch.as_tensor(source_lengths)[:, None]
        memory = self.encoder(self.embedding(source), src_key_padding_mask=padded)
        blocked = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        states = self.decoder(
            self.embedding(target),
            memory,
            tgt_mask=blocked,
            memory_key_padding_mask=padded if self.heeds else None,
        )
        return states @ self.embedding.weight.T  # type: ignore[no-any-return]


# --- samples, and what one call leaves to the next -----------------------------------------------------------------


class SamplesForPositions(nn.Module):
    """torch's attention as it comes, which takes (length, batch, width), handed (batch, length, width)."""

    def __init__(self, *, batch_first: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]  # type: ignore[no-any-return]


class StandardisedByTheBatch(nn.Module):
    """Standardises features by the batch while it trains, as one does with what was once a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)
        self.register_buffer("spread", torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        x, spread = self.linear(x), self.spread
        assert isinstance(spread, Tensor)
        return x / (x.std(dim=(0, 1)) if self.training else spread)


class AlwaysDropping(nn.Module):
    """Dropout as a function, which does not know whether the module is in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), 0.5)


class MaskInPlace(nn.Module):
    """A causal mask that is kept, and to which the padding of each batch is added in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(T, T).tril().bool())
        self.linear = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.seen
        assert isinstance(seen, Tensor)
        seen &= (x[0, :, 0] > -1)[None]  # the padding, say
        scores = (x @ x.mT).masked_fill(~seen, -1e9)
        return self.linear(scores.softmax(dim=-1) @ x)  # type: ignore[no-any-return]


# --- right ones ----------------------------------------------------------------------------------------------------


class MaskedLayers(nn.Module):
    """torch's encoder as a decoder-only stack, with its mask in every layer."""

    def __init__(self, norm_first: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, H, 17, batch_first=True, norm_first=norm_first)
        self.stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        blocked = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.stack(x, mask=blocked, is_causal=True)  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A recurrent layer, which sees the past alone unless it also runs backwards."""

    def __init__(self, *, bidirectional: bool) -> None:
        super().__init__()
        self.layers = nn.GRU(D, D, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[0]  # type: ignore[no-any-return]
