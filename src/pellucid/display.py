"""How a long job looks while it runs: a moving bar on a terminal, plain lines anywhere else."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from pellucid.training import Event, Saved, StepTaken, Stopped, Validated

__all__ = ["Display"]


class Display:
    """Shows a job on a console; use it as a context.

    Args:
        console: where to; left out, standard error, so that standard output stays for results.
        after_stop: what to say of a training that was asked to stop.
    """

    def __init__(
        self, console: Console | None = None, after_stop: str = "all is saved, and --resume goes on from here"
    ) -> None:
        self.after_stop = after_stop
        self.console = console or Console(stderr=True)
        self.began = time.monotonic()
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}", markup=False),
                console=self.console,
                transient=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None and self.task is not None:
            self.bar.stop()

    def note(self, line: str) -> None:
        """Say one thing, with the seconds since the beginning before it."""
        text = f"[{time.monotonic() - self.began:7.1f} s] {line}"
        # As it is: no markup, no emoji for what stands between colons, no colours, no line cut in two.
        self.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def count(self, done: int, total: int | None) -> None:
        """Move the bar, where there is one, to so many lines translated, of a number that may not be known."""
        if self.bar is not None:
            self._move(self.bar, "translating", done, total, "")

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
                self.note(f"stopped at step {event.step:,}; {self.after_stop}")
            case Saved():
                pass

    def _step(self, event: StepTaken) -> None:
        left = f"{event.seconds_left / 60:.1f} min left"
        figures = f"loss {event.loss:.3f}, {event.tokens_per_second:,.0f} tokens/s"
        if self.bar is None:
            self.note(f"step {event.step:,} of {event.steps:,}: {figures}, rate {event.learning_rate:.2e}, {left}")
        else:
            self._move(self.bar, "training", event.step, event.steps, f"{figures}, {left}")

    def _move(self, bar: Progress, what: str, done: int, total: int | None, figures: str) -> None:
        """Bring the bar up to date; it appears when there is something to show."""
        if self.task is None:
            bar.start()
            self.task = bar.add_task(what, total=total, figures=figures)
        bar.update(self.task, description=what, completed=done, total=total, figures=figures)
