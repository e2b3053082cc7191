"""Plain calls of adopted Functions: PyTorch's own ctx where that is right, and the same answers where it is not."""

from __future__ import annotations

import collections
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable

import gradwright as gw
from gradwright.errors import RuleError
from tests.authoring.old_functions import x

Pair = collections.namedtuple("Pair", ["value", "twice"])


def made(forward: Any, backward: Any = lambda ctx, *g: g[0]) -> Any:
    """Return an adopted Function; its name is that of the forward."""
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return gw.adopt(type(forward.__name__, (Function,), body))


def test_the_ctx_is_that_of_torch() -> None:
    seen: list[Any] = []

    def keeps_input(ctx: Any, x: Tensor, k: float) -> Tensor:
        ctx.save_for_backward(x)
        seen.append(isinstance(ctx, FunctionCtx))
        return k * x

    function = made(keeps_input, lambda ctx, g: (2 * g, None))
    function(x(3).requires_grad_(), 2.0).sum().backward()
    torch.func.grad(lambda t: function(t, 2.0).sum())(x(3))
    assert seen == [True, False]


def test_forms_of_outputs() -> None:
    def forms(ctx: Any, x: Tensor, form: str) -> Any:
        y = 2 * x
        made = {
            "pair": Pair(y, y * 2),
            "list": (y, [y * 1, x]),
            "same": (y, y),
            "input": (x, y),
            "mixed": (y, None, "k"),
        }
        ctx.count = len(made[form])
        return made[form]

    function = made(forms, lambda ctx, *g: (sum(t for t in g[: ctx.count] if t is not None), None))
    t = x(3).requires_grad_()
    pair = function(t, "pair")
    assert type(pair) is Pair
    assert [part.requires_grad for part in pair] == [True, True]
    out, (inside, given) = function(t, "list")
    assert (out.requires_grad, inside.requires_grad, given.requires_grad) == (True, False, False)
    one, other = function(t, "same")
    assert torch.autograd.grad((one + 3 * other).sum(), t)[0].tolist() == [4, 4, 4]  # both gradients arrive
    same, _ = function(t, "input")
    assert same is not t
    assert torch.autograd.grad(same.sum(), t)[0].tolist() == [1, 1, 1]
    assert function(t, "mixed")[1:] == (None, "k")


def test_an_unused_output_and_one_without_derivative() -> None:
    """Zeros or None arrive as the forward has it, also where the ctx could not be left to PyTorch."""
    given: list[Any] = []

    def outputs(ctx: Any, x: Tensor, zeros: bool, attribute: bool) -> Any:
        still = x.sign()
        ctx.mark_non_differentiable(still)
        ctx.set_materialize_grads(zeros)
        ctx.kept = x * 2 if attribute else None
        return x * 1, x * 2, still

    def backward(ctx: Any, *g: Any) -> Any:
        given.append([None if t is None else t.tolist() for t in g])
        return g[0], None, None

    function = made(outputs, backward)
    for attribute in (False, True):
        for zeros in (True, False):
            function(x(1).requires_grad_(), zeros, attribute)[0].sum().backward()
    assert given == [[[1], [0], [0]], [[1], None, None]] * 2
    assert not function(x(1).requires_grad_(), True, True)[2].requires_grad


def test_what_is_saved_may_be_no_tensor() -> None:
    """PyTorch refuses it; adoption has always taken it."""

    def saves(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, 3.0)
        return 3 * x

    function = made(saves, lambda ctx, g: g * ctx.saved_tensors[1])
    t = x(3).requires_grad_()
    assert torch.autograd.grad(function(t).sum(), t)[0].tolist() == [3, 3, 3]


def _mark(ctx: Any, x: Tensor) -> None:
    ctx.mark_dirty(x)


def test_an_edit_that_only_a_helper_marks_is_refused() -> None:
    def edits(ctx: Any, x: Tensor) -> Tensor:
        _mark(ctx, x)
        return x.mul_(2)

    with pytest.raises(RuleError, match=r"^edits: it marks a tensor as dirty that it does not name"):
        made(edits)(x(3).requires_grad_() * 1)


def test_a_buffer_may_be_edited_and_be_of_inference_mode() -> None:
    def statistics(ctx: Any, x: Tensor, seen: Tensor, index: Tensor) -> Tensor:
        seen.add_(1)
        return x[index]

    with torch.inference_mode():
        index = torch.tensor([2, 0])
    seen = torch.zeros(())
    function = made(statistics, lambda ctx, g: (torch.ones(3, dtype=g.dtype), None, None))
    function(x(3).requires_grad_(), seen, index).sum().backward()
    assert seen == 1


def test_a_second_derivative_is_refused_although_an_input_was_edited_since() -> None:
    """The inputs cannot be read any more; what leads back to them raises all the same, beside another term."""

    @once_differentiable
    def once(ctx: Any, g: Tensor) -> Any:
        return 2 * g * ctx.saved_tensors[0], None

    def square(ctx: Any, x: Tensor, buffer: Tensor) -> Tensor:
        ctx.save_for_backward(x.clone())
        return x * x

    for backward in (once, lambda ctx, g: (2 * g * ctx.saved_tensors[0], None)):
        t, buffer = x(3).requires_grad_(), x(3)
        out = made(square, backward)(t, buffer)
        buffer.add_(1)
        (first,) = torch.autograd.grad(out.sum(), t, create_graph=True)
        with pytest.raises(RuleError, match=r"^square: its gradient was differentiated again"):
            (first * t + t**4).sum().backward()


def test_what_a_backward_leaves_on_ctx_is_seen_by_the_next() -> None:
    """As with PyTorch; the second run is one that may be differentiated."""

    def cubes(ctx: Any, x: Tensor) -> Tensor:
        ctx.runs = 0
        ctx.save_for_backward(x * x)
        return x**3

    def backward(ctx: Any, g: Tensor) -> Any:
        ctx.runs += 1
        ctx.last = g
        return 3 * g * ctx.saved_tensors[0] * ctx.runs

    t = x(3).requires_grad_()
    out = made(cubes, backward)(t).sum()
    (first,) = torch.autograd.grad(out, t, retain_graph=True)
    assert torch.allclose(first, 3 * t**2)
    (second,) = torch.autograd.grad(out, t, create_graph=True)
    assert torch.allclose(second, 6 * t**2)


@pytest.mark.parametrize("kept", ["output", "intermediate", "attribute", "for forward"])
def test_nothing_is_kept_alive(kept: str) -> None:
    def keeps(ctx: Any, x: Tensor) -> Tensor:
        out = x.exp()
        if kept == "attribute":
            ctx.out = out
        elif kept == "for forward":
            ctx.save_for_forward(out)
        else:
            ctx.save_for_backward(out if kept == "output" else out * 2)
        return out

    gc.disable()
    try:
        t = x(3).requires_grad_()
        out = made(keeps)(t)
        refs = weakref.ref(out), weakref.ref(t)
        del t, out
        assert [r() for r in refs] == [None, None]
    finally:
        gc.enable()


def test_hooks_for_saved_tensors_see_everything() -> None:
    """As offloading and checkpointing need it, attributes included."""

    def keeps(ctx: Any, x: Tensor) -> Tensor:
        ctx.sine = x.sin()
        ctx.save_for_backward(x, x.exp())
        return x * 1

    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        made(keeps)(x(3).requires_grad_())
    assert any(torch.equal(t, x(3).sin()) for t in packed)
    assert any(torch.equal(t, x(3).exp()) for t in packed)


def test_a_tensor_of_a_transform_that_has_ended() -> None:
    held: list[Tensor] = []

    def inside(t: Tensor) -> Tensor:
        held.append(t * 2)
        return t.sum()

    torch.func.grad(inside)(x(3))
    function = made(lambda ctx, x, w: x * w, lambda ctx, g: (g, None))
    t = x(3).requires_grad_()
    out = function(t, held[0])
    assert torch.equal(out, 2 * t * t)
    assert torch.autograd.grad(out.sum(), t)[0].tolist() == [1, 1, 1]
