"""Where torch fails without a word: what it does (an expected failure, so that we learn when it is fixed), and ours.

The numbers S1 to S12 are only names. torch 2.13.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.autograd.function import once_differentiable

import gradwright as gw
from gradwright.errors import RuleError, RuleNotExportedWarning
from tests.authoring.examples import exp, logsumexp, x
from tests.controls.op_db import without_expecttest


def compiles(test: Any) -> Any:
    """Mark a test that compiles; torch warns of its own code while it does."""
    for mark in (pytest.mark.compile, pytest.mark.slow, pytest.mark.filterwarnings("ignore")):
        test = mark(test)
    return test


torch_fails = pytest.mark.xfail(strict=True, raises=(AssertionError, pytest.fail.Exception), reason="torch 2.13")


def scalar(value: float = 2.0) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def marked(name: str = "marked") -> Any:
    """Return the exponential with a rule that gives seven times the cotangent, so that a dropped rule shows."""

    @gw.custom_gradient
    def marked(x: Tensor) -> Tensor:
        return torch.exp(x)

    marked.vjp(lambda g: 7 * g)
    return marked


class Marked(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.exp(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 7 * g


def compiled(function: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="aot_eager", **options)


# -------------------------------------------------------------------- S1, S2: compile and torch.func


def _grad(f: Any) -> Any:
    return lambda x: torch.func.grad(lambda x: f(x).sum())(x)


def _vjp(f: Any) -> Any:
    return lambda x: torch.func.vjp(f, x)[1](torch.ones_like(x))[0]


def _jvp(f: Any) -> Any:
    return lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]


def _vmap(f: Any) -> Any:
    return lambda x: torch.func.vmap(lambda x: f(x))(x)


INSIDE = {"grad": _grad, "vjp": _vjp, "jvp": _jvp, "vmap": _vmap}


def _seven(transform: str, function: Any) -> None:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=transform == "vmap")
    out = function(x)
    if transform == "vmap":
        (out,) = torch.autograd.grad(out.sum(), x)
    assert out.tolist() == [7, 7, 7]


@compiles
@torch_fails
@pytest.mark.parametrize("transform", ["grad", "vjp", "vmap"])
def test_s1_s2_torch(transform: str) -> None:
    _seven(transform, compiled(INSIDE[transform](Marked.apply), fullgraph=True))


class Forward(Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.exp(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return 7 * t


@compiles
@torch_fails
def test_s1_torch_forward_mode() -> None:
    _seven("jvp", compiled(_jvp(Forward.apply), fullgraph=True))


@compiles
@pytest.mark.parametrize("transform", INSIDE)
def test_s1_s2_ours(transform: str) -> None:
    function = INSIDE[transform](marked())
    _seven(transform, function)
    _seven(transform, compiled(function))
    with pytest.raises(Exception, match=r"marked: a transform of torch\.func .* would drop its gradient rule"):
        _seven(transform, compiled(function, fullgraph=True))


# -------------------------------------------------------------------- compile and dual numbers (like S1)


def _tangent(function: Any) -> list[float]:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.zeros(2), torch.ones(2))
        tangent = forward_ad.unpack_dual(function(dual)).tangent
        assert tangent is not None
        return tangent.tolist()  # type: ignore[no-any-return]


def _inside(function: Any) -> Any:
    def with_dual_numbers(x: Tensor) -> Tensor | None:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            return forward_ad.unpack_dual(function(dual)).tangent

    return with_dual_numbers


@compiles
@torch_fails
def test_dual_numbers_into_compiled_code_torch() -> None:
    assert _tangent(compiled(lambda x: Forward.apply(x))) == [7, 7]


@compiles
def test_dual_numbers_into_compiled_code_ours() -> None:
    function = marked()
    once_compiled = compiled(lambda x: function(x))
    once_compiled(torch.zeros(2))  # what was compiled without forward mode is not used with it
    assert _tangent(once_compiled) == [7, 7]
    assert compiled(_inside(function))(torch.zeros(2)).tolist() == [7, 7]
    with pytest.raises(Exception, match="or a level of forward mode around it inside"):
        _tangent(compiled(function, fullgraph=True))
    with pytest.raises(Exception, match="or a level of forward mode around it inside"):
        compiled(_inside(function), fullgraph=True)(torch.zeros(2))


# -------------------------------------------------------------------- S3: nested forward mode


class Cube(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * t


@gw.custom_gradient
def cube(x: Tensor) -> Tensor:
    return x**3


@cube.jvp
def cube_jvp(t: Tensor, x: Tensor) -> Tensor:
    return 3 * x**2 * t


@pytest.mark.parametrize(
    "function", [pytest.param(Cube.apply, marks=torch_fails, id="torch"), pytest.param(cube, id="ours")]
)
def test_s3(function: Any) -> None:
    assert torch.func.jacfwd(torch.func.jacfwd(function))(scalar().detach()).item() == 12
    assert torch.func.jacfwd(torch.func.jacfwd(torch.func.jacfwd(function)))(scalar().detach()).item() == 6


# -------------------------------------------------------------------- S4: differentiable once


class Once(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g * ctx.saved_tensors[0] ** 2


@gw.custom_gradient(double_backward="once")
def once(x: Tensor) -> Tensor:
    return x**3


@once.vjp
def once_vjp(g: Tensor, x: Tensor) -> Tensor:
    return 3 * g * x**2


@gw.custom_gradient
def with_residuals(x: Tensor) -> Tensor:
    return x**3


@with_residuals.fwd
def with_residuals_fwd(x: Tensor) -> tuple[Tensor, Tensor]:
    return x**3, 3 * x**2


@with_residuals.vjp
def with_residuals_vjp(g: Tensor, residuals: Tensor) -> Tensor:
    return g * residuals


def _by_backward(f: Callable[[Tensor], Tensor]) -> float:
    x = scalar()
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    g.backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return x.grad.item()


def _by_grad(f: Callable[[Tensor], Tensor]) -> float:
    x = scalar()
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    return torch.autograd.grad(g, x)[0].item()


def _by_func(f: Callable[[Tensor], Tensor]) -> float:
    return torch.func.grad(torch.func.grad(f))(scalar().detach()).item()


def _by_hessian(f: Callable[[Tensor], Tensor]) -> float:
    return torch.autograd.functional.hessian(f, scalar().detach()).item()  # type: ignore[no-any-return]


SHAPES: dict[str, tuple[Any, float]] = {
    "once": (lambda f: f, 12.0),
    "once+x^4": (lambda f: lambda x: f(x) + x**4, 60.0),
    "once*x": (lambda f: lambda x: f(x) * x, 48.0),
    "once^2": (lambda f: lambda x: f(x) ** 2, 480.0),
}
WAYS = {"backward": _by_backward, "grad": _by_grad, "func": _by_func, "hessian": _by_hessian}
PATTERNS = [(shape, way) for shape in SHAPES for way in WAYS]
SILENT_IN_TORCH = {
    ("once+x^4", "backward"),
    ("once+x^4", "grad"),
    ("once*x", "grad"),
    ("once", "func"),
    ("once+x^4", "func"),
    ("once*x", "func"),
    ("once^2", "func"),
    ("once", "hessian"),
    ("once+x^4", "hessian"),
    ("once*x", "hessian"),
    ("once^2", "hessian"),
}


@pytest.mark.parametrize(
    ("shape", "way"), [pytest.param(*p, marks=torch_fails if p in SILENT_IN_TORCH else ()) for p in PATTERNS]
)
def test_s4_torch(shape: str, way: str) -> None:
    compose, right = SHAPES[shape]
    try:
        value = WAYS[way](compose(Once.apply))
    except RuntimeError:
        return  # loud, as meant
    assert value == right


@pytest.mark.parametrize(("shape", "way"), PATTERNS)
@pytest.mark.parametrize("function", [once, with_residuals])
def test_s4_ours(function: Any, shape: str, way: str) -> None:
    with pytest.raises(RuleError, match=f"{function.__name__}: its gradient was differentiated again"):
        WAYS[way](SHAPES[shape][0](function))


@pytest.mark.parametrize("function", [once, with_residuals, logsumexp])
def test_s4_first_derivatives_go_on_working(function: Any) -> None:
    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    assert g.requires_grad
    (again,) = torch.autograd.grad((function(x) * x.detach()).sum(), x)
    assert again.item() == 2 * g.item()


# -------------------------------------------------------------------- S5: an intermediate is saved


class Intermediate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        square = x**2
        ctx.save_for_backward(square)
        return square * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g * ctx.saved_tensors[0]


@torch_fails
def test_s5_torch() -> None:
    assert _by_grad(lambda x: Intermediate.apply(x) + x**4) == 60


def test_s5_ours() -> None:
    with pytest.raises(RuleError, match=r"keeps residuals in \.fwd, so that only first derivatives are right"):
        _by_grad(lambda x: with_residuals(x) + x**4)


# -------------------------------------------------------------------- S6: containers


class Doubled(Function):
    @staticmethod
    def forward(ctx: Any, xs: Any) -> Any:
        return {"y": xs["x"] * 2}

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return {"x": 2 * g["y"]}


@gw.custom_gradient
def doubled(xs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"y": xs["x"] * 2}


@doubled.vjp
def doubled_vjp(g: dict[str, Tensor]) -> Any:
    return {"xs": {"x": 2 * g["y"]}}


@pytest.mark.parametrize("function", [pytest.param(Doubled.apply, marks=torch_fails, id="torch"), doubled])
def test_s6(function: Any) -> None:
    x = scalar()
    out = function({"x": x})["y"]
    assert out.requires_grad
    assert torch.autograd.grad(out, x)[0].item() == 2


# -------------------------------------------------------------------- S7: a trained export


class Holder(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.w + x)  # type: ignore[no-any-return]


def _trained(function: Any) -> list[float]:
    x = torch.zeros(1, dtype=torch.float64)
    module = torch.export.export(Holder(function), (x,), strict=False).module()
    module(x).sum().backward()
    (w,) = module.parameters()
    assert w.grad is not None
    return w.grad.tolist()  # type: ignore[no-any-return]


@pytest.mark.slow
@torch_fails
def test_s7_torch() -> None:
    assert _trained(Marked.apply) == [7]


@pytest.mark.slow
def test_s7_ours() -> None:
    with pytest.warns(RuleNotExportedWarning, match="marked: torch.export keeps its values but not its gradient rule"):
        _trained(marked())


@pytest.mark.slow
def test_s7_ours_as_an_operator() -> None:
    @gw.custom_gradient(op="gradwright_tests::marked")
    def kept(x: Tensor) -> Tensor:
        return x * x

    kept.vjp(lambda g: 7 * g)
    assert _trained(kept) == [7]


# -------------------------------------------------------------------- S8: forward mode


@torch_fails
def test_s8_torch() -> None:
    @torch.library.custom_op("gradwright_tests::exponential", mutates_args=())
    def exponential(x: Tensor) -> Tensor:
        return torch.exp(x)

    exponential.register_autograd(
        lambda ctx, g: g * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    _pushed(exponential)


def _pushed(function: Any) -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.zeros(2), torch.ones(2))
        tangent = torch.autograd.forward_ad.unpack_dual(function(dual)).tangent
        assert tangent is not None
        assert tangent.tolist() == [1, 1]


def test_s8_ours() -> None:
    _pushed(exp)


# -------------------------------------------------------------------- S9: a tensor on ctx


class Kept(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.out = torch.exp(x)
        return ctx.out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.out


S9 = [pytest.param(Kept.apply, marks=torch_fails, id="torch"), exp, logsumexp]


@pytest.mark.parametrize("function", S9)
def test_s9_no_cycle(function: Any) -> None:
    function(torch.ones(2, requires_grad=True))
    gc.collect()
    gc.disable()
    try:
        out = function(torch.ones(2, requires_grad=True))
        alive = weakref.ref(out)
        del out
        assert alive() is None
    finally:
        gc.enable()
        gc.collect()


@pytest.mark.parametrize("function", S9)
def test_s9_hooks_see_what_is_saved(function: Any) -> None:
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        for _ in range(2):
            packed.clear()
            function(torch.ones(2, requires_grad=True))
            assert packed


@pytest.mark.parametrize("function", S9[:2])
def test_s9_edits_are_noticed(function: Any) -> None:
    x = torch.ones(2, requires_grad=True)
    out = function(x)
    with torch.no_grad():
        out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# -------------------------------------------------------------------- S10: the forward edits its input


class Editing(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.mul_(2).clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


def _edits(function: Any) -> None:
    with pytest.raises(RuntimeError, match="in place"):
        function(torch.ones(2))


@torch_fails
def test_s10_torch() -> None:
    _edits(Editing.apply)


def test_s10_ours() -> None:
    @gw.custom_gradient
    def editing(x: Tensor) -> Tensor:
        return x.mul_(2).clone()

    editing.vjp(lambda g: 2 * g)
    _edits(editing)


# -------------------------------------------------------------------- S11: a rule that is not linear


class Clipped(Function):
    """Its gradient is clipped, as in princeton-vl/lietorch and others: right for small cotangents only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g.clamp(-1, 1)


@gw.custom_gradient
def clipped(x: Tensor) -> Tensor:
    return x**2


@clipped.vjp
def clipped_vjp(g: Tensor, x: Tensor) -> Tensor:
    return 2 * x * g.clamp(-1, 1)


@torch_fails
@pytest.mark.parametrize("fast_mode", [False, True])
def test_s11_torch(fast_mode: bool) -> None:
    with pytest.raises(RuntimeError):
        torch.autograd.gradcheck(Clipped.apply, (x(3).requires_grad_(),), fast_mode=fast_mode)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@torch_fails
def test_s11_in_the_tests_of_torch() -> None:
    """The gradient of nothing is nothing; that of a Function which the tests of torch.func use is not."""
    with without_expecttest():
        from torch.testing._internal.autograd_function_db import CubeGenVmap
    _, pull = torch.func.vjp(CubeGenVmap.apply, torch.tensor(1.5))
    assert pull((torch.zeros(()), torch.zeros(())))[0].item() == 0


@pytest.mark.parametrize("function", [Clipped, clipped])
def test_s11_ours(function: Any) -> None:
    report = gw.check(function, x(3), level="quick")
    assert report["matches-differences"].verdict == "pass"
    assert report["linear-in-cotangent"].verdict == "fail"
    assert "limits large incoming gradients" in report["linear-in-cotangent"].message


def test_s11_nothing_is_derived_from_it() -> None:
    @gw.custom_gradient
    def offset(x: Tensor) -> Tensor:
        return x * 2

    offset.vjp(lambda g, x: 2 * g * g.abs() + 6 * x)
    with pytest.raises(RuleError, match="is not linear in its cotangent"):
        torch.func.jvp(offset, (torch.ones(2),), (torch.ones(2),))


# -------------------------------------------------------------------- S12: a rule replaced after compiling


@compiles
@torch_fails
def test_s12_torch() -> None:
    class Replaced(Marked):
        pass

    function = compiled(lambda x: Replaced.apply(x))
    x = torch.zeros(2, requires_grad=True)
    assert torch.autograd.grad(function(x).sum(), x)[0].tolist() == [7, 7]
    Replaced.backward = staticmethod(lambda ctx, g: 5 * g)  # type: ignore[method-assign]
    assert torch.autograd.grad(function(x).sum(), x)[0].tolist() == [5, 5]


@compiles
def test_s12_ours() -> None:
    replaced = marked()
    function = compiled(lambda x: replaced(x))
    x = torch.zeros(2, requires_grad=True)
    assert torch.autograd.grad(function(x).sum(), x)[0].tolist() == [7, 7]
    replaced.vjp(lambda g: 5 * g)
    assert torch.autograd.grad(function(x).sum(), x)[0].tolist() == [5, 5]
