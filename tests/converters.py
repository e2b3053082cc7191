"""Estimators of other libraries beside the settings of ``gw.ste`` that give the same, and how close the two are.

A row holds two functions of an input and parameters. Both run forward and backward on the same numbers, in float32:
on each point where a rule decides something (ties, codes, bounds, their neighbours, zero, far outside) alone, so that
nothing is summed, with a step and a cotangent that are powers of two; and on random numbers with steps of any size,
whole. What a row claims must hold on both. The rows here need PyTorch alone; ``benchmarks/ste_converters.py`` adds
those of Brevitas and torchao.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw

Claim = Literal["same", "last bits", "differs"]
CLAIMS: tuple[Claim, ...] = ("same", "last bits", "differs")
"""From the best to the worst. The same is bit for bit; the sign of a zero counts in values, not in gradients."""
LOW, HIGH, BITS = -8, 7, 4
STEP = 0.25
GROUP = 8


@dataclasses.dataclass(frozen=True)
class Row:
    """An estimator of another library, and settings of ``gw.ste``."""

    name: str
    settings: str
    theirs: Callable[..., Tensor]
    ours: Callable[..., Tensor]
    claims: Mapping[str, Claim]
    """For ``value``, for ``x`` (its gradient) and for those of the arguments that have one."""
    arguments: tuple[str, ...] = ("scale",)
    """What both functions take after ``x``."""
    layout: Literal["tensor", "channel", "group", "whole"] = "tensor"
    """What shares an argument; ``whole`` is for those that find their own from all of ``x``."""
    at_edges: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """What arguments are where points are looked at, if not the usual."""
    points: tuple[float, ...] = ()
    """Further points."""
    why: str = ""
    """What differs, where something does."""

    def learned(self, name: str) -> bool:
        """Tell whether an argument has a gradient."""
        return name in self.claims


def measured(row: Row) -> dict[str, Claim]:
    """Return how close the two functions of a row are, in each part."""
    found = dict.fromkeys(row.claims, 0)
    for leaves, g in (*edge_cases(row), *random_cases(row)):
        theirs, ours = outcome(row.theirs, row, leaves, g), outcome(row.ours, row, leaves, g)
        for name in row.claims:
            terms = leaves["x"].numel() // leaves[name].numel() if name in row.arguments else 1
            found[name] = max(found[name], distance(theirs[name], ours[name], name == "value", terms))
    return {name: CLAIMS[level] for name, level in found.items()}


def outcome(function: Callable[..., Tensor], row: Row, leaves: Mapping[str, Tensor], g: Tensor) -> dict[str, Tensor]:
    """Return a value and the gradients that the row speaks of."""
    inputs = {name: leaf.clone().requires_grad_(row.learned(name)) for name, leaf in leaves.items()}
    out = function(*inputs.values())
    wanted = {name: leaf for name, leaf in inputs.items() if leaf.requires_grad}
    return {"value": out.detach(), **dict(zip(wanted, torch.autograd.grad(out, list(wanted.values()), g)))}


def distance(a: Tensor, b: Tensor, signed_zeros: bool, terms: int) -> int:
    """Return the place among ``CLAIMS`` of two results, each a sum of so many terms."""
    a, b = a.reshape(-1), b.reshape(-1)
    if torch.equal(a.view(torch.int32), b.view(torch.int32)) if signed_zeros else torch.equal(a, b):
        return 0
    # A term is a code, or a number of steps within the range, times a cotangent: hardly ever larger than 16.
    sizes = torch.maximum(a.abs(), b.abs()).clamp(min=16.0) * terms
    return 1 if bool(((a - b).abs() <= 4 * torch.finfo(torch.float32).eps * sizes).all()) else 2


def edge_points() -> Tensor:
    """Return ties, codes and bounds of the step, each with its neighbours, and points far outside."""
    places = torch.arange(2 * LOW - 12, 2 * HIGH + 13) * (STEP / 2)
    infinity = torch.full_like(places, torch.inf)
    others = torch.tensor([1e-30, -1e-30, 1e4, -1e4])
    return torch.cat([places, torch.nextafter(places, infinity), torch.nextafter(places, -infinity), others])


def edge_cases(row: Row) -> list[tuple[dict[str, Tensor], Tensor]]:
    """Return leaves and a cotangent for each point."""
    points = torch.cat([edge_points(), torch.tensor(row.points)])
    cotangents = torch.tensor([1.0, -2.0, 0.5]).repeat(len(points))[: len(points)]
    if row.layout == "whole":
        return [({"x": points.reshape(1, -1)}, cotangents.reshape(1, -1))]
    numbers = {"scale": STEP, "zero_point": 3.0, "bound": 2.0, **row.at_edges}
    shape, shared = {"tensor": ((1,), (1,)), "channel": ((1, 1), (1,)), "group": ((1, GROUP), (1, 1))}[row.layout]
    arguments = {name: torch.full(shared, numbers[name]) for name in row.arguments}
    found = []
    for point, g in zip(points, cotangents):
        x = torch.zeros(shape)  # a group is filled with zeros, which add nothing
        x.view(-1)[0] = point
        found.append(({"x": x, **arguments}, g.expand(shape)))
    return found


def random_cases(row: Row) -> list[tuple[dict[str, Tensor], Tensor]]:
    """Return leaves and cotangents at random, some of the input outside the range."""
    found = []
    for seed in range(5):
        draw = torch.Generator().manual_seed(seed)
        shape = (256,) if row.layout == "tensor" else (4, 64)
        shared = {"tensor": (1,), "channel": (4,), "group": (4, 64 // GROUP), "whole": ()}[row.layout]
        drawn = {
            "scale": 0.05 + 0.3 * torch.rand(shared, generator=draw),
            "zero_point": torch.randint(-3, 4, shared, generator=draw).float(),
            "bound": 1 + torch.rand(shared, generator=draw),
        }
        x, g = (torch.randn(shape, generator=draw) for _ in range(2))
        found.append(({"x": 2 * x, **{name: drawn[name] for name in row.arguments}}, g))
    return found


# -------------------------------------------------------------------- PyTorch's own operators

BOTH = ("scale", "zero_point")
EXACT: Mapping[str, Claim] = {"value": "same", "x": "same", "scale": "same"}
quantised = functools.partial(gw.ste.fake_quantize, low=LOW, high=HIGH)


def codes_passing(zero_point: Tensor) -> Tensor:
    """Round a zero point to a code, with the gradient passing, as PyTorch's learnable operators do."""
    return gw.ste.clamp(gw.ste.round(zero_point), LOW, HIGH, mask="none")


def operators() -> list[Row]:
    """Return the rows of PyTorch's own operators."""
    fixed = "fake_quantize(x, s, z, low=n, high=p, reciprocal=True)"
    learned = (
        "fake_quantize(x, s, clamp(round(z), n, p, mask='none'), low=n, high=p, reciprocal=True, gradient_scale=f)"
    )
    return [
        Row(
            "`torch.fake_quantize_per_tensor_affine`",
            fixed,
            lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z.int(), LOW, HIGH),
            lambda x, s, z: quantised(x, s, z, reciprocal=True),
            {"value": "same", "x": "same"},
            BOTH,
        ),
        Row(
            "`torch.fake_quantize_per_channel_affine`",
            fixed[:-1] + ", axis=axis)",
            lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z.int(), 0, LOW, HIGH),
            lambda x, s, z: quantised(x, s, z, reciprocal=True, axis=0),
            {"value": "same", "x": "same"},
            BOTH,
            "channel",
        ),
        Row(
            "`torch.fake_quantize_per_tensor_affine`, of nan",
            fixed,
            lambda x, s: torch.fake_quantize_per_tensor_affine(x, s, torch.tensor([0]), LOW, HIGH),
            lambda x, s: quantised(x, s, 0, reciprocal=True),
            {"value": "differs", "x": "differs"},
            points=(float("nan"),),
            why="PyTorch returns the lowest code for nan, with the gradient 0, so that nothing shows it any more. "
            "gradwright returns nan.",
        ),
        Row(
            "`torch.fake_quantize_per_channel_affine`, far outside",
            fixed[:-1] + ", axis=axis)",
            lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z.int(), 0, LOW, HIGH),
            lambda x, s, z: quantised(x, s, z, reciprocal=True, axis=0),
            {"value": "differs", "x": "same"},
            BOTH,
            "channel",
            points=(1e30, -1e30),
            why="From 2^63 steps on the operator for channels returns the *lowest* code for a large positive number: "
            "its conversion to an integer overflows. gradwright returns the highest, as the operator for whole "
            "tensors does.",
        ),
        Row(
            "`torch._fake_quantize_learnable_per_tensor_affine`",
            learned,
            lambda x, s, z: torch._fake_quantize_learnable_per_tensor_affine(x, s, z, LOW, HIGH, 0.3),
            lambda x, s, z: quantised(x, s, codes_passing(z), reciprocal=True, gradient_scale=0.3),
            {"value": "same", "x": "same", "scale": "last bits", "zero_point": "same"},
            BOTH,
            at_edges={"zero_point": 0.0},
            why="For the step PyTorch sums `g * (q - x) * (1 / s) * f`; gradwright sums `g * (q / s - x / s)` in one "
            "pass and multiplies the sum by `f`. The terms are the same, rounded in other places.",
        ),
        Row(
            "`torch._fake_quantize_learnable_per_channel_affine`",
            learned[:-1] + ", axis=axis)",
            lambda x, s, z: torch._fake_quantize_learnable_per_channel_affine(x, s, z, 0, LOW, HIGH, 0.3),
            lambda x, s, z: quantised(x, s, codes_passing(z), reciprocal=True, gradient_scale=0.3, axis=0),
            {"value": "same", "x": "same", "scale": "last bits", "zero_point": "same"},
            BOTH,
            "channel",
            at_edges={"zero_point": 0.0},
            why="As for whole tensors: the same terms, rounded in other places. Both take the gradient of "
            "the zero point past its rounding, which `round` and `clamp` with `mask='none'` say aloud.",
        ),
        Row(
            "PyTorch's learnable operators, ties with a zero point other than 0",
            learned,
            lambda x, s, z: torch._fake_quantize_learnable_per_tensor_affine(x, s, z, LOW, HIGH, 1.0),
            lambda x, s, z: quantised(x, s, codes_passing(z), reciprocal=True),
            {"value": "same", "x": "differs", "scale": "differs", "zero_point": "differs"},
            BOTH,
            why="PyTorch's forward rounds before it adds the zero point and its backward after, so that on a tie with "
            "an odd zero point, or next to a tie, the backward is that of another code than the forward returned. "
            "gradwright's gradient belongs to the value that it returned.",
        ),
    ]


# -------------------------------------------------------------------- what is composed in the code of papers


def _round_pass(x: Tensor) -> Tensor:
    return (x.round() - x).detach() + x


def _scaled_gradient(x: Tensor, factor: float) -> Tensor:
    return (x - x * factor).detach() + x * factor


def lsq_composed(x: Tensor, scale: Tensor, factor: float = 1.0) -> Tensor:
    """Quantise as repositories of LSQ write it, on the ``clamp`` of PyTorch."""
    step = _scaled_gradient(scale, factor) if factor != 1 else scale
    return _round_pass(torch.clamp(x / step, LOW, HIGH)) * step


def clamp_edges() -> Any:
    """Return what PyTorch does at a bound of ``clamp``; it changes after 2.13."""
    x = torch.tensor([1.0], requires_grad=True)
    return "inclusive" if torch.autograd.grad(torch.clamp(x, -1.0, 1.0).sum(), x)[0].item() else "exclusive"


class ClippedFunction(Function):
    """PACT as a Function, with the masks of the paper's equation for its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: Tensor) -> Tensor:
        ctx.save_for_backward(x, bound)
        steps = (2**BITS - 1) / bound
        return torch.round(torch.minimum(x.clamp(min=0), bound) * steps) / steps

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, bound = ctx.saved_tensors
        return g * ((x >= 0) & (x < bound)), (g * (x >= bound)).sum().reshape(bound.shape)


class TwiceCountedFunction(ClippedFunction):
    """The same with an input at the bound passed to the input and to the bound."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, bound = ctx.saved_tensors
        return g * ((x >= 0) & (x <= bound)), (g * (x >= bound)).sum().reshape(bound.shape)


def pact_of_absolutes(x: Tensor, bound: Tensor) -> Tensor:
    """Clip by the formula of the PACT paper, and quantise."""
    steps = (2**BITS - 1) / bound.detach()
    return _round_pass(0.5 * (x.abs() - (x - bound).abs() + bound) * steps) / steps


def compositions() -> list[Row]:
    """Return the rows of estimators as papers and their repositories compose them."""
    lsq = "fake_quantize(x, s, 0, low=n, high=p, mask='pre-round', edges='inclusive', gradient_scale=f)"
    pact = functools.partial(gw.ste.pact, bits=BITS)
    return [
        Row(
            "LSQ, composed of `clamp` and `detach`, gradient scale 1",
            "fake_quantize(x, s, 0, low=n, high=p, mask='pre-round', edges='inclusive')",
            lsq_composed,
            lambda x, s: quantised(x, s, 0, mask="pre-round", edges=clamp_edges()),
            {"value": "same", "x": "last bits", "scale": "last bits"},
            why="Autograd multiplies the gradient of `x` by the step and divides it again, and sums that of the step "
            "in two parts, `g * q` and `g * x / s`; gradwright returns `g` itself and sums `g * (q - x / s)`. At "
            "the bounds the composed form has the gradient of `clamp`, which passes in PyTorch 2.13 and does not "
            "in later versions; the paper's, and that of `lsq`, is `edges='exclusive'`.",
        ),
        Row(
            "LSQ, composed of `clamp` and `detach`, gradient scale 1",
            "(round(clamp(x / s, n, p)) + 0) * s",
            lsq_composed,
            lambda x, s: (gw.ste.round(gw.ste.clamp(x / s, LOW, HIGH, edges=clamp_edges())) + 0) * s,
            EXACT,
        ),
        Row(
            "LSQ, composed, another gradient scale",
            lsq,
            lambda x, s: lsq_composed(x, s, 0.3),
            lambda x, s: quantised(x, s, 0, mask="pre-round", edges=clamp_edges(), gradient_scale=0.3),
            {"value": "last bits", "x": "last bits", "scale": "last bits"},
            why="`(s - s * f).detach() + s * f` is rounded twice and is not always `s`: the composed form quantises "
            "with a step that may be off by its last bit, where a tie can then fall to the other code.",
        ),
        Row(
            "PACT, a Function with the paper's masks",
            "pact(x, a, bits=k)",
            ClippedFunction.apply,
            pact,
            {"value": "last bits", "x": "same", "bound": "same"},
            ("bound",),
            why="The Function divides codes by `(2^k - 1) / a`, gradwright by `2^k - 1` and multiplies by `a`, so that "
            "the highest value is the bound itself. The codes are the same.",
        ),
        Row(
            "PACT, `x <= a` for the input and `x >= a` for the bound",
            "pact(x, a, bits=k)",
            TwiceCountedFunction.apply,
            pact,
            {"value": "last bits", "x": "differs", "bound": "same"},
            ("bound",),
            why="An input that is equal to the bound is passed to both: its cotangent counts twice. `pact` passes it "
            "to the bound alone, as the paper's equation says; every other input is treated alike.",
        ),
        Row(
            "PACT, composed as `0.5 * (|x| - |x - a| + a)`",
            "pact(x, a, bits=k)",
            pact_of_absolutes,
            pact,
            {"value": "differs", "x": "differs", "bound": "differs"},
            ("bound",),
            why="At 0 and at the bound the derivative of `abs` is 0, and half of the gradient passes, which no mask "
            "means. Far outside the difference of the two sizes loses digits, and with them the value and the "
            "bound's gradient.",
        ),
    ]
