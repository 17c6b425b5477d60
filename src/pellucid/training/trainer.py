"""The training loop: take a step, tell of it, validate, save, stop when asked.

A step's randomness is drawn from (seed, step, process) alone, so a run that was killed and resumed takes the same steps
as one that was not. Lightning Fabric carries device, precision and processes; validation and saving are handed in.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor

from pellucid.config import RunConfig
from pellucid.errors import TrainingError
from pellucid.run import Checkpoint, load_weights
from pellucid.text.batch import Batch, Example
from pellucid.training.events import Event, Saved, StepTaken, Stopped, Validated
from pellucid.training.loss import Objective
from pellucid.training.schedule import learning_rate, optimizer
from pellucid.training.stream import BatchStream

__all__ = ["Keeper", "Trainer"]

HIGHER_IS_BETTER = {"chrf": True, "bleu": True, "loss": False}


class Keeper(Protocol):
    """What a training needs of the disk; `pellucid.run.Run` is one."""

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
        objective: the model with its loss; it is moved to Fabric's device.
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
        self.raw = objective
        self.raw_optimizer = optimizer(objective.parameters(), self.settings)
        self.objective, self.optimizer = fabric.setup(objective, self.raw_optimizer)
        self.progress = _Progress()
        self.pace = _Pace()

    def resume(self, checkpoint: Checkpoint) -> None:
        """Stand where a checkpoint stood."""
        load_weights(self.raw.model, checkpoint.weights)
        names = {parameter: name for name, parameter in self.raw.model.named_parameters()}
        groups = self.raw_optimizer.param_groups
        order = [names[parameter] for group in groups for parameter in group["params"]]
        memory = {
            index: {key: checkpoint.optimizer[f"{name}:{key}"] for key in ("step", "exp_avg", "exp_avg_sq")}
            for index, name in enumerate(order)
        }
        self.raw_optimizer.load_state_dict(
            {"state": memory, "param_groups": self.raw_optimizer.state_dict()["param_groups"]}
        )
        self.progress = _Progress(**checkpoint.state)

    def run(self) -> None:
        """Take all steps that are left, or as many as there is time for before `should_stop` says yes.

        Raises:
            TrainingError: the loss is no longer a number.
        """
        stream = BatchStream(
            self.examples,
            batch_tokens=self.config.data.batch_tokens,
            seed=self.settings.seed,
            epoch=self.progress.epoch,
            position=self.progress.position,
        )
        self.pace = _Pace()
        stopping = False
        while self.progress.step < self.settings.steps and not stopping:
            gradient_norm = self._step(stream)
            step, last = self.progress.step, self.progress.step == self.settings.steps
            if step % self.settings.log_every == 0 or last:
                self._report(gradient_norm)
            stopping = self._agree(self.should_stop()) and not last
            if step % self.settings.validate_every == 0 or last:
                self._validate()
            if step % self.settings.save_every == 0 or last or stopping:
                self._save()
        if stopping:
            self.tell(Stopped(self.progress.step))

    def _step(self, stream: BatchStream) -> Tensor:
        """One update of the weights from `accumulate` batches, each shared out over the processes."""
        self.progress.step += 1
        torch.manual_seed(hash((self.settings.seed, self.progress.step, self.fabric.global_rank)) % 2**63)
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
        """Tell of the steps since the last report, and refuse to go on from a loss that is no number."""
        progress, pace = self.progress, self.pace
        loss = self._sum(progress.window_loss) / progress.window_tokens
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} at step {progress.step}, and training cannot go on from there; lower "
                "training.learning_rate or lengthen training.warmup, and resume from the last checkpoint"
            )
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

    def _validate(self) -> None:
        """Measure the model on the first process, and keep its weights where it is the best so far."""
        if self.fabric.is_global_zero:
            before = time.monotonic()
            self.raw.eval()
            with torch.no_grad():
                scores = dict(self.validate())
            self.raw.train()
            value = scores[self.settings.best]
            sign = 1 if HIGHER_IS_BETTER[self.settings.best] else -1
            # Not "value > best": the first value, compared with NaN, is the best so far.
            is_best = not sign * value <= sign * self.progress.best_value
            if is_best:
                self.progress.best_step, self.progress.best_value = self.progress.step, value
                self.keeper.save_best(dict(self.raw.model.named_parameters()), {"step": self.progress.step, **scores})
            self.tell(Validated(self.progress.step, scores, is_best))
            self.pace.began += time.monotonic() - before
        self.fabric.barrier()

    def _save(self) -> None:
        """Write all that a resumption needs, on the first process."""
        self.progress.window_loss = self._sum(self.progress.window_loss)
        if self.fabric.is_global_zero:
            before = time.monotonic()
            memory = {
                f"{name}:{key}": value
                for name, parameter in self.raw.model.named_parameters()
                for key, value in self.raw_optimizer.state[parameter].items()
            }
            self.keeper.save(Checkpoint(dict(self.raw.model.named_parameters()), memory, vars(self.progress)))
            self.tell(Saved(self.progress.step))
            self.pace.began += time.monotonic() - before
        else:
            self.progress.window_loss = 0.0
        self.fabric.barrier()

    def _sum(self, number: float | Tensor) -> float:
        """The sum of a number over all processes."""
        share = torch.as_tensor(number, dtype=torch.float64)
        total = self.fabric.all_reduce(share, reduce_op="sum")
        assert isinstance(total, Tensor), "one tensor in, one tensor out"
        return float(total)

    def _agree(self, wish: bool) -> bool:
        """Whether any process wishes it, so that all stop at the same step."""
        return self._sum(float(wish)) > 0 if self.fabric.world_size > 1 else wish
