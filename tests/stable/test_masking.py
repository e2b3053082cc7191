"""``masked`` and ``where``: what lies where the mask is false leaves no trace, in any mode, order or transform."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import gradwright as gw
from gradwright.errors import ArgumentError

masked, where = gw.stable.masked, gw.stable.where
NAN, INF = torch.nan, torch.inf


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def gradients(out: Tensor, *inputs: Tensor) -> list[list[float]]:
    return [g.tolist() for g in torch.autograd.grad(out.sum(), inputs, materialize_grads=True)]


def squared(x: Tensor, y: Tensor) -> Tensor:
    return (x - y) ** 2


# -------------------------------------------------------------------- the rows that PyTorch gets wrong


@pytest.mark.parametrize(
    ("ours", "plain", "x", "want"),
    [
        pytest.param(
            lambda x: where(x < 1, torch.exp, lambda x: x, x),
            lambda x: torch.where(x < 1, torch.exp(x), x),
            [1000.0],
            [1.0],
            id="exp",
        ),
        pytest.param(
            lambda x: where(x > 0, torch.sqrt, lambda x: x, x),
            lambda x: torch.where(x > 0, torch.sqrt(x), x),
            [-1.0],
            [1.0],
            id="sqrt below 0",
        ),
        pytest.param(
            lambda x: masked(torch.sqrt, x > 0, x),
            lambda x: torch.where(x > 0, torch.sqrt(x), 0.0),
            [0.0],
            [0.0],
            id="sqrt at 0",
        ),
        pytest.param(
            lambda x: masked(squared, torch.tensor([True, False]), x, torch.tensor([0.0, NAN]).double()),
            lambda x: squared(x, torch.tensor([0.0, NAN]).double()).masked_fill(torch.tensor([False, True]), 0.0),
            [1.0, 1.0],
            [2.0, 0.0],
            id="nan under the mask",
        ),
    ],
)
def test_what_is_nan_in_torch_is_right(
    ours: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor], x: list[float], want: list[float]
) -> None:
    leaf = double(*x)
    assert torch.tensor(gradients(plain(leaf), leaf)).isnan().any(), "PyTorch gets it right now: say so in the docs"
    assert gradients(ours(leaf), leaf) == [want]
    _, forward = torch.func.jvp(ours, (leaf.detach(),), (torch.ones_like(leaf),))
    assert forward.tolist() == want
    assert torch.func.hessian(lambda x: ours(x).sum())(leaf.detach()).isfinite().all()


# -------------------------------------------------------------------- functions of every kind


@pytest.mark.parametrize("mask", [[True, False, True], [False, True, True], [True, True, True], [False, False, False]])
def test_it_is_the_selected_part_alone(mask: list[bool]) -> None:
    """Value and gradients, parameters of ``f`` included, are those of ``f`` on ``x[mask]``."""
    chosen = torch.tensor(mask)
    bad = torch.tensor([NAN, -INF, 0.0], dtype=torch.float64)
    x = torch.where(chosen, torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64), bad).requires_grad_()
    y = torch.where(chosen, torch.tensor([0.25, 1.5, 2.5], dtype=torch.float64), bad.flip(0)).requires_grad_()
    scale = double(0.5)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.log(x * scale) / torch.sqrt(x - y) ** 3

    out = masked(f, chosen, x, y, fill=7.0)
    alone = f(x[chosen], y[chosen])
    assert torch.equal(out[chosen], alone)
    assert out[~chosen].eq(7.0).all()
    for order in range(2):
        got = torch.autograd.grad(out.sum(), (x, y, scale), create_graph=True)
        want = torch.autograd.grad(alone.sum(), (x, y, scale), create_graph=True, materialize_grads=True)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=0, msg=f"order {order + 1}")
        out, alone = got[0] + got[1] + got[2], want[0] + want[1] + want[2]


def test_rows_are_places_where_the_mask_has_size_one() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    x[1], x[3] = NAN, INF
    x.requires_grad_()
    good = torch.tensor([[True], [False], [True], [False]])
    got = torch.autograd.grad(
        masked(lambda x: layer(x).log_softmax(-1), good, x).pow(2).sum(), [x, *layer.parameters()]
    )
    rows = x[[0, 2]]
    want = torch.autograd.grad(layer(rows).log_softmax(-1).pow(2).sum(), [x, *layer.parameters()])
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-15)


def test_a_norm_of_rows_that_are_zero() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    used = (x != 0).any(1, keepdim=True)
    (slope,) = torch.autograd.grad(masked(lambda x: (x * x).sum(1, keepdim=True).sqrt(), used, x).sum(), x)
    torch.testing.assert_close(slope, torch.tensor([[0.6, 0.8], [0.0, 0.0]], dtype=torch.float64), rtol=1e-15, atol=0)


class Pair(NamedTuple):
    value: Tensor
    slope: Tensor


@pytest.mark.parametrize("kind", [tuple, list, dict, Pair])
def test_several_outputs(kind: Any) -> None:
    def f(x: Tensor) -> Any:
        parts = (x.log(), 1 / x)
        return Pair(*parts) if kind is Pair else dict(zip("ab", parts)) if kind is dict else kind(parts)

    x = double(2.0, 0.0)
    out = masked(f, x > 0, x, fill=(1.0, -1.0))
    assert type(out) is kind
    first, second = out.values() if kind is dict else out
    assert (first[1].item(), second[1].item()) == (1.0, -1.0)
    assert gradients(first + second, x) == [[0.25, 0.0]]


def test_a_function_with_a_rule_of_its_own_and_words() -> None:
    x = double(50.0, NAN)
    slope = torch.tensor(gradients(masked(gw.stable.sigmoid, ~x.isnan(), x), x)[0])
    torch.testing.assert_close(slope, torch.tensor([math.exp(-50.0), 0.0]), rtol=1e-6, atol=0)

    def scaled(x: Tensor, *, weight: Tensor, power: int) -> Tensor:
        return weight * x**power

    weight = double(3.0)
    out = masked(scaled, ~x.isnan(), x, weight=weight, power=2)
    assert gradients(out, x, weight) == [[300.0, 0.0], [2500.0]]


def test_labels_that_mean_nothing_are_replaced_too() -> None:
    logits = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[1], [-100], [2]])

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return -logits.log_softmax(1).gather(1, target)

    out = masked(loss, target >= 0, logits, target)
    assert out[1].item() == 0
    (slope,) = torch.autograd.grad(out.sum(), logits)
    assert slope[1].eq(0).all()
    assert slope[0].tolist() == [0.25, -0.75, 0.25, 0.25]


def test_dtypes_and_fills() -> None:
    x = torch.tensor([1.0, -1.0], dtype=torch.bfloat16, requires_grad=True)
    assert masked(torch.log, x > 0, x).dtype == torch.bfloat16
    fill = double(5.0, 6.0)
    out = masked(torch.log, x > 0, x, fill=fill)
    assert out.dtype == torch.where(x > 0, x.log(), fill).dtype
    assert gradients(out, fill) == [[0.0, 1.0]]
    assert masked(torch.log, x > 0, x, fill=1j).tolist() == [0, 1j]
    assert masked(lambda x: x > 0.5, x > 0, x, fill=True).tolist() == [True, True]
    assert masked(lambda x: x.int(), x > 0, x).tolist() == [1, 0]
    z = torch.tensor([1j, 0.0], dtype=torch.complex128, requires_grad=True)
    (slope,) = torch.autograd.grad(masked(torch.log, z != 0, z).real.sum(), z)
    assert slope.tolist() == [1j, 0]


def test_broadcasting() -> None:
    x, y = double(1.0, -1.0), torch.tensor([[2.0], [NAN]], dtype=torch.float64, requires_grad=True)
    out = masked(lambda x, y: y / x.sqrt(), (x > 0) & ~y.isnan(), x, y)
    assert out.tolist() == [[2.0, 0.0], [0.0, 0.0]]
    assert gradients(out, x, y) == [[-1.0, 0.0], [[1.0], [0.0]]]
    scale = double(2.0)[0]
    out = masked(lambda x, s: x.log() * s, x > 0, x, scale)
    assert gradients(out, x) == [[2.0, 0.0]]
    assert masked(torch.log, torch.tensor(False), x).tolist() == [0.0, 0.0]
    column = masked(
        lambda x: x.sqrt().sum(0, keepdim=True), torch.tensor([True, False]), torch.tensor([[4.0, -1.0]] * 2)
    )
    assert column.tolist() == [[4.0, 0.0]]


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0)])
def test_shapes_without_much(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    for chosen in (True, False):
        out = masked(torch.log, torch.full(shape, chosen), x)
        assert out.shape == shape
        (slope,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(slope, torch.full(shape, float(chosen), dtype=torch.float64))


def test_nothing_selected_gives_parameters_zero() -> None:
    scale, x = double(2.0), double(NAN, -1.0)
    assert gradients(masked(lambda x: (x * scale).log(), torch.zeros(2, dtype=torch.bool), x), scale, x) == [
        [0.0],
        [0.0, 0.0],
    ]
    shifted = masked(lambda x: (x - scale).log(), torch.zeros(2, dtype=torch.bool), x, safe=3.0)
    assert gradients(shifted, scale) == [[0.0]]


def test_a_safe_point_for_functions_that_differ_from_place_to_place() -> None:
    """Another place's value may be outside of the domain here; given as an argument, both are replaced together."""
    floor = torch.tensor([0.0, 4.0], dtype=torch.float64, requires_grad=True)
    x = double(1.0, NAN)
    chosen = ~x.isnan()
    assert gradients(masked(lambda x: (x - floor).log(), chosen, x, safe=5.0), x, floor) == [[1.0, 0.0], [-1.0, 0.0]]
    assert gradients(masked(lambda x, y: (x - y).log(), chosen, x, floor), x, floor) == [[1.0, 0.0], [-1.0, 0.0]]
    assert gradients(masked(lambda x, y: (x - y).log(), chosen, x, floor, safe=(5.0, None)), x) == [[1.0, 0.0]]


def test_arguments_that_are_no_tensors_are_passed_on() -> None:
    x = double(4.0, -1.0)
    assert masked(lambda x, n, how: x.sqrt() * n if how == "up" else x, x > 0, x, 3, "up").tolist() == [6.0, 0.0]


def test_the_function_never_sees_what_is_left_out() -> None:
    seen = []

    def f(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        return x.log()

    x = torch.tensor([[-1.0, 3.0], [NAN, 5.0]])
    masked(f, x > 0, x)
    where(x > 4, f, f, x.nan_to_num(1.0))
    assert seen[0].tolist() == [[3.0, 3.0], [3.0, 5.0]]
    assert seen[1].eq(5.0).all()
    assert (seen[2] < 5).all()


def test_an_infinite_derivative_that_is_selected_stays_where_it_is() -> None:
    """The substitute is what is held there; nothing of it flows back, to the place it was taken from or to others."""
    x = double(0.0, -1.0, 4.0)
    assert gradients(masked(torch.sqrt, x >= 0, x), x) == [[INF, 0.0, 0.25]]


def test_the_cost_in_kept_memory_is_one_copy_of_the_arguments() -> None:
    """Beside what ``f`` keeps: the mask; the substitutes are what ``f`` gets."""
    kept: set[int] = set()

    def pack(t: Tensor) -> Tensor:
        kept.add(t.untyped_storage().data_ptr())
        return t

    x = torch.linspace(-1, 1, 1000, requires_grad=True)
    mask = x > 0
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = masked(torch.log, mask, x)
    assert out.requires_grad
    assert len(kept) == 2  # the mask, and the argument of the logarithm


# -------------------------------------------------------------------- transforms


def test_gradients_agree_with_differences_to_second_order() -> None:
    x = double(0.5, 2.0, -1.0, 3.0)
    y = double(0.25, 1.0, 5.0, -2.0)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return masked(lambda a, b: a.log() * torch.sqrt(a - b), x > y, x, y)

    def g(x: Tensor, y: Tensor) -> Tensor:
        return where(x > y, lambda a, b: torch.sqrt(a - b), lambda a, b: (b - a) ** 2.5, x, y)

    for function in (f, g):
        assert torch.autograd.gradcheck(function, (x, y), check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, (x, y), check_batched_grad=True)


@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0), (0, None)])
def test_a_batch_finds_a_safe_point_for_each_example(in_dims: tuple[int | None, int | None]) -> None:
    x = torch.tensor([[4.0, -1.0, NAN], [-1.0, 9.0, -2.0]], dtype=torch.float64)
    mask = x > 0
    given = (mask if in_dims[0] == 0 else mask[0], x if in_dims[1] == 0 else x[0])

    def slope(mask: Tensor, x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: masked(torch.log, mask, x).sum())(x)

    got = torch.func.vmap(slope, in_dims=in_dims)(*given)
    rows = [slope(*(v[i] if d == 0 else v for v, d in zip(given, in_dims))) for i in range(2)]
    assert torch.equal(got.nan_to_num(0.0), torch.stack(rows).nan_to_num(0.0))
    if in_dims == (0, 0):
        assert got.tolist() == [[0.25, 0.0, 0.0], [0.0, 1 / 9, 0.0]]


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_with_parameters_rows_and_several_outputs() -> None:
    layer = nn.Linear(2, 2).double()
    x = torch.tensor([[1.0, 2.0], [NAN, 1.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[1.0], [INF]], dtype=torch.float64)

    def step(x: Tensor, y: Tensor) -> Tensor:
        value, other = masked(lambda x, y: (layer(x) * y, y.log()), ~x.isnan().any(1, keepdim=True), x, y)
        return (value.sum(1) + where(y[:, 0] > 2, 0.5, torch.log, y[:, 0])).sum() + other.sum()

    fast = torch.compile(step, fullgraph=True)
    for a, b in zip(*(torch.autograd.grad(f(x, y), [x, *layer.parameters()]) for f in (step, fast))):
        torch.testing.assert_close(a, b)
        assert a.isfinite().all()


# -------------------------------------------------------------------- sums and means


@pytest.mark.parametrize(("dim", "keepdim"), [(None, False), (0, False), (1, True), ((0, 1), True)])
def test_sums_and_means(dim: Any, keepdim: bool) -> None:
    x = torch.tensor([[1.0, 4.0, -1.0], [NAN, -2.0, -INF]], dtype=torch.float64, requires_grad=True)
    mask = x > 0
    kept = torch.where(mask, x, 1.0).sqrt() * mask
    total, count = kept.sum(dim, keepdim), mask.sum(dim, keepdim)
    assert torch.equal(gw.stable.masked_sum(torch.sqrt, mask, x, dim=dim, keepdim=keepdim), total)
    mean = gw.stable.masked_mean(torch.sqrt, mask, x, dim=dim, keepdim=keepdim)
    assert torch.equal(mean, total / count.clamp(min=1))
    (slope,) = torch.autograd.grad(mean.sum(), x)
    assert slope.isfinite().all()
    assert slope[~mask].eq(0).all()


def test_a_mean_of_nothing_is_zero_and_does_not_move() -> None:
    x, scale = double(NAN, -1.0), double(2.0)
    mean = gw.stable.masked_mean(lambda x: (x * scale).log(), x > 0, x)
    assert mean.item() == 0
    assert gradients(mean, x, scale) == [[0.0, 0.0], [0.0]]


def test_half_types_are_summed_in_float32() -> None:
    x = torch.full((70_000,), 2.0, dtype=torch.float16)
    mean = gw.stable.masked_mean(lambda x: x * 2, x > 0, x)
    assert mean.dtype == torch.float16
    assert mean.item() == 4
    column = gw.stable.masked_mean(lambda x: x * 2, x[:2, None] > 0, x[:4].reshape(2, 2), dim=0)
    assert column.tolist() == [4.0, 4.0]


# -------------------------------------------------------------------- what is refused

X, M = torch.ones(3), torch.tensor([True, False, True])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: masked(torch.log, X, X), "masked: mask is a tensor of torch.float32; expected a tensor of booleans"),
        (lambda: masked(torch.log, True, X), "masked: mask is a bool; expected a tensor of booleans"),
        (lambda: masked(X, M, X), "masked: f is a Tensor; expected a function"),
        (lambda: masked(torch.log, M, 3.0), "masked: x is a float, and none of the arguments for f is a tensor"),
        (lambda: masked(torch.log, M, torch.ones(2)), r"masked: x has the shape \(2,\), which does not broadcast"),
        (lambda: masked(torch.add, M, X, torch.ones(2)), r"masked: argument 2 for f has the shape \(2,\)"),
        (lambda: masked(torch.sum, M, X), r"masked: sum returned a tensor of shape \(\), which does not have a place"),
        (lambda: masked(lambda x: x[:, None], M, X), r"returned a tensor of shape \(3, 1\)"),
        (lambda: masked(lambda x: x.sum(0, keepdim=True), M, X), r"returned a tensor of shape \(1,\)"),
        (lambda: masked(lambda x: None, M, X), "masked: <lambda> returned a NoneType without tensors"),
        (lambda: masked(lambda x: (x, x), M, X, fill=(1, 2, 3)), "there are 2 values where the mask is true and 3"),
        (lambda: masked(torch.log, M, X, safe=(1.0, 2.0)), "masked: safe has 2 values, but there are 1 arguments"),
        (lambda: where(M, X, X, X), "where: f is a Tensor and g a Tensor; expected a function of x"),
        (lambda: where(M, lambda x: (x, x), lambda x: (x,) * 3, X), "there are 2 values where the mask is true and 3"),
        (lambda: gw.stable.masked_sum(lambda x: (x, x), M, X), "masked_sum: f returned a tuple; expected one tensor"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
