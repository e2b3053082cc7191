"""A decorated function is a function: signature, pickling, methods; what it refuses; what it saves."""

from __future__ import annotations

import collections
import copy
import gc
import inspect
import linecache
import pickle
import re
import traceback
import typing
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright import torch_compat
from gradwright.authoring import codegen, trees
from gradwright.errors import ArgumentError, GradwrightError, RuleError
from tests.authoring.examples import Pair, exp, linear, swapped, unannotated, x


@gw.custom_gradient
def scaled(x: Tensor, /, k: float = 3.0, *, flip: bool = False) -> Tensor:
    """Multiply by ``k``."""
    return -k * x if flip else k * x


@scaled.vjp
def scaled_vjp(g: Tensor, *, k: float, flip: bool) -> Tensor:
    return -k * g if flip else k * g


def made(function: Callable[..., Any], vjp: Any = None, jvp: Any = None, **options: Any) -> Any:
    decorated = gw.custom_gradient(**options)(function)
    if vjp is not None:
        decorated.vjp(vjp)
    if jvp is not None:
        decorated.jvp(jvp)
    return decorated


def leaf(*shape: int) -> Tensor:
    return x(*shape).requires_grad_()


# -------------------------------------------------------------------- it is a function


def test_it_keeps_name_docs_signature_and_hints() -> None:
    assert scaled.__name__ == "scaled"
    assert scaled.__doc__ == "Multiply by ``k``."
    assert scaled.__module__ == __name__
    assert str(inspect.signature(scaled)) == "(x: 'Tensor', /, k: 'float' = 3.0, *, flip: 'bool' = False) -> 'Tensor'"
    assert typing.get_type_hints(scaled)["x"] is Tensor
    assert inspect.isfunction(scaled)


@pytest.mark.parametrize("again", [False, True], ids=["first", "later"])
def test_every_way_to_pass_arguments(again: bool) -> None:
    if again:
        scaled(leaf(2))
    for call, factor in (
        (lambda t: scaled(t), 3.0),
        (lambda t: scaled(t, 2.0), 2.0),
        (lambda t: scaled(t, k=2.0, flip=True), -2.0),
    ):
        t = leaf(2)
        out = call(t)
        assert torch.equal(out, factor * t)
        assert torch.equal(torch.autograd.grad(out.sum(), t)[0], torch.full((2,), factor, dtype=torch.float64))


def test_a_wrong_call_fails_with_pythons_own_message() -> None:
    with pytest.raises(TypeError, match=re.escape("scaled() got some positional-only arguments passed as keyword")):
        scaled(x=leaf(1))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=re.escape("scaled() takes from 1 to 2 positional arguments but 3 were given")):
        scaled(leaf(1), 2.0, True)  # type: ignore[misc]


def test_it_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(exp)) is exp
    assert copy.deepcopy(exp) is exp


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.power = 3

    @gw.custom_gradient
    def forward(self, x: Tensor) -> Tensor:
        return x**self.power

    @forward.vjp
    def forward_vjp(g: Tensor, self: Any, x: Tensor) -> Tensor:
        return 3 * g * x**2


def test_it_binds_as_a_method() -> None:
    model, t = Model(), leaf(2)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(model(t).sum(), t)[0], 3 * t.detach() ** 2)


def test_the_generated_lines_are_in_tracebacks() -> None:
    fails = made(lambda x: x, lambda g: {}["missing"])
    with pytest.raises(KeyError) as caught:
        fails(leaf(1)).sum().backward()
    exp(leaf(1))
    with pytest.raises(TypeError) as later:
        exp(leaf(1), 2)  # type: ignore[call-arg]
    assert "missing" in str(caught.value)
    assert later.value is not None
    code = exp.__code__  # type: ignore[attr-defined]
    assert linecache.getline(code.co_filename, code.co_firstlineno).strip() == "def exp(x):"
    linecache.checkcache()
    assert linecache.getlines(code.co_filename)
    assert traceback.format_exception(caught.value)


def test_arguments_may_be_called_like_anything_in_python() -> None:
    def function(ctx: Tensor, type: Tensor, isinstance: float, dict=None) -> tuple[Tensor, Tensor]:  # noqa: A002
        return ctx * type, type * isinstance

    def rule(g, ctx, type, isinstance, dict, out):  # type: ignore[no-untyped-def]  # noqa: A002
        return {"ctx": g[0] * type, "type": g[0] * ctx + g[1] * isinstance}

    decorated = made(function, rule)
    for _ in range(2):
        a, b = leaf(2), leaf(2)
        one, other = decorated(a, b, 3.0)
        ours = torch.autograd.grad(one.sum() + other.sum(), (a, b))
        torch.testing.assert_close(ours, (b.detach(), a.detach() + 3))


# -------------------------------------------------------------------- calls that are refused


def test_without_a_rule_a_call_says_what_to_write() -> None:
    with pytest.raises(RuleError, match=re.escape("f: it has no gradient rule yet; expected one; write `@f.vjp`")):
        named(lambda x: x)(leaf(1))


def named(function: Any) -> Any:
    function.__name__ = "f"
    return gw.custom_gradient(function)


def test_a_tensor_for_a_constant_and_a_number_for_a_tensor_are_refused() -> None:
    with pytest.raises(ArgumentError, match="scaled: 'k' is a tensor, but its annotation says that there are none, so"):
        scaled(leaf(1), torch.tensor(2.0))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="exp: 'x' is a float, but its annotation is Tensor; expected a tensor"):
        exp(1.0)  # type: ignore[arg-type]


def test_the_tensorflow_habit_is_recognised() -> None:
    """Bytecode tells of a function that is defined inside (see test_returned); this one has another origin."""
    habit = made(lambda x: (x.exp(), torch.exp), lambda g, out: g)
    with pytest.raises(RuleError, match="it returns a tuple with a function in it, as custom gradients of TensorFlow"):
        habit(leaf(1))


def test_tensors_in_a_container_of_numbers_are_refused() -> None:
    def summed(x: Tensor, weights: Sequence[float]) -> Tensor:
        return x * sum(weights)

    function = made(summed, lambda g, weights: g * sum(weights))
    with pytest.raises(ArgumentError, match="summed: 'weights' holds tensors, but its annotation says that there are"):
        function(leaf(1), [leaf(1), leaf(1)])
    assert function(leaf(1), [1.0, 2.0]).requires_grad
    assert function(leaf(1), [torch.ones(1), torch.tensor(2)]).requires_grad  # constants have no gradient to lose


def test_a_forward_that_edits_its_input_is_refused() -> None:
    edits = made(lambda x: x.mul_(2), lambda g: 2 * g)
    for _ in range(2):
        with pytest.raises(RuleError, match="it edited one of its arguments in place"):
            edits(x(2))


@pytest.mark.parametrize("keeps", [False, True])
def test_a_forward_that_edits_its_input_sometimes_is_refused_then(keeps: bool) -> None:
    @gw.custom_gradient
    def doubled(x: Tensor, edit: bool = False) -> Tensor:
        return x.mul_(2) * 1 if edit else x * 2

    if keeps:
        doubled.fwd(lambda x, edit: (doubled.__wrapped__(x, edit), x * 1))
    doubled.vjp(lambda g: 2 * g)
    in_list = made(lambda xs, edit: doubled.__wrapped__(xs[0], edit), lambda g: {"xs": [2 * g]})
    calls: list[Callable[[Tensor, bool], Any]] = [
        doubled,
        lambda x, edit: in_list([x], edit),
        lambda x, edit: torch.func.grad(lambda x: doubled(x * 1, edit).sum())(x),
        lambda x, edit: torch.func.vmap(lambda x: doubled(x * 1, edit))(x),
        lambda x, edit: torch.func.jvp(lambda x: doubled(x * 1, edit), (x,), (x,)),
    ]
    for call in calls:
        call(x(2), False)
        call(x(2), False)
        with pytest.raises(RuleError, match="it edited one of its arguments in place"):
            call(x(2), True)
        with torch.inference_mode():
            call(x(2), False)


def test_residuals_without_a_forward_that_keeps_them() -> None:
    function = made(lambda x: x.exp(), lambda g, residuals: g)
    with pytest.raises(GradwrightError, match="asks for residuals, but nothing keeps any; expected a forward"):
        function(leaf(1))


def test_a_forward_with_residuals_returns_two_things() -> None:
    function = made(lambda x: x.exp(), lambda g, residuals: g)
    function.fwd(lambda x: x.exp())
    with pytest.raises(RuleError, match=re.escape("returned a Tensor; expected the output and the residuals; write")):
        function(leaf(1))


def two(x: Tensor, w: Tensor) -> Tensor:
    return x * w


@pytest.mark.parametrize("warm", [False, True], ids=["first", "later"])
@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda g: {"y": g}, "returned a gradient for 'y'; expected names among x, w; correct the name"),
        (
            lambda g: tuple(t for t in [g]),
            "returns 1 gradient for 2 arguments (x, w); expected one for each that can have a",
        ),
        (lambda g: g, "returned one tensor, but 2 arguments are tensors (x, w); expected a dict by argument name"),
        (lambda g: 3.0, "returned a float; expected a tensor, a tuple in the order of the arguments, a dict"),
        (lambda g: (g, 3.0), "returned for 'w' a float; expected a tensor, or None for zero."),
        (lambda g: {"w": 3.0}, "returned for 'w' a float; expected a tensor, or None for zero."),
    ],
)
def test_what_a_rule_returns_is_explained(result: Any, text: str, warm: bool) -> None:
    function = gw.custom_gradient(two)
    function.vjp(lambda g: (g, g))
    if warm:
        function(leaf(2), leaf(2))
    function.vjp(result)
    if warm:
        function(x(2), x(2))
    with pytest.raises(RuleError, match=re.escape(text)):
        function(leaf(2), leaf(2)).sum().backward()


def test_a_gradient_of_another_shape_is_named() -> None:
    function = gw.custom_gradient(two)
    function.vjp(lambda g, w: {"x": g.sum().expand(5)})
    for _ in range(2):
        text = re.escape("for 'x' a gradient of shape (5,); expected (2,), the shape of the argument.")
        with pytest.raises(RuleError, match=text):
            function(leaf(2), leaf(2)).sum().backward()


def test_a_tangent_of_another_shape_is_named() -> None:
    function = made(lambda x: x * 2, jvp=lambda t: t.sum().expand(5))
    with pytest.raises(RuleError, match=re.escape("a tangent of shape (5,); expected (2,), the shape of the output.")):
        torch.func.jvp(function, (x(2),), (x(2),))


def test_nothing_and_nothing_by_name_are_zero() -> None:
    for result in (lambda g: None, lambda g: {}, lambda g: (None, None), lambda g: {"x": None}):
        function = gw.custom_gradient(two)
        function.vjp(result)
        for _ in range(2):
            a, b = leaf(2), leaf(2)
            grads = torch.autograd.grad(function(a, b).sum(), (a, b), allow_unused=True)
            assert grads == (None, None)


def test_another_kind_of_output_later_is_refused() -> None:
    state = {"tuple": False}
    function = made(lambda x: (x, x) if state["tuple"] else x * 1, lambda g: g)
    function(leaf(1))
    state["tuple"] = True
    with pytest.raises(RuleError, match="it returned a tuple; expected one tensor, as its annotation or its"):
        function(leaf(1))


def test_residuals_of_any_form_and_of_another_form_later() -> None:
    state: dict[str, Any] = {"form": "tensor"}

    def keeping(x, k):  # type: ignore[no-untyped-def]
        out, factor = k * x**2, 2 * k * x
        kept = {
            "tensor": factor,
            "tuple": (factor, x),
            "dict": {"f": factor},
            "out": (out, factor),
            "none": (None, factor),
        }
        return out, kept[state["form"]]

    def rule(g, residuals):  # type: ignore[no-untyped-def]
        kept = residuals if not isinstance(residuals, dict) else residuals["f"]
        return {"x": g * (kept if isinstance(kept, Tensor) else kept[0 if state["form"] == "tuple" else 1])}

    for first in ("tensor", "tuple", "dict", "out", "none"):
        function = made(lambda x, k=3.0: k * x**2, rule)
        function.fwd(keeping)
        for state["form"] in (first, first, "tensor", "tuple"):
            t = leaf(2)
            out = function(t)
            torch.testing.assert_close(torch.autograd.grad(out.sum(), t)[0], 6 * t.detach())
            torch.testing.assert_close(out, 3 * t**2)
            t = leaf(2)
            (g,) = torch.autograd.grad(function(t).sum(), t, create_graph=True)
            with pytest.raises(RuleError, match="its gradient was differentiated again"):
                torch.autograd.grad(g.sum(), t)


def test_nondiff_refuses_in_every_mode() -> None:
    function = made(two, lambda g, w: {"x": g * w}, nondiff=("w",))
    text = "two: a gradient of 'w' is needed, but it is declared in nondiff; expected a constant"
    for _ in range(2):
        a = leaf(2)
        assert torch.equal(torch.autograd.grad(function(a, x(2)).sum(), a)[0], x(2))
    with pytest.raises(RuleError, match=text):
        function(leaf(2), leaf(2))
    with pytest.raises(RuleError, match=text):
        torch.func.grad(lambda w: function(x(2), w).sum())(x(2))
    with pytest.raises(RuleError, match=text):
        torch.func.jvp(lambda w: function(x(2), w).sum(), (x(2),), (x(2),))


# -------------------------------------------------------------------- what is saved


def test_only_what_is_asked_for_is_saved() -> None:
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        a, w = leaf(2), leaf(2)
        function = made(two, lambda g, w: {"x": g * w})
        for _ in range(2):
            function(a, w)
            assert [t.data_ptr() for t in packed] == [w.data_ptr()]
            packed.clear()


@pytest.mark.parametrize("function", [exp, unannotated])
def test_there_is_no_reference_cycle(function: Any) -> None:
    function(leaf(2))
    gc.collect()
    gc.disable()
    try:
        out = function(leaf(2))
        alive = weakref.ref(out)
        del out
        assert alive() is None
    finally:
        gc.enable()


def test_an_edit_of_what_is_saved_is_noticed() -> None:
    for _ in range(2):
        t = leaf(2)
        out = exp(t)
        with torch.no_grad():
            out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_a_rule_can_be_replaced() -> None:
    function = made(lambda x: x * 2, lambda g: 2 * g)
    t = leaf(1)
    function(t)
    function.vjp(lambda g: 7 * g)
    for _ in range(2):
        assert torch.autograd.grad(function(t).sum(), t)[0].item() == 7


# -------------------------------------------------------------------- arguments and outputs of all kinds


def test_zero_size_and_zero_dimensions() -> None:
    for shape in ((0,), (), (2, 0)):
        for _ in range(2):
            t = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
            assert torch.autograd.grad(exp(t).sum(), t)[0].shape == shape


def test_the_same_tensor_twice() -> None:
    function = made(two, lambda g, x, w: {"x": g * w, "w": g * x})
    for _ in range(2):
        t = leaf(2)
        torch.testing.assert_close(torch.autograd.grad(function(t, t).sum(), t)[0], 2 * t.detach())


def test_a_tensor_subclass_is_kept() -> None:
    class Own(Tensor):
        pass

    for _ in range(2):
        t = x(2).as_subclass(Own)
        assert type(exp(t)) is Own
        assert type(exp(t.requires_grad_())) is Own


Named = collections.namedtuple("Named", ["a", "b"])


@pytest.mark.parametrize(
    "pack",
    [
        lambda x: [x],
        lambda x: {"a": [x]},
        lambda x: Named(x, 2),
        lambda x: (x, (x + 1, "text")),
        lambda x: Pair(x, x + 1),
        lambda x: collections.OrderedDict(a=x),
    ],
)
def test_a_container_does_not_keep_itself_alive(pack: Any) -> None:
    function = made(lambda x: pack(x.exp()), lambda g, out: None)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            leaves: list[Tensor] = []
            trees.flatten(function(leaf(2)), leaves)
            alive = [weakref.ref(t) for t in leaves]
            leaves.clear()
            assert [t() for t in alive] == [None] * len(alive)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "pack",
    [
        lambda a, b: [a, b],
        lambda a, b: {"a": a, "b": b},
        lambda a, b: Named(a, b),
        lambda a, b: (a, (b, 3)),
        lambda a, b: (a, None, b),
    ],
)
def test_containers_come_out_as_they_are(pack: Any) -> None:
    def function(x):  # type: ignore[no-untyped-def]
        return pack(x * 2, x * 3)

    def rule(g):  # type: ignore[no-untyped-def]
        parts = list(g.values()) if isinstance(g, dict) else list(g)
        flat = [p for part in parts for p in (part if isinstance(part, tuple) else (part,)) if p is not None]
        return 2 * flat[0] + 3 * flat[1]

    decorated = made(function, rule)
    for _ in range(3):
        t = leaf(2)
        out, expected = decorated(t), function(t)
        assert type(out) is type(expected)
        leaves = torch.utils._pytree.tree_leaves(out)
        total = sum((k + 1) * leaf.sum() for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        (ours,) = torch.autograd.grad(total, t)
        leaves = torch.utils._pytree.tree_leaves(expected)
        total = sum((k + 1) * leaf.sum() for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        torch.testing.assert_close(ours, torch.autograd.grad(total, t)[0])


def test_a_gradient_of_another_structure_is_named() -> None:
    from tests.authoring.examples import Pair

    function = gw.custom_gradient(swapped.__wrapped__)  # type: ignore[attr-defined]
    function.vjp(lambda g: {"pair": {"third": g.first}})
    with pytest.raises(RuleError, match="returned for 'pair' a value at 'third'; expected one of 'first', 'second',"):
        function(Pair(leaf(2), leaf(2))).first.sum().backward()
    function.vjp(lambda g: {"pair": [g.first]})
    with pytest.raises(RuleError, match=re.escape("returned for 'pair' a list of 1; expected the same structure (3 ")):
        function(Pair(leaf(2), leaf(2))).first.sum().backward()


def test_an_input_that_is_returned_and_read_has_the_derivative_of_the_rule() -> None:
    from tests.authoring.examples import _Reverse, reverse_reading_out

    for _ in range(2):
        found = []
        for function in (reverse_reading_out, _Reverse.apply):
            t = leaf(2)
            (g,) = torch.autograd.grad(function(t).sum(), t, create_graph=True)
            found.append(torch.autograd.grad(g.sum(), t)[0])
        assert torch.equal(found[0], torch.ones(2, dtype=torch.float64))
        assert torch.equal(*found)


def test_an_optional_tensor_and_its_absence() -> None:
    a, w, b = leaf(4, 3), leaf(2, 3), leaf(2)
    for _ in range(2):
        assert torch.autograd.grad(linear(a, w, b).sum(), b)[0].tolist() == [4, 4]
        assert torch.autograd.grad(linear(a, w.detach()).sum(), a)[0].shape == (4, 3)


def test_a_symbolic_trace_keeps_the_rule() -> None:
    graph = torch.fx.symbolic_trace(lambda t: scaled(t, flip=True) + unannotated(t))
    assert "scaled(" in graph.code
    t = leaf(2)
    torch.testing.assert_close(torch.autograd.grad(graph(t).sum(), t)[0], -3 + 2 * t.detach())


def test_inference_mode_and_no_grad() -> None:
    function = made(lambda x: x * 2, lambda g: 2 * g)
    for context in (torch.inference_mode, torch.no_grad):
        with context():
            for _ in range(2):
                assert not function(x(2)).requires_grad


def test_without_the_private_names_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallbacks are slower, and right."""
    for name, fallback in (
        ("transforms_active", lambda: True),
        ("forward_mode_on", lambda: True),
        ("unwrap_dead", lambda t: t),
        ("any_autocast", lambda: True),
        ("direct_apply", lambda function: function.apply),
    ):
        monkeypatch.setattr(torch_compat, name, fallback)
        if f"gw_{name}" in codegen.HELPERS:
            monkeypatch.setitem(codegen.HELPERS, f"gw_{name}", fallback)
    function = made(two, lambda g, x, w: {"x": g * w, "w": g * x})
    for _ in range(2):
        a, b = leaf(2), leaf(2)
        torch.testing.assert_close(torch.autograd.grad(function(a, b).sum(), (a, b)), (b.detach(), a.detach()))
    hessian = torch.func.hessian(lambda t: function(t, t).sum())(x(2))
    torch.testing.assert_close(hessian, 2 * torch.eye(2, dtype=torch.float64))
    tangent = torch.func.jvp(lambda t: torch.func.vmap(function)(t, t), (x(2),), (x(2),))[1]
    torch.testing.assert_close(tangent, 2 * x(2) ** 2)


# -------------------------------------------------------------------- second derivatives that are not allowed


def test_never_refuses_create_graph_at_once() -> None:
    function = made(lambda x: x**3, lambda g, x: 3 * g * x**2, double_backward="never")
    t = leaf(2)
    torch.testing.assert_close(torch.autograd.grad(function(t).sum(), t)[0], 3 * t.detach() ** 2)
    with pytest.raises(RuleError, match="its gradient was asked for with create_graph=True; the function is declared"):
        torch.autograd.grad(function(t).sum(), t, create_graph=True)
    torch.testing.assert_close(torch.func.grad(lambda t: function(t).sum())(x(2)), 3 * x(2) ** 2)
    with pytest.raises(RuleError, match="its gradient was differentiated again"):
        torch.func.hessian(lambda t: function(t).sum())(x(2))


# -------------------------------------------------------------------- derived rules


def test_nothing_is_derived_from_a_rule_that_is_not_linear() -> None:
    clipped = made(lambda x: x * 2, lambda g: g.clamp(-1, 1))
    text = "is not linear in its cotangent, so it is no derivative and nothing can be derived from it"
    with pytest.raises(RuleError, match=text):
        torch.func.jvp(clipped, (x(3),), (x(3),))
    with pytest.raises(RuleError, match=text):
        torch.func.vmap(lambda t: torch.func.jvp(clipped, (t,), (t,))[1])(x(3))
    guided = made(lambda x: x * 2, jvp=lambda t: t.relu())
    with pytest.raises(RuleError, match="is not linear in its tangent"):
        guided(leaf(3)).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_linear_rule_in_low_precision_is_not_accused(dtype: torch.dtype) -> None:
    softmax = made(lambda x: x.softmax(-1), lambda g, out: out * (g - (g * out).sum(-1, keepdim=True)))
    t = x(64).to(dtype)
    _, tangent = torch.func.jvp(softmax, (t,), (t,))
    _, expected = torch.func.jvp(lambda t: t.softmax(-1), (t.double(),), (t.double(),))
    torch.testing.assert_close(tangent.double(), expected, atol=0.05, rtol=0.1)


# -------------------------------------------------------------------- autocast


@pytest.mark.parametrize("kind", ["plain", "general"])
def test_the_backward_runs_under_the_autocast_of_the_forward(kind: str) -> None:
    seen: list[tuple[bool, torch.dtype]] = []

    def rule(g, w):  # type: ignore[no-untyped-def]
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return {"x": g.to(w.dtype) @ w.mT}

    function = made(lambda x, w: x @ w, rule, symbolic_zeros=kind == "general")
    a, w = leaf(2, 2), x(2, 2)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = function(a, w)
        out.sum().backward()
        assert seen.pop() == (True, torch.bfloat16)
        out = function(a, w)
        with torch.autocast("cpu", dtype=torch.float16):
            out.sum().backward()
        assert seen.pop()[0] is False


@pytest.mark.parametrize(
    ("policy", "dtype"), [("replay", torch.bfloat16), ("float32", torch.float32), ("off", torch.float32)]
)
def test_policies_of_autocast(policy: Any, dtype: torch.dtype) -> None:
    function = made(lambda x: x @ x, lambda g, x: g @ x.mT + x.mT @ g, autocast=policy)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert function(x(2, 2).float()).dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = function(x(2, 2).bfloat16())
    assert low.dtype == (torch.float32 if policy == "float32" else torch.bfloat16)


def test_a_forward_that_no_transform_can_follow_says_what_to_do() -> None:
    @gw.custom_gradient
    def sine(t: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(t.detach().numpy()))

    sine.vjp(lambda g, t: g * torch.cos(t))
    with pytest.raises(RuleError, match=r"sine: its forward failed under a transform .* with @sine\.vmap"):
        torch.func.vmap(sine)(x(3))
