"""One tile of attention through torch's own fused kernel for CPUs, which also hands back the softmax's logarithms."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.model.kernels.written import Gradients, Numbers

__all__ = ["backward", "forward", "there"]

NAME = "_scaled_dot_product_flash_attention_for_cpu"  # what scaled_dot_product_attention itself calls on a CPU


def there(numbers: Numbers) -> bool:
    """Whether torch has the kernel, and it takes such tensors."""
    query, key, value = numbers
    return (
        query.device.type == "cpu"
        and hasattr(torch.ops.aten, NAME)
        and hasattr(torch.ops.aten, f"{NAME}_backward")
        and query.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
        and query.dtype == key.dtype == value.dtype
        and query.shape[-1] == value.shape[-1]
        and 0 not in (query.numel(), key.numel())  # which would end the process
        and 1 == query.stride(-1) == key.stride(-1) == value.stride(-1)
    )


def forward(
    numbers: Numbers, added: Tensor | None, past: bool
) -> tuple[Float[Tensor, "samples heads rows value_dim"], Float[Tensor, "samples heads rows"]]:
    """As `written.forward`; `past` hides what lies beyond the tile's diagonal."""
    kernel = getattr(torch.ops.aten, NAME)
    attended, logsumexp = kernel(*numbers, 0.0, past, attn_mask=added)
    if added is not None:
        # The kernel gives a row in which all is hidden zeros, as it should, but a logarithm of 0.
        blind = (added == -math.inf).all(-1)
        logsumexp = logsumexp.masked_fill(blind.expand_as(logsumexp), -math.inf)
    return attended, logsumexp


def backward(
    grad: Float[Tensor, "samples heads rows value_dim"],
    numbers: Numbers,
    attended: Float[Tensor, "samples heads rows value_dim"],
    logsumexp: Float[Tensor, "samples heads rows"],
    added: Tensor | None,
    past: bool,
) -> Gradients:
    """As `written.backward`, without the gradient of the scores."""
    kernel = getattr(torch.ops.aten, f"{NAME}_backward")
    return Gradients(*kernel(grad, *numbers, attended, logsumexp, 0.0, past, attn_mask=added))
