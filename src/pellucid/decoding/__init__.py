"""How sentences are found: searches that know no model, engines that take their steps, and text in, text out."""

from pellucid.decoding.search import Hypothesis, beam_search, greedy_search, length_normaliser
from pellucid.decoding.translate import Candidate, Translation, Translator, load

__all__ = [
    "Candidate",
    "Hypothesis",
    "Translation",
    "Translator",
    "beam_search",
    "greedy_search",
    "length_normaliser",
    "load",
]
