"""Which batch comes when: epoch after epoch, from a seed, resumable at any batch."""

from collections.abc import Sequence

from pellucid.text.batch import Batch, Example, collate, plan_batches

__all__ = ["BatchStream"]


class BatchStream:
    """An endless row of batches.

    The order depends on the seed and the epoch alone, so a stream begun at the place where another stopped goes on as
    the other would have.

    Args:
        examples: the encoded pairs.
        batch_tokens: the padded size of a batch at most.
        seed: what shuffles.
        epoch: passes over the examples already made.
        position: batches of this pass already taken.
    """

    def __init__(
        self, examples: Sequence[Example], *, batch_tokens: int, seed: int, epoch: int = 0, position: int = 0
    ) -> None:
        self.examples = examples
        self.batch_tokens = batch_tokens
        self.seed = seed
        self.epoch = epoch
        self.position = position
        self._plan = self._shuffle()

    def take(self) -> Batch:
        """The next batch."""
        if self.position >= len(self._plan):
            self.epoch, self.position = self.epoch + 1, 0
            self._plan = self._shuffle()
        rows = self._plan[self.position]
        self.position += 1
        return collate([self.examples[row] for row in rows])

    def _shuffle(self) -> list[list[int]]:
        return plan_batches(self.examples, batch_tokens=self.batch_tokens, seed=self.seed, epoch=self.epoch)
