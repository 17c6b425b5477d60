"""The jobs that measure: sacreBLEU's own numbers, an honest baseline, the facts of a run, files that match."""

from pathlib import Path

import pytest
import sacrebleu
from sacrebleu import BLEU, CHRF, TER

import tiny_run
from pellucid.config import RunConfig
from pellucid.decoding import load
from pellucid.errors import RunError, TextError
from pellucid.jobs.baseline import nearest_translations
from pellucid.jobs.info import count_parameters, inspect
from pellucid.jobs.scoring import TOKENIZERS, bleu_for, score_corpus
from pellucid.jobs.translate import evaluate, pair_scores, translations
from pellucid.model import Transformer
from pellucid.run import Run

MADE = ["Die Katze sitzt auf der Matte .", "Ein Hund bellt laut.", "", "Das Haus"]
GOLD = ["Die Katze sitzt auf der Matte.", "Der Hund bellt.", "Nichts", "Das Haus ist rot."]


# --- scores --------------------------------------------------------------------------------------------------


def test_figures_and_signatures_are_sacrebleu_s() -> None:
    scores = score_corpus(MADE, GOLD, "de")
    for ours, theirs in ((scores.bleu, BLEU()), (scores.chrf, CHRF()), (scores.ter, TER())):
        assert ours.value == theirs.corpus_score(MADE, [GOLD]).score
        assert ours.signature == str(theirs.get_signature())
    assert [scores.bleu.name, scores.chrf.name, scores.ter.name] == ["BLEU", "chrF", "TER"]
    assert scores.bleu.value == sacrebleu.corpus_bleu(MADE, [GOLD]).score
    assert 0.0 < scores.bleu.value < 100.0


@pytest.mark.parametrize("language", ["zh", "zh-CN", "ZH_Hans", "zh_TW"])
def test_chinese_is_cut_character_by_character(language: str) -> None:
    made, gold = ["猫坐在红色的垫子上。"], ["猫坐在一张红色的垫子上。"]
    scores = score_corpus(made, gold, language)
    assert "tok:zh" in scores.bleu.signature
    assert scores.bleu.value == BLEU(tokenize="zh").corpus_score(made, [gold]).score
    assert scores.bleu.value > score_corpus(made, gold, "de").bleu.value + 10.0


@pytest.mark.parametrize("language", ["", "de", "en-GB", "pt_BR", "klingon"])
def test_other_languages_have_the_default_cutter(language: str) -> None:
    assert "tok:13a" in score_corpus(MADE, GOLD, language).bleu.signature


def test_a_cutter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(tokenize: str) -> BLEU:
        raise RuntimeError(f"\nno {tokenize}\n")

    monkeypatch.setattr("pellucid.jobs.scoring.BLEU", missing)
    with pytest.raises(TextError, match=r"BLEU for 'ja-JP' needs .* ja-mecab, .*; pip install 'sacrebleu\[ja\]'"):
        bleu_for("ja-JP")
    assert set(TOKENIZERS) == {"zh", "ja", "ko"}


@pytest.mark.parametrize(("made", "gold"), [(2, 3), (3, 2), (0, 0), (0, 1)])
def test_what_cannot_be_compared_is_refused(made: int, gold: int) -> None:
    with pytest.raises(TextError, match=rf"{made} translations cannot be compared with {gold} references"):
        score_corpus(["a"] * made, ["a"] * gold)


# --- baseline ------------------------------------------------------------------------------------------------

KNOWN = [f"open the {word}" for word in ("file", "window", "file menu", "page", "page style", "text frame")]
TRANSLATED = [f"{word} öffnen" for word in ("Datei", "Fenster", "Dateimenü", "Seite", "Seitenvorlage", "Textrahmen")]


def test_a_known_sentence_is_its_own_nearest() -> None:
    assert nearest_translations(KNOWN, KNOWN, TRANSLATED) == TRANSLATED


def test_rare_words_weigh_more_and_other_words_of_the_known_less() -> None:
    assert nearest_translations(["page", "a style of the Page", "menu"], KNOWN, TRANSLATED) == [
        "Seite öffnen",
        "Seitenvorlage öffnen",
        "Dateimenü öffnen",
    ]


def test_of_equally_near_ones_the_first_is_taken_whatever_the_order_of_sets() -> None:
    assert nearest_translations(["x y"], ["x a", "y b", "x c"], ["1", "2", "3"]) == ["2"]  # y is the rarer word
    assert nearest_translations(["x"], ["x b", "x a"], ["1", "2"]) == ["1"]


def test_what_is_like_nothing_known_stays_untranslated() -> None:
    assert nearest_translations(["colour", "", "open the"], KNOWN, TRANSLATED) == ["", "", ""]
    assert nearest_translations(["a"], [], []) == [""]


# --- facts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tie", ["none", "decoder", "all"])
def test_parameters_are_counted_once_each(tie: str) -> None:
    config = tiny_run.model(tie_embeddings=tie).config
    counts = count_parameters(RunConfig(model=config))
    assert counts["all"] == sum(parameter.numel() for parameter in Transformer(config).parameters())
    assert counts["all"] == sum(counts.values()) - counts["all"]
    embeddings = {name for name in counts if "embedding" in name or name == "head"}
    assert len(embeddings) == {"none": 3, "decoder": 2, "all": 1}[tie]
    assert {"encoder", "decoder"} < set(counts)


def test_the_facts_of_a_run_are_read(tmp_path: Path) -> None:
    run = Run.open(tiny_run.write_run(tmp_path / "run"))
    run.log({"kind": "step", "step": 30, "loss": 3.0})
    run.log({"kind": "validation", "step": 40, "loss": 4.0, "bleu": 1.0, "chrf": 2.0, "best": False})
    facts = inspect(run.path)
    assert facts.config == run.config
    assert facts.vocabularies == (340, 340)
    assert facts.step == 0  # no checkpoint
    assert facts.validation["step"] == 40
    assert (facts.best["step"], facts.best["chrf"]) == (20, 12.125)
    (run.path / "checkpoints" / "00000040").mkdir()
    assert inspect(run.path).step == 40
    (run.path / "metrics.jsonl").unlink()
    assert inspect(run.path).best == inspect(run.path).validation == {}
    with pytest.raises(RunError, match="holds no run"):
        inspect(tmp_path)


# --- files ---------------------------------------------------------------------------------------------------


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_an_evaluation_is_of_the_run_s_own_translations(tmp_path: Path) -> None:
    run = tiny_run.write_run(tmp_path / "run")
    source = write(tmp_path / "a", *tiny_run.SENTENCES[:4], "")
    gold = [*map(tiny_run.german, tiny_run.SENTENCES[:4]), ""]
    seen: list[tuple[int, int]] = []
    found = evaluate(
        run, source, write(tmp_path / "b", *gold), search={"beam": 2}, note=lambda *counts: seen.append(counts)
    )
    expected = [one.text for one in load(run).translate([*tiny_run.SENTENCES[:4], ""], beam=2)]
    assert list(found.translations) == expected
    assert found.scores == score_corpus(expected, gold)
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_the_run_s_language_says_how_words_are_cut_unless_another_is_given(tmp_path: Path) -> None:
    run = tiny_run.write_run(tmp_path / "run", language="zh")
    files = write(tmp_path / "a", "cat"), write(tmp_path / "b", "猫")
    assert "tok:zh" in evaluate(run, *files).scores.bleu.signature
    assert "tok:13a" in evaluate(run, *files, target_language="de").scores.bleu.signature


def test_files_that_do_not_match_are_refused_before_anything_is_translated(tmp_path: Path) -> None:
    run = tiny_run.write_run(tmp_path / "run")
    three, two, none = write(tmp_path / "a", "x", "y", ""), write(tmp_path / "b", "x", "y"), write(tmp_path / "c")
    for job in (evaluate, pair_scores):
        with pytest.raises(TextError, match=r"a has 3 lines and .*b has 2; give files that match"):
            job(run, three, two)
    with pytest.raises(TextError, match=r"a and .*|c and .*c have no lines"):
        evaluate(run, none, none)
    assert pair_scores(run, none, none) == []


def test_pairs_are_scored_as_the_translator_scores_them(tmp_path: Path) -> None:
    run = tiny_run.write_run(tmp_path / "run")
    sources = tiny_run.SENTENCES[:3]
    targets = [tiny_run.german(line) for line in sources]
    found = pair_scores(run, write(tmp_path / "a", *sources), write(tmp_path / "b", *targets), "cpu")
    assert found == load(run).score(sources, targets)


def test_a_stream_is_translated_as_it_comes(tmp_path: Path) -> None:
    run = tiny_run.write_run(tmp_path / "run")
    lines = iter(["cat", ""])
    found = translations(run, lines, beam=2, length_penalty=0.0, n_best=2, read_ahead=1, device="cpu")
    first = next(found)
    assert next(lines) == ""  # which nobody had read yet
    (second,) = translations(run, [""], beam=2, length_penalty=0.0, n_best=2, read_ahead=9, device="cpu")
    assert (first.source, second.source, second.text) == ("cat", "", "")
    assert len(first.hypotheses) == 2
    assert first.score == first.log_prob
