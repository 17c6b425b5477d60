"""How a model takes steps with a cache, whoever wrote it: what begins them, what one is, and how samples change places."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pellucid.check.calling import arguments_of, plain_call, title
from pellucid.errors import CheckError

__all__ = ["Begin", "Select", "Step", "Stepping", "Whole", "logits_of", "stepping_of"]

Whole = Callable[..., Any]
"""whole(model, *sources, target) -> logits (B, T, V): all target positions at once."""

Begin = Callable[..., Any]
"""begin(model, *sources) -> state: what stands before the first target position."""

Step = Callable[[Any, Any, Any], Any]
"""step(model, ids, state) -> (logits of the given ids, state after them); ids are (B, n), the new ones only."""

Select = Callable[[Any, Any], Any]
"""select(state, rows) -> state: that of the given samples, in the given order, all that it holds of sources, too."""

PASTS = ("cache", "past_key_values", "past", "kv_cache", "past_kv", "layer_past", "caches", "past_kvs", "kv_caches")
"""Arguments that are known to take what a call before handed back."""


@dataclass(frozen=True, slots=True)
class Stepping:
    """A model's two ways to the same logits: all positions at once, and step by step.

    Attributes:
        whole: all positions at once; None where the model is called plainly.
        begin: what begins the steps.
        step: one of them.
        select: how a state's samples change places; its answer is None where no way is known.
    """

    whole: Whole | None
    begin: Begin
    step: Step
    select: Callable[[Any, Any, Tensor], Any]


@dataclass(frozen=True, slots=True)
class _Held:
    """The state of a model whose calls are known: what it made of the sources, and its past."""

    memory: Any = None
    past: Any = None


def stepping_of(
    model: Any, sources: int, *, whole: Whole | None, begin: Begin | None, step: Step | None, select: Select | None
) -> Stepping | None:
    """How a model takes steps: as it is told, or as models of its kind are known to; None where neither is so.

    Args:
        model: the module, function or object.
        sources: how many inputs come before the target.
        whole: all positions at once.
        begin: what begins the steps; needed where there are sources and `step` is given.
        step: one of them.
        select: how samples change places.

    Raises:
        CheckError: `step` was given, and sources, but no `begin`; or `begin` or `select` without `step`.
    """
    if step is None:
        if begin is not None or select is not None:
            raise CheckError(
                f"{'begin' if begin is not None else 'select'}= was given without step=; give step=lambda model, ids, "
                "state: ..., which hands back the logits and the next state"
            )
        known = _known(model, sources)
        return known and dataclasses.replace(known, whole=whole or known.whole)
    if begin is None and sources:
        raise CheckError(
            f"step= was given for {sources + 1} inputs without begin=; give begin=lambda model, *sources: ..., which hands "
            "back the first state"
        )

    def selected(_: Any, state: Any, rows: Tensor) -> Any:
        return select(state, rows) if select is not None else _selected(state, rows)

    return Stepping(whole, begin or (lambda _: None), step, selected)


def _known(model: Any, sources: int) -> Stepping | None:
    """How models of its kind take steps: ours, Hugging Face's, and decoders that are given and hand back a cache."""
    names = arguments_of(model)
    past = _past_of(names)
    decode = getattr(model, "decode", None)
    if (
        sources == 1
        and past
        and {"encoder_outputs", "decoder_input_ids"} <= set(names)
        and hasattr(model, "get_encoder")
    ):
        return _encoder_decoder(past)
    if sources == 1 and hasattr(model, "encode") and decode is not None:
        past = _past_of(arguments_of(decode))
        return _encode_decode(past) if past else None
    return _decoder(past, use_cache="use_cache" in names) if sources == 0 and past else None


def _past_of(names: list[str]) -> str:
    """The argument that takes the past, or nothing."""
    return next((name for name in PASTS if name in names), "")


def _encode_decode(past: str) -> Stepping:
    """Models with `encode(source)` and `decode(target, memory, cache=)`, as ours."""

    def step(model: Any, ids: Tensor, state: _Held) -> tuple[Any, _Held]:
        logits, made = _pair(model, model.decode(ids, state.memory, **{past: state.past}))
        return logits, _Held(state.memory, made)

    return Stepping(None, lambda model, source: _Held(model.encode(source)), step, _rows_of)


def _decoder(past: str, *, use_cache: bool) -> Stepping:
    """Decoders that take ids and a cache, and hand back logits and a cache, Hugging Face's among them."""
    named = {"use_cache": True} if use_cache else {}

    def step(model: Any, ids: Tensor, state: _Held) -> tuple[Any, _Held]:
        logits, made = _pair(model, model(ids, **{past: state.past}, **named))
        return logits, _Held(None, made)

    return Stepping(None, lambda _: _Held(), step, _rows_of)


def _encoder_decoder(past: str) -> Stepping:
    """Encoder-decoders of Hugging Face, which take encoder outputs and a cache by name."""

    def whole(model: Any, source: Tensor, target: Tensor) -> Any:
        return model(source, decoder_input_ids=target)

    def begin(model: Any, source: Tensor) -> _Held:
        return _Held(model.get_encoder()(source))

    def step(model: Any, ids: Tensor, state: _Held) -> tuple[Any, _Held]:
        named = {"encoder_outputs": state.memory, "decoder_input_ids": ids, past: state.past, "use_cache": True}
        logits, made = _pair(model, model(**named))
        return logits, _Held(state.memory, made)

    return Stepping(whole, begin, step, _rows_of)


def _pair(model: Any, output: Any) -> tuple[Tensor, Any]:
    """The logits and the cache of what a model hands back.

    Raises:
        CheckError: it hands back no cache.
    """
    if isinstance(output, tuple | list) and len(output) > 1:
        made = output[1]
    else:
        made = next((getattr(output, name) for name in PASTS if hasattr(output, name)), None)
    if made is None:
        raise CheckError(
            f"{title(model)} takes a cache and handed none back, but a {type(output).__name__}; give step=lambda model, "
            "ids, state: ..., which hands back the logits and the next state"
        )
    return plain_call(lambda _, given: given)(None, output), made


def _rows_of(model: Any, state: _Held, rows: Tensor) -> _Held | None:
    """The memory and the past of samples in another order; by the model itself where neither is a thing that can."""
    memory = _selected(state.memory, rows)
    reorder = getattr(model, "_reorder_cache", getattr(model, "reorder_cache", None))
    past = _selected(state.past, rows)
    if past is None and reorder is not None and state.past is not None:
        past = reorder(state.past, rows)
    if (memory is None) != (state.memory is None) or past is None:
        return None
    return _Held(memory, past)


def _selected(value: Any, rows: Tensor) -> Any:
    """The given samples of a tensor, of a record whose first tensor it is, or of a thing that selects; else None."""
    if isinstance(value, Tensor):
        return value.index_select(0, rows.to(value.device))
    if callable(getattr(value, "select", None)):
        return value.select(rows)
    if callable(getattr(value, "reorder_cache", None)):
        value.reorder_cache(rows)  # a thing of Hugging Face, which changes itself
        return value
    hidden = getattr(value, "last_hidden_state", None)
    if isinstance(hidden, Tensor) and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, last_hidden_state=_selected(hidden, rows))
    return None


def logits_of(output: Any, ids: Tensor, model: Any) -> Tensor:
    """The logits (B, n, V) that a step gave for n ids; (B, V) of one id will do.

    Raises:
        CheckError: they do not stand at the ids' positions.
    """
    if isinstance(output, Tensor) and output.dim() == 2 and ids.shape[1] == 1:
        output = output[:, None]
    if not isinstance(output, Tensor) or output.dim() < 3 or output.shape[:2] != ids.shape[:2]:
        given = str(tuple(output.shape)) if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise CheckError(
            f"a step of {title(model)} gave {given} for ids {tuple(ids.shape)}; give a step that hands back logits at each "
            "of its positions, or chunks=False where it takes one id at a time"
        )
    return output
