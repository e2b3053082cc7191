"""The gradient stays finite for large and tiny inputs, wherever the derivative is.

## What it checks
Each input scaled so that its largest element is 30, 100, 1000, 10^6, and tiny (10^-4, 10^-10, 10^-30), of both signs.
Where forward is finite and backward gives NaN or infinity, the element is examined with differences: it is a failure
when the function is smooth or flat there. Nothing is said where forward itself overflows, where the slope is infinite
or beyond the range of the dtype, or outside the declared ``domain``. Only subjects with a hand-written gradient are
examined.

## Why it matters
``exp(x) / (1 + exp(x))**2`` is the derivative of the sigmoid on paper and NaN at 800 (at 89 in float32), although the
sigmoid is 1 there and its derivative 0. One such element turns every weight into NaN.

## If it fails
Rewrite backward so that nothing overflows: from the output (``out * (1 - out)``), with ``exp(-abs(x))``, or with a
mask on the input of the dangerous operation.

## References
Higham, Accuracy and Stability of Numerical Algorithms, section 2.8 (avoiding overflow).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.differences import FIRST_STEP, Behaviour, differentiate_sum, element_steps
from gradwright.checking.guards import without_gradients
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.variants import quietly, try_vary, without_rule
from gradwright.errors import GradwrightError
from gradwright.typing import Level

LARGE = (30.0, 100.0, 1000.0, 1e6)
TINY = (1e-4, 1e-10, 1e-30)
MAX_INPUTS = 6
SECONDS: dict[Level, float] = {"quick": 1.0, "standard": 4.0, "full": 60.0}
"""No further scaling is begun after this much processor time; it is meant for slow subjects only."""
HINT = (
    "an intermediate of backward overflows (or is 0/0): write it from the output, with exp(-abs(x)), or mask the input "
    "of the dangerous operation; if such inputs are not meant, declare domain=."
)


@contract(
    asks="is the gradient right?",
    level="standard",
    depends_on_meaning=True,
    presupposes=("matches-differences", "matches-surrogate", "linear-in-cotangent"),
)
def examine(case: Case) -> Outcome:
    """Look for gradients that are not finite at large and tiny inputs."""
    obstacle = without_gradients(case) or without_rule(case)
    if obstacle is not None:
        return obstacle
    v = random_cotangent(case, "extreme values")
    if not all(bool(g.isfinite().all()) for g in case.pull_all(v)):
        return Outcome("skipped", "the gradient is not finite on the sample itself")
    with quietly():
        return _examine(case, v)


def _examine(case: Case, v: Tensor) -> Outcome:
    end = time.process_time() + SECONDS[case.level]
    tried = rejected = 0
    hurried = False
    for k, size, x in _extremes(case):
        if time.process_time() > end:
            hurried = True
            break
        if not bool(case.value({k: x}).isfinite().all()):
            rejected += 1
            continue
        tried += 1
        try:
            gradients = case.pull_all(v, {k: x})
        except Exception:
            rejected += 1  # whether it may raise for other inputs is asked by `shapes`
            continue
        if case.subject.kind in ("callable", "module") and _overflows_between({k: x}, case):
            rejected += 1  # no single rule is at fault where functions that follow each other meet at infinity
            continue
        finding = _judge(case, k, size, x, v, gradients)
        if finding is not None:
            return Outcome("fail", finding.message, (finding,))
    message = f"finite gradients at {tried} scalings of the inputs, from 1e-30 to 1e6"
    if rejected:
        message += f"; {rejected} more at which forward is not finite or raises"
    if hurried:
        message += "; stopped early because the subject is slow"
    return Outcome("pass", message)


def _overflows_between(flats: dict[int, Tensor], case: Case) -> bool:
    """Tell whether something that the functions of a composite subject hand to each other is not finite."""
    finite = []

    def pack(t: Tensor) -> Tensor:
        if t.is_floating_point() or t.is_complex():
            finite.append(bool(t.isfinite().all()))
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        case.forward(flats)
    return not all(finite)


def _extremes(case: Case) -> Iterator[tuple[int, float, Tensor]]:
    """Give input number, magnitude and flat values of each scaling that stays in the domain and the dtype's range."""
    for k, x in list(enumerate(case.base))[:MAX_INPUTS]:
        largest = float(x.abs().max()) if x.numel() else 0.0
        if largest == 0.0 or not math.isfinite(largest):
            continue
        limits = torch.finfo(x.dtype)
        for size in (*LARGE, *TINY):
            if not 16 * limits.tiny < size < limits.max / 16 or (size in LARGE) == (size <= largest):
                continue
            for sign in (1.0, -1.0):
                scaled = (x.to(torch.float64) * (sign * size / largest)).to(x.dtype)
                inside = case.inputs[k].tensor.is_complex() or case.domain.contains(case.inputs[k].name, scaled)
                if inside:
                    yield k, size, scaled


def _judge(case: Case, k: int, size: float, x: Tensor, v: Tensor, gradients: list[Tensor]) -> Finding | None:
    for other, gradient in enumerate(gradients):
        bad = ~gradient.isfinite()
        for i in bad.nonzero().flatten().tolist()[:3]:
            at = {k: x}
            slope = _slope(case, at, other, i, v, size in LARGE)
            limit = float(torch.finfo(case.inputs[other].tensor.dtype).max)
            if slope is not None and abs(slope) < limit / 16:
                return _finding(case, k, x, other, i, float(gradient[i]), slope)
    return None


def _slope(case: Case, at: dict[int, Tensor], k: int, i: int, v: Tensor, large: bool) -> float | None:
    """Return the derivative of ``<v, f>`` along one element, or None when it cannot be told or is infinite."""
    exact = case.exact
    x = at.get(k, case.base[k]).to(exact.base[k].dtype)
    others = {n: t.to(exact.base[n].dtype) for n, t in at.items() if n != k}

    def terms(flat: Tensor) -> Tensor:
        return v * exact.value({**others, k: flat})

    if exact is not case and not _agree(case.value(at), exact.value({**others, k: x})):
        return None  # forward loses the number itself in this precision
    for unit in (float(element_steps(x)[i]) / FIRST_STEP, 1.0):
        u = torch.zeros(x.shape, dtype=torch.float64)
        u[i] = unit
        estimate = differentiate_sum(terms, x, u, exact.epsilon)
        slope, bar = float(estimate.value) / unit, float(estimate.bar) / unit
        if int(estimate.behaviour) > Behaviour.KINK or not math.isfinite(bar):
            return None
        if bool(estimate.moved):
            return slope if large or bar <= 1e-2 * abs(slope) else None
        if large:
            return 0.0  # saturated
        # Steps of the size of a tiny number move nothing: take larger ones, which must see a smooth function.
    return None


def _agree(low: Tensor, exact: Tensor) -> bool:
    return bool(((low - exact).abs() <= 0.05 * exact.abs()).all())


def _finding(case: Case, k: int, x: Tensor, other: int, i: int, got: float, slope: float) -> Finding:
    scaled, name = case.inputs[k].name, case.inputs[other].name
    index = case.locate_input(other, i)
    value = float(x[i]) if other == k else float(case.base[other][i])
    near = f"{value:.6g}" if other == k else f"{value:.6g} (and `{scaled}` scaled to {float(x.abs().max()):g})"
    message = (
        f"the gradient of `{name}` is {got} at `{name}` = {near}, although forward is finite and the derivative is "
        f"about {slope:.3g}."
    )
    return Finding("fail", message, HINT, Where(input=name, index=index), got, slope, repro=_script(case, k, x))


def _script(case: Case, k: int, x: Tensor) -> str | None:
    item = case.inputs[k]
    if item.tensor.is_complex() or item.name != repro.variable(item.name):
        return None
    try:
        variant = try_vary(case, {(item.argument, item.leaf): x.reshape(item.tensor.shape)})
    except GradwrightError:
        return None
    return repro.script(variant, [f"print(out, {repro.gradient_of_sum(variant)})"]) if variant is not None else None
