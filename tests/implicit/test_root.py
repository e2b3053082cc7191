"""Roots: every derivative is that of the solution, whatever found it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

import gradwright as gw
from gradwright.errors import ArgumentError, ConvergenceError, DefinitionError, OptionError, RuleError

F64 = torch.float64
ZERO = torch.tensor(0.0, dtype=F64)


def f64(*values: float) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=F64)


def cubic(y: Tensor, t: Tensor) -> Tensor:
    return y**3 + y - t


def coupled(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Its Jacobian is far from symmetric."""
    return a @ z + 0.3 * z.sin().roll(1) * z - b


def coupled_arguments(n: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(n, n, dtype=F64, generator=generator) + n * torch.eye(n, dtype=F64)
    return a.requires_grad_(), torch.randn(n, dtype=F64, generator=generator).requires_grad_()


solve_cubic = gw.implicit.root(cubic)
solve_coupled = gw.implicit.root(coupled)


@gw.implicit.root(cubic, arrays=True)
def by_brentq(z0: Any, t: Any) -> float:
    """Return the root between -10 and 10."""
    return float(scipy.optimize.brentq(lambda y: y**3 + y - t, -10, 10))


@gw.implicit.root(coupled, arrays=True, has_aux=True)
def by_scipy(z0: Any, a: Any, b: Any) -> Any:
    found = scipy.optimize.root(lambda z: a @ z + 0.3 * np.roll(np.sin(z), 1) * z - b, z0)
    return found.x, found.nfev


def derivatives_of_cubic(y: float) -> tuple[float, float, float]:
    """Return dy/dt and its derivatives: y' = 1 / (3 y^2 + 1), by hand."""
    first = 1 / (3 * y**2 + 1)
    second = -6 * y * first**3
    third = -6 * first**4 - 18 * y * first**2 * second
    return first, second, third


CUBICS: dict[str, Callable[[Tensor], Tensor]] = {
    "newton": lambda t: solve_cubic(ZERO, t),
    "brentq": lambda t: by_brentq(ZERO, t),
    "brentq, a number": lambda t: by_brentq(0.0, t),
    "brentq, no guess": lambda t: by_brentq(None, t),
}


@pytest.mark.parametrize("name", CUBICS)
@pytest.mark.parametrize("y", [1.0, 0.6823278038280193, -0.3])
def test_the_derivatives_of_a_scalar_root_are_the_closed_ones(name: str, y: float) -> None:
    f, t = CUBICS[name], f64(y**3 + y)
    first, second, third = map(f64, derivatives_of_cubic(y))
    leaf = t.clone().requires_grad_()
    out = f(leaf)
    (slope,) = torch.autograd.grad(out, leaf, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, leaf, create_graph=True)
    (last,) = torch.autograd.grad(curvature, leaf)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(t, torch.ones_like(t)))).tangent
    found = {
        first: [slope, grad(f)(t), jacrev(f)(t), jacfwd(f)(t), jvp(f, (t,), (f64(1.0),))[1], vjp(f, t)[1](f64(1.0))[0]],
        second: [curvature, grad(grad(f))(t), hessian(f)(t), jacfwd(jacfwd(f))(t), jacrev(jacfwd(f))(t)],
        third: [last, grad(grad(grad(f)))(t), jacfwd(hessian(f))(t)],
    }
    torch.testing.assert_close(out, f64(y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(tangent, first, rtol=1e-10, atol=0)
    for truth, values in found.items():
        for value in values:
            torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-12)


def test_a_system_passes_gradcheck_in_both_modes_and_orders() -> None:
    a, b = coupled_arguments()

    def f(a: Tensor, b: Tensor) -> Tensor:
        return solve_coupled(torch.zeros(4, dtype=F64), a, b)

    assert torch.autograd.gradcheck(
        f, (a, b), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(f, (a, b), check_fwd_over_rev=True)


@pytest.mark.parametrize("linear", ["direct", "gmres", gw.implicit.SolveOptions(method="gmres", tol=1e-13)])
def test_the_jacobian_is_that_of_the_implicit_function_theorem(linear: Any) -> None:
    a, b = (t.detach() for t in coupled_arguments(6))
    solve = gw.implicit.root(coupled, linear=linear)
    z = solve(torch.zeros(6, dtype=F64), a, b)
    derivative = a.clone()
    for i in range(6):  # of 0.3 sin(z[i - 1]) z[i]
        derivative[i, i] += 0.3 * z[i - 1].sin()
        derivative[i, i - 1] += 0.3 * z[i - 1].cos() * z[i]
    truth = torch.linalg.inv(derivative)
    assert (truth - truth.T).abs().max() > 0.03, "a forgotten transpose would not be seen"
    for transform in (jacrev, jacfwd):
        found = transform(lambda b: solve(torch.zeros(6, dtype=F64), a, b))(b)
        torch.testing.assert_close(found, truth, rtol=1e-8, atol=1e-10)


def test_the_first_argument_gets_a_gradient_of_zeros() -> None:
    z0 = torch.zeros(4, dtype=F64, requires_grad=True)
    a, b = coupled_arguments()
    found = torch.autograd.grad(solve_coupled(z0, a, b).sum(), [z0, a, b])
    assert torch.equal(found[0], torch.zeros(4, dtype=F64))
    assert all(bool(g.any()) for g in found[1:])
    assert torch.equal(
        jvp(lambda z: solve_coupled(z, a.detach(), b.detach()), (z0,), (z0,))[1], torch.zeros(4).double()
    )


def test_unknowns_and_parameters_may_be_containers() -> None:
    def residual(z: dict[str, Tensor], p: tuple[Tensor, list[Tensor]], scale: float) -> list[Tensor]:
        x, y = z["x"], z["y"]
        return [x**3 + x - p[0] * y.sum(), scale * y + x.sin() - p[1][0]]

    solve = gw.implicit.root(residual)
    start = {"x": f64(0.1), "y": torch.zeros(2, dtype=F64)}

    def f(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        found = solve(start, (p, [q]), 2.0)
        assert list(found) == ["x", "y"]
        return found["x"], found["y"]

    arguments = (f64(1.0).requires_grad_(), torch.ones(2, dtype=F64, requires_grad=True))
    assert torch.autograd.gradcheck(f, arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, arguments)


def test_vmap_solves_each_sample() -> None:
    a, b = (t.detach() for t in coupled_arguments(3))
    z0 = torch.zeros(3, dtype=F64)
    bs = torch.stack([b, 2 * b, -b])

    def f(b: Tensor) -> Tensor:
        return solve_coupled(z0, a, b)

    rows = [f(b) for b in bs]
    torch.testing.assert_close(vmap(f)(bs), torch.stack(rows))
    torch.testing.assert_close(vmap(vmap(f))(bs.expand(2, 3, 3)), torch.stack(rows).expand(2, 3, 3))
    torch.testing.assert_close(vmap(solve_coupled, in_dims=(None, None, 1))(z0, a, bs.T), torch.stack(rows))
    torch.testing.assert_close(vmap(jacrev(f))(bs), torch.stack([jacrev(f)(b) for b in bs]))
    torch.testing.assert_close(vmap(jacfwd(f))(bs), torch.stack([jacrev(f)(b) for b in bs]))
    whole = grad(lambda bs: vmap(f)(bs).square().sum())(bs)
    torch.testing.assert_close(whole, torch.stack([grad(lambda b: f(b).square().sum())(b) for b in bs]))
    second = vmap(hessian(lambda b: f(b).square().sum()))(bs)
    torch.testing.assert_close(second, torch.stack([hessian(lambda b: f(b).square().sum())(b) for b in bs]))


def test_a_foreign_solver_is_called_for_each_sample() -> None:
    ts = torch.linspace(-1, 2, 4, dtype=F64)
    for z0 in (ZERO, None, 0.0):
        slopes = vmap(grad(lambda t, z0=z0: by_brentq(z0, t)))(ts)
        truth = [derivatives_of_cubic(float(by_brentq(z0, t)))[0] for t in ts]
        torch.testing.assert_close(slopes, torch.tensor(truth, dtype=F64))


def test_the_status_of_the_solver_is_passed_through() -> None:
    a, b = coupled_arguments()
    z, calls = by_scipy(torch.zeros(4, dtype=F64), a, b)
    torch.testing.assert_close(z, solve_coupled(torch.zeros(4, dtype=F64), a, b))
    assert isinstance(calls, int)
    _, status = gw.implicit.root(cubic, has_aux=True)(ZERO, f64(2.0))
    assert status.converged
    assert status.steps == 1
    assert status.residual < 1e-15
    assert isinstance(status, gw.implicit.Status)
    _, status = gw.implicit.root(cubic, has_aux=True, max_steps=2)(f64(5.0), f64(2.0))
    assert not status.converged
    kept: list[Any] = []

    def f(t: Tensor) -> Tensor:
        z, aux = gw.implicit.root(cubic, has_aux=True)(ZERO, t)
        kept.append(aux)
        return z

    vmap(f)(torch.linspace(0, 2, 3, dtype=F64))
    assert [status.converged for status in kept[0]] == [True] * 3


def test_an_aux_that_is_not_there_is_named() -> None:
    @gw.implicit.root(cubic, has_aux=True)
    def solver(z0: Tensor, t: Tensor) -> Tensor:
        return z0

    with pytest.raises(RuleError, match=r"returned a Tensor, but has_aux=True was said.*return z, aux"):
        solver(ZERO, f64(2.0))


# -------------------------------------------------------------------- modules


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=F64) / 4)
        self.frozen = nn.Parameter(torch.ones(3, dtype=F64), requires_grad=False)
        self.solve = gw.implicit.root(self.residual)

    def residual(self, z: Tensor, x: Tensor) -> Tensor:
        return z + torch.tanh(self.weight @ z) * self.frozen - x

    def forward(self, x: Tensor) -> Tensor:
        return self.solve(torch.zeros_like(x), x)


class Residual(nn.Module):
    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return self.layer.residual(z, x)


def unrolled(layer: Layer, x: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    for _ in range(300):
        z = z - 0.5 * layer.residual(z, x)
    return z


@pytest.mark.parametrize("kind", ["method", "module"])
def test_the_parameters_of_a_module_get_gradients(kind: str) -> None:
    layer, x = Layer(), f64(0.3, -1.0, 2.0)
    (truth,) = torch.autograd.grad(unrolled(layer, x).square().sum(), layer.weight)
    solve = layer.solve if kind == "method" else gw.implicit.root(Residual(layer))
    solve(torch.zeros_like(x), x).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, truth, rtol=1e-9, atol=1e-12)
    assert layer.frozen.grad is None


def test_a_layer_may_be_copied_and_called_with_other_parameters() -> None:
    layer, x = Layer(), f64(0.3, -1.0, 2.0)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.weight.zero_()
    torch.testing.assert_close(other(x), x)
    assert not torch.allclose(layer(x), x)

    def loss(run: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda weight: functional_call(layer, {"weight": weight}, (x,)).square().sum()

    weight = layer.weight.detach()
    (truth,) = torch.autograd.grad(unrolled(layer, x).square().sum(), layer.weight, create_graph=True)
    torch.testing.assert_close(grad(loss(layer))(weight), truth.detach(), rtol=1e-9, atol=1e-12)
    second = torch.autograd.grad(truth.sum(), layer.weight)[0]
    found = hessian(loss(layer))(weight).sum((0, 1))
    torch.testing.assert_close(found, second, rtol=1e-8, atol=1e-10)


# -------------------------------------------------------------------- what solvers get and give


def test_solvers_get_detached_tensors_or_arrays_and_may_write_into_arrays() -> None:
    seen: list[Any] = []

    def solver(z0: Any, t: Any) -> Any:
        seen.extend([z0, t])
        if isinstance(t, np.ndarray):
            answer = float(by_brentq(0.0, torch.as_tensor(t.copy())))
            z0[...], t[...] = 7, 7
            return np.float64(answer)
        return by_brentq(z0, t)

    z0, t = f64(0.5), f64(2.0).requires_grad_()
    for arrays, kind in ((True, np.ndarray), (False, Tensor)):
        seen.clear()
        y = gw.implicit.root(cubic, arrays=arrays)(solver)(z0, t)
        torch.testing.assert_close(torch.autograd.grad(y, t)[0], f64(0.25))
        assert all(isinstance(value, kind) for value in seen)
        assert not any(getattr(value, "requires_grad", False) for value in seen)
    assert (z0.item(), t.item()) == (0.5, 2.0)


@pytest.mark.parametrize(
    "form",
    [
        lambda z: z.astype(np.float32),
        lambda z: z[::-1].copy()[::-1],
        lambda z: np.asfortranarray(z),
        lambda z: np.broadcast_to(z, z.shape),
        lambda z: torch.from_numpy(z),
        list,
    ],
)
def test_any_array_of_the_right_shape_is_taken(form: Callable[[Any], Any]) -> None:
    @gw.implicit.root(lambda z, t: z - t, arrays=True)
    def solver(z0: Any, t: Any) -> Any:
        return form(t)

    t = f64(1.0, 2.0, 3.0).requires_grad_()
    if form is list:
        with pytest.raises(RuleError, match="expected a tensor"):
            solver(torch.zeros(3, dtype=F64), t)
        return
    z = solver(torch.zeros(3, dtype=F64), t)
    assert torch.equal(z, t)
    assert z.dtype == F64
    assert torch.equal(torch.autograd.grad(z.sum(), t)[0], torch.ones(3, dtype=F64))


def test_a_result_of_scipy_is_not_a_solution() -> None:
    @gw.implicit.root(cubic, arrays=True)
    def solver(z0: Any, t: Any) -> Any:
        return scipy.optimize.root(lambda y: y**3 + y - t, z0)

    with pytest.raises(RuleError, match=r"returned an OptimizeResult, which is no solution.*return its `\.x`"):
        solver(f64(0.0), f64(2.0))


def test_a_solver_that_differentiates_is_told_how() -> None:
    @gw.implicit.root(cubic)
    def solver(z0: Tensor, t: Tensor) -> Tensor:
        y = z0.clone().requires_grad_()
        for _ in range(30):
            value = cubic(y, t)
            y = (y - value / torch.autograd.grad(value, y)[0]).detach().requires_grad_()
        return y

    with pytest.raises(RuleError, match=r"torch\.enable_grad\(\)"):
        solver(f64(0.0), f64(2.0))

    @gw.implicit.root(cubic)
    def enabled(z0: Tensor, t: Tensor) -> Tensor:
        with torch.enable_grad():
            return solver._solver(z0, t)

    t = f64(2.0).requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(enabled(f64(0.0), t), t)[0], f64(0.25))


def test_float32_and_mixed_dtypes() -> None:
    t = torch.tensor(2.0, requires_grad=True)
    y = solve_cubic(torch.tensor(0.0), t)
    slope = torch.autograd.grad(y, t, create_graph=True)[0]
    assert y.dtype == slope.dtype == torch.float32
    torch.testing.assert_close(torch.autograd.grad(slope, t)[0], torch.tensor(-0.09375), rtol=1e-5, atol=0)
    wide = f64(2.0).requires_grad_()
    y = solve_cubic(torch.tensor(0.0), wide)
    assert y.dtype == torch.float32
    torch.testing.assert_close(torch.autograd.grad(y, wide)[0], f64(0.25), rtol=1e-5, atol=0)


def test_complex_unknowns_also_where_the_residual_conjugates() -> None:
    solve = gw.implicit.root(lambda z, c: z**3 + z.conj() / 2 + z - c)
    c = torch.tensor([1 + 2j, -0.5j], dtype=torch.complex128, requires_grad=True)

    def f(c: Tensor) -> Tensor:
        return solve(torch.full((2,), 0.5 + 0.5j, dtype=torch.complex128), c)

    assert torch.autograd.gradcheck(f, c, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, c)


def test_parameters_without_gradient_are_constants() -> None:
    solve = gw.implicit.root(lambda z, t, power, on: z**power + z - t if on else z - t)
    t = f64(2.0).requires_grad_()
    y = solve(ZERO, t, torch.tensor(3), True)
    torch.testing.assert_close(torch.autograd.grad(y, t)[0], f64(0.25))


# -------------------------------------------------------------------- around PyTorch


def test_checkpoint_second_backward_and_accumulation() -> None:
    a, b = coupled_arguments()
    z0 = torch.zeros(4, dtype=F64)
    truth = torch.autograd.grad(solve_coupled(z0, a, b).sum(), b)[0]
    for reentrant in (False, True):
        out = checkpoint(lambda b: solve_coupled(z0, a.detach(), b), b, use_reentrant=reentrant)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), b)[0] if not reentrant else _backward(out, b), truth)
    out = solve_coupled(z0, a, b).sum()
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(out, b, retain_graph=True)[0], truth)


def _backward(out: Tensor, leaf: Tensor) -> Tensor:
    leaf.grad = None
    out.sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def test_a_custom_rule_inside_the_residual_is_used() -> None:
    calls = []

    @gw.custom_gradient
    def cube(y: Tensor) -> Tensor:
        return y**3

    @cube.vjp
    def cube_vjp(g: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        return 3 * y**2 * g

    solve = gw.implicit.root(lambda y, t: cube(y) + y - t)
    t = f64(2.0)
    torch.testing.assert_close(hessian(lambda t: solve(ZERO, t))(t), f64(-0.09375))
    assert calls


def test_a_foreign_function_is_a_residual() -> None:
    @gw.external(argnums=(0, 1), out=gw.like(0))
    def foreign(z: Any, t: Any) -> Any:
        assert isinstance(z, np.ndarray)
        return z**3 + z * t - 2

    @foreign.register_vjp
    def foreign_vjp(g: Any, z: Any, t: Any) -> Any:
        return g * (3 * z**2 + t), g * z

    solve, z0 = gw.implicit.root(foreign), torch.ones(2, dtype=F64)
    t = f64(1.0, 2.0).requires_grad_()
    z = solve(z0, t)
    truth = -z.detach() / (3 * z.detach() ** 2 + t.detach())
    torch.testing.assert_close(torch.autograd.grad(z.sum(), t, retain_graph=True)[0], truth)
    (found,) = torch.autograd.grad(z.sum(), t, create_graph=True)
    torch.testing.assert_close(found.detach(), truth)
    for transform in (jacrev, jacfwd):
        torch.testing.assert_close(transform(lambda t: solve(z0, t))(t.detach()), truth.diag())
    with pytest.raises(RuleError, match="foreign"):  # the second derivative of the residual was not given
        torch.autograd.grad(found.sum(), t)


def test_under_autocast_it_is_solved_in_single_precision() -> None:
    a, b = (t.detach().float() for t in coupled_arguments())
    b.requires_grad_()
    truth = solve_coupled(torch.zeros(4), a, b)
    slope = torch.autograd.grad(truth.sum(), b)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = solve_coupled(torch.zeros(4), a, b)
        mixed = solve_coupled(torch.zeros(4, dtype=torch.bfloat16), a, b.bfloat16())
    torch.testing.assert_close(z, truth)
    torch.testing.assert_close(torch.autograd.grad(z.sum(), b)[0], slope)
    torch.testing.assert_close(mixed, truth, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(torch.autograd.grad(mixed.sum(), b)[0], slope, rtol=2e-2, atol=2e-2)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of the compiler's own
def test_torch_compile_leaves_its_graph_and_says_so() -> None:
    t = f64(2.0).requires_grad_()

    def f(t: Tensor) -> Tensor:
        return 2 * solve_cubic(ZERO, t * t / 2) + t

    compiled = torch.compile(f, backend="aot_eager")
    for run in (f, compiled):
        torch.testing.assert_close(torch.autograd.grad(run(t), t)[0], f64(2.0))
    torch.testing.assert_close(torch.compile(grad(f), backend="aot_eager")(t.detach()), f64(2.0))
    torch.testing.assert_close(grad(compiled)(t.detach()), f64(2.0))
    with pytest.raises(Exception, match="a solver is run and not traced"):
        torch.compile(lambda t: solve_cubic(ZERO, t), backend="aot_eager", fullgraph=True)(t)


def test_recording_is_refused() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    with pytest.raises(RuleError, match="its solver cannot be recorded"):
        make_fx(lambda t: solve_cubic(ZERO, t))(f64(2.0))


def test_solves_can_be_pickled() -> None:
    for solve in (solve_cubic, by_brentq, gw.implicit.root(cubic, tol=1e-9, has_aux=False)):
        again = pickle.loads(pickle.dumps(solve))
        torch.testing.assert_close(grad(lambda t, s=again: s(ZERO, t))(f64(2.0)), f64(0.25))
    assert by_brentq.__doc__ == "Return the root between -10 and 10."
    assert repr(by_brentq) == "<gw.implicit.root(cubic) by by_brentq>"


CHEAP = ("matches-differences", "modes-agree", "linear-in-cotangent", "inputs-untouched")
CHECKED = {
    "newton": solve_cubic,
    "gmres": gw.implicit.root(cubic, linear="gmres"),
    "another solver": gw.implicit.root(cubic)(lambda z0, t: solve_cubic(z0, t)),
}


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize(
    ("level", "only"), [("quick", CHEAP), pytest.param("full", (), marks=pytest.mark.slow)], ids=["quick", "full"]
)
def test_a_check_understands_it(name: str, level: Any, only: Any) -> None:
    report = gw.check(CHECKED[name], f64(0.1, 0.2), f64(1.0, 2.0), level=level, only=only)
    assert report, report
    assert not report.unresolved


def test_brentq_in_a_training_loop() -> None:
    wanted = f64(0.5)
    weight = nn.Parameter(f64(3.0))
    optimizer = torch.optim.SGD([weight], lr=2.0)
    for _ in range(60):
        loss = (by_brentq(0.0, weight) - wanted).square()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), f64(0.625), rtol=1e-4, atol=0)


# -------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tol_residual": 0.0}, "tol_residual is 0.0; expected a number above 0"),
        ({"tol": float("nan")}, "tol is nan"),
        ({"max_steps": 0}, "max_steps is 0; expected a whole number"),
        ({"linear": "lu"}, "method: got 'lu'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        gw.implicit.root(cubic, **options)


def test_wrong_uses_are_refused() -> None:
    with pytest.raises(DefinitionError, match="got a float as the residual"):
        gw.implicit.root(2.0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="called without arguments"):
        solve_cubic()
    with pytest.raises(ArgumentError, match="first argument holds no tensor"):
        solve_cubic(0.0, f64(2.0))
    with pytest.raises(ArgumentError, match="parameter 0 is a Linear, whose tensors would get no gradient"):
        solve_cubic(ZERO, nn.Linear(2, 2))
    with pytest.raises(RuleError, match=r"the residual has 1 elements \(shape \(\)\) for 3 unknowns"):
        gw.implicit.root(lambda z, t: z.sum() - t)(torch.zeros(3, dtype=F64), f64(2.0))
    with pytest.raises(
        RuleError, match=r"root\(<lambda>\): the residual hands a tensor to NumPy.*torch\.cos for np\.cos"
    ):
        gw.implicit.root(lambda z, t: torch.as_tensor(np.cos(z.numpy())) - t)(ZERO, f64(0.5).requires_grad_())
    with pytest.raises(RuleError, match="the residual returned a float"):
        gw.implicit.root(lambda z, t: 1.0)(ZERO, f64(2.0))
    with pytest.raises(RuleError, match=r"the unknowns are torch\.int64"):
        solve_cubic(torch.tensor(1), f64(2.0))
    with pytest.raises(RuleError, match=r"the unknowns are torch\.bfloat16.*expected float32 or float64"):
        solve_cubic(torch.tensor(1.0, dtype=torch.bfloat16), f64(2.0))
    with pytest.raises(RuleError, match=r"a solution of shape \(2,\) where the first argument has \(\)"):
        gw.implicit.root(cubic)(lambda z0, t: torch.zeros(2, dtype=F64))(ZERO, f64(2.0))


def test_a_solver_that_is_a_method_is_refused() -> None:
    class Holder:
        @gw.implicit.root(cubic)
        def solve(self, z0: Tensor, t: Tensor) -> Tensor:
            return z0

    with pytest.raises(DefinitionError, match="it decorates a method"):
        Holder().solve(ZERO, f64(2.0))


def test_too_few_steps_return_a_point_that_is_not_differentiated() -> None:
    t = f64(2.0).requires_grad_()
    y, status = gw.implicit.root(cubic, has_aux=True, max_steps=2)(f64(5.0), t)
    assert not status.converged
    with pytest.raises(ConvergenceError, match="let the solver iterate longer"):
        y.backward()
