"""Phrases that a translation must not say, however it would be spelled: looked for in the text, and searched around."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tiny_run
from pellucid.config import BEGIN_ID, END_ID, DecodingConfig
from pellucid.decoding import Hypothesis, Translator
from pellucid.decoding.engines import ModelEngine
from pellucid.decoding.forbidden import TRIES, StillSaid, silenced
from pellucid.decoding.rules import Rules
from pellucid.decoding.saying import begins_anywhere, says
from pellucid.decoding.search import beam_search
from pellucid.decoding.units import Spelled, Unit
from pellucid.decoding.wish import Wish
from pellucid.decoding.wording import Wording, spellings
from pellucid.errors import DecodingError
from pellucid.text.batch import Batch, Example, collate
from pellucid.text.tokenizer import Tokenizer

TOKENIZER = tiny_run.tokenizer()
CAT, DOG, RAIN = "\u732b", "\u72ac", "\u96e8"  # written without spaces


@dataclass(frozen=True)
class Last:
    """All that a bigram model remembers: nothing."""

    def select(self, rows: Tensor) -> "Last":
        return self


class Bigram(ModelEngine):
    """An engine that says after each piece what a table says, its own model left aside."""

    def __init__(self, said: Sequence[dict[str, float]], tokenizer: Tokenizer = TOKENIZER) -> None:
        super().__init__(tiny_run.model())
        self.table = torch.full((tokenizer.vocab_size,) * 2, -math.inf, dtype=torch.float64)
        self.calls = 0
        names = tokenizer.names()
        for pieces in said:
            before = BEGIN_ID
            for piece, chance in pieces.items():
                token = END_ID if piece == "</s>" else names.index(piece)
                self.table[before, token] = math.log(chance)
                before = token

    def search(
        self, batch: Batch, limits: Sequence[int], wish: Wish, rules: Sequence[Rules] | None = None
    ) -> list[list[Hypothesis]]:
        self.calls += 1

        def step(ids: Tensor, state: Last) -> tuple[Tensor, Last]:
            return self.table[ids], state

        return beam_search(
            step,
            Last(),
            batch=len(limits),
            start_id=BEGIN_ID,
            end_id=END_ID,
            beam=wish.settings.beam,
            n_best=wish.n_best,
            max_length=list(limits),
            rules=rules,
        )


def texts(engine: Bigram, lines: int = 1, n_best: int = 1, beam: int = 4, **rules: object) -> list[list[str]]:
    asked = Translator(engine, TOKENIZER, TOKENIZER, DecodingConfig())
    found = asked.translate(["cat"] * lines, beam=beam, n_best=n_best, rules=rules)
    return [[one.text for one in translation.hypotheses] for translation in found]


QUOTED = {"▁": 0.9, "<0x22>": 0.9, "Wa": 0.9, "nd": 0.9, "<0x2E>": 0.9, "</s>": 0.9}  # "Wand. in pieces of no word


# --- what it is to say a phrase ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("die Wand", "Wand", True),
        ('"Wand"', "Wand", True),
        ("(Wand).", "Wand", True),
        ("Wand-Uhr", "Wand", True),
        ("die Wände", "Wand", False),
        ("Wandern", "Wand", False),
        ("Leinwand", "Wand", False),
        ("Leinwand", "wand", False),
        ("rote  Wand", "rote Wand", True),
        ("rote Wandern", "rote Wand", False),
        ("was?!", "?", True),
        ("12 cm", "2", False),
        (f"{DOG}{CAT}{RAIN}", CAT, True),
        (f"Wand{CAT}", CAT, True),
        ("\u0915\u0940\u092e\u0924", "\u0915\u0940", False),  # a word of Hindi that only begins so
        ("\u092f\u0939 \u0915\u0940", "\u0915\u0940", True),
        ("cafe\u0301", "cafe", False),  # an accent of its own
        ("Wan\u00adde", "Wan", False),
        ("die Wandern", "Wand ", False),
        ("ban an an", "an an", True),
        ("an", " ", False),
    ],
)
def test_a_phrase_is_said_in_words_of_its_own(text: str, phrase: str, expected: bool) -> None:
    assert says(text, phrase) is expected


@given(st.lists(st.sampled_from(["an", "Ban", "anna", "b"]), min_size=1, max_size=5), st.sampled_from(["an", "b an"]))
def test_words_are_whole_words(words: list[str], phrase: str) -> None:
    wanted = phrase.split()
    runs = [words[place : place + len(wanted)] for place in range(len(words))]
    assert says(" ".join(words), phrase) is (wanted in runs)


def test_many_phrases_are_looked_for_without_a_pattern_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns of many phrases would be made anew for each text: Python keeps 512."""
    made: list[str] = []
    compiled = re.compile

    def counted(pattern: str, *rest: int) -> re.Pattern[str]:
        made.append(pattern)
        return compiled(pattern, *rest)

    monkeypatch.setattr(re, "compile", counted)
    assert [phrase for phrase in (f"word{number}" for number in range(999)) if says("a word77 here", phrase)] == [
        "word77"
    ]
    assert made == ["word7", "word77"]


def test_scripts_without_spaces_are_known() -> None:
    assert [begins_anywhere(text) for text in (CAT, "\u3042", "\u0e01", "Wand", "\u0431", "")] == [True] * 3 + [
        False
    ] * 3


# --- searched around -----------------------------------------------------------------------------------------


def test_a_phrase_behind_a_sign_is_searched_around() -> None:
    """No spelling of the word begins so: only its text shows that it was said."""
    engine = Bigram([QUOTED, {"▁": 0.9, "<0x22>": 0.9, "ein": 0.05, "<0x2E>": 0.9}])
    assert texts(engine) == [['"Wand.']]
    assert texts(engine, forbidden=["Wand"]) == [['"ein.']]
    assert texts(engine, lines=3, forbidden=["Wand"]) == [['"ein.']] * 3


def test_longer_words_of_the_same_pieces_are_kept() -> None:
    engine = Bigram([QUOTED, {"▁": 0.9, "<0x22>": 0.9, "Wa": 0.9, "nd": 0.9, "ein": 0.05, "</s>": 0.9}])
    assert texts(engine, forbidden=["Wandein"]) == [['"Wand.']]
    assert texts(Bigram([{"▁Wand": 0.9, "ein": 0.9, "</s>": 0.9}]), forbidden=["Wandeine"]) == [["Wandein"]]


def test_other_candidates_that_say_it_are_left_out() -> None:
    second = {"▁eine": 0.2, "<0x28>": 0.9, "Wa": 0.9}
    third = {"▁Not": 0.3, "iz": 0.9, "</s>": 0.9}
    engine = Bigram([QUOTED, second, third])
    [plain] = texts(engine, n_best=3)
    assert plain == ['"Wand.', "Notiz", "eine(Wand."]
    [kept] = texts(engine, n_best=3, forbidden=["Wand"])
    assert kept[0] == "Notiz"
    assert not any(says(text, "Wand") for text in kept)


def test_what_cannot_be_avoided_is_told() -> None:
    """There are sixteen ways to spell it behind a sign, and nothing else to say: no eight searches exclude them all."""
    ways = product(("W", "<0x57>"), ("a", "<0x61>"), ("n", "<0x6E>"), ("d", "<0x64>"))
    chances = [{"▁": 0.9, "<0x22>": 0.9, **dict.fromkeys(way, 0.9), "</s>": 0.9} for way in ways]
    engine = Bigram(chances)
    with pytest.warns(StillSaid, match=r"line 1 still says 'Wand', which is forbidden; look at it, or forbid less"):
        assert texts(engine, beam=16, forbidden=["Wand"]) == [['"Wand']]
    assert engine.calls == 1 + TRIES


def test_the_best_does_not_depend_on_how_many_are_asked_for() -> None:
    engine = Bigram([QUOTED, {"▁": 0.9, "<0x22>": 0.9, "ein": 0.05, "<0x2E>": 0.9}, {"▁eine": 0.01, "</s>": 0.9}])
    ones = [texts(engine, n_best=n_best, forbidden=["Wand"])[0][0] for n_best in (1, 2, 3, 4)]
    assert ones == ['"ein.'] * 4


def test_nothing_is_searched_again_without_need() -> None:
    engine = Bigram([QUOTED])
    texts(engine, forbidden=["Katze"])
    assert engine.calls == 1
    unit = Unit(0, 1, TOKENIZER.encode("cat"), 9, None)
    wish = Wish(DecodingConfig())
    [found] = engine.search(collate([Example(1, unit.ids, [])]), [9], wish)
    assert silenced(engine, unit, found, wish, TOKENIZER) is found


# --- spelled once --------------------------------------------------------------------------------------------


def test_rules_for_all_lines_are_spelled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    inner = Wording.spelled

    def counted(self: Wording, tokenizer: Tokenizer, *, begins: bool = True) -> Rules:
        made.append("spelled")
        return inner(self, tokenizer, begins=begins)

    monkeypatch.setattr(Wording, "spelled", counted)
    tiny_run.translator().translate(tiny_run.SENTENCES, rules={"forbidden": ["Katze"], "prefix": "die"})
    assert made == ["spelled"]


def test_one_wording_has_one_row_of_rules_and_each_limit_is_looked_at() -> None:
    spelled = Spelled(TOKENIZER)
    wording = Wording(prefix="die Wand", min_length=5)
    rules, phrases = spelled.rules(wording, 9, begins=True)
    assert rules is spelled.rules(wording, 7, begins=True)[0]
    assert rules is not None
    assert rules.prefix == tuple(TOKENIZER.encode("die Wand"))
    assert phrases == ()
    rest, _ = spelled.rules(wording, 9, begins=False)
    assert rest is not None
    assert rest.prefix == ()
    with pytest.raises(DecodingError, match="the rules ask for 5 tokens"):
        spelled.rules(wording, 4, begins=True)


def test_rules_without_a_line_are_told() -> None:
    with pytest.raises(DecodingError, match=r"^line 2 has rules, but is not there; give as many as lines"):
        tiny_run.translator().translate(["cat"], rules=[{}, {"prefix": "die"}])
    assert len(tiny_run.translator().translate(["cat"], rules=[{}, {}, {}])) == 1  # a file that ends with blank lines


def test_a_sign_is_spelled_with_and_without_a_space_before_it() -> None:
    ways = spellings(TOKENIZER, "s")
    assert all(TOKENIZER.names()[way[0]].startswith("▁") for way in ways)
    plain = Tokenizer.learn(["a (b) c (d)", f"{CAT}{DOG}", f"{DOG} {CAT}"] * 9, vocab_size=290, kind="bpe")
    for phrase in ("(", CAT):
        firsts = {plain.names()[way[0]][:1] for way in spellings(plain, phrase)}
        assert firsts == {"▁", phrase}


def test_a_phrase_of_a_script_without_spaces_is_forced_within_a_text() -> None:
    plain = Tokenizer.learn([f"{RAIN}{CAT}{DOG}", f"{DOG}{CAT}"] * 9, vocab_size=290, kind="bpe")
    [ids] = Wording(forced=(CAT,)).spelled(plain).forced
    assert plain.names()[ids[0]] == CAT


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"prefix": "die Wand", "forbidden": ["Wand"]}, "the prefix 'die Wand' holds the forbidden phrase 'Wand'"),
        ({"forced": ["(Wand)"], "forbidden": ["Wand"]}, r"the forced phrase '\(Wand\)' holds the forbidden"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(rules: dict[str, object], message: str) -> None:
    with pytest.raises(DecodingError, match=message):
        tiny_run.translator().translate(["cat"], rules=rules)


def test_a_prefix_that_only_begins_like_a_forbidden_word_is_kept() -> None:
    wording = Wording(prefix="die Wan", forbidden=("Wand",))
    assert re.match("die Wan", tiny_run.translator().translate(["cat"], rules=wording)[0].text)
