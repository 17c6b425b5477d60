"""Checks as tests write them: each raises what its check finds, and pytest shows that at the line of the test."""

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec

from pellucid.check.backward import gradients
from pellucid.check.batched import batching
from pellucid.check.cached import cache
from pellucid.check.causal import causality, sees
from pellucid.check.equal import parity
from pellucid.check.generated import training_matches_generation
from pellucid.check.independent import independence
from pellucid.check.labels import shift
from pellucid.check.learning import overfit
from pellucid.check.padded import padding
from pellucid.check.report import Report
from pellucid.check.sizes import shapes
from pellucid.check.steady import repeatable
from pellucid.errors import CheckFailed

__all__ = [
    "assert_batching",
    "assert_cache",
    "assert_causal",
    "assert_gradients",
    "assert_independent",
    "assert_learns",
    "assert_padding_ignored",
    "assert_parity",
    "assert_repeatable",
    "assert_sees",
    "assert_shapes",
    "assert_shifted",
    "assert_training_matches_generation",
]

Arguments = ParamSpec("Arguments")


def _raising(name: str, check: Callable[Arguments, Report]) -> Callable[Arguments, None]:
    """A function that takes what a check takes, hands nothing back, and raises the report where it has findings.

    Args:
        name: what the function is called.
        check: the check.
    """

    @functools.wraps(check)
    def asserts(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        __tracebackhide__ = True  # pytest then shows the line of the test, not this one
        report = check(*args, **kwargs)
        if not report.passed:
            raise CheckFailed(str(report))

    known = inspect.signature(check)
    vars(asserts)["__signature__"] = known.replace(return_annotation=None)
    vars(asserts).pop("__wrapped__")
    asserts.__name__ = asserts.__qualname__ = name
    asserts.__module__ = __name__
    asserts.__annotations__ = {**check.__annotations__, "return": None}
    asserts.__doc__ = (
        f"Raise CheckFailed, an AssertionError, with the whole report and its picture where `{check.__name__}` finds "
        f"something.\n\n    {check.__doc__}"
    )
    return asserts


assert_causal = _raising("assert_causal", causality)
"""`causality`: no output depends on an input ahead of it."""

assert_sees = _raising("assert_sees", sees)
"""`sees`: each output depends on the inputs that a mask lets it see, and on no others."""

assert_padding_ignored = _raising("assert_padding_ignored", padding)
"""`padding`: neither what stands in the padding nor how much of it there is changes anything."""

assert_independent = _raising("assert_independent", independence)
"""`independence`: no sample of a batch moves another."""

assert_batching = _raising("assert_batching", batching)
"""`batching`: a sample gives alone what it gives in a batch, in any order."""

assert_cache = _raising("assert_cache", cache)
"""`cache`: step by step with a cache gives what all at once does."""

assert_training_matches_generation = _raising("assert_training_matches_generation", training_matches_generation)
"""`training_matches_generation`: what was generated gets the logits that it had while it was generated."""

assert_shifted = _raising("assert_shifted", shift)
"""`shift`: each label is the input of the next position."""

assert_parity = _raising("assert_parity", parity)
"""`parity`: two modules give the same outputs."""

assert_repeatable = _raising("assert_repeatable", repeatable)
"""`repeatable`: the same call gives the same output, and changes nothing that the module holds or was given."""

assert_gradients = _raising("assert_gradients", gradients)
"""`gradients`: each parameter that wants a gradient gets one, finite and right."""

assert_shapes = _raising("assert_shapes", shapes)
"""`shapes`: the output has the axes that are expected."""

assert_learns = _raising("assert_learns", overfit)
"""`overfit`: a module can learn the given examples by heart."""
