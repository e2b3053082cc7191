"""The Functions that the tests share, and custom ops: right ones in every dtype and shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import tests.subjects as shared
from tests.controls.entries import Control, control, t, x, z


@torch.library.custom_op("gradwright_controls::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


@torch.library.custom_op("gradwright_controls::product", mutates_args=())
def product(x: Tensor, w: Tensor, k: float = 2.0) -> Tensor:
    return k * x * w


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*(i for i in inputs if isinstance(i, Tensor)))
    ctx.k = inputs[-1]


def _cube_backward(ctx: Any, g: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return g * 3 * x**2


def _product_backward(ctx: Any, g: Tensor) -> Any:
    x, w = ctx.saved_tensors
    return ctx.k * g * w, ctx.k * g * x, None


cube.register_autograd(_cube_backward, setup_context=_save)
cube.register_fake(torch.empty_like)
product.register_autograd(_product_backward, setup_context=_save)
product.register_fake(lambda x, w, k=2.0: x * w)

CONTROLS: list[Control] = [
    control("in place, declared, shared subject", shared.InPlaceDouble, x(4)),
    control("old style", shared.Exp, x(3, 4)),
    control("old style, float32", shared.Exp, torch.linspace(-1, 1, 6)),
    control("old style, bfloat16", shared.Exp, torch.linspace(-1, 1, 6).bfloat16()),
    control("old style, empty", shared.Exp, x(0, 3)),
    control("old style, 0-dim", shared.Exp, t(0.3)[0]),
    control("old style, transposed", shared.Exp, x(3, 4).t()),
    control("old style, large", shared.Exp, x(4000)),
    control("two outputs", shared.SinCos, x(4)),
    control("NumPy, differentiable once", shared.NumpySquare, x(4)),
    control("integer second input", shared.Gather, x(5), torch.tensor([0, 2, 2])),
    control("linear with bias", shared.Linear, x(2, 3), x(4, 3, seed=1), x(4, seed=2)),
    control("linear without bias", shared.Linear, x(2, 3), x(4, 3, seed=1)),
    control("linear with None for the bias", shared.Linear, x(2, 3), x(4, 3, seed=1), None),
    control("class methods", shared.ClassMethods, x(3, 4)),
    control("complex square", shared.ComplexSquare, z(3)),
    control("scale by a number", shared.Scale, x(3), 3),
    control("two-part style with a default", shared.NewStyleScale, x(3)),
    control("apply of a Function", shared.Exp.apply, x(3)),
    control("Function inside a callable", lambda a: shared.Exp.apply(a).sum() * a, x(3)),
    control("Function applied twice", lambda a: shared.Exp.apply(-shared.Exp.apply(a)), x(3)),
    control("custom op", cube, x(4)),
    control("custom op with a default", product, x(3), x(3, seed=1)),
]
