"""A toy language, and a translator and a run folder for it that take moments to make, for the tests of decoding and jobs.

The weights are random and large, so that different lines have different translations, some of which end by themselves.
"""

import random
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pellucid.config import END_ID, DataConfig, DecodingConfig, ModelConfig, RunConfig
from pellucid.decoding import Hypothesis, Translator
from pellucid.decoding.engines import ModelEngine
from pellucid.decoding.wish import Wish
from pellucid.model import Transformer
from pellucid.run import Run
from pellucid.text.batch import Example, collate
from pellucid.text.tokenizer import Tokenizer

WORDS = {
    "the": "die", "a": "eine", "red": "rote", "small": "kleine", "cat": "Katze", "house": "Stätte", "sees": "sieht",
    "opens": "öffnet", "book": "Notiz", "window": "Wand",
}  # fmt: skip
SENTENCES = [
    "the red cat sees a house",
    "a window",
    "the small book opens the small window",
    "cat",
    "a red house opens",
    "the house sees the cat the cat sees the book the book opens a red red window",
    "small cat",
]
NARROW = {"d_model": 12, "num_heads": 3, "d_ff": 20, "num_encoder_layers": 1, "num_decoder_layers": 2}


def german(sentence: str) -> str:
    """The toy language's translation: word by word."""
    return " ".join(WORDS[word] for word in sentence.split())


def pairs(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Sentences of the toy language, and their translations."""
    draw = random.Random(seed)
    sentences = [" ".join(draw.choices([*WORDS], k=draw.randint(2, 7))) for _ in range(count)]
    return [(sentence, german(sentence)) for sentence in sentences]


@cache
def tokenizer() -> Tokenizer:
    """One vocabulary for both languages."""
    return Tokenizer.learn([side for pair in pairs(90) for side in pair], vocab_size=340, kind="bpe")


def words() -> list[int]:
    """The ids of the pieces that begin with a space; text made of them becomes the same ids again."""
    labels = tokenizer().pieces(range(tokenizer().vocab_size))
    return [token for token, label in enumerate(labels) if label.startswith("▁") and len(label) > 1]


def model(**changes: Any) -> Transformer:
    """A network with large random weights, in float64, that likes words, dislikes letters, and sometimes stops."""
    size = tokenizer().vocab_size
    sizes = {"source_vocab_size": size, "target_vocab_size": size, "dropout": 0.5}
    torch.manual_seed(7)
    made = Transformer(ModelConfig(**{**NARROW, **sizes, **changes})).double()
    last = dict(made.named_parameters())
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(1.7)
        # The last norm gives 1 in its first dimension, whatever is said: the head has a bias there.
        norm = f"stacks.decoder.layers.{made.config.num_decoder_layers - 1}.feed_forward_residual.norm"
        last[f"{norm}.weight"][0], last[f"{norm}.bias"][0] = 0.0, 1.0
        made.head.weight[:, 0] = -6.0
        made.head.weight[words(), 0] = 0.0
        made.head.weight[END_ID, 0] = 3.0
    return made


def translator(settings: DecodingConfig | None = None, **changes: Any) -> Translator:
    """The network with its vocabulary."""
    return Translator(model(**changes), tokenizer(), tokenizer(), settings or DecodingConfig(length_ratio=1.5))


def write_run(folder: Path, language: str = "", **changes: Any) -> Path:
    """A run folder as a training leaves it: settings, vocabulary, best weights, a line of metrics."""
    network = model(**changes)
    data = DataConfig(target_language=language, max_length=network.config.max_positions)
    config = RunConfig(model=network.config, data=data, decoding=DecodingConfig(length_ratio=1.5))
    run = Run.create(folder, config, tokenizer(), tokenizer(), "sha256:0")
    run.save_best(dict(network.named_parameters()), {"step": 20})
    run.log({"kind": "validation", "step": 20, "loss": 3.25, "bleu": 1.5, "chrf": 12.125, "best": True})
    return folder


def engine(translator: Translator) -> ModelEngine:
    """A translator's engine, which is our own."""
    assert isinstance(translator.engine, ModelEngine)
    return translator.engine


def search(translator: Translator, source: list[int], wish: Wish) -> list[list[Hypothesis]]:
    """What a translator's engine finds for one source, within the translator's limit."""
    limit = wish.limit(len(source) + 1, translator.engine.most_tokens)
    return translator.engine.search(collate([Example(1, source, [])]), [limit], wish)
