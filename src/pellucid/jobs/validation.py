"""What the trainer's validation measures: loss on held-out pairs, BLEU and chrF of their first translations."""

from collections.abc import Callable

from pellucid.decoding.engines import ModelEngine
from pellucid.decoding.translate import Translator
from pellucid.jobs.material import Encoded
from pellucid.jobs.scoring import score_corpus
from pellucid.run import Run
from pellucid.text.batch import collate, plan_batches
from pellucid.training import Objective

__all__ = ["validator"]


def validator(run: Run, objective: Objective, encoded: Encoded) -> Callable[[], dict[str, float]]:
    """A function that measures the model as it then is: loss, and where lines are translated, bleu and chrf.

    The loss is the plain cross-entropy in nats per target token, without smoothing: exp(loss) is the perplexity.
    Lines are translated by greedy search.
    """
    settings = run.config.training
    engine = ModelEngine(objective.model)
    translator = Translator(engine, run.source_tokenizer, run.target_tokenizer, run.config.decoding)
    plain = Objective(objective.model)
    examples = encoded.validation.examples
    plan = plan_batches(examples, batch_tokens=run.config.data.batch_tokens, seed=0, epoch=0)
    pairs = encoded.validation_text.pairs[: settings.validation_lines]

    def measure() -> dict[str, float]:
        loss, tokens = 0.0, 0
        for rows in plan:
            batch = collate([examples[row] for row in rows]).to(engine.device)
            ids = (batch.source, batch.target, batch.labels)
            loss += float(plain(*ids, batch.source_lengths, batch.target_lengths))
            tokens += batch.tokens
        scores = {"loss": loss / tokens}
        if pairs:
            found = translator.translate([pair.source for pair in pairs], beam=1)
            references = [pair.target for pair in pairs]
            measured = score_corpus([best.text for best in found], references, run.config.data.target_language)
            scores |= {"bleu": measured.bleu.value, "chrf": measured.chrf.value}
        return scores

    return measure
