"""A linear map is transposed by differentiating it, and a map that is not linear is noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.authoring.derive import NotLinearError, transpose
from gradwright.errors import GradwrightError
from tests.authoring.examples import x

M = x(2, 3)


def meta(*shape: int, dtype: torch.dtype = torch.float64) -> Any:
    return torch.Size(shape), dtype, torch.device("cpu")


def test_the_transpose_of_a_matrix() -> None:
    (found,), seen = transpose(lambda v: [M @ v[0]], [meta(3)], [x(2)], verify=True)
    torch.testing.assert_close(found, M.mT @ x(2))
    assert seen


def test_none_is_zero_and_integers_have_no_derivative() -> None:
    metas = [meta(3), meta(3, dtype=torch.int64), meta(3)]
    found, _ = transpose(lambda v: [v[0] * 2, None, v[2] * 3], metas, [x(3), x(3), None], verify=True)
    torch.testing.assert_close(found[0], 2 * x(3))
    assert found[1] is None
    assert torch.equal(found[2], torch.zeros(3, dtype=torch.float64))  # type: ignore[arg-type]


def test_the_transpose_of_a_complex_map_is_its_adjoint() -> None:
    matrix = torch.complex(x(2, 3), x(2, 3, seed=5))
    v = torch.complex(x(2), x(2, seed=6))
    (found,), _ = transpose(lambda t: [matrix @ t[0]], [meta(3, dtype=torch.complex128)], [v], verify=True)
    torch.testing.assert_close(found, matrix.mH @ v)


@pytest.mark.parametrize(
    "rule",
    [
        lambda t: t.clamp(-1, 1),
        lambda t: t.relu(),
        lambda t: t.abs(),
        lambda t: t * t,
        lambda t: t / t.norm().clamp(min=1),
        lambda t: t.sign() + t - t.sign().detach() + t.abs() * t,
        lambda t: t.detach() * 2,
        lambda t: t + t.detach(),
        lambda t: t * (t > 0) * (torch.cos(2 * torch.arange(8) + 0.3) < 0),
    ],
)
def test_what_is_not_linear_is_noticed(rule: Any) -> None:
    with pytest.raises(NotLinearError):
        transpose(lambda v: [rule(v[0])], [meta(8)], [x(8)], verify=True)


@pytest.mark.parametrize(
    "rule",
    [
        lambda t: t * 1e12,
        lambda t: t * 1e-12,
        lambda t: t - t.mean(),
        lambda t: t.cumsum(0).flip(0) / 3,
        lambda t: torch.fft.fft(t).real,
        lambda t: torch.where(x(8) > 0, t, 0.1 * t),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_is_linear_is_not_accused(rule: Any, dtype: torch.dtype) -> None:
    def linear(v: Any) -> list[Tensor]:
        return [rule(v[0]).to(dtype)]

    assert transpose(linear, [meta(8, dtype=dtype)], [x(8).to(dtype)], verify=True)[1]


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (lambda t: t * 0, x(8)),
        (lambda t: 2 * t, torch.zeros(8).double()),
        (
            lambda t: 0.3 * t,
            torch.full((8,), 2e-323, dtype=torch.float64),
        ),  # four times the smallest number: all is rounded
    ],
)
def test_zeros_show_nothing(rule: Any, value: Tensor) -> None:
    """Neither accused nor taken for linear: it may be linear here only."""
    found, seen = transpose(lambda v: [rule(v[0])], [meta(8)], [value], verify=True)
    assert not seen
    assert not found[0].any() or value.abs().max() < 1e-300


@pytest.mark.parametrize("mode", ["clipped", ["clipped"]])
def test_a_rule_that_is_linear_with_other_constants_only_is_noticed(mode: Any) -> None:
    @gw.custom_gradient
    def same(x: Tensor, mode: Any = "plain") -> Tensor:
        return x * 1

    same.vjp(lambda g, mode: 7 * g if "plain" in mode else g.clamp(-1, 1))
    one = torch.ones(2)
    for plain in ("plain", ["plain"], "plain"):
        assert torch.func.jvp(lambda x, mode=plain: same(x, mode), (one,), (one,))[1].tolist() == [7, 7]
    with pytest.raises(GradwrightError, match="is not linear in its cotangent"):
        torch.func.jvp(lambda x: same(x, mode), (one,), (one,))


def test_linearity_is_not_remembered_without_end() -> None:
    @gw.custom_gradient
    def scaled(x: Tensor, k: float) -> Tensor:
        return x * k

    scaled.vjp(lambda g, k: g * k)
    for k in range(100):
        assert torch.func.jvp(lambda x, k=k: scaled(x, float(k)), (torch.ones(1),), (torch.ones(1),))[1] == k
    assert len(scaled.__custom_gradient__.linear) < 65
