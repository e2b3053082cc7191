"""Batches under ``vmap``: solved at once by gradwright's own solvers, else one by one; values and derivatives agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

import gradwright as gw
from gradwright.errors import ConvergenceError, RuleError

F64 = torch.float64
ZERO = torch.tensor(0.0, dtype=F64)
CALLS: list[Any] = []


def layer(z: Tensor, w: Tensor, x: Tensor) -> Tensor:
    CALLS.append(z)
    return torch.tanh(w @ z + x)


def residual(z: Tensor, w: Tensor, x: Tensor) -> Tensor:
    return z - layer(z, w, x) + 0.1 * z**3


SOLVES: dict[str, Any] = {
    "root": gw.implicit.root(residual),
    "root, gmres": gw.implicit.root(residual, linear="gmres"),
    "fixed point": gw.implicit.fixed_point(layer),
    "one step": gw.implicit.fixed_point(layer, backward="one-step"),
    "neumann": gw.implicit.fixed_point(layer, backward="neumann", steps=2),
    "minimum": gw.implicit.argmin(lambda z, w, x: (z - layer(z, w, x) / 4).square().sum()),
    "another solver": gw.implicit.root(residual)(lambda z0, w, x: gw.implicit.root(residual)(z0, w, x)),
}
SECOND = [name for name in SOLVES if name not in ("one step", "neumann")]


def arguments(rows: int = 5, n: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    ws = 0.3 * torch.randn(rows, n, n, dtype=F64, generator=generator)
    return torch.zeros(n, dtype=F64), ws, torch.randn(rows, n, dtype=F64, generator=generator)


@pytest.mark.parametrize("name", SOLVES)
def test_values_and_derivatives_are_those_of_the_samples(name: str) -> None:
    z0, ws, xs = arguments()

    def f(w: Tensor, x: Tensor) -> Tensor:
        return SOLVES[name](z0, w, x)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return f(w, x).square().sum()

    pairs = list(zip(ws, xs))
    torch.testing.assert_close(vmap(f)(ws, xs), torch.stack([f(w, x) for w, x in pairs]))
    for transform in (grad, jacrev, jacfwd):
        found = vmap(transform(loss, argnums=(0, 1)))(ws, xs)
        rows = [transform(loss, argnums=(0, 1))(w, x) for w, x in pairs]
        for one, other in zip(found, zip(*rows)):
            torch.testing.assert_close(one, torch.stack(other))
    # Differentiated from outside, by what all samples share and by what they do not.
    shared = grad(lambda w: vmap(f, in_dims=(None, 0))(w, xs).square().sum())(ws[0])
    torch.testing.assert_close(shared, sum(grad(loss)(ws[0], x) for x in xs))
    apart = grad(lambda xs: vmap(loss, in_dims=(None, 1))(ws[0], xs).sum())(xs.T)
    torch.testing.assert_close(apart, torch.stack([grad(loss, argnums=1)(ws[0], x) for x in xs], 1))
    moved = jvp(lambda w, xs: vmap(f, in_dims=(None, 0))(w, xs), (ws[0], xs), (ws[1], xs.roll(1)))[1]
    alone = [jvp(f, (ws[0], x), (ws[1], t))[1] for x, t in zip(xs, xs.roll(1))]
    torch.testing.assert_close(moved, torch.stack(alone))
    torch.testing.assert_close(vmap(vmap(f, (None, 0)), (0, None))(ws, xs)[1], vmap(f, (None, 0))(ws[1], xs))


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_inside_and_outside(name: str) -> None:
    z0, ws, xs = arguments(3, 2)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return SOLVES[name](z0, w, x).square().sum()

    found = vmap(hessian(loss, argnums=1), in_dims=(None, 0))(ws[0], xs)
    torch.testing.assert_close(found, torch.stack([hessian(loss, argnums=1)(ws[0], x) for x in xs]))

    def whole(w: Tensor) -> Tensor:
        return vmap(loss, in_dims=(None, 0))(w, xs).sum()

    second = sum(hessian(loss)(ws[0], x) for x in xs)
    torch.testing.assert_close(hessian(whole)(ws[0]), second)
    w = ws[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(whole(w), w, create_graph=True)
    v = ws[1]
    torch.testing.assert_close(
        torch.autograd.grad(slope, w, v)[0], torch.einsum("ab,abcd->cd", v, second), rtol=1e-8, atol=1e-10
    )


def test_a_batch_is_one_solve() -> None:
    z0, ws, xs = arguments(200)
    for name in ("root", "fixed point"):
        CALLS.clear()
        vmap(SOLVES[name], in_dims=(None, 0, 0))(z0, ws, xs)
        assert len(CALLS) < 60


def test_a_function_that_cannot_be_batched_is_solved_one_by_one() -> None:
    def branches(y: Tensor, t: Tensor) -> Tensor:
        return y**3 + y - t if bool(t > 1) else y - t

    solve = gw.implicit.root(branches)
    ts = torch.tensor([0.5, 2.0], dtype=F64)
    torch.testing.assert_close(vmap(lambda t: solve(ZERO, t))(ts), torch.tensor([0.5, 1.0], dtype=F64))
    slopes = grad(lambda ts: vmap(lambda t: solve(ZERO, t))(ts).sum())(ts)
    torch.testing.assert_close(slopes, torch.tensor([1.0, 0.25], dtype=F64))


def test_rows_that_end_early_wait_and_each_has_its_status() -> None:
    statuses: list[Any] = []

    def f(solve: Callable[..., Any], t: Tensor) -> Tensor:
        z, status = solve(ZERO, t)
        statuses.append(status)
        return z

    ts = torch.tensor([0.0, 1e-3, 2.0, 1e6, float("nan")], dtype=F64)
    for solve in (
        gw.implicit.root(lambda y, t: y**3 + y - t, has_aux=True),
        gw.implicit.fixed_point(lambda z, t: torch.tanh(z / 2 + t), has_aux=True),
    ):
        statuses.clear()
        found = vmap(lambda t, s=solve: f(s, t))(ts)
        (batch,) = statuses
        for t, z, status in zip(ts[:-1], found, batch):
            alone = solve(ZERO, t)
            torch.testing.assert_close(z, alone[0], rtol=1e-14, atol=1e-15)
            assert status.converged
            assert status.steps == alone[1].steps
        assert not batch[-1].converged


def test_the_sample_that_did_not_converge_is_named() -> None:
    solve = gw.implicit.root(lambda y, t: y**3 + y - t, max_steps=3)
    ts = torch.tensor([0.0, 1e6, 0.0], dtype=F64)
    with pytest.raises(ConvergenceError, match="equation 0 of 1 of sample 1 has the residual"):
        vmap(grad(lambda t: solve(ZERO, t)))(ts)


def test_ensembles_of_modules() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3, dtype=F64)
            self.solve = gw.implicit.fixed_point(self.step)

        def step(self, z: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(self.linear(z) / 3 + x)

        def forward(self, x: Tensor) -> Tensor:
            return self.solve(torch.zeros_like(x), x)

    cells = [Cell() for _ in range(3)]
    x = torch.randn(3, dtype=F64)
    stacked, buffers = torch.func.stack_module_state(cells)  # type: ignore[arg-type]
    cell = cells[0]

    def loss(weights: Any) -> Tensor:
        return functional_call(cell, (weights, {}), (x,)).square().sum()

    found = vmap(grad(loss))(stacked)
    for i, each in enumerate(cells):
        each(x).square().sum().backward()
        for name, parameter in each.named_parameters():
            torch.testing.assert_close(found[name][i], parameter.grad)
    assert not buffers


def test_errors_of_the_user_are_not_taken_for_a_reason_to_loop() -> None:
    with pytest.raises(RuleError, match="the residual has 2 elements"):
        vmap(lambda t: gw.implicit.root(lambda z, t: torch.stack([z, z]) - t)(ZERO, t))(torch.ones(3, dtype=F64))


def test_many_unknowns_need_no_jacobian() -> None:
    n = 4000
    b = torch.linspace(-1, 1, n, dtype=F64, requires_grad=True)
    solve = gw.implicit.root(lambda z, b: 3 * z + z**3 - 0.5 * z.roll(1) - b, has_aux=True)
    z, status = solve(torch.zeros(n, dtype=F64), b)
    assert status.converged
    found = torch.autograd.grad(z.sum(), b)[0]
    # The transposed equation: (3 + 3 z^2) w - 0.5 w.roll(-1) = 1.
    torch.testing.assert_close((3 + 3 * z.detach() ** 2) * found - 0.5 * found.roll(-1), torch.ones(n, dtype=F64))
