"""Findings about wrong gradients: where, both values, a diagnosis and a script, from what the numerics concluded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradwright.checking import repro
from gradwright.checking.blocks import Block, Diagnosis
from gradwright.checking.case import Case
from gradwright.checking.coupling import mixed_slices
from gradwright.checking.diagnose import diagnose
from gradwright.checking.duals import supports_differences
from gradwright.checking.jacobian import Comparison
from gradwright.checking.judge import State
from gradwright.checking.pattern import find_pattern
from gradwright.checking.projection import Projection
from gradwright.checking.report import Evidence, Finding, Where

MAX_EVIDENCE = 200
UNKNOWN_REMEDY = "compare the formula of backward with the derivative of forward at the element named."

AT_A_TIE = Diagnosis(
    "tie",
    "at this kink (equal elements, say) each value alone lies between the one-sided slopes, but not all of them "
    "together: when the elements move at once, the output moves otherwise than the gradient says",
    "at a tie give the gradient to one of the equal elements, or share it among them; not the whole of it to each",
)


def wrong_entries(case: Case, block: Block, blocks: Sequence[Block]) -> Finding:
    """Return the finding for a block that was compared entry by entry; ``blocks`` are all that were compared."""
    comparison = block.comparison
    k, o = comparison.input, comparison.output
    name, estimate = case.inputs[k].name, comparison.estimate
    accused = comparison.state == State.WRONG
    c, j = worst_entry(comparison)
    i = int(block.elements[c, j])
    bar, lower, upper = (float(t[c, j]) for t in (estimate.bar, estimate.lower, estimate.upper))
    kink = upper - lower > 4 * bar
    together = kink and lower - bar <= float(comparison.analytic[c, j]) <= upper + bar
    diagnosis = AT_A_TIE if together else diagnose(block, blocks)
    count = len(block.elements[accused].unique())
    undecided = len(block.elements[comparison.state == State.UNRESOLVED].unique()) if count < case.n[k] else 0
    some = f"at least {count}" if undecided else str(count)
    message = (
        f"the gradient of {case.output_name(o)} with respect to `{name}` is wrong in {some} of {case.n[k]} elements"
        f"{f': {diagnosis.meaning}' if diagnosis else ''}."
    )
    if kink and not together:
        message += f" At this kink every value from {lower:.6g} to {upper:.6g} would be right."
    row = case.output_slice(o).start + j
    message += supports_differences(case, k, i, row, float(estimate.value[c, j]), bar)
    return Finding(
        "fail",
        message,
        f"{diagnosis.remedy}." if diagnosis else UNKNOWN_REMEDY,
        place_of(case, k, i, row),
        float(comparison.analytic[c, j]),
        float(estimate.value[c, j]),
        bar,
        _script(case, k, i, row),
    )


def worst_entry(comparison: Comparison) -> tuple[int, int]:
    """Return group and output element of the accused entry with the largest discrepancy."""
    gap = (comparison.analytic - comparison.estimate.value).abs().nan_to_num(torch.inf, torch.inf)
    accused = comparison.state == State.WRONG
    return divmod(int(torch.where(accused, gap, -1.0).argmax()), gap.shape[1])


def wrong_projection(case: Case, projection: Projection) -> Finding:
    """Return the finding for a block that was compared along a random projection."""
    k, o = projection.input, projection.output
    message = (
        f"the gradient of {case.output_name(o)} with respect to `{case.inputs[k].name}` is wrong: a random projection "
        f"of it is {projection.analytic:.10g}, of the differences {projection.numeric:.10g} ± {projection.bar:.1g}."
    )
    element = projection.element
    mixed = mixed_slices(case, k, o, find_pattern(case, k, o))
    remedy = f"{mixed.remedy}." if mixed else UNKNOWN_REMEDY
    message += f" Here {mixed.meaning}." if mixed else ""
    if element is None:
        where = Where(input=case.inputs[k].name, output=case.outputs[o].position)
        return Finding("fail", message, remedy, where, projection.analytic, projection.numeric, projection.bar)
    i, row = element.input_element, element.output_element
    message += " Bisection leads to the element named; there may be others."
    return Finding(
        "fail",
        message + supports_differences(case, k, i, row, element.numeric, element.bar),
        remedy,
        place_of(case, k, i, row),
        element.analytic,
        element.numeric,
        element.bar,
        _script(case, k, i, row),
    )


def evidence_of(case: Case, comparison: Comparison) -> Evidence:
    """Pick entries for the pictures of a report: those that are not zero on both sides, evenly if there are many.

    At kinks and jumps there is no single value to draw the analytic one against.
    """
    analytic, estimate = comparison.analytic, comparison.estimate
    wrong = comparison.state == State.WRONG
    interesting = ((analytic != 0) | (estimate.value != 0)) & (comparison.state == State.FINE) | wrong
    positions = interesting.reshape(-1).nonzero().flatten()
    picked = positions[:: max(1, len(positions) // MAX_EVIDENCE)][:MAX_EVIDENCE]
    elements = comparison.pattern.elements().reshape(-1)[picked].tolist()
    start = case.output_slice(comparison.output).start
    rows = (start + picked % analytic.shape[1]).tolist()
    labels = [str(place_of(case, comparison.input, i, row)) for i, row in zip(elements, rows)]
    bar = estimate.bar + comparison.allowed
    given, numeric, bars = (tuple(t.reshape(-1)[picked].tolist()) for t in (analytic, estimate.value, bar))
    title = f"{case.output_name(comparison.output)} with respect to `{case.inputs[comparison.input].name}`"
    return Evidence(tuple(labels), given, numeric, bars, title)


def place_of(case: Case, k: int, i: int, row: int) -> Where:
    """Name an entry of the Jacobian: input element ``i`` and element ``row`` of the joint output."""
    output, index = case.locate_output(row)
    return Where(case.inputs[k].name, case.outputs[output].position, case.locate_input(k, i), index)


def _script(case: Case, k: int, i: int, row: int) -> str:
    output, _ = case.locate_output(row)
    j = row - case.output_slice(output).start
    item = case.inputs[k]
    name = repro.variable(item.name)
    chosen = "out" if case.n_outputs == 1 else f"out[{case.outputs[output].position}]"
    if item.tensor.is_complex() or case.outputs[output].dtype.is_complex:
        return repro.script(case, [f"print(torch.autograd.grad({chosen}.abs().sum(), {name}))"])
    body = [
        f"element = {chosen}.reshape(-1)[{j}]",
        f"(grad,) = torch.autograd.grad(element, {name}, allow_unused=True)",
        f'print("backward:   ", None if grad is None else grad.reshape(-1)[{i}].item())',
        f"h = torch.zeros_like({name}).reshape(-1)",
        f"h[{i}] = {repro.step(case)} * max(1.0, abs({name}.reshape(-1)[{i}].item()))",
        f"h = h.reshape({name}.shape)",
        "def value(t):",
        f"    {name} = t",
        f"    out = {repro.call(case)}",
        f"    return {chosen}.reshape(-1)[{j}].item()",
        f'print("differences:", (value({name}.detach() + h) - value({name}.detach() - h)) / (2 * h.sum().item()))',
    ]
    return repro.script(case, body)
