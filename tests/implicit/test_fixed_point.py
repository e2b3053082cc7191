"""Fixed points: exact gradients by default, and surrogates that say so."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import gradwright as gw
from gradwright.errors import ConvergenceError, OptionError, RuleError

F64 = torch.float64
ZERO = torch.tensor(0.0, dtype=F64)


def contraction(z: Tensor, t: Tensor) -> Tensor:
    return torch.tanh(z / 2 + t)


def layer(z: Tensor, w: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(w @ z + x)


def layer_arguments(scale: float = 0.3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    w = scale * torch.randn(4, 4, dtype=F64, generator=generator)
    return w.requires_grad_(), torch.randn(4, dtype=F64, generator=generator).requires_grad_()


solve_scalar = gw.implicit.fixed_point(contraction)
solve_layer = gw.implicit.fixed_point(layer)


@gw.implicit.fixed_point(contraction)
def by_iterating(z0: Tensor, t: Tensor) -> Tensor:
    """Iterate often enough."""
    z = z0
    for _ in range(80):
        z = contraction(z, t)
    return z


@pytest.mark.parametrize("solve", [solve_scalar, by_iterating, gw.implicit.fixed_point(contraction, memory=0)])
def test_first_and_second_derivatives_are_the_closed_ones(solve: Any) -> None:
    t = torch.tensor(0.3, dtype=F64)
    z = solve(ZERO, t)
    s = 1 - z**2
    first = s / (1 - s / 2)
    # d/dt of first, with ds = -2 z first: first = s / (1 - s / 2), so d first = ds / (1 - s / 2)^2
    second = -2 * z * first / (1 - s / 2) ** 2

    def f(t: Tensor) -> Tensor:
        return solve(ZERO, t)

    for found in (grad(f)(t), jacfwd(f)(t), jvp(f, (t,), (torch.ones_like(t),))[1]):
        torch.testing.assert_close(found, first, rtol=1e-10, atol=0)
    assert abs(float(second) + 3.07) < 0.01  # the number of the literature's test case
    for found in (hessian(f)(t), grad(grad(f))(t), jacfwd(jacfwd(f))(t), jacrev(jacrev(f))(t)):
        torch.testing.assert_close(found, second, rtol=1e-9, atol=0)


def test_a_layer_passes_gradcheck_in_both_modes_and_orders() -> None:
    w, x = layer_arguments()

    def f(w: Tensor, x: Tensor) -> Tensor:
        return solve_layer(torch.zeros(4, dtype=F64), w, x)

    assert torch.autograd.gradcheck(f, (w, x), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(f, (w, x))


def test_all_orders_agree_with_the_unrolled_iteration() -> None:
    w, x = (t.detach() for t in layer_arguments())

    def iterated(x: Tensor) -> Tensor:
        z = torch.zeros(4, dtype=F64)
        for _ in range(120):
            z = layer(z, w, x)
        return z.square().sum()

    def solved(x: Tensor) -> Tensor:
        return solve_layer(torch.zeros(4, dtype=F64), w, x).square().sum()

    torch.testing.assert_close(grad(solved)(x), grad(iterated)(x), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(hessian(solved)(x), hessian(iterated)(x), rtol=1e-9, atol=1e-11)
    xs = torch.stack([x, -x, 2 * x])
    torch.testing.assert_close(vmap(hessian(solved))(xs), torch.stack([hessian(iterated)(x) for x in xs]))


def test_the_gradient_is_right_where_iterating_diverges() -> None:
    """At this fixed point the derivative of the function is 1.9 in size, so that a backward iteration explodes."""
    solve = gw.implicit.fixed_point(lambda z, t: t - 1.9 * z, has_aux=True)
    t = torch.tensor([1.0, 2.0], dtype=F64, requires_grad=True)
    z, status = solve(torch.zeros(2, dtype=F64), t)
    assert status.converged
    torch.testing.assert_close(z, t.detach() / 2.9)
    torch.testing.assert_close(torch.autograd.grad(z.sum(), t)[0], torch.full((2,), 1 / 2.9, dtype=F64))
    # Plain iteration does not get there, and says so.
    z, status = gw.implicit.fixed_point(lambda z, t: t - 1.9 * z, has_aux=True, memory=0)(ZERO, t[0])
    assert not status.converged
    with pytest.raises(ConvergenceError):
        z.backward()


def test_the_parameters_of_a_module_get_gradients() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3, dtype=F64)
            nn.init.uniform_(self.linear.weight, -0.3, 0.3)

        def forward(self, z: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(self.linear(z) + x)

    cell, x = Cell(), torch.randn(5, 3, dtype=F64)
    z = torch.zeros_like(x)
    for _ in range(100):
        z = cell(z, x)
    truth = torch.autograd.grad(z.square().sum(), list(cell.parameters()))
    gw.implicit.fixed_point(cell)(torch.zeros_like(x), x).square().sum().backward()
    for parameter, expected in zip(cell.parameters(), truth):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-12)


# -------------------------------------------------------------------- surrogates


@pytest.mark.parametrize(("backward", "steps"), [("one-step", 0), ("neumann", 1), ("neumann", 4)])
def test_a_surrogate_is_the_derivative_of_a_few_iterations(backward: Any, steps: int) -> None:
    solve = gw.implicit.fixed_point(layer, backward=backward, steps=max(steps, 1))
    w, x = layer_arguments()

    def surrogate(w: Tensor, x: Tensor) -> Tensor:
        z = solve_layer(torch.zeros(4, dtype=F64), w, x).detach()
        for _ in range(steps + 1):
            z = layer(z, w, x)
        return z

    v = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=F64)
    z = solve(torch.zeros(4, dtype=F64), w, x)
    found = torch.autograd.grad(z, [w, x], v)
    for one, other in zip(found, torch.autograd.grad(surrogate(w, x), [w, x], v)):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    exact = torch.autograd.grad(solve_layer(torch.zeros(4, dtype=F64), w, x), [w, x], v)
    assert all((one - other).norm() > 1e-3 * other.norm() for one, other in zip(found, exact)), "it is the derivative"
    arguments = (w.detach(), x.detach())
    moved = jvp(lambda w, x: solve(torch.zeros(4, dtype=F64), w, x), arguments, arguments)[1]
    torch.testing.assert_close(moved, jvp(surrogate, arguments, arguments)[1], rtol=1e-9, atol=1e-11)


def test_a_surrogate_has_no_second_derivative() -> None:
    solve = gw.implicit.fixed_point(contraction, backward="one-step")
    t = torch.tensor(0.3, dtype=F64, requires_grad=True)
    (slope,) = torch.autograd.grad(solve(ZERO, t), t, create_graph=True)
    for use in (
        lambda: torch.autograd.grad(slope, t),
        lambda: grad(grad(lambda t: solve(ZERO, t)))(t.detach()),
        lambda: hessian(lambda t: solve(ZERO, t))(t.detach()),
    ):
        with pytest.raises(RuleError, match=r"backward='one-step' it is a surrogate.*leave backward away"):
            use()


@pytest.mark.parametrize("backward", ["one-step", "neumann"])
def test_a_check_compares_a_surrogate_with_what_it_declares(backward: Any) -> None:
    solve = gw.implicit.fixed_point(contraction, backward=backward, steps=3)
    report = gw.check(solve, torch.zeros(2, dtype=F64), torch.tensor([0.1, 0.4], dtype=F64), level="quick")
    assert report, report
    verdicts = {row.id: row.verdict for row in report.results}
    assert verdicts["matches-surrogate"] == "pass"


# -------------------------------------------------------------------- the rest


def test_wrong_options_are_refused() -> None:
    with pytest.raises(OptionError, match=r"fixed_point: backward: got 'onestep'.*one-step"):
        gw.implicit.fixed_point(contraction, backward="onestep")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="steps is 0"):
        gw.implicit.fixed_point(contraction, steps=0)
    with pytest.raises(OptionError, match="memory is -1"):
        gw.implicit.fixed_point(contraction, memory=-1)


def test_a_map_to_another_shape_is_refused() -> None:
    with pytest.raises(RuleError, match="the function has 1 elements"):
        gw.implicit.fixed_point(lambda z, t: z.sum() + t)(torch.zeros(3, dtype=F64), ZERO)


def test_it_can_be_pickled_with_its_options() -> None:
    solve = pickle.loads(pickle.dumps(gw.implicit.fixed_point(contraction, backward="one-step")))
    t = torch.tensor(0.3, dtype=F64)
    z = solve(ZERO, t)
    torch.testing.assert_close(grad(lambda t: solve(ZERO, t))(t), 1 - z**2)


def test_anderson_needs_fewer_steps_and_bears_dependent_ones() -> None:
    t = torch.tensor([0.02, 0.01], dtype=F64)
    steps = {}
    for memory in (0, 5):
        z, status = gw.implicit.fixed_point(contraction, memory=memory, has_aux=True, tol=1e-10)(torch.zeros_like(t), t)
        assert status.converged
        torch.testing.assert_close(z, contraction(z, t), rtol=0, atol=1e-9)
        steps[memory] = status.steps
    assert steps[5] < steps[0] / 2
