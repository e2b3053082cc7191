"""Near a fold the digits of a gradient are in doubt: it is told, and nowhere else."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import scipy.optimize
import torch
from torch import Tensor
from torch.nn.functional import pad

import gradwright as gw
from gradwright.errors import IllConditionedWarning, SingularMatrixError
from gradwright.implicit import folds

F64 = torch.float64


def f64(*values: float) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=F64)


def square(r: Tensor, a: Tensor) -> Tensor:
    return r * r - a


def gradient(solve: Callable[..., Tensor], z0: Tensor, a: Tensor) -> Tensor:
    return torch.func.grad(lambda a: solve(z0, a).sum())(a)  # type: ignore[no-any-return]


def test_a_root_that_is_nearly_double_is_told() -> None:
    solve = gw.implicit.root(square)
    with pytest.warns(IllConditionedWarning, match=r"root\(square\): the gradient may be off by 50% of its size.*fold"):
        gradient(solve, f64(1.0), f64(0.0))
    with pytest.warns(IllConditionedWarning, match="off by 50%"):
        torch.func.jvp(lambda a: solve(f64(1.0), a), (f64(0.0),), (f64(1.0),))
    with pytest.warns(IllConditionedWarning, match="off by 50%"):
        torch.func.vmap(lambda a: gradient(solve, f64(1.0), a))(f64(1.0, 0.0, 4.0))
    a = f64(0.0).requires_grad_()
    with pytest.warns(IllConditionedWarning, match="off by 50%"):
        torch.autograd.grad(solve(f64(1.0), a), a, create_graph=True)
    raising = gw.implicit.root(square, linear=gw.implicit.SolveOptions(on_ill_conditioned="raise"))
    with pytest.raises(SingularMatrixError, match="off by 50%"):
        gradient(raising, f64(1.0), f64(0.0))
    gradient(gw.implicit.root(square, linear=gw.implicit.SolveOptions(on_ill_conditioned="ignore")), f64(1.0), a)


@pytest.mark.parametrize("a", [1e-4, 1e-10, 1e-16])
def test_a_root_near_a_fold_that_is_known_well_is_not(a: float) -> None:
    torch.testing.assert_close(gradient(gw.implicit.root(square), f64(1.0), f64(a)), 0.5 / f64(a).sqrt())


@pytest.mark.parametrize("error", [0.1, 0.2, 0.4])
def test_the_estimate_is_the_error_of_the_gradient(error: float) -> None:
    @gw.implicit.root(square)
    def loose(z0: Tensor, a: Tensor) -> Tensor:
        return a.sqrt() * (1 + error)

    with pytest.warns(IllConditionedWarning) as seen:
        found = gradient(loose, f64(1.0), f64(1e-10))
    estimate = float(re.findall(r"off by (\d+)%", str(seen[0].message))[0]) / 100
    truth = abs(float(found / (0.5 / f64(1e-10).sqrt())) - 1)
    assert 0.8 * truth <= estimate <= truth + 0.01
    # Of several unknowns the one that is asked for counts.
    pair = gw.implicit.root(lambda z, a: torch.stack([square(z[0], a), z[1] - a.cos()]))(
        lambda z0, a: torch.stack([a.sqrt() * (1 + error), a.cos()])
    )
    assert gradient(lambda z0, a: pair(z0, a)[1], torch.ones(2, dtype=F64), f64(1e-10)) == -f64(1e-10).sin()
    with pytest.warns(IllConditionedWarning):
        gradient(pair, torch.ones(2, dtype=F64), f64(1e-10))


def test_a_minimum_and_a_fixed_point_near_a_fold_are_told() -> None:
    lowest = gw.implicit.argmin(lambda z, a: (z**3 / 3 - a * z).sum())(lambda z0, a: 1.3 * a.sqrt())
    with pytest.warns(IllConditionedWarning, match=r"argmin\(<lambda>\): the gradient may be off by"):
        gradient(lowest, f64(1.0), f64(1e-10))
    fixed = gw.implicit.fixed_point(lambda z, a: z - z * z + a)(lambda z0, a: 1.3 * a.sqrt())
    with pytest.warns(IllConditionedWarning, match=r"fixed_point\(<lambda>\): the gradient may be off by"):
        gradient(fixed, f64(1.0), f64(1e-10))


def hilbert(n: int) -> Tensor:
    places = torch.arange(n, dtype=F64)
    return 1 / (places + places[:, None] + 1)


def rosenbrock(z: Tensor, x: Tensor) -> Tensor:
    return ((x - z[:-1]).square() + 100 * (z[1:] - z[:-1].square()).square()).sum()


def beale(z: Tensor, x: Tensor) -> Tensor:
    return sum(((c * x - z[0] + z[0] * z[1] ** i) ** 2 for i, c in ((1, 1.5), (2, 2.25), (3, 2.625))), f64(0.0))


SYSTEMS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor]] = {
    "linear, condition number 5e8": (lambda z, x: hilbert(7) @ z - x, torch.zeros(7, dtype=F64)),
    "nearly linear, 5e5": (lambda z, x: hilbert(5) @ z + 1e-3 * torch.tanh(z) - x, torch.zeros(5, dtype=F64)),
    "Broyden": (
        lambda z, x: (3 - 2 * z) * z - pad(z[:-1], (1, 0)) - 2 * pad(z[1:], (0, 1)) + x,
        -torch.ones(50, dtype=F64),
    ),
    "Kepler": (lambda z, x: z - 0.99 * torch.sin(z) - x, torch.ones(5, dtype=F64)),
    "diode": (lambda z, x: 1e-12 * torch.expm1(40 * z) + z / 1e3 - 0.1 * x, torch.full((4,), 0.6, dtype=F64)),
    "fifth root": (lambda z, x: z**5 - x, torch.full((3,), 2.0, dtype=F64)),
}
MINIMA: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor]] = {
    "Rosenbrock": (rosenbrock, f64(-1.2, 1.0)),
    "Rosenbrock of 5": (rosenbrock, torch.zeros(5, dtype=F64)),
    "Beale": (beale, torch.ones(2, dtype=F64)),
    "quartic": (lambda z, x: (z - x).pow(4).sum() + 1e-3 * z.square().sum(), torch.zeros(3, dtype=F64)),
}


@pytest.mark.parametrize(
    ("problem", "method"),
    [
        *[(name, method) for name in SYSTEMS for method in ("hybr", "lm")],
        *[(name, method) for name in MINIMA for method in ("BFGS", "L-BFGS-B", "CG", "Nelder-Mead")],
    ],
)
def test_scipy_with_its_default_tolerances_is_not_accused(
    problem: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, z0 = SYSTEMS.get(problem) or MINIMA[problem]
    monkeypatch.setattr(folds, "DOUBT", 0.005)  # a tenth of what is told

    def solver(z0: Any, x: Tensor) -> Any:
        value: Any = lambda z: function(torch.as_tensor(z), x).numpy()  # noqa: E731
        run: Any = scipy.optimize.root if problem in SYSTEMS else scipy.optimize.minimize
        return torch.as_tensor(run(value, z0.numpy(), method=method).x)

    made = gw.implicit.root if problem in SYSTEMS else gw.implicit.argmin
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradient(made(function)(solver), z0, f64(1.0))


def test_where_nothing_can_be_seen_nothing_is_said() -> None:
    a = f64(0.0).requires_grad_()
    r = gw.implicit.root(square)(f64(1.0), a)
    (slopes,) = torch.autograd.grad(r, a, torch.ones(2, dtype=F64), is_grads_batched=True)
    assert slopes.shape == (2,)
    gradient(gw.implicit.root(square, linear="gmres"), f64(1.0), f64(0.0))


def test_of_the_rows_of_a_jacobian_the_first_is_looked_at() -> None:
    shapes: list[torch.Size] = []

    def solve(b: Tensor, transposed: bool) -> Tensor:
        shapes.append(torch.func.debug_unwrap(b, recurse=True).shape)
        return b

    def row(w: Tensor) -> Tensor:
        folds.look_for_fold(
            "f", lambda z: z - 1, f64(1.0, 1.5, 1.0), w, solve, transposed=True, options=gw.implicit.SolveOptions()
        )
        return w

    torch.func.vmap(row)(torch.eye(3, dtype=F64))
    assert shapes == [(3,), (3,)]
    two = gw.implicit.root(lambda r, a: r * r - a)
    with pytest.warns(IllConditionedWarning, match="off by 50%"):
        torch.func.jacrev(lambda a: two(torch.ones(2, dtype=F64), a))(torch.zeros(2, dtype=F64))


def test_what_is_looked_at_leaves_the_derivatives_alone() -> None:
    solve = gw.implicit.root(lambda r, a: r**3 + r - a)(
        lambda z0, a: gw.implicit.root(lambda r, a: r**3 + r - a)(z0, a) + 1e-9
    )
    a = f64(2.0)
    torch.testing.assert_close(torch.func.hessian(lambda a: solve(f64(0.5), a))(a), f64(-6 / 64), rtol=1e-7, atol=0)


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_an_equation_that_refuses_the_point_beside_the_solution_is_not_accused() -> None:
    def residual(z: Tensor, a: Tensor) -> Tensor:
        if bool(z < 0):
            raise ValueError("negative")
        return z + a

    solve = gw.implicit.root(residual)(lambda z0, a: z0 * 0)
    assert gradient(solve, f64(1.0), f64(1e-9)) == -1
    solve = gw.implicit.root(lambda z, a: z + a + 0 * z.sqrt())(lambda z0, a: z0 * 0 + 1e-10)
    assert gradient(solve, f64(1.0), f64(1e-9)) == -1
