"""A mask written as text is the mask that Python would build, nothing is evaluated, and each slip has its sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid import masks
from pellucid.errors import MaskError
from pellucid.masks import Causal, Chunked, Dilated, Full, Global, Heads, Mask, Padding, Prefix, Segments, Window, parse

WRITTEN: list[tuple[str, Mask]] = [
    ("causal", Causal()),
    ("  full ", Full()),
    ("causal & padding(5, 3)", Causal() & Padding((5, 3))),
    ("Causal() & Padding((5, 3))", Causal() & Padding((5, 3))),
    ("CAUSAL&Padding([5,3])", Causal() & Padding((5, 3))),
    ("padding(5)", Padding((5,))),
    ("padding(lengths=(5, 3))", Padding((5, 3))),
    ("~padding(2, 0)", ~Padding((2, 0))),
    ("window(2, 1)", Window(before=2, after=1)),
    ("window(2, after=1)", Window(before=2, after=1)),
    ("Window(before=2, after=1)", Window(before=2, after=1)),
    ("chunked(3)", Chunked(3)),
    ("dilated(step=3)", Dilated(3)),
    ("global(0, 4)", Global((0, 4))),
    ("global(2)", Global(2)),
    ("global((0, 4)) | window(1, 1)", Global((0, 4)) | Window(1, 1)),
    ("causal | prefix(3)", Causal() | Prefix(3)),
    ("causal | prefix(3, 2)", Causal() | Prefix((3, 2))),
    ("causal | prefix((3,))", Causal() | Prefix((3,))),
    ("segments(0, 0, 1)", Segments(((0, 0, 1),))),
    ("segments((0, 0, 1), (0, 1, 1))", Segments(((0, 0, 1), (0, 1, 1)))),
    ("segments((0, 0, 1))", Segments(((0, 0, 1),))),
    ("heads(causal, ~window(1, 0) & padding(2, 3))", Heads((Causal(), ~Window(1, 0) & Padding((2, 3))))),
    ("~(causal | full)", ~Full()),
]


@pytest.mark.parametrize(("text", "mask"), WRITTEN, ids=[text for text, _ in WRITTEN])
def test_what_is_written_is_built(text: str, mask: Mask) -> None:
    assert parse(text) == mask
    assert masks.parse is parse


@pytest.mark.parametrize("mask", [mask for _, mask in WRITTEN], ids=[text for text, _ in WRITTEN])
def test_what_a_mask_prints_is_read_back(mask: Mask) -> None:
    assert parse(repr(mask)) == mask


PARTS = st.sampled_from(["causal", "window(2, 0)", "chunked(3)", "prefix(2)", "global(1)", "padding(5, 3)"])
TEXTS = st.recursive(
    PARTS,
    lambda parts: st.one_of(
        st.builds("~{}".format, parts),
        st.builds("({})".format, parts),
        st.builds("{} {} {}".format, parts, st.sampled_from("&|^-"), parts),
    ),
    max_leaves=7,
)


@given(TEXTS)
def test_operators_bind_as_in_python(text: str) -> None:
    names = {"causal": Causal(), "window": Window, "chunked": Chunked, "prefix": Prefix, "Global": Global}
    python = text.replace("global", "Global").replace("padding(5, 3)", "five")
    meant = eval(python, {"__builtins__": {}, "five": Padding((5, 3)), **names})  # noqa: S307 - a text made a moment ago
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("causal and full", r"^'causal and full' uses and, or, not; write a & b, a \| b or ~a$"),
        ("full & (not causal)", r"^'not causal' uses and, or, not"),
        ("caussal", r"^unknown mask 'caussal'; did you mean 'causal'\?$"),
        ("zebra(3)", r"^unknown mask 'zebra'; there are full, causal, .*heads$"),
        (
            "window(1)",
            r"^window takes before, after in its brackets, and was given 1 values; write window\(before, after\)$",
        ),
        ("window(1, 2, 3)", r"and was given 3 values;"),
        ("window(1, 2, after=3)", r"and was given 2 values and after;"),
        ("window(1, before=2)", r"and was given 1 values and before;"),
        ("window(wide=1, after=2)", r"and was given 0 values and wide, after;"),
        (
            "window(causal, 1)",
            r"^window takes whole numbers, and was given before=Causal\(\); write it as in window\(2, 0\)$",
        ),
        ("causal(1)", r"^causal takes nothing in its brackets, and was given 1 values; write causal\(\)$"),
        ("padding(lengths=(1, 2), more=3)", r"^padding takes lengths in its brackets"),
        ("padding('five')", r"^\"'five'\" stands where a whole number is needed; give one$"),
        ("padding(1.5)", r"^'1\.5' stands where a whole number is needed"),
        ("padding(True)", r"^'True' stands where a whole number is needed"),
        ("padding(-1)", r"^Padding was given the lengths \(-1,\), but it needs a whole number from 0 up"),
        ("padding(99999999999999999999)", r"^Padding was given the lengths .*, but it needs a whole number"),
        ("window(99999999999999999999, 0)", r"^Window was given before=9+, after=0, but both count keys"),
        ("padding()", r"^Padding was given the lengths \(\)"),
        ("heads(1)", r"^heads takes masks, and was given masks=\(1,\); write it as in heads\(causal, full\)$"),
        ("window((1, 2), 3)", r"^window takes whole numbers, and was given before=\(1, 2\);"),
        ("padding(causal)", r"^padding takes whole numbers, and was given lengths=\(Causal\(\),\);"),
        ("segments(1, causal)", r"^segments takes whole numbers in rows"),
        ("segments((1, causal))", r"^segments takes whole numbers in rows"),
        ("segments(1, (2, 3))", r"^segments takes whole numbers in rows, and was given ids=\(1, \(2, 3\)\);"),
        ("segments((1, 2), (3,))", r"^Segments was given the ids"),
        ("causal + full", r"^'causal \+ full' is no mask; masks are full, causal, .* joined by &, \|, -, \^"),
        ("causal < full", r"^'causal < full' is no mask"),
        ("causal.dense", r"^'causal\.dense' is no mask"),
        ("[causal]", r"^'\[causal\]' is no mask"),
        ("padding(*lengths)", r"^'\*lengths' is no mask"),
        ("window(**sizes)", r"^unknown mask 'sizes'"),
        ("__import__('os').getcwd()", r"is no mask"),
        ("__import__('os')", r"^\"'os'\" stands where"),
        ("", r"^'' is no expression of masks; write it as causal & padding\(5, 3\)$"),
        ("causal &", r"^'causal &' is no expression of masks"),
        ("causal\n& full", r"is no expression of masks"),
        ("causal\0", r"is no expression of masks"),
        ("(" * 900, r"is no expression of masks"),
        ("~" * 1500 + "full", r"is no expression of masks"),
        ("~" * 3000 + "full", r"^a mask of 3,004 characters was given, but 2,000 are read; write it in Python$"),
    ],
)
def test_each_slip_has_its_sentence(text: str, message: str) -> None:
    with pytest.raises(MaskError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
