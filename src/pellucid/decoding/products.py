"""Products of states with a weight matrix, as fast as the CPU has them: plain, packed for oneDNN, and in 8-bit integers.

A product knows nothing of the rows beside a row: what it gives for a row depends on that row alone (but for the last
bits of a float, which a kernel may sum in another order for another number of rows; 8-bit sums are exact).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Float, Int8
from torch import Tensor, nn

__all__ = ["EightBit", "Product", "joined", "product", "quantised"]

Product = Callable[[Float[Tensor, "*rows inside"]], Float[Tensor, "*rows outside"]]
"""States (..., in) -> states (..., out)."""

MANY_CELLS, SOME_CELLS = (
    2**19,
    2**17,
)  # of a weight from which oneDNN is faster than BLAS: for any rows, and for several
STEPS = (
    63  # of a row's greatest number on either side of 0: seven bits, whose products never overflow AVX2's 16-bit sums
)
ZERO = 64  # what stands for 0 among them
WEIGHT_STEPS = 127


def product(weight: Float[Tensor, "outside inside"], bias: Float[Tensor, " outside"] | None) -> Product:
    """States @ weight.T + bias, by the kernel that is fastest for the matrix."""
    pack = _packed(weight, bias) if weight.numel() >= SOME_CELLS else None
    if pack is None:
        return lambda states: F.linear(states, weight, bias)
    packed = pack  # for mypy, which forgets it inside the function
    if weight.numel() >= MANY_CELLS:
        return packed
    width = weight.shape[1]
    return lambda states: F.linear(states, weight, bias) if states.numel() == width else packed(states)


def _packed(weight: Tensor, bias: Tensor | None) -> Product | None:
    """The product by oneDNN with the weight laid out as it likes it; None where torch has none for this weight."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not torch._C._has_mkldnn:
        return None
    try:
        laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        kernel = torch.ops.mkldnn._linear_pointwise.default
        kernel(weight.new_zeros(1, weight.shape[1]), laid_out, bias, "none", [], "")
    except (AttributeError, RuntimeError):  # torch's own door to oneDNN, which another version may have moved
        return None
    own_bias = None if bias is None else bias.detach()

    def multiply(states: Tensor) -> Tensor:
        given: Tensor = kernel(states, laid_out, own_bias, "none", [], "")
        return given

    return multiply


def quantised(
    weight: Float[Tensor, "outside inside"],
) -> tuple[Int8[Tensor, "outside inside"], Float[Tensor, " outside"]]:
    """A weight as whole numbers from -127 to 127, and what one of them is worth in each row: |w| at most 127 steps.

    >>> codes, steps = quantised(torch.tensor([[0.5, -1.0], [0.0, 0.0]]))
    >>> codes.tolist(), [round(step, 4) for step in steps.tolist()]
    ([[64, -127], [0, 0]], [0.0079, 1.0])
    """
    most = weight.detach().abs().amax(dim=1).float()
    steps = torch.where(most > 0, most / WEIGHT_STEPS, 1.0)
    return (weight.detach().float() / steps[:, None]).round().to(torch.int8), steps


class EightBit(nn.Module):
    """A linear map in 8-bit integers, each row of states scaled by its own greatest number.

    Weights are rounded to 127 steps on either side of 0 for each output, states to 63 for each row, and sums are whole
    numbers. Scaled by row, unlike in torch's dynamic quantisation, a sentence never depends on those beside it.

    Args:
        codes: the weight, see `quantised`.
        steps: what a step of each output is worth.
        bias: added to the outputs in floating point.
    """

    weight: Tensor
    steps: Tensor
    bias: Tensor | None

    def __init__(
        self,
        codes: Int8[Tensor, "outside inside"],
        steps: Float[Tensor, " outside"],
        bias: Float[Tensor, " outside"] | None,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", codes)
        self.register_buffer("steps", steps)
        self.register_buffer("bias", None if bias is None else bias.detach().float())
        self._kernel = _eight_bit_kernel(codes, steps)

    @classmethod
    def of(cls, linear: nn.Linear) -> "EightBit":
        """A linear map in 8 bits."""
        return cls(*quantised(linear.weight), linear.bias)

    def forward(self, states: Float[Tensor, "*rows inside"]) -> Float[Tensor, "*rows outside"]:
        """(..., in) -> (..., out)."""
        rows = states.reshape(-1, states.shape[-1])
        most = rows.abs().amax(dim=1, keepdim=True).clamp_min_(torch.finfo(torch.float32).tiny)
        sums = self._kernel(rows / most)
        out = sums.mul_(most) if self.bias is None else torch.addcmul(self.bias, sums, most)
        return out.view(*states.shape[:-1], len(self.steps))


def _eight_bit_kernel(codes: Tensor, steps: Tensor) -> Callable[[Tensor], Tensor]:
    """Rows scaled to -1 to 1, rounded to steps of 1 / 63, times the weight: by FBGEMM, else by the formula."""
    packed = _fbgemm_weight(codes, steps) if codes.device.type == "cpu" else None
    if packed is None:
        worth, numbers = steps / STEPS, codes.float()
        # up to 2**24, which 2,000 inputs never pass, float32 sums whole numbers exactly
        return lambda rows: F.linear((rows * STEPS).round(), numbers) * worth
    kernel = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def multiply(rows: Tensor) -> Tensor:
        given: Tensor = kernel(rows, 1 / STEPS, ZERO, packed)
        return given

    return multiply


def _fbgemm_weight(codes: Tensor, steps: Tensor) -> Any:
    """The weight as FBGEMM wants it, or None where torch was built without it."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return None
    zeros = torch.zeros(len(codes), dtype=torch.long)
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"  # read while packing only
    try:
        weight = torch._make_per_channel_quantized_tensor(codes, steps.double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(weight, None)
    except (AttributeError, RuntimeError):
        return None
    finally:
        torch.backends.quantized.engine = before


def joined(maps: Sequence[nn.Linear | EightBit], scales: Sequence[float]) -> Product:
    """Several linear maps of the same states as one product, their outputs side by side, each times its scale."""
    pairs = list(zip(maps, scales, strict=True))
    bias = None
    if any(linear.bias is not None for linear in maps):
        bias = torch.cat([_bias_of(linear) * scale for linear, scale in pairs])
    if all(isinstance(linear, EightBit) for linear in maps):
        steps = torch.cat([linear.steps * scale for linear, scale in pairs if isinstance(linear, EightBit)])
        return EightBit(torch.cat([linear.weight for linear in maps]), steps, bias)
    weight = torch.cat([linear.weight.detach() * scale for linear, scale in pairs])
    return product(weight, bias)


def _bias_of(linear: nn.Linear | EightBit) -> Tensor:
    """Its bias, or zeros."""
    if linear.bias is not None:
        return linear.bias.detach()
    worth = linear.steps if isinstance(linear, EightBit) else linear.weight
    return worth.new_zeros(len(linear.weight))
