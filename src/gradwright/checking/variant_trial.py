"""The trial of a variant: does the rule still hold on inputs that the user did not give?

One joint signed projection over all inputs and outputs decides whether to look closer; what is accused is then judged
by the contracts themselves, so that a variant is never condemned by weaker evidence than a sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import audit, user_location
from gradwright.checking.case import Case
from gradwright.checking.contracts import Contract
from gradwright.checking.contracts.gradient_shape_and_dtype import examine as shape_and_dtype
from gradwright.checking.contracts.linear_in_cotangent import examine as linear
from gradwright.checking.contracts.matches_differences import examine as differences
from gradwright.checking.contracts.matches_surrogate import examine as surrogate
from gradwright.checking.differences import (
    FIRST_STEP,
    Behaviour,
    Estimate,
    VectorFunction,
    differentiate,
    differentiate_sum,
    element_steps,
    one_hot,
    signed,
)
from gradwright.checking.intent import deviates
from gradwright.checking.judge import UNRESOLVED_BAR, acquitted, largest_entry, one_unit_away
from gradwright.checking.projection import rounding_of_sum
from gradwright.checking.report import Finding, Where
from gradwright.errors import (
    ConvergenceError,
    SampleError,
    SingularMatrixError,
    UndefinedGradientError,
    describe_exception,
)

MAX_JOINT_OUTPUTS = 4096
SCREEN_STEP, SCREENED = 1e-3, 1e-7
"""Step and relative agreement of the screening; errors below a ten-millionth of the whole pass on a variant."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with the rule on a variant."""

    kind: Literal["raises", "interface", "value"]
    finding: Finding


@dataclass(frozen=True)
class Unjudged:
    """Nothing could be said: the function is not smooth there, the error bars are too wide, or for a stated reason."""

    why: str = ""


def try_rule(case: Case) -> Fault | Unjudged | None:
    """Return the fault of the rule on a case, None when there is none."""
    watched = audit(case)
    if watched.no_graph or watched.no_backward:
        return Unjudged()
    error = watched.user_error or watched.engine_error
    if error is not None:
        return _raises(case, error)
    if case.subject.function is not None:
        fault = _broken(shape_and_dtype, case)
        if fault is not None:
            return Fault("interface", fault)
    if case.m == 0 or sum(case.n) == 0:
        return None
    if case.backward_randomness == "uncontrolled":
        return Unjudged()
    try:
        if case.sample.surrogate is not None:
            fault = _broken(surrogate, case)
            return Fault("value", fault) if fault is not None else None
    except SampleError:
        return Unjudged()  # the surrogate does not go where forward goes
    if deviates(case):
        fault = _broken(linear, case)
        return Fault("value", fault) if fault is not None else None
    return _differs(case)


def try_rule_at_singular_point(case: Case, k: int) -> Fault | Unjudged | None:
    """Return the fault of the rule where input ``k`` holds zeros or ties, at which many functions have no derivative.

    Accused are only: an exception; a gradient that is not finite where all outputs have finite slopes; and a wrong
    number where the function is differentiable, that is, smooth and additive along random directions.
    """
    error = audit(case).user_error or audit(case).engine_error
    if error is not None:
        return _raises(case, error)
    case = case.exact
    if not audit(case).usable or case.m > MAX_JOINT_OUTPUTS or case.backward_randomness == "uncontrolled":
        return Unjudged()
    v = signed(case.m, case.generator("singular v"))
    w = case.pull_all(v)[k]
    if not bool(w.isfinite().all()):
        return _not_finite(case, k, int((~w.isfinite()).int().argmax()), float(w[~w.isfinite()][0]))
    if deviates(case):
        return None
    return _wrong_although_smooth(case, k, v, w)


def _broken(contract: Contract, case: Case) -> Finding | None:
    outcome = contract.examine(case)
    return outcome.findings[0] if outcome.verdict == "fail" and outcome.findings else None


def _raises(case: Case, error: BaseException) -> Fault | Unjudged:
    if isinstance(error, (UndefinedGradientError, SingularMatrixError, ConvergenceError)):
        return Unjudged()  # it says itself that there is no derivative
    place = user_location(error)
    message = f"backward raises {describe_exception(error)}{f' at {place}' if place else ''}."
    hint = "let backward handle such inputs, or let forward refuse them."
    body = [f"print({repro.gradient_of_sum(case)})  # raises"]
    return Fault("raises", Finding("fail", message, hint, repro=repro.script(case, body)))


def _differs(given: Case) -> Fault | Unjudged | None:
    case = given.exact
    if any(x.dtype != torch.float64 for x in case.base):
        fault = _broken(differences, given)  # it has no float64 twin: the whole machinery judges by its wide bars
        return Fault("value", fault) if fault is not None else None
    joint = _joint(case)
    if joint.not_linear:
        fault = _broken(linear, case)
        if fault is not None:
            return Fault("value", fault)
    if joint.clearly_right():
        return None
    for scales in ((1.0,), (1.0, 1e-3, 1e-6)):
        estimate = joint.along(*scales)
        unknown = int(estimate.behaviour) >= Behaviour.JUMP or not math.isfinite(float(estimate.bar))
        inside = float(estimate.lower) - joint.rounding <= joint.analytic <= float(estimate.upper) + joint.rounding
        size = max(joint.size, abs(float(estimate.value)))
        if inside and not unknown and float(estimate.bar) <= UNRESOLVED_BAR * max(size, 1e-300):
            return None
    if unknown:
        return Unjudged()
    if inside:
        return None if joint.analytic == 0 and not bool(estimate.moved) else Unjudged()
    fault = _broken(differences, given)
    return Fault("value", fault) if fault is not None else Unjudged()


@dataclass(frozen=True)
class _Joint:
    """The rule along one random direction of all inputs together, against one random cotangent."""

    phi: VectorFunction
    """Terms of ``<v, f(x + s u)>``."""
    x: Tensor
    u: Tensor
    epsilon: float
    analytic: float
    size: float
    rounding: float
    not_linear: bool = False

    def along(self, *scales: float) -> Estimate:
        return differentiate_sum(self.phi, self.x, self.u, self.epsilon, scales)

    def clearly_right(self) -> bool:
        """Tell whether two central differences, extrapolated, already agree: six times cheaper than a ladder."""

        def slope(h: float) -> float:
            return float((self.phi(self.x + h * self.u) - self.phi(self.x - h * self.u)).sum()) / (2 * h)

        coarse, fine = slope(SCREEN_STEP), slope(SCREEN_STEP / 4)
        value = (16 * fine - coarse) / 15
        enough = SCREENED * self.size
        return abs(value - self.analytic) <= enough and abs(fine - coarse) <= 1e3 * enough


def _joint(case: Case) -> _Joint:
    generator = case.generator("joint projection")
    x = torch.cat(case.base)
    u = torch.cat([signed(n, generator) * (element_steps(b) / FIRST_STEP) for n, b in zip(case.n, case.base)])
    v = signed(case.m, generator)
    w = torch.cat(case.pull_all(v))
    opposite = torch.cat(case.pull_all(-1024 * v)) / -1024
    products = w * u

    def phi(flat: Tensor) -> Tensor:
        return v * case.value(dict(enumerate(torch.split(flat, case.n))))

    linear_enough = bool(((opposite - w).abs() <= 1e-9 * (w.abs() + largest_entry(w))).all())
    rounding = rounding_of_sum(case.epsilon, products) + case.allowances.of_sum(products, u)
    size = float(products.abs().sum())
    return _Joint(phi, x, u, case.epsilon, float(products.sum()), size, rounding, not linear_enough)


def joint_projection_is_wrong(case: Case) -> bool:
    """Tell whether a case with real float64 vectors as inputs fails the joint projection, at two step sizes."""
    joint = _joint(case)
    if joint.clearly_right():
        return False
    for scale in (1.0, 1e-3):
        estimate = joint.along(scale)
        bar = float(estimate.bar) + joint.rounding
        if int(estimate.behaviour) != Behaviour.SMOOTH or not math.isfinite(bar) or not math.isfinite(joint.analytic):
            return False
        if abs(joint.analytic - float(estimate.value)) <= 2 * bar:
            return False
    return True


def _not_finite(case: Case, k: int, i: int, got: float) -> Fault | Unjudged:
    x = case.base[k]
    generator = case.generator("singular direction")
    directions = torch.stack([one_hot(case.n[k], [i])[0], signed(case.n[k], generator)])
    steps = torch.stack([element_steps(x)[i], element_steps(x).min()])
    estimate = differentiate(lambda flat: case.value({k: flat}), x, directions, steps, case.output_epsilon())
    # A slope that grows without end but slowly, as that of x log x at 0, looks smooth but never settles.
    settled = estimate.bar <= UNRESOLVED_BAR * estimate.value.abs().clamp(min=1.0)
    settled |= (estimate.behaviour == Behaviour.KINK) & estimate.bar.isfinite()
    if bool((estimate.behaviour >= Behaviour.JUMP).any()) or not bool(settled.all()):
        return Unjudged()
    name = case.inputs[k].name
    shown = "NaN" if math.isnan(got) else f"{got}"
    message = f"the gradient of `{name}` is {shown}, although the function is finite there and so are its slopes."
    hint = "a quotient or a power of zero in backward: mask its input (torch.where on the input, not on the result)."
    where = Where(input=name, index=case.locate_input(k, i))
    numeric = float(estimate.value[0].abs().max()) if case.m == 1 else None
    script = repro.script(case, [f"print({repro.gradient_of_sum(case)})"])
    return Fault("value", Finding("fail", message, hint, where, got, numeric, repro=script))


def _wrong_although_smooth(case: Case, k: int, v: Tensor, w: Tensor) -> Fault | Unjudged | None:
    x = case.base[k]
    generator = case.generator("singular directions")
    unit = element_steps(x) / FIRST_STEP
    first, second = (signed(case.n[k], generator) * unit for _ in range(2))

    def along(u: Tensor, *scales: float) -> Estimate:
        return differentiate_sum(lambda flat: v * case.value({k: flat}), x, u, case.epsilon, scales)

    products = w * first
    rounding = rounding_of_sum(case.epsilon, products) + case.allowances.of_sum(products, first)
    analytic = float(products.sum())
    size = float(products.abs().sum())
    if _Joint(lambda flat: v * case.value({k: flat}), x, first, case.epsilon, analytic, size, rounding).clearly_right():
        return None
    estimates = [along(u, 1.0, 1e-3) for u in (first, second, first + second)]
    if any(int(e.behaviour) != Behaviour.SMOOTH or not math.isfinite(float(e.bar)) for e in estimates):
        return Unjudged()
    if float(estimates[0].bar) > UNRESOLVED_BAR * max(size, abs(float(estimates[0].value))):
        return Unjudged()
    one, two, both = (float(e.value) for e in estimates)
    bars = sum(float(e.bar) for e in estimates)
    if bars > UNRESOLVED_BAR * max(abs(one), abs(two), abs(both), 1e-3):
        return Unjudged()  # an iteration that has not converged at zero, for example
    if abs(both - one - two) > bars + 1e-9 * (abs(one) + abs(two)):
        return Unjudged()
    bar = float(estimates[0].bar) + rounding
    if abs(analytic - one) <= bar:
        return None
    moved = case.pull_all(v, {k: one_unit_away(x, generator)})[k]
    spread = abs(float((moved * first).sum()) - analytic) if bool(moved.isfinite().all()) else 0.0
    if acquitted(analytic, one, bar, spread, lambda scale: along(first, scale)):
        return Unjudged()
    name = case.inputs[k].name
    message = (
        f"the gradient of `{name}` is wrong at this very point, although the function is smooth there: a random "
        f"projection of it is {analytic:.10g}, of the differences {one:.10g} ± {bar:.1g}."
    )
    hint = "look for a comparison with zero, a sign or a quotient in backward."
    script = repro.script(case, [f"print({repro.gradient_of_sum(case)})"])
    return Fault("value", Finding("fail", message, hint, Where(input=name), analytic, one, bar, script))
