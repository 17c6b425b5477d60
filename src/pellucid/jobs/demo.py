"""The whole path on the corpus inside the package: train, translate what was held out, score it, draw it."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import as_file, files
from pathlib import Path

from sacrebleu import CHRF

from pellucid import masks, view
from pellucid.decoding import Translation, Translator, load
from pellucid.disk import write_atomically, writing
from pellucid.errors import RunError
from pellucid.jobs.baseline import nearest_translations
from pellucid.jobs.material import TextFiles
from pellucid.jobs.scoring import Scores, score_corpus
from pellucid.jobs.train import train
from pellucid.model.positions import Sinusoidal
from pellucid.run import Run
from pellucid.text.batch import encode_pairs
from pellucid.text.corpus import Corpus, Pair, read_tsv
from pellucid.training import Event

__all__ = ["demo"]

MOST_TOKENS = 16
"""Held-out segments are translated up to this many tokens a side; the model is trained on ones of about that length."""

SETTINGS = {
    "model.source_vocab_size": 3000,
    "model.target_vocab_size": 3000,
    "model.d_model": 192,
    "model.num_heads": 6,
    "model.d_ff": 768,
    "model.num_encoder_layers": 2,
    "model.num_decoder_layers": 2,
    "model.dropout": 0.0,
    "data.max_length": 19,
    "data.batch_tokens": 1024,
    "data.target_language": "de",
    "training.learning_rate": 0.002,
    "training.warmup": 200,
    "training.cooldown": 0.6,
    "training.validate_every": 400,
    "training.validation_lines": 100,
    "training.save_every": 1000,
    "training.log_every": 50,
    "training.keep": 1,
}

MARKER = "This folder was written by `pellucid demo`, which replaces the run in it when it is called again.\n"


def demo(
    out: Path,
    *,
    minutes: float,
    overrides: tuple[str, ...] = (),
    note: Callable[[str], None],
    tell: Callable[[Event], None],
    show: Callable[[str], None],
    stopping: AbstractContextManager[Callable[[], bool]] | None = None,
) -> Scores:
    """Train for some minutes on the LibreOffice help in English and German, and show what was learned.

    Args:
        out: the folder for the run, the translations and the pictures.
        minutes: how long to train.
        overrides: settings other than the demo's own.
        note: is given each thing worth saying on the way.
        tell: is given every event of the training.
        show: is given the results, line by line.
        stopping: entered while the model trains; hands out what is asked after every step. What has been learned by the
            time it says yes is shown.

    Raises:
        RunError: the folder holds what no demo wrote, or cannot be written.
    """
    _clear(out)
    chosen = [f"{name}={value}" for name, value in SETTINGS.items()]
    with as_file(files("pellucid") / "data" / "lohelp.en-de.train.tsv.xz") as pairs:
        with stopping or nullcontext(lambda: False) as should_stop:
            run = train(
                out / "run",
                TextFiles(pairs=pairs),
                overrides=[*chosen, f"training.minutes={minutes}", *overrides],
                note=note,
                tell=tell,
                should_stop=should_stop,
            )
        known = read_tsv(pairs)
    held_out = _short(run)
    note(f"translating {len(held_out)} held-out segments with at most {MOST_TOKENS} tokens a side")
    translator = load(run.path)
    found = translator.translate([pair.source for pair in held_out])
    scores = _results(found, held_out, known, show)
    rows = (f"{pair.source}\t{pair.target}\t{one.text}\n" for pair, one in zip(held_out, found, strict=True))
    write_atomically(out / "translations.tsv", "".join(rows).encode())
    _draw(out / "pictures", run, translator, found, held_out)
    show(f"\npictures are in {out / 'pictures'}, all translations in {out / 'translations.tsv'}, the run in {run.path}")
    show(f"try: echo 'Click the Save button.' | pellucid translate {run.path}")
    return scores


def _clear(out: Path) -> None:
    """Make the folder ready: what an earlier demo wrote goes, and a folder that no demo wrote is refused as it is."""
    marker = out / "ABOUT.txt"
    with writing(out):
        ours = marker.is_file() and marker.read_bytes() == MARKER.encode()
        if not ours and out.is_dir() and any(out.iterdir()):
            raise RunError(f"{out} holds files that no demo wrote; choose another folder with --out")
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(marker, MARKER.encode())
        for folder in ("run", "pictures"):
            if (out / folder).exists():
                shutil.rmtree(out / folder)
        (out / "translations.tsv").unlink(missing_ok=True)


def _short(run: Run) -> list[Pair]:
    """The test pairs of about the length that the model was trained on."""
    with as_file(files("pellucid") / "data" / "lohelp.en-de.test.tsv.xz") as pairs:
        every = read_tsv(pairs)
    tokenizers = (run.source_tokenizer, run.target_tokenizer)
    short = encode_pairs(every, *tokenizers, max_length=MOST_TOKENS + 1, over_length="drop")
    lines = {example.line for example in short.examples}
    return [pair for pair in every.pairs if pair.line in lines]


def _results(found: list[Translation], held_out: list[Pair], known: Corpus, show: Callable[[str], None]) -> Scores:
    """Show figures beside honest baselines, and examples from the best to the worst."""
    sources, references = [pair.source for pair in held_out], [pair.target for pair in held_out]
    memory = nearest_translations(sources, [pair.source for pair in known.pairs], [pair.target for pair in known.pairs])
    texts = [one.text for one in found]
    scores = score_corpus(texts, references, "de")
    show(f"\n{len(found)} held-out segments, English to German       BLEU   chrF")
    for name, lines in (
        ("this model", texts),
        ("the nearest training sentence's translation", memory),
        ("the source, copied", sources),
    ):
        figures = score_corpus(lines, references, "de")
        show(f"  {name:<45} {figures.bleu.value:6.1f} {figures.chrf.value:6.1f}")
    show(f"  {scores.bleu.signature}\n  {scores.chrf.signature}")
    sentence = CHRF()
    each = [sentence.sentence_score(text, [gold]).score for text, gold in zip(texts, references, strict=True)]
    order = sorted(range(len(each)), key=each.__getitem__, reverse=True)
    exact = sum(text == gold for text, gold in zip(texts, references, strict=True))
    unfinished = sum(not one.hypotheses[0].finished for one in found)
    show(f"\n{exact} of {len(found)} equal the reference, {unfinished} did not end by themselves.")
    show("Eight of them, evenly spaced from the best to the worst by chrF:")
    for place in range(8):
        row = order[round(place * (len(order) - 1) / 7)]
        show(
            f"\n  chrF {each[row]:5.1f}  {sources[row]}\n     reference  {references[row]}\n         model  {texts[row]}"
        )
    return scores


def _draw(folder: Path, run: Run, translator: Translator, found: list[Translation], held_out: list[Pair]) -> None:
    """Draw the three masks of one pair, the position table, one translation's attention, and the training's curves."""
    folder.mkdir(parents=True, exist_ok=True)
    like = [row for row, one in enumerate(found) if 8 <= len(one.source_tokens) <= 14] or range(len(found))
    sentence = CHRF()
    row = max(like, key=lambda row: sentence.sentence_score(found[row].text, [held_out[row].target]).score)
    [one] = translator.translate([found[row].source], attention=True)
    source, target = [*one.source_tokens], ["<s>", *one.tokens]
    triple = masks.seq2seq((len(source),), (len(target),))
    padded = [*source, "<pad>", "<pad>"], [*target, "<pad>"]
    view.save(
        view.masks(
            {
                "encoder": triple.encoder.dense(len(padded[0]), len(padded[0]))[0, 0],
                "decoder": triple.decoder.dense(len(padded[1]), len(padded[1]))[0, 0],
                "cross": triple.cross.dense(len(padded[1]), len(padded[0]))[0, 0],
            },
            rows={"encoder": padded[0], "decoder": padded[1], "cross": padded[1]},
            columns={"encoder": padded[0], "decoder": padded[1], "cross": padded[0]},
            title="What each position may look at: the three masks of one pair, padded as in a batch",
        ),
        folder / "masks.png",
    )
    d_model = run.config.model.d_model
    table = Sinusoidal(d_model).table(64)
    alike = table @ table.T / (d_model / 2)
    view.save(
        view.position_table(table, alike, title=f"Sinusoidal positions, d_model {d_model}"), folder / "positions.png"
    )
    assert one.attention is not None, "asked for above"
    view.save(
        view.attention(one.attention[-1], source, [*one.tokens, "</s>"], title=f"{one.source} → {one.text}"),
        folder / "attention.png",
    )
    view.save(view.curves(run.metrics(), title="Training"), folder / "curves.png")
