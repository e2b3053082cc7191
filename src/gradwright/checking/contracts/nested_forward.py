"""Forward mode over forward mode gives the second derivative, or raises.

## What it checks
``torch.func.jvp`` of ``torch.func.jvp`` along two random directions, against differences of the inner one. The verdict
is ``unsupported`` when it raises, and also when PyTorch itself returns zero for the outer derivative of a Function's
``jvp`` (pytorch/pytorch#197867): the rule is right, but must not be used that way. Where PyTorch's own rules alone are
wrong, nothing is decided.

## Why it matters
Taylor mode, Laplacians and ``jacfwd(jacfwd(f))`` push tangents through tangents. For Functions PyTorch drops the outer
one in silence, so that every second derivative is zero.

## If it fails
Use ``torch.func.hessian`` (forward over reverse), or compute the second derivative in reverse mode. With a ``jvp`` that
is made of PyTorch operations on its arguments the function can also be written without a Function for this purpose.

## References
pytorch/pytorch issue 197867.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.differences import (
    FIRST_STEP,
    Behaviour,
    Estimate,
    VectorFunction,
    differentiate_sum,
    element_steps,
    signed,
)
from gradwright.checking.forward_mode import call_flat, has_jvp
from gradwright.checking.guards import without_gradients
from gradwright.checking.judge import SCATTER_SAFETY, acquitted, largest_entry
from gradwright.checking.magnitudes import largest_in_backward
from gradwright.checking.projection import rounding_of_sum
from gradwright.checking.report import Finding, Outcome
from gradwright.checking.variants import is_hand_written
from gradwright.errors import describe_exception

UPSTREAM = (
    "jvp over jvp gives zero in silence: PyTorch does not push tangents through the jvp of a Function "
    "(pytorch/pytorch#197867); use torch.func.hessian or jacfwd(jacrev(f)) in its place"
)


@contract(
    asks="is the gradient right?",
    level="full",
    presupposes=("matches-differences", "modes-agree", "linear-in-cotangent"),
)
def examine(case: Case) -> Outcome:
    """Compare the derivative of forward mode by forward mode with differences."""
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    if case.subject.function is not None and not has_jvp(case):
        return Outcome("unsupported", "there is no jvp: forward mode raises")
    case = case.exact
    if any(i.tensor.is_complex() for i in case.inputs) or any(o.dtype.is_complex for o in case.outputs):
        return Outcome("skipped", "not examined for complex numbers")
    if any(x.dtype != torch.float64 for x in case.base):
        return Outcome("skipped", "does not run in float64, where differences are precise enough")
    generator = case.generator("nested forward")
    v = random_cotangent(case, "nested forward")
    x = torch.cat(case.base)
    unit = torch.cat([element_steps(b) / FIRST_STEP for b in case.base])
    u, p = (signed(len(x), generator) * unit for _ in range(2))

    def terms(flat: Tensor) -> Tensor:
        pushed: Tensor = torch.func.jvp(lambda t: call_flat(case, torch.split(t, case.n)), (flat,), (u,))[1]
        return v * pushed

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            first = terms(x).detach()
            products = torch.func.jvp(terms, (x,), (p,))[1].detach()
    except Exception as error:
        return Outcome("unsupported", f"forward over forward raises {describe_exception(error)}")
    return _judge(case, terms, x, u, p, products, float(first.abs().sum()))


def _judge(
    case: Case, terms: VectorFunction, x: Tensor, u: Tensor, p: Tensor, products: Tensor, size: float
) -> Outcome:
    def value(flat: Tensor) -> Tensor:
        try:
            return terms(flat).detach()
        except Exception:
            return torch.full((case.m,), math.nan, dtype=torch.float64)

    def along(*scales: float) -> Estimate:
        return differentiate_sum(value, x, p, case.epsilon, scales)

    estimate = along(1.0, 1e-3, 1e-6)
    numeric, bar = float(estimate.value), float(estimate.bar)
    analytic = float(products.sum())
    if int(estimate.behaviour) >= Behaviour.KINK or not math.isfinite(bar):
        return Outcome("unresolved", "the first derivative is not smooth here")
    allowed = bar + rounding_of_sum(case.epsilon, products) + 1e-10 * size + case.allowances.of_sum(products, p)
    if abs(analytic - numeric) <= allowed:
        return Outcome("pass", "jvp of jvp is the derivative of jvp", sensitivity=allowed / size if size else None)
    if analytic == 0.0 and not bool(products.any()) and is_hand_written(case):
        return Outcome("unsupported", UPSTREAM)
    # Large terms may cancel (a saturated softmax): their rounding stays, and inside an exponential that of x too.
    magnitude = largest_in_backward(case, random_cotangent(case, "nested forward"))
    rounding = case.epsilon * max(1.0, largest_entry(x)) * magnitude * largest_entry(u) * largest_entry(p)
    if acquitted(analytic, numeric, allowed, SCATTER_SAFETY * rounding, lambda scale: along(scale)):
        return Outcome("unresolved", "differences of several sizes disagree here")
    message = (
        f"jvp of jvp is {analytic:.10g} along a random direction, the derivative of jvp {numeric:.10g} ± {bar:.1g}."
    )
    if not is_hand_written(case):
        return Outcome("unresolved", f"{message.rstrip('.')}; PyTorch's own rules, none of yours is involved")
    hint = "an intermediate that jvp reads is a constant to the outer tangent: compute it in jvp from the saved inputs."
    return Outcome("fail", message, (Finding("fail", message, hint, None, analytic, numeric, bar),))
