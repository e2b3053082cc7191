"""``gw.Function`` in place of ``torch.autograd.Function``: nothing else changes, and every transform works."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, vmap
from torch.utils.checkpoint import checkpoint

import gradwright as gw
from gradwright.errors import DefinitionError, GradwrightError, RuleError
from tests.authoring.old_functions import OLD_FUNCTIONS, OldFunction, x
from tests.authoring.test_adopt import refused
from tests.authoring.test_transforms import PAIRS, SINGLE, composed, measured
from tests.controls.functions import Sine

METHODS = ("forward", "backward", "setup_context", "vjp")


def rebased(function: Any) -> Any:
    """Return the same class with the other base."""
    return type(function.__name__, (gw.Function,), {k: v for k, v in vars(function).items() if k in METHODS})


ALWAYS = {"SavesIntermediate", "NewStyleScaleByName", "TwoPartIntermediate", "TwoPartOnce", "NumpyIntermediate"}
"""Those for which all pairs are run each time, in either style; for the others with ``-m slow``."""

CELLS = [
    pytest.param(old, names, marks=pytest.mark.slow if old.name not in ALWAYS and len(names) > 1 else ())
    for old in OLD_FUNCTIONS
    for names in SINGLE + PAIRS
]


@pytest.mark.filterwarnings("ignore:.*as an attribute of ctx", "ignore:.*a gradient of dtype")
@pytest.mark.parametrize(
    ("old", "names"), CELLS, ids=lambda v: v.name if isinstance(v, OldFunction) else "-of-".join(v)
)
def test_right_or_refused(old: OldFunction, names: tuple[str, ...]) -> None:
    function = rebased(old.function)
    ours = composed(names, measured(old, function.apply))  # type: ignore[arg-type]
    if refused(old, names):
        with pytest.raises(GradwrightError, match=f"^{function.__name__}: "):
            ours(*old.inputs)
        return
    theirs = composed(names, measured(old, old.truth))  # type: ignore[arg-type]
    torch.testing.assert_close(ours(*old.inputs), theirs(*old.inputs), atol=1e-9, rtol=1e-9)


class Cube(gw.Function):
    """Keeps an intermediate, so that PyTorch alone has a wrong second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: float = 1.0) -> Tensor:
        square = x * x
        ctx.k = k
        ctx.save_for_backward(square)
        return k * x * square

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (square,) = ctx.saved_tensors
        return 3 * ctx.k * g * square, None


class Marked(gw.Function):
    """A gradient of 7 where that of the operations would be 3."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 3 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 7 * g


def test_names_and_second_derivatives() -> None:
    t = x(3)
    assert torch.equal(Cube.apply(x=t, k=2.0), 2 * t**3)
    assert torch.allclose(hessian(lambda t: Cube.apply(t, k=2.0).sum())(t), torch.diag(12 * t))


def test_it_is_a_function_of_torch() -> None:
    assert issubclass(Cube, torch.autograd.Function)
    out = Cube.apply(x(3).requires_grad_())
    assert out.grad_fn is not None
    assert out.grad_fn.name() == "CubeBackward"


def test_subclasses_have_their_own_rule() -> None:
    class Double(Marked):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 8 * g

    t = x(1)[0]
    assert (grad(Marked.apply)(t), grad(Double.apply)(t)) == (7, 8)


def test_a_method_may_be_replaced_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in tests with a mock: PyTorch reads the class at every call."""

    class Child(Marked):
        pass

    t = x(1)[0]
    assert grad(Child.apply)(t) == 7
    with monkeypatch.context() as patch:
        patch.setattr(Marked, "backward", staticmethod(lambda ctx, g: 9 * g))
        assert (grad(Marked.apply)(t), grad(Child.apply)(t)) == (9, 9)
        patch.setattr(Child, "forward", staticmethod(lambda x: 4 * x))
        assert Child.apply(t) == 4 * t
    assert (grad(Marked.apply)(t), grad(Child.apply)(t), Child.apply(t)) == (7, 7, 3 * t)


def test_pickle() -> None:
    Cube.apply(x(2))
    assert pickle.loads(pickle.dumps(Cube)) is Cube
    assert pickle.loads(pickle.dumps(Cube.apply)).__self__ is Cube


def test_checkpoint() -> None:
    t = x(3).requires_grad_()
    checkpoint(lambda t: Cube.apply(t).sum(), t, use_reentrant=False).backward()
    assert torch.allclose(t.grad, 3 * t.detach() ** 2)


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compile() -> None:
    torch.compiler.reset()
    for function, expected in ((Marked, torch.full((3,), 7.0)), (Cube, 3 * x(3) ** 2)):
        t = x(3).requires_grad_()
        torch.compile(lambda t, f=function: f.apply(t).sum(), backend="aot_eager", fullgraph=True)(t).backward()
        torch.testing.assert_close(t.grad, expected.double())


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("base", [torch.autograd.Function, gw.Function])
def test_compile_with_a_transform_inside(base: Any) -> None:
    """PyTorch drops the rule without a word (pytorch/pytorch#193279); with our base it is kept, or refused."""

    class Seven(base):  # type: ignore[misc]
        @classmethod
        def forward(cls, ctx: Any, x: Tensor) -> Tensor:
            return 3 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 7 * g

    class Inherits(Seven):
        pass

    t = x(3)
    for function in (Seven, Inherits):
        pulled = grad(lambda t, f=function: f.apply(t).sum())
        torch.compiler.reset()
        if base is torch.autograd.Function:
            assert torch.compile(pulled, backend="aot_eager", fullgraph=True)(t).tolist() == [3, 3, 3]
        else:
            with pytest.raises(Exception, match=f"{function.__name__}: a transform of torch.func .* would drop"):
                torch.compile(pulled, backend="aot_eager", fullgraph=True)(t)
            torch.compiler.reset()
            assert torch.compile(pulled, backend="aot_eager")(t).tolist() == [7, 7, 7]


def test_the_guard_costs_nothing_and_keeps_the_signature() -> None:
    assert inspect.signature(Cube.forward).parameters.keys() == {"ctx", "x", "k"}
    assert torch.equal(Cube.apply(x(3)), x(3) ** 3)
    assert gw.adopt(Cube).old.forward.__code__.co_varnames[:3] == ("ctx", "x", "k")


def test_a_class_with_rules_of_its_own_is_run_by_torch() -> None:
    own = type("Sine", (gw.Function,), {k: v for k, v in vars(Sine).items() if k in (*METHODS, "jvp", "vmap")})
    t = x(3)
    assert torch.allclose(vmap(grad(lambda t: own.apply(t)))(t), t.cos())
    assert "__gradwright_adopted__" not in vars(own)


@pytest.mark.parametrize("function", [Cube, Marked])
def test_check_takes_it(function: Any) -> None:
    surrogate = None if function is Cube else lambda x: 7 * x
    report = gw.check(function, x(3), surrogate=surrogate, level="quick")
    assert report
    assert report["second-order"].verdict == "pass"


# -------------------------------------------------------------------- messages


def test_instances() -> None:
    text = r"^Cube: a Function has no instances, but Cube\(\.\.\.\) was called; expected its apply; write Cube.apply"
    with pytest.raises(DefinitionError, match=text):
        Cube()
    with pytest.raises(DefinitionError, match=text):
        Cube(x(3))


def test_number_of_gradients() -> None:
    class Short(gw.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, k: float) -> Tensor:
            return x * k

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g

    text = r"^Short.backward returned 1 gradient for 2 inputs \(x, k\); expected one for each; return None for k"
    with pytest.raises(RuleError, match=text):
        Short.apply(x(3).requires_grad_(), 2.0).sum().backward()


def test_dtype_of_gradients_is_told_once() -> None:
    class Low(gw.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.float()

    t = x(3).requires_grad_()
    with pytest.warns(UserWarning, match=r"^Low: backward returned for 'x' a gradient of dtype torch.float32"):
        Low.apply(t).sum().backward()
    Low.apply(t).sum().backward()


def test_tensor_on_ctx_is_told_once() -> None:
    class OnContext(gw.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.x = x
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return 2 * g * ctx.x

    with pytest.warns(UserWarning, match=r"^OnContext: its forward keeps a tensor as an attribute of ctx.*save_for_"):
        OnContext.apply(x(3).requires_grad_())
    OnContext.apply(x(3).requires_grad_())


def test_gradient_on_another_device() -> None:
    class Elsewhere(gw.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.to("meta")

    with pytest.raises(RuleError, match=r"^Elsewhere: backward returned for 'x' a gradient on meta; expected one"):
        Elsewhere.apply(x(3).requires_grad_()).sum().backward()


def test_missing_methods() -> None:
    class Empty(gw.Function):
        pass

    with pytest.raises(DefinitionError, match=r"^Empty: it has no forward"):
        Empty.apply(x(3))
