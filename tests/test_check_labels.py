"""Labels are the next inputs: each way of shifting them wrongly is found and named, and right ones pass."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pellucid.check.labels import shift
from pellucid.check.report import Report
from pellucid.errors import CheckError

B, T = 3, 11
OFFSETS = (-2, -1, 0, 1, 2)


def failed(report: Report) -> Report:
    """The report of a check that must have failed."""
    assert not report.passed
    return report


def ids(samples: int = B, length: int = T) -> Tensor:
    """Ids of which none stands twice."""
    return torch.randperm(samples * length).view(samples, length) + 4


def at(inputs: Tensor, offset: int) -> Tensor:
    """Labels that stand so far ahead among the inputs, and -100 where there are none."""
    labels = torch.full_like(inputs, -100)
    length = inputs.shape[1]
    for place in range(max(0, -offset), min(length, length - offset)):
        labels[:, place] = inputs[:, place + offset]
    return labels


def test_labels_one_ahead_pass() -> None:
    text = ids()
    report = shift(text[:, :-1], text[:, 1:])
    report.raise_for_failure()
    assert report.name == "shift"
    assert report.asked == "labels[:, t] must be inputs[:, t + 1]"
    assert report.figures == {f"agree at offset {offset}": float(offset == 1) for offset in OFFSETS}
    assert (report.advice, report.picture) == ("", "")


SLIPS = [
    (0, 1, "not shifted: each label is the input of its own position"),
    (2, 1, "shifted twice: each label is the input after the next"),
    (-1, 1, "shifted backwards: the input at a position is the label of the next"),
    (-2, 1, "shifted backwards"),
    (1, 0, "shifted twice: labels are the next inputs already"),
    (2, 0, "shifted twice: each label is the input after the next"),
    (0, -1, "not shifted"),
    (1, 2, "labels agree with inputs at offset 1; shift them by 2"),
    (3, 1, "labels agree with inputs at no offset"),
]


@pytest.mark.parametrize(("offset", "meant", "slip"), SLIPS)
def test_a_wrong_shift_is_named(offset: int, meant: int, slip: str) -> None:
    inputs = ids()
    report = failed(shift(inputs, at(inputs, offset), shift=meant))
    assert report.advice.startswith(slip)
    if offset in OFFSETS:
        assert report.figures[f"agree at offset {offset}"] == 1.0


def test_what_differs_is_named_and_drawn() -> None:
    inputs = torch.tensor([[2, 7, 9, 8, 15, 6], [2, 5, 4, 0, 0, 0]])
    labels = torch.tensor([[7, 9, 8, 14, 6, 3], [5, 4, 3, 0, 0, 0]])
    report = failed(shift(inputs, labels))
    assert report.findings == ("labels[0, 3] is 14, and inputs[0, 4] is 15", "1 of 7 positions disagree")
    assert report.figures["agree at offset 1"] == pytest.approx(6 / 7)
    assert report.advice.startswith("most labels are the inputs that were meant")
    assert report.picture.split("\n") == [
        "  position  1  2  3  4  5",
        "  inputs    7  9  8 15  6",
        "  labels    9  8 14  6  3",
        "            .  .  !  .  .",
    ]


def test_a_few_of_many_are_spelt_out() -> None:
    text = ids()
    found = failed(shift(text, text)).findings
    assert len(found) == 4
    assert found[0] == f"labels[0, 0] is {int(text[0, 0])}, and inputs[0, 1] is {int(text[0, 1])}"
    assert found[-1] == f"and {B * (T - 1) - 3} more: {B * (T - 1)} of {B * (T - 1)} positions disagree"


def test_labels_of_hugging_face_are_the_inputs_themselves() -> None:
    text = ids()
    report = shift(text, text, shift=0)
    assert report.passed
    assert report.asked == "labels[:, t] must be inputs[:, t]"
    prompt = text.clone()
    prompt[:, :4] = -100  # learns nothing from the prompt
    assert shift(text, prompt, shift=0)


def test_what_is_not_real_is_not_compared() -> None:
    text = ids()
    padded, labels = text[:, :-1].clone(), text[:, 1:].clone()
    padded[1, 6:], labels[1, 6:] = 1, 3
    assert not shift(padded, labels)
    assert shift(padded, labels, ignore=(1, 3))
    labels[1, 6:] = 1
    assert shift(padded, labels, ignore=1)


def test_one_id_that_stands_again_is_no_repetition() -> None:
    inputs, labels = torch.tensor([[5, 6, 7, 5]]), torch.tensor([[6, 7, 5, -100]])
    report = shift(inputs, labels)
    assert report.passed
    assert report.figures["agree at offset -2"] == 1.0  # of one pair


def test_decoder_inputs_shifted_the_other_way_are_found() -> None:
    """The inputs should be the labels after a begin mark; here they are the labels one ahead."""
    labels = ids()
    begun = torch.cat([torch.full((B, 1), 2), labels[:, :-1]], dim=1)
    assert shift(begun, labels)
    ahead = torch.cat([labels[:, 1:], torch.zeros(B, 1, dtype=torch.long)], dim=1)
    report = failed(shift(ahead, labels))
    assert report.figures["agree at offset -1"] == 1.0
    assert "the decoder is fed its labels' future" in report.advice


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: shift(ids(), ids()[:, :-1]), r"inputs torch.int64 \(3, 11\) and labels torch.int64 \(3, 10\); give whole"),
    (lambda: shift(ids()[0], ids()[0]), r"\(11,\).*\(batch, length\) both"),
    (lambda: shift(ids(), ids().float()), "labels torch.float32"),
    (lambda: shift(ids(), ids() > 7), "labels torch.bool"),
    (lambda: shift(ids(1, 3), ids(1, 3)), r"given 2 positions where .*inputs\[:, t \+ 1\] are both real; give longer"),
    (lambda: shift(ids(), torch.full((B, T), -100)), "given 0 positions"),
    (lambda: shift(ids()[:, :0], ids()[:, :0]), "given 0 positions"),
    (
        lambda: shift(torch.full((B, T), 7), torch.full((B, T), 7)),
        "at offset 1, but at -2, -1, 0, 2 as well, since ids repeat",
    ),
]


@pytest.mark.parametrize(("call", "said"), REFUSED)
def test_what_says_nothing_is_refused(call: Callable[[], object], said: str, unchecked: None) -> None:
    with pytest.raises(CheckError, match=said):
        call()


@given(st.integers(1, 5), st.integers(9, 13), st.sampled_from(OFFSETS), st.sampled_from(OFFSETS), st.data())
def test_labels_pass_at_their_own_offset_only(
    samples: int, length: int, offset: int, meant: int, data: st.DataObject
) -> None:
    inputs = ids(samples, length)
    labels = at(inputs, offset)
    labels[:, data.draw(st.integers(0, length - 1))] = -100
    report = shift(inputs, labels, shift=meant)
    assert report.passed == (offset == meant)
    assert report.figures == {f"agree at offset {one}": float(one == offset) for one in OFFSETS}


@given(st.integers(1, 5), st.integers(6, 13), st.data())
def test_one_wrong_label_is_one_finding(samples: int, length: int, data: st.DataObject) -> None:
    inputs = ids(samples, length)
    labels = at(inputs, 1)
    sample, place = data.draw(st.integers(0, samples - 1)), data.draw(st.integers(0, length - 2))
    labels[sample, place] = 3
    report = failed(shift(inputs, labels))
    count = samples * (length - 1)
    assert report.findings == (
        f"labels[{sample}, {place}] is 3, and inputs[{sample}, {place + 1}] is {int(inputs[sample, place + 1])}",
        f"1 of {count} positions disagree",
    )
