"""Gradients of released quantisers that were wrong, made again: the suite of the catalogue rejects every one.

Each claims to be the entry that it was meant to be. Next to the defects stands the same code without one, which passes,
so that it is the defect that is rejected and nothing else. Issues are named ``owner/repository#number``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.authoring.catalogue import Entry, Example
from gradwright.ste.parameters import arranged
from tests import test_catalogue as suite

ENTRY = {entry.name.removeprefix("ste."): entry for entry in suite.ENTRIES}

Quantiser: TypeAlias = Callable[..., Tensor]


def complaints(entry: Entry) -> list[str]:
    """Return which of the suite's properties an entry does not have, in the dtypes of most users."""
    found = []
    for prove in (
        suite.test_gradients_are_those_declared,
        suite.test_values_are_those_declared,
        suite.test_values_are_codes,
    ):
        try:
            for dtype in (torch.float64, torch.float32):
                prove(entry, dtype)
        except AssertionError:
            found.append(prove.__name__.removeprefix("test_").removesuffix("_are_those_declared"))
    return found


def is_accused(entry: Entry) -> bool:
    """Tell whether ``gw.check`` finds that a gradient is not that of the surrogate."""
    reports = [
        gw.check(  # type: ignore[call-overload]
            entry.function,
            *example.args,
            kwargs=dict(example.kwargs),
            surrogate=entry.surrogate,
            level="quick",
            only=("matches-surrogate",),
            seed=0,
        )
        for example in entry.examples(torch.float64)
    ]
    return not all(reports)


def claim(name: str, function: Quantiser) -> Entry:
    """Return the declaration of an entry for another function; its examples are those that the function can do."""
    entry = ENTRY[name]

    def examples(dtype: torch.dtype) -> list[Example]:
        usual = [e for e in entry.examples(dtype) if e.kwargs.get("mask", "post-round") in ("post-round", "range")]
        return usual if name != "fake_quantize" else [e for e in usual if e.kwargs.get("mask") != "range"]

    return dataclasses.replace(entry, function=function, examples=examples)


# -------------------------------------------------------------------- LSQ, as a Function with two rules


class Rules:
    """The rules of LSQ for each element: ``v`` is ``x / s``. A class below this one has another rule."""

    def __init__(self, n: int, p: int, factor: float) -> None:
        self.n, self.p, self.factor = n, p, factor

    def inside(self, v: Tensor) -> Tensor:
        return (v > self.n) & (v < self.p)

    def of_x(self, g: Tensor, v: Tensor) -> Tensor:
        return g * self.inside(v)

    def of_scale(self, g: Tensor, v: Tensor) -> Tensor | None:
        return self.factor * g * torch.where(self.inside(v), v.round() - v, v.round().clamp(self.n, self.p))


class Lsq(torch.autograd.Function):
    """LSQ for a step of the shape of ``x``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, rules: Rules) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.rules = rules
        return (x / scale).round().clamp(rules.n, rules.p) * scale

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        return ctx.rules.of_x(g, x / scale), ctx.rules.of_scale(g, x / scale), None


class NoMask(Rules):
    """hustzxd/LSQuantization#1 (60 instead of 70 % on ImageNet, with the next)."""

    def of_x(self, g: Tensor, v: Tensor) -> Tensor:
        return g


class NoGradientScale(Rules):
    """hustzxd/LSQuantization#1."""

    def __init__(self, n: int, p: int, factor: float) -> None:
        super().__init__(n, p, 1.0)


class MaskAfterRounding(Rules):
    """The mask of PyTorch under the name of LSQ: values that are rounded to the top code still move."""

    def inside(self, v: Tensor) -> Tensor:
        return (v.round() >= self.n) & (v.round() <= self.p)


class ClippedStraightThrough(Rules):
    """A clipping whose gradient passes, as Brevitas has it as an option: the slope of the scale grows without bound."""

    def inside(self, v: Tensor) -> Tensor:
        return torch.ones_like(v, dtype=torch.bool)

    def of_scale(self, g: Tensor, v: Tensor) -> Tensor | None:
        return self.factor * g * (v.round().clamp(self.n, self.p) - v)


class WrongCotangent(Rules):
    """pytorch/pytorch#42034: the gradient of ``x``, masked, where that of the output belongs."""

    def of_scale(self, g: Tensor, v: Tensor) -> Tensor | None:
        return super().of_scale(self.of_x(g, v), v)


class NothingForTheScale(Rules):
    """pytorch/ao#2280: None for the parameters, so that nothing was learnt."""

    def of_scale(self, g: Tensor, v: Tensor) -> Tensor | None:
        return None


class BoundsInside(Rules):
    """The other convention for the edges of the mask."""

    def of_x(self, g: Tensor, v: Tensor) -> Tensor:
        return g * ((v >= self.n) & (v <= self.p))


class MeanForTheScale(Rules):
    """csyhhu/Awesome-Deep-Neural-Network-Compression#1: is it the mean or the sum?"""

    def of_scale(self, g: Tensor, v: Tensor) -> Tensor | None:
        summed = super().of_scale(g, v)
        return None if summed is None else summed / g.shape[-1]


def lsq_by(rules: type[Rules]) -> Quantiser:
    def lsq(
        x: Tensor,
        scale: Any,
        *,
        bits: int,
        signed: bool = True,
        narrow: bool = False,
        axis: int | None = None,
        group_size: int | None = None,
        gradient_scale: float | None = None,
    ) -> Tensor:
        n, p = gw.ste.codes(bits, signed=signed, narrow=narrow)
        sharing = x.numel() / (scale.numel() if isinstance(scale, Tensor) else 1)
        factor = 1 / math.sqrt(sharing * p) if gradient_scale is None else gradient_scale
        grouped, (step,) = arranged("lsq", x, (scale,), axis, group_size)
        step = torch.as_tensor(step, dtype=x.dtype).expand(grouped.shape)
        out: Tensor = Lsq.apply(grouped, step, rules(n, p, factor))
        return out.reshape(x.shape)

    return lsq


# -------------------------------------------------------------------- affine quantisers, made of operations


def held(values: Tensor, x: Tensor) -> Tensor:
    """Return values exactly, whose gradient is that of ``x``."""
    return values.detach() + (x - x.detach())


def clip_inclusive(v: Tensor, n: int, p: int) -> Tensor:
    return torch.where((v >= n) & (v <= p), v, v.detach().clamp(n, p))


def clip_exclusive(v: Tensor, n: int, p: int) -> Tensor:
    return torch.where((v > n) & (v < p), v, v.detach().clamp(n, p))


def clip_held(v: Tensor, n: int, p: int) -> Tensor:
    return held(v.clamp(n, p), v)


def fake_quantize(
    x: Tensor,
    scale: Any,
    zero_point: Any = None,
    *,
    low: int,
    high: int,
    axis: int | None = None,
    group_size: int | None = None,
    gradient_scale: float = 1.0,
    mask: str = "post-round",
    clip: Callable[[Tensor, int, int], Tensor] = clip_inclusive,
    of_zero: Callable[[Tensor], Tensor] = Tensor.clone,
) -> Tensor:
    """Round, clip and multiply, as most write it."""
    grouped, given = arranged("fake_quantize", x, (scale, 0.0 if zero_point is None else zero_point), axis, group_size)
    step, zero = (torch.as_tensor(value, dtype=x.dtype) for value in given)
    step, zero = (held(value, value * gradient_scale) for value in (step, of_zero(zero)))
    v = grouped / step
    return ((clip(held(v.round(), v) + zero, low, high) - zero) * step).reshape(x.shape)


def learned_range(
    x: Tensor,
    minimum: Tensor,
    maximum: Tensor,
    *,
    bits: int,
    signed: bool = False,
    axis: int | None = None,
    of_step: Callable[[Tensor], Tensor] = Tensor.clone,
    of_zero: Callable[[Tensor], Tensor] = Tensor.clone,
    of_minimum: float = 1.0,
) -> Tensor:
    n, p = gw.ste.codes(bits, signed=signed)
    minimum = held(minimum, minimum * of_minimum)
    step = of_step((maximum - minimum) / (p - n))
    zero = n - minimum / step
    return fake_quantize(x, step, of_zero(held(zero.round(), zero)), low=n, high=p, axis=axis)


# -------------------------------------------------------------------- others: their values, and another gradient


def values_of(name: str, surrogate: Quantiser) -> Quantiser:
    """Return the values of an entry with the gradient of a surrogate."""

    def function(*args: Any, **kwargs: Any) -> Tensor:
        with torch.no_grad():
            values = ENTRY[name].function(*args, **kwargs)
        return held(values, surrogate(*args, **kwargs))

    return function


def identity(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.clone()


def pact_with_rounding_errors(x: Tensor, bound: Any, *, bits: int, axis: Any = None, group_size: Any = None) -> Tensor:
    grouped, (a,) = arranged("pact", x, (bound,), axis, group_size)
    a = torch.as_tensor(a, dtype=x.dtype)
    v = torch.where(grouped >= a, a, torch.where(grouped >= 0, grouped, 0.0)) * (2**bits - 1) / a
    return (held(v.round(), v) * a / (2**bits - 1)).reshape(x.shape)


def pact_of(above: Callable[[Tensor, Tensor], Tensor], slope_below: float = 0.0) -> Quantiser:
    def pact(x: Tensor, bound: Any, *, bits: int, axis: Any = None, group_size: Any = None) -> Tensor:
        grouped, (a,) = arranged("pact", x, (bound,), axis, group_size)
        a = torch.as_tensor(a, dtype=x.dtype)
        lower = torch.where(grouped >= 0, grouped, slope_below * grouped)
        return torch.where(above(grouped, a), a, lower).reshape(x.shape)

    return pact


def lsq_plus_of(within: float, beyond: float) -> Quantiser:
    """Return LSQ+ whose offset has these slopes inside and outside the range; 0 and 1 are right."""

    def lsq_plus(
        x: Tensor, scale: Any, offset: Any, *, axis: Any = None, group_size: Any = None, **options: Any
    ) -> Tensor:
        n, p = gw.ste.codes(options["bits"], signed=options.get("signed", True))
        grouped, given = arranged("lsq_plus", x, (scale, offset), axis, group_size)
        step, shift = (torch.as_tensor(value, dtype=x.dtype) for value in given)
        v = ((grouped - shift) / step).detach()
        slope = torch.where((v > n) & (v < p), within, beyond).to(x.dtype)
        factor = options.get("gradient_scale") or 1 / math.sqrt(x.numel() / step.numel() * p)
        constant = offset.detach() if isinstance(offset, Tensor) else offset
        rest = ENTRY["lsq_plus"].surrogate(x, scale, constant, axis=axis, group_size=group_size, **options)
        return rest + (factor * slope * (shift - shift.detach())).reshape(x.shape)

    return lsq_plus


def tqt_of(slope: float, through_ceil: bool = True) -> Quantiser:
    """Return TQT with a wrong factor for the gradient of the threshold; 1 is right."""

    def tqt(x: Tensor, log2_threshold: Tensor, **options: Any) -> Tensor:
        exponent = log2_threshold if through_ceil else log2_threshold.ceil()
        weighed = held(log2_threshold, (exponent if through_ceil else exponent.detach()) * slope)
        return ENTRY["tqt"].surrogate(x, weighed, **options)

    return tqt


def dorefa_weights_with_maximum(x: Tensor, *, bits: int) -> Tensor:
    return torch.tanh(x) / torch.tanh(x).abs().max()


def quest_as_clipping(
    x: Tensor, scale: Any, *, bits: int, axis: Any = None, group_size: Any = None, **_: Any
) -> Tensor:
    grouped, (step,) = arranged("quest", x, (scale,), axis, group_size)
    return torch.where(grouped.abs() <= step * (2**bits - 1) / 2, grouped, 0.0 * grouped).reshape(x.shape)


def apot_as_pact(
    x: Tensor, bound: Any, *, signed: bool = True, axis: Any = None, group_size: Any = None, **_: Any
) -> Tensor:
    grouped, (a,) = arranged("apot", x, (bound,), axis, group_size)
    a = torch.as_tensor(a, dtype=x.dtype)
    clipped = torch.where(grouped > a, a, torch.where(grouped >= (-a if signed else 0.0), grouped, -a * float(signed)))
    return clipped.reshape(x.shape)


class OneRange(torch.autograd.Function):
    """DoReFa's gradients with one range for the whole batch, in which small samples vanish."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int) -> Tensor:
        ctx.high = 2**bits - 1
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        m, high = g.abs().max(), ctx.high
        return 2 * m * (((g / (2 * m) + 0.5) * high).round() / high - 0.5), None


RIGHT: Mapping[str, tuple[str, Quantiser]] = {
    "a Function": ("lsq", lsq_by(Rules)),
    "affine": ("fake_quantize", fake_quantize),
    "range": ("learned_range", learned_range),
    "bound": ("pact", values_of("pact", pact_of(torch.ge))),
    "offset": ("lsq_plus", values_of("lsq_plus", lsq_plus_of(0.0, 1.0))),
    "threshold": ("tqt", values_of("tqt", tqt_of(1.0))),
}
DEFECTS: Mapping[str, tuple[str, Quantiser]] = {
    **{rules.__name__: ("lsq", lsq_by(rules)) for rules in Rules.__subclasses__()},
    "pytorch/ao#4806, clamp without a gradient at its bounds, where the outer codes are": (
        "fake_quantize",
        functools.partial(fake_quantize, clip=clip_exclusive),
    ),
    "microsoft/nni#3159, identity where a mask is meant": (
        "fake_quantize",
        functools.partial(fake_quantize, clip=clip_held),
    ),
    "zero point without a gradient": ("fake_quantize", functools.partial(fake_quantize, of_zero=Tensor.detach)),
    "pytorch/ao#2280, None for scale and zero point": (
        "learned_range",
        functools.partial(learned_range, of_step=Tensor.detach, of_zero=Tensor.detach),
    ),
    "range whose zero point has no gradient": (
        "learned_range",
        functools.partial(learned_range, of_zero=Tensor.detach),
    ),
    "openvinotoolkit/nncf#50, lower bound a little wrong": (
        "learned_range",
        functools.partial(learned_range, of_minimum=1.01),
    ),
    "Oneflow-Inc/oneflow#8649, gradient 1 outside the range": ("absmax", values_of("absmax", identity)),
    "DoReFa activations without a mask": ("dorefa_activations", values_of("dorefa_activations", identity)),
    "DoReFa weights whose maximum has a gradient": (
        "dorefa_weights",
        values_of("dorefa_weights", dorefa_weights_with_maximum),
    ),
    "DoReFa weights without tanh in the gradient": ("dorefa_weights", values_of("dorefa_weights", identity)),
    "DoReFa gradients with one range for a batch": (
        "dorefa_gradients",
        lambda x, *, bits, noise: OneRange.apply(x, bits),
    ),
    "DoReFa gradients that are not quantised": ("dorefa_gradients", values_of("dorefa_gradients", identity)),
    "PACT whose bound is moved by rounding errors": ("pact", pact_with_rounding_errors),
    "PACT with the bound itself inside": ("pact", values_of("pact", pact_of(torch.gt))),
    "PACT with a gradient below zero": ("pact", values_of("pact", pact_of(torch.ge, slope_below=1.0))),
    "offset without a gradient": ("lsq_plus", values_of("lsq_plus", lsq_plus_of(0.0, 0.0))),
    "offset that is moved by all": ("lsq_plus", values_of("lsq_plus", lsq_plus_of(1.0, 1.0))),
    "threshold without ln 2": ("tqt", values_of("tqt", tqt_of(1 / math.log(2)))),
    "threshold whose rounding stops the gradient": ("tqt", values_of("tqt", tqt_of(1.0, through_ceil=False))),
    "QuEST with the mask of a clipping": ("quest", values_of("quest", quest_as_clipping)),
    "HWGQ with the gradient of ReLU": (
        "hwgq",
        values_of("hwgq", lambda x, *, bits: torch.where(x > 0, x, 0.0 * x)),
    ),
    "APoT with the bound of PACT": ("apot", values_of("apot", apot_as_pact)),
    "SEQ without a gradient scale": (
        "seq",
        values_of(
            "seq", lambda x, bound, **options: ENTRY["seq"].surrogate(x, bound, **{**options, "gradient_scale": 1.0})
        ),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_same_code_without_a_defect_is_accepted(name: str) -> None:
    entry = claim(*RIGHT[name])
    assert not complaints(entry)
    assert not is_accused(entry)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_wrong_gradient_is_rejected(name: str) -> None:
    entry = claim(*DEFECTS[name])
    assert "gradients" in complaints(entry)
    if entry.linear:  # gw.check knows no declaration of the others
        assert is_accused(entry)


@pytest.mark.parametrize("name", ["lsq", "fake_quantize", "seq"])
def test_a_detour_by_the_difference_returns_other_numbers(name: str) -> None:
    """``x + (q - x).detach()`` has the right gradient and not the codes: kyegomez/BitNet#35."""

    def detour(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = ENTRY[name].function(x, *args, **kwargs)
        return x.detach() + (out.detach() - x.detach()) + (out - out.detach())

    found = complaints(claim(name, detour))
    assert "gradients" not in found
    assert "values_are_codes" in found
