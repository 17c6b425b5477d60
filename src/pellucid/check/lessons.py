"""What a module is to learn by heart: the labels, given or made up, and how well anybody could know them."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pellucid.check.ways import Probe, copied
from pellucid.errors import CheckError

__all__ = ["IGNORED", "Lessons", "checked", "made_up"]

IGNORED = -100
"""The label of what is not asked for."""

MOST = 0.5  # a label more common than that may be padding


@dataclass(frozen=True, slots=True)
class Lessons:
    """Labels, and what may be expected.

    Attributes:
        labels: whole numbers, or floats in the outputs' shape; anything where the loss is the user's own.
        constant: the loss of the best guess that knows nothing of the inputs; infinite where it is not known.
        best: the least loss that labels leave which contradict each other.
        contradictions: findings on equal inputs with other labels.
        notes: what is odd about the labels.
    """

    labels: Any
    constant: float = math.inf
    best: float = 0.0
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def hopeless(self) -> bool:
        """Whether labels contradict each other so much that little is left to learn."""
        return bool(self.contradictions) and self.best > MOST * self.constant

    def goal(self, first: float, share: float) -> float:
        """The loss at which no more than a share remains of what can be learned, beginning at a first loss."""
        known = self.best + 1e-9 < self.constant < math.inf
        return self.best + share * ((self.constant if known else first) - self.best)


def made_up(pupil: Probe, output: Tensor) -> Lessons:
    """Labels that a module can surely learn, if it heeds its last input.

    For ids: a class for each id, or for each sample where outputs stand at no positions. For floats: what another pupil
    gives, whose parameters are others.
    """
    x = next(
        (value for value in reversed(pupil.inputs) if isinstance(value, Tensor) and value.dtype != torch.bool), None
    )
    if x is not None and not x.is_floating_point() and x.dim() > 1 and output.dim() > 1:
        classes = output.shape[-1]
        if output.shape[:-1] == x.shape:
            return replace(
                _of_classes(pupil.inputs, torch.unique(x, return_inverse=True)[1] % classes),
                best=0.0,
                contradictions=(),
                notes=(),
            )
        if output.shape[:-1] == x.shape[:1]:
            told = torch.unique(x, dim=0, return_inverse=True)[1] % classes
            return replace(_of_classes(pupil.inputs, told), best=0.0, contradictions=(), notes=())
    teacher = replace(pupil, module=copied(pupil.module))
    with torch.no_grad():
        for one in teacher.module.parameters():
            if one.requires_grad:
                spread = float(one.std()) if one.numel() > 1 and bool(one.std() > 0) else 0.5
                one.add_(torch.randn_like(one), alpha=spread)
        labels = teacher(*[value.clone() if isinstance(value, Tensor) else value for value in pupil.inputs]).detach()
    constant = float((labels - labels.mean(0)).square().mean()) if len(labels) > 1 else math.inf
    return Lessons(labels, min(constant, float((labels - output).square().mean())))


def checked(inputs: Sequence[Any], output: Tensor, labels: Tensor | None, own_loss: bool) -> Lessons:
    """The labels that were given.

    Args:
        inputs: of the module.
        output: of the module.
        labels: of the user.
        own_loss: whether the loss is cross-entropy or squared error, rather than the user's.

    Raises:
        CheckError: they do not fit the outputs.
    """
    if not own_loss:
        return Lessons(labels.detach().clone() if isinstance(labels, Tensor) else labels)
    assert labels is not None
    labels = labels.detach().clone()
    shape, fits = tuple(output.shape), tuple(labels.shape)
    if labels.is_floating_point():
        if fits != shape:
            raise CheckError(
                f"labels {fits} do not fit an output of {shape}; give floats of that shape, or whole numbers of classes"
            )
        return _of_numbers(inputs, labels.float())
    if not shape or fits != shape[:-1]:
        raise CheckError(
            f"labels {fits} do not fit an output of {shape}; give whole numbers of shape {shape[:-1]}, with classes on the "
            "output's last axis, or call= that turns it"
        )
    asked = labels[labels != IGNORED]
    if not asked.numel() or int(asked.min()) < 0 or int(asked.max()) >= shape[-1]:
        seen = f"{int(asked.min())} to {int(asked.max())}" if asked.numel() else "all -100"
        raise CheckError(
            f"labels are {seen}, but the output has {shape[-1]} classes; give 0 to {shape[-1] - 1}, and -100 for none"
        )
    return _of_classes(inputs, labels.long())


def _of_classes(inputs: Sequence[Any], labels: Tensor) -> Lessons:
    asked = [
        (key, label)
        for key, label in zip(_contexts(inputs, labels), labels.flatten().tolist(), strict=True)
        if label != IGNORED
    ]
    alone = Counter(label for _, label in asked)
    together: dict[Hashable, Counter[int]] = {}
    for key, label in asked:
        together.setdefault(key, Counter())[label] += 1
    common, times = alone.most_common(1)[0]
    notes = []
    if len(asked) > 1 and len(alone) > 1 and times > MOST * len(asked):
        notes.append(
            f"{times} of {len(asked)} labels are {common}, as padding often is; -100 leaves labels out of the loss"
        )
    best = sum(_surprise(one) for one in together.values()) / len(asked)
    return Lessons(labels, _surprise(alone) / len(asked), best, _contradictions(inputs, labels), tuple(notes))


def _of_numbers(inputs: Sequence[Any], labels: Tensor) -> Lessons:
    mean = labels.mean(0, keepdim=True) if labels.dim() > 1 else labels.mean()
    constant = float((labels - mean).square().mean())
    groups: dict[Hashable, list[int]] = {}
    for sample, key in enumerate(_samples(inputs, len(labels))):
        groups.setdefault(key, []).append(sample)
    best = sum(float((labels[own] - labels[own].mean(0)).square().sum()) for own in groups.values()) / labels.numel()
    return Lessons(labels, constant, best, _contradictions(inputs, labels))


def _surprise(counts: Counter[int]) -> float:
    """The sum of -log p of labels that are known by their shares only, in nats."""
    total = counts.total()
    return -sum(count * math.log(count / total) for count in counts.values())


def _samples(inputs: Sequence[Any], count: int) -> list[Hashable]:
    """What tells samples apart: the content of all inputs that have as many."""
    own = [value for value in inputs if isinstance(value, Tensor) and value.dim() and len(value) == count]
    return [tuple(_content(value[sample]) for value in own) or sample for sample in range(count)]


def _contexts(inputs: Sequence[Any], labels: Tensor) -> list[Hashable]:
    """What is sure to tell labels apart: of ids as many, those up to each position; else a position of a sample.

    A module that also looks ahead may know more; its best loss is then lower.
    """
    if not labels.dim():
        return [0]
    ids = next((value for value in reversed(inputs) if isinstance(value, Tensor)), None)
    whole = _samples(inputs, len(labels))
    if ids is None or ids.is_floating_point() or ids.shape != labels.shape or ids.dim() != 2:
        places = labels[0].numel() if len(labels) else 0
        return [(key, place) for key in whole for place in range(places)]
    others = _samples([value for value in inputs if value is not ids], len(labels))
    alone = not any(
        isinstance(value, Tensor) and value is not ids and value.dim() and len(value) == len(labels) for value in inputs
    )
    return [
        (0 if alone else others[sample], _content(ids[sample, : place + 1]))
        for sample in range(len(ids)) for place in range(ids.shape[1])
    ]  # fmt: skip


def _content(value: Tensor) -> Hashable:
    return tuple(value.flatten().tolist())


def _contradictions(inputs: Sequence[Any], labels: Tensor) -> tuple[str, ...]:
    """Samples whose inputs are equal and whose labels are not."""
    if not labels.dim():
        return ()
    first: dict[Hashable, int] = {}
    for sample, key in enumerate(_samples(inputs, len(labels))):
        twin = first.setdefault(key, sample)
        if twin != sample and not torch.equal(labels[twin], labels[sample]):
            return (f"samples {twin} and {sample} have equal inputs and other labels",)
    return ()
