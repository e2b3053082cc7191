"""Foreign functions with rules on tensors under ``vmap``: the rule is for one sample, and is used for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import gradwright as gw

DOUBLE = torch.float64


@gw.external(out=gw.like("b"))
def solve(a: np.ndarray, b: np.ndarray) -> Any:
    return np.linalg.solve(a, b)


@solve.vjp
def solve_vjp(g: Tensor, a: Tensor, out: Tensor) -> dict[str, Tensor]:
    w = solve(a.T, g)
    return {"a": -torch.outer(w, out), "b": w}


@gw.external(argnums="x")
def both(x: np.ndarray, *, by: float = 2.0) -> Any:
    return by * x, x * x


@both.vjp
def both_vjp(g: Any, x: Tensor, by: float) -> Tensor:
    first, second = g
    return (0 if first is None else by * first) + (0 if second is None else 2 * x * second)


@pytest.fixture
def matrix() -> Tensor:
    return torch.randn(3, 3, dtype=DOUBLE) + 4 * torch.eye(3, dtype=DOUBLE)


def test_a_batch_has_the_derivative_of_the_rule(matrix: Tensor) -> None:
    a, rows = matrix.requires_grad_(), torch.randn(4, 3, dtype=DOUBLE, requires_grad=True)
    found = torch.func.vmap(solve, in_dims=(None, 0))(a, rows)
    expected = torch.linalg.solve(a, rows.T).T
    assert torch.allclose(found, expected)
    g = torch.randn(4, 3, dtype=DOUBLE)
    for one, other in zip(
        torch.autograd.grad(found, (a, rows), g, create_graph=True),
        torch.autograd.grad(expected, (a, rows), g, create_graph=True),
    ):
        assert torch.allclose(one, other)
        second = [torch.autograd.grad(each.square().sum(), a, retain_graph=True)[0] for each in (one, other)]
        assert torch.allclose(*second)


def test_transforms_in_one_another(matrix: Tensor) -> None:
    b = torch.randn(3, dtype=DOUBLE)

    def loss(a: Tensor) -> Tensor:
        return solve(a, b).square().sum()

    def truth(a: Tensor) -> Tensor:
        return (torch.linalg.inv(a) @ b).square().sum()

    stack = torch.stack([matrix, 2 * matrix])
    for way in (
        torch.func.hessian,
        lambda f: torch.func.vmap(torch.func.grad(f)),
        lambda f: torch.func.vmap(torch.func.hessian(f)),
        lambda f: torch.func.jacrev(torch.func.vmap(f)),
    ):
        at = matrix if way is torch.func.hessian else stack
        assert torch.allclose(way(loss)(at), way(truth)(at))


def test_several_outputs_and_arguments_by_keyword() -> None:
    rows = torch.randn(4, 2, dtype=DOUBLE, requires_grad=True)
    first, second = torch.func.vmap(lambda x: both(x, by=3.0))(rows)
    assert torch.equal(first, 3 * rows)
    (grad,) = torch.autograd.grad(first.sum() + second.sum(), rows)
    assert torch.allclose(grad, 3 + 2 * rows)


def test_where_nothing_is_differentiated_the_batch_is_called_whole() -> None:
    sizes = []

    def whole(x: np.ndarray) -> Any:
        sizes.append(x.shape)
        return x**3

    cube = gw.external(whole, out=gw.like(0), vmap_method="broadcast_all")
    cube.vjp(lambda g, x: 3 * x * x * g)
    rows = torch.randn(4, 2, dtype=DOUBLE)
    cube(rows[0])
    sizes.clear()
    torch.func.vmap(cube)(rows)
    assert sizes == [(4, 2)]
    assert torch.func.vmap(cube)(rows[:0].requires_grad_()).shape == (0, 2)


def test_batches_of_cotangents(matrix: Tensor) -> None:
    a, b = matrix.requires_grad_(), torch.randn(3, dtype=DOUBLE, requires_grad=True)
    assert gradcheck(solve, (a, b), check_batched_grad=True)
    out = solve(a, b)
    rows = torch.autograd.grad(out, b, torch.eye(3, dtype=DOUBLE), is_grads_batched=True)[0]
    assert torch.allclose(rows, torch.linalg.inv(a))
