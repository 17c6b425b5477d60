"""Whether a module can learn a few examples by heart, which one that is put together wrongly often cannot."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pellucid.check.calling import Call, plain_call
from pellucid.check.chance import DropoutOff, fixed
from pellucid.check.lessons import IGNORED, Lessons, checked, made_up
from pellucid.check.report import Report
from pellucid.check.ways import Probe, Way, copied
from pellucid.errors import CheckError

__all__ = ["overfit"]

Loss = Callable[[Tensor, Any], Tensor]
"""A loss as loss(output, labels) -> a scalar."""

RATES = (1e-2, 1e-3, 1e-4)
LEARNED, ENOUGH = 0.1, 0.3
"""What may remain of the loss above the best possible, as a part of that of the best constant guess: to stop, to pass."""

HALF = 0.5  # what may remain of a loss of the user's own, whose best is not known


def overfit(
    module: nn.Module,
    *inputs: Any,
    labels: Tensor | None = None,
    loss: Loss | None = None,
    steps: int = 200,
    learning_rate: float | None = None,
    call: Call | None = None,
) -> Report:
    """Whether a module can learn the given examples by heart.

    A float32 copy is trained with Adam on all examples at once, without dropout and from fixed random numbers, and stops
    as soon as it has learned: what remains of the loss is compared with that of the best constant guess, and with what
    labels that contradict each other leave to nobody. About ten examples are enough.

    Args:
        module: what is to learn.
        inputs: what it is called with: the examples.
        labels: whole numbers for outputs (..., classes), -100 where none is asked for, trained by cross-entropy; or floats
            in the outputs' shape, trained by mean squared error. If not given: for token ids, each id at its position
            is to be told by a class of its own (or each sample, where outputs stand at none); for float inputs, what the
            module itself gives with other parameters, which it is sure to be able to give.
        loss: loss(output, labels), a scalar, where it is another; it must then fall by half.
        steps: to take at most.
        learning_rate: of Adam; if not given, 0.01, then 0.001 and 0.0001 where it does not learn.
        call: call(module, *inputs), where calling is not plain.

    Raises:
        CheckError: this is no module, it cannot be copied or called so, or labels do not fit its outputs.

    >>> _ = torch.manual_seed(1)
    >>> model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    >>> overfit(model, torch.tensor([[4, 5, 6], [7, 8, 9]])).passed
    True
    """
    if not isinstance(module, nn.Module) or steps < 1:
        raise CheckError(
            f"overfit was given a {type(module).__name__} and {steps} steps; give a module with "
            "parameters, and one step at least"
        )
    frozen = [name for name, one in module.named_parameters() if not one.requires_grad]
    if not any(one.requires_grad for one in module.parameters()):
        found = "no parameter wants a gradient" if frozen else "it has no parameters"
        return Report(
            "overfit", ASKED, (found,), advice="frozen: set requires_grad on the parameters that are to learn"
        )
    with torch.inference_mode(mode=False), torch.enable_grad(), fixed(0):
        pupil = _pupil(module, inputs, call)
        output = _first_output(pupil)
        lessons = (
            made_up(pupil, output) if labels is None and loss is None else checked(inputs, output, labels, loss is None)
        )
        rates = RATES if learning_rate is None else (learning_rate,)
        if frozen:
            note = f"{len(frozen)} parameters are frozen, `{frozen[0]}` the first, and do not learn"
            lessons = replace(lessons, notes=(*lessons.notes, note))
        tries: list[_Course] = []
        for rate in rates:
            tries.append(_trained(_pupil(module, inputs, call), lessons, loss, rate, steps))
            if tries[-1].passed:
                break
    return _told(min(tries, key=lambda course: (not course.passed, course.left)), lessons)


ASKED = "the module must be able to learn these examples by heart"


@dataclass(frozen=True, slots=True)
class _Course:
    """How a training went.

    Attributes:
        losses: the first, and that after each step.
        right: the share of labels that the output gives, of classes only.
        rate: the learning rate.
        goal: the loss that is low enough.
        stuck: parameters that get no gradient.
        deaf: whether no gradient leads from the loss to any parameter.
    """

    losses: list[float]
    right: float | None
    rate: float
    goal: float
    stuck: list[str]
    deaf: bool

    @property
    def passed(self) -> bool:
        """Whether the loss has fallen enough."""
        return self.left <= self.goal and not self.deaf

    @property
    def left(self) -> float:
        """The loss at the end; infinite where it is none."""
        return self.losses[-1] if math.isfinite(self.losses[-1]) else math.inf


def _pupil(module: nn.Module, inputs: Sequence[Any], call: Call | None) -> Probe:
    """A copy in training mode and float32."""
    pupil = copied(module).float().train()
    given = [value.detach().clone() if isinstance(value, Tensor) else value for value in inputs]
    floats = tuple(
        value.float() if isinstance(value, Tensor) and value.is_floating_point() else value for value in given
    )
    return Probe(pupil, floats, Way(training=True, dtype=torch.float32), plain_call(call))


def _first_output(pupil: Probe) -> Tensor:
    return pupil(*_clones(pupil.inputs)).detach()


def _trained(pupil: Probe, lessons: Lessons, loss: Loss | None, rate: float, steps: int) -> _Course:
    """Train a copy until it has learned, or for so many steps."""
    named = {name: one for name, one in pupil.module.named_parameters() if one.requires_grad}
    optimizer = torch.optim.Adam(named.values(), lr=rate)
    losses: list[float] = []
    stuck: list[str] = []
    with fixed(0), DropoutOff(pupil.module):
        for step in range(steps + 1):
            output = pupil.called(pupil.module, *_clones(pupil.inputs))
            value = loss(output, lessons.labels) if loss is not None else _loss(output, lessons.labels)
            losses.append(float(value.detach()))
            learned = lessons.goal(losses[0], LEARNED)
            if not value.requires_grad or not learned < losses[-1] < math.inf or step == steps:
                break
            optimizer.zero_grad()
            try:
                value.backward()  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                said = " ".join(str(error).split())
                raise CheckError(f"the backward pass fails ({said}); see what check.gradients says of it") from error
            stuck = stuck if step else [name for name, one in named.items() if one.grad is None]
            optimizer.step()
    deaf = not value.requires_grad
    goal = lessons.goal(losses[0], HALF if loss is not None else ENOUGH)
    right = _right(output, lessons.labels)
    return _Course(losses, right, rate, goal, list(named) if deaf else stuck, deaf)


def _loss(output: Tensor, labels: Tensor) -> Tensor:
    if labels.is_floating_point():
        return F.mse_loss(output, labels)
    return F.cross_entropy(output.reshape(-1, output.shape[-1]), labels.flatten(), ignore_index=IGNORED)


def _right(output: Tensor, labels: Tensor | None) -> float | None:
    """The share of labels that are the likeliest class."""
    if labels is None or labels.is_floating_point() or output.shape[:-1] != labels.shape:
        return None
    asked = labels != IGNORED
    return float((output.argmax(-1) == labels)[asked].float().mean())


def _clones(inputs: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, Tensor) else value for value in inputs]


def _told(course: _Course, lessons: Lessons) -> Report:
    """The report of the best training."""
    first, last = course.losses[0], course.losses[-1]
    figures: dict[str, float | int | str] = {
        "first loss": first, "last loss": last, "steps": len(course.losses) - 1, "learning rate": course.rate,
    }  # fmt: skip
    if lessons.constant < math.inf:
        figures |= {"loss of the best constant guess": lessons.constant, "least loss that labels leave": lessons.best}
    if course.right is not None:
        figures["share right"] = course.right
    if course.passed and not lessons.hopeless:
        return Report("overfit", ASKED, figures=figures, notes=lessons.notes)
    if course.passed:
        found = ["labels that contradict each other leave little to learn"]
    elif course.deaf:
        found = ["no gradient leads from the loss to any parameter"]
    elif not math.isfinite(last):
        found = [f"the loss is {last} after {len(course.losses) - 1} steps"]
    else:
        how = f"has only fallen from {first:.3g} to {last:.3g}" if last < first else "has not fallen"
        found = [f"the loss {how} in {len(course.losses) - 1} steps, and {course.goal:.3g} or less is learned"]
    found += lessons.contradictions
    return Report("overfit", ASKED, tuple(found), figures, advice=_advice(course, lessons), notes=lessons.notes)


def _advice(course: _Course, lessons: Lessons) -> str:
    """The likely slip."""
    first, last = course.losses[0], course.losses[-1]
    if not math.isfinite(first):
        return "the loss is no number from the start: look with gradients() for where that comes from"
    if lessons.contradictions:
        return (
            "labels contradict each other, as equal inputs have other labels: shuffle inputs and labels alike, or give "
            "what tells them apart"
        )
    if not math.isfinite(last) or last > first:
        return f"the learning rate {course.rate:g} is too high, as the loss grew: give a smaller one"
    if course.stuck:
        some = ", ".join(f"`{name}`" for name in course.stuck[:3]) + " ..." * (len(course.stuck) > 3)
        return (
            f"detached: no gradient reaches {some}; look for detach(), .data, no_grad() or an argmax between them and the "
            "output"
        )
    if lessons.notes:
        return lessons.notes[0]
    return (
        "the output does not say which input it is for: look for inputs that are not used, masks that hide everything, a "
        "mean or a softmax over the wrong axis; or give more steps, or another learning_rate than "
        f"{course.rate:g}"
    )
