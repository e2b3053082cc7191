"""A second backward through the same graph gives the same gradient.

## What it checks
``backward`` is run twice on one graph with ``retain_graph=True`` and the same incoming gradient; the two gradients must
be equal.

## Why it matters
Several losses on one output, Jacobians row by row, gradient penalties and ``torch.autograd.gradcheck`` go through one
graph several times. A backward that frees its own cache, or that overwrites what it saved, works once.

## If it fails
Leave what forward saved as it is; let ``save_for_backward`` free it (PyTorch does so after the last backward) instead
of deleting or clearing attributes of ``ctx``.

## References
dmlc/dgl issue 1046; pytorch/pytorch issue 65536.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import audit, random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.compare import Attempt, attempt, gradient_mismatch
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients
from gradwright.checking.report import Finding, Outcome, Where

HINT = (
    "leave ctx and the saved tensors as they are in backward (no clearing, deleting or in-place writing); tensors "
    "saved with ctx.save_for_backward are freed by PyTorch after the last backward."
)
ACCIDENTS = (AttributeError, TypeError, KeyError, IndexError, ValueError, AssertionError)
"""What a backward raises that stumbles over something missing, rather than refusing."""


@contract(
    asks="is it pure?", presupposes=("cotangent-untouched", "inputs-untouched", "saved-untouched", "deterministic")
)
def examine(case: Case) -> Outcome:
    """Go through one graph twice."""
    if audit(case).usable and case.m == 0:
        return Outcome("pass", "nothing to compare: the outputs are empty")
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    v = random_cotangent(case)
    run = case.forward()

    def backward() -> list[Tensor | None]:
        with case.sandbox():
            return list(
                torch.autograd.grad(
                    run.differentiable, run.inputs, case.cotangents(v), retain_graph=True, allow_unused=True
                )
            )

    first = attempt(backward)
    if first.error is not None:
        return Outcome("unsupported", f"backward with retain_graph=True raises {first.complaint}")
    kept = [None if g is None else g.detach().clone() for g in first.gradients]
    second = attempt(backward)
    if second.error is not None:
        return _raises(case, second)
    wrong = gradient_mismatch(case, second.gradients, kept)
    if wrong is None:
        return Outcome("pass", "two backwards through one graph give the same gradient")
    name = case.inputs[wrong.number].name
    message = (
        f"the second backward through the same graph gives another gradient of `{name}`: {wrong.words}; the first "
        "backward changed what it works with."
    )
    where = Where(name, index=case.locate_input(wrong.number, wrong.position))
    finding = Finding("fail", message, HINT, where, wrong.got, wrong.want, wrong.allowed, _script(case))
    return Outcome("fail", message, (finding,))


def _raises(case: Case, second: Attempt) -> Outcome:
    own_graph = "backward through the graph a second time" in str(second.error)
    if not isinstance(second.error, ACCIDENTS) and not (own_graph and case.subject.function is not None):
        return Outcome("unsupported", f"a second backward through the same graph raises {second.complaint}")
    message = f"the second backward through the same graph raises {second.complaint}, although retain_graph=True."
    hint = HINT
    if own_graph:
        hint = "backward differentiates a graph of its own and frees it: rebuild that graph in backward, or retain it."
    return Outcome("fail", message, (Finding("fail", message, hint, repro=_script(case)),))


def _script(case: Case) -> str:
    names = ", ".join(repro.variable(item.name) for item in case.inputs)
    return repro.script(
        case,
        [
            repro.cotangent_line(case, "g", random_cotangent(case)),
            "for _ in range(2):",
            f"    print(torch.autograd.grad({repro.differentiable(case)}, [{names}], g, retain_graph=True, "
            "allow_unused=True))",
        ],
    )
