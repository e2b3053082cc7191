"""Backward leaves the incoming gradient as it was.

## What it checks
The bytes of ``grad_output`` before and after ``backward``, so that writes by NumPy, C++ or Triton are seen too, with a
cotangent of its own memory and with an expanded one (stride 0), as ``out.sum().backward()`` sends it.

## Why it matters
The same tensor may be the gradient of another branch of the graph: writing to it corrupts that branch, depending on the
order in which the branches are visited. An in-place operation on an expanded gradient raises.

## If it fails
Work on a copy (``grad_output.clone()``) or use the out-of-place operation.

## References
pytorch/pytorch issue 81417.
"""

from __future__ import annotations

import torch

from gradwright.checking import repro
from gradwright.checking.audit import audit, random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.tensors import same_bits

HINT = "work on a copy: `g = grad_output.clone()`, or use the out-of-place operation (`mul` for `mul_`)."


@contract(asks="is it pure?")
def examine(case: Case) -> Outcome:
    """Compare the cotangents' bytes around a backward."""
    watched = audit(case)
    if not watched.usable:
        return Outcome("skipped", watched.obstacle)
    run = case.forward()
    cotangents = case.cotangents(random_cotangent(case))
    before = [c.clone() for c in cotangents]
    with case.sandbox():
        run.gradients(cotangents)
    for number, (c, old) in enumerate(zip(cotangents, before)):
        if not same_bits(c, old):
            return _touched(case, number, c, old)
    return _expanded(case)


def _touched(case: Case, number: int, now: torch.Tensor, old: torch.Tensor) -> Outcome:
    changed = (now != old) & ~(now.isnan() & old.isnan())
    count = int(changed.sum())
    position = int(changed.reshape(-1).int().argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(position), changed.shape))
    message = (
        f"backward writes to grad_output of {case.output_name(number)} in place: {count} of {now.numel()} elements "
        f"changed, the first from {old[index].item():.6g} to {now[index].item():.6g}. Whoever else receives that "
        "gradient gets the changed one."
    )
    where = Where(output=case.outputs[number].position, output_index=index)
    body = [
        repro.cotangent_line(case, "g", random_cotangent(case)),
        "before = [t.clone() for t in g] if isinstance(g, list) else g.clone()",
        f"torch.autograd.grad({repro.differentiable(case)}, "
        f"[{', '.join(repro.variable(i.name) for i in case.inputs)}], g, allow_unused=True)",
        'print("before:", before)',
        'print("after: ", g)',
    ]
    finding = Finding("fail", message, HINT, where, repro=repro.script(case, body))
    return Outcome("fail", message, (finding,))


def _expanded(case: Case) -> Outcome:
    run = case.forward()
    ones = [torch.ones((), dtype=out.dtype).expand(out.shape) for out in run.differentiable]
    try:
        with case.sandbox():
            run.gradients(ones)
    except RuntimeError as error:
        if "single memory location" not in str(error):
            return Outcome("pass", "unchanged by a backward (an expanded cotangent is refused for another reason)")
        message = (
            "backward writes to grad_output in place, which raises when it is expanded (stride 0), as "
            "`out.sum().backward()` sends it."
        )
        finding = Finding("fail", message, HINT, Where(output=case.outputs[0].position))
        return Outcome("fail", message, (finding,))
    return Outcome("pass", "bytes unchanged by a backward, with a dense and with an expanded cotangent")
