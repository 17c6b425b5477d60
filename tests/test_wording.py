"""Rules as text, and lines that are too long: what a user asks of translations, and what comes out line by line."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny_run
from pellucid.config import DecodingConfig
from pellucid.decoding import Shortened, Translator, Wording
from pellucid.decoding.long import Part, parts_of
from pellucid.decoding.wording import spellings
from pellucid.errors import DecodingError
from shell import Shell, shell_in
from tiny_run import SENTENCES

TOKENIZER = tiny_run.tokenizer()


@cache
def translator() -> Translator:
    return tiny_run.translator()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    """Runs the command line in this process, in a folder of the test's own."""
    return shell_in(tmp_path, monkeypatch, capsys)


def said(text: str) -> list[str]:
    return text.split()


# --- rules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 4])
def test_rules_hold_for_the_text_of_every_candidate(beam: int) -> None:
    plain = translator().translate(SENTENCES, beam=beam)
    kept = {"die", "Notiz", "kleine", "Katze", "Wand"}
    usual = min({word for found in plain for word in said(found.text)} - kept)
    asked = {"prefix": "die Notiz", "forced": ["kleine Katze", "Wand"], "min_length": 9}
    forbidden = ["Notiz die", usual]
    for found in translator().translate(SENTENCES, beam=beam, n_best=beam, rules={**asked, "forbidden": forbidden}):
        assert found.hypotheses
        for one in found.hypotheses:
            assert one.text.startswith("die Notiz")
            assert usual not in said(one.text)
            assert "Notiz die" not in one.text
            if one.finished:
                assert len(one.tokens) + 1 >= 9
                assert " kleine Katze" in one.text
                assert " Wand" in one.text


def test_no_run_is_said_twice_and_a_penalty_changes_scores_alone() -> None:
    for found in translator().translate(SENTENCES, rules=Wording(no_repeat_ngram=2)):
        runs = list(zip(found.tokens, found.tokens[1:], strict=False))
        assert len(set(runs)) == len(runs)
    [one] = translator().translate(SENTENCES[:1], rules={"repetition_penalty": 3.0})
    assert one.score != pytest.approx(translator().translate(SENTENCES[:1])[0].score)


def test_scores_count_the_penalty_however_a_sentence_was_found() -> None:
    """A beam, greedy search and draws give one sentence one score."""
    rules = {"repetition_penalty": 3.0}
    for penalty in (0.0, 0.7):
        asked: list[dict[str, Any]] = [
            {"beam": 1},
            {"sampling": {"temperature": 0}},
            {"sampling": {"top_k": 1}, "seed": 3},
        ]
        for ways in zip(
            *(translator().translate(SENTENCES, rules=rules, length_penalty=penalty, **way) for way in asked),
            strict=True,
        ):
            assert len({one.tokens for one in ways}) == 1
            assert [one.score for one in ways] == pytest.approx([ways[0].score] * 3)
            assert [one.log_prob for one in ways] == pytest.approx([ways[0].log_prob] * 3)
        greedy = translator().translate(SENTENCES, beam=1, rules=rules, length_penalty=0.0)
        assert any(one.score < one.log_prob - 1 for one in greedy)
        wide = translator().translate(SENTENCES, beam=4, n_best=4, rules=rules, length_penalty=0.0)
        same = [
            (one.score, other.score)
            for one, found in zip(greedy, wide, strict=True)
            for other in found.hypotheses
            if other.tokens == one.tokens and other.finished == one.hypotheses[0].finished
        ]
        assert same
        assert [one for one, _ in same] == pytest.approx([other for _, other in same])


def test_parts_of_a_line_are_drawn_apart() -> None:
    """Three parts that are alike are three draws; the first is drawn as if it were the line."""
    part = "The red cat sees."
    short = tiny_run.translator(DecodingConfig(max_source_length=len(TOKENIZER.encode(part)) + 1, length_ratio=1.5))
    assert parts_of(" ".join([part] * 3), lambda text: len(text) <= len(part))[1:] == [Part(part, " ")] * 2
    way: dict[str, Any] = {"sampling": {"temperature": 2.0}, "seed": 5}
    [alone], [three] = short.translate([part], **way), short.translate([" ".join([part] * 3)], **way)
    assert three.text.startswith(f"{alone.text} ")
    assert three.text != " ".join([alone.text] * 3)
    assert "".join(short.stream(three.source, **way)) == three.text


def test_lengths_by_the_source_are_asked_for_by_the_call() -> None:
    [short] = translator().translate(SENTENCES[:1], length_ratio=0.01, length_extra=3)
    assert len(short.tokens) + short.hypotheses[0].finished <= 3
    [long] = translator().translate(SENTENCES[:1], rules={"min_length": 70}, length_ratio=1.0, length_extra=80)
    assert len(long.tokens) >= 69


def test_spellings_of_a_long_phrase_are_found_without_a_deep_search() -> None:
    ways = spellings(TOKENIZER, "Wand" * 400)
    assert len(ways) >= 256
    assert len(set(ways)) == len(ways)
    assert {TOKENIZER.decode(way) for way in ways[::31]} == {"Wand" * 400}


def test_a_forbidden_word_s_pieces_are_free_within_a_longer_one() -> None:
    for rules in ({"prefix": "Wand", "forbidden": ["Wa"]}, {"forced": ["Wand"], "forbidden": ["Wan", "Wa"]}):
        [found] = translator().translate(SENTENCES[:1], rules=rules)
        assert "Wand" in found.text
        assert not {"Wan", "Wa"} & set(said(found.text))


def test_each_line_has_its_own_rules_lazily_and_whatever_stands_beside_it() -> None:
    taken: list[int] = []

    def rules() -> Iterator[dict[str, Any]]:
        for number in range(len(SENTENCES)):
            taken.append(number)
            yield {"prefix": "Katze"} if number % 2 else {}

    found = list(translator().translate_lines(SENTENCES, rules=rules(), read_ahead=3))
    assert len(found) == len(taken) == len(SENTENCES)
    for number, (line, one) in enumerate(zip(SENTENCES, found, strict=True)):
        alone = translator().translate([line], rules={"prefix": "Katze"} if number % 2 else None)
        assert one.text == alone[0].text
        assert one.text.startswith("Katze") or number % 2 == 0
    lines = translator().translate_lines(iter(SENTENCES), rules=rules(), read_ahead=1)
    taken.clear()
    next(lines)
    assert taken == [0]


def test_a_stream_begins_as_it_must() -> None:
    rules = {"prefix": "die Wand", "forbidden": ["sieht"]}
    pieces = list(translator().stream(SENTENCES[2], rules=rules))
    assert "".join(pieces) == translator().translate([SENTENCES[2]], beam=1, rules=rules)[0].text
    assert "".join(pieces).startswith("die Wand")


def test_every_spelling_of_a_phrase_is_found() -> None:
    ways = spellings(TOKENIZER, "Katze")
    assert ways[0] == tuple(TOKENIZER.encode("Katze"))
    assert len(ways) > 1
    assert {TOKENIZER.decode(way) for way in ways} == {"Katze"}
    assert len(set(ways)) == len(ways)
    assert spellings(TOKENIZER, "  ") == ()


def test_length_options_reach_the_search() -> None:
    for found in translator().translate(SENTENCES, max_length=3, beam=2, n_best=2):
        assert all(len(one.tokens) + one.finished <= 3 for one in found.hypotheses)
    [power] = translator().translate(SENTENCES[:1], length_rule="power", length_penalty=1.0)
    assert power.score == pytest.approx(power.log_prob / (len(power.tokens) + power.hypotheses[0].finished))
    apart = translator().translate(SENTENCES[:1], beam=4, n_best=4, groups=2, diversity=20.0)[0]
    assert len({one.tokens[:1] for one in apart.hypotheses}) > 1


def test_each_token_is_told_with_what_stood_beside_it() -> None:
    short = tiny_run.translator(DecodingConfig(max_source_length=8, length_ratio=1.5))
    for found in short.translate([*SENTENCES, ""], beam=3, n_best=2, alternatives=5):
        if not found.source:
            assert found.hypotheses[0].token_log_probs is None
            continue
        for one in found.hypotheses:
            assert one.token_log_probs is not None
            assert one.alternatives is not None
            assert sum(one.token_log_probs) == pytest.approx(one.log_prob, abs=1e-9)
            assert len(one.token_log_probs) == len(one.alternatives)
            for own, others in zip(one.token_log_probs, one.alternatives, strict=True):
                figures = [figure for _, figure in others]
                assert len(others) == 5
                assert figures == sorted(figures, reverse=True)
                assert own <= figures[0]
                assert own in figures or own < figures[-1]
    [greedy] = translator().translate(SENTENCES[:1], beam=1, alternatives=1)
    assert greedy.record()["hypotheses"][0]["token_log_probs"] == greedy.hypotheses[0].token_log_probs
    assert "alternatives" not in translator().translate(SENTENCES[:1])[0].record()["hypotheses"][0]
    with pytest.raises(DecodingError, match="alternatives was given -1"):
        translator().translate(SENTENCES, alternatives=-1)


def test_alternatives_stop_where_the_learned_positions_end() -> None:
    endless = tiny_run.translator(positions="learned", max_positions=8)
    [found] = endless.translate([" ".join(["window"] * 7)], beam=2, n_best=2, alternatives=2)
    for one in found.hypotheses:
        assert one.token_log_probs is not None
        assert len(one.token_log_probs) == len(one.tokens) + one.finished


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"perfix": "die"}, "rules were given the unknown 'perfix'; did you mean 'prefix'"),
        ("die", "rules were given 'die', but they go by name"),
        ({"prefix": 7}, "prefix was given 7, but it is text"),
        ({"forced": "Katze"}, "forced was given 'Katze', but it takes phrases"),
        ({"forbidden": ["Katze", " "]}, "forbidden was given .* none blank"),
        (
            {"min_length": 500},
            "line 1: the rules ask for 500 tokens, end mark counted, but at most 22 may be said; allow more by",
        ),
        ({"prefix": "die \x00"}, "line 1: the vocabulary spells"),
        ({"forced": ["Katze"], "forbidden": ["Katze"]}, "the forced phrase .* holds the forbidden phrase"),
        ([{"prefix": "die"}], "line 2 has no rules; give as many as lines"),
        ([{}, {"min_length": 0}], "line 2: min_length was given 0"),
        ({"min_length": "4"}, "min_length was given '4', but it counts tokens"),
        ({"min_length": 4.5}, "min_length was given 4.5, but it counts tokens"),
        ({"min_length": None}, "min_length was given None, but it counts tokens"),
        ({"no_repeat_ngram": 2.5}, "no_repeat_ngram was given 2.5"),
        ({"no_repeat_ngram": True}, "no_repeat_ngram was given True"),
        ({"repetition_penalty": "2"}, "repetition_penalty was given '2', but it lowers"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty was given nan"),
        ({"forced": None}, "forced was given None, but it takes phrases"),
        ({"forbidden": {"a": 1}}, "forbidden was given {'a': 1}, but it takes phrases"),
        ({"prefix": "die Wand die Wand", "no_repeat_ngram": 2}, "the prefix .* says a run of 2 tokens twice"),
        ({"forced": ["Wand Wand"], "no_repeat_ngram": 1}, "the phrase that is forced, .* says a run of 1 tokens twice"),
        ([{}, {"what": 0}], "line 2: rules were given the unknown 'what'"),
    ],
)
def test_rules_that_cannot_be_cost_one_sentence(unchecked: None, rules: Any, message: str) -> None:
    with pytest.raises(DecodingError, match=message):
        translator().translate(["the cat", "a window"], rules=rules)


# --- lines that are too long ---------------------------------------------------------------------------------


@given(
    st.text(alphabet="ab .,!?\u3002\uff0c\"'", min_size=1, max_size=40).filter(lambda text: bool(text.strip())),
    st.integers(1, 9),
)
def test_parts_fit_and_together_are_the_line(line: str, most: int) -> None:
    parts = parts_of(line, lambda text: len(text) <= most)
    assert all(0 < len(part.text) <= most for part in parts)
    assert all(part.text == part.text.strip() for part in parts)
    together = "".join(part.joint + part.text for part in parts)
    assert "".join(together.split()) == "".join(line.split())
    assert parts[0].joint == ""


@pytest.mark.parametrize(
    ("line", "most", "parts"),
    [
        ('He said "Stop!" Then he left.', 20, ['He said "Stop!"', "Then he left."]),
        ("One two. Three, four five.", 11, ["One two.", "Three,", "four five."]),
        (
            "\u4eca\u65e5\u306f\u96e8\u3002\u660e\u65e5\u306f\u6674\u308c\u3002",
            6,
            ["\u4eca\u65e5\u306f\u96e8\u3002", "\u660e\u65e5\u306f\u6674\u308c\u3002"],
        ),
        ("aaaaaaa bb", 4, ["aaaa", "aaa", "bb"]),
        ("Am 12. Mai kam Dr. Weiss. Um 5 p.m. ging er.", 25, ["Am 12. Mai kam Dr. Weiss.", "Um 5 p.m. ging er."]),
        ("ab\u064b\u061f \u0646\u0639\u0645 x", 6, ["ab\u064b\u061f", "\u0646\u0639\u0645 x"]),
        ("ka \u0915\u0940\u0964 \u0939 ya \u0939\u0964", 8, ["ka \u0915\u0940\u0964", "\u0939 ya \u0939\u0964"]),
        ("e\u0301e\u0301e\u0301", 3, ["e\u0301", "e\u0301", "e\u0301"]),
        ("\u0301\u0301\u0301", 2, ["\u0301\u0301", "\u0301"]),
        ("He said no. so she left. Then it was.", 24, ["He said no. so she left.", "Then it was."]),
    ],
)
def test_a_line_is_cut_where_a_reader_would_pause(line: str, most: int, parts: list[str]) -> None:
    assert [part.text for part in parts_of(line, lambda text: len(text) <= most)] == parts


def test_a_long_line_is_cut_with_few_looks_at_its_length() -> None:
    looks: list[int] = []

    def fits(text: str) -> bool:
        looks.append(len(text))
        return len(text) <= 2000

    parts = parts_of(" ".join(["word"] * 3000), fits)
    assert [len(part.text) for part in parts[:-1]] == [1999] * (len(parts) - 1)
    assert len(looks) < 40 * len(parts)  # and not one for each word


def test_a_letter_that_is_too_long_by_itself_is_told() -> None:
    short = tiny_run.translator(DecodingConfig(max_source_length=3))
    with pytest.warns(Shortened, match=r"line 1 has .* 2 are read at most, and '\U0001f600' has .*; its rest was left"):
        [found] = short.translate(["\U0001f600"])
    assert len(found.source_tokens) == 3


def test_a_line_that_is_too_long_is_split_and_comes_back_as_one() -> None:
    short = tiny_run.translator(DecodingConfig(max_source_length=6))
    first, second = "the red cat sees a.", "a window opens."
    lines = ["cat", f"{first} {second}", "", "a red house"]
    longest = max(len(TOKENIZER.encode(part)) for part in (first, second, "a red house"))
    short.settings = short.settings.replace(max_source_length=longest + 1)
    found = short.translate(lines, n_best=2, attention=True)
    assert [one.source for one in found] == lines
    parts = short.translate([first, second], n_best=2)
    joined = found[1]
    for place in range(2):
        ones = [part.hypotheses[place] for part in parts]
        assert joined.hypotheses[place].text == " ".join(one.text for one in ones)
        assert joined.hypotheses[place].log_prob == pytest.approx(sum(one.log_prob for one in ones))
        assert joined.hypotheses[place].tokens == tuple(token for one in ones for token in one.tokens)
    assert joined.attention is None
    assert found[0].attention is not None
    assert found[2].text == ""
    assert joined.source_tokens.count("</s>") == 1
    assert "".join(short.stream(lines[1])) == short.translate([lines[1]], beam=1)[0].text


def test_a_line_that_is_too_long_is_shortened_with_a_warning_or_refused() -> None:
    short = tiny_run.translator(DecodingConfig(max_source_length=6))
    line = SENTENCES[5]
    with pytest.warns(Shortened, match="line 2 has .* tokens, but 5 are read at most; the rest was left out"):
        found = short.translate(["cat", line], too_long="truncate")
    assert len(found[1].source_tokens) == 6
    with pytest.raises(DecodingError, match=r"^line 2 has .* choose too_long='split' or 'truncate'"):
        short.translate(["cat", line], too_long="refuse")
    with pytest.raises(DecodingError, match=r"^line 1: it is too long and was split, and a phrase cannot be forced"):
        short.translate([line], rules={"forced": ["Katze"]})
    begun = short.translate([line], rules={"prefix": "Notiz"})[0].text
    assert begun.startswith("Notiz")


# --- from the shell ------------------------------------------------------------------------------------------


def test_options_of_the_command_arrive(shell: Shell, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny_run.write_run(run)
    source = "\n".join(SENTENCES[:3]).encode() + b"\n"
    options = ["prefix=die", "forced=Katze", "forbidden=sieht", "forbidden=Notiz", "min_length=4", "no_repeat_ngram=3"]
    ended = shell("translate", str(run), *(part for rule in options for part in ("--rule", rule)), stdin=source)
    assert ended.status == 0, ended.err
    assert len(ended.out.splitlines()) == 3
    for line in ended.out.splitlines():
        assert line.startswith("die")
        assert "sieht" not in said(line)
        assert "Notiz" not in said(line)
    more = ["max_length=3", "length_rule=power", "groups=2", "diversity=9", "too_long=truncate"]
    ended = shell("translate", str(run), *(part for one in more for part in ("--set", one)), "--json", stdin=source)
    assert ended.status == 0, ended.err
    assert all(len(json.loads(line)["tokens"]) <= 3 for line in ended.out.splitlines())
    plain, eight = (
        shell("translate", str(run), "--json", *options, stdin=source) for options in ((), ("--precision", "int8"))
    )
    assert (eight.status, len(eight.out.splitlines())) == (0, 3)
    assert eight.out != plain.out  # log-probabilities differ
    rules = tmp_path / "rules.jsonl"
    rules.write_text('{"prefix": "Wand"}\n\n{"prefix": "Katze"}\n', encoding="utf-8")
    ended = shell("translate", str(run), "--rules", str(rules), stdin=source)
    begins = [line.split()[0] for line in ended.out.splitlines()]
    assert begins[0].startswith("Wand")
    assert begins[2].startswith("Katze")


def test_a_shortened_line_is_told_of_in_one_sentence(shell: Shell, tmp_path: Path) -> None:
    tiny_run.write_run(tmp_path / "run", positions="learned", max_positions=9)
    source = f"cat\n{SENTENCES[5]}\n{SENTENCES[5]}\n".encode()
    ended = shell("translate", str(tmp_path / "run"), "--set", "too_long=truncate", stdin=source)
    assert (ended.status, len(ended.out.splitlines())) == (0, 3)
    told = ended.err.splitlines()
    assert [line.split(" has ")[0] for line in told] == ["pellucid: line 2", "pellucid: line 3"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--rule prefix=die --rules rules.jsonl", "--rule prefix=die stands beside --rules rules.jsonl"),
        ("--rules rules.jsonl", "rules.jsonl, line 2: no JSON"),
        ("--rules missing.jsonl", "missing.jsonl"),
        ("--rule prefix", "--rule was given 'prefix', but it takes NAME=VALUE"),
        ("--rule perfix=die", "--rule was given the unknown 'perfix'; did you mean 'prefix'"),
        ("--rule min_length=few", "min_length was given 'few', but it is a number"),
        ("--rule min_length=0", "min_length was given 0"),
        ("--rule repetition_penalty=0.5", "repetition_penalty was given 0.5"),
        ("--set length_rule=mean", "'length_rule' was given 'mean'"),
        ("--set too_long=cut", "'too_long' was given 'cut'"),
        ("--set max_length=0", "'max_length' was given 0"),
        ("--set groups=3", "groups was given 3 with a beam of 4"),
        ("--set beam=3", "--set was given the unknown 'beam'"),
        ("--sample --set groups=2", "groups was given 2 beside sampling"),
        ("--sample --rule forced=Katze", "phrases cannot be forced into what is drawn"),
        ("--precision int4", "precision was given 'int4'"),
        ("--set groups=2.0", "groups was given 2.0, but it counts parts of the beam"),
        ("--set alternatives=1.5 --json", "alternatives was given 1.5, but it counts tokens to tell"),
        ("--set alternatives=2", "only --json shows them"),
        ("--set diversity=5", "diversity was given 5.0, but it is between groups; add groups=2"),
        ("--rule no_repeat_ngram=2.5", "no_repeat_ngram was given 2.5"),
        ("--rules types.jsonl", "min_length was given '4'"),
        ("--rules twice.jsonl", "twice.jsonl, line 1: no JSON ('prefix' stands there twice)"),
        ("--rules deep.jsonl", "deep.jsonl, line 1: no JSON"),
        ("--rules digits.jsonl", "digits.jsonl, line 1: no JSON"),
        ("--rule prefix=die --rule prefix=eine", "--rule was given prefix twice"),
        ("--rule prefix=", "--rule was given 'prefix=', which says nothing"),
        ("--set max_length=3 --set max_length=30", "--set was given max_length twice"),
        ("--rule repetition_penalty=1e300", "repetition_penalty was given 1e+300"),
    ],
)
def test_bad_options_cost_one_sentence_and_status_2(
    unchecked: None, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, message: str
) -> None:
    tiny_run.write_run(tmp_path / "run")
    (tmp_path / "rules.jsonl").write_text('{"prefix": "die"}\n{prefix\n', encoding="utf-8")
    (tmp_path / "types.jsonl").write_text('{"min_length": "4"}\n{}\n', encoding="utf-8")
    for name, line in {
        "twice": '{"prefix": "die", "prefix": "eine"}',
        "deep": "[" * 100_000,
        "digits": f'{{"min_length": {"9" * 5000}}}',
    }.items():
        (tmp_path / f"{name}.jsonl").write_text(f"{line}\n\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    ended = shell("translate", "run", *options.split(), stdin=b"the cat\na window\n")
    assert ended.status == 2, ended.err
    assert message in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert ended.out == ""
