"""Exports to ONNX: two graphs that run without PyTorch, held to the model, checked when written, translated with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_run
from pellucid.config import DecodingConfig
from pellucid.decoding import Translator, load
from pellucid.decoding.exported import written_for
from pellucid.decoding.onnx import OnnxEngine
from pellucid.errors import ConfigError, DecodingError, InteropError, PositionError, RunError
from pellucid.interop.onnx import to_onnx
from pellucid.jobs import export as exports
from pellucid.jobs.export import export
from pellucid.model import Transformer
from pellucid.text.batch import Example, collate
from shell import Shell, shell_in
from tiny_run import SENTENCES

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
# A graph takes torch several seconds to write.
pytestmark = pytest.mark.slow
TOKENIZER = tiny_run.tokenizer()
SETTINGS = DecodingConfig(length_ratio=1.5)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    """Runs the command line in this process, in a folder of the test's own."""
    return shell_in(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Transformer, Path]:
    """A model and its two graphs."""
    model = tiny_run.model(max_positions=23, positions="learned").float().eval()
    folder = tmp_path_factory.mktemp("onnx") / "made"
    to_onnx(model, folder)
    return model, folder


def both(model: Transformer, folder: Path, **given: Any) -> tuple[Translator, Translator]:
    """Our translator of a model, and ONNX Runtime's."""
    engine = OnnxEngine(folder, **given)
    return Translator(model, TOKENIZER, TOKENIZER, SETTINGS), Translator(engine, TOKENIZER, TOKENIZER, SETTINGS)


CASES = [
    ("sinusoidal", "pre", "relu", "none"),
    ("rotary", "post", "gelu", "decoder"),
    ("alibi", "pre", "gelu", "all"),
    ("t5", "post", "relu", "all"),
    ("none", "pre", "relu", "decoder"),
]


@pytest.mark.parametrize(("positions", "norm", "activation", "tie"), CASES)
def test_graphs_compute_what_the_model_computes(
    tmp_path: Path, positions: str, norm: str, activation: str, tie: str
) -> None:
    model = tiny_run.model(positions=positions, norm=norm, activation=activation, tie_embeddings=tie).float().eval()
    to_onnx(model, tmp_path / "made")
    ours, theirs = both(model, tmp_path / "made")
    expected = ours.translate(SENTENCES, beam=3, n_best=3)
    found = theirs.translate(SENTENCES, beam=3, n_best=3)
    for one, other in zip(expected, found, strict=True):
        assert [hypothesis.tokens for hypothesis in other.hypotheses] == [two.tokens for two in one.hypotheses]
        assert other.log_prob == pytest.approx(one.log_prob, rel=1e-5, abs=1e-4)
    texts = [one.text for one in expected]
    assert theirs.score(SENTENCES, texts) == pytest.approx(ours.score(SENTENCES, texts), rel=1e-5, abs=1e-4)


def test_the_graphs_serve_without_us(made: tuple[Transformer, Path]) -> None:
    """As the module's docstring tells another program to call them: padding behind, T = 0 at first, rows reordered."""
    model, folder = made
    config = model.config
    encoder, step = (onnxruntime.InferenceSession(folder / name) for name in ("encoder.onnx", "step.onnx"))
    assert [given.name for given in step.get_inputs()] == ["ids", "past", "source", "lengths"]
    assert [given.name for given in step.get_outputs()] == ["logits", "present"]
    ids = np.array([[300, 301, 302, 303, 3], [304, 305, 3, 0, 0]])
    lengths = np.array([5, 3])
    [source] = encoder.run(None, {"ids": ids, "lengths": lengths})
    past = np.zeros((config.num_decoder_layers, 2, 2, config.num_heads, 0, config.head_dim), dtype=np.float32)
    said = np.array([[2, 310, 311, 312], [2, 313, 314, 315]])
    rows = np.array([1, 0])
    with torch.inference_mode():
        expected = model(torch.tensor(ids), torch.tensor(said), tuple(lengths.tolist())).numpy()
    for place in range(said.shape[1]):
        logits, past = step.run(None, {"ids": said[:, place], "past": past, "source": source, "lengths": lengths})
        np.testing.assert_allclose(logits, expected[:, place], rtol=1e-4, atol=1e-4)
        past, source, lengths, said, expected = past[:, :, rows], source[:, :, rows], lengths[rows], said[rows], expected[rows]  # fmt: skip  # noqa: E501


def test_rules_drawing_streams_and_alternatives_are_ours(made: tuple[Transformer, Path]) -> None:
    ours, theirs = both(*made, most_tokens=23)
    for asked in (
        {"beam": 3, "rules": {"prefix": "die", "forced": ["Wand"], "no_repeat_ngram": 2}},
        {"sampling": {"top_k": 3}, "seed": 5, "n_best": 2},
        {"beam": 1},
    ):
        one, other = ours.translate(SENTENCES[:4], **asked), theirs.translate(SENTENCES[:4], **asked)
        assert [found.text for found in other] == [found.text for found in one]
    assert list(theirs.stream(SENTENCES[0])) == list(ours.stream(SENTENCES[0]))
    one, other = (each.translate(SENTENCES[:3], alternatives=3) for each in (ours, theirs))
    for first, second in zip(one, other, strict=True):
        assert second.hypotheses[0].token_log_probs == pytest.approx(first.hypotheses[0].token_log_probs, abs=1e-3)
    with pytest.raises(DecodingError, match="an export to ONNX does not hand out the attention"):
        theirs.translate(["cat"], attention=True)


def test_positions_end_where_the_export_s_tables_end(made: tuple[Transformer, Path]) -> None:
    _, theirs = both(*made, most_tokens=23)
    engine = theirs.engine
    assert isinstance(engine, OnnxEngine)
    with pytest.raises(PositionError, match="a sentence of 24 tokens was given, but the export knows 23 positions"):
        engine.begin(collate([Example(1, [5] * 23, [])]).source, (24,))
    state = engine.begin(torch.tensor([[5, 3]]), (2,))
    for _ in range(23):
        _, state = engine.step(torch.tensor([5]), state)
    with pytest.raises(PositionError, match="24 tokens"):
        engine.step(torch.tensor([5]), state)


def test_a_run_is_exported_verified_and_translated_with(shell: Shell, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "deep" / "out"
    tiny_run.write_run(run)
    ended = shell("export", str(run), "--to", "onnx", "--out", str(out))
    assert ended.status == 0, ended.err
    assert ended.err == ""
    assert ended.out.count("\n") == 1
    assert "greedy: the same tokens; log-probabilities within" in ended.out
    assert written_for(out) == "onnx"
    assert [place.name for place in out.parent.iterdir()] == ["out"]  # and no draft
    source = "\n".join(SENTENCES).encode() + b"\n"
    ours, theirs = (shell("translate", str(folder), stdin=source) for folder in (run, out))
    assert theirs.status == 0, theirs.err
    assert theirs.out == ours.out
    assert load(out, engine="onnx").translate(["", "cat"])[0].text == ""
    with pytest.raises(RunError, match="was not written for the engine 'ctranslate2'; it is for 'onnx'"):
        load(out, engine="ctranslate2")
    eight = shell("translate", str(out), "--precision", "int8", stdin=source)
    assert (eight.status, eight.err.count("\n")) == (2, 1)
    assert "exports to ONNX are in 'float32'; choose it" in eight.err
    again = shell("export", str(run), "--to", "onnx", "--out", str(out))
    assert (again.status, again.err.count("\n")) == (2, 1)
    (out / "step.onnx").write_bytes(b"no graph")
    damaged = shell("translate", str(out), stdin=source)
    assert (damaged.status, damaged.err.count("\n")) == (2, 1)
    assert "ONNX Runtime cannot read" in damaged.err


def test_an_export_that_says_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run.write_run(tmp_path / "run")

    def wrongly(model: Any, folder: Path) -> None:
        model.stacks.decoder.layers[0].cross_attention.value.weight.data.mul_(-1)
        to_onnx(model, folder)

    monkeypatch.setattr(exports, "to_onnx", wrongly)
    with pytest.raises(RunError, match=r"the export does not say what .* says"):
        export(run, "onnx", tmp_path / "out")
    assert sorted(place.name for place in tmp_path.iterdir()) == ["run"]


def test_what_cannot_be_asked_costs_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run.write_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="precision was given 'int8', but exports to 'onnx' are in 'float32'"):
        export(run, "onnx", tmp_path / "out", "int8")
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    with pytest.raises(InteropError, match=r"onnx is not installed; pip install 'pellucid.onnx.'"):
        export(run, "onnx", tmp_path / "out")
    with pytest.raises(InteropError, match=r"ONNX Runtime is not installed; pip install 'pellucid.onnx.'"):
        OnnxEngine(tmp_path)
