"""Forward mode and backward are transposes of each other.

## What it checks
For a Function with a ``jvp``, and for whatever else PyTorch can push tangents through: <v, J u> = <B(v), u> for random
signed u and v, J(-u) = -J u, J(u + w) = J u + J w, and the sum over inputs of the tangent of one input alone. The
tangents that are handed over must not be written to, and those that come back must have the shape and dtype of the
outputs. No differences are needed, except to tell which side is wrong.

## Why it matters
``gradcheck`` looks at forward mode only when asked. A wrong ``jvp`` goes unnoticed until somebody calls ``torch.func``:
Jacobians, Hessians and Laplacians are then wrong, while training is right.

## If it fails
Write ``jvp`` as the sum over inputs of derivative times tangent; save what it reads with ``ctx.save_for_forward``.

## References
Claerbout, Earth Soundings Analysis (the dot-product test); pytorch/functorch issue 207; pytorch/pytorch issues 97332
and 121084.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradwright.checking import ulp
from gradwright.checking.audit import random_cotangent, user_location
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.differences import FIRST_STEP, Behaviour, differentiate_sum, element_steps, signed
from gradwright.checking.forward_mode import has_jvp, push, push_flat
from gradwright.checking.guards import without_gradients
from gradwright.checking.intended import linear_part
from gradwright.checking.intent import deviates
from gradwright.checking.judge import largest_entry
from gradwright.checking.magnitudes import CANCELLED, largest_in_backward
from gradwright.checking.parts import in_kind
from gradwright.checking.raw_tangents import raw_tangents
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.tensors import same_bits
from gradwright.checking.variants import is_hand_written
from gradwright.errors import describe_exception
from gradwright.typing import Verdict

NEARBY = 1e-5
SAVE = "save what jvp reads with ctx.save_for_forward(...): save_for_backward alone does not reach it."


@contract(asks="is the gradient right?", level="standard", presupposes=("matches-differences", "linear-in-cotangent"))
def examine(case: Case) -> Outcome:
    """Compare forward mode with backward."""
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    own = has_jvp(case)
    if case.subject.function is not None and not own:
        return Outcome("unsupported", "there is no jvp: forward mode raises")
    case = linear_part(case.exact)
    generator = case.generator("tangents")
    u, w = ([in_kind(item, signed(n, generator)) for n, item in zip(case.n, case.inputs)] for _ in range(2))
    try:
        at_u = push(case, u)
    except Exception as error:
        return _refused(case, error, own)
    if own:
        finding = _interface(case, u)
        if finding is not None:
            return Outcome("fail", finding.message, (finding,))
    finding = _not_linear(case, u, w, case.flatten_outputs(at_u.tangents))
    finding = finding or _not_adjoint(case, u)
    if finding is not None:
        verdict: Verdict = "fail" if own or is_hand_written(case) else "suspect"
        return Outcome(verdict, finding.message, (replace(finding, verdict=verdict),))
    return Outcome("pass", "<v, J u> = <B(v), u>, and J is linear in its tangents", sensitivity=_relative(case))


def _relative(case: Case) -> float:
    return max(1e-11, 64 * case.epsilon)


def _refused(case: Case, error: Exception, own: bool) -> Outcome:
    text = describe_exception(error)
    if not own or isinstance(error, NotImplementedError):
        return Outcome("unsupported", f"forward mode raises {text}")
    place = user_location(error)
    message = f"jvp raises {text}{f' at {place}' if place else ''}, so that forward mode never works."
    unpacking = isinstance(error, ValueError) and "unpack" in str(error)
    return Outcome("fail", message, (Finding("fail", message, SAVE if unpacking else "mend jvp."),))


def _interface(case: Case, u: Sequence[Tensor]) -> Finding | None:
    """Look at what jvp returned before PyTorch took it, and at what it did to its tangents."""
    seen = raw_tangents(case, u)
    for k, (before, after) in enumerate(zip(seen.before, seen.after)):
        if not same_bits(before, after):
            name = case.inputs[k].name
            message = f"jvp writes to the tangent of `{name}` in place: whoever else uses that tangent gets another."
            return Finding("fail", message, "use out-of-place operations in jvp.", Where(input=name))
    for position, (tangent, out) in enumerate(zip(seen.returned, seen.outputs)):
        if not isinstance(tangent, Tensor):
            continue
        if tangent.dtype != out.dtype:
            message = f"jvp returns a tangent of dtype {tangent.dtype} for output {position} of dtype {out.dtype}."
            return Finding("fail", message, "compute the tangent in the dtype of the output.", Where(output=position))
        if tangent.shape != out.shape:
            message = (
                f"jvp returns a tangent of shape {tuple(tangent.shape)} for output {position} of shape "
                f"{tuple(out.shape)}."
            )
            return Finding("fail", message, "a tangent has the shape of its output.", Where(output=position))
    return None


def _not_linear(case: Case, u: list[Tensor], w: list[Tensor], at_u: Tensor) -> Finding | None:
    alone: list[Tensor] = []
    for k in range(len(u)):
        try:
            alone.append(push_flat(case, [t if k == j else None for j, t in enumerate(u)]))
        except Exception as error:
            name = case.inputs[k].name
            message = f"jvp raises {describe_exception(error)} when only `{name}` has a tangent."
            return Finding("fail", message, "a tangent that is missing (None) counts as zero.", Where(input=name))
    minus = push_flat(case, [-t for t in u])
    both, at_w = push_flat(case, [a + b for a, b in zip(u, w)]), push_flat(case, w)
    terms = torch.stack([t.abs() for t in alone]).sum(0) + at_u.abs() + at_w.abs()
    allowed = _relative(case) * (terms.nan_to_num(0.0, 0.0, 0.0) + 0.1 * largest_entry(terms))
    allowed = allowed + case.allowances.of(terms)
    checks = (
        (minus, -at_u, "J(-u) is not -J u", "look for an absolute value, a square or a comparison of a tangent."),
        (
            torch.stack(alone).sum(0),
            at_u,
            "the tangents of single inputs do not add up to the joint one",
            "look for a product of two tangents, or for one that overwrites another.",
        ),
        (both, at_u + at_w, "J(u + w) is not J u + J w", "look for a product of two tangents, or a norm of one."),
    )
    for got, want, words, hint in checks:
        # An infinite slope times tangents of both signs adds up to NaN.
        bad = ulp.outside(got, want, allowed) & want.isfinite()
        if bool(bad.any()):
            cancelled = _cancelled(case, random_cotangent(case, "adjoint"))
            bad &= ulp.outside(got, want, allowed + cancelled + 8 * _scatter(case, (u, w)))
        if bool(bad.any()):
            j = ulp.worst(got, want, bad)
            output, index = case.locate_output(j)
            where = Where(output=case.outputs[output].position, output_index=index)
            message = f"jvp is not linear in its tangents: {words}."
            return Finding("fail", message, hint, where, float(got[j]), float(want[j]))
    return None


def _scatter(case: Case, tangents: Sequence[list[Tensor]]) -> Tensor:
    """Return how far ``J u`` moves when the inputs move by a few rounding units, for the worst of some tangents."""
    generator = case.generator("tangents scatter")
    most = torch.zeros(case.m, dtype=torch.float64)
    for u in tangents:
        at_u = push_flat(case, u)
        for _ in range(3):
            flats = {k: ulp.nudged(x, 8 * case.epsilon, generator) for k, x in enumerate(case.base)}
            most = most.maximum((push_flat(case, u, flats) - at_u).abs().nan_to_num(0.0, 0.0, 0.0))
    return most


def _cancelled(case: Case, v: Tensor) -> float:
    """Return what rounding leaves of backward's large terms when they cancel; an exponential adds the rounding of x."""
    return CANCELLED * case.epsilon * max(1.0, largest_entry(*case.base)) * largest_in_backward(case, v)


def _gap(case: Case, u: list[Tensor], v: Tensor, flats: dict[int, Tensor] | None = None) -> tuple[float, float, float]:
    """Return ``<v, J u>``, ``<B(v), u>`` and what rounding allows between them."""
    pushed = v * push_flat(case, u, flats)
    pulled = torch.cat([g * t for g, t in zip(case.pull_all(v, flats), u)])
    terms = float(pushed.abs().sum()) + float(pulled.abs().sum())
    allowed = max(8 * math.log2(case.m + sum(case.n) + 1), 64.0) * case.epsilon * terms
    allowed += torch.finfo(torch.float64).tiny  # numbers smaller than that are rounded coarsely
    allowed += case.allowances.of_sum(pulled, torch.cat(u))
    return float(pushed.sum()), float(pulled.sum()), allowed


def _agree(left: float, right: float, allowed: float) -> bool:
    return abs(left - right) <= allowed or left == right or (math.isnan(left) and math.isnan(right))


def _not_adjoint(case: Case, u: list[Tensor]) -> Finding | None:
    v = random_cotangent(case, "adjoint")
    left, right, allowed = _gap(case, u, v)
    if _agree(left, right, allowed):
        return None
    generator = case.generator("adjoint nearby")
    near, scattered = [], 0.0
    for _ in range(3):
        flats = {k: ulp.nudged(x, 8 * case.epsilon, generator) for k, x in enumerate(case.base)}
        moved = _gap(case, u, v, flats)
        scattered = max(scattered, abs(moved[0] - left), abs(moved[1] - right))
        flats = {k: ulp.nudged(x, NEARBY, generator) for k, x in enumerate(case.base)}
        one, two, rounding = _gap(case, u, v, flats)
        near.append(_agree(one, two, rounding + 1e-9 * (abs(one) + abs(two))))
    if _agree(left, right, allowed + _cancelled(case, v) + 8 * scattered) or all(near):
        return None  # rounding, or a kink, at which each mode may choose another slope
    return _accuse(case, u, v, left, right, allowed)


def _accuse(case: Case, u: list[Tensor], v: Tensor, left: float, right: float, allowed: float) -> Finding:
    """Say which input, and which of the two modes, is wrong."""
    k, most = 0, -1.0
    for j in range(len(u)):
        single = [t if i == j else torch.zeros_like(t) for i, t in enumerate(u)]
        one, two, _ = _gap(case, single, v)
        if not abs(one - two) <= most:
            k, most = j, abs(one - two)
    single = [t if i == k else torch.zeros_like(t) for i, t in enumerate(u)]
    one, two, _ = _gap(case, single, v)
    name = case.inputs[k].name
    side, hint = "forward mode and backward disagree", "compare jvp with backward, input by input."
    if not deviates(case):
        x = case.base[k]
        scale = float(element_steps(x).min()) / FIRST_STEP
        estimate = differentiate_sum(lambda flat: v * case.value({k: flat}), x, scale * u[k], case.epsilon)
        slope, bar = float(estimate.value) / scale, float(estimate.bar) / scale + 1e-6 * (abs(one) + abs(two))
        if int(estimate.behaviour) == Behaviour.SMOOTH and math.isfinite(bar):
            if abs(two - slope) <= bar:
                side = "forward mode is wrong"
                hint = _jvp_hint(one, two)
            elif abs(one - slope) <= bar:
                side, hint = "backward is wrong, forward mode is right", "compare backward with jvp."
    message = f"{side} with respect to `{name}`: <v, J u> is {one:.10g} and <B(v), u> is {two:.10g}."
    return Finding("fail", message, hint, Where(input=name), one, two, allowed)


def _jvp_hint(one: float, two: float) -> str:
    if one == 0.0:
        return "the tangent of this input is not used in jvp, or dropped."
    ratio = two / one
    if math.isclose(ratio, -1.0, rel_tol=1e-9):
        return "the sign of jvp is wrong."
    return "jvp is the sum over inputs of derivative times tangent."
