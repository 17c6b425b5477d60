"""How a training looks while it runs: a moving bar on a terminal, plain lines anywhere else."""

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pellucid.training import Event, Saved, StepTaken, Stopped, Validated

__all__ = ["Display"]


class Display:
    """Shows a training on a stream; use it as a context.

    Args:
        stream: where to; standard error, so that standard output stays for results.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self.began = time.monotonic()
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def note(self, line: str) -> None:
        """Say one thing, with the seconds since the beginning before it."""
        self.console.print(f"[{time.monotonic() - self.began:7.1f} s] {line}", markup=False)

    def tell(self, event: Event) -> None:
        """Show an event of the training."""
        match event:
            case StepTaken():
                self._step(event)
            case Validated():
                figures = [f"loss {event.scores['loss']:.3f} nats/token"]
                figures += [f"{name} {event.scores[key]:.1f}" for name, key in (("BLEU", "bleu"), ("chrF", "chrf"))
                            if key in event.scores]  # fmt: skip
                self.note(f"step {event.step:,}: validation {', '.join(figures)}{', best so far' * event.is_best}")
            case Stopped():
                self.note(f"stopped at step {event.step:,}; all is saved, and --resume goes on from here")
            case Saved():
                pass

    def _step(self, event: StepTaken) -> None:
        figures = f"loss {event.loss:.3f}, {event.tokens_per_second:,.0f} tokens/s"
        if self.bar is None:
            left = f"{event.seconds_left / 60:.1f} min left"
            self.note(f"step {event.step:,} of {event.steps:,}: {figures}, rate {event.learning_rate:.2e}, {left}")
            return
        if self.task is None:
            self.bar.start()
            self.task = self.bar.add_task("training", figures=figures)
        self.bar.update(self.task, completed=event.step, total=event.steps, figures=figures)
