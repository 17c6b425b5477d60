"""The training loop: what a step does, what it tells, when it validates, saves and stops, and which weights are best."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from pellucid.config import RunConfig
from pellucid.errors import ConfigError, RunError, TrainingError
from pellucid.run import Checkpoint
from pellucid.text.batch import collate, plan_batches
from pellucid.training import (
    BatchStream,
    Event,
    Saved,
    StepTaken,
    Stopped,
    Trainer,
    Validated,
    choose,
    learning_rate,
    pace,
)
from pellucid.training.launch import launch

PAIRS = tiny.examples(19)
OFTEN = {"steps": 7, "log_every": 3, "validate_every": 2, "save_every": 5}


def run(settings: RunConfig, **watching: Any) -> tuple[tiny.Memory, list[Event]]:
    """A whole training: what was kept of it, and what was told."""
    keeper, events = tiny.Memory(), list[Event]()
    tiny.trainer(settings, PAIRS, keeper, tell=events.append, **watching).run()
    return keeper, events


def after(count: int) -> Callable[[], bool]:
    """Says no so many times less one, and then yes."""
    answers = iter([False] * (count - 1) + [True] * 99)
    return lambda: next(answers)


def gradients(keeper: tiny.Memory, beta: float = 0.9) -> dict[str, Tensor]:
    """The gradients of a first step, from the optimiser's running mean of them, which began at zero."""
    memory = keeper.checkpoints[0].optimizer
    return {name: value / (1 - beta) for name, value in memory.items() if name.endswith(":exp_avg")}


def norm(slopes: Mapping[str, Tensor]) -> float:
    return float(torch.cat([slope.flatten() for slope in slopes.values()]).norm())


# --- one step -----------------------------------------------------------------------------------------------


def test_batches_accumulated_give_the_gradient_of_one_bigger_batch() -> None:
    small, big = (tiny.config({"steps": 1, "clip_norm": 0}, {"batch_tokens": size}, dropout=0.0) for size in (61, 999))
    parts = plan_batches(PAIRS, batch_tokens=61, seed=1, epoch=0)
    assert len(parts) > 2
    assert len({sum(len(PAIRS[row].target) for row in rows) for rows in parts}) > 1, "shares that differ in tokens"
    small = small.replace(training=small.training.replace(accumulate=len(parts)))
    found, wanted = gradients(run(small)[0]), gradients(run(big)[0])
    assert norm(wanted) > 0.1
    for name, slope in wanted.items():
        torch.testing.assert_close(found[name], slope, rtol=1e-10, atol=1e-13)


def test_gradients_are_clipped_to_the_bound_and_their_norm_is_told_as_it_was() -> None:
    free, events = run(tiny.config({"steps": 1, "clip_norm": 0}, dropout=0.0))
    assert isinstance(events[0], StepTaken)
    assert events[0].gradient_norm == pytest.approx(norm(gradients(free)), rel=1e-9)
    clipped, events = run(tiny.config({"steps": 1, "clip_norm": 0.01}, dropout=0.0))
    assert isinstance(events[0], StepTaken)
    assert events[0].gradient_norm == pytest.approx(norm(gradients(free)), rel=1e-9)
    assert norm(gradients(clipped)) == pytest.approx(0.01, rel=1e-3)
    loose, _ = run(tiny.config({"steps": 1, "clip_norm": 1000}, dropout=0.0))
    assert tiny.equal(gradients(loose), gradients(free))


def test_a_report_tells_the_loss_per_token_since_the_last_one() -> None:
    settings = tiny.config({"steps": 5, "log_every": 3, "learning_rate": 1e-12, "accumulate": 2}, dropout=0.0)
    objective = tiny.objective(settings).double()
    stream = BatchStream(PAIRS, batch_tokens=61, seed=1)
    wanted = []
    for batches in (6, 4):
        loss = tokens = 0.0
        for batch in [stream.take() for _ in range(batches)]:
            ids = (batch.source, batch.target, batch.labels)
            loss += objective(*ids, batch.source_lengths, batch.target_lengths).item()
            tokens += batch.tokens
        wanted.append(loss / tokens)
    told = [event for event in run(settings)[1] if isinstance(event, StepTaken)]
    assert [event.loss for event in told] == pytest.approx(wanted, rel=1e-9)  # float64 to the end
    assert [event.learning_rate for event in told] == [learning_rate(step, settings.training) for step in (3, 5)]
    assert [(event.step, event.steps, event.epoch) for event in told] == [(3, 5, 1), (5, 5, stream.epoch)]
    assert told[0].tokens_per_second > 0
    assert told[0].seconds_left > 0
    assert told[1].seconds_left == 0


def test_the_rate_of_the_schedule_is_the_one_that_moves_the_weights() -> None:
    slow, fast = (run(tiny.config({"steps": 1, "learning_rate": rate, "warmup": 2}))[0] for rate in (1e-3, 2e-3))
    start = tiny.copied(dict(tiny.objective(tiny.config()).model.double().named_parameters()))
    for name, begun in start.items():
        if name.endswith("key.bias"):
            continue  # a softmax takes no notice of it, so that its gradient is rounding alone
        step = fast.checkpoints[0].weights[name] - begun
        torch.testing.assert_close(step, 2 * (slow.checkpoints[0].weights[name] - begun), rtol=1e-6, atol=1e-12)
        # Adam's first step is the rate itself, wherever there is a gradient: here half the peak.
        assert float(step.abs().max()) == pytest.approx(1e-3, rel=1e-3)


# --- a whole training ---------------------------------------------------------------------------------------


def test_reports_validations_and_checkpoints_come_when_they_are_due_and_after_the_last_step() -> None:
    keeper, events = run(tiny.config(OFTEN))
    assert [(type(event), event.step) for event in events] == [
        (Validated, 2),
        (StepTaken, 3),
        (Validated, 4),
        (Saved, 5),
        (StepTaken, 6),
        (Validated, 6),
        (StepTaken, 7),
        (Validated, 7),
        (Saved, 7),
    ]
    assert keeper.steps == [5, 7]


def test_each_event_of_metrics_is_one_flat_record() -> None:
    _, events = run(tiny.config(OFTEN), losses=[4.0, 3.0, 2.0, 1.0])
    step, validated = events[1], events[0]
    assert isinstance(step, StepTaken)
    assert isinstance(validated, Validated)
    assert step.record().items() >= {"kind": "step", "step": 3, "steps": 7, "loss": step.loss}.items()
    assert validated.record() == {"kind": "validation", "step": 2, "loss": 4.0, "best": True}


def test_asked_to_stop_it_saves_at_once_and_says_so() -> None:
    keeper, events = run(tiny.config(OFTEN), should_stop=after(3))
    assert keeper.steps == [3]
    assert [(type(event), event.step) for event in events[-2:]] == [(Saved, 3), (Stopped, 3)]
    assert events[-2:] == [Saved(3), Stopped(3)]


def test_asked_to_stop_during_a_validation_it_takes_no_further_step() -> None:
    asked: list[bool] = []
    keeper, events = tiny.Memory(), list[Event]()
    trainer = tiny.trainer(tiny.config(OFTEN), PAIRS, keeper, tell=events.append, should_stop=lambda: bool(asked))

    def validate() -> dict[str, float]:
        asked.append(True)
        return {"loss": 1.0}

    trainer.validate = validate
    trainer.run()
    assert keeper.steps == [2]
    assert events[-1] == Stopped(2)


def test_asked_to_stop_at_the_last_step_it_has_finished() -> None:
    keeper, events = run(tiny.config(OFTEN), should_stop=after(7))
    assert keeper.steps == [5, 7]
    assert not any(isinstance(event, Stopped) for event in events)


@pytest.mark.parametrize(
    ("best", "values", "kept"),
    [
        ("loss", [3.0, 3.0, 1.0, 2.0], [3.0, 1.0]),
        ("chrf", [3.0, 1.0, 3.0, 5.0], [3.0, 5.0]),
        ("bleu", [0.0] * 4, [0.0]),
    ],
)
def test_the_best_is_the_lowest_loss_or_the_highest_score(best: str, values: list[float], kept: list[float]) -> None:
    keeper, events = run(tiny.config({**OFTEN, "best": best}), losses=values)
    assert [facts[best] for _, facts in keeper.best] == kept
    told = [event for event in events if isinstance(event, Validated)]
    assert [event.scores[best] for event in told] == values
    assert [event.scores[best] for event in told if event.is_best] == kept
    first = {value: event.step for event in reversed(told) for value in event.scores.values()}
    assert [facts["step"] for _, facts in keeper.best] == [first[value] for value in kept]


def test_a_validation_that_gives_no_number_is_not_the_best_of_any_others() -> None:
    keeper, _ = run(tiny.config(OFTEN), losses=[2.0, math.nan, 1.0, math.nan])
    assert [facts["loss"] for _, facts in keeper.best] == [2.0, 1.0]


def test_the_best_weights_are_those_that_were_validated() -> None:
    keeper, _ = run(tiny.config({**OFTEN, "save_every": 2}), losses=[4.0, 1.0, 2.0, 3.0])
    assert tiny.equal(keeper.best[-1][0], keeper.checkpoints[1].weights)
    assert not tiny.equal(keeper.best[-1][0], keeper.checkpoints[2].weights)


def test_validation_sees_the_model_in_evaluation_mode_and_training_goes_on_with_dropout() -> None:
    settings, modes = tiny.config({**OFTEN, "steps": 4}, dropout=0.4), list[tuple[bool, bool]]()
    keeper = tiny.Memory()
    trainer = tiny.trainer(settings, PAIRS, keeper)

    def validate() -> dict[str, float]:
        modes.append((trainer.raw.model.training, torch.is_grad_enabled()))
        torch.rand(3)  # whatever it draws is no business of the training
        return {"loss": 1.0}

    trainer.validate = validate
    trainer.run()
    assert modes == [(False, False)] * 2
    never = run(settings.replace(training=settings.training.replace(validate_every=99)))[0]
    assert tiny.equal(keeper.checkpoints[-1].weights, never.checkpoints[-1].weights)


def test_a_model_handed_over_in_evaluation_mode_trains_with_dropout() -> None:
    settings = tiny.config(OFTEN, dropout=0.4)
    keeper = tiny.Memory()
    trainer = tiny.trainer(settings, PAIRS, keeper)
    trainer.raw.eval()
    trainer.run()
    assert tiny.equal(keeper.checkpoints[0].weights, run(settings)[0].checkpoints[0].weights)
    still = run(tiny.config(OFTEN, dropout=0.0))[0]
    assert not tiny.equal(keeper.checkpoints[0].weights, still.checkpoints[0].weights)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
def test_the_same_seed_gives_the_same_bits(precision: str) -> None:
    settings = tiny.config({**OFTEN, "precision": precision}, dropout=0.4)
    torch.manual_seed(11)
    one = run(settings)[0].checkpoints[-1]
    torch.manual_seed(12)
    other = run(settings)[0].checkpoints[-1]
    assert tiny.equal(one.weights, other.weights)
    assert tiny.equal(one.optimizer, other.optimizer)
    assert one.weights["head.weight"].dtype == (torch.float64 if precision == "float64" else torch.float32)


def test_each_seed_has_an_order_and_a_dropout_of_its_own() -> None:
    settings = tiny.config({**OFTEN, "seed": 1}, dropout=0.4)
    alone = tiny.config({**OFTEN, "seed": 2}, dropout=0.4)
    keepers = [tiny.Memory(), tiny.Memory()]
    for keeper, one in zip(keepers, (settings, alone), strict=True):
        trainer = tiny.trainer(one, PAIRS, keeper)
        trainer.raw.load_state_dict(tiny.objective(settings).double().state_dict())
        trainer.run()
    assert not tiny.equal(keepers[0].checkpoints[0].weights, keepers[1].checkpoints[0].weights)


@pytest.mark.slow
def test_bfloat16_trains_nearly_as_float32_does() -> None:
    finals = []
    for precision in ("float32", "bfloat16"):
        events = run(tiny.config({**OFTEN, "steps": 40, "log_every": 10, "precision": precision}, dropout=0.0))[1]
        finals.append([event.loss for event in events if isinstance(event, StepTaken)])
    assert finals[1] == pytest.approx(finals[0], rel=0.02)
    assert finals[1] != finals[0]
    assert finals[0][-1] < finals[0][0] - 0.3


# --- what cannot go on --------------------------------------------------------------------------------------


def spoilt(at: int, settings: RunConfig) -> tuple[tiny.Memory, Trainer]:
    """A trainer of which one weight is no number from after that step on."""
    keeper = tiny.Memory()
    trainer = tiny.trainer(settings, PAIRS, keeper)

    def spoil() -> bool:
        if trainer.progress.step == at:
            trainer.raw.model.head.weight.data[5, 3] = math.nan
        return False

    trainer.should_stop = spoil
    return keeper, trainer


@pytest.mark.parametrize("due", ["log_every", "validate_every", "save_every"])
def test_a_loss_that_is_no_number_ends_the_training_before_anything_of_it_is_kept(due: str) -> None:
    rare = {"log_every": 99, "validate_every": 99, "save_every": 99}
    keeper, trainer = spoilt(3, tiny.config({"steps": 50, **rare, due: 5}))
    with pytest.raises(
        TrainingError, match=r"by step 5 the loss is nan .* lower training.learning_rate .* resume from"
    ):
        trainer.run()
    assert keeper.checkpoints == []
    assert keeper.best == []


def test_a_gradient_that_is_no_number_spoils_no_checkpoint() -> None:
    keeper = tiny.Memory()
    trainer = tiny.trainer(tiny.config({**OFTEN, "save_every": 1, "log_every": 99}), PAIRS, keeper)

    def spoil(slope: Tensor) -> Tensor:
        return slope * (math.inf if trainer.progress.step == 3 else 1)

    trainer.raw.model.head.weight.register_hook(spoil)  # type: ignore[no-untyped-call]
    with pytest.raises(TrainingError, match=r"by step 3 the loss is \d+\.\d+ with a gradient of norm inf"):
        trainer.run()
    assert keeper.steps == [1, 2]


def test_a_checkpoint_of_another_model_or_without_a_part_is_refused() -> None:
    checkpoint = run(tiny.config(OFTEN))[0].checkpoints[0]
    with pytest.raises(RunError, match=r"has shape \(14, 14\) in the weights, but \(16, 16\) in the model"):
        tiny.trainer(tiny.config(OFTEN, d_model=16), PAIRS, tiny.Memory()).resume(checkpoint)
    part = {name: value for name, value in checkpoint.optimizer.items() if name != "head.weight:exp_avg_sq"}
    facts = {**checkpoint.state, "moon": "full"}
    for broken, missing in (
        (Checkpoint(checkpoint.weights, part, checkpoint.state), "head.weight:exp_avg_sq"),
        (Checkpoint(checkpoint.weights, checkpoint.optimizer, facts), "moon"),
    ):
        with pytest.raises(RunError, match=rf"checkpoint of step 5 does not hold .*{missing}.*; remove its folder"):
            tiny.trainer(tiny.config(OFTEN), PAIRS, tiny.Memory()).resume(broken)


def test_devices_that_it_does_not_train_on_are_refused() -> None:
    with pytest.raises(ConfigError, match="asked for on 'meta', but it runs on 'cpu' and 'cuda'"):
        launch(torch.device("meta"), "float32")


# --- what this machine decides ------------------------------------------------------------------------------


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Lets a step take so long in each precision, and notes what was timed."""
    asked: list[tuple[str, ...]] = []

    def measured(_config: object, _examples: object, _device: object, names: tuple[str, ...]) -> dict[str, float]:
        asked.append(tuple(names))
        return {name: seconds[name] for name in names}

    def tried(_config: object, _device: object, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if seconds[name] <= 10 * min(seconds[name] for name in names))

    monkeypatch.setattr(pace, "seconds_per_step", measured)
    monkeypatch.setattr(pace, "plausible", tried)
    return asked


def chosen(training: dict[str, Any], processes: int = 1) -> RunConfig:
    return choose(tiny.config(training), PAIRS, torch.device("cpu"), processes)


def test_the_faster_precision_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, {"float32": 2.0, "bfloat16": 1.0, "float64": 4.0})
    settings = chosen({"precision": "auto", "steps": 70})
    assert (settings.training.precision, settings.training.steps) == ("bfloat16", 70)
    timed(monkeypatch, {"float32": 1.0, "bfloat16": 2.0})
    assert chosen({"precision": "auto"}).training.precision == "float32"
    assert asked == [("float32", "bfloat16")]


def test_a_hopeless_precision_is_not_timed_by_whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, {"float32": 1.0, "bfloat16": 11.0})
    assert chosen({"precision": "auto"}).training.precision == "float32"
    assert asked == []
    assert chosen({"precision": "auto", "minutes": 2.0}).training.steps == 120
    assert asked == [("float32",)]


def test_what_is_plainly_slower_in_a_product_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"float32": [9.0, 1.0, 5.0], "bfloat16": [1.6, 9.0, 1.7], "float64": [9.0, 9.0, 1.4]}
    laps = {name: iter(taken * 2) for name, taken in seconds.items()}
    monkeypatch.setattr(pace, "_product", lambda _config, _device, name: next(laps[name]))
    config, cpu = tiny.config(), torch.device("cpu")
    assert pace.plausible(config, cpu, ("float32", "bfloat16")) == ("float32",)
    assert pace.plausible(config, cpu, ("bfloat16", "float64")) == ("bfloat16", "float64")


def test_a_product_is_timed_in_its_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[torch.dtype, torch.Size, torch.Size]] = []
    product = torch.Tensor.__matmul__

    def noted(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        seen.append((one.dtype, one.shape[1:], other.shape))
        return product(one, other)

    monkeypatch.setattr(torch.Tensor, "__matmul__", noted)
    config = tiny.config()
    for name in ("float32", "bfloat16"):
        assert pace._product(config, torch.device("cpu"), name) > 0
    sizes = torch.Size([config.model.d_model]), torch.Size([config.model.d_model, config.model.d_ff])
    assert seen == [(torch.float32, *sizes), (torch.bfloat16, *sizes)]


def test_minutes_become_steps_of_the_precision_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, {"float32": 2.0, "bfloat16": 1.0, "float64": 4.0})
    minutes = {"minutes": 3.0, "warmup": 10}
    found = [chosen({**minutes, "precision": name}).training for name in ("float64", "float32", "auto")]
    assert [settings.steps for settings in found] == [45, 90, 180]
    assert [settings.warmup for settings in found] == [9, 10, 10]
    assert [settings.precision for settings in found] == ["float64", "float32", "bfloat16"]
    assert {settings.minutes for settings in found} == {None}
    assert asked == [("float64",), ("float32",), ("float32", "bfloat16")]
    assert chosen({**minutes, "precision": "float32"}, processes=2).training.steps == 180


def test_nothing_is_timed_where_nothing_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(monkeypatch, {})
    assert chosen({"precision": "float32"}) == tiny.config({"precision": "float32"})
    assert asked == []


@pytest.mark.parametrize("names", [("float64",), ("float32", "bfloat16")])
def test_timing_trains_a_model_of_its_own(names: tuple[str, ...]) -> None:
    found = pace.seconds_per_step(tiny.config({"accumulate": 2}), PAIRS, torch.device("cpu"), names)
    assert tuple(found) == names
    assert all(0 < seconds < 60 for seconds in found.values())


def test_a_stream_begun_anywhere_goes_on_as_the_one_that_was_there() -> None:
    stream = BatchStream(PAIRS, batch_tokens=61, seed=1)
    per_epoch = len(plan_batches(PAIRS, batch_tokens=61, seed=1, epoch=0))
    taken: list[tuple[int, int, tuple[int, ...]]] = []
    for _ in range(3 * per_epoch):
        place = (stream.epoch, stream.position)
        taken.append((*place, stream.take().lines))
        again = BatchStream(PAIRS, batch_tokens=61, seed=1, epoch=place[0], position=place[1])
        assert again.take().lines == taken[-1][2]
    first, second = (
        sorted(line for *_, lines in taken[start:][:per_epoch] for line in lines) for start in (0, per_epoch)
    )
    assert first == second == list(range(1, 20))
    assert collate(PAIRS).lines == tuple(range(1, 20))
    assert [lines for *_, lines in taken[:per_epoch]] != [lines for *_, lines in taken[per_epoch : 2 * per_epoch]]
