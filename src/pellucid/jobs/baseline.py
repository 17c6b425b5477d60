"""What a translator must beat: no translation at all, and the nearest sentence that has been translated before."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

__all__ = ["nearest_translations"]

COMMON = 0.05
"""Words in more than this share of all sentences say little about which are alike, and are passed over."""


def nearest_translations(
    sources: Sequence[str], known_sources: Sequence[str], known_targets: Sequence[str]
) -> list[str]:
    """For each source, the translation of the known sentence most like it: a translation memory.

    Likeness is the cosine of the two sentences' words, rare ones weighing more: log(sentences / sentences with the word).
    A source that shares no telling word with any known sentence gets an empty line.

    >>> nearest_translations(["the red cat"], ["a dog ran", "the black cat"], ["ein Hund lief", "die schwarze Katze"])
    ['die schwarze Katze']
    """
    known = [set(source.lower().split()) for source in known_sources]
    spread = Counter(word for words in known for word in words)
    weight = {word: math.log(len(known) / count) for word, count in spread.items() if count > 0}
    most = max(2.0, COMMON * len(known))
    holders: dict[str, list[int]] = defaultdict(list)
    for index, words in enumerate(known):
        for word in words:
            if spread[word] <= most:
                holders[word].append(index)
    sizes = [math.sqrt(sum(weight[word] ** 2 for word in words)) or 1.0 for words in known]
    nearest = []
    for source in sources:
        likeness: dict[int, float] = defaultdict(float)
        for word in sorted(set(source.lower().split())):
            for index in holders.get(word, ()):
                likeness[index] += weight[word] ** 2
        best = max(likeness, key=lambda index: (likeness[index] / sizes[index], -index), default=None)
        nearest.append("" if best is None else known_targets[best])
    return nearest
