"""Checks any module that is named: whether it keeps its promises, and what it could not be asked."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from pellucid.check.backward import gradients
from pellucid.check.batched import batching
from pellucid.check.cached import cache
from pellucid.check.causal import causality, sees
from pellucid.check.generated import training_matches_generation
from pellucid.check.independent import independence
from pellucid.check.padded import padding
from pellucid.check.report import Report
from pellucid.check.sizes import shapes
from pellucid.check.steady import repeatable
from pellucid.check.ways import CallError, ways
from pellucid.errors import CheckError, ConfigError, PellucidError
from pellucid.jobs.subject import Inputs, Subject, with_lengths
from pellucid.jobs.target import target
from pellucid.masks import Mask, parse

__all__ = ["CHECKS", "Inputs", "Outcome", "Wanted", "check"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a module.

    Attributes:
        checks: names in `CHECKS`; where there are none, all are made that can be.
        everything: make all others, too, that can be.
        mask: what outputs are meant to see, as in "causal & window(4, 0)"; asks for `sees`.
        layers: how many attentions under this mask follow each other.
    """

    checks: frozenset[str] = frozenset()
    everything: bool = False
    mask: str | None = None
    layers: int | None = None

    def meant(self) -> Mask | None:
        """The mask that is meant.

        Raises:
            ConfigError: layers are given without a mask, or fewer than one.
            MaskError: the text is no mask.
        """
        if self.layers is not None and (self.mask is None or self.layers < 1):
            raise ConfigError(
                f"--layers was given {self.layers}{' without --mask' * (self.mask is None)}; it says how many attentions "
                "under the mask follow each other, so give --mask, too, and 1 layer at least"
            )
        return None if self.mask is None else parse(self.mask)

    @property
    def named(self) -> frozenset[str]:
        """The checks that must be made."""
        return self.checks | ({"sees"} if self.mask is not None else frozenset())


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one check of one module ended.

    Attributes:
        module: as it was named.
        name: the check.
        report: what it says; None where it was not made.
        skipped: why it was not.
        named: whether it was asked for by its name.
    """

    module: str
    name: str
    report: Report | None = None
    skipped: str = ""
    named: bool = True

    def record(self) -> dict[str, Any]:
        """All of it as JSON has it: `passed` is null where the check was not made; what is not finite is a string."""
        report = Report(self.name, "") if self.report is None else self.report  # one that failed is false
        figures = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in report.figures.items()
        }
        return {
            "name": self.name,
            "module": self.module,
            "passed": None if self.report is None else report.passed,
            "asked": report.asked,
            "findings": list(report.findings),
            "figures": figures,
            "where": report.where,
            "advice": report.advice,
            "ways": report.ways,
            "notes": list(report.notes),
            "picture": report.picture,
            "skipped": self.skipped,
        }


def _sees(subject: Subject) -> Report:
    if subject.mask is None:
        raise CheckError("what it is meant to see is not known; give --mask 'window(4, 0)'")
    axis, layers = subject.axis, subject.layers
    return sees(subject.module, *subject.inputs, mask=subject.mask, layers=layers, inputs_axis=axis, call=subject.call)


def _padding(subject: Subject) -> Report:
    """Padding of the first input: its first sample has none, the others more and more; of one sample half is."""
    if subject.axis == 0:
        raise CheckError("its argument for lengths is known only where samples come first; leave --length-first out")
    samples, length = subject.inputs[0].shape[:2]
    lengths = tuple(max(1, length - sample * length // max(2, samples)) for sample in range(samples))
    if samples == 1:
        lengths = (max(1, length // 2),)
    return padding(subject.module, *subject.inputs, lengths=lengths, call=subject.call)


def _batching(subject: Subject) -> Report:
    turned = subject.batch_first()
    return batching(turned.module, *turned.inputs, call=turned.call)


def _steps(subject: Subject, check: Callable[..., Report]) -> Report:
    if subject.axis == 0:
        raise CheckError("how it takes a step is known only where samples come first; leave --length-first out")
    return check(subject.module, *subject.inputs)


CHECKS: dict[str, Callable[[Subject], Report]] = {
    "causality": lambda one: causality(one.module, *one.inputs, inputs_axis=one.axis, call=one.call),
    "sees": _sees,
    "padding": _padding,
    "independence": lambda one: independence(one.module, *one.inputs, inputs_axis=one.axis, call=one.call),
    "batching": _batching,
    "repeatable": lambda one: repeatable(one.module, *one.inputs, call=one.call),
    "gradients": lambda one: gradients(one.module, *one.inputs, call=one.call),
    "shapes": lambda one: shapes(one.module, *one.inputs, inputs_axis=one.axis, call=one.call),
    "cache": lambda one: _steps(one, cache),
    "training_matches_generation": lambda one: _steps(one, training_matches_generation),
}
"""Each check by its name: what makes it, and refuses by a CheckError where it cannot be made."""

PURPOSES = {
    "causality": "it looks ahead ({}); give --causal where it must not",
    "training_matches_generation": "it would not generate as it was trained ({}); give --generation where it must",
}
"""What is said of checks that only some modules are meant to pass, where one fails that was not asked for by its name."""


def check(targets: Sequence[str], inputs: Inputs, wanted: Wanted = Wanted()) -> list[Outcome]:
    """Ask each module what is wanted of it.

    Whether a module may look ahead is for its user to say: where causality was not asked for by its name, one that looks
    ahead is not blamed for it, and the outcome says so; likewise whether it generates.

    Args:
        targets: modules, as `FILE.py:NAME` or `package.module:NAME`.
        inputs: what all of them are called with.
        wanted: the checks.

    Raises:
        CheckError: a module cannot be found, built or called, or a check that is named cannot be made on it.
        ConfigError: a shape, the vocabulary, or the layers are none.
        MaskError: the mask is none.

    >>> [outcome] = check(["torch.nn:Identity"], Inputs(("2,5,3",)), Wanted(frozenset({"causality"})))
    >>> bool(outcome.report)
    True
    """
    tensors, mask = inputs.tensors(), wanted.meant()
    found: list[Outcome] = []
    for written in targets:
        with target(written, inputs.seed) as module:
            call = with_lengths(module, len(tensors), 0 if inputs.length_first else 1)
            subject = Subject(module, tensors, call, 0 if inputs.length_first else 1, mask, wanted.layers or 1)
            try:
                found += _outcomes(written, subject, wanted)
            except PellucidError as error:
                raise type(error)(f"{written}: {error}") from error
    return found


def _outcomes(written: str, subject: Subject, wanted: Wanted) -> Iterator[Outcome]:
    """How each check of one module ends, all of which it can be called for."""
    _made("a first call", lambda one: [*(None for _ in ways(one.module, one.inputs, one.call))], subject)
    everything = wanted.everything or not wanted.named
    for name, make in CHECKS.items():
        named = name in wanted.named
        if not (named or everything):
            continue
        try:
            report = _made(name, make, subject)
        except CallError as error:  # though the first call has worked
            yield Outcome(written, name, Report(name, "the module must not raise", (str(error),)), "", named)
            continue
        except PellucidError as error:
            if named:
                raise
            reason, _, advice = str(error).partition("; ")
            reason += f"; {advice}" if "--" in advice else ""  # some advice is for Python only
            yield Outcome(written, name, None, reason, named)
            continue
        if name in PURPOSES and not named and not report.passed:
            yield Outcome(written, name, None, PURPOSES[name].format(report.findings[0]), named)
        else:
            yield Outcome(written, name, report, "", named)


def _made(name: str, make: Callable[[Subject], Any], subject: Subject) -> Any:
    """What a check gives; whatever the module raises meanwhile is a CheckError, and what we raise is not.

    Raises:
        CallError: the module raised.
        CheckError: the check refused it.
    """
    try:
        return make(subject)
    except PellucidError:
        raise
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and not isinstance(trace.tb_frame.f_locals.get("self"), nn.Module):
            trace = trace.tb_next
        if trace is None:
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise CallError(f"the module raised in {name} ({said}); mend it, or give inputs that it takes") from error
