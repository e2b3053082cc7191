"""Each gradient that backward returns has the shape, dtype and device of its input.

## What it checks
What ``backward`` returned, before the engine repairs it: PyTorch sums a gradient that is larger than its input, expands
nothing, casts another dtype silently, and drops the imaginary part of a gradient for a real input. In plain code and in
modules, every hand-written Function in the graph is looked at, one backward long.

## Why it matters
The repair hides mistakes. An extra leading axis is summed into a gradient several times too large; a float32 gradient
of a float64 input has lost half its digits; both cost memory. Outside eager mode the same return may be refused.

## If it fails
Reduce a broadcast gradient yourself (``g.sum_to_size(b.shape)``), and compute it in the dtype of the input.

## References
pytorch/pytorch issue 1787 (reduction of broadcast gradients).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import audit
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.raw_returns import Expected, returned_in_graph
from gradwright.checking.report import Finding, Outcome, Where


@contract(asks="is the interface kept?", depends_on_meaning=True, presupposes=("gradient-count",))
def examine(case: Case) -> Outcome:
    """Compare the shape, dtype and device of every returned gradient with its input."""
    watched = audit(case)
    if case.subject.function is None:
        return _in_graph(case) if watched.usable else Outcome("skipped", watched.obstacle)
    if not watched.called or watched.user_error is not None:
        return Outcome("skipped", watched.obstacle if not watched.usable else "backward was not called")
    findings, seen = [], 0
    for item in case.inputs:
        if item.argument >= len(watched.gradients):
            continue
        gradient = watched.gradients[item.argument]
        if gradient is None:
            continue
        seen += 1
        problem = _problem(gradient, Expected.of(item.tensor), item.name)
        if problem is not None:
            message, hint = problem
            findings.append(Finding("fail", message, hint, Where(input=item.name), repro=_script(case, item.name)))
    if findings:
        return Outcome("fail", findings[0].message, tuple(findings))
    return Outcome("pass", f"{_count(seen)} looked at")


def _in_graph(case: Case) -> Outcome:
    """Look at what the Functions inside plain code or a module returned."""
    returned = returned_in_graph(case)
    if not returned:
        return Outcome("skipped", "no Function class is in the graph whose backward could be looked at")
    findings: dict[str, Finding] = {}
    for item in returned:
        problem = _problem(item.gradient, item.expected, item.argument)
        if problem is not None:
            message, hint = problem
            findings.setdefault(message, Finding("fail", f"{item.function.__name__} in the graph: {message}", hint))
    if findings:
        first = next(iter(findings.values()))
        return Outcome("fail", first.message, tuple(findings.values()))
    names = ", ".join(dict.fromkeys(item.function.__name__ for item in returned))
    return Outcome("pass", f"{_count(len(returned))} of {names} in the graph looked at")


def _count(number: int) -> str:
    return f"{number} returned gradient{'s' if number != 1 else ''}"


def _problem(gradient: Any, wanted: Expected, name: str) -> tuple[str, str] | None:
    if not isinstance(gradient, Tensor):
        kind = f"{type(gradient).__module__}.{type(gradient).__name__}".removeprefix("builtins.")
        return (
            f"backward returned a {kind} as the gradient of `{name}`; expected a tensor.",
            "convert it: torch.as_tensor(value, dtype=..., device=...).",
        )
    if gradient.shape != wanted.shape:
        repaired = _reduces_to(gradient.shape, wanted.shape)
        consequence = (
            "PyTorch sums it over the extra elements without a word"
            if repaired
            else "PyTorch refuses it when the gradient is used"
        )
        return (
            f"the gradient of `{name}` has the shape {tuple(gradient.shape)}, the input {tuple(wanted.shape)}; "
            f"{consequence}.",
            f"return a gradient of the input's shape, for a broadcast input with "
            f"`grad.sum_to_size({repro.variable(name)}.shape)`."
            if repaired
            else "look for a missing reduction, transposition or reshape in backward.",
        )
    if gradient.dtype != wanted.dtype:
        have, wished = (str(dtype).removeprefix("torch.") for dtype in (gradient.dtype, wanted.dtype))
        return (
            f"the gradient of `{name}` is {have}, the input {wished}; PyTorch casts it without a word"
            f"{_loss(gradient.dtype, wanted.dtype)}.",
            f"compute it in {wished}: look for a cast, or for a constant or buffer of another dtype, in forward or "
            "backward.",
        )
    if gradient.device != wanted.device:
        return (
            f"the gradient of `{name}` is on {gradient.device}, the input on {wanted.device}.",
            "create tensors in backward with device=grad_output.device.",
        )
    return None


def _reduces_to(shape: torch.Size, target: torch.Size) -> bool:
    """Tell whether the engine would sum ``shape`` to ``target``: whether ``target`` broadcasts to ``shape``."""
    if len(target) > len(shape):
        return False
    return all(t in (1, s) for s, t in zip(reversed(shape), reversed(target)))


def _loss(have: torch.dtype, want: torch.dtype) -> str:
    if have.is_complex and not want.is_complex:
        return ", and the imaginary part is lost"
    if have.is_floating_point and want.is_floating_point and torch.finfo(have).eps > torch.finfo(want).eps:
        return ", after digits were lost"
    return ""


def _script(case: Case, name: str) -> str:
    function = case.subject.name
    body = [
        "node = (out[0] if isinstance(out, tuple) else out).grad_fn",
        "show = lambda grads, _: print([g if g is None else (g.dtype, g.shape) for g in grads])",
        "node.register_hook(show)",
        "first = out[0] if isinstance(out, tuple) else out",
        f"first.sum().backward()  # prints what {function}.backward returned; look at `{name}`",
    ]
    return repro.script(case, body)
