"""Products by packed and 8-bit weights: what the formula gives, row by row, whatever stands beside a row."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import nn

import tiny_run
from pellucid.config import BEGIN_ID
from pellucid.decoding import products
from pellucid.decoding.engines import ModelEngine
from pellucid.decoding.precision import converted, fastest
from pellucid.decoding.products import EightBit, Plain, joined, quantised
from pellucid.errors import ConfigError
from pellucid.text.batch import Example, collate

ROWS, INSIDE, OUTSIDE = 7, 11, 5


def states(rows: int = ROWS, seed: int = 3) -> torch.Tensor:
    return torch.randn(rows, INSIDE, generator=torch.Generator().manual_seed(seed))


def linear(inside: int = INSIDE, outside: int = OUTSIDE) -> nn.Linear:
    torch.manual_seed(2)
    return nn.Linear(inside, outside)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("small", [True, False])
def test_a_plain_product_is_the_linear_map(
    dtype: torch.dtype, rows: int, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "SMALL", 2**20 if small else 0)
    given, map_ = states(rows).to(dtype), linear().to(dtype)
    others = torch.ones(rows, OUTSIDE, dtype=dtype)
    with torch.no_grad():
        product, expected = Plain(map_.weight, map_.bias), map_(given)
        near = 1e-6 if dtype == torch.float32 else 1e-14
        torch.testing.assert_close(product(given), expected, rtol=0, atol=near)
        torch.testing.assert_close(product.active(given), expected.relu(), rtol=0, atol=near)
        torch.testing.assert_close(product.added(given, others), others + expected, rtol=0, atol=near)
        bare = Plain(map_.weight, None)
        torch.testing.assert_close(bare(given), F.linear(given, map_.weight), rtol=0, atol=near)
    assert (expected < 0).any()


def test_joined_maps_stand_side_by_side_each_times_its_scale() -> None:
    one, other = linear().double(), nn.Linear(INSIDE, 3, bias=False).double()
    given = states().double()
    with torch.no_grad():
        expected = torch.cat([one(given) * 0.5, other(given)], dim=1)
        torch.testing.assert_close(joined([one, other], [0.5, 1.0])(given), expected, rtol=0, atol=1e-14)
        eight = joined([EightBit.of(one.float()), EightBit.of(other.float())], [0.5, 1.0])
        assert isinstance(eight, EightBit)
        apart = torch.cat([EightBit.of(one)(given.float()) * 0.5, EightBit.of(other)(given.float())], dim=1)
        torch.testing.assert_close(eight(given.float()), apart, rtol=0, atol=1e-6)


def test_eight_bits_are_whole_steps_of_each_output_and_each_row() -> None:
    map_ = linear()
    codes, steps = quantised(map_.weight)
    assert codes.abs().amax(dim=1).tolist() == [127] * OUTSIDE
    given = states()
    most = given.abs().amax(dim=1, keepdim=True)
    whole = (given / most * 63).round()
    expected = (whole.double() @ codes.double().T) * (steps.double() / 63) * most.double() + map_.bias.detach().double()
    torch.testing.assert_close(EightBit.of(map_)(given).double(), expected, rtol=0, atol=1e-6)
    with torch.no_grad():
        assert (EightBit.of(map_)(given) - map_(given)).abs().max() < 0.05  # and that is the map, roughly
        others = torch.ones(ROWS, OUTSIDE)
        assert torch.equal(EightBit.of(map_).active(given), EightBit.of(map_)(given).relu())
        assert torch.equal(EightBit.of(map_).added(given, others), others + EightBit.of(map_)(given))


@pytest.mark.parametrize("kernel", ["fbgemm", "formula"])
def test_states_that_are_never_below_zero_have_twice_the_steps(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel == "formula":
        monkeypatch.setattr(products, "_fbgemm_weight", lambda *_: None)
    given, map_ = states().relu(), linear()
    codes, steps = quantised(map_.weight)
    most = given.abs().amax(dim=1, keepdim=True)
    whole = (given / most * 127).round()
    expected = (whole.double() @ codes.double().T) * (
        steps.double() / 127
    ) * most.double() + map_.bias.detach().double()
    found = EightBit.of(map_, positive=True)(given)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6)
    assert joined([EightBit.of(map_, positive=True)], [1.0]).positive


@pytest.mark.parametrize("kernel", ["fbgemm", "formula"])
def test_a_row_never_depends_on_the_rows_beside_it(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel == "formula":
        monkeypatch.setattr(products, "_fbgemm_weight", lambda *_: None)
    map_ = EightBit.of(linear())
    given = states()
    given[2] *= 1000
    together = map_(given)
    for row in range(ROWS):
        assert torch.equal(map_(given[row : row + 1])[0], together[row])
    assert torch.equal(map_(given.view(1, ROWS, INSIDE))[0], together)


def test_both_kernels_give_the_same_to_the_last_steps() -> None:
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch has no FBGEMM")
    wide = linear(inside=1021, outside=13)  # sums beyond 16 bits
    with torch.no_grad():
        wide.weight.fill_(1.0)
    given = torch.ones(3, 1021)
    given[1] = -1
    before = torch.backends.quantized.engine
    with torch.no_grad():
        torch.testing.assert_close(EightBit.of(wide)(given), wide(given), rtol=1e-6, atol=0)
    assert torch.backends.quantized.engine == before
    by_kernel, codes = EightBit.of(linear()), quantised(linear().weight)
    formula = F.linear((states() / states().abs().amax(dim=1, keepdim=True) * 63).round(), codes[0].float())
    expected = formula * codes[1] / 63 * states().abs().amax(dim=1, keepdim=True) + linear().bias
    torch.testing.assert_close(by_kernel(states()), expected, rtol=0, atol=1e-6)


def test_rows_and_outputs_of_zeros_stay_zeros() -> None:
    map_ = linear()
    with torch.no_grad():
        map_.weight[1] = 0
        map_.bias[1] = 0
    found = EightBit.of(map_)(torch.zeros(2, INSIDE))
    assert torch.equal(found, map_.bias.detach().expand(2, -1))
    assert EightBit.of(map_)(states())[:, 1].tolist() == [0.0] * ROWS


# --- models in other numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_a_model_in_other_numbers_says_nearly_the_same_and_leaves_the_model_alone(precision: str) -> None:
    model = tiny_run.model().float().eval()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    batch = collate([Example(1, [40, 50, 60], [41, 51]), Example(2, [70], [71, 81, 91])])
    exact, rough = ModelEngine(model), ModelEngine(model, precision)  # type: ignore[arg-type]
    assert exact.model is model
    assert rough.model is not model
    scores = torch.tensor([exact.score(batch), rough.score(batch)])
    assert (scores[0] - scores[1]).abs().max() < 0.1 * scores[0].abs().max()
    assert not torch.equal(scores[0], scores[1])
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])
    # a sentence's step is the same alone: in 8 bits to the bit, for its rows are scaled by themselves
    ids = torch.full((2,), BEGIN_ID)
    together, _ = rough.step(ids, rough.begin(batch.source, batch.source_lengths))
    alone, _ = rough.step(ids[:1], rough.begin(batch.source[:1], batch.source_lengths[:1]))
    torch.testing.assert_close(alone[0], together[0], rtol=0, atol=1e-4 if precision == "int8" else 0.2)
    score = rough.score(collate([Example(1, [40, 50, 60], [41, 51])]))
    assert score == pytest.approx(rough.score(batch)[:1], rel=1e-5 if precision == "int8" else 0.02)


def test_the_step_and_the_score_of_an_8_bit_model_are_one_model() -> None:
    engine = ModelEngine(tiny_run.model().float(), "int8")
    batch = collate([Example(1, [40, 50, 60], [41, 51])])
    state, total = engine.begin(batch.source, batch.source_lengths), 0.0
    for place, token in enumerate(batch.labels[0].tolist()):
        log_probs, state = engine.step(batch.target[:, place], state)
        total += float(log_probs[0, token])
    assert total == pytest.approx(engine.score(batch)[0], rel=1e-4)


def test_the_faster_of_two_is_measured() -> None:
    model = tiny_run.model().float()
    chosen = fastest(model)
    assert chosen in ("float32", "bfloat16")
    eight: Any = converted(model, "int8").stacks.decoder.layers[0]
    assert eight.feed_forward.outer.positive  # behind a relu
    assert not eight.feed_forward.inner.positive
    weight = converted(model, "auto").head.weight
    assert weight.dtype in (torch.float32, torch.bfloat16)


def test_unknown_numbers_are_refused(unchecked: None) -> None:
    with pytest.raises(ConfigError, match="precision was given 'int4', but it knows 'float32', 'bfloat16', 'int8'"):
        ModelEngine(tiny_run.model(), "int4")  # type: ignore[arg-type]
