"""Brevitas and torchao, to compare straight-through estimators with."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import _anchors
import torch
from torch import Tensor

REQUIREMENTS = {
    "brevitas": "brevitas==0.13.4",
    "_dependencies": "dependencies==2.0.1",
    "unfoldNd": "unfoldNd==0.2.3",
    "torchao": "torchao==0.18.0",
}


def install() -> None:
    """Install them once, and put them on the path."""
    _anchors.install("ste-anchors", REQUIREMENTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)  # kernels for other devices, which are not there
        import torchao.quantization.qat  # noqa: F401
    logging.disable(logging.NOTSET)


def brevitas_quantizer(
    bits: int, *, signed: bool = True, clamp: Callable[..., Tensor] | None = None
) -> Callable[..., Tensor]:
    """Return Brevitas' quantiser to integers, of a value, its step and a zero point."""
    from brevitas.core.bit_width import BitWidthConst
    from brevitas.core.function_wrapper import Identity, RoundSte, TensorClamp
    from brevitas.core.quant.int_base import IntQuant

    quantizer = IntQuant(
        narrow_range=False,
        signed=signed,
        input_view_impl=Identity(),
        float_to_int_impl=RoundSte(),
        tensor_clamp_impl=clamp or TensorClamp(),
    )
    width, none = BitWidthConst(bits)(), torch.tensor(0.0)
    return lambda x, step, zero=none: quantizer(step, zero, width, x)


def brevitas_round() -> Callable[[Tensor], Tensor]:
    """Return Brevitas' straight-through round."""
    from brevitas.ops.autograd_ste_ops import RoundSteFn

    return RoundSteFn.apply  # type: ignore[no-any-return]


def torchao_fake_quantize(low: int, high: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return torchao's fake quantisation, of a value and its step."""
    from torchao.quantization.quant_primitives import _fake_quantize_affine

    zero = torch.zeros(1, dtype=torch.int32)

    def run(x: Tensor, step: Tensor) -> Any:
        return _fake_quantize_affine(x, tuple(x.shape), step, zero, torch.int8, low, high)

    return run


def torchao_float8() -> Callable[[Tensor], Tensor]:
    """Return torchao's fake quantisation to FP8, as its quantisation-aware training uses it."""
    from torchao.quantization.qat import Float8FakeQuantizeConfig
    from torchao.quantization.qat.fake_quantizer import Float8FakeQuantizer

    quantizer: Callable[[Tensor], Tensor] = Float8FakeQuantizer(Float8FakeQuantizeConfig())
    return quantizer
