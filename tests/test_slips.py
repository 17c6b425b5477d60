"""What a user is told for a slip of types or shapes, in a process without the checks that these tests have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"

BEFORE = """
import json
import torch
from torch import nn
from pellucid import check
from pellucid.config import ModelConfig
from pellucid.masks import Causal, Padding, seq2seq
from pellucid.model import EncoderDecoder, FeedForward, MultiHeadAttention, Residual, Transformer, attend
from pellucid.model.positions import Sinusoidal

def zeros(*shape):
    return torch.zeros(shape)

def ids(*shape):
    return torch.full(shape, 5)

model = Transformer(ModelConfig.tiny(source_vocab_size=11, target_vocab_size=13))
"""

# A slip as it is written, the error, and what its message says.
SLIPS = [
    ("Padding(5)", "MaskError", "Padding was given the lengths 5, but it needs a whole number from 0 up"),
    ("Padding((5, 2.5))", "MaskError", "the lengths (5, 2.5), but it needs a whole number"),
    ("Padding(torch.tensor([5.0, 2.5]))", "MaskError", "the lengths [5.0, 2.5], but it needs a whole number"),
    ("Padding(torch.ones(2, 7, dtype=torch.bool))", "MaskError", "count the real tokens of each"),
    ("seq2seq(source_lengths=3)", "MaskError", "the lengths 3, but it needs a whole number"),
    ("Causal() & True", "TypeError", "unsupported operand"),
    ("attend(zeros(2, 3, 5, 11), zeros(2, 3, 7, 11), zeros(2, 3, 5, 11))", "ShapeError", "a value for each key"),
    ("attend(zeros(2, 3, 5, 11), zeros(2, 3, 7, 13), zeros(2, 3, 7, 13))", "ShapeError", "queries as wide as keys"),
    (
        "attend(zeros(2, 3, 5, 11), zeros(2, 2, 7, 11), zeros(2, 2, 7, 11))",
        "ShapeError",
        "as many heads of keys as of queries or a number that divides it",
    ),
    (
        "attend(zeros(2, 3, 5, 11), zeros(2, 3, 5, 11), zeros(2, 3, 5, 11).double())",
        "ShapeError",
        "convert them to one",
    ),
    ("attend(*torch.zeros(3, 2, 3, 5, 11), backend='flash')", "ConfigError", "backend='flash'"),
    (
        "attend(*torch.zeros(3, 2, 3, 5, 11), backend='')",
        "ConfigError",
        "'auto', 'formula', 'fused', 'blocks', 'flex'; choose one",
    ),
    ("Sinusoidal(8, layout='half')", "ConfigError", "layout='half'"),
    ("Residual(8, norm='Pre')", "ConfigError", "norm 'Pre' was given, but known are 'pre' and 'post'; choose one"),
    ("FeedForward(8, 16, activation='swish')", "ConfigError", "activation 'swish' was given, but known are 'relu'"),
    ("EncoderDecoder(d_model=12, num_heads=3, norm='sandwich')", "ConfigError", "norm 'sandwich' was given"),
    ("model(ids(2, 5), ids(3, 7))", "ShapeError", "2 sources (2, 5) and 3 targets (3, 7); give one for each"),
    ("model.decode(ids(3, 7), model.encode(ids(2, 5)))", "ShapeError", "3 targets (3, 7) and 2 memories (2, 5, 64)"),
    ("model.stacks(zeros(2, 5, 64), zeros(3, 7, 64), seq2seq())", "ShapeError", "with one target for each source"),
    ("model.stacks(zeros(2, 5, 64), zeros(2, 7, 63), seq2seq())", "ShapeError", "give (batch, length, 64)"),
    ("model.stacks(zeros(5, 64), zeros(7, 64), seq2seq())", "ShapeError", "sources (5, 64) and targets (7, 64)"),
    ("check.causality(nn.Linear(3, 3), ids(2, 5))", "CallError", "Linear cannot be called with torch.int64 (2, 5)"),
    ("check.influence(nn.Linear(3, 3), zeros(2, 5, 3), of=1)", "CheckError", "a check of input 1 was given Tensor"),
]


@pytest.fixture(scope="module")
def answers() -> dict[str, list[str]]:
    """The error and the message of each slip, from one process for all of them."""
    tries = [
        f"try:\n    {slip}\nexcept Exception as error:\n    said[{slip!r}] = [type(error).__name__, str(error)]\n"
        for slip, _, _ in SLIPS
    ]
    script = "\n".join([BEFORE, "said = {}", *tries, "print(json.dumps(said))"])
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, list[str]] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize(("slip", "error", "said"), SLIPS, ids=[slip for slip, _, _ in SLIPS])
def test_a_slip_is_answered(slip: str, error: str, said: str, answers: dict[str, list[str]]) -> None:
    assert slip in answers, "no error at all"
    assert answers[slip][0] == error
    assert said in answers[slip][1]
    assert "\n" not in answers[slip][1]
