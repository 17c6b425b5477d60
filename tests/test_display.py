"""A job is shown in plain lines off a terminal, with a bar on one, and never on standard output."""

import io
import re

import pytest
from rich.console import Console

from pellucid.display import Display
from pellucid.training import Event, Saved, StepTaken, Stopped, Validated


def console(terminal: bool) -> tuple[io.StringIO, Console]:
    """A stream, and a console that takes it for a terminal or for a file."""
    stream = io.StringIO()
    return stream, Console(file=stream, force_terminal=terminal, width=140)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine says about terminals does not matter."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def step(number: int) -> StepTaken:
    return StepTaken(
        step=number,
        steps=2000,
        epoch=1,
        loss=4.5678,
        learning_rate=0.00123,
        gradient_norm=1.0,
        tokens_per_second=12345.6,
        seconds_left=90.0,
    )


def shown(*events: Event) -> list[str]:
    """The lines in a file when these events have been shown."""
    stream, file = console(terminal=False)
    with Display(file) as display:
        for event in events:
            display.tell(event)
    return stream.getvalue().split("\n")


def test_off_a_terminal_each_event_is_a_plain_line() -> None:
    validated = Validated(1000, {"loss": 3.21, "bleu": 12.34, "chrf": 45.67}, is_best=True)
    lines = shown(step(1000), validated, Validated(1500, {"loss": 3.0}, is_best=False), Stopped(1600))
    assert [re.sub(r"^\[ +\d+\.\d s\] ", "", line) for line in lines] == [
        "step 1,000 of 2,000: loss 4.568, 12,346 tokens/s, rate 1.23e-03, 1.5 min left",
        "step 1,000: validation loss 3.210 nats/token, BLEU 12.3, chrF 45.7, best so far",
        "step 1,500: validation loss 3.000 nats/token",
        "stopped at step 1,600; all is saved, and --resume goes on from here",
        "",
    ]
    assert all(line.startswith("[") for line in lines[:-1])


def test_what_follows_a_stop_is_said_by_whoever_shows_it() -> None:
    stream, file = console(terminal=False)
    with Display(file, after_stop="and now?") as display:
        display.tell(Stopped(1600))
    assert stream.getvalue().endswith("stopped at step 1,600; and now?\n")


def test_a_save_is_not_worth_a_line() -> None:
    assert shown(Saved(500)) == [""]


def test_off_a_terminal_nothing_moves() -> None:
    stream, file = console(terminal=False)
    with Display(file) as display:
        assert display.bar is None
        display.tell(step(1000))
        display.count(3, 7)
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


def test_on_a_terminal_a_bar_moves_and_is_taken_away() -> None:
    stream, terminal = console(terminal=True)
    with Display(terminal) as display:
        display.tell(step(500))
        assert display.bar is not None
        [task] = display.bar.tasks
        assert (task.completed, task.total, task.description) == (500, 2000, "training")
        display.tell(step(1000))
        assert task.completed == 1000
        display.bar.refresh()
        assert display.bar.live.is_started
    assert not display.bar.live.is_started
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "1000/2000 loss 4.568, 12,346 tokens/s, 1.5 min left" in text
    assert "step 1,000 of" not in text
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h") == 1  # the cursor is back


def test_on_a_terminal_lines_stand_above_the_bar() -> None:
    stream, terminal = console(terminal=True)
    with Display(terminal) as display:
        display.tell(step(500))
        display.note("a thing worth saying")
    assert "a thing worth saying\n" in stream.getvalue()


def test_the_bar_goes_when_the_job_fails() -> None:
    stream, terminal = console(terminal=True)
    display = Display(terminal)

    def fail() -> None:
        with display:
            display.tell(step(500))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert display.bar is not None
    assert not display.bar.live.is_started
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is back


def test_a_job_that_shows_nothing_leaves_no_trace_on_a_terminal() -> None:
    stream, terminal = console(terminal=True)
    with Display(terminal):
        pass
    assert stream.getvalue() == ""


def test_lines_translated_are_counted() -> None:
    with Display(console(terminal=True)[1]) as display:
        for done in range(1, 8):
            display.count(done, 7)
        assert display.bar is not None
        [task] = display.bar.tasks
        assert (task.completed, task.total, task.description) == (7, 7, "translating")


def test_lines_are_counted_where_nobody_knows_how_many_there_are() -> None:
    stream, terminal = console(terminal=True)
    with Display(terminal) as display:
        display.count(3, None)
        assert display.bar is not None
        assert display.bar.tasks[0].total is None
        display.bar.refresh()
    assert "3/?" in stream.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_said_is_shown_as_it_is(terminal: bool) -> None:
    stream, place = console(terminal)
    with Display(place) as display:
        display.note("[bold]data[/bold] in /tmp/:smile:/x " + "y" * 200)
    assert stream.getvalue().endswith("] [bold]data[/bold] in /tmp/:smile:/x " + "y" * 200 + "\n")


def test_standard_error_is_where_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with Display() as display:
        display.note("here")
        display.tell(step(1000))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 2
