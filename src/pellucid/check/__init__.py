"""What a sceptic runs on any module: whether it sees what it should, and nothing else."""

from pellucid.check.batched import batching
from pellucid.check.causal import causality, sees
from pellucid.check.equal import cache, parity
from pellucid.check.independent import independence
from pellucid.check.influence import SampledRows, influence
from pellucid.check.padded import padding
from pellucid.check.report import Report

__all__ = [
    "Report",
    "SampledRows",
    "batching",
    "cache",
    "causality",
    "independence",
    "influence",
    "padding",
    "parity",
    "sees",
]
