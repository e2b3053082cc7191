"""Which inputs require grad changes neither the gradients nor the value.

## What it checks
With only one input requiring grad, and with each one left out, the gradients of the others equal those when all
require grad. With none, under ``torch.no_grad`` and under ``torch.inference_mode``, forward gives the same value.

## Why it matters
Frozen weights, inputs that are data and feature extraction are ordinary use. A backward that takes it for granted that
every saved tensor is there crashes as soon as a layer is frozen; a forward that takes another path without gradients
trains one function and serves another.

## If it fails
Compute each gradient under its own ``ctx.needs_input_grad[i]`` and return ``None`` in the place of the others; save
what the remaining gradients need.

## References
shader-slang/slangpy issue 1056; pytorch/pytorch issue 999.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.compare import Attempt, attempt, gradient_mismatch, value_mismatch
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients, without_numbers
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.variants import is_hand_written
from gradwright.errors import describe_exception

MAX_INPUTS = 12
"""Of more inputs (the parameters of a large module) only the first ones are varied."""
HINT = (
    "compute each gradient under its own ctx.needs_input_grad[i], return None in the place of the others, and save in "
    "forward whatever the remaining ones need."
)


@contract(asks="is the interface kept?", presupposes=("gradient-count", "deterministic"))
def examine(case: Case) -> Outcome:
    """Vary which inputs require grad."""
    obstacle = without_numbers(case)
    if obstacle is not None:
        return obstacle
    finding, remark = _values(case)
    if finding is not None:
        return Outcome(finding.verdict, finding.message, (finding,))
    obstacle = without_gradients(case)
    if obstacle is not None:
        return Outcome(obstacle.verdict, f"{obstacle.message}; the value is the same without grad")
    v = random_cotangent(case)
    reference = case.pull_all(v)
    count = 0
    for wanted in _subsets(len(case.inputs)):
        count += 1
        result = _gradients(case, v, wanted)
        finding = _finding(case, wanted, result, reference)
        if finding is not None:
            return Outcome("fail", finding.message, (finding,))
    parts = [f"{count} subset{'s' if count != 1 else ''} of inputs requiring grad"] if len(case.inputs) > 1 else []
    if len(case.inputs) > MAX_INPUTS:
        parts.append(f"the first {MAX_INPUTS} of {len(case.inputs)} inputs")
    return Outcome("pass", ", ".join([*parts, f"the same value without grad{remark}"]))


def _subsets(n: int) -> Iterator[list[int]]:
    if n < 2:
        return
    for k in range(min(n, MAX_INPUTS)):
        yield [k]
    for k in range(min(n, MAX_INPUTS) if n > 2 else 0):
        yield [i for i in range(n) if i != k]


def _gradients(case: Case, v: Tensor, wanted: Sequence[int]) -> Attempt:
    tensors = case.fresh_inputs()
    for k, tensor in enumerate(tensors):
        tensor.requires_grad_(k in wanted)

    def backward() -> list[Tensor | None]:
        run = case.forward_on(tensors)
        pairs = [(out, c) for out, c in zip(run.differentiable, case.cotangents(v)) if out.requires_grad]
        result: list[Tensor | None] = [None] * len(tensors)
        if pairs:
            outputs, cotangents = [out for out, _ in pairs], [c for _, c in pairs]
            with case.sandbox():
                found = torch.autograd.grad(outputs, [tensors[k] for k in wanted], cotangents, allow_unused=True)
            for k, gradient in zip(wanted, found):
                result[k] = gradient
        return result

    return attempt(backward)


def _finding(case: Case, wanted: Sequence[int], result: Attempt, reference: list[Tensor]) -> Finding | None:
    names = [f"`{case.inputs[k].name}`" for k in wanted]
    left = [f"`{item.name}`" for k, item in enumerate(case.inputs) if k not in wanted]
    situation = f"only {names[0]} requires grad" if len(names) == 1 else f"{left[0]} does not require grad"
    if result.error is not None:
        message = f"raises {result.complaint} when {situation}."
        where = Where(case.inputs[wanted[0]].name)
        return Finding("fail", message, HINT, where, repro=_script(case, wanted))
    wrong = gradient_mismatch(case, result.gradients, reference, wanted)
    if wrong is None:
        return None
    name = case.inputs[wrong.number].name
    what = "is missing" if result.gradients[wrong.number] is None else f"is {wrong.words}"
    message = f"the gradient of `{name}` {what} when {situation}; it is right when all inputs require grad."
    where = Where(name, index=case.locate_input(wrong.number, wrong.position))
    return Finding("fail", message, HINT, where, wrong.got, wrong.want, wrong.allowed, _script(case, wanted))


def _script(case: Case, wanted: Sequence[int]) -> str:
    frozen = [repro.variable(item.name) for k, item in enumerate(case.inputs) if k not in wanted]
    names = ", ".join(repro.variable(case.inputs[k].name) for k in wanted)
    body = [
        f"for t in [{', '.join(frozen)}]:",
        "    t.requires_grad_(False)",
        f"out = {repro.call(case)}",
        f"loss = sum(t.sum() for t in {repro.listed(case)})",
        f"print(torch.autograd.grad(loss, [{names}], allow_unused=True))",
    ]
    return repro.script(case, body)


# -------------------------------------------------------------------- values


def _values(case: Case) -> tuple[Finding | None, str]:
    """Compare forward's value without grad with that with grad; also return a remark for a pass."""
    expected = case.forward().outputs
    modes: list[tuple[str, AbstractContextManager[Any] | None]] = [
        ("when no input requires grad", None),
        ("under torch.no_grad()", torch.no_grad()),
        ("under torch.inference_mode()", torch.inference_mode()),
    ]
    for situation, mode in modes:
        tensors = case.fresh_inputs()
        for tensor in tensors:
            tensor.requires_grad_(mode is not None)
        try:
            outputs = case.forward_on(tensors, mode=mode).outputs
        except Exception as error:
            return None, f" (but {situation} forward raises {describe_exception(error)})"
        if [(o.shape, o.dtype) for o in outputs] != [(o.shape, o.dtype) for o in expected]:
            return None, f" (but {situation} forward returns other outputs)"
        wrong = value_mismatch(case, outputs, expected)
        if wrong is not None:
            return _other_value(case, situation, wrong.words, wrong.got, wrong.want, wrong.allowed), ""
    return None, ""


def _other_value(case: Case, situation: str, words: str, got: float, want: float, allowed: float) -> Finding:
    message = (
        f"forward gives another value {situation}: {words} with grad. What is trained is not what is used afterwards."
    )
    body = [
        'print("with grad:   ", out)',
        *(f"{repro.variable(item.name)}.requires_grad_(False)" for item in case.inputs),
        "with torch.no_grad():",
        f'    print("without grad:", {repro.call(case)})',
    ]
    # Plain code may look at the grad mode on purpose.
    verdict = "fail" if is_hand_written(case) else "suspect"
    hint = "compute the same value whether or not gradients are needed; leave out only what backward alone uses."
    return Finding(verdict, message, hint, None, got, want, allowed, repro.script(case, body))  # type: ignore[arg-type]
