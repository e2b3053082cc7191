"""An output without a gradient does not move with the inputs.

## What it checks
Every floating-point output that does not require grad, because it was marked with ``ctx.mark_non_differentiable`` or
lost its graph: it is evaluated at nearby inputs. One that moves in proportion to the step has a derivative that
autograd takes for zero. Integer outputs, and outputs that only jump (masks, rounded values, indices stored as floats),
have none. A marked output that is also saved for backward, itself, a view or a copy of it, is taken for an intermediate
result that is returned in order to be saved.

A statistic that no loss may use (a maximum, a norm for the log) is marked on purpose, and looks exactly like a loss
term that was marked by mistake: both move, and backward uses neither. Nothing the code does tells them apart, so the
intent has to be declared: an output that the declared ``reference`` detaches is meant to have no gradient.

## Why it matters
A loss on such an output trains nothing, without an error. ``gradcheck`` leaves it out when another output has a
gradient.

## If it fails
Do not mark the output, and add its term to backward; or return it to nobody. If it is meant to have no gradient,
declare ``reference=`` with a plain version that returns it with ``.detach()``.

## References
pytorch/pytorch issue 194869.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking import repro
from gradwright.checking.audit import functions_in_graph
from gradwright.checking.case import Case
from gradwright.checking.companions import companion_run
from gradwright.checking.contracts import contract
from gradwright.checking.differences import element_steps, signed
from gradwright.checking.graph import graph_nodes
from gradwright.checking.guards import without_numbers
from gradwright.checking.intent import declared
from gradwright.checking.parts import Pass
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.tensors import same_bits, to_flat
from gradwright.typing import Verdict

MAX_INPUTS = 12
SHRINK = 0.125
"""The second step as a part of the first; a power of two."""


@dataclass(frozen=True)
class Movement:
    """How an output was seen to move with an input."""

    input: int
    position: int
    slope: float


@contract(asks="is the interface kept?", depends_on_meaning=True, presupposes=("gradients-reach-leaves",))
def examine(case: Case) -> Outcome:
    """Move the inputs and look at the outputs that have no gradient."""
    if case.detached:
        return Outcome("skipped", "no output requires grad; see matches-differences")
    if "forward-only" in declared(case):
        return Outcome("skipped", "declared forward-only")
    exact = case.exact
    run = exact.forward()
    watched = [
        p
        for p, out in enumerate(run.outputs)
        if (out.is_floating_point() or out.is_complex()) and not out.requires_grad
    ]
    if not watched:
        return Outcome("pass", "every floating-point output requires grad")
    obstacle = without_numbers(exact)
    if obstacle is not None:
        return obstacle
    findings, remarks = [], []
    for position in watched:
        movement = _movement(exact, run, position)
        if movement is None:
            continue
        name = exact.inputs[movement.input].name
        if _saved(run, position):
            remarks.append(f"output {position} moves with `{name}`, but is saved for backward: an intermediate result")
            continue
        if _declared(case, position):
            remarks.append(f"output {position} moves with `{name}`, but is detached in the declared reference too")
            continue
        verdict = _verdict(exact)
        if verdict == "pass":
            remarks.append(f"output {position} moves with `{name}` and was detached in plain code, taken as meant")
            continue
        findings.append(_finding(exact, run, position, movement, verdict))
    if findings:
        return Outcome(findings[0].verdict, findings[0].message, tuple(findings))
    count = f"{len(watched)} output{'s' if len(watched) != 1 else ''} without a gradient"
    return Outcome("pass", "; ".join([count, *remarks]) if remarks else f"{count}, none of which moves with an input")


def _verdict(case: Case) -> Verdict:
    if case.subject.hand_written:
        return "fail"
    # In plain code a `.detach()` is visible and usually meant; near a custom gradient it deserves a look.
    return "suspect" if functions_in_graph(case) else "pass"


def _saved(run: Pass, position: int) -> bool:
    output = run.outputs[position].detach()
    inputs = {t.data_ptr() for t in run.inputs}
    for node in graph_nodes(run.differentiable):
        if torch_compat.node_function(node) is None:
            continue
        for saved in node.saved_tensors:
            if saved is None or saved.numel() != output.numel() or saved.layout != torch.strided:
                continue
            same_memory = saved.data_ptr() == output.data_ptr()
            copied = saved.data_ptr() not in inputs and same_bits(saved.reshape(output.shape), output)
            if output.numel() and (same_memory or copied):
                return True
    return False


def _declared(case: Case, position: int) -> bool:
    """Tell whether the declared reference returns the output without a gradient, too."""
    if case.sample.reference is None:
        return False
    outputs = companion_run(case, "reference").outputs
    return len(outputs) == case.n_outputs and not outputs[position].requires_grad


def _movement(case: Case, run: Pass, position: int) -> Movement | None:
    """Look for an element that moves in proportion to the step, in both directions."""
    here = to_flat(run.outputs[position]).to(torch.float64)
    noise = 1e4 * case.epsilon * here.nan_to_num(0.0, 0.0, 0.0).abs() + 1e-300

    def moved(k: int, step: Tensor) -> Tensor | None:
        out = case.forward({k: case.base[k] + step}).outputs[position]
        flat = to_flat(out).to(torch.float64)
        return flat - here if flat.shape == here.shape else None

    for k in range(min(len(case.inputs), MAX_INPUTS)):
        x = case.base[k]
        step = signed(case.n[k], case.generator(f"output {position}")) * element_steps(x) * 1e-3
        try:
            far, near, back = moved(k, step), moved(k, step * SHRINK), moved(k, -step * SHRINK)
        except Exception:  # beyond the domain of forward
            continue
        if far is None or near is None or back is None:
            continue
        proportional = (near - SHRINK * far).abs() <= 0.1 * near.abs()
        seen = proportional & ((near + back).abs() <= 0.1 * near.abs()) & (near.abs() > noise)
        if bool(seen.any()):
            i = int((near.abs() * seen).argmax())
            return Movement(k, i, float(near[i] / (step.abs().max() * SHRINK)))
    return None


def _finding(case: Case, run: Pass, position: int, movement: Movement, verdict: Verdict) -> Finding:
    name = case.inputs[movement.input].name
    function = case.subject.hand_written
    how = "is marked as non-differentiable" if function else "carries no graph"
    message = (
        f"output {position} {how}, but moves with `{name}` (it changes at the rate {movement.slope:.3g} along a "
        "direction): a loss on it trains nothing, without an error."
    )
    hint = (
        f"leave output {position} out of ctx.mark_non_differentiable and add its term to backward; if it is a "
        "statistic that no loss may use, say so: declare reference= with a plain version that returns output "
        f"{position} with .detach()."
        if function
        else f"if output {position} was detached by accident, compute it from the inputs; if on purpose, all is well."
    )
    body = [
        f'print("output {position} requires grad:", out[{position}].requires_grad)',
        f"with torch.no_grad():\n    {repro.variable(name)}.mul_(1.001)",
        f'print("it moved by", ({repro.call(case)}[{position}] - out[{position}]).abs().max())',
    ]
    return Finding(verdict, message, hint, Where(name, position), 0.0, movement.slope, repro=repro.script(case, body))
