"""The commands about a run: make one, use it, measure it, say what it is."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from pellucid.cli.output import lines_to, warnings_told
from pellucid.errors import DecodingError, TextError
from pellucid.signals import stopping

__all__ = ["demo", "evaluate", "info", "score", "train", "translate"]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that `pellucid train --out` wrote.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
Beam = Annotated[int | None, typer.Option(min=1, help="Hypotheses side by side; 1 is greedy. Default: the run's.")]
Penalty = Annotated[float | None, typer.Option(help="GNMT's length penalty. Default: the run's.")]
Temperature = Annotated[float | None, typer.Option(help="With --sample: 0 takes the likeliest. Default: 1.")]
TopK = Annotated[int | None, typer.Option(help="With --sample: draw from the k likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(help="With --sample: from the fewest likeliest that have p together.")]
MinP = Annotated[float | None, typer.Option(help="With --sample: from those p times as likely as the likeliest.")]
Rule = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE, for all lines: prefix=Das, forced=Katze, forbidden=Hund, min_length=4 ..."),
]
RulesFile = Annotated[
    Path | None, typer.Option("--rules", help='Rules for each line, as JSON objects: {"prefix": "Das", "forced": []}.')
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE: max_length=90, length_rule=power, too_long=refuse, groups=2, diversity=1."),
]
ReadAhead = Annotated[
    int | None, typer.Option(min=1, help="Lines to read before answering. Default: 1 from a terminal, else 1024.")
]
Precision = Annotated[
    str | None, typer.Option(help="float32, bfloat16, int8, or auto: the faster of the first two. Default: float32.")
]
Seed = Annotated[int | None, typer.Option(help="With --sample: the same seed draws the same. Default: a fresh one.")]


def demo(
    out: Annotated[Path, typer.Option(help="Where the run, the translations and the pictures go.")] = Path("demo"),
    minutes: Annotated[float, typer.Option(min=0.01, help="How long to train.")] = 3.6,
) -> None:
    """Train on the corpus inside the package, translate what was held out, score it, and draw what was learned."""
    from pellucid.display import Display
    from pellucid.jobs.demo import demo as job

    with Display(after_stop="here is what was learned by then") as display:
        job(out, minutes=minutes, note=display.note, tell=display.tell, show=typer.echo, stopping=stopping())


def train(
    *,
    out: Annotated[Path, typer.Option(help="The run folder: a new one, or with --resume an old one.")],
    source: Annotated[Path | None, typer.Option(help="Source lines; .gz and .xz too.")] = None,
    target: Annotated[Path | None, typer.Option(help="Target lines, as many as source lines.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Instead of both: one file, source TAB target.")] = None,
    valid_source: Annotated[Path | None, typer.Option(help="Source lines to measure on.")] = None,
    valid_target: Annotated[Path | None, typer.Option(help="Target lines to measure on.")] = None,
    valid_pairs: Annotated[Path | None, typer.Option(help="Instead of both: one file of pairs.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as TOML; see `pellucid info`.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="One setting: training.steps=5000.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    device: Device = "auto",
) -> None:
    """Train a translator from parallel text; Ctrl-C saves and stops, --resume goes on to the same bits."""
    from pellucid.display import Display
    from pellucid.jobs.material import TextFiles
    from pellucid.jobs.train import train as job

    with Display() as display, stopping() as should_stop:
        run = job(
            out,
            TextFiles(source, target, pairs),
            TextFiles(valid_source, valid_target, valid_pairs),
            config_file=config,
            overrides=set_ or (),
            resume=resume,
            device=device,
            note=display.note,
            tell=display.tell,
            should_stop=should_stop,
        )
    if os.environ.get("RANK", "0") == "0":  # under torchrun, one process speaks for all
        typer.echo(f"the run is in {run.path}; try: echo 'A sentence.' | pellucid translate {run.path}")


def translate(
    run: RunFolder,
    *,
    input_: Annotated[Path | None, typer.Option("--input", help="Lines to translate. Default: standard input.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where translations go. Default: standard output.")] = None,
    beam: Beam = None,
    length_penalty: Penalty = None,
    n_best: Annotated[int, typer.Option(min=1, help="Candidates for each line: number, score, text.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw translations at random, instead of a beam.")] = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Seed = None,
    rule: Rule = None,
    rules: RulesFile = None,
    set_: Set = None,
    precision: Precision = None,
    read_ahead: ReadAhead = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Device = "auto",
) -> None:
    """Translate lines: N in, N out, in order, blank for blank."""
    from pellucid.display import Display
    from pellucid.jobs.translate import READ_AHEAD, translations

    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    found = translations(
        run, _lines(input_), beam=beam, length_penalty=length_penalty, n_best=n_best,
        read_ahead=read_ahead or (1 if input_ is None and sys.stdin.isatty() else READ_AHEAD), device=device,
        sampling=_sampling(sample, seed, drawn), seed=seed, rules=_rules(rule or [], rules),
        options=_options(set_ or [], as_json=as_json), precision=precision,
    )  # fmt: skip
    is_seen = output is None and sys.stdout.isatty()  # then lines show by themselves how far it is
    with lines_to(output) as write, warnings_told(), Display() as display:
        for number, translation in enumerate(found, start=1):
            _write(write, {"line": number, **translation.record()}, n_best, as_json=as_json)
            if not is_seen:
                display.count(number, None)


def _lines(file: Path | None) -> Iterator[str]:
    """The lines of a file, or of standard input."""
    from pellucid.text.corpus import read_lines, split_lines

    if file is not None:
        return read_lines(file)
    if sys.stdin is None:
        raise TextError("standard input is closed, but lines to translate are needed; give --input")
    return split_lines(sys.stdin.buffer, "standard input")


def _sampling(sample: bool, seed: int | None, settings: Mapping[str, float | None]) -> dict[str, float] | None:
    """The settings of a sampling that were given, or None without --sample, where they would do nothing."""
    for name, value in {**settings, "seed": seed}.items():
        if value is not None and not sample:
            option = f"--{name.replace('_', '-')}"
            raise DecodingError(f"{option} was given {value}, but it says how to sample; add --sample, or leave it out")
    return {name: value for name, value in settings.items() if value is not None} if sample else None


def _rules(given: Sequence[str], file: Path | None) -> Mapping[str, Any] | Iterator[Mapping[str, Any]] | None:
    """The rules for all lines, or those of each line from a file, or None where there are none."""
    from pellucid.jobs.asked import rules_from, rules_in

    if file is None:
        return rules_from(given) or None
    if given:
        raise DecodingError(f"--rule {given[0]} stands beside --rules {file}; write it into the file, or leave one out")
    return rules_in(file)


def _options(given: Sequence[str], *, as_json: bool) -> dict[str, Any]:
    """Settings of the search, of which none would be worked out in vain."""
    from pellucid.jobs.asked import options_from

    options = options_from(given)
    if "alternatives" in options and not as_json:
        raise DecodingError("alternatives were asked for, but only --json shows them; add it, or leave them out")
    return options


def _write(write: Callable[[str], None], record: Mapping[str, Any], n_best: int, *, as_json: bool) -> None:
    """Write the record of one translation in the form that was asked for."""
    if as_json:
        write(json.dumps(record, ensure_ascii=False))
    elif n_best == 1:
        write(record["text"])
    else:
        for one in record["hypotheses"]:
            write(f"{record['line']}\t{one['score']:.6f}\t{one['text']}")


def evaluate(
    run: RunFolder,
    source: Annotated[Path, typer.Option(help="Lines to translate.")],
    reference: Annotated[Path, typer.Option(help="What they should become.")],
    *,
    output: Annotated[Path | None, typer.Option(help="Where to keep the translations.")] = None,
    target_language: Annotated[
        str | None, typer.Option(help="A code such as de or zh; it says how BLEU cuts words. Default: the run's.")
    ] = None,
    beam: Beam = None,
    length_penalty: Penalty = None,
    precision: Precision = None,
    device: Device = "auto",
) -> None:
    """Translate a file and print BLEU, chrF and TER against its reference, with sacreBLEU's signatures."""
    from pellucid.display import Display
    from pellucid.jobs.translate import evaluate as job

    with lines_to(output) if output else nullcontext() as write:
        with Display() as display:
            found = job(
                run,
                source,
                reference,
                search={"beam": beam, "length_penalty": length_penalty},
                target_language=target_language,
                device=device,
                precision=precision,
                note=display.count,
            )
        if write is not None:
            for line in found.translations:
                write(line)
    for metric in (found.scores.bleu, found.scores.chrf, found.scores.ter):
        typer.echo(f"{metric.name}\t{metric.value:.2f}\t{metric.signature}")


def score(
    run: RunFolder,
    source: Annotated[Path, typer.Option(help="Source lines.")],
    target: Annotated[Path, typer.Option(help="Target lines, as many.")],
    precision: Precision = None,
    device: Device = "auto",
) -> None:
    """Print one number a line: the log-probability of the target given the source, in nats, end mark counted."""
    from pellucid.jobs.translate import pair_scores

    for number in pair_scores(run, source, target, device, precision):
        typer.echo(f"{number:.6f}")


def info(run: RunFolder) -> None:
    """Print a run's settings, parameter counts, vocabulary and training state; all but the settings as comments."""
    from pellucid.jobs.info import inspect

    facts = inspect(run)
    typer.echo(f"# {run}: step {facts.step:,} of {facts.config.training.steps:,}")
    for what, record in (("newest validation", facts.validation), ("best validation", facts.best)):
        if record:
            figures = (f"{name} {record[name]:.3f}" for name in ("loss", "bleu", "chrf") if name in record)
            typer.echo(f"# {what}: step {record['step']:,.0f}, {', '.join(figures)}")
    typer.echo(f"# vocabulary: {facts.vocabularies[0]:,} source, {facts.vocabularies[1]:,} target")
    for part, count in facts.parameters.items():
        typer.echo(f"# parameters: {part} {count:,}")
    typer.echo("\n" + facts.config.to_toml(), nl=False)
