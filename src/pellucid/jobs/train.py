"""Train a translator from parallel text, or go on with one that was stopped."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from lightning_fabric import Fabric

from pellucid.config import RunConfig
from pellucid.device import in_memory, pick_device
from pellucid.errors import ConfigError, RunError
from pellucid.interop.ctranslate2 import not_exportable
from pellucid.jobs import material
from pellucid.jobs.boards import require_tensorboard, tensorboard
from pellucid.jobs.validation import validator
from pellucid.model import Transformer
from pellucid.run import Run
from pellucid.text.corpus import Corpus
from pellucid.training import Event, Objective, StepTaken, Trainer, Validated, choose
from pellucid.training.launch import launch

__all__ = ["train"]


@in_memory("training", "begin a run with a lower data.batch_tokens and a higher training.accumulate")
def train(
    out: Path,
    training: material.TextFiles,
    validation: material.TextFiles | None = None,
    *,
    config_file: Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    device: str = "auto",
    note: Callable[[str], None] = lambda _: None,
    tell: Callable[[Event], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Train from parallel text and leave a run folder.

    Args:
        out: the run folder; new, or the one to resume.
        training: the text to learn from.
        validation: the text to measure on; None holds some of the training text out.
        config_file: settings as TOML.
        overrides: single settings, `section.name=value`.
        resume: go on with the run in `out`, from its newest checkpoint; begin it where it has none.
        device: "auto", "cpu", "cuda" ...
        note: is given each thing worth saying on the way, as a line.
        tell: is given every event of the training.
        should_stop: asked after every step.

    Raises:
        PellucidError: settings, text or folder cannot be used as asked; nothing has then been trained.
    """
    fabric = launch(pick_device(device), "auto")
    quiet = note if fabric.is_global_zero else lambda _: None
    found = resume and Run.exists(out)
    if not found:
        Run.require_free(out)
    fabric.barrier()  # nobody begins a run before everybody has looked for one
    old = _resumed(Run.open(out), config_file, overrides) if found else None
    config = old.config if old else RunConfig.from_file(config_file, overrides)
    if config.training.tensorboard:
        require_tensorboard()  # now, and not after the text has been read and the machine timed
    corpus, held = material.read(training, validation or material.TextFiles(), config, quiet)
    if old:
        run = old
        encoded = material.encode(corpus, held, run.source_tokenizer, run.target_tokenizer, config, quiet)
        if run.corpus != encoded.fingerprint():
            raise RunError(f"the run {out} was begun on other text; resume it with the files it was begun with")
        if fabric.is_global_zero:
            run.write_settings()
    else:
        run, encoded = _begin(out, corpus, held, config, fabric, quiet)
        for reason in not_exportable(config.model):
            quiet(reason)  # now, and not when it has been trained
    return _train(run, encoded, pick_device(device), quiet, tell, should_stop)


def _resumed(run: Run, config_file: Path | None, overrides: Sequence[str]) -> Run:
    """A run that goes on, with what is asked for otherwise than when it began; only training and decoding may change.

    Raises:
        ConfigError: a setting is asked to change that cannot in the middle of a run.
    """
    if config_file is None:
        asked = RunConfig.from_toml(run.asked.to_toml(), overrides)
    else:
        asked = RunConfig.from_file(config_file, overrides)
    changes: dict[str, dict[str, object]] = {"training": {}, "decoding": {}}
    for section in RunConfig.model_fields:
        old, new = getattr(run.asked, section).model_dump(), getattr(asked, section).model_dump()
        for key in [key for key in old if old[key] != new[key]]:
            # The seed orders the text and chooses what is held out; minutes were turned into steps once.
            if section not in changes or (section, key) in (("training", "seed"), ("training", "minutes")):
                raise ConfigError(
                    f"{section}.{key} is {old[key]!r} in the run {run.path}, and cannot become {new[key]!r} in the "
                    "middle of it; leave it as it is, or begin a new run"
                )
            changes[section][key] = new[key]
    if changes["training"].get("precision") == "auto":
        del changes["training"]["precision"]  # chosen by measuring, when the run began
    training = run.config.training.replace(**changes["training"])
    decoding = run.config.decoding.replace(**changes["decoding"])
    return run.with_config(run.config.replace(training=training, decoding=decoding), asked)


def _begin(
    out: Path,
    corpus: Corpus,
    held: Corpus,
    config: RunConfig,
    fabric: Fabric,
    note: Callable[[str], None],
) -> tuple[Run, material.Encoded]:
    """Learn the vocabulary, settle what is left to this machine, and write the folder; on the first process."""
    if fabric.is_global_zero:
        source, target = material.learn(corpus, config)
        sizes = {"source_vocab_size": source.vocab_size, "target_vocab_size": target.vocab_size}
        note(
            f"learned a vocabulary of {source.vocab_size:,}"
            + ("" if source == target else f" and {target.vocab_size:,}")
        )
        asked, config = config, config.replace(model=config.model.replace(**sizes))
        encoded = material.encode(corpus, held, source, target, config, note)
        open_still = config
        config = choose(config, encoded.train.examples, fabric.device, fabric.world_size)
        if config != open_still:
            note(f"timed this machine: {config.training.precision}, {config.training.steps:,} steps")
        run = Run.create(out, config, source, target, encoded.fingerprint(), asked)
    fabric.barrier()
    if not fabric.is_global_zero:
        run = Run.open(out)
        encoded = material.encode(corpus, held, run.source_tokenizer, run.target_tokenizer, run.config, note)
    return run, encoded


def _train(
    run: Run,
    encoded: material.Encoded,
    device: torch.device,
    note: Callable[[str], None],
    tell: Callable[[Event], None],
    should_stop: Callable[[], bool],
) -> Run:
    settings = run.config.training
    checkpoint = run.newest()
    begins = int(checkpoint.state["step"]) if checkpoint else 0
    torch.manual_seed(settings.seed)
    objective = Objective(Transformer(run.config.model), settings.label_smoothing)
    fabric = launch(device, settings.precision)
    trainer = Trainer(
        objective,
        encoded.train.examples,
        run.config,
        fabric=fabric,
        keeper=run,
        validate=validator(run, objective, encoded),
        tell=_listeners(run, begins, tell) if fabric.is_global_zero else tell,
        should_stop=should_stop,
    )
    fabric.barrier()  # nobody clears away drafts before everybody has found the newest checkpoint
    if fabric.is_global_zero:
        run.clear_drafts()
        run.forget_metrics_after(begins)
    if checkpoint:
        trainer.resume(checkpoint)
        note(f"resumed at step {trainer.progress.step:,} of {settings.steps:,}")
    parameters = sum(parameter.numel() for parameter in objective.parameters())
    note(f"training {parameters / 1e6:.1f} M parameters on {len(encoded.train.examples):,} pairs")
    trainer.run()
    return run


def _listeners(run: Run, begins: int, tell: Callable[[Event], None]) -> Callable[[Event], None]:
    """Whoever watches, the run's own metrics, and TensorBoard where it is asked for."""
    board = tensorboard(run.path, begins) if run.config.training.tensorboard else lambda _: None

    def tell_all(event: Event) -> None:
        if isinstance(event, StepTaken | Validated):
            run.log(event.record())
        board(event)
        tell(event)

    return tell_all
