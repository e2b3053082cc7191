"""The gradient is the derivative of the forward, as far as differences can tell.

## What it checks
The Jacobian that backward gives, entry by entry for small inputs and along signed random projections for large ones,
against extrapolated central differences, each with its own error bar. At a kink any value between the one-sided slopes
is right. An accused entry is tried again with finer steps, and at points one rounding unit away, before it is reported.
Inputs of lower precision are judged on their float64 twin, where the subject runs there.

## Why it matters
A wrong gradient trains without an error. It is usually found months later, by somebody who re-derives the formula.

## If it fails
Read the diagnosis; the repro prints the analytic and the numeric value of the worst element.

## References
Ridders, Adv. Eng. Software 4 (1982) 75. Moré and Wild, SIAM J. Sci. Comput. 33 (2011) 1292. Clarke, Optimization and
Nonsmooth Analysis (1983).
"""

from __future__ import annotations

import torch

from gradwright.checking import repro
from gradwright.checking.audit import audit, user_location
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.diagnose import Block, block_of, diagnose
from gradwright.checking.guards import without_gradients, without_numbers
from gradwright.checking.jacobian import Comparison, compare, fits_dense
from gradwright.checking.judge import State, largest_entry
from gradwright.checking.projection import Projection, project
from gradwright.checking.report import Evidence, Finding, Outcome, Where
from gradwright.errors import describe_exception
from gradwright.typing import Verdict

MAX_EVIDENCE = 200
UNKNOWN_REMEDY = "compare the formula of backward with the derivative of forward at the element named"


@contract(asks="is the gradient right?", depends_on_meaning=True)
def examine(case: Case) -> Outcome:
    """Compare the gradient with differences."""
    if case.sample.surrogate is not None:
        return Outcome("skipped", "a surrogate is declared, so the rule is not the derivative; see matches-surrogate")
    watched = audit(case)
    if watched.no_backward:
        return Outcome("unsupported", "there is no backward: differentiating raises")
    if watched.user_error is not None:
        return _raises(case, watched.user_error)
    if watched.engine_error is not None:
        if case.subject.function is None:
            return _raises(case, watched.engine_error)
        return Outcome("skipped", f"{watched.obstacle}; see gradient-count and gradient-shape-and-dtype")
    exact = case.exact
    obstacle = without_numbers(exact) if exact.detached else without_gradients(exact)
    if obstacle is not None:
        return obstacle
    twin = ", judged on its float64 twin" if exact is not case else ""
    if exact.detached:
        return _detached(exact)
    if fits_dense(exact):
        return _dense(exact, twin)
    return _projected(exact, twin)


def _raises(case: Case, error: Exception) -> Outcome:
    place = user_location(error)
    message = f"backward raises {describe_exception(error)}{f' at {place}' if place else ''}."
    body = ["(out[0] if isinstance(out, tuple) else out).sum().backward()  # raises"]
    hint = "mend backward; the repro raises the same error with its full traceback."
    return Outcome("fail", message, (Finding("fail", message, hint, repro=repro.script(case, body)),))


def _detached(case: Case) -> Outcome:
    """No output requires grad: right only when the outputs do not move."""
    generator = case.generator("detached")
    for k, x in enumerate(case.base):
        moved = x * (1 + 0.01 * torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.dtype))
        if not torch.equal(case.value({k: moved}), case.value()):
            name = case.inputs[k].name
            message = (
                f"no output requires grad, although the output moves with `{name}`: its gradient is lost without an "
                "error."
            )
            hint = (
                "return a tensor computed from the inputs (not detached, not from NumPy outside a Function, not marked "
                "with ctx.mark_non_differentiable)."
            )
            return Outcome("fail", message, (Finding("fail", message, hint, Where(input=name)),))
    return Outcome("pass", "no output requires grad, and none moves with the inputs")


# -------------------------------------------------------------------- dense


def _dense(case: Case, twin: str) -> Outcome:
    comparisons = compare(case)
    findings = []
    for output in range(len(case.outputs)):
        blocks = [block_of(case, comparison, output) for comparison in comparisons]
        for comparison, block in zip(comparisons, blocks):
            where = case.output_slice(output)
            if bool((comparison.state[:, where] == State.WRONG).any()):
                findings.append(_wrong(case, comparison, block, blocks, where))
    evidence = tuple(_evidence(case, comparison) for comparison in comparisons)
    counts = {state: sum(int((c.state == state).sum()) for c in comparisons) for state in State}
    total = sum(counts.values())
    sensitivity = _sensitivity(comparisons)
    if findings:
        return Outcome("fail", findings[0].message, tuple(findings), sensitivity, evidence)
    notes = [f"{total} entries of the Jacobian{twin}"]
    if counts[State.SUBGRADIENT]:
        notes.append(f"{counts[State.SUBGRADIENT]} at a kink, where the gradient is a valid subgradient")
    if counts[State.UNDEFINED]:
        notes.append(f"{counts[State.UNDEFINED]} where the function jumps or is infinitely steep, not judged")
    if counts[State.UNRESOLVED]:
        notes.append(f"{counts[State.UNRESOLVED]} whose error bar is too wide to tell")
    undecided = counts[State.UNRESOLVED] + counts[State.UNDEFINED]
    verdict: Verdict = "unresolved" if undecided > total / 2 else "pass"
    return Outcome(verdict, "; ".join(notes), (), sensitivity, evidence)


def _sensitivity(comparisons: list[Comparison]) -> float | None:
    largest = largest_entry(*(c.estimate.value for c in comparisons))
    smallest_seen = 0.0
    for c in comparisons:
        resolved = (c.state == State.FINE) | (c.state == State.WRONG)
        if bool(resolved.any()):
            smallest_seen = max(smallest_seen, float((c.estimate.bar + c.allowed)[resolved].max()))
    if largest == 0.0 or smallest_seen == 0.0:
        return smallest_seen or None
    return smallest_seen / largest


def _wrong(case: Case, comparison: Comparison, block: Block, blocks: list[Block], where: slice) -> Finding:
    k = comparison.input
    name = case.inputs[k].name
    output = block.output
    accused = comparison.state[:, where] == State.WRONG
    gap = (block.analytic - block.numeric).abs().nan_to_num(torch.inf, torch.inf)
    gap = torch.where(accused, gap, -1.0)
    i, j = divmod(int(gap.argmax()), gap.shape[1])
    diagnosis = diagnose(block, blocks)
    explanation = f": {diagnosis.meaning}" if diagnosis else ""
    rows = int(accused.any(dim=1).sum())
    message = (
        f"the gradient of {case.output_name(output)} with respect to `{name}` is wrong in {rows} of {case.n[k]} "
        f"elements{explanation}."
    )
    first = where.start + j
    place = Where(
        input=name,
        output=case.outputs[output].position,
        index=case.locate_input(k, i),
        output_index=case.locate_output(first)[1],
    )
    analytic = float(block.analytic[i, j])
    numeric, bar = float(block.numeric[i, j]), float(comparison.estimate.bar[:, where][i, j])
    lower = float(comparison.estimate.lower[:, where][i, j])
    upper = float(comparison.estimate.upper[:, where][i, j])
    if upper - lower > 4 * bar:
        message += f" At this kink every value from {lower:.6g} to {upper:.6g} would be right."
    return Finding(
        "fail",
        message,
        f"{diagnosis.remedy if diagnosis else UNKNOWN_REMEDY}.",
        place,
        analytic,
        numeric,
        bar,
        _script(case, k, i, first),
    )


def _evidence(case: Case, comparison: Comparison) -> Evidence:
    m = comparison.analytic.shape[1]
    interesting = (comparison.analytic != 0) | (comparison.estimate.value != 0) | (comparison.state == State.WRONG)
    positions = interesting.reshape(-1).nonzero().flatten().tolist()
    stride = max(1, len(positions) // MAX_EVIDENCE)
    picked = positions[::stride][:MAX_EVIDENCE]
    name = case.inputs[comparison.input].name
    labels = []
    for position in picked:
        i, j = divmod(position, m)
        output, index = case.locate_output(j)
        source = Where(name, case.outputs[output].position, case.locate_input(comparison.input, i), index)
        labels.append(str(source))
    flat = [t.reshape(-1)[picked].tolist() for t in (comparison.analytic, comparison.estimate.value)]
    bars = comparison.estimate.bar.reshape(-1)[picked].tolist()
    return Evidence(tuple(labels), tuple(flat[0]), tuple(flat[1]), tuple(bars))


# -------------------------------------------------------------------- projected


def _projected(case: Case, twin: str) -> Outcome:
    projections = project(case)
    findings = tuple(_wrong_projection(case, p) for p in projections if p.wrong)
    resolved = [p for p in projections if not p.unresolved]
    sensitivity = max((p.bar / p.size for p in resolved if p.size), default=None)
    if findings:
        return Outcome("fail", findings[0].message, findings, sensitivity)
    open_ones = len(projections) - len(resolved)
    message = f"{len(projections)} signed random projections of the Jacobian{twin}"
    if open_ones:
        message += f"; {open_ones} whose error bar is too wide to tell"
    return Outcome("unresolved" if open_ones > len(projections) / 2 else "pass", message, (), sensitivity)


def _wrong_projection(case: Case, projection: Projection) -> Finding:
    name = case.inputs[projection.input].name
    message = (
        f"the gradient of {case.output_name(projection.output)} with respect to `{name}` is wrong: a random "
        f"projection of it is {projection.analytic:.10g}, of the differences {projection.numeric:.10g} "
        f"± {projection.bar:.1g}."
    )
    element = projection.element
    if element is None:
        where = Where(input=name, output=case.outputs[projection.output].position)
        return Finding(
            "fail", message, f"{UNKNOWN_REMEDY}.", where, projection.analytic, projection.numeric, projection.bar
        )
    where = Where(
        name,
        case.outputs[projection.output].position,
        case.locate_input(projection.input, element.input_element),
        case.locate_output(element.output_element)[1],
    )
    message += " Bisection leads to the element named; there may be others."
    return Finding(
        "fail",
        message,
        f"{UNKNOWN_REMEDY}.",
        where,
        element.analytic,
        element.numeric,
        element.bar,
        _script(case, projection.input, element.input_element, element.output_element),
    )


def _script(case: Case, k: int, i: int, j: int) -> str:
    output, _ = case.locate_output(j)
    row = j - case.output_slice(output).start
    item = case.inputs[k]
    name = repro.variable(item.name)
    chosen = "out" if case.n_outputs == 1 else f"out[{case.outputs[output].position}]"
    if item.tensor.is_complex() or case.outputs[output].dtype.is_complex:
        return repro.script(case, [f"print(torch.autograd.grad({chosen}.abs().sum(), {name}))"])
    body = [
        f"element = {chosen}.reshape(-1)[{row}]",
        f"(grad,) = torch.autograd.grad(element, {name}, allow_unused=True)",
        f'print("backward:   ", None if grad is None else grad.reshape(-1)[{i}].item())',
        f"h = torch.zeros_like({name}).reshape(-1)",
        f"h[{i}] = 1e-6 * max(1.0, abs({name}.reshape(-1)[{i}].item()))",
        f"h = h.reshape({name}.shape)",
        "def value(t):",
        f"    {name} = t",
        f"    out = {repro.call(case)}",
        f"    return {chosen}.reshape(-1)[{row}].item()",
        f'print("differences:", (value({name}.detach() + h) - value({name}.detach() - h)) / (2 * h.sum().item()))',
    ]
    return repro.script(case, body)
