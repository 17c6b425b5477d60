"""Training speed beside `torch.nn.Transformer`: forward, backward and AdamW on the same batches, in turn.

    python benchmarks/training.py [--size small|base] [--laps 8] [--threads 2] [--precision float32|bfloat16]

Prints source + target tokens per second of each (median), and the median of the paired ratios. Both models have the same
sizes, dropout 0.1 where the paper has it, label smoothing 0.1 and no tied weights. The peer is used as people use it:
embeddings and a projection around `nn.Transformer`, boolean masks, cross-entropy over whole logits.
"""

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from pellucid.config import PAD_ID, ModelConfig, TrainingConfig
from pellucid.model import Transformer
from pellucid.model.positions import Sinusoidal
from pellucid.text.batch import Batch, Example, collate, plan_batches
from pellucid.training import Objective, optimizer

VOCABULARY = 8000


class Peer(nn.Module):
    """`nn.Transformer` between embeddings and a projection, with the masks it asks for: True = blocked."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.source = nn.Embedding(config.source_vocab_size, config.d_model)
        self.target = nn.Embedding(config.target_vocab_size, config.d_model)
        self.positions = Sinusoidal(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.stacks = nn.Transformer(
            config.d_model,
            config.num_heads,
            config.num_encoder_layers,
            config.num_decoder_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
            norm_first=config.norm == "pre",
        )
        self.head = nn.Linear(config.d_model, config.target_vocab_size, bias=False)
        self.scale = math.sqrt(config.d_model)

    def forward(self, batch: Batch) -> Tensor:
        """The smoothed loss of a batch, in nats per token."""
        hidden = batch.source == PAD_ID
        logits = self.head(
            self.stacks(
                self.dropout(self.positions(self.source(batch.source) * self.scale)),
                self.dropout(self.positions(self.target(batch.target) * self.scale)),
                tgt_mask=nn.Transformer.generate_square_subsequent_mask(batch.target.shape[1], dtype=torch.bool),
                src_key_padding_mask=hidden,
                tgt_key_padding_mask=batch.target == PAD_ID,
                memory_key_padding_mask=hidden,
                tgt_is_causal=True,
            )
        )
        return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=PAD_ID, label_smoothing=0.1)


def batches(count: int, batch_tokens: int) -> list[Batch]:
    """Batches of made-up sentences with log-normal lengths, 22 tokens in the mean, bucketed."""
    draw = random.Random(0)

    def sentence() -> list[int]:
        length = max(2, min(120, round(draw.lognormvariate(math.log(22) - 0.125, 0.5))))
        return [draw.randrange(4, VOCABULARY) for _ in range(length)]

    examples = [Example(line, sentence(), sentence()) for line in range(1, 4000)]
    plan = plan_batches(examples, batch_tokens=batch_tokens, seed=0, epoch=0)
    return [collate([examples[row] for row in rows]) for rows in plan[:count]]


def timed(step: Callable[[Batch], Tensor], update: torch.optim.Optimizer, batch: Batch, precision: str) -> float:
    """Seconds of one step."""
    began = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        loss = step(batch)
    torch.autograd.backward(loss)
    update.step()
    update.zero_grad()
    return time.perf_counter() - began


def main() -> None:
    """Time both, in turn, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=("small", "base"), default="small")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--laps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch-tokens", type=int, default=4096)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    build = ModelConfig.small if given.size == "small" else ModelConfig.base
    config = build(source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY, dropout=0.1, tie_embeddings="none")
    ours, theirs = Objective(Transformer(config), 0.1), Peer(config)

    def our_step(batch: Batch) -> Tensor:
        loss: Tensor = ours(batch.source, batch.target, batch.labels, batch.source_lengths, batch.target_lengths)
        return loss / batch.tokens

    settings = TrainingConfig()
    sides: list[tuple[Callable[[Batch], Tensor], torch.optim.Optimizer]] = [
        (our_step, optimizer(ours.parameters(), settings)),
        (theirs, torch.optim.AdamW(theirs.parameters())),
    ]
    speeds: tuple[list[float], list[float]] = ([], [])
    for lap, batch in enumerate(batches(given.laps + 1, given.batch_tokens)):
        tokens = sum(batch.source_lengths) + sum(batch.target_lengths)
        for kept, (step, update) in zip(speeds, sides, strict=True):
            seconds = timed(step, update, batch, given.precision)
            if lap:
                kept.append(tokens / seconds)
    ratio = statistics.median(mine / other for mine, other in zip(*speeds, strict=True))
    print(f"{given.size}, {given.precision}, {given.threads} threads, batches of {given.batch_tokens} padded tokens")
    print(f"pellucid        {statistics.median(speeds[0]):8,.0f} tokens/s")
    print(f"nn.Transformer  {statistics.median(speeds[1]):8,.0f} tokens/s")
    print(f"ratio           {ratio:8.2f}")


if __name__ == "__main__":
    main()
