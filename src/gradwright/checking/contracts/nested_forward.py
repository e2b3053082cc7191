"""Forward mode over forward mode gives the second derivative, or raises.

## What it checks
``torch.func.jvp`` of ``torch.func.jvp`` along two random directions, against differences of the inner one. Where the
first derivative has a kink, only an element that is wrong when it is moved alone is accused. The verdict is
``unsupported`` when it raises, and also when PyTorch itself returns zero for the outer derivative of a Function's
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
from gradwright.checking.differences import FIRST_STEP, element_steps, signed
from gradwright.checking.forward_mode import call_flat, has_jvp
from gradwright.checking.guards import without_gradients
from gradwright.checking.judge import MARGIN, largest_entry, one_unit_away
from gradwright.checking.magnitudes import largest_in_backward
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.second import Directional, directional
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
    return _compared(case)


def _compared(case: Case) -> Outcome:
    generator = case.generator("nested forward")
    v = random_cotangent(case, "nested forward")
    x = torch.cat(case.base)
    unit = torch.cat([element_steps(b) / FIRST_STEP for b in case.base])
    u, p = (signed(len(x), generator) * unit for _ in range(2))

    def terms(flat: Tensor) -> Tensor:
        pushed: Tensor = torch.func.jvp(lambda t: call_flat(case, torch.split(t, case.n)), (flat,), (u,))[1]
        return v * pushed

    def products(at: Tensor, along: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pushed: Tensor = torch.func.jvp(terms, (at,), (along,))[1]
            return pushed.detach()

    try:
        here = products(x, p)
    except Exception as error:
        return Outcome("unsupported", f"forward over forward raises {describe_exception(error)}")

    def value(flat: Tensor) -> Tensor:
        try:
            return terms(flat).detach()
        except Exception:
            return torch.full((case.m,), math.nan, dtype=torch.float64)

    def again() -> float:
        return float(products(one_unit_away(x, generator), p).sum())

    def magnitude() -> float:
        return largest_in_backward(case, v) * largest_entry(u)

    def along_part(part: Tensor) -> float:
        return float(products(x, part).sum())

    found = directional(case, None, here, value, x, p, again, magnitude, along_part)
    return _told(case, found, cut=not bool(here.any()))


def _told(case: Case, found: Directional, cut: bool) -> Outcome:
    if found.wrong and cut and is_hand_written(case):
        return Outcome("unsupported", UPSTREAM)
    if not found.wrong and not found.smooth:
        return Outcome("unresolved", "the first derivative is not smooth here; beside that no element was found wrong")
    if not found.wrong and found.unresolved:
        reason = "the error bar is too wide, differences of several sizes disagree, or the second derivative jumps"
        return Outcome("unresolved", reason)
    if not found.wrong:
        seen = MARGIN * found.bar / abs(found.numeric) if found.numeric else None
        return Outcome("pass", "jvp of jvp is the derivative of jvp", sensitivity=seen)
    assert found.element is not None  # nothing else is accused
    where = _place(case, found.element)
    place = f"a random direction, and is wrong along {where} alone" if found.smooth else f"{where} alone"
    message = (
        f"jvp of jvp is {found.analytic:.10g} and the derivative of jvp {found.numeric:.10g} ± {found.bar:.1g} along "
        f"{place}."
    )
    if not is_hand_written(case):
        return Outcome("unresolved", f"{message.rstrip('.')}; PyTorch's own rules, none of yours is involved")
    hint = "an intermediate that jvp reads is a constant to the outer tangent: compute it in jvp from the saved inputs."
    finding = Finding("fail", message, hint, where, found.analytic, found.numeric, found.bar)
    return Outcome("fail", message, (finding,))


def _place(case: Case, element: int) -> Where:
    """Name an element of the joined inputs."""
    for k, n in enumerate(case.n):
        if element < n:
            return Where(input=case.inputs[k].name, index=case.locate_input(k, element))
        element -= n
    raise IndexError(element)
