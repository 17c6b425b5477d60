"""The training loop: take a step, tell of it, validate, save, stop when asked.

A step's randomness is drawn from (seed, step, process) alone, so a run that was killed and resumed takes the same steps
as one that was not. Lightning Fabric carries device, precision and processes; validation and saving are handed in.
"""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from lightning_fabric import Fabric
from torch import Tensor

from pellucid.config import RunConfig
from pellucid.errors import RunError, TrainingError
from pellucid.run import Checkpoint, load_weights
from pellucid.text.batch import Batch, Example
from pellucid.training.events import Event, Saved, StepTaken, Stopped, Validated
from pellucid.training.loss import Objective
from pellucid.training.schedule import learning_rate, optimizer
from pellucid.training.stream import BatchStream

__all__ = ["Keeper", "Trainer"]

HIGHER_IS_BETTER = {"chrf": True, "bleu": True, "loss": False}


@runtime_checkable
class Keeper(Protocol):
    """What a training needs of the disk; `pellucid.run.Run` is one.

    The tensors are the living ones, which the next step changes: whoever keeps them writes or copies them at once.
    """

    def save(self, checkpoint: Checkpoint) -> object:
        """Keep all that a resumption needs."""

    def save_best(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Keep the best weights so far."""


@dataclass
class _Progress:
    """Where the training stands: what a checkpoint keeps beside weights and the optimiser's memory."""

    step: int = 0
    best_step: int = 0
    best_value: float = math.nan
    window_loss: float | Tensor = 0.0
    window_tokens: int = 0
    epoch: int = 0
    position: int = 0


@dataclass
class _Pace:
    """How fast the steps since the last report went; a matter of this process, never saved."""

    began: float = field(default_factory=time.monotonic)
    tokens: int = 0
    steps: int = 0


class Trainer:
    """Trains one model on one set of examples.

    Args:
        objective: the model with its loss; it is moved to Fabric's device, and made float64 where that is asked for.
        examples: the encoded training pairs.
        config: every setting of the run.
        fabric: device, precision and processes, launched.
        keeper: where checkpoints go.
        validate: measures the model, in evaluation mode: names and figures, among them `training.best`.
        tell: is given every event, on the first process only.
        should_stop: asked after every step; once it says yes, the state is saved and the training ends.
    """

    def __init__(
        self,
        objective: Objective,
        examples: Sequence[Example],
        config: RunConfig,
        *,
        fabric: Fabric,
        keeper: Keeper,
        validate: Callable[[], Mapping[str, float]],
        tell: Callable[[Event], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config = config
        self.settings = config.training
        self.examples = examples
        self.fabric = fabric
        self.keeper = keeper
        self.validate = validate
        self.tell = tell if fabric.is_global_zero else lambda _: None
        self.should_stop = should_stop
        self.raw = objective.double() if self.settings.precision == "float64" else objective
        self.raw_optimizer = optimizer(objective.parameters(), self.settings)
        self.objective, self.optimizer = fabric.setup(objective, self.raw_optimizer)
        self.progress = _Progress()
        self.pace = _Pace()

    def resume(self, checkpoint: Checkpoint) -> None:
        """Stand where a checkpoint stood; the checkpoint is copied from, and stays as it is.

        Raises:
            RunError: it is another model's, or lacks a part.
        """
        load_weights(self.raw.model, checkpoint.weights)
        names = {parameter: name for name, parameter in self.raw.model.named_parameters()}
        groups = self.raw_optimizer.param_groups
        order = [names[parameter] for group in groups for parameter in group["params"]]
        try:
            memory = {
                index: {key: checkpoint.optimizer[f"{name}:{key}"].clone() for key in ("step", "exp_avg", "exp_avg_sq")}
                for index, name in enumerate(order)
            }
            progress = _Progress(**checkpoint.state)
        except (KeyError, TypeError) as error:
            raise RunError(
                f"the checkpoint of step {checkpoint.state.get('step')} does not hold what a resumption needs ({error}); "
                "remove its folder to continue from the one before"
            ) from None
        self.raw_optimizer.load_state_dict(
            {"state": memory, "param_groups": self.raw_optimizer.state_dict()["param_groups"]}
        )
        if not self.fabric.is_global_zero:
            progress.window_loss = 0.0  # the first process carries the sum of all, as `_save` left it
        self.progress = progress

    def run(self) -> None:
        """Take all steps that are left, or as many as there is time for before `should_stop` says yes.

        Raises:
            TrainingError: the loss or its gradient is no longer a number; nothing that came of it is saved.
        """
        stream = BatchStream(
            self.examples,
            batch_tokens=self.config.data.batch_tokens,
            seed=self.settings.seed,
            epoch=self.progress.epoch,
            position=self.progress.position,
        )
        self.pace = _Pace()
        self.raw.train()  # whoever was given the model before may have left it in evaluation mode, without dropout
        stopping = False
        while self.progress.step < self.settings.steps and not stopping:
            gradient_norm = self._step(stream)
            if self._due(self.settings.log_every):
                self._report(gradient_norm)
            if self._due(self.settings.validate_every):
                self._validate(gradient_norm)
            # Asked after the validation, which may take long.
            stopping = self._agree(self.should_stop()) and self.progress.step < self.settings.steps
            if self._due(self.settings.save_every) or stopping:
                self._save(gradient_norm)
        if stopping:
            self.tell(Stopped(self.progress.step))

    def _due(self, every: int) -> bool:
        """Whether something that comes every so many steps, and after the last, comes now."""
        return self.progress.step % every == 0 or self.progress.step == self.settings.steps

    def _step(self, stream: BatchStream) -> Tensor:
        """One update of the weights from `accumulate` batches, each shared out over the processes."""
        self.progress.step += 1
        draw = random.Random(f"step/{self.settings.seed}/{self.progress.step}/{self.fabric.global_rank}")
        torch.manual_seed(draw.getrandbits(63))
        for group in self.raw_optimizer.param_groups:
            group["lr"] = learning_rate(self.progress.step, self.settings)
        batches = [stream.take() for _ in range(self.settings.accumulate)]
        tokens = sum(batch.tokens for batch in batches)
        for index, batch in enumerate(batches):
            with self.fabric.no_backward_sync(self.objective, enabled=index < len(batches) - 1):
                loss = self._loss(batch)
                # Processes average their gradients; times their number, that is the sum, whatever their shares are.
                self.fabric.backward(loss * (self.fabric.world_size / tokens))
            self.progress.window_loss += loss.detach()
        bound = self.settings.clip_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.raw.parameters(), bound)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.window_tokens += tokens
        self.progress.epoch, self.progress.position = stream.epoch, stream.position
        self.pace.steps += 1
        self.pace.tokens += sum(sum(batch.source_lengths) + batch.tokens for batch in batches)
        return norm

    def _loss(self, batch: Batch) -> Tensor:
        """This process's share of a batch's loss, summed over its tokens."""
        part = batch.part(self.fabric.global_rank, self.fabric.world_size)
        ids = self.fabric.to_device((part.source, part.target, part.labels))
        loss: Tensor = self.objective(*ids, part.source_lengths, part.target_lengths) * part.weight
        return loss

    def _report(self, gradient_norm: Tensor) -> None:
        """Tell of the steps since the last report."""
        progress, pace = self.progress, self.pace
        loss = self._finite_loss(gradient_norm) / progress.window_tokens
        seconds = max(time.monotonic() - pace.began, 1e-9)
        self.tell(
            StepTaken(
                step=progress.step,
                steps=self.settings.steps,
                epoch=progress.epoch,
                loss=loss,
                learning_rate=learning_rate(progress.step, self.settings),
                gradient_norm=float(gradient_norm),
                tokens_per_second=pace.tokens / seconds,
                seconds_left=(self.settings.steps - progress.step) * seconds / pace.steps,
            )
        )
        progress.window_loss, progress.window_tokens = 0.0, 0
        self.pace = _Pace()

    def _validate(self, gradient_norm: Tensor) -> None:
        """Measure the model on the first process, and keep its weights where it is the best so far."""
        self._finite_loss(gradient_norm)
        if self.fabric.is_global_zero:
            before = time.monotonic()
            self.raw.eval()
            with torch.no_grad():
                scores = dict(self.validate())
            self.raw.train()
            value, best = scores[self.settings.best], self.progress.best_value
            is_best = math.isnan(best) or (value > best if HIGHER_IS_BETTER[self.settings.best] else value < best)
            if is_best:
                self.progress.best_step, self.progress.best_value = self.progress.step, value
                self.keeper.save_best(dict(self.raw.model.named_parameters()), {"step": self.progress.step, **scores})
            self.tell(Validated(self.progress.step, scores, is_best))
            self.pace.began += time.monotonic() - before
        self.fabric.barrier()

    def _save(self, gradient_norm: Tensor) -> None:
        """Write all that a resumption needs, on the first process."""
        self.progress.window_loss = self._finite_loss(gradient_norm)
        if self.fabric.is_global_zero:
            before = time.monotonic()
            memory = {
                f"{name}:{key}": value
                for name, parameter in self.raw.model.named_parameters()
                for key, value in self.raw_optimizer.state[parameter].items()
            }
            self.keeper.save(Checkpoint(dict(self.raw.model.named_parameters()), memory, asdict(self.progress)))
            self.tell(Saved(self.progress.step))
            self.pace.began += time.monotonic() - before
        else:
            self.progress.window_loss = 0.0
        self.fabric.barrier()

    def _finite_loss(self, gradient_norm: Tensor) -> float:
        """The loss of the steps since the last report, summed; refused where it or the gradient is no number.

        Weights that a bad gradient has spoilt show in no loss before the next step: so both are looked at.
        """
        loss = self._sum(self.progress.window_loss)
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            raise TrainingError(
                f"by step {self.progress.step} the loss is {loss} with a gradient of norm {float(gradient_norm)}, and "
                "training cannot go on from there; lower training.learning_rate or lengthen training.warmup, and "
                "resume from the last checkpoint"
            )
        return loss

    def _sum(self, number: float | Tensor) -> float:
        """The sum of a number over all processes."""
        share = torch.as_tensor(number, dtype=torch.float64)
        total = self.fabric.all_reduce(share, reduce_op="sum")
        assert isinstance(total, Tensor), "one tensor in, one tensor out"
        return float(total)

    def _agree(self, wish: bool) -> bool:
        """Whether any process wishes it, so that all stop at the same step."""
        return self._sum(float(wish)) > 0 if self.fabric.world_size > 1 else wish
