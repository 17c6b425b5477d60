"""How a module is called, whoever wrote it: what it is handed, and which of what it hands back is looked at."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.errors import CheckError

__all__ = ["Call", "arguments_of", "plain_call", "probed_input", "title", "usual_call"]

Call = Callable[..., Any]
"""How a module is called: call(module, *inputs) -> output."""

OUTPUTS = ("logits", "last_hidden_state")
"""Where modules that hand back a record, as Hugging Face's do, keep the tensor that is looked at."""

TARGETS = ("target", "tgt", "targets", "target_ids", "decoder_input_ids")
"""Arguments that are known to be a decoder's own input."""


def plain_call(call: Call | None = None) -> Callable[..., Tensor]:
    """A call whose output is one tensor, the first of several, with gradients where inputs want them.

    nn.MultiheadAttention with one input attends to itself; a model of Hugging Face with two inputs takes the second as
    `decoder_input_ids`.
    """

    def to_tensor(module: Any, *inputs: Any) -> Tensor:
        output = usual_call(module, inputs, {}) if call is None else call(module, *inputs)
        fields = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
        if not isinstance(output, Tensor):
            output = next((fields[name] for name in OUTPUTS if isinstance(fields.get(name), Tensor)), output)
        if isinstance(output, tuple | list) and output:
            output = output[0]
        if not isinstance(output, Tensor):
            raise CheckError(f"the module gave a {type(output).__name__}, not a tensor; give call= that hands back one")
        return output

    return torch.enable_grad()(to_tensor)


def arguments_of(module: Any) -> list[str]:
    """The names of what a module or function takes; none where it is written in C and does not say."""
    function = module.forward if isinstance(module, nn.Module) else module
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def probed_input(module: Any, inputs: tuple[Any, ...], of: int | None) -> int:
    """Which input is asked about: the one given, else the one known as a decoder's own, else the last.

    Raises:
        CheckError: there is no such input, or it is no tensor.
    """
    names = arguments_of(module)[: len(inputs)]
    known = [place for place, name in enumerate(names) if name in TARGETS]
    place = of if of is not None else known[0] if known and len(inputs) > 1 else len(inputs) - 1
    there = isinstance(place, int) and -len(inputs) <= place < len(inputs)
    if not there or not isinstance(inputs[place], Tensor):
        given = ", ".join(type(value).__name__ for value in inputs) or "nothing"
        raise CheckError(
            f"a check of input {place} was given {given}; give the tensors that the module is called with, and of= the "
            "place of the one that is asked about"
        )
    return place % len(inputs)


def title(module: Any) -> str:
    """What a module or a function is called in a sentence."""
    return (
        type(module).__name__ if isinstance(module, nn.Module) else getattr(module, "__name__", type(module).__name__)
    )


def usual_call(module: Any, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Call a module as its kind is called, with inputs and with what else it must be told by name."""
    if isinstance(module, nn.MultiheadAttention) and len(inputs) == 1:
        inputs *= 3
    names = arguments_of(module)
    if "decoder_input_ids" in names and names[:1] == ["input_ids"] and len(inputs) == 2:
        return module(inputs[0], decoder_input_ids=inputs[1], **named)
    return module(*inputs, **named)
