"""Products of states with a weight matrix, as fast as the CPU has them: plain, packed for oneDNN, and in 8-bit integers.

A product knows nothing of the rows beside a row: what it gives for a row depends on that row alone (but for the last
bits of a float, which a kernel may sum in another order for another number of rows; 8-bit sums are exact).
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from jaxtyping import Float, Int8
from torch import Tensor, nn

__all__ = ["EightBit", "Plain", "joined", "quantised"]

SMALL = 2**17  # cells of a weight up to which one row is faster without oneDNN: measured
WEIGHT_STEPS = 127
# The greatest number of a row is 63 steps: in seven bits, products never overflow the 16-bit sums of AVX2.
STEPS = 63


class Plain(nn.Module):
    """states @ weight.T + bias; on a CPU by oneDNN, with the weight laid out as it likes it.

    It is what `torch.nn.Linear` gives, faster where the weight has to come from memory, as in a step of few rows.
    """

    def __init__(self, weight: Float[Tensor, "outside inside"], bias: Float[Tensor, " outside"] | None) -> None:
        super().__init__()
        self._bias = None if bias is None else bias.detach()
        self._packed = _packed(weight.detach())
        self._is_small = weight.numel() <= SMALL
        # what is packed is not kept twice
        self._weight = weight.detach() if self._packed is None or self._is_small else weight.new_empty(0)

    def forward(self, states: Float[Tensor, "*rows inside"]) -> Float[Tensor, "*rows outside"]:
        """(..., in) -> (..., out)."""
        if self._packed is None or (self._is_small and len(states) == 1):
            return F.linear(states, self._weight, self._bias)
        given: Tensor = _LINEAR(states, self._packed, self._bias, "none", [], "")
        return given

    def active(self, states: Float[Tensor, "*rows inside"]) -> Float[Tensor, "*rows outside"]:
        """The same with relu behind it."""
        if self._packed is None:
            return F.linear(states, self._weight, self._bias).relu_()
        given: Tensor = _LINEAR(states, self._packed, self._bias, "relu", [], "")
        return given

    def added(
        self, states: Float[Tensor, "*rows inside"], others: Float[Tensor, "*rows outside"]
    ) -> Float[Tensor, "*rows outside"]:
        """Others + the product."""
        if self._packed is None or (self._is_small and len(states) == 1):
            return others + F.linear(states, self._weight, self._bias)
        given: Tensor = _LINEAR.binary(states, others, self._packed, self._bias, "add")
        return given


_LINEAR = torch.ops.mkldnn._linear_pointwise


def _packed(weight: Tensor) -> Tensor | None:
    """The weight as oneDNN likes it; None where torch has no oneDNN for it."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not torch._C._has_mkldnn:
        return None
    try:
        laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        states = weight.new_zeros(1, weight.shape[1])
        _LINEAR.binary(states, weight.new_zeros(1, len(weight)), laid_out, None, "add")
    except (AttributeError, RuntimeError):  # it is torch's own door to oneDNN, which another version may have moved
        return None
    return laid_out


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

    Weights are rounded to 127 steps on either side of 0 for each output, and sums are whole numbers. States are rounded
    to 63 steps on either side of 0 for each row, or to 127 above it where none is below, as behind a relu. Scaled by
    row, unlike in torch's dynamic quantisation, a sentence never depends on those beside it.

    Args:
        codes: the weight, see `quantised`.
        steps: what a step of each output is worth.
        bias: added to the outputs in floating point.
        positive: whether no state is below 0.
    """

    weight: Tensor
    steps: Tensor
    bias: Tensor | None

    def __init__(
        self,
        codes: Int8[Tensor, "outside inside"],
        steps: Float[Tensor, " outside"],
        bias: Float[Tensor, " outside"] | None,
        *,
        positive: bool = False,
    ) -> None:
        super().__init__()
        self.positive = positive
        self.register_buffer("weight", codes)
        self.register_buffer("steps", steps)
        self.register_buffer("bias", None if bias is None else bias.detach().float())
        self._kernel = _eight_bit_kernel(codes, steps, 2 * STEPS + 1 if positive else STEPS)

    @classmethod
    def of(cls, linear: nn.Linear, *, positive: bool = False) -> "EightBit":
        """A linear map in 8 bits."""
        return cls(*quantised(linear.weight), linear.bias, positive=positive)

    def forward(self, states: Float[Tensor, "*rows inside"]) -> Float[Tensor, "*rows outside"]:
        """(..., in) -> (..., out)."""
        rows = states if states.dim() == 2 else states.reshape(-1, states.shape[-1])
        most = rows.abs().amax(dim=1, keepdim=True).clamp_min_(torch.finfo(torch.float32).tiny)
        sums = self._kernel(rows / most)
        out = sums.mul_(most) if self.bias is None else torch.addcmul(self.bias, sums, most)
        return out if states.dim() == 2 else out.view(*states.shape[:-1], len(self.steps))

    def active(self, states: Float[Tensor, "*rows inside"]) -> Float[Tensor, "*rows outside"]:
        """The same with relu behind it."""
        out: Tensor = self(states).relu_()
        return out

    def added(
        self, states: Float[Tensor, "*rows inside"], others: Float[Tensor, "*rows outside"]
    ) -> Float[Tensor, "*rows outside"]:
        """Others + the product."""
        out: Tensor = others + self(states)
        return out


def _eight_bit_kernel(codes: Tensor, steps: Tensor, most: int) -> Callable[[Tensor], Tensor]:
    """Rows scaled to -1 to 1, rounded to `most` steps, times the weight: by FBGEMM, else by the formula."""
    packed = _fbgemm_weight(codes, steps) if codes.device.type == "cpu" else None
    if packed is None:
        worth, numbers = steps / most, codes.float()

        # up to 2**24, which 2,000 inputs never pass, float32 sums whole numbers exactly
        def multiply_by_formula(rows: Tensor) -> Tensor:
            return F.linear((rows * most).round(), numbers) * worth

        return multiply_by_formula
    kernel = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
    zero = 64 if most == STEPS else 0  # what stands for 0 among seven bits

    def multiply(rows: Tensor) -> Tensor:
        given: Tensor = kernel(rows, 1 / most, zero, packed)
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch means to drop these one day, and then the formula serves
            weight = torch._make_per_channel_quantized_tensor(codes, steps.double(), zeros, 0)
            packed: Any = torch.ops.quantized.linear_prepack(weight, None)
            return packed
    except (AttributeError, RuntimeError):
        return None
    finally:
        torch.backends.quantized.engine = before


def joined(maps: Sequence[nn.Linear | EightBit], scales: Sequence[float]) -> Plain | EightBit:
    """Several linear maps of the same states as one product, their outputs side by side, each times its scale."""
    pairs = list(zip(maps, scales, strict=True))
    bias = None
    if any(linear.bias is not None for linear in maps):
        bias = torch.cat([_bias_of(linear) * scale for linear, scale in pairs])
    if all(isinstance(linear, EightBit) for linear in maps):
        steps = torch.cat([linear.steps * scale for linear, scale in pairs if isinstance(linear, EightBit)])
        positive = all(linear.positive for linear in maps if isinstance(linear, EightBit))
        return EightBit(torch.cat([linear.weight for linear in maps]), steps, bias, positive=positive)
    weight = torch.cat([linear.weight.detach() * scale for linear, scale in pairs])
    return Plain(weight, bias)


def _bias_of(linear: nn.Linear | EightBit) -> Tensor:
    """Its bias, or zeros."""
    if linear.bias is not None:
        return linear.bias.detach()
    worth = linear.steps if isinstance(linear, EightBit) else linear.weight
    return worth.new_zeros(len(linear.weight))
