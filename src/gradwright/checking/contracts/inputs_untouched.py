"""Forward and backward leave their inputs as they were, or declare that they do not.

## What it checks
The bytes of every tensor argument before and after ``forward``, and again after ``backward``. An input that is changed
in place is allowed to be when it was marked with ``ctx.mark_dirty`` and returned. A plain callable cannot mark
anything: it may change constants, such as running statistics, in a way that autograd notices.

## Why it matters
Whoever else uses that tensor gets other values, and operations that saved it for their own backward compute a wrong
gradient. Writes through NumPy, C++ or Triton do not move the version counter, so PyTorch cannot notice them.

## If it fails
Work on a copy, or call ``ctx.mark_dirty(x)`` and return ``x`` itself.

## References
linkedin/Liger-Kernel issues 254, 272 and 343.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking import repro, trees
from gradwright.checking.audit import audit, random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.parts import Pass
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.tensors import same_bits
from gradwright.checking.variants import is_hand_written


@contract(asks="is it pure?")
def examine(case: Case) -> Outcome:
    """Compare the arguments' bytes around a forward and a backward."""
    run = case.forward()
    watched = audit(case)
    stages = ["forward"]
    finding = _changed(case, run, "forward")
    if finding is None and watched.usable:
        stages.append("backward")
        with case.sandbox():
            run.gradients(case.cotangents(random_cotangent(case)))
        finding = _changed(case, run, "backward")
    if finding is not None:
        return Outcome("fail", finding.message, (finding,))
    dirty = ", in place as declared" if case.in_place else ""
    return Outcome("pass", f"bytes unchanged by {' and '.join(stages)}{dirty}")


def _changed(case: Case, run: Pass, stage: str) -> Finding | None:
    differentiated = {item.argument for item in case.inputs}
    for number, (argument, original) in enumerate(zip(run.arguments, case.arguments)):
        tracked = case.subject.function is None and (number not in differentiated or not is_hand_written(case))
        for now, old in zip(trees.flatten(argument.value)[0], trees.flatten(original.value)[0]):
            if not isinstance(now, Tensor) or same_bits(now, old) or argument.origin == "buffer":
                continue
            if any(now is out for out in run.outputs):
                continue  # marked dirty and returned
            if tracked and torch_compat.edits(now):
                continue  # running statistics and the like, or an operation in place that autograd has recorded
            return _finding(case, argument.name, now.detach(), old.detach(), stage)
    return None


def _finding(case: Case, name: str, now: Tensor, old: Tensor, stage: str) -> Finding:
    changed = now != old
    index = tuple(int(i) for i in torch.unravel_index(changed.reshape(-1).int().argmax(), changed.shape))
    message = (
        f"{stage} changes its input `{name}` in place: {int(changed.sum())} of {now.numel()} elements, the first "
        f"from {old[index].item():.6g} to {now[index].item():.6g}, without declaring it."
    )
    hint = (
        f"work on a copy of `{name}`, or call ctx.mark_dirty({name}) and return {name} itself."
        if stage == "forward"
        else f"work on a copy of `{name}` in backward: saved tensors belong to the graph."
    )
    body = [] if stage == "forward" else ["(out[0] if isinstance(out, tuple) else out).sum().backward()"]
    body += [f'print("{name} is now", {repro.variable(name)})']
    return Finding("fail", message, hint, Where(input=name, index=index), repro=repro.script(case, body))
