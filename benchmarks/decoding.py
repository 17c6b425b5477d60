"""How fast sentences are found: ours beside CTranslate2, Hugging Face Marian and a plain loop over `nn.Transformer`.

    python benchmarks/decoding.py [--size small|base] [--sentences 200] [--laps 3] [--batches 1 32] [--beams 1 4]
                                  [--threads 2] [--only NAME ...]

All have random weights of one shape (ours and CTranslate2's are the same numbers, Marian's and the loop's others) and read
the same random sentences of about 22 tokens, longest first; each batch's translations are as long as its longest source,
and no end mark may shorten them. Laps are interleaved; printed are medians, in sentences per second, and the ratios to
CTranslate2 in the same numbers. What is not installed is left out. Batches of one read a share of the sentences.
"""

import argparse
import importlib.util
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.config import BEGIN_ID, END_ID, PAD_ID, DecodingConfig, ModelConfig
from pellucid.decoding.ctranslate2 import CTranslate2Engine
from pellucid.decoding.engines import ModelEngine, ModelState
from pellucid.decoding.rules import Rules
from pellucid.decoding.wish import Wish
from pellucid.model import Transformer
from pellucid.model.positions import Sinusoidal
from pellucid.text.batch import Batch, Example, collate

VOCABULARY = 8000
MEAN, SPREAD = 22, 0.5
SIZES: dict[str, dict[str, Any]] = {
    "small": {"d_model": 256, "d_ff": 1024, "num_heads": 4, "num_encoder_layers": 3, "num_decoder_layers": 3},
    "base": {"d_model": 512, "d_ff": 2048, "num_heads": 8, "num_encoder_layers": 6, "num_decoder_layers": 6},
}

Way = Callable[[Batch, int, int], object]
"""Translates a batch with a beam into so many tokens."""


class Names:
    """What stands in for a tokenizer: a name for each id."""

    def names(self) -> list[str]:
        """A word for each id."""
        return ["<pad>", "<unk>", "<s>", "</s>", *(f"w{token}" for token in range(4, VOCABULARY))]


class Endless(ModelEngine):
    """Our engine, for which no sentence ends before its limit."""

    @torch.inference_mode()
    def step(self, ids: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """The step without the end mark."""
        log_probs, state = super().step(ids, state)
        log_probs[:, END_ID] = -math.inf
        return log_probs, state


def ours(engine: ModelEngine) -> Way:
    """Our own search."""

    def translate(batch: Batch, beam: int, length: int) -> object:
        wish = Wish(DecodingConfig(beam=beam), 1)
        return engine.search(batch, [length] * len(batch.source_lengths), wish)

    return translate


def by_ctranslate2(folder: Path, numbers: str, threads: int) -> Way:
    """CTranslate2 called as its documentation does."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), compute_type=numbers, intra_threads=threads)
    names = Names().names()

    def translate(batch: Batch, beam: int, length: int) -> object:
        pairs = zip(batch.source.tolist(), batch.source_lengths, strict=True)
        words = [[names[token] for token in row[:size]] for row, size in pairs]
        return translator.translate_batch(
            words, beam_size=beam, max_decoding_length=length, min_decoding_length=length, return_scores=True
        )

    return translate


def through_ours(folder: Path, numbers: str, threads: int) -> Way:
    """CTranslate2 behind our interface: from ids to hypotheses, as `load(FOLDER).translate` calls it."""
    names: Any = Names()
    engine = CTranslate2Engine(folder, names, names, numbers, threads=threads)

    def translate(batch: Batch, beam: int, length: int) -> object:
        rules = [Rules(min_length=length + 1)] * len(batch.source_lengths)  # so that no end mark shortens them
        return engine.search(batch, [length] * len(rules), Wish(DecodingConfig(beam=beam)), rules)

    return translate


def by_marian(config: ModelConfig) -> Way:
    """Hugging Face's Marian and its `generate`."""
    from transformers import MarianConfig, MarianMTModel

    model: Any = MarianMTModel(  # type: ignore[no-untyped-call]
        MarianConfig(
            vocab_size=VOCABULARY, d_model=config.d_model, encoder_layers=config.num_encoder_layers,
            decoder_layers=config.num_decoder_layers, encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads, encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff,
            pad_token_id=PAD_ID, bos_token_id=BEGIN_ID, eos_token_id=END_ID, decoder_start_token_id=BEGIN_ID,
            forced_eos_token_id=None, max_position_embeddings=512,
        )
    ).eval()  # fmt: skip

    @torch.inference_mode()
    def translate(batch: Batch, beam: int, length: int) -> object:
        seen = (batch.source != PAD_ID).long()
        return model.generate(
            batch.source, attention_mask=seen, num_beams=beam, do_sample=False, min_new_tokens=length,
            max_new_tokens=length,
        )  # fmt: skip

    return translate


class Plain(nn.Module):
    """`nn.Transformer` as tutorials use it: the whole prefix anew at each step, the likeliest token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, config.d_model)
        self.target = nn.Embedding(VOCABULARY, config.d_model)
        self.positions = Sinusoidal(config.d_model)
        self.stacks = nn.Transformer(
            config.d_model, config.num_heads, config.num_encoder_layers, config.num_decoder_layers, config.d_ff,
            batch_first=True,
        )  # fmt: skip
        self.head = nn.Linear(config.d_model, VOCABULARY, bias=False)
        self.scale = math.sqrt(config.d_model)

    @torch.inference_mode()
    def translate(self, batch: Batch, beam: int, length: int) -> Tensor | None:
        """Greedy search; None for a beam, which tutorials do not have."""
        if beam > 1:
            return None
        hidden = batch.source == PAD_ID
        memory = self.stacks.encoder(
            self.positions(self.source(batch.source) * self.scale), src_key_padding_mask=hidden
        )
        said = torch.full((len(batch.source), 1), BEGIN_ID)
        for _ in range(length):
            states = self.positions(self.target(said) * self.scale)
            mask = nn.Transformer.generate_square_subsequent_mask(said.shape[1])
            states = self.stacks.decoder(states, memory, tgt_mask=mask, memory_key_padding_mask=hidden)
            logits = self.head(states[:, -1])
            logits[:, END_ID] = -math.inf
            said = torch.cat([said, logits.argmax(dim=-1, keepdim=True)], dim=1)
        return said


def sentences(count: int) -> list[list[int]]:
    """Random ids, log-normal lengths, longest first."""
    draw = random.Random(1)
    lengths = [max(3, round(math.exp(draw.gauss(math.log(MEAN) - SPREAD**2 / 2, SPREAD)))) for _ in range(count)]
    return [[draw.randrange(4, VOCABULARY) for _ in range(length)] for length in sorted(lengths, reverse=True)]


def batches(lines: Sequence[Sequence[int]], size: int) -> list[Batch]:
    """The lines in batches of so many."""
    return [
        collate([Example(1, list(line), []) for line in lines[first : first + size]])
        for first in range(0, len(lines), size)
    ]


def seconds(way: Way, given: Sequence[Batch], beam: int) -> float:
    """How long it takes to translate all batches."""
    started = time.perf_counter()
    for batch in given:
        way(batch, beam, batch.source.shape[1])
    return time.perf_counter() - started


def contestants(config: ModelConfig, folder: Path, threads: int) -> dict[str, Way]:
    """Everyone who is installed, by name."""
    torch.manual_seed(1)
    model = Transformer(config).eval()
    found: dict[str, Way] = {f"ours {numbers}": ours(Endless(model, numbers)) for numbers in ("float32", "int8")}
    if importlib.util.find_spec("ctranslate2"):
        from pellucid.interop.ctranslate2 import to_ctranslate2

        to_ctranslate2(model, Names(), Names(), folder / "ct2")  # type: ignore[arg-type] # names are all it asks for
        for numbers in ("float32", "int8"):
            found[f"CTranslate2 {numbers}"] = by_ctranslate2(folder / "ct2", numbers, threads)
            found[f"CTranslate2 by ours, {numbers}"] = through_ours(folder / "ct2", numbers, threads)
    if importlib.util.find_spec("transformers"):
        found["Hugging Face Marian"] = by_marian(config)
    found["nn.Transformer, no cache"] = Plain(config).eval().translate
    return found


def main() -> None:
    """Time everyone in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", help="names, or their beginnings")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = ModelConfig(
        source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, tie_embeddings="decoder", **SIZES[args.size]
    )
    lines = sentences(args.sentences)
    with tempfile.TemporaryDirectory() as folder:
        ways = contestants(config, Path(folder), args.threads)
        if args.only:
            ways = {name: way for name, way in ways.items() if name.startswith(tuple(args.only))}
        for size in args.batches:
            given = batches(lines[:: 8 if size == 1 else 1], size)
            count = sum(len(batch.source_lengths) for batch in given)
            for beam in args.beams:
                taking = {name: way for name, way in ways.items() if way(given[-1], beam, 2) is not None}
                laps = [{name: seconds(way, given, beam) for name, way in taking.items()} for _ in range(args.laps)]
                told = []
                for name in taking:
                    rate = statistics.median(count / lap[name] for lap in laps)
                    peer = f"CTranslate2 {name.rpartition(' ')[2]}"
                    peer = peer if peer in taking else "CTranslate2 float32"
                    ratio = ""
                    if peer in taking and peer != name:
                        ratio = f" ({statistics.median(lap[peer] / lap[name] for lap in laps):.2f} of {peer})"
                    told.append(f"  {name:26} {rate:7.1f}{ratio}")
                print(f"{args.size}, batch {size}, beam {beam}: sentences/s", *told, sep="\n", flush=True)


if __name__ == "__main__":
    main()
