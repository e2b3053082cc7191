"""Tensors that backward needs are saved with save_for_backward, not kept on ctx.

## What it checks
The attributes of ``ctx`` after forward, and what they hold: containers, objects, the variables of closures. A tensor
among them is reported with what follows from it, each shown by trying it: an input kept on ``ctx`` and edited in place
between forward and backward gives a wrong gradient without an error; an output kept on ``ctx`` forms a reference cycle,
so that its memory is freed only by the garbage collector; any other tensor that forward computed bypasses saved-tensor
hooks (activation offload, checkpointing) and stays alive after backward. A tensor that the next call finds again (a
table, a weight) was not computed by forward, and nothing is said of it.

## Why it matters
``save_for_backward`` is what detects edits, breaks cycles, frees memory after backward and lets hooks move tensors
away.

## If it fails
Save it with ``ctx.save_for_backward`` and read it from ``ctx.saved_tensors``.

## References
pytorch/pytorch issues 25340, 5569 and 153005.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import audit, random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.kept import kept_on
from gradwright.checking.report import Finding, Outcome, Where


@contract(asks="is it pure?")
def examine(case: Case) -> Outcome:
    """Look at what forward left on ctx."""
    if case.subject.function is None:
        return Outcome("skipped", "ctx can be seen only when the subject is a Function class")
    watched = audit(case)
    if watched.no_graph or watched.no_backward:
        return Outcome("skipped", watched.obstacle)
    run = case.forward()
    again = case.forward()
    lasting = [item.tensor for item in kept_on(again.differentiable[0].grad_fn)]
    kept = kept_on(run.differentiable[0].grad_fn)
    findings: list[Finding] = []
    harmless = []
    for item in kept:
        if any(_shares(item.tensor, other) for other in lasting):
            harmless.append(f"{item.path} is there before forward")
            continue
        finding = _consequence(case, item.path, item.tensor, run.arguments, run.outputs, watched.usable)
        if finding is None:
            harmless.append(f"{item.path} is a constant of one element")
        else:
            findings.append(finding)
    if findings:
        return Outcome("fail", findings[0].message, tuple(findings))
    if harmless:
        return Outcome("pass", f"no tensor that costs anything is kept on ctx: {'; '.join(harmless)}")
    return Outcome("pass", "no tensor is kept on ctx")


def _consequence(
    case: Case, path: str, tensor: Tensor, arguments: list[Any], outputs: list[Tensor], usable: bool
) -> Finding | None:
    hint = f"save it: ctx.save_for_backward(...) in forward, ctx.saved_tensors in backward, instead of {path}."
    for argument in arguments:
        if isinstance(argument.value, Tensor) and _shares(argument.value, tensor):
            stale = _stale_gradient(case, argument.name) if usable else None
            message = f"the input `{argument.name}` is kept on ctx as {path} instead of being saved"
            if stale is not None:
                right, wrong, index = stale
                message += (
                    ": an in-place edit between forward and backward is not noticed and gives a wrong gradient "
                    f"({wrong:.6g} instead of {right:.6g})."
                )
                return Finding(
                    "fail",
                    message,
                    hint,
                    Where(input=argument.name, index=index),
                    repro=_stale_script(case, argument.name),
                )
            message += ": it is invisible to saved-tensor hooks (offload, checkpoint) and to the check for edits."
            return Finding("fail", message, hint, Where(input=argument.name))
    for position, out in enumerate(outputs):
        if _shares(out, tensor):
            cycle = _forms_cycle(case)
            message = f"output {position} is kept on ctx as {path} instead of being saved"
            message += (
                ": ctx and the output hold each other, so the graph's memory is freed only by the garbage collector."
                if cycle
                else ": it is invisible to saved-tensor hooks and stays alive after backward."
            )
            return Finding("fail", message, hint, Where(output=position))
    if tensor.untyped_storage().nbytes() <= tensor.element_size():
        return None
    message = (
        f"a tensor that forward computed, {tuple(tensor.shape)}, is kept on ctx as {path} instead of being "
        "saved: it is invisible to saved-tensor hooks (offload, checkpoint), stays alive after backward, and is a "
        "constant to double backward."
    )
    return Finding("fail", message, hint, Where())


def _shares(a: Tensor, b: Tensor) -> bool:
    return a is b or (
        a.numel() > 0 and b.numel() > 0 and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    )


def _stale_gradient(case: Case, name: str) -> tuple[float, float, tuple[int, ...]] | None:
    """Edit the input between forward and backward; return the right and the wrong value where they first differ."""
    v = random_cotangent(case)
    right = case.pull_all(v)
    run = case.forward()
    edited = next(a.value for a in run.arguments if a.name == name)
    with torch.no_grad():
        edited.mul_(2).add_(1)
    try:
        with case.sandbox():
            gradients = run.gradients(case.cotangents(v))
    except RuntimeError:
        return None  # noticed, as it should be
    for k, gradient in enumerate(case.flatten_inputs(gradients)):
        differs = ~((gradient == right[k]) | (gradient.isnan() & right[k].isnan()))
        if bool(differs.any()):
            i = int(differs.int().argmax())
            return float(right[k][i]), float(gradient[i]), case.locate_input(k, i)
    return None


def _stale_script(case: Case, name: str) -> str:
    body = [
        "with torch.no_grad():",
        f"    {repro.variable(name)}.mul_(2).add_(1)",
        "(out[0] if isinstance(out, tuple) else out).sum().backward()  # should raise, but computes with edited values",
        f"print({repro.variable(case.inputs[0].name)}.grad)",
    ]
    return repro.script(case, body)


def _forms_cycle(case: Case) -> bool:
    """Tell whether the graph of a forward outlives its outputs until the garbage collector runs."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        run = case.forward()
        watch = weakref.ref(run.differentiable[0].grad_fn)
        del run
        return watch() is not None
    finally:
        if enabled:
            gc.enable()
