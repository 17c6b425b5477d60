"""How sentences are found: searches that know no model, engines that take their steps, and text in, text out."""

from pellucid.decoding.chances import Sampling
from pellucid.decoding.loading import load
from pellucid.decoding.rules import Rules
from pellucid.decoding.sampling import sample
from pellucid.decoding.search import Hypothesis, State, Step, beam_search, greedy_search, length_normaliser
from pellucid.decoding.trace import Trace
from pellucid.decoding.translate import READ_AHEAD, Translator
from pellucid.decoding.translation import Candidate, Translation
from pellucid.decoding.units import Shortened
from pellucid.decoding.wording import Wording

__all__ = [
    "READ_AHEAD",
    "Candidate",
    "Hypothesis",
    "Rules",
    "Sampling",
    "Shortened",
    "State",
    "Step",
    "Trace",
    "Translation",
    "Translator",
    "Wording",
    "beam_search",
    "greedy_search",
    "length_normaliser",
    "load",
    "sample",
]
