"""Adopted Functions: every transform and pair of transforms by value, or refused with our message."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.func import grad, hessian, jacfwd, vmap

import gradwright as gw
from gradwright.errors import DefinitionError, GradwrightError, RuleError
from tests.authoring.old_functions import COMPLEX, OLD_FUNCTIONS, OldFunction, SavesInput, SavesIntermediate, x
from tests.authoring.test_transforms import FORWARD, ORDER, PAIRS, PLAIN, SINGLE, composed, measured
from tests.subjects import Exp, InPlaceDouble, Linear, NewStyleScale, Scale

ALWAYS = {"SavesIntermediate", "SavesOptional", "Once", "NumpyIntermediate"}
"""Those for which all pairs are run each time; for the others with ``-m slow``."""


def refused(old: OldFunction, names: tuple[str, ...]) -> bool:
    """Tell whether the Function must refuse the composition of these transforms."""
    order = sum(2 if n in ("hessian", "double-backward") else n in ORDER for n in names)
    jacobians = {"jacfwd", "hessian", *(("last-jacfwd",) if len(old.inputs) == 1 else ())}
    return (
        ("second" in old.refuses and order > 1)
        or ("vmap" in old.refuses and bool({"vmap", "vmap-first"} & set(names)))
        or ("vmap twice" in old.refuses and names == ("vmap", "vmap"))
        or ("forward" in old.refuses and bool(FORWARD & set(names)))
        or ("jacrev" in old.refuses and "jacrev" in names)
        or (
            "jacfwd" in old.refuses and bool({"jacfwd", "last-jacfwd", "hessian"} & set(names) or "jacrev" in names[1:])
        )
        or ("func" in old.refuses and names != (PLAIN,))
        or ("nested forward" in old.refuses and names[0] in jacobians and bool({"jvp", *jacobians} & set(names[1:])))
    )


CELLS = [
    pytest.param(old, names, marks=pytest.mark.slow if old.name not in ALWAYS and len(names) > 1 else ())
    for old in OLD_FUNCTIONS
    for names in SINGLE + PAIRS
]


@pytest.mark.parametrize(
    ("old", "names"), CELLS, ids=lambda v: v.name if isinstance(v, OldFunction) else "-of-".join(v)
)
def test_right_or_refused(old: OldFunction, names: tuple[str, ...]) -> None:
    ours = composed(names, measured(old, gw.adopt(old.function)))  # type: ignore[arg-type]
    if refused(old, names):
        with pytest.raises(GradwrightError, match=f"^{old.function.__name__}: "):
            ours(*old.inputs)
        return
    theirs = composed(names, measured(old, old.truth))  # type: ignore[arg-type]
    torch.testing.assert_close(ours(*old.inputs), theirs(*old.inputs), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("old", [o for o in OLD_FUNCTIONS if "second" not in o.refuses], ids=lambda o: o.name)
def test_plain_calls_are_what_they_were(old: OldFunction) -> None:
    """Values and first derivatives are those of ``apply``, without a transform."""

    def swept(function: Any) -> tuple[Any, ...]:
        leaves = [t.clone().requires_grad_() for t in old.inputs]
        out = old.call(function, *leaves)
        outs = [t for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, Tensor)]
        smooth = [t for t in outs if t.requires_grad]
        return outs, torch.autograd.grad([t.sum() for t in smooth], leaves, allow_unused=True)

    if "ByName" in old.name:
        pytest.skip("apply of the combined style takes no names")
    torch.testing.assert_close(swept(gw.adopt(old.function)), swept(old.function.apply), atol=0, rtol=0)


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (1, 0), (0, 1), (-1, None)])
@pytest.mark.parametrize("name", ["SavesOptional", "SavesOnlyNeeded", "KeepsInContainers"])
def test_vmap_over_any_dimension(name: str, in_dims: tuple[int | None, ...]) -> None:
    old = next(o for o in OLD_FUNCTIONS if o.name == name)
    xs = [torch.stack([t, t + 0.1], d) if d is not None else t for t, d in zip(old.inputs, in_dims)]
    ours = gw.adopt(old.function)
    got = vmap(grad(lambda *ts: ours(*ts).sin().sum()), in_dims)(*xs)
    want = vmap(grad(lambda *ts: old.truth(*ts).sin().sum()), in_dims)(*xs)
    torch.testing.assert_close(got, want)


def test_complex() -> None:
    square = gw.adopt(COMPLEX.function)
    (z,) = COMPLEX.inputs
    assert torch.autograd.gradcheck(square, z.clone().requires_grad_(), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(square, z.clone().requires_grad_())
    assert torch.allclose(vmap(square)(z), z * z)


def test_torch_is_wrong_where_an_intermediate_is_saved() -> None:
    """The second derivative through what is neither input nor output (pytorch/pytorch#76185)."""
    t = x(3).requires_grad_()

    def second(function: Any) -> Tensor:
        (g,) = torch.autograd.grad(function(t).sum(), t, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), t)
        return h

    true = (2 + t.detach()) * t.detach().exp()
    assert torch.allclose(second(gw.adopt(SavesIntermediate)), true)
    assert not torch.allclose(second(SavesIntermediate.apply), true)


# -------------------------------------------------------------------- one each


def test_signature_name_and_doc() -> None:
    linear = gw.adopt(Linear)
    assert (linear.__name__, linear.__doc__) == ("Linear", Linear.__doc__)
    a, w, b = x(2, 3), x(2, 3, seed=2), x(2, seed=3)
    assert torch.equal(linear(w=w, x=a, b=b), Linear.apply(a, w, b))
    assert torch.equal(linear(a, w=w), Linear.apply(a, w))
    with pytest.raises(TypeError, match="missing a required argument: 'w'"):
        linear(x=a)


def test_default_arguments() -> None:
    t = x(3)
    assert torch.equal(gw.adopt(NewStyleScale)(t), 2 * t)
    assert torch.equal(gw.adopt(Scale)(x=t), 2 * t)


def test_adopting_twice_gives_the_same() -> None:
    assert gw.adopt(Exp) is gw.adopt(Exp)

    class Sub(Exp):
        pass

    assert gw.adopt(Sub) is not gw.adopt(Exp)


def test_pickle_and_copy() -> None:
    exp = gw.adopt(Exp)
    assert pickle.loads(pickle.dumps(exp)) is exp
    assert copy.deepcopy(exp) is exp
    assert copy.copy(exp) is exp


def test_in_place_returns_the_input() -> None:
    double = gw.adopt(InPlaceDouble)
    leaf = x(3).requires_grad_()
    t = leaf * 3
    out = double(t)
    assert out is t
    out.sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), 6.0, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        double(leaf)
    with torch.no_grad():
        t = x(3)
        assert double(t) is t
        assert torch.equal(t, 2 * x(3))


def test_an_edit_without_mark_dirty_is_refused() -> None:
    class Edits(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x.mul_(2)
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 2 * g

    with pytest.raises(RuleError, match=r"^Edits: its forward edited 'x' in place without saying so.*mark_dirty"):
        gw.adopt(Edits)(x(3).requires_grad_() * 1)


def test_running_statistics_are_updated_once() -> None:
    """A buffer that forward edits is left alone when forward is run again."""

    class Norm(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, running: Tensor) -> Tensor:
            scale = 1 / (1 + x.square().mean())
            running.mul_(0.5).add_(scale.detach())
            ctx.save_for_backward(x, scale)
            return x * scale

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, s = ctx.saved_tensors
            return g * s - 2 * s * s * (g * x).mean() * x, None

    norm, t, running = gw.adopt(Norm), x(3).requires_grad_(), torch.zeros((), dtype=torch.float64)
    out, later = norm(t, running), norm(t, running)
    once = running.clone()
    (first,) = torch.autograd.grad(out.sum(), t, retain_graph=True)
    assert torch.allclose(first, grad(lambda t: (t / (1 + t.square().mean())).sum())(t.detach()))
    torch.autograd.grad(later.sum(), t, create_graph=True)
    assert torch.equal(running, once)


def test_a_second_derivative_after_an_edit_is_refused() -> None:
    leaf = x(3).requires_grad_()
    t, w = leaf * 1, x(3, seed=2)

    class Weighted(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward((x * w).cos(), x.clone(), w.clone())
            return (x * w).sin()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            c, x, w = ctx.saved_tensors
            return g * c * w, g * c * x

    out = gw.adopt(Weighted)(t, w)
    w.mul_(2)
    (g,) = torch.autograd.grad(out.sum(), leaf, create_graph=True)
    with pytest.raises(RuleError, match="an input was changed in place since"):
        g.sum().backward()


def test_random_numbers_are_kept() -> None:
    class Noise(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            noise = torch.rand_like(x)
            ctx.save_for_backward(x, noise)
            return x**3 * noise

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, noise = ctx.saved_tensors
            return 3 * g * x**2 * noise

    class Mixed(Noise):
        """The random numbers are mixed with the input, so that what was kept cannot be computed again."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            mixed = torch.rand_like(x) * x**2
            ctx.save_for_backward(mixed)
            return mixed * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (mixed,) = ctx.saved_tensors
            return 3 * g * mixed

    t = x(3).requires_grad_()
    out = gw.adopt(Noise)(t)
    noise = (out / t**3).detach()
    state = torch.get_rng_state()
    (g,) = torch.autograd.grad(out.sum(), t, create_graph=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.allclose(torch.autograd.grad(g.sum(), t)[0], 6 * t * noise)

    (g,) = torch.autograd.grad(gw.adopt(Mixed)(t).sum(), t, create_graph=True)
    with pytest.raises(RuleError, match=r"gives other values when it is run again \(random numbers"):
        g.sum().backward()


def test_tensors_of_the_module_are_constants() -> None:
    t = x(3)
    assert torch.allclose(hessian(lambda t: gw.adopt(TimesConstant)(t).sum())(t), torch.diag(2 * WEIGHT**2))


WEIGHT = x(3, seed=5)


class TimesConstant(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.scaled = WEIGHT * x
        return ctx.scaled**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * g * ctx.scaled * WEIGHT


def test_double_backward_of_nested_functions() -> None:
    class Outer(Function):
        """Keeps what another Function returned."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            e = Exp.apply(x)
            ctx.save_for_backward(e)
            return e * e

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (e,) = ctx.saved_tensors
            return 2 * g * e * e

    t = x(3).requires_grad_()
    (g,) = torch.autograd.grad(gw.adopt(Outer)(t).sum(), t, create_graph=True)
    assert torch.allclose(torch.autograd.grad(g.sum(), t)[0], 4 * (2 * t).exp())


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compile_keeps_the_rule_and_refuses_the_transform() -> None:
    triple = gw.adopt(Tripled)
    t = x(3).requires_grad_()
    torch.compile(lambda t: triple(t).sum(), backend="aot_eager", fullgraph=True)(t).backward()
    assert torch.equal(t.grad, torch.full((3,), 7.0, dtype=torch.float64))
    with pytest.raises(Exception, match=r"Tripled: a transform of torch\.func"):
        torch.compile(grad(lambda t: triple(t).sum()), backend="aot_eager", fullgraph=True)(t.detach())
    torch.compiler.reset()


class Tripled(Function):
    """A marked rule: the gradient is 7 where that of the operations would be 3."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 3 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 7 * g


def test_nothing_is_kept_alive() -> None:
    gc.disable()
    try:
        t = x(3).requires_grad_()
        out = gw.adopt(SavesIntermediate)(t)
        refs = weakref.ref(out), weakref.ref(t)
        del t, out
        assert [r() for r in refs] == [None, None]
    finally:
        gc.enable()


def test_checkpoint() -> None:
    t = x(3).requires_grad_()
    cube = gw.adopt(SavesInput)
    torch.utils.checkpoint.checkpoint(lambda t: cube(t).sum(), t, use_reentrant=False).backward()
    assert torch.allclose(t.grad, 3 * t.detach() ** 2)


def test_nested_forward_mode() -> None:
    """PyTorch gives 0 for a Function (pytorch/pytorch#197867)."""
    assert torch.allclose(jacfwd(jacfwd(gw.adopt(SavesInput)))(x(1)[0]), 6 * x(1)[0])


@pytest.mark.parametrize("name", ["Exp", "SavesIntermediate", "Softmax", "MaxWithIndex", "NumpyIntermediate", "Once"])
def test_check_takes_it(name: str) -> None:
    old = next(o for o in OLD_FUNCTIONS if o.name == name)
    report = gw.check(gw.adopt(old.function), *old.inputs, level="quick")
    assert report
    second = report["second-order"].verdict
    assert second == ("unsupported" if "second" in old.refuses else "pass")


# -------------------------------------------------------------------- messages


def test_wrong_number_of_gradients() -> None:
    class Short(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
            return x * k

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g

    text = r"^Short.backward returned 1 gradient for 2 inputs \(x, k\); expected one for each; return None for k"
    with pytest.raises(RuleError, match=text):
        gw.adopt(Short)(x(3).requires_grad_(), 2.0).sum().backward()


def test_wrong_shape() -> None:
    class Wide(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            return x * w

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g, torch.ones(5, dtype=g.dtype)

    text = r"^Wide: backward returned for 'w' a gradient of shape \(5,\); expected \(3,\)"
    with pytest.raises(RuleError, match=text):
        gw.adopt(Wide)(x(3).requires_grad_(), x(3).requires_grad_()).sum().backward()


def test_gradient_for_what_is_no_tensor() -> None:
    class Misplaced(Function):
        @staticmethod
        def forward(ctx: Any, k: float, x: Tensor) -> Tensor:
            return x * k

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g, None

    with pytest.raises(RuleError, match=r"^Misplaced.backward returned a gradient for 'k', which is no tensor"):
        gw.adopt(Misplaced)(2.0, x(3).requires_grad_()).sum().backward()


def test_a_backward_that_looks_at_the_sign_of_its_gradient_has_no_forward_mode() -> None:
    """Guided backpropagation, as packages have it: at zero it looks like the derivative 0."""

    class Guided(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.relu()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return g * (x > 0) * (g > 0)

    t = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
    assert grad(lambda t: gw.adopt(Guided)(t).sum())(t).tolist() == [1, 0, 1]
    with pytest.raises(RuleError, match=r"^Guided: its backward is not linear in the incoming gradient"):
        jacfwd(gw.adopt(Guided))(t)


def test_container_warns_once() -> None:
    class Listed(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, ws: list[Tensor]) -> Tensor:
            return x * ws[0]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g, None

    listed = gw.adopt(Listed)
    with pytest.warns(UserWarning, match="^Listed: 'ws' is a container with tensors that require a gradient"):
        listed(x(3), [x(3).requires_grad_()])
    listed(x(3), [x(3).requires_grad_()])


def test_a_container_gets_gradients_where_backward_gives_them() -> None:
    class Given(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, ws: list[Tensor]) -> Tensor:
            ctx.save_for_backward(x, *ws)
            return x * ws[0] * ws[1]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            x, v, w = ctx.saved_tensors
            return g * v * w, [g * x * w, g * x * v]

    given, t, v, w = gw.adopt(Given), x(3), x(3, seed=2), x(3, seed=3)
    leaves = [s.clone().requires_grad_() for s in (v, w)]
    with pytest.warns(UserWarning, match="^Given: 'ws' is a container"):
        given(t, leaves).sum().backward()
    assert torch.equal(leaves[0].grad, t * w)
    assert torch.equal(leaves[1].grad, t * v)
    assert torch.equal(grad(lambda ws: given(t, ws).sum())([v, w])[1], t * v)


def test_what_cannot_be_adopted() -> None:
    class Forward(NewStyleScale):
        @staticmethod
        def jvp(ctx: Any, *t: Any) -> Any:
            return t[0]

    class Batched(NewStyleScale):
        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return args[0], 0

    class NoBackward(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

    for function, text in (
        (Forward, "^Forward: it has a jvp of its own"),
        (Batched, "^Batched: it has a vmap of its own"),
        (NoBackward, "^NoBackward: it has no backward"),
        (Exp.apply, "^adopt: got .*; expected a subclass of torch.autograd.Function"),
        (int, "^adopt: got int"),
    ):
        with pytest.raises(DefinitionError, match=text):
            gw.adopt(function)  # type: ignore[arg-type]


# -------------------------------------------------------------------- S4: second derivatives that are refused


PATTERNS: dict[str, Any] = {
    "alone": lambda f: f,
    "beside another term": lambda f: lambda x: f(x) + x**4,
    "times the input": lambda f: lambda x: f(x) * x,
    "squared": lambda f: lambda x: f(x) ** 2,
}


def _ends_in_backward(f: Any, t: Tensor) -> None:
    leaf = t.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(leaf).sum(), leaf, create_graph=True)
    g.sum().backward()


def _ends_in_grad(f: Any, t: Tensor) -> None:
    leaf = t.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(leaf).sum(), leaf, create_graph=True)
    torch.autograd.grad(g.sum(), leaf)


ENDS: dict[str, Any] = {
    "backward": _ends_in_backward,
    "autograd.grad": _ends_in_grad,
    "func.grad": lambda f, t: grad(lambda t: grad(lambda t: f(t).sum())(t).sum())(t),
    "functional.hessian": lambda f, t: torch.autograd.functional.hessian(lambda t: f(t).sum(), t),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", ["Once", "NumpyIntermediate", "DetachedIntermediate"])
def test_refused_in_every_pattern(name: str, pattern: str, end: str) -> None:
    """PyTorch gives a wrong number in half of them, with ``once_differentiable`` as well."""
    function = gw.adopt(next(o.function for o in OLD_FUNCTIONS if o.name == name))
    with pytest.raises(RuleError, match=f"^{name}: its gradient was differentiated again"):
        ENDS[end](PATTERNS[pattern](function), x(3))


def test_an_input_may_change_afterwards_where_only_an_intermediate_was_saved() -> None:
    keeps = gw.adopt(next(o.function for o in OLD_FUNCTIONS if o.name == "KeepsOnContext"))
    leaf = x(3).requires_grad_()
    t = leaf * 1
    out = keeps(t)
    t.mul_(2)
    out.sum().backward()
    assert torch.allclose(leaf.grad, 8 * x(3))
