"""The rule is linear in the incoming gradient.

## What it checks
With B(v) what backward gives for the cotangent v: B(0) is zero and not NaN, B(s v) = s B(v) for s = -1, 2^10 and 2^-20
(powers of two, so that exact arithmetic is expected), B(v + w) = B(v) + B(w) for random signed v of few digits and w of
many, and, with several outputs, that B(v) is the sum of what each output's part of v gives. No differences are needed,
so the resolution is that of rounding. Where B is small by cancellation, its rounding is measured at inputs one rounding
unit away. Limits and thresholds are looked for far out too, at s = 2^40, -2^40 and 2^-40 in float64 and 2^30, -2^30 and
2^-30 in float32. A right rule may lose accuracy there, overflow or underflow, so only what is finite, should be a
normal number and is wrong by more than five percent is held against it. Of a rule that declares a side loss, the part
that depends on the incoming gradient is examined.

## Why it matters
A vector-Jacobian product is linear by definition. A rule that ignores the incoming gradient, clamps it, takes its sign
or rounds it is right only when the incoming gradient is one, and fails under loss scaling, weighting, accumulation and
mixed precision. ``gradcheck`` feeds one-hot cotangents of value 1 and cannot see it.

## If it fails
Look for a term without ``grad_output``, a comparison or clamp of ``grad_output``, or a cast of it.

## References
linkedin/Liger-Kernel issues 968 and 1298; SeanNaren/warp-ctc issue 170.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import side_losses_in_graph
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_linearity
from gradwright.checking.intended import linear_part, without_offset
from gradwright.checking.intent_guess import as_suspect, guess
from gradwright.checking.judge import one_unit_away
from gradwright.checking.magnitudes import largest_in_backward
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.tensors import join, real_dtype

RELATIVE, OF_LARGEST = 1e-11, 1e-12
"""Allowances in float64, as a fraction of the terms compared and of the largest entry; wider in lower precision."""
SCATTERS = 3
"""Neighbouring points at which the rounding of an accused rule is measured."""
FAR_RELATIVE = 0.05
"""Allowance at far scales: torch.matrix_exp, whose backward embeds the cotangent in a matrix, loses 1e-3 at 2^40."""
OF_SCATTER = 8.0
"""Allowance as a multiple of the largest change among the neighbours."""


@dataclass(frozen=True)
class Deviation:
    """A broken identity: what B gave and what linearity asks for."""

    got: Tensor
    want: Tensor
    size: Tensor
    """Magnitude of the terms that were compared, which a cancelling sum may lack."""
    allowed: Tensor

    @property
    def excess(self) -> Tensor:
        """How far each element is outside its allowance, as a multiple of it; NaN counts as infinitely far."""
        both_nan = self.got.isnan() & self.want.isnan()
        # Where a term is infinite (the slope is), infinity minus infinity is no fault of the rule.
        excused = both_nan | self.size.isinf() | (self.got == self.want)
        ratio = (self.got - self.want).abs() / self.allowed
        return torch.where(excused, 0.0, ratio.nan_to_num(torch.inf))

    @property
    def broken(self) -> bool:
        """True when any element is outside its allowance."""
        return bool((self.excess > 1).any())


@contract(asks="is the gradient right?", presupposes=("gradient-shape-and-dtype", "cotangent-untouched"))
def examine(case: Case) -> Outcome:
    """Compare B at scaled and summed cotangents with what linearity asks for."""
    obstacle = without_linearity(case)
    if obstacle is not None:
        return obstacle
    outcome = _compare(linear_part(case))
    if outcome.verdict != "fail":
        return outcome
    beside = [] if case.subject.hand_written else side_losses_in_graph(case)
    if beside:
        return Outcome("skipped", f"{', '.join(beside)} takes part, which declares a side loss; check it by itself")
    meant = guess(case, (), ())
    if meant is None or meant.value != ("side-loss",):
        return outcome
    rest = _compare(without_offset(case))
    return rest if rest.verdict == "fail" else as_suspect(case, meant, outcome)


def _compare(case: Case) -> Outcome:
    short, long = _split_cotangent(case)
    v = short + long

    def rule(cotangent: Tensor) -> Tensor:
        return join(case.pull_all(cotangent))

    at_v, at_short, at_long, at_zero = rule(v), rule(short), rule(long), rule(torch.zeros_like(v))
    largest = float(join([at_v, at_short, at_long]).nan_to_num(0.0, 0.0, 0.0).abs().max())
    relative, of_largest = max(RELATIVE, 64 * case.epsilon), max(OF_LARGEST, 16 * case.epsilon)
    granted = case.allowances

    def against(got: Tensor, want: Tensor, size: Tensor, scale: float = 1.0) -> Deviation:
        finite = size.nan_to_num(0.0, 0.0, 0.0).abs()
        allowed = relative * finite + of_largest * abs(scale) * largest + 1e-300
        return Deviation(got, want, size.abs(), allowed + granted.rtol * finite + granted.atol * max(1.0, abs(scale)))

    # Where the derivative itself is infinite, zero times infinity is no fault of the rule.
    zero = against(torch.where(at_v.isfinite(), at_zero, 0.0), torch.zeros_like(at_zero), at_v)
    if zero.broken:
        return _report(case, v * 0, zero, *_not_zero_at_zero(at_zero, at_v))
    if len(case.outputs) > 1:
        parts = _one_output_each(case, v)
        each = torch.stack([rule(part) for part in parts])
        apart = against(at_v, each.sum(0), each.abs().sum(0))
        if _convicted(case, apart, [v, *parts]):
            return _report(case, v, apart, *OUTPUTS_MIXED)
    total = against(at_v, at_short + at_long, at_short.abs() + at_long.abs())
    mixed = _convicted(case, total, [v, short, long])
    rounding = _rounding(rule, v, at_v, total) if mixed else None
    if rounding is not None:  # before the scales, at some of which a short dtype overflows too
        return _report(case, v, total, *rounding)
    small = 2.0**-4 if case.epsilon > 1e-4 else 2.0**-20
    far = _far_scales(case)
    scaled = {s: rule(s * v) for s in (-1.0, 2.0**10, small, *far)}
    for s, at_scaled in scaled.items():
        want = s * at_v
        got = torch.where(_beyond_range(case, want, at_scaled, s in far), want, at_scaled)
        deviation = against(got, want, want, s)
        if s in far:
            deviation.allowed.add_(FAR_RELATIVE * abs(s) * largest)
        if _convicted(case, deviation, [s * v, s * v]):
            words = WHOLE_NUMBERS if _to_whole_numbers(rule, v, at_v) else _not_homogeneous(s, at_v, scaled)
            return _report(case, s * v, deviation, *words)
    if mixed:
        return _report(case, v, total, *NOT_ADDITIVE)
    besides = "apart from what is declared to be added whatever comes in, " if case.adjust is not None else ""
    powers = ", ".join("-1" if s == -1.0 else _power(s) for s in scaled)
    return Outcome(
        "pass",
        f"{besides}B(0) = 0, B(sv) = sB(v) for s = {powers}, and B(v + w) = B(v) + B(w)",
        sensitivity=relative + granted.rtol,
    )


def _split_cotangent(case: Case) -> tuple[Tensor, Tensor]:
    """Draw the two parts of a signed cotangent: one of six binary digits, and one of all the digits there are.

    The long part is a number of thirds, at most a quarter of the other. Thirds stay a third of the last place away from
    every number of fewer digits, in the sum and in the part, and the last places of the two differ. So a cast to any
    shorter dtype changes B(v + w) by something else than B(w), whatever the seed and even for a single element.
    """
    generator = case.generator("linear")

    def draw(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (case.m,), generator=generator).to(torch.float64)

    short = (2 * draw(0, 2) - 1) * draw(16, 49) / 32
    thirds = 3 * draw(0, 4) + draw(1, 3)
    return short, (2 * draw(0, 2) - 1) * (thirds / 96 + draw(0, 128) * 2.0**-23)


def _far_scales(case: Case) -> tuple[float, ...]:
    """Return scales for limits and thresholds that no common cotangent meets, well inside the range of the dtype."""
    if case.epsilon > 1e-6:
        return ()
    reach = 40 if case.epsilon < 1e-12 else 30
    return (2.0**reach, -(2.0**reach), 2.0**-reach)


def _beyond_range(case: Case, want: Tensor, got: Tensor, far: bool) -> Tensor:
    """Tell which elements a right rule may have lost to overflow or underflow.

    A factor of backward may be as large as the gradient is small, so at far scales every overflow is excused; at the
    common ones that of a gradient which is itself near the end of its range.
    """
    limits = [torch.finfo(real_dtype(item.tensor.dtype)) for item in case.inputs]
    largest, smallest = (
        torch.cat([torch.full((n,), value, dtype=torch.float64) for n, value in zip(case.n, values)])
        for values in ([limit.max / 16 for limit in limits], [limit.tiny * 1024 for limit in limits])
    )
    beyond = (want.abs() > largest) | ((want.abs() < smallest) & (want != 0))
    return beyond | ~got.isfinite() if far else beyond


def _power(s: float) -> str:
    """Write a power of two, or its negative."""
    return f"{'-' if s < 0 else ''}2^{math.log2(abs(s)):g}"


ROUNDED_UNITS = 16
"""Sums of rounded terms differ by some units; a mask or a sign, for which a rounded v is as good, by far more."""
OUTPUTS_MIXED = (
    "backward mixes the gradients that come in for different outputs: all of them together do not give the sum of what "
    "each gives alone.",
    "look for a product of two incoming gradients, or for one that overwrites the other.",
)
WHOLE_NUMBERS = (
    "grad_output is rounded to whole numbers on its way.",
    "look for a cast of grad_output to integers, or a round, floor or trunc of it.",
)
NOT_ADDITIVE = (
    "backward mixes elements or outputs non-linearly: B(v + w) is not B(v) + B(w).",
    "look for a product of two incoming gradients, or for one that overwrites the other.",
)


def _one_output_each(case: Case, v: Tensor) -> list[Tensor]:
    """Split a cotangent into parts that are zero outside one output each."""
    parts = []
    for output in range(len(case.outputs)):
        part = torch.zeros_like(v)
        where = case.output_slice(output)
        part[where] = v[where]
        parts.append(part)
    return parts


def _convicted(case: Case, deviation: Deviation, cotangents: list[Tensor]) -> bool:
    """Tell whether an identity is broken by more than the rounding of the rule itself, and widen its allowance by that.

    Where large terms cancel (the layer norm of two elements, a correlation of two points) what is left is small against
    its own rounding, which moves with the inputs by one rounding unit as much as with the cotangent.
    """
    if not deviation.broken:
        return False
    generator = case.generator("linear scatter")
    scatter = torch.zeros_like(deviation.allowed)
    base = [join(case.pull_all(c)) for c in cotangents]
    for _ in range(SCATTERS):
        moved = {k: one_unit_away(x, generator) for k, x in enumerate(case.base)}
        changes = [(join(case.pull_all(c, moved)) - b).abs() for c, b in zip(cotangents, base)]
        scatter = scatter.maximum(sum(changes[1:], changes[0]).nan_to_num(0.0, 0.0, 0.0))
    # In proportion to the cotangent, whatever constants backward works with besides.
    size = max(float(c.abs().max()) for c in cotangents)
    cancelled = case.epsilon * size * largest_in_backward(case, cotangents[0] / (size or 1.0))
    deviation.allowed.add_(OF_SCATTER * (scatter + scatter.median() + cancelled))
    return deviation.broken


def _not_zero_at_zero(at_zero: Tensor, at_v: Tensor) -> tuple[str, str]:
    if bool(at_zero.isnan().any()):
        return (
            "backward gives NaN for a zero incoming gradient (0 times infinity, or 0/0).",
            "guard the infinite factor: an unused output sends a zero gradient.",
        )
    if torch.equal(at_zero, at_v):
        return (
            "the factor grad_output is missing: backward gives the same for every incoming gradient, zero included.",
            "multiply by grad_output: `return grad_output * derivative`.",
        )
    return (
        "backward gives a non-zero gradient for a zero incoming gradient: a term is added that does not contain "
        "grad_output.",
        "every term of backward must be multiplied by grad_output, none added to it.",
    )


def _not_homogeneous(s: float, at_v: Tensor, scaled: dict[float, Tensor]) -> tuple[str, str]:
    if torch.equal(scaled[-1.0], at_v) and torch.equal(scaled[2.0**10], at_v):
        return (
            "backward gives the same whatever comes in, unless that is zero: grad_output is taken for a mask of zeros "
            "and ones.",
            "multiply by grad_output itself, not by whether it is zero.",
        )
    if torch.equal(scaled[-1.0], at_v):
        return (
            "backward gives the same for v and -v: the absolute value or a square of grad_output is used.",
            "use grad_output itself, with its sign.",
        )
    if torch.equal(scaled[2.0**10], at_v):
        return (
            "backward does not depend on the size of grad_output, only on its sign or direction.",
            "multiply by grad_output itself: do not take its sign, mask or normalise it.",
        )
    if s == -1.0:
        return (
            "backward treats positive and negative grad_output differently: B(-v) is not -B(v).",
            "look for a relu, clamp or comparison of grad_output.",
        )
    if abs(s) > 1:
        return (
            f"backward limits large incoming gradients: B({_power(s)} v) is not {_power(s)} B(v).",
            "look for a clamp, a normalisation or a cast of grad_output to half precision; clip gradients in the "
            "training loop, or declare the rule with surrogate=.",
        )
    return (
        f"backward loses small incoming gradients: B({_power(s)} v) is not {_power(s)} B(v).",
        "look for a threshold, a cast to half precision or an added epsilon on grad_output.",
    )


def _to_whole_numbers(rule: Callable[[Tensor], Tensor], v: Tensor, at_v: Tensor) -> bool:
    """Tell whether a rule gives the same for a cotangent of whole numbers, and is linear in those."""
    for rounded in (v.round(), v.trunc(), v.floor()):
        if bool((rounded != 0).any()) and torch.equal(rule(rounded), at_v):
            return torch.equal(rule(2 * rounded), 2 * at_v)
    return False


def _rounding(rule: Callable[[Tensor], Tensor], v: Tensor, at_v: Tensor, total: Deviation) -> tuple[str, str] | None:
    """Name what the incoming gradient was rounded to: a rule that rounds it gives the same for what is already rounded.

    Where that does not show (backward rounds more than grad_output), by how little the parts fail to add up.
    """
    if _to_whole_numbers(rule, v, at_v):
        return WHOLE_NUMBERS
    relative = (total.got - total.want).abs() / total.size.clamp(min=1e-300)
    worst = float(relative[total.excess > 1].max())
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        rounded, unit = v.to(dtype).to(v.dtype), torch.finfo(dtype).eps / 2
        if worst <= ROUNDED_UNITS * unit and not torch.equal(rounded, v) and torch.equal(rule(rounded), at_v):
            return _rounded_to(dtype, worst)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        if worst <= 3 * torch.finfo(dtype).eps / 4:
            return _rounded_to(dtype, worst)
    return None


def _rounded_to(dtype: torch.dtype, worst: float) -> tuple[str, str]:
    name = str(dtype).removeprefix("torch.")
    return (
        f"grad_output is rounded to {name} on its way: B(v + w) and B(v) + B(w) differ by {worst:.1e} of their size.",
        f"look for a cast of grad_output to {name}.",
    )


def _report(case: Case, cotangent: Tensor, deviation: Deviation, message: str, hint: str) -> Outcome:
    position = int(deviation.excess.argmax())
    k, i = 0, position
    while i >= case.n[k]:
        i -= case.n[k]
        k += 1
    where = Where(input=case.inputs[k].name, index=case.locate_input(k, i))
    got, want = float(deviation.got[position]), float(deviation.want[position])
    inputs = ", ".join(repro.variable(item.name) for item in case.inputs)
    body = [
        repro.cotangent_line(case, "v", cotangent),
        f"grads = torch.autograd.grad({repro.differentiable(case)}, [{inputs}], v, allow_unused=True)",
        f'print("backward gives", grads[{k}], "where linearity asks for {want:.6g} at {list(where.index or ())}")',
    ]
    finding = Finding(
        "fail", message, hint, where, got, want, float(deviation.allowed[position]), repro.script(case, body)
    )
    return Outcome("fail", message, (finding,))
