"""The letters of the paper and of this code, once, and the tensor types built from them.

========  =====================  ==================================================================
letter    name in a signature    what it counts
========  =====================  ==================================================================
B         batch                  sentences side by side in one tensor
S         source                 source tokens, the end mark and any padding included
T         target                 target tokens, the begin mark and any padding included
Q, K      query, key             positions that look, and positions that are looked at
H         heads                  attention heads (the paper's h)
D         d_model                width of a state; `head_dim` = D / H is the paper's d_k = d_v
F         d_ff                   width inside the feed-forward block (the paper's d_ff)
V         vocabulary             token ids of one language
========  =====================  ==================================================================

A *length* counts real tokens, with the marks that were added to them and without padding. Padding always stands
at the end, so a length says exactly which positions are real. Batch comes first, always.
An axis written with an underscore, `_length`, may differ between the tensors of one signature: sources and targets.

The paper's other symbols: N is `num_encoder_layers` and `num_decoder_layers`, P_drop is `dropout`, epsilon_ls is
`label_smoothing`, warmup_steps is `warmup`.
"""

from collections.abc import Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["Heads", "Ids", "Lengths", "Logits", "Look", "Rows", "States", "Weights"]

Ids = Int[Tensor, "batch _length"]
"""Token ids: integers, padded at the end with 0."""

Lengths = Int[Tensor, " batch"] | Sequence[int]
"""Real tokens per sentence: a tensor or plain numbers."""

Rows = Int[Tensor, " rows"]
"""Indices of samples to keep, in order; one may be named several times."""

States = Float[Tensor, "batch _length d_model"]
"""What layers take and give."""

Heads = Float[Tensor, "batch heads _length _head_dim"]
"""States split into heads."""

Weights = Float[Tensor, "batch heads query key"]
"""Attention weights: over the keys, each row sums to one, or to zero where the query may look at nothing."""

Look = Bool[Tensor, "#batch #heads #query key"]
"""A mask as a tensor: True = the query may look at the key."""

Logits = Float[Tensor, "batch _length _vocabulary"]
"""Unnormalised log-probabilities of the next token."""
