"""Value and gradient are those of the reference that is declared.

## What it checks
For a sample that declares ``reference=fn``, a plain-PyTorch version: the outputs, and the gradients for several signed
random incoming gradients (not those of a rule that is declared to be something else than the derivative), in the
precision of the inputs and in float32. In low precision the reference is evaluated in float64 on the rounded inputs,
and the rounding budget of low-precision is allowed.

## Why it matters
Differences compare a gradient with its own forward: when both implement the wrong function, they agree. A reference is
the only witness of what was meant.

## If it fails
Where the value is wrong, forward is; where only the gradient is, backward is, or the two differ at a point where the
function is not smooth, which the check looks at before it reports anything.

## References
Higham, Accuracy and Stability of Numerical Algorithms, chapters 1 and 3 (mixed forward-backward error).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.checking import repro, ulp
from gradwright.checking.audit import audit, random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.companions import companion_pass, pull_companion
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_numbers
from gradwright.checking.intent import deviates
from gradwright.checking.judge import Tolerance, largest_entry
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.tensors import from_flat
from gradwright.checking.variants import quietly, vary

COTANGENTS = 3
NEARBY = 1e-5
"""How far, relative to the inputs, one goes to see whether a difference in gradients is only that of a kink."""


@contract(asks="is the gradient right?")
def examine(case: Case) -> Outcome:
    """Compare value and gradient with those of the declared reference."""
    if case.sample.reference is None:
        return Outcome("skipped", "no reference is declared")
    obstacle = without_numbers(case)
    if obstacle is not None:
        return obstacle
    with quietly():
        return _in_all_precisions(case)


def _in_all_precisions(case: Case) -> Outcome:
    if case.level == "quick" or case.dtype != torch.float64 or case.randomness != "none":
        precisions = [case.dtype]
    else:
        precisions = [torch.float64, torch.float32]
        precisions += [torch.bfloat16, torch.float16] if case.level == "full" else []
    done = []
    for dtype in precisions:
        here = case if dtype == case.dtype else case.twin(dtype)
        if here is None or (here is not case and not _is_comparable(here, case)):
            continue
        outcome = _compare(here)
        if outcome.verdict != "pass":
            return outcome
        done.append(str(dtype).removeprefix("torch."))
    gradients = "value agrees" if case.detached or deviates(case) else "value and gradient agree"
    return Outcome("pass", f"{gradients} with the reference in {', '.join(done)}")


def _is_comparable(here: Case, case: Case) -> bool:
    return [o.shape for o in here.outputs] == [o.shape for o in case.outputs] and audit(here).usable


def _compare(case: Case) -> Outcome:
    judge = _in_float64(case)
    value = judge.flatten_outputs([out.detach() for out in companion_pass(judge, "reference").outputs])
    unit = max(case.epsilon, judge.epsilon) / 2
    tolerance = Tolerance.for_epsilon(2 * unit)
    v = random_cotangent(case, "reference").to(case.dtype).to(torch.float64)
    moved: list[ulp.Moved] = []

    def allowance(want: Tensor, k: int | None) -> Tensor:
        if not moved:
            moved.append(_reference_moves(judge, v, unit))
        spread = moved[0].value if k is None else moved[0].gradients[k]
        return ulp.budget(want, spread, unit, max(case.m, sum(case.n)))

    got = case.value()
    bad = ulp.outside(got, value, 2 * tolerance.at(got, value, largest_entry(value)))
    if bool(bad.any()):
        bad &= ulp.outside(got, value, allowance(value, None))
    if bool(bad.any()):
        return _report(case, None, got, value, bad)
    if not audit(case).usable or deviates(case):
        return Outcome("pass")
    for number in range(COTANGENTS):
        v = random_cotangent(case, f"reference {number}").to(case.dtype).to(torch.float64)
        moved.clear()
        wanted = pull_companion(judge, "reference", v)
        for k, (now, want) in enumerate(zip(case.pull_all(v), wanted)):
            largest = largest_entry(*wanted)
            granted = case.allowances.of(want)
            bad = ulp.outside(now, want, 2 * tolerance.at(now, want, largest) + granted)
            if bool(bad.any()):
                bad &= ulp.outside(now, want, allowance(want, k) + granted)
            if bool(bad.any()) and not _only_at_this_point(case, k, v):
                return _report(case, k, now, want, bad)
    return Outcome("pass")


def _reference_moves(judge: Case, v: Tensor, unit: float) -> ulp.Moved:
    """Return how far value and gradient of the reference move when its data move by a few units."""
    generator = judge.generator("reference rounding")
    values, gradients = [], []
    for draw in range(1 + ulp.DRAWS):
        moved = _at(judge, [ulp.nudged(x, unit if draw else 0.0, generator) for x in judge.base])
        outputs = companion_pass(moved, "reference").outputs
        values.append(moved.flatten_outputs([out.detach() for out in outputs]))
        gradients.append(pull_companion(moved, "reference", v))
    value = torch.stack([t - values[0] for t in values[1:]]).abs().amax(dim=0).nan_to_num(0.0, 0.0, 0.0)
    spreads = [
        torch.stack([g[k] - gradients[0][k] for g in gradients[1:]]).abs().amax(dim=0).nan_to_num(0.0, 0.0, 0.0)
        for k in range(len(judge.n))
    ]
    return ulp.Moved(value, spreads)


def _at(case: Case, flats: list[Tensor]) -> Case:
    return vary(case, {(i.argument, i.leaf): from_flat(x, i.tensor) for i, x in zip(case.inputs, flats)})


def _only_at_this_point(case: Case, k: int, v: Tensor) -> bool:
    """Tell whether rule and reference agree at points nearby: then the function has a kink, and both may be right."""
    generator = case.generator("reference nearby")
    tolerance = max(1e-4, 64 * case.epsilon)
    for _ in range(3):
        there = _at(case, [ulp.nudged(x, max(NEARBY, 16 * case.epsilon), generator) for x in case.base])
        now, want = there.pull_all(v)[k], pull_companion(_in_float64(there), "reference", v)[k]
        allowed = tolerance * (want.abs().nan_to_num(0.0, 0.0, 0.0) + largest_entry(want))
        if bool(ulp.outside(now, want, allowed).any()):
            return False
    return True


def _in_float64(case: Case) -> Case:
    """Return the case to evaluate the reference on: in float64 where the subject goes there, else as it is."""
    return case if case.dtype == torch.float64 else case.twin(torch.float64) or case


def _report(case: Case, k: int | None, got: Tensor, want: Tensor, bad: Tensor) -> Outcome:
    i = ulp.worst(got, want, bad)
    count = f"{int(bad.sum())} of {len(bad)} elements"
    precision = f" in {str(case.dtype).removeprefix('torch.')}" if case.dtype != torch.float64 else ""
    if k is None:
        output, index = case.locate_output(i)
        where = Where(output=case.outputs[output].position, output_index=index)
        name = case.output_name(output)
        message = f"the value of {name} is not that of the declared reference{precision} in {count}{_off(got, want)}."
        hint = "forward computes another function than the reference."
        body = [f'print("forward gives", out, "and the reference {float(want[i]):.10g} at {list(index)}")']
    else:
        name = case.inputs[k].name
        where = Where(input=name, index=case.locate_input(k, i))
        message = (
            f"the gradient of `{name}` is not that of the declared reference{precision} in {count}{_off(got, want)}, "
            "although the values agree."
        )
        hint = "backward is not the derivative of forward: compare its formula with the reference at the element named."
        body = [f"print({repro.gradient_of_sum(case)})"]
    finding = Finding("fail", message, hint, where, float(got[i]), float(want[i]), repro=repro.script(case, body))
    return Outcome("fail", message, (finding,))


def _off(got: Tensor, want: Tensor) -> str:
    square = float(want.square().sum())
    if not square or not bool(got.isfinite().all()):
        return ""
    factor = float((got * want).sum()) / square
    explained = bool(((got - factor * want).abs() <= 1e-6 * want.abs().clamp(min=1e-300)).all())
    return f": off by the factor {factor:.6g}" if explained else ""
