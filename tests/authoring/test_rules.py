"""Mistakes in a definition fail when the module is imported, and say what to write instead."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import gradwright as gw
from gradwright.authoring.rules import kind_of
from gradwright.errors import DefinitionError, GradwrightError, OptionError


class Colour(enum.Enum):
    RED = 1


@dataclass
class Pair:
    a: Tensor


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (Tensor, "tensor"),
        (torch.nn.Parameter, "tensor"),
        ("torch.Tensor", "tensor"),
        (Annotated[Tensor, "n m"], "tensor"),
        (Tensor | None, "optional"),
        ("Optional[Tensor]", "optional"),
        ("Tensor | None", "optional"),
        (int, "static"),
        (np.ndarray, "static"),
        (NDArray[np.float32], "static"),
        (np.ndarray | Tensor, "unknown"),
        ("float", "static"),
        (int | float | None, "static"),
        (Literal["mean", "sum"], "static"),
        (Colour, "static"),
        (torch.dtype, "static"),
        (tuple[int, ...], "static"),
        (list[str], "static"),
        (dict[str, Tensor], "tree"),
        (list, "tree"),
        (tuple[Tensor, int], "tree"),
        (Pair, "tree"),
        (Tensor | float, "unknown"),
        (Any, "unknown"),
        (None, "unknown"),
        ("SomethingElse", "unknown"),
        (Callable[[Tensor], Tensor], "unknown"),
    ],
)
def test_what_an_annotation_says(annotation: Any, kind: str) -> None:
    assert kind_of(annotation) == kind


def f(x: Tensor, k: float = 2.0) -> Tensor:
    return x**k


def message(define: Callable[[], Any], error: type[GradwrightError] = DefinitionError) -> str:
    with pytest.raises(error) as caught:
        define()
    return str(caught.value)


def attach(kind: str, rule: Any) -> Callable[[], Any]:
    return lambda: getattr(gw.custom_gradient(f), kind)(rule)


def bad_vjp(g, xx): ...
def no_cotangent(x, out): ...
def nothing(): ...
def starred(g, *args): ...
def double_starred(g, **kwargs): ...
def asks_needs(t, needs): ...
def no_dims(info): ...
def old_style(ctx, grad): ...
def jax_style(res, g): ...
def counts_none(g, k):
    return g * k, None


def too_few(g):
    return ()


@pytest.mark.parametrize(
    ("kind", "rule", "text"),
    [
        ("vjp", bad_vjp, "f: the rule 'bad_vjp' asks for 'xx'; after the cotangent it can ask for x, k, out, needs, "),
        ("vjp", bad_vjp, "Did you mean 'x'?"),
        (
            "vjp",
            no_cotangent,
            "its first argument is the cotangent, under a name that is no argument of f; write `def ",
        ),
        ("vjp", no_cotangent, "`def no_cotangent(g, x, out)`"),
        ("vjp", nothing, "`def nothing(g)`"),
        ("vjp", starred, "the rule 'starred' takes *args; a rule names what it asks for, so that only that is saved"),
        ("vjp", double_starred, "takes **kwargs"),
        ("jvp", asks_needs, "the rule 'asks_needs' asks for 'needs'; after the tangent it can ask for x, k, out, "),
        ("vmap", no_dims, "its first arguments are the batch size and more and the batch dimensions"),
        ("fwd", bad_vjp, "the rule 'bad_vjp' asks for 'g'; it can ask for x, k; correct the name."),
        (
            "vjp",
            old_style,
            "asks for 'grad'; after the cotangent it can ask for x, k, out, needs, residuals; correct the name. There "
            "is no ctx: the cotangent comes first, and what is needed is asked for by name.",
        ),
        ("jvp", old_style, "There is no ctx: the tangent comes first, and what is needed is asked for by name."),
        ("vjp", jax_style, "The cotangent comes first, and what .fwd kept is asked for as residuals."),
        (
            "vjp",
            counts_none,
            "f: the rule 'counts_none' returns 2 gradients for 1 argument (x); expected one for each that can have a "
            "gradient by its annotation, None for zero; or return a dict by argument name.",
        ),
        ("vjp", too_few, "f: the rule 'too_few' returns 0 gradients for 1 argument (x)"),
        ("vjp", 3, "f.vjp: got 3; expected a function; write `@f.vjp` above its definition."),
        (
            "vjp",
            f,
            "f: its vjp rule is called 'f' too, and would replace it; expected another name; call the rule f_vjp.",
        ),
    ],
)
def test_a_rule_that_cannot_work_is_refused(kind: str, rule: Any, text: str) -> None:
    assert text in message(attach(kind, rule))


def open_ended(x: Tensor, y: Tensor | None, z, k: float = 1.0, w: Tensor = 1.0): ...  # type: ignore[assignment, no-untyped-def]


@pytest.mark.parametrize(
    "rule",
    [
        lambda g: (g, g, g, g),
        lambda g: (g, g),
        lambda g: (g,),
        lambda g, k: (g, g, g, g, None) if k else None,
        lambda g, k: [g] if k else (g, g, g, g, None),
        lambda g, x: tuple(g for _ in range(9)),
        lambda g: (*g, g, g, g, g),
    ],
)
def test_a_number_of_gradients_that_may_fit_is_not_refused(rule: Any) -> None:
    gw.custom_gradient(open_ended).vjp(rule)


def out_taken(out: Tensor) -> Tensor: ...  # type: ignore[empty-body]
def generated(gw_x: Tensor) -> Tensor: ...  # type: ignore[empty-body]
def many(*xs: Tensor) -> Tensor: ...  # type: ignore[empty-body]
def keywords(**named: Tensor) -> Tensor: ...  # type: ignore[empty-body]
def no_tensor(self, k: float = 1.0) -> Tensor: ...  # type: ignore[empty-body, no-untyped-def]
def array_as_static(x: Tensor, k: float = torch.ones(())) -> Tensor: ...  # type: ignore[assignment, empty-body]


def container_as_static(x: Tensor, k: tuple[float, ...] = (torch.ones(()),)) -> Tensor: ...  # type: ignore[assignment, empty-body]
def integer_as_static(x: Tensor, k: int = torch.tensor(2)) -> Tensor: ...  # type: ignore[assignment, empty-body]
def arrays_only(x: np.ndarray, y: NDArray[np.float64]) -> Tensor: ...  # type: ignore[empty-body, type-arg]


def closure(x: Tensor):  # type: ignore[no-untyped-def]
    def gradient(g: Tensor) -> Tensor:
        return g

    return x, gradient


def promised(x: Tensor) -> tuple[Tensor, Callable[..., Tensor]]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (out_taken, "out_taken: an argument is called 'out', which is what rules use for the output; expected another"),
        (generated, "generated: an argument is called 'gw_x'; names that start with gw_ are those of generated code"),
        (many, "many: the argument *xs has no fixed names; rules ask for arguments by name; name each argument, or "),
        (keywords, "keywords: the argument **named has no fixed names"),
        (
            array_as_static,
            "array_as_static: the default of 'k' is a tensor, but its annotation says that it never has a",
        ),
        (no_tensor, "no_tensor: none of its arguments (self, k) can have a gradient by their annotations; expected a"),
        (torch.exp, "exp: Python does not know the signature of this function; expected named arguments; write a"),
        (integer_as_static, "integer_as_static: the default of 'k' is a tensor"),
        (
            container_as_static,
            "container_as_static: the default of 'k' holds tensors, but its annotation says that it never has a",
        ),
        (arrays_only, "arrays_only: none of its arguments (x, y) can have a gradient by their annotations; expected a"),
        (closure, "closure: it returns a tuple with a function in it, as custom gradients of TensorFlow do; expected"),
        (promised, "promised: it returns a tuple with a function in it, as custom gradients of TensorFlow do; "),
        (staticmethod(f), "custom_gradient: got a staticmethod; expected a function; write @staticmethod above"),
        (torch.autograd.Function, "for a torch.autograd.Function class attach rules to a function"),
        (3, "custom_gradient: got 3; expected a function"),
        (gw.custom_gradient(f), "f: it is decorated already"),
    ],
)
def test_a_function_that_cannot_work_is_refused(function: Any, text: str) -> None:
    assert text in message(lambda: gw.custom_gradient(function))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"double_backward": "twice"},
            OptionError,
            "f: double_backward: got 'twice'; expected one of auto, once, never",
        ),
        ({"vmap": "loop"}, OptionError, "f: vmap: got 'loop'; expected one of derive, none"),
        ({"forward_mode": True}, OptionError, "f: forward_mode: got True"),
        ({"autocast": "float16"}, OptionError, "f: autocast: got 'float16'; expected one of replay, float32, off"),
        ({"symbolic_zeros": 1}, OptionError, "f: symbolic_zeros: got 1; expected one of True, False"),
        ({"nondiff": "x"}, DefinitionError, "f: nondiff is a string; expected a tuple of names; write nondiff=('x',)."),
        ({"nondiff": ("y",)}, DefinitionError, "f: nondiff names 'y'; expected one of x, k; correct the name."),
        (
            {"nondiff": ("k",)},
            DefinitionError,
            "f: nondiff names 'k', whose annotation already says that it is no tensor",
        ),
        ({"saves": 1}, DefinitionError, "f: custom_gradient has no option 'saves'; expected double_backward, vmap,"),
    ],
)
def test_an_option_that_is_not_known_is_refused(options: Any, error: type[GradwrightError], text: str) -> None:
    assert text in message(lambda: gw.custom_gradient(**options)(f), error)


def test_a_function_and_options_at_once_are_refused() -> None:
    text = message(lambda: gw.custom_gradient(f, vmap="none"))  # type: ignore[call-overload]
    assert "expected `@gw.custom_gradient(...)` above the function; or write gw.define(" in text


def test_residuals_and_batching_exclude_each_other() -> None:
    function = gw.custom_gradient(f)
    function.fwd(lambda x, k: (x**k, x))
    text = message(lambda: function.vmap(lambda info, in_dims, x: (x, 0)))
    assert text.startswith("f: it has both .fwd and .vmap, and a batched call would have no residuals")


def test_a_definition_error_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=re.escape("f: it is decorated already")):
        gw.custom_gradient(gw.custom_gradient(f))
