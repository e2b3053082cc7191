"""Quantisers as modules: how the step is found and learned, that it stays positive, state dicts, integers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError, RuleError
from gradwright.ste.modules import Quantize

X = torch.linspace(-3.0, 3.0, 41, dtype=torch.float64).reshape(1, 41)[:, :40]


@pytest.fixture(autouse=True)
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def lsq_step_gradient(x: Tensor, s: Tensor, low: int, high: int, g: Tensor) -> Tensor:
    """The published rule, in numbers."""
    v = x / s
    slope = torch.where(v <= low, float(low), torch.where(v >= high, float(high), v.round() - v))
    return (g * slope).sum() / (x.numel() * high) ** 0.5


# -------------------------------------------------------------------- the step


def test_the_first_call_finds_the_step_and_no_other_changes_it() -> None:
    q = Quantize(4)
    assert not q.calibrated
    q(X)
    assert q.calibrated
    assert torch.allclose(q.scale, 2 * X.abs().mean() / 7**0.5)
    before = q.scale.clone()
    q(100 * X)
    assert torch.equal(q.scale, before)
    q.restart()
    q.eval()(100 * X)
    assert torch.allclose(q.scale, 100 * before), "in evaluation too"


def test_absmax_covers_both_ends() -> None:
    q = Quantize(4, init="absmax")
    assert torch.allclose(q(torch.tensor([-16.0, 7.0])), torch.tensor([-16.0, 8.0]))  # 7 / 2 is a tie
    assert q.scale.item() == 2.0
    assert Quantize(4, signed=False, init="absmax")(torch.tensor([-1e3, 30.0])).tolist() == [0.0, 30.0]


@pytest.mark.parametrize("init", ["lsq", "absmax"])
def test_a_step_for_each_element_of_a_vector(init: Any) -> None:
    q = Quantize(4, axis=0, init=init)
    q(torch.tensor([1.0, 50.0]))
    assert torch.allclose(q.scale, torch.tensor([1.0, 50.0]) * (1 / 7 if init == "absmax" else 2 / 7**0.5))


@pytest.mark.parametrize(("init", "want"), [("absmax", 3.0), ("lsq", 2.0)])
def test_several_batches(init: Any, want: float) -> None:
    q = Quantize(2, init=init, batches=3)  # the highest code is 1
    for size in (1.0, 3.0, 2.0, 50.0):
        q(torch.tensor([size, size]))
    assert q.scale.item() == pytest.approx(want if init == "absmax" else 2 * want)


def test_a_zero_point_covers_the_range() -> None:
    q = Quantize(8, signed=False, init="absmax", zero_point=True, batches=2)
    q(torch.tensor([1.0, 3.0]))
    q(torch.tensor([-1.25, 2.0]))
    assert q.scale.item() == pytest.approx(4.25 / 255)
    out = q(torch.tensor([-1.25, 0.0, 3.0]))
    assert out[1] == 0.0
    assert torch.allclose(out, torch.tensor([-1.25, 0.0, 3.0]), atol=q.scale.item())
    assert q.grid.zero_point is not None
    assert q.grid.zero_point.item() == round(1.25 / 4.25 * 255)


@pytest.mark.parametrize("start", [1e-3, 1.0, 300.0])
def test_a_learned_step_has_the_gradient_that_lsq_declares(start: float) -> None:
    for low, high, bits in ((-2, 1, 2), (-8, 7, 4)):
        q = Quantize(bits, scale=start)
        x = (start * X).requires_grad_()
        g = torch.cos(torch.arange(40.0)).reshape(1, 40)
        q(x).backward(g)
        assert q.scale.item() == pytest.approx(start)
        assert q.step.item() == 1.0
        want = lsq_step_gradient(start * X, torch.tensor(start), low, high, g)
        assert q.step.grad is not None
        torch.testing.assert_close(q.step.grad * start, want, rtol=1e-12, atol=1e-14)
        inside = (x / start > low) & (x / start < high)
        assert torch.equal(x.grad, torch.where(inside, g, 0.0))


@pytest.mark.parametrize("ratio", [0.5, 0.1, 0.0, -1.0])
def test_below_its_start_the_gradient_is_that_of_what_is_computed(ratio: float) -> None:
    q = Quantize(4, scale=0.25)
    with torch.no_grad():
        q.step.fill_(ratio)
    (slope,) = torch.autograd.grad(q.scale, q.step)
    eps = 1e-6
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            q.step.fill_(ratio + sign * eps)
            values.append(q.scale.item())
    assert slope.item() * 0.25**2 == pytest.approx((values[0] - values[1]) / (2 * eps), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_step_stays_positive_whatever_an_optimiser_does(dtype: torch.dtype) -> None:
    q = Quantize(4, scale=0.25).to(dtype)
    for value in (0.0, -1.0, -4.0, -400.0, -6e4):
        with torch.no_grad():
            q.step.fill_(value)
        assert q.scale.item() > 0
        assert bool(q(X.to(dtype)).isfinite().all())


def test_gradient_descent_moves_the_scale_as_if_it_were_the_parameter() -> None:
    q = Quantize(4, scale=0.01)
    scale = q.scale.detach().requires_grad_()
    x = 0.01 * X
    gradient = torch.autograd.grad(q.function(x, scale, **q.options, gradient_scale=1.0).square().sum(), scale)[0]
    q.gradient_scale = 1.0
    optimizer = torch.optim.SGD(q.parameters(), lr=1e-4)
    q(x).square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(q.scale, scale - 1e-4 * gradient)


@pytest.mark.parametrize("start", [1e-4, 0.01, 10.0])
def test_adam_changes_the_scale_by_a_part_of_itself(start: float) -> None:
    q = Quantize(8, scale=start)
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-2)
    q(start * X).square().sum().backward()
    optimizer.step()
    assert abs(q.scale.item() / start - 1) == pytest.approx(1e-2, rel=1e-3)


def test_a_large_step_in_training_cannot_turn_it_over() -> None:
    q = Quantize(2, scale=0.5)
    optimizer = torch.optim.SGD(q.parameters(), lr=100.0)
    for _ in range(20):
        optimizer.zero_grad()
        q(X).abs().sum().backward()  # pulls the step toward zero
        optimizer.step()
        assert q.scale.item() > 0
    assert q.step.item() < 0, "or else this test says nothing"


def test_a_constant_step_is_no_parameter() -> None:
    q = Quantize(4, learned=False, init="absmax")
    q(X)
    assert not list(q.parameters())
    assert set(dict(q.named_buffers())) == {"step", "seen"}


def test_a_channel_of_zeros_takes_the_step_of_the_largest() -> None:
    q = Quantize(4, axis=0, init="absmax")
    q(torch.tensor([[0.0, 0.0], [8.0, -16.0]]))
    assert q.scale.tolist() == [2.0, 2.0]
    assert Quantize(4)(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_a_tiny_step_in_half_precision_is_not_zero() -> None:
    q = Quantize(8).half()
    assert bool(q(torch.full((4,), 6e-8, dtype=torch.float16)).isfinite().all())
    assert q.scale.item() > 0


def test_groups() -> None:
    q = Quantize(4, axis=-1, group_size=2, init="absmax")
    w = torch.tensor([[7.0, 1.0, 0.7, 0.1], [1.4, 0.2, 14.0, 2.0]])
    assert torch.allclose(q(w), w)
    assert q.scale.shape == (2, 2)
    assert q.codes(w).values.tolist() == [[7, 1, 7, 1], [7, 1, 7, 1]]


def test_a_learned_zero_point_stays_whole_and_has_a_gradient() -> None:
    q = Quantize(4, signed=False, init="absmax", zero_point=True)
    q(X)
    q(3 * X).sum().backward()
    assert q.zero_point is not None
    assert q.zero_point.grad is not None
    assert q.zero_point.grad.item() != 0
    with torch.no_grad():
        q.zero_point.fill_(5.3)
        assert torch.allclose(q(torch.tensor([-1e3, 0.0, 1e3])), torch.tensor([-5.0, 0.0, 10.0]) * q.scale)


# -------------------------------------------------------------------- other functions, options, errors


def test_another_function_gets_the_options_that_it_has() -> None:
    got: dict[str, Any] = {}

    def binary(x: Tensor, scale: Tensor, *, bits: int) -> Tensor:
        got.update(bits=bits, scale=scale)
        return x.sign() * scale

    Quantize(1, function=binary, scale=2.0)(X)
    assert (got["bits"], got["scale"].item()) == (1, 2.0)
    for options, said in (({"narrow": True, "bits": 2}, "narrow=True"), ({"signed": False}, "signed=False")):
        with pytest.raises(OptionError, match=f"Quantize: {said}; the function has no such option"):
            Quantize(function=binary, **options)  # type: ignore[arg-type]

    def narrow_codes(x: Tensor, scale: Tensor, *, bits: int, narrow: bool = False) -> Tensor:
        got.update(narrow=narrow)
        return x * scale

    Quantize(2, narrow=True, function=narrow_codes, scale=1.0)(X)
    assert got["narrow"] is True
    with pytest.raises(OptionError, match="Quantize: mask='trust'; the function has no such option; leave it out"):
        Quantize(1, function=binary, mask="trust")


@pytest.mark.parametrize(
    "options", [{}, {"signed": False}, {"narrow": True}, {"axis": 1}, {"axis": 1, "group_size": 4}]
)
def test_lsq_as_the_function_is_the_same(options: dict[str, Any]) -> None:
    a, b = Quantize(3, **options), Quantize(3, function=gw.ste.lsq, **options)
    for q in (a, b):
        q(X)
    found = gw.ste.compare(a, b, 1.5 * X)
    assert found.same, str(found)
    assert set(found.gradients) == {"x", "step"}


def test_the_mask_is_that_of_lsq_unless_given() -> None:
    x = torch.tensor([7.25])  # beyond the highest code, but rounded to it
    for mask, want in ((None, 0.0), ("post-round", 1.0)):
        leaf = x.clone().requires_grad_()
        Quantize(4, scale=1.0, mask=mask)(leaf).sum().backward()  # type: ignore[arg-type]
        assert leaf.grad.item() == want


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": "mean"}, "Quantize: init: got 'mean'; expected one of lsq, absmax"),
        ({"zero_point": True}, "Quantize: zero_point with init='lsq'; expected init='absmax'"),
        ({"batches": 0}, "Quantize: batches is 0; expected at least 1"),
        ({"scale": 0.0}, "Quantize: scale is 0.0; expected positive numbers"),
        ({"scale": float("inf")}, "Quantize: scale is inf; expected positive numbers"),
        ({"wrong": 1}, "Quantize: wrong=1; the function has no such option"),
        ({"bits": 0}, "codes: bits is 0"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Quantize(**options)


def test_data_that_tell_no_step() -> None:
    with pytest.raises(ArgumentError, match="a value of the first data is not finite"):
        Quantize()(torch.tensor([1.0, torch.nan]))
    q = Quantize()
    assert q(torch.zeros(0)).shape == (0,)
    assert not q.calibrated
    with pytest.raises(RuleError, match="its step is not known yet; expected data before an export"):
        q.codes(X)
    with pytest.raises(RuleError, match="its step is not known yet; expected data before a transform"):
        torch.func.vmap(q)(X)


# -------------------------------------------------------------------- state, integers, use


def make() -> list[Quantize]:
    zero = Quantize(8, axis=1, signed=False, init="absmax", zero_point=True)
    return [Quantize(4), Quantize(3, learned=False), Quantize(4, axis=1), zero, Quantize(4, axis=1, batches=2)]


@pytest.mark.parametrize("number", range(5))
def test_state_dict_round_trip(number: int) -> None:
    trained = make()[number]
    trained(X)
    if trained.learned:
        with torch.no_grad():
            trained.step.mul_(0.3)
    fresh = make()[number]
    kept = dict(fresh.named_parameters())
    fresh.load_state_dict(trained.state_dict())
    assert fresh.calibrated is trained.calibrated
    assert all(parameter is kept[name] for name, parameter in fresh.named_parameters()), "an optimiser still knows them"
    for q in (fresh, copy.deepcopy(trained), pickle.loads(pickle.dumps(trained))):
        assert torch.equal(q(2 * X), copy.deepcopy(trained)(2 * X))


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_codes_are_whole_and_stand_for_what_is_returned(number: int, dtype: torch.dtype) -> None:
    q = make()[number].to(dtype)
    x = X.to(dtype)
    for _ in range(q.batches):
        out = q(x)
    codes = q.codes(x)
    assert codes.values.dtype == (torch.int8 if q.signed else torch.uint8)
    assert q.low <= codes.values.min()
    assert codes.values.max() <= q.high
    assert torch.equal(codes.dequantize(dtype), out)
    assert torch.equal(q.int_repr(x), codes.values)


def test_wide_codes_have_a_wide_dtype() -> None:
    assert [Quantize(bits, scale=1.0).grid.dtype for bits in (8, 9, 16, 17)] == [
        torch.int8,
        torch.int16,
        torch.int16,
        torch.int32,
    ]


def test_a_function_that_is_not_evenly_spaced_has_no_codes() -> None:
    q = Quantize(4, scale=1.0, function=lambda x, scale: x)
    with pytest.raises(ArgumentError, match=r"encode: .* is no whole number of steps"):
        q.codes(X + 0.3)


def test_a_weight_is_quantised_by_a_parametrization() -> None:
    layer = nn.Linear(6, 3)
    plain = layer.weight
    parametrize.register_parametrization(layer, "weight", Quantize(4, axis=0))
    quantize = layer.parametrizations.weight[0]
    assert isinstance(quantize, Quantize)
    assert quantize.calibrated
    assert quantize.scale.shape == (3,)
    layer(torch.randn(5, 6)).sum().backward()
    assert plain.grad is not None
    assert quantize.step.grad is not None
    assert all(len(row.unique()) <= 16 for row in layer.weight)
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    assert layer.weight is plain


@pytest.mark.parametrize("number", range(4))
def test_a_check_knows_what_its_gradient_is_meant_to_be(number: int) -> None:
    q = make()[number]
    q(X)
    report = gw.check(q, 1.7 * X, level="quick", seed=0)
    assert report, str(report)
    assert report["matches-surrogate"].verdict == "pass"


@pytest.mark.parametrize("zero_point", [False, True])
def test_parameters_of_a_coarser_dtype_get_gradients_of_their_own(zero_point: bool) -> None:
    q = Quantize(4, init="absmax", zero_point=zero_point).float()
    q(X)
    report = gw.check(q, 1.7 * X, level="quick", seed=0)
    assert report["gradient-shape-and-dtype"].verdict == "pass", str(report)


def test_a_check_of_a_function_without_a_surrogate_has_none() -> None:
    q = Quantize(4, scale=1.0, function=lambda x, scale: x * scale)
    assert q.__surrogate__ is None
    assert gw.check(q, X, level="quick")["matches-differences"].verdict == "pass"


def test_a_meta_tensor_has_no_step() -> None:
    with torch.device("meta"):
        q = Quantize(4)
        with pytest.raises(RuleError, match="its step is found from data, which a meta tensor has not"):
            q(torch.zeros(3))


@pytest.mark.parametrize("axis", [None, 1])
def test_inference_mode_leaves_a_step_that_can_be_trained(axis: int | None) -> None:
    q = Quantize(4, axis=axis)
    with torch.inference_mode():
        q(X.clone())
    q(X).sum().backward()
    assert q.step.grad is not None


def test_the_repr_says_what_it_does() -> None:
    q = Quantize(4, axis=0, batches=2)
    said = "4 bits, codes -8 to 7, axis=0, learned step, mask=pre-round, 0 of 2 batches seen for the step (lsq)"
    assert q.extra_repr() == said
    assert "0 of" not in repr(Quantize(4, scale=1.0))


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled_before_the_step_is_known() -> None:
    torch.compiler.reset()
    with pytest.raises(Exception, match="Quantize: its step is not known yet, and finding it cannot be traced"):
        torch.compile(Quantize(4), fullgraph=True, backend="eager")(X)
    torch.compiler.reset()
    q = Quantize(4)
    assert torch.equal(torch.compile(q, backend="eager")(X), q(X))


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled() -> None:
    torch.compiler.reset()
    q = Quantize(4)
    q(X)
    fast: Any = torch.compile(q, fullgraph=True)
    for rows in (1, 2, 3):
        x = X.repeat(rows, 1)
        got, want = [], []
        for function, found in ((fast, got), (q, want)):
            leaf = x.clone().requires_grad_()
            out = function(leaf)
            found += [out.detach(), *torch.autograd.grad(out.square().sum(), [leaf, q.step])]
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("options", [{}, {"init": "absmax"}, {"init": "absmax", "zero_point": True}])
def test_zeros_at_first_do_not_outlast_later_batches(options: dict[str, Any]) -> None:
    small = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 3.0]])
    later = torch.tensor([[0.001, -0.002, 0.003], [1.0, -2.0, 3.0]])
    for axis, first, second in ((None, 0 * later[0], later[0]), (0, small, later)):
        quantize = Quantize(4, axis=axis, batches=2, **options)
        quantize(first)
        assert (quantize.scale > 0).all()
        out = quantize(second)
        assert quantize.calibrated
        assert float(quantize.scale.detach().min()) < 0.002  # not what was guessed while there were zeros alone
        assert (out.reshape(-1)[:3].detach() != 0).any()


def test_a_check_before_the_first_data_accuses_nobody() -> None:
    with pytest.raises(RuleError, match="its step is not known yet; expected data before a check; run a batch first"):
        gw.check(Quantize(4), X, level="quick")
    assert gw.check(Quantize(4, scale=0.5), X, level="quick")
