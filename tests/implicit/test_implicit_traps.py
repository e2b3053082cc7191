"""What goes wrong in silence with implicit gradients elsewhere: here each is right, or one clear error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap

import gradwright as gw
from gradwright.errors import ConvergenceError, IllConditionedWarning, RuleError, SingularMatrixError
from gradwright.implicit.convergence import TOLERANCES

F64 = torch.float64
ZERO = torch.tensor(0.0, dtype=F64)


def f64(*values: float) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=F64)


def cubic(y: Tensor, t: Tensor) -> Tensor:
    return y**3 + y - t


# -------------------------------------------------------------------- a second derivative that is detached


@pytest.mark.parametrize(("t", "truth"), [(1.0, -0.2974), (2.0, -0.09375)])
def test_the_second_derivative_of_a_root_is_not_detached(t: float, truth: float) -> None:
    solve = gw.implicit.root(cubic)
    leaf = f64(t).requires_grad_()
    (slope,) = torch.autograd.grad(solve(ZERO, leaf), leaf, create_graph=True)
    assert abs(torch.autograd.grad(slope, leaf)[0].item() - truth) < 1e-4


def test_a_gradient_penalty_trains_through_the_solution() -> None:
    solve = gw.implicit.root(lambda y, w, x: y**3 + w * y - x)
    w, x = f64(1.5).requires_grad_(), f64(2.0).requires_grad_()

    def penalty(solve: Callable[..., Tensor]) -> Tensor:
        (slope,) = torch.autograd.grad(solve(f64(1.0), w, x), x, create_graph=True)
        return torch.autograd.grad(slope.square(), w)[0]

    def newton(y: Tensor, w: Tensor, x: Tensor) -> Tensor:
        for _ in range(8):
            y = y - (y**3 + w * y - x) / (3 * y**2 + w)
        return y

    torch.testing.assert_close(penalty(solve), penalty(newton), rtol=1e-10, atol=0)


def test_a_scalar_has_a_gradient() -> None:
    t = f64(2.0).requires_grad_()
    gw.implicit.root(cubic)(ZERO, t).backward()
    torch.testing.assert_close(t.grad, f64(0.25))


def test_a_forgotten_transpose_would_be_seen() -> None:
    a = f64(1.0, 5.0, 0.0, 2.0).reshape(2, 2)
    t = f64(1.0, 1.0).requires_grad_()
    z = gw.implicit.root(lambda z, t: a @ z - t)(torch.zeros(2, dtype=F64), t)
    found = torch.autograd.grad(z @ f64(1.0, 0.0), t)[0]
    torch.testing.assert_close(found, torch.linalg.inv(a).T @ f64(1.0, 0.0))
    assert not torch.allclose(found, torch.linalg.inv(a) @ f64(1.0, 0.0))


# -------------------------------------------------------------------- where the solver did not arrive


def stopped(error: float) -> Any:
    """Return a solver that is off by ``error``."""
    exact = gw.implicit.root(cubic)
    return gw.implicit.root(cubic)(lambda z0, t: exact(z0, t) + error)


@pytest.mark.parametrize("error", [1e-3, -0.1, 5.0])
def test_no_gradient_where_the_solver_did_not_arrive(error: float) -> None:
    t, solve = f64(2.0).requires_grad_(), stopped(error)
    y = solve(ZERO, t)  # may be looked at
    torch.testing.assert_close(y.detach(), f64(1.0 + error))
    message = r"gw\.implicit\.root\(cubic\): the solver ended at a point that is not a solution.*tol_residual = 0\.0001"
    uses: dict[str, Callable[[], Any]] = {
        "backward": lambda: torch.autograd.grad(y, t),
        "create_graph": lambda: torch.autograd.grad(y, t, create_graph=True),
        "grad": lambda: grad(lambda t: solve(ZERO, t))(t.detach()),
        "jvp": lambda: jvp(lambda t: solve(ZERO, t), (t.detach(),), (t.detach(),)),
        "vmap of grad": lambda: vmap(grad(lambda t: solve(ZERO, t)))(t.detach().expand(3)),
        "grad of vmap": lambda: grad(lambda t: vmap(lambda t: solve(ZERO, t))(t).sum())(t.detach().expand(3)),
    }
    for use in uses.values():
        with pytest.raises(ConvergenceError, match=message):
            use()
    with pytest.raises(ConvergenceError):  # once more on the same graph
        torch.autograd.grad(y, t)


def test_one_bad_sample_of_a_batch_is_enough() -> None:
    exact = gw.implicit.root(cubic)
    solve = gw.implicit.root(cubic)(lambda z0, t: exact(z0, t) + (0.1 if float(t) > 1.5 else 0.0))
    good, bad = f64(0.0, 1.0), f64(0.0, 1.0, 2.0)
    assert vmap(grad(lambda t: solve(ZERO, t)))(good).isfinite().all()
    vmap(lambda t: solve(ZERO, t))(bad)
    with pytest.raises(ConvergenceError):
        vmap(grad(lambda t: solve(ZERO, t)))(bad)


def test_the_threshold_can_be_set_and_is_about_the_error_of_the_solution() -> None:
    t = f64(2.0).requires_grad_()
    for error in (1e-2, 1e-4, 1e-6):
        for factor, passes in ((0.3, False), (3.0, True)):
            solve = gw.implicit.root(cubic, tol_residual=factor * error)(lambda z0, t, e=error: f64(1.0 + 2 * e))
            if passes:
                (slope,) = torch.autograd.grad(solve(ZERO, t), t)
                assert abs(slope.item() - 0.25) < 2 * error
            else:
                with pytest.raises(ConvergenceError, match="residual"):
                    torch.autograd.grad(solve(ZERO, t), t)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_the_scale_of_the_equation_does_not_matter(scale: float) -> None:
    t = f64(2.0).requires_grad_()
    for error, passes in ((1e-6, True), (1e-2, False)):
        solve = gw.implicit.root(lambda y, t: scale * cubic(y, t))(lambda z0, t, e=error: f64(1.0 + e))
        if passes:
            torch.testing.assert_close(torch.autograd.grad(solve(ZERO, t), t)[0], f64(0.25), rtol=1e-5, atol=0)
        else:
            with pytest.raises(ConvergenceError):
                torch.autograd.grad(solve(ZERO, t), t)


def test_each_equation_is_measured_by_itself() -> None:
    """The second equation is 1e9 times smaller than the first, and the second unknown is off by 1."""

    def residual(z: Tensor, t: Tensor) -> Tensor:
        return torch.stack([1e9 * (z[0] - t[0]), z[1] - t[1]])

    t = f64(1.0, 2.0).requires_grad_()
    solve = gw.implicit.root(residual)(lambda z0, t: t + f64(0.0, 1.0))
    with pytest.raises(ConvergenceError, match="equation 1 of 2 has the residual 1"):
        solve(torch.zeros(2, dtype=F64), t).sum().backward()


def test_a_root_at_zero_is_a_root() -> None:
    t = f64(0.0).requires_grad_()
    for y in (0.0, 1e-17, 1e-30):
        solve = gw.implicit.root(cubic)(lambda z0, t, y=y: f64(y))
        torch.testing.assert_close(torch.autograd.grad(solve(ZERO, t), t)[0], f64(1.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [1, 10, 300])
def test_converged_systems_are_never_refused(dtype: torch.dtype, n: int) -> None:
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        sizes = 10.0 ** torch.empty(n, 1, dtype=F64).uniform_(-6, 6, generator=generator)
        a = torch.randn(n, n, dtype=F64, generator=generator) / n**0.5 + 3 * torch.eye(n, dtype=F64)
        a, b = (sizes * a).to(dtype), (sizes[:, 0] * torch.randn(n, dtype=F64, generator=generator)).to(dtype)
        solve = gw.implicit.root(lambda z, b, a=a: a @ z + (a.diagonal() * z.sin()) / 2 - b)
        b.requires_grad_()
        assert torch.autograd.grad(solve(torch.zeros(n, dtype=dtype), b).sum(), b)[0].isfinite().all()


@pytest.mark.parametrize("method", ["hybr", "lm", "broyden1", "krylov", "df-sane"])
def test_roots_of_scipy_at_its_default_tolerances_are_accepted(method: str) -> None:
    a = f64(4.0, 1.0, 0.5, 3.0).reshape(2, 2)

    @gw.implicit.root(lambda z, t: a @ z + z**3 / 3 - t, arrays=True)
    def solve(z0: Any, t: Any) -> Any:
        found = scipy.optimize.root(lambda z: a.numpy() @ z + z**3 / 3 - t, z0, method=method)
        assert found.success
        return found.x

    t = f64(1.0, -2.0).requires_grad_()
    z = solve(torch.zeros(2, dtype=F64), t)
    truth = torch.linalg.inv(a + torch.diag(z.detach() ** 2)).T @ f64(1.0, 1.0)
    torch.testing.assert_close(torch.autograd.grad(z.sum(), t)[0], truth)


def test_the_default_thresholds_are_as_documented() -> None:
    documented = f"{TOLERANCES[torch.float64]:.0e} in float64, {TOLERANCES[torch.float32]:.0e} in float32".replace(
        "e-0", "e-"
    )
    assert f"{documented}." in str(gw.implicit.root.__doc__)


def test_a_damped_solver_that_stops_elsewhere_is_refused() -> None:
    """It solves ``F(z) + damping * (z - z0) = 0`` in each step and stops after few."""

    @gw.implicit.root(cubic)
    def damped(z0: Tensor, t: Tensor) -> Tensor:
        z = z0
        for _ in range(5):
            z = z - cubic(z, t) / (3 * z**2 + 1 + 10)
        return z

    t = f64(2.0).requires_grad_()
    with pytest.raises(ConvergenceError):
        damped(ZERO, t).backward()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_no_solution(value: float) -> None:
    t = f64(2.0).requires_grad_()
    y = gw.implicit.root(cubic)(lambda z0, t: torch.full_like(z0, value))(ZERO, t)
    with pytest.raises(ConvergenceError, match="nan or infinite"):
        y.backward()


# -------------------------------------------------------------------- where there is no derivative


def test_a_fold_has_no_derivative() -> None:
    solve = gw.implicit.root(lambda y, t: y**2 - t)(lambda z0, t: t.sqrt())
    t = f64(0.0).requires_grad_()
    with pytest.raises(SingularMatrixError, match="singular"):
        solve(ZERO, t).backward()
    t = f64(1e-4).requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(solve(ZERO, t), t)[0], f64(50.0))


def test_equations_that_depend_on_each_other_are_refused() -> None:
    solve = gw.implicit.root(lambda z, t: (z.sum() - t).expand(2))(lambda z0, t: (t / 2).expand(2))
    t = f64(1.0).requires_grad_()
    with pytest.raises(SingularMatrixError):
        solve(torch.zeros(2, dtype=F64), t).sum().backward()


def test_an_unknown_in_no_equation_is_refused() -> None:
    solve = gw.implicit.root(lambda z, t: torch.stack([z[0] - t, z[0] * 2 - 2 * t]))(lambda z0, t: torch.stack([t, t]))
    t = f64(1.0).requires_grad_()
    with pytest.raises(SingularMatrixError):
        solve(torch.zeros(2, dtype=F64), t).sum().backward()


def test_nearly_dependent_equations_are_warned_of() -> None:
    a = f64(1.0, 1.0, 1.0, 1.0 + 1e-13).reshape(2, 2)
    solve = gw.implicit.root(lambda z, t: a @ z - t)(lambda z0, t: torch.stack([t[0], t[0] * 0]))
    t = f64(1.0, 1.0).requires_grad_()
    with pytest.warns(IllConditionedWarning, match=r"gw\.implicit\.root.*condition"):
        solve(torch.zeros(2, dtype=F64), t)[0].backward()
    quiet = gw.implicit.root(lambda z, t: a @ z - t, linear=gw.implicit.SolveOptions(on_ill_conditioned="ignore"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet(lambda z0, t: torch.stack([t[0], t[0] * 0]))(torch.zeros(2, dtype=F64), t)[0].backward()


# -------------------------------------------------------------------- tensors that nobody passed


def captured_cases(w: Any) -> dict[str, Callable[[], Any]]:
    """Return solves whose residual uses ``w`` without receiving it."""
    own = gw.implicit.root(lambda z, s: z**3 + z - w * s)
    return {
        "default solver": lambda: own(ZERO, f64(1.0)),
        "no parameters": lambda: gw.implicit.root(lambda z: z**3 + z - w)(ZERO),
        "other solver": lambda: gw.implicit.root(lambda z, s: z**3 + z - w * s, arrays=True)(
            lambda z0, s: 0.6823278038280193
        )(None, f64(1.0)),
        "fixed point": lambda: gw.implicit.fixed_point(lambda z, s: torch.tanh(z / 2 + w * s))(ZERO, f64(1.0)),
        "minimum": lambda: gw.implicit.argmin(lambda z, s: (z - w * s).square())(ZERO, f64(1.0)),
        "constraint": lambda: gw.implicit.argmin(
            lambda z, s: (z - s).square().sum(), constraints=lambda z, s: z.sum() - w
        )(torch.zeros(2, dtype=F64), f64(1.0)),
    }


@pytest.mark.parametrize("name", captured_cases(None))
def test_a_tensor_that_is_not_passed_is_an_error(name: str) -> None:
    message = "uses a tensor that requires grad, or that a transform is at, without receiving it"
    one = f64(1.0)

    def run(w: Tensor) -> Tensor:
        found: Tensor = captured_cases(w)[name]()
        return found.sum()

    run(one)  # a constant
    uses: dict[str, Callable[[], Any]] = {
        "requires grad": lambda: run(one.clone().requires_grad_()),
        "grad": lambda: grad(run)(one),
        "grad of grad": lambda: grad(grad(run))(one),
        "jvp": lambda: jvp(run, (one,), (one,)),
        "hessian": lambda: hessian(run)(one),
        "vmap": lambda: vmap(run)(one.expand(2)),
        "vmap of grad": lambda: vmap(grad(run))(one.expand(2)),
        "grad inside of vmap": lambda: grad(lambda w: vmap(lambda s: run(w) * s)(f64(1.0, 2.0)).sum())(one),
    }
    for use in uses.values():
        with pytest.raises(RuleError, match=message):
            use()
    with forward_ad.dual_level(), pytest.raises(RuleError, match=message):
        run(forward_ad.make_dual(one, one))


def test_a_module_that_is_closed_over_is_an_error_and_one_that_is_given_is_not() -> None:
    module = nn.Linear(2, 2, dtype=F64)
    x = f64(1.0, 2.0)
    with pytest.raises(RuleError, match="give the module itself"):
        gw.implicit.root(lambda z, x: z + module(z) / 4 - x)(torch.zeros(2, dtype=F64), x)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    gw.implicit.root(lambda z, x: z + module(z) / 4 - x)(torch.zeros(2, dtype=F64), x)


def test_a_transform_around_a_constant_is_no_error() -> None:
    constant = f64(0.5)
    solve = gw.implicit.root(lambda z, t: z**3 + constant * z - t)

    def f(t: Tensor) -> Tensor:
        return solve(ZERO, t) * t

    t = f64(2.0)
    assert grad(grad(f))(t).isfinite()
    assert vmap(hessian(f))(t.expand(2)).isfinite().all()
    assert jvp(grad(f), (t,), (t,))[1].isfinite()
    # Solved for a constant inside of transforms.
    assert grad(lambda t: solve(ZERO, constant) * t)(t) == solve(ZERO, constant)


# -------------------------------------------------------------------- memory


@pytest.mark.parametrize("buffer", [np.zeros(1), torch.zeros(1, dtype=F64)], ids=["array", "tensor"])
def test_a_buffer_that_a_solver_uses_again_is_not_what_is_returned(buffer: Any) -> None:
    @gw.implicit.root(cubic, arrays=True)
    def solver(z0: Any, t: Any) -> Any:
        buffer[0] = scipy.optimize.brentq(lambda y: y**3 + y - t[0], -10, 10)
        return buffer

    z0 = torch.zeros(1, dtype=F64)
    first, second = solver(z0, f64(2.0).reshape(1)), solver(z0, f64(10.0).reshape(1))
    torch.testing.assert_close(first, torch.ones(1, dtype=F64))
    torch.testing.assert_close(second, 2 * torch.ones(1, dtype=F64))


def test_a_solver_that_edits_its_tensors_is_refused_or_harmless() -> None:
    @gw.implicit.root(cubic)
    def edits_guess(z0: Tensor, t: Tensor) -> Tensor:
        z0.fill_(1.0)
        return z0

    z0, t = ZERO.clone(), f64(2.0).requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(edits_guess(z0, t), t)[0], f64(0.25))
    assert z0 == 0

    @gw.implicit.root(cubic)
    def edits_parameter(z0: Tensor, t: Tensor) -> Tensor:
        t.mul_(2)
        return z0 + 1

    with pytest.raises(RuleError, match="edited one of its arguments in place"):
        edits_parameter(z0, t)


def test_a_parameter_that_changes_before_the_backward_is_noticed() -> None:
    t = f64(2.0).requires_grad_()
    y = gw.implicit.root(cubic)(ZERO, t)
    with torch.no_grad():
        t.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_nothing_is_kept_alive() -> None:
    import gc
    import weakref

    gc.collect()
    gc.disable()
    try:
        t = torch.ones(100, dtype=F64, requires_grad=True)
        y = gw.implicit.root(lambda y, t: y**3 + y - t)(torch.zeros(100, dtype=F64), t)
        kept = weakref.ref(y.grad_fn)
        del y
        assert kept() is None, "the graph is in a cycle"
    finally:
        gc.enable()


# -------------------------------------------------------------------- modules used twice, or by several threads


class Tied(nn.Module):
    """A module that has the same layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, dtype=F64)
        self.second = self.first
        with torch.no_grad():
            self.first.weight.mul_(0.3)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.first(z) + 0.1 * self.second(x))


def unrolled(module: nn.Module, x: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    for _ in range(100):
        z = module(z, x)
    return z


def test_a_layer_that_is_used_twice_stays_what_it_is() -> None:
    """torch.func.functional_call leaves the tensors that it was given in such a module."""
    module, x = Tied(), f64(1.0, -2.0)
    weight, bias = module.first.weight, module.first.bias
    found = torch.autograd.grad(gw.implicit.fixed_point(module)(torch.zeros_like(x), x).sum(), (weight, bias))
    assert module.first.weight is weight
    assert module.first.bias is bias
    torch.testing.assert_close(found, torch.autograd.grad(unrolled(module, x).sum(), (weight, bias)))


def test_threads_may_share_a_module() -> None:
    module = Tied()
    solve, weight = gw.implicit.fixed_point(module), module.first.weight
    points = [f64(1.0, -2.0), f64(0.5, 0.1), f64(-1.0, 1.0)]
    expected = [torch.autograd.grad(unrolled(module, x).sum(), weight)[0] for x in points]

    def run(x: Tensor) -> list[Tensor]:
        return [torch.autograd.grad(solve(torch.zeros_like(x), x).sum(), weight)[0] for _ in range(40)]

    with ThreadPoolExecutor(3) as pool:
        for gradients, truth in zip(pool.map(run, points), expected):
            for gradient in gradients:
                torch.testing.assert_close(gradient, truth)
    assert module.first.weight is weight


# -------------------------------------------------------------------- what changes between the solve and the backward


def test_steps_in_time_that_read_a_clock_are_refused() -> None:
    """All of them would be differentiated at the time of the last one."""
    clock = {"time": 0.0}
    solve = gw.implicit.root(lambda z, u: z + 0.1 * z**3 * (1 + clock["time"]) - u)
    u = u0 = f64(1.0, 2.0).requires_grad_()
    for _ in range(3):
        u = solve(u.detach(), u)
        clock["time"] += 0.5
    with pytest.raises(RuleError, match=r"another value now than when it was solved.*number or a buffer"):
        torch.autograd.grad(u.sum(), u0)


def test_a_batch_is_not_differentiated_with_another_number_either() -> None:
    scale = [1.0]
    solve = gw.implicit.root(lambda z, t: z**3 + scale[0] * z - t)
    t = torch.rand(3, 2, dtype=F64).requires_grad_()
    z = vmap(lambda t: solve(torch.zeros_like(t), t))(t)
    scale[0] = 2.0
    with pytest.raises(RuleError, match="another value now than when it was solved"):
        z.sum().backward()


@pytest.mark.parametrize("batched", [False, True])
def test_the_initial_guess_may_be_written_into_after_the_solve(batched: bool) -> None:
    """As one does that keeps the last solution in a buffer."""
    solve = gw.implicit.root(cubic)
    guess, t = torch.zeros(3, dtype=F64), f64(1.0, 2.0, 3.0).requires_grad_()
    z = vmap(solve)(guess, t) if batched else solve(guess, t)
    guess.copy_(z.detach())
    torch.testing.assert_close(torch.autograd.grad(z.sum(), t)[0], 1 / (3 * z.detach() ** 2 + 1))


# -------------------------------------------------------------------- a solve within the equation of another


@pytest.mark.parametrize("hosted", [False, True])
def test_a_solve_within_the_equation_of_another_has_every_derivative(hosted: bool) -> None:
    """What the inner one saves belongs to a transform of the outer one, which ends before its backward is run."""
    inner = gw.implicit.linear_solve(lambda y, z, t: (1 + z**2 + t) * y)
    inner = inner(lambda b, z, t: b / (1 + z**2 + t)) if hosted else inner
    root = gw.implicit.root(lambda y, z, t: y**3 + y - z * t)

    def equation(z: Tensor, t: Tensor) -> Tensor:
        return z + inner(t, z, t) + root(torch.zeros_like(z), z, t) - 1

    def loss(t: Tensor) -> Tensor:
        return gw.implicit.root(equation)(torch.zeros_like(t), t).square().sum()

    t, step = f64(0.6, 1.2), 1e-5
    along = [f64(step, 0.0), f64(0.0, step)]
    slope = torch.stack([(loss(t + d) - loss(t - d)) / (2 * step) for d in along])
    curvature = torch.stack([(grad(loss)(t + d) - grad(loss)(t - d)) / (2 * step) for d in along])
    for first in (grad, torch.func.jacfwd):
        torch.testing.assert_close(first(loss)(t), slope, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(vmap(first(loss))(t.expand(2, 2))[1], slope, rtol=1e-6, atol=1e-8)
    for second in (hessian(loss), torch.func.jacrev(torch.func.jacrev(loss))):
        torch.testing.assert_close(second(t), curvature, rtol=1e-6, atol=1e-8)
