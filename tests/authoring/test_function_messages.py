"""What ``gw.Function`` says when it is misused: once, in eager mode, with the names of forward, in either style."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import DefinitionError, RuleError
from tests.authoring.old_functions import x

Backward = Callable[..., Any]


def combined(backward: Backward, keep: Any = None) -> Any:
    class MyFn(gw.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, k: Any) -> Tensor:
            if keep is not None:
                keep(ctx, x)
            return x * w * (k[0] if isinstance(k, (list, dict)) else k)

    MyFn.backward = staticmethod(backward)  # type: ignore[assignment]
    return MyFn


def two_parts(backward: Backward, keep: Any = None) -> Any:
    class MyFn(gw.Function):
        @staticmethod
        def forward(x: Tensor, w: Tensor, k: Any) -> Tensor:
            return x * w * (k[0] if isinstance(k, (list, dict)) else k)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            if keep is not None:
                keep(ctx, inputs[0])

    MyFn.backward = staticmethod(backward)  # type: ignore[assignment]
    return MyFn


def thrice(run: Callable[[], Any]) -> None:
    for _ in range(3):
        run()


STYLES = pytest.mark.parametrize("style", [combined, two_parts])

WRONG: dict[str, tuple[Backward, str]] = {
    "one": (
        lambda ctx, g: g,
        r"^MyFn\.backward returned 1 gradient for 3 inputs \(x, w, k\); expected one for each; return None for w, k if",
    ),
    "two": (lambda ctx, g: (g, g), r"^MyFn\.backward returned 2 gradients for 3 inputs .* return None for k if"),
    "four": (
        lambda ctx, g: (g, g, None, g),
        r"^MyFn\.backward returned 4 gradients for 3 inputs .*; leave out the rest",
    ),
    "list": (
        lambda ctx, g: [g, g, None],
        r"^MyFn\.backward returned 1 gradient for 3 inputs \(x, w, k\)",
    ),
    "place": (lambda ctx, g: (g, None, g), r"^MyFn\.backward returned a gradient for 'k', which is no tensor"),
    "number": (lambda ctx, g: (g, 1.0, None), r"^MyFn: backward returned for 'w' a float; expected a tensor, or None"),
    "tuple": (lambda ctx, g: (g, (g, g), None), r"^MyFn: backward returned for 'w' a tuple of 2; expected a tensor"),
    "shape": (
        lambda ctx, g: (g, g[:2], None),
        r"^MyFn: backward returned for 'w' a gradient of shape \(2,\); expected \(3,\), the shape of the argument",
    ),
    "narrow": (
        lambda ctx, g: (g.sum(), g, None),
        r"^MyFn: backward returned for 'x' a gradient of shape \(\); expected",
    ),
    "device": (
        lambda ctx, g: (g, g.to("meta"), None),
        r"^MyFn: backward returned for 'w' a gradient on meta; expected one on cpu, where the argument is",
    ),
}


@STYLES
@pytest.mark.parametrize("kept", ["nothing", "an intermediate"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_gradients(style: Any, wrong: str, kept: str) -> None:
    backward, text = WRONG[wrong]
    function = style(backward, None if kept == "nothing" else lambda ctx, x: ctx.save_for_backward(x.exp()))
    for create_graph in (False, True):
        out = function.apply(x(3).requires_grad_(), x(3).requires_grad_(), 2.0).sum()
        with pytest.raises(RuleError, match=text):
            out.backward(create_graph=create_graph)
    with pytest.raises(RuleError, match=text):
        torch.func.grad(lambda t, w: function.apply(t, w, 2.0).sum(), argnums=(0, 1))(x(3), x(3))


@STYLES
def test_right_gradients_in_other_forms(style: Any) -> None:
    """What PyTorch takes as well: more Nones, a gradient in the shape of a broadcast, None for zero."""
    function = style(lambda ctx, g: (g.expand(2, 3), None, None, None, None))
    t = x(3).requires_grad_()
    function.apply(t, x(3).requires_grad_(), 2.0).sum().backward()
    assert t.grad.tolist() == [2, 2, 2]


@STYLES
def test_dtype_is_told_once(style: Any) -> None:
    function = style(lambda ctx, g: (g, g.float(), None))
    t, w = x(3).requires_grad_(), x(3).requires_grad_()
    text = r"^MyFn: backward returned for 'w' a gradient of dtype torch.float32; expected torch.float64"
    with pytest.warns(UserWarning, match=text) as caught:
        thrice(lambda: function.apply(t, w, 2.0).sum().backward())
    assert len(caught) == 1
    assert w.grad.dtype == torch.float64
    # Nobody asked for this one.
    style(lambda ctx, g: (g, g.float(), None)).apply(t, w.detach(), 2.0).sum().backward()


@STYLES
def test_an_instance_or_a_call_of_the_class(style: Any) -> None:
    function = style(lambda ctx, g: (g, g, None))
    text = r"^MyFn: a Function has no instances, but MyFn\(\.\.\.\) was called; .* write MyFn\.apply\(\.\.\.\)"
    for arguments in ((), (x(3), x(3), 2.0)):
        with pytest.raises(DefinitionError, match=text):
            function(*arguments)
    with pytest.raises(DefinitionError, match=text):
        function(x=x(3))


@STYLES
@pytest.mark.parametrize("make", [lambda t: [t], lambda t: {0: t}, lambda t: [{"deep": t}["deep"]]])
def test_a_container_is_told_once(style: Any, make: Any) -> None:
    function = style(lambda ctx, g: (g, g, None))
    text = (
        r"^MyFn: 'k' is a container with tensors that require a gradient; .* pass the tensors as arguments of their own"
    )
    with pytest.warns(UserWarning, match=text) as caught:
        thrice(lambda: function.apply(x(3).requires_grad_(), x(3), make(x(3).requires_grad_())))
    assert len(caught) == 1
    # Constants in a container are nobody's business.
    style(lambda ctx, g: (g, g, None)).apply(x(3).requires_grad_(), x(3), make(x(3)))


@STYLES
@pytest.mark.parametrize("value", [lambda x: x, lambda x: x.exp(), lambda x: {"cache": [x, 1]}])
def test_a_tensor_on_ctx_is_told_once(style: Any, value: Any) -> None:
    function = style(lambda ctx, g: (g, g, None), lambda ctx, x: setattr(ctx, "cache", value(x)))
    text = r"^MyFn: its forward keeps a tensor as an attribute of ctx.*; save it there, and read ctx\.saved_tensors"
    with pytest.warns(UserWarning, match=text) as caught:
        thrice(lambda: function.apply(x(3).requires_grad_(), x(3), 2.0))
    assert len(caught) == 1


@STYLES
def test_numbers_on_ctx_are_fine(style: Any) -> None:
    function = style(lambda ctx, g: (g, g, None), lambda ctx, x: setattr(ctx, "k", (x.shape, [1.0], {"a": None}, len)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function.apply(x(3).requires_grad_(), x(3), 2.0).sum().backward()


@STYLES
def test_a_wrong_argument_is_refused_with_the_name_of_the_function(style: Any) -> None:
    function = style(lambda ctx, g: (g, g, None))
    with pytest.raises(TypeError, match=r"^MyFn\(\) got an unexpected keyword argument 'kk'$"):
        function.apply(x(3), x(3), 2.0, kk=2.0)
