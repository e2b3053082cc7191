"""Defects of released packages, made again: each claims the declaration of the right entry, in vain."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.ste.float8 import FLOAT8
from gradwright.ste.masks import working_dtype
from gradwright.ste.minifloat import nearest
from gradwright.ste.parameters import arranged
from tests import test_catalogue as suite

PROOFS: dict[str, Callable[..., None]] = {
    "gradients": suite.test_gradients_are_those_declared,
    "values": suite.test_values_are_those_declared,
    "codes": suite.test_values_are_codes,
}


def refused_by(entry_of: Any, function: Callable[..., Any]) -> set[str]:
    """Return which proofs a function does not pass that claims the declaration of an entry, in some dtype."""
    entry = dataclasses.replace(entry_of.__catalogue_entry__, function=function)
    found = set()
    for name, proof in PROOFS.items():
        for dtype in suite.DTYPES:
            try:
                proof(entry, dtype)
            except AssertionError:
                found.add(name)
    return found


class Straight(torch.autograd.Function):
    """Returns its second argument with the gradient of the first: a rounding that is right in itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, q: Tensor) -> Tensor:
        return q.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, None


class ToFloat8(torch.autograd.Function):
    """Returns a float8 tensor, so that autograd casts its cotangent to float8."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = x.dtype
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.to(ctx.dtype), None


# -------------------------------------------------------------------- floating-point formats


def right_cast(v: Tensor, dtype: torch.dtype) -> Tensor:
    return Straight.apply(v, nearest(v.detach().double(), FLOAT8[dtype]).to(v.dtype))  # type: ignore[no-any-return, no-untyped-call]


def right_clip(v: Tensor, largest: float, outside: Tensor) -> Tensor:
    return torch.where(outside, torch.copysign(torch.full_like(v, largest), v.detach()), v)


def plain_float8(
    cast: Callable[[Tensor, torch.dtype], Tensor] = right_cast,
    clip: Callable[[Tensor, float, Tensor], Tensor] = right_clip,
) -> Callable[..., Tensor]:
    """Return FP8 made of operators, as a package writes it, with a cast and a clip that may be wrong."""

    def float8(
        x: Tensor,
        scale: Any = None,
        *,
        amax: Any = None,
        dtype: torch.dtype = torch.float8_e4m3fn,
        mask: str = "range",
        edges: str | None = None,
        axis: int | None = None,
    ) -> Tensor:
        wide, largest = x.to(working_dtype(x.dtype)), FLOAT8[dtype].largest
        _, (scale, amax) = arranged("float8", x, (scale, amax), axis, None)
        step = torch.as_tensor(amax if amax is not None else 1.0 if scale is None else scale, dtype=wide.dtype)
        bound = (step if amax is not None else step * largest).detach()
        if amax is not None:
            step = step / largest
        v, size = wide / step, wide.detach().abs()
        if mask == "none":
            v = Straight.apply(v, right_clip(v.detach(), largest, size > bound))  # type: ignore[no-untyped-call]
        else:
            v = clip(v, largest, size >= bound if edges == "exclusive" else size > bound)
        return (cast(v, dtype).to(wide.dtype) * step).to(x.dtype)

    return float8


def test_the_right_parts_are_accepted() -> None:
    """So that it is the wrong part that is refused below, not the way in which the others are written."""
    assert not refused_by(gw.ste.float8, plain_float8())


def test_float8_whose_cotangent_is_cast_to_float8() -> None:
    """The quantisation-aware training of torchao 0.18: gradients of 1e-2 are nearly all zero."""

    def cast(v: Tensor, dtype: torch.dtype) -> Tensor:
        return ToFloat8.apply(v, dtype)  # type: ignore[no-any-return, no-untyped-call]

    assert "gradients" in refused_by(gw.ste.float8, plain_float8(cast))
    x = torch.linspace(-2, 2, 100, requires_grad=True)
    (grad,) = torch.autograd.grad(plain_float8(cast)(x), x, torch.full((100,), 5e-4))
    assert bool((grad == 0).all())


def test_float8_that_casts_without_a_straight_through_rule() -> None:
    """PyTorch differentiates a cast as the identity, with the cotangent in float8 in between."""
    assert "gradients" in refused_by(gw.ste.float8, plain_float8(lambda v, dtype: v.to(dtype)))


@pytest.mark.parametrize(
    "clip",
    [
        lambda v, largest, _: torch.nn.functional.hardtanh(v, -largest, largest),  # zero at the bound
        lambda v, largest, _: v.minimum(torch.full_like(v, largest)).maximum(torch.full_like(v, -largest)),  # one half
        lambda v, largest, outside: Straight.apply(v, right_clip(v.detach(), largest, outside)),  # no mask
    ],
    ids=["hardtanh", "minimum and maximum", "no mask"],
)
def test_float8_with_another_mask(clip: Callable[[Tensor, float, Tensor], Tensor]) -> None:
    """The spellings of one clip differ at its bound, where the whole top code is."""

    def inclusive(x: Tensor, *args: Any, edges: str | None = None, **options: Any) -> Tensor:
        return plain_float8(clip=clip if edges is None else right_clip)(x, *args, edges=edges, **options)

    assert refused_by(gw.ste.float8, inclusive) == {"gradients"}


def test_float8_that_does_not_saturate() -> None:
    def cast(v: Tensor, dtype: torch.dtype) -> Tensor:
        out = right_cast(v, dtype)
        return torch.where(v.detach().abs() > FLOAT8[dtype].largest, torch.inf, out)

    assert "values" in refused_by(gw.ste.float8, plain_float8(cast, lambda v, largest, outside: v))


def test_minifloat_without_subnormal_numbers() -> None:
    """A rounding by logarithms that forgets where the spacing stays: zero comes out for the smallest numbers."""

    def flushed(x: Tensor, scale: Any = None, *, exponent_bits: int, mantissa_bits: int, **options: Any) -> Tensor:
        options = {"exponent_bits": exponent_bits, "mantissa_bits": mantissa_bits, **options}
        out = gw.ste.minifloat(x, scale, **options)
        if options.get("group_size"):
            return out
        bias = options.get("bias") or 2 ** (exponent_bits - 1) - 1
        _, (step,) = arranged("f", x, (1.0 if scale is None else scale,), options.get("axis"), None)
        return torch.where(out.detach().abs() < 2.0 ** (1 - bias) * torch.as_tensor(step).detach(), out * 0, out)

    assert "values" in refused_by(gw.ste.minifloat, flushed)


# -------------------------------------------------------------------- blocks


def test_blocks_along_the_wrong_axis() -> None:
    """The backward of torchao's MX products once quantised along another axis than the product sums over."""

    def across(x: Tensor, *, axis: int = -1, **options: Any) -> Tensor:
        return gw.ste.mx(x, axis=axis - 1 if x.dim() > 1 else axis, **options)

    assert refused_by(gw.ste.mx, across) >= {"values", "codes"}


def test_blocks_that_pass_no_gradient_to_the_largest_element() -> None:
    """A scale that is differentiated: the largest element of a block sets it and gets the others' gradients."""

    def learned_scale(x: Tensor, **options: Any) -> Tensor:
        detached = x.detach()
        out = gw.ste.mx(detached, **options)
        largest = x.abs().amax(options.get("axis", -1), keepdim=True)
        return Straight.apply(x * (largest / largest.detach().clamp(min=1e-30)), out)  # type: ignore[no-any-return, no-untyped-call]

    assert "gradients" in refused_by(gw.ste.mx, learned_scale)


def test_blocks_with_a_clip_in_the_gradient() -> None:
    """The declared gradient passes everywhere; a hard clip leaves out what the floor of the scale clips."""

    def hard(x: Tensor, *, mask: str = "none", **options: Any) -> Tensor:
        return gw.ste.mx(x, mask="range", **options)

    assert refused_by(gw.ste.mx, hard) == {"gradients"}


def test_nvfp4_without_a_rule() -> None:
    """Documented as straight-through, without a backward: no gradient at all."""
    assert refused_by(gw.ste.nvfp4, lambda x, **options: gw.ste.nvfp4(x.detach(), **options) + 0 * x) == {"gradients"}


# -------------------------------------------------------------------- signs


def with_slope(slope: Callable[..., Tensor], values: Callable[[Tensor], Tensor] = gw.ste.sign) -> Any:
    """Return a sign whose gradient is a formula, as a Function has it."""

    def function(x: Tensor, **options: Any) -> Tensor:
        factor = slope(x.detach().float() if x.dtype != torch.float64 else x.detach(), **options)
        moved = (x.to(factor.dtype) * factor).to(x.dtype)
        return Straight.apply(moved, values(x.detach()))  # type: ignore[no-any-return, no-untyped-call]

    return function


def test_the_right_slopes_are_accepted() -> None:
    """So that it is the slopes that are refused, not the way in which they are written here."""
    assert not refused_by(gw.ste.sign, with_slope(torch.ones_like))
    assert not refused_by(gw.ste.approx_sign, with_slope(lambda x: torch.where(x.abs() < 1, 2 - 2 * x.abs(), 0)))


def test_a_slope_by_cosh_overflows() -> None:
    """The formula as it is printed: infinity times zero, and infinity over infinity, for large inputs."""

    def printed(x: Tensor, beta: float = 5.0) -> Tensor:
        u = beta * x
        return beta * (2 - u * torch.tanh(u / 2)) / (1 + torch.cosh(u))

    def by_exponentials(x: Tensor, beta: float = 5.0) -> Tensor:
        u = beta * x
        s = torch.exp(u) / (1 + torch.exp(u))  # nan from u = 89 on in float32, as a released sigmoid has it
        return beta * (2 - u * torch.tanh(u / 2)) * 2 * s * (1 - s)

    x = torch.tensor([1e4], requires_grad=True)
    assert bool(torch.autograd.grad(with_slope(by_exponentials)(x), x)[0].isnan())
    assert "gradients" in refused_by(gw.ste.swish_sign, with_slope(by_exponentials))
    assert not refused_by(gw.ste.swish_sign, with_slope(printed))  # right where numbers end: x / inf is 0


def test_a_slope_by_exponentials_of_the_hyperbolic_tangent() -> None:
    def naive(x: Tensor, t: float) -> Tensor:
        up, down = torch.exp(t * x), torch.exp(-t * x)
        return max(1 / t, 1.0) * t * (1 - ((up - down) / (up + down)) ** 2)

    assert "gradients" in refused_by(gw.ste.error_decay_sign, with_slope(naive))


@pytest.mark.parametrize(
    "values", [torch.sign, lambda x: torch.where(x > 0, 1.0, -1.0).to(x.dtype)], ids=["zero", "minus"]
)
def test_another_value_at_zero(values: Callable[[Tensor], Tensor]) -> None:
    assert "values" in refused_by(gw.ste.sign, with_slope(torch.ones_like, values))


def test_the_edge_of_the_clip() -> None:
    def exclusive(x: Tensor, bound: float = 1.0, edges: str | None = None) -> Tensor:
        return (x.abs() < bound).to(x.dtype)

    assert refused_by(gw.ste.clipped_sign, with_slope(exclusive)) == {"gradients"}


def test_signs_of_another_dtype() -> None:
    """Spikes of a released package are float32 whatever comes in."""
    assert "values" in refused_by(gw.ste.sign, lambda x: gw.ste.sign(x.float()))


def test_a_gradient_that_is_multiplied_by_the_scale() -> None:
    """Brevitas' binary quantiser with a constant scale: for 0.1 the gradient is 0.1, where 1 is declared."""
    assert refused_by(gw.ste.sign, with_slope(lambda x: torch.full_like(x, 0.1))) == {"gradients"}


def test_a_scale_that_is_left_out_of_the_gradient() -> None:
    def unscaled(x: Tensor, *, axis: int | None = None) -> Tensor:
        return (x.abs() <= 1).to(x.dtype)

    for entry in (gw.ste.magnitude_sign, gw.ste.xnor_weights):

        def function(x: Tensor, *, axis: int | None = None, entry: Any = entry) -> Tensor:
            return Straight.apply(x * unscaled(x.detach()), entry(x.detach(), axis=axis))  # type: ignore[no-any-return, no-untyped-call]

        assert refused_by(entry, function) == {"gradients"}


def test_a_scale_that_is_differentiated() -> None:
    """Autograd through the mean gives each weight a part of all gradients; XNOR-Net declares a part of its own."""

    def composed(x: Tensor, *, axis: int | None = None) -> Tensor:
        dims = None if axis is None else [d for d in range(x.dim()) if d != axis % x.dim()]
        scale = x.abs().mean(dims, keepdim=True) if dims else x.abs().mean()
        return scale * gw.ste.clipped_sign(x)

    for entry in (gw.ste.xnor_weights, gw.ste.magnitude_sign):
        assert "gradients" in refused_by(entry, composed)


# -------------------------------------------------------------------- ternary weights


@pytest.mark.parametrize(
    ("slope", "refused"),
    [
        (torch.ones_like, set()),
        (lambda out: (out != 0).to(out.dtype), {"gradients"}),
        (lambda out: out.abs().max(), {"gradients"}),
    ],
    ids=["right", "dead zone", "times the scale"],
)
def test_ternary_slopes(slope: Callable[[Tensor], Tensor], refused: set[str]) -> None:
    """Brevitas' ternary quantiser passes nothing in the dead zone, so that zeros stay, and multiplies by the scale."""

    def function(w: Tensor, **options: Any) -> Tensor:
        out = gw.ste.twn(w.detach(), **options)
        return Straight.apply(w * slope(out), out)  # type: ignore[no-any-return, no-untyped-call]

    assert refused_by(gw.ste.twn, function) == refused


@pytest.mark.parametrize(
    ("mistake", "refused"),
    [("none", set()), ("sign", {"gradients"}), ("mean", {"gradients"}), ("weights", {"gradients"})],
)
def test_learned_sizes(mistake: str, refused: set[str]) -> None:
    """Repositories disagree: the printed sign, a mean for the sum, and weights in the place of gradients."""

    def sized(w: Tensor, positive: Any, negative: Any, **options: Any) -> Tensor:
        out = gw.ste.ttq(w, positive, negative, **options)
        if not isinstance(negative, Tensor):
            return out
        values, below = out.detach(), out.detach() < 0
        _, (size,) = arranged("f", w, (negative,), options.get("axis"), None)
        straight = gw.ste.ttq(w, positive, negative.detach(), **options)
        part = {
            "none": -below.to(w.dtype),
            "sign": below.to(w.dtype),
            "mean": -below.to(w.dtype) / max(int(below.sum()), 1),
            "weights": -below.to(w.dtype) * w.detach().abs(),
        }[mistake]
        moved = straight + part * size
        return Straight.apply(moved, values)  # type: ignore[no-any-return, no-untyped-call]

    assert refused_by(gw.ste.ttq, sized) == refused


@pytest.mark.parametrize("spelling", ["w + (q - w).detach()", "q + w - w.detach()"])
def test_seven_values_for_three(spelling: str) -> None:
    """The detach idiom: the gradient is right, the weights are not ternary."""

    def composed(w: Tensor, *, eps: float = 1e-5) -> Tensor:
        q = gw.ste.bitnet_weights(w.detach(), eps=eps)
        return w + (q - w).detach() if spelling.startswith("w") else q + w - w.detach()

    assert refused_by(gw.ste.bitnet_weights, composed) == {"codes"}
    w = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    assert len(composed(w).unique()) > 3


def test_the_gradient_of_a_clamp_at_its_bound() -> None:
    """Round, then clamp to [-1, 1]: the gradient of whatever is rounded beyond 1 is lost."""

    def clamped(w: Tensor, *, eps: float = 1e-5) -> Tensor:
        scale = w.detach().abs().mean().clamp(min=eps)
        v = gw.ste.round(w / scale)
        return (v.clamp(-1, 1) * scale).to(w.dtype)

    assert "gradients" in refused_by(gw.ste.bitnet_weights, clamped)


def test_a_scale_for_all_tokens() -> None:
    def whole(x: Tensor, **options: Any) -> Tensor:
        return gw.ste.bitnet_activations(x.reshape(-1), **options).reshape(x.shape)

    assert refused_by(gw.ste.bitnet_activations, whole) >= {"values", "codes"}
