"""Minima: the solution moves with the parameters as the optimality conditions say."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import gradwright as gw
from gradwright.errors import DefinitionError, OptionError, RuleError, SingularMatrixError, UndefinedGradientError

F64 = torch.float64


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def quadratic(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Minimal at a^-1 b, for a symmetric positive definite matrix."""
    return z @ a @ z / 2 - b @ z


def quadratic_arguments(n: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    root = torch.randn(n, n, dtype=F64, generator=generator)
    a = root @ root.T + torch.eye(n, dtype=F64)
    return a.requires_grad_(), torch.randn(n, dtype=F64, generator=generator).requires_grad_()


def bent(z: Tensor, t: Tensor) -> Tensor:
    """Not quadratic, and with parameters that do not enter linearly."""
    return 2 * (z[0] - t[0] ** 2) ** 2 + 5 * (z[1] - z[0] * t[1]) ** 2 + 0.1 * z.pow(4).sum()


def quartic(z: Tensor, t: Tensor) -> Tensor:
    return (z - t).square().sum() + 0.1 * z.pow(4).sum()


def on_a_plane(z: Tensor, t: Tensor) -> Tensor:
    return z.sum() - t[0] ** 2 - 1


solve_quadratic = gw.implicit.argmin(quadratic)
solve_bent = gw.implicit.argmin(bent)
solve_on_a_plane = gw.implicit.argmin(quartic, constraints=on_a_plane)


@gw.implicit.argmin(bent, arrays=True, has_aux=True)
def by_scipy(z0: Any, t: Any) -> Any:
    """Minimise with SciPy, whose gradient is that of finite differences."""
    found = scipy.optimize.minimize(
        lambda z: 2 * (z[0] - t[0] ** 2) ** 2 + 5 * (z[1] - z[0] * t[1]) ** 2 + 0.1 * (z**4).sum(), z0
    )
    return found.x, found.success


def test_the_minimum_of_a_quadratic_is_a_linear_solve() -> None:
    a, b = quadratic_arguments()
    z = solve_quadratic(torch.zeros(3, dtype=F64), a, b)
    # The derivative by a is that of the symmetric part, which is what the objective sees.
    truth = torch.linalg.solve((a + a.T) / 2, b)
    torch.testing.assert_close(z, truth)
    v = f64(1.0, -2.0, 0.5)
    for found, expected in zip(torch.autograd.grad(z, [a, b], v), torch.autograd.grad(truth, [a, b], v)):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    fixed = a.detach()

    def f(b: Tensor) -> Tensor:
        return solve_quadratic(torch.zeros(3, dtype=F64), fixed, b)

    for transform in (jacrev, jacfwd):
        torch.testing.assert_close(transform(f)(b.detach()), torch.linalg.inv(fixed))


@pytest.mark.parametrize(
    "solve", [solve_bent, gw.implicit.argmin(bent, method="lbfgs"), gw.implicit.argmin(bent, linear="gmres")]
)
def test_a_minimum_passes_gradcheck_in_both_modes_and_orders(solve: Any) -> None:
    t = f64(1.0, 0.7).requires_grad_()

    def f(t: Tensor) -> Tensor:
        return solve(torch.zeros(2, dtype=F64), t)

    tolerances = {"atol": 1e-4, "rtol": 1e-3} if "lbfgs" in str(solve._remake) else {}
    assert torch.autograd.gradcheck(f, t, check_forward_ad=True, **tolerances)
    assert torch.autograd.gradgradcheck(f, t, **tolerances)


def test_a_constrained_minimum_passes_gradcheck_in_both_modes_and_orders() -> None:
    t = f64(1.0, 0.7).requires_grad_()

    def f(t: Tensor) -> Tensor:
        return solve_on_a_plane(torch.zeros(2, dtype=F64), t)

    torch.testing.assert_close(f(t).sum(), t[0] ** 2 + 1)
    assert torch.autograd.gradcheck(f, t, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(f, t)


def test_a_constrained_quadratic_has_the_closed_solution() -> None:
    """Projection onto a plane: z = t - c (c . t - d) / c . c, here with three unknowns in a container."""
    c = f64(1.0, 2.0, -1.0)
    solve = gw.implicit.argmin(
        lambda z, t, d: (torch.cat([z["a"], z["b"]]) - t).square().sum(),
        constraints=lambda z, t, d: [c @ torch.cat([z["a"], z["b"]]) - d],
    )
    t, d = f64(0.3, -1.0, 2.0), torch.tensor(0.7, dtype=F64)

    def f(t: Tensor, d: Tensor) -> Tensor:
        found = solve({"a": torch.zeros(1, dtype=F64), "b": torch.zeros(2, dtype=F64)}, t, d)
        return torch.cat([found["a"], found["b"]])

    torch.testing.assert_close(f(t, d), t - c * (c @ t - d) / (c @ c))
    projection = torch.eye(3, dtype=F64) - torch.outer(c, c) / (c @ c)
    for transform in (jacrev, jacfwd):
        by_t, by_d = transform(f, argnums=(0, 1))(t, d)
        torch.testing.assert_close(by_t, projection)
        torch.testing.assert_close(by_d, c / (c @ c))
    second = hessian(lambda d: f(t, d).square().sum())(d)
    torch.testing.assert_close(second, 2 / (c @ c))


def test_scipy_finds_a_minimum_and_its_status_is_passed_on() -> None:
    t = f64(1.0, 0.7).requires_grad_()
    z, success = by_scipy(torch.zeros(2, dtype=F64), t)
    assert success is True
    exact = solve_bent(torch.zeros(2, dtype=F64), t)
    torch.testing.assert_close(z, exact, rtol=1e-5, atol=1e-6)
    for found, truth in zip(torch.autograd.grad(z.sum(), t), torch.autograd.grad(exact.sum(), t)):
        torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["BFGS", "Nelder-Mead", "CG", "L-BFGS-B", "Powell", "Newton-CG", "trust-constr"])
def test_minima_of_scipy_at_its_default_tolerances_are_accepted(method: str) -> None:
    @gw.implicit.argmin(bent, arrays=True)
    def solve(z0: Any, t: Any) -> Any:
        def value(z: Any) -> Any:
            return float(bent(torch.as_tensor(z), torch.as_tensor(t)))

        def slope(z: Any) -> Any:
            return grad(bent)(torch.tensor(z), torch.as_tensor(t)).numpy()

        jac = None if method in ("Nelder-Mead", "Powell") else slope
        return scipy.optimize.minimize(value, z0, method=method, jac=jac).x

    t = f64(1.0, 0.7).requires_grad_()
    found = torch.autograd.grad(solve(torch.zeros(2, dtype=F64), t).sum(), t)[0]
    truth = torch.autograd.grad(solve_bent(torch.zeros(2, dtype=F64), t).sum(), t)[0]
    torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-3)


def test_a_constrained_solver_of_scipy() -> None:
    @gw.implicit.argmin(quartic, constraints=on_a_plane, arrays=True)
    def solve(z0: Any, t: Any) -> Any:
        held = {"type": "eq", "fun": lambda z: z.sum() - t[0] ** 2 - 1}
        return scipy.optimize.minimize(
            lambda z: ((z - t) ** 2).sum() + 0.1 * (z**4).sum(), z0, constraints=held, tol=1e-12
        ).x

    t = f64(1.0, 0.7).requires_grad_()
    z0 = torch.zeros(2, dtype=F64)
    for weights in (f64(1.0, 0.0), f64(-0.3, 2.0)):
        found = torch.autograd.grad(solve(z0, t) @ weights, t)[0]
        truth = torch.autograd.grad(solve_on_a_plane(z0, t) @ weights, t)[0]
        torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)


def test_an_inner_training_loop_is_a_solver() -> None:
    """Ridge regression by gradient descent; the weight of the penalty gets the gradient of the validation loss."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(20, 3, dtype=F64, generator=generator)
    y = x @ f64(1.0, -1.0, 0.5) + 0.3 * torch.randn(20, dtype=F64, generator=generator)

    def ridge(w: Tensor, penalty: Tensor) -> Tensor:
        return (x[:10] @ w - y[:10]).square().sum() + penalty.exp() * w.square().sum()

    @gw.implicit.argmin(ridge)
    def train(w0: Tensor, penalty: Tensor) -> Tensor:
        with torch.enable_grad():
            w = w0.clone().requires_grad_()
            optimizer = torch.optim.SGD([w], lr=0.01)
            for _ in range(1000):
                optimizer.zero_grad()
                ridge(w, penalty).backward()
                optimizer.step()
        return w

    def validation(w: Tensor) -> Tensor:
        return (x[10:] @ w - y[10:]).square().sum()

    penalty = torch.tensor(0.5, dtype=F64, requires_grad=True)
    found = torch.autograd.grad(validation(train(torch.zeros(3, dtype=F64), penalty)), penalty)[0]
    closed = torch.linalg.solve(x[:10].T @ x[:10] + penalty.exp() * torch.eye(3, dtype=F64), x[:10].T @ y[:10])
    torch.testing.assert_close(found, torch.autograd.grad(validation(closed), penalty)[0], rtol=1e-5, atol=0)


def test_the_parameters_of_a_module_get_gradients_also_from_the_constraints() -> None:
    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(f64(1.0, 2.0))

        def forward(self, z: Tensor, t: Tensor) -> Tensor:
            return (self.scale * (z - t).square()).sum()

    class Level(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.level = nn.Parameter(torch.tensor(0.5, dtype=F64))

        def forward(self, z: Tensor, t: Tensor) -> Tensor:
            return z.sum() - self.level

    energy, level, t = Energy(), Level(), f64(1.0, -0.3)
    solve = gw.implicit.argmin(energy, constraints=level)

    def closed() -> Tensor:
        share = 1 / energy.scale
        return t - share * (t.sum() - level.level) / share.sum()

    z = solve(torch.zeros(2, dtype=F64), t)
    torch.testing.assert_close(z, closed())
    parameters = [energy.scale, level.level]
    for found, truth in zip(
        torch.autograd.grad(z @ f64(1.0, 3.0), parameters), torch.autograd.grad(closed() @ f64(1.0, 3.0), parameters)
    ):
        torch.testing.assert_close(found, truth)


def test_vmap_and_functions_of_transforms() -> None:
    ts = torch.stack([f64(1.0, 0.7), f64(-0.5, 0.2), f64(0.1, 1.0)])
    z0 = torch.zeros(2, dtype=F64)
    for solve in (solve_bent, solve_on_a_plane):

        def f(t: Tensor, solve: Any = solve) -> Tensor:
            return solve(z0, t).square().sum()

        torch.testing.assert_close(vmap(f)(ts), torch.stack([f(t) for t in ts]))
        torch.testing.assert_close(vmap(grad(f))(ts), torch.stack([grad(f)(t) for t in ts]))
        torch.testing.assert_close(vmap(hessian(f))(ts[:2]), torch.stack([hessian(f)(t) for t in ts[:2]]))
        torch.testing.assert_close(jacfwd(jacrev(f))(ts[0]), jacrev(jacfwd(f))(ts[0]))


def test_many_unknowns_need_no_hessian() -> None:
    """Above 1,000 unknowns nothing is made whole: a matrix of this size would be 20 GB."""
    n = 50_000
    target = torch.linspace(-1, 1, n, dtype=F64, requires_grad=True)
    solve = gw.implicit.argmin(lambda z, t: ((z - t).square() + 0.1 * z.pow(4)).sum())
    z = solve(torch.zeros(n, dtype=F64), target)
    found = torch.autograd.grad(z.sum(), target)[0]
    torch.testing.assert_close(found, 2 / (2 + 1.2 * z.detach() ** 2), rtol=1e-6, atol=0)


def test_the_value_of_a_minimum_has_the_gradient_of_the_envelope_theorem() -> None:
    t = f64(1.0, 0.7).requires_grad_()
    z = solve_bent(torch.zeros(2, dtype=F64), t)
    through = torch.autograd.grad(bent(z, t), t, retain_graph=True)[0]
    torch.testing.assert_close(through, torch.autograd.grad(bent(z.detach(), t), t)[0])


# -------------------------------------------------------------------- what is no minimum


def test_a_maximum_a_saddle_and_a_flat_place_are_refused() -> None:
    t = f64(1.0, 0.7).requires_grad_()
    places = {
        "a maximum or saddle": [
            (lambda z, t: z[0] ** 2 - z[1] ** 2 + z @ t, lambda z0, t: torch.stack([-t[0] / 2, t[1] / 2])),
            (lambda z, t: -(z - t).square().sum(), lambda z0, t: t.clone()),
        ],
        "a flat place": [
            (lambda z, t: (z[0] - t[0]) ** 2, lambda z0, t: torch.stack([t[0], z0[1]])),
            (lambda z, t: (z.sum() - t[0]) ** 2, lambda z0, t: t[0].expand(2) / 2),
        ],
    }
    for place, cases in places.items():
        for objective, solver in cases:
            z = gw.implicit.argmin(objective)(solver)(torch.zeros(2, dtype=F64), t)
            with pytest.raises(UndefinedGradientError, match=f"{place}, not a strict minimum.*curvatures"):
                z.sum().backward()
            with pytest.raises(UndefinedGradientError):
                vmap(jacrev(lambda t, s=gw.implicit.argmin(objective)(solver): s(torch.zeros(2, dtype=F64), t)))(
                    t.detach().expand(2, 2)
                )


def test_along_the_constraints_only_the_curvature_counts() -> None:
    def saddle(z: Tensor, t: Tensor) -> Tensor:
        return z[0] ** 2 - z[1] ** 2 + 2 * t[0] * z[0]

    solve = gw.implicit.argmin(saddle, constraints=lambda z, t: z[1] - t[1])
    t = f64(1.0, 0.7).requires_grad_()
    z = solve(torch.zeros(2, dtype=F64), t)
    torch.testing.assert_close(z, f64(-1.0, 0.7))
    torch.testing.assert_close(torch.autograd.grad(z[0] + 3 * z[1], t)[0], f64(-1.0, 3.0))
    other = gw.implicit.argmin(saddle, constraints=lambda z, t: z[0] - t[0])(
        lambda z0, t: torch.stack([t[0], t[0] * 0])
    )
    with pytest.raises(UndefinedGradientError, match="not a strict minimum along the constraints"):
        other(torch.zeros(2, dtype=F64), t).sum().backward()


def test_constraints_that_depend_on_each_other_are_refused() -> None:
    solve = gw.implicit.argmin(quartic, constraints=lambda z, t: torch.stack([z.sum() - t[0], 2 * z.sum() - 2 * t[0]]))
    t = f64(1.0, 0.7).requires_grad_()
    with pytest.raises(SingularMatrixError):
        solve(torch.zeros(2, dtype=F64), t).sum().backward()


def test_what_is_no_objective_or_constraint_is_refused() -> None:
    with pytest.raises(RuleError, match=r"the objective returned \(2,\); expected one real number"):
        gw.implicit.argmin(lambda z, t: (z - t).square())(torch.zeros(2, dtype=F64), f64(1.0, 2.0))
    with pytest.raises(DefinitionError, match=r"constraints is a dict.*inequalities are not differentiated"):
        gw.implicit.argmin(quartic, constraints={"type": "ineq", "fun": on_a_plane})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="argmin: method: got 'bfgs'"):
        gw.implicit.argmin(quartic, method="bfgs")


def test_a_captured_tensor_is_refused_where_it_moves_the_solution() -> None:
    t = f64(1.0, 0.7).requires_grad_()
    weight = torch.tensor(2.0, dtype=F64, requires_grad=True)
    with pytest.raises(RuleError, match="without receiving it as an argument"):
        gw.implicit.argmin(lambda z, t: weight * quartic(z, t) + z.sum())(torch.zeros(2, dtype=F64), t)
    # One that does not move it is no fault: a term that does not depend on z has no part in where the minimum is.
    z = gw.implicit.argmin(lambda z, t: quartic(z, t) + weight.detach())(torch.zeros(2, dtype=F64), t)
    torch.testing.assert_close(z, gw.implicit.argmin(quartic)(torch.zeros(2, dtype=F64), t))


# -------------------------------------------------------------------- the rest


def test_the_default_solvers_leave_places_that_are_no_minima() -> None:
    def valleys(z: Tensor, t: Tensor) -> Tensor:
        return ((z**2 - 1).square() + t * z).sum()

    t = torch.tensor(0.1, dtype=F64, requires_grad=True)
    for method in ("newton", "lbfgs"):
        solve = gw.implicit.argmin(valleys, has_aux=True, method=method)
        z, status = solve(torch.tensor([0.02], dtype=F64), t)
        assert status.converged
        (slope,) = torch.autograd.grad(z.sum(), t)
        torch.testing.assert_close(slope, -1 / (12 * z.detach()[0] ** 2 - 4), rtol=1e-6, atol=0)


def test_it_can_be_pickled_and_float32() -> None:
    solve = pickle.loads(pickle.dumps(solve_on_a_plane))
    t = torch.tensor([1.0, 0.7])
    found = jacrev(lambda t: solve(torch.zeros(2), t))(t)
    assert found.dtype == torch.float32
    truth = jacrev(lambda t: solve_on_a_plane(torch.zeros(2, dtype=F64), t))(t.double())
    torch.testing.assert_close(found.double(), truth, rtol=1e-4, atol=1e-4)


CHEAP = ("matches-differences", "modes-agree", "linear-in-cotangent", "inputs-untouched")


def test_a_check_understands_it_quickly() -> None:
    report = gw.check(solve_bent, torch.zeros(2, dtype=F64), f64(1.0, 0.7), only=CHEAP)
    assert report, report
    assert not report.unresolved


@pytest.mark.slow
@pytest.mark.parametrize("solve", [solve_bent, solve_on_a_plane])
def test_a_check_understands_it(solve: Any) -> None:
    report = gw.check(solve, torch.zeros(2, dtype=F64), f64(1.0, 0.7), level="full")
    assert report, report
    assert not report.unresolved
