"""What a sceptic runs on any module: whether it sees what it should, and nothing else."""

from pellucid.check.asserts import (
    assert_batching,
    assert_cache,
    assert_causal,
    assert_gradients,
    assert_independent,
    assert_learns,
    assert_padding_ignored,
    assert_parity,
    assert_repeatable,
    assert_sees,
    assert_shapes,
    assert_shifted,
    assert_training_matches_generation,
)
from pellucid.check.backward import gradients
from pellucid.check.batched import batching
from pellucid.check.cached import cache
from pellucid.check.causal import causality, sees
from pellucid.check.equal import parity
from pellucid.check.generated import training_matches_generation
from pellucid.check.independent import independence
from pellucid.check.influence import SampledRows, influence
from pellucid.check.labels import shift
from pellucid.check.learning import overfit
from pellucid.check.padded import padding
from pellucid.check.report import Report
from pellucid.check.sizes import shapes
from pellucid.check.steady import repeatable

__all__ = [
    "Report",
    "SampledRows",
    "assert_batching",
    "assert_cache",
    "assert_causal",
    "assert_gradients",
    "assert_independent",
    "assert_learns",
    "assert_padding_ignored",
    "assert_parity",
    "assert_repeatable",
    "assert_sees",
    "assert_shapes",
    "assert_shifted",
    "assert_training_matches_generation",
    "batching",
    "cache",
    "causality",
    "gradients",
    "independence",
    "influence",
    "overfit",
    "padding",
    "parity",
    "repeatable",
    "sees",
    "shapes",
    "shift",
    "training_matches_generation",
]
