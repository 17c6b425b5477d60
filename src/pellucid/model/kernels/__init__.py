"""The attention formula made fast: fused, over tiles, or by FlexAttention, as the mask's structure decides."""

from pellucid.model.kernels.call import Bias, Call, every_head
from pellucid.model.kernels.choice import KERNELS, Backend, Explanation, Kernel, choose, explain, known, unable
from pellucid.model.kernels.fit import require_fit

__all__ = [
    "KERNELS",
    "Backend",
    "Bias",
    "Call",
    "Explanation",
    "Kernel",
    "choose",
    "every_head",
    "explain",
    "known",
    "require_fit",
    "unable",
]
