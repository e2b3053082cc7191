"""The same tensor passed for two arguments gets the sum of both gradients.

## What it checks
For pairs of inputs of the same shape, dtype and layout: f(x, x) against f(x, a copy of x). The values must be equal,
and the gradient of f(x, x) must be the sum of the two gradients.

## Why it matters
Attention with ``q = k``, weight tying and ``x * x`` pass one tensor twice. A forward that writes into one argument
while it reads the other, or a backward that finds its inputs by identity, is then wrong.

## If it fails
Return a separate gradient for each argument, whatever their identity, and write into no argument.

## References
pytorch/pytorch issues 181146 and 183604.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.compare import attempt, gradient_mismatch, value_mismatch
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients
from gradwright.checking.parts import Input
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.typing import Level

MAX_PAIRS: dict[Level, int] = {"quick": 1, "standard": 3, "full": 20}
HINT = "return one gradient for each argument, computed from its own place in forward, whichever tensor was passed."


@contract(
    asks="is the interface kept?", presupposes=("inputs-untouched", "cotangent-untouched", "gradient-shape-and-dtype")
)
def examine(case: Case) -> Outcome:
    """Pass one tensor for two arguments."""
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    pairs = [
        (i, j)
        for (i, a), (j, b) in itertools.combinations(enumerate(case.inputs), 2)
        if _fit(a, b) and "parameter" not in (_origin(case, a), _origin(case, b))
    ]
    if not pairs:
        return Outcome("skipped", "no two inputs have the same shape, dtype and layout")
    if case.in_place:
        return Outcome("skipped", "the subject changes an input in place, which would change the other one as well")
    tried = pairs[: MAX_PAIRS[case.level]]
    examined = 0
    for i, j in tried:
        finding = _pair(case, i, j)
        if isinstance(finding, Finding):
            return Outcome("fail", finding.message, (finding,))
        examined += finding
    if not examined:
        return Outcome("skipped", "forward does not accept equal values for two of its inputs")
    left = f" ({len(pairs) - len(tried)} more pairs not tried)" if len(pairs) > len(tried) else ""
    return Outcome(
        "pass", f"the sum of both gradients for {examined} pair{'s' if examined > 1 else ''} of inputs{left}"
    )


def _fit(a: Input, b: Input) -> bool:
    s, t = a.tensor, b.tensor
    return s.shape == t.shape and s.dtype == t.dtype and s.stride() == t.stride() and s.device == t.device


def _origin(case: Case, item: Input) -> str:
    return case.arguments[item.argument].origin


def _pair(case: Case, i: int, j: int) -> Finding | bool:
    """Return a finding, or whether the pair could be examined."""
    v = random_cotangent(case)
    equal = {j: case.base[i]}
    try:
        separate = case.forward(equal)
        shapes = [out.shape for out in separate.differentiable]
        if shapes != [o.shape for o in case.outputs] or not all(bool(t.isfinite().all()) for t in separate.outputs):
            return False
        expected = case.pull_all(v, equal)
    except Exception:
        return False
    names = f"`{case.inputs[i].name}` and `{case.inputs[j].name}`"
    where = Where(case.inputs[i].name)
    tensors = case.fresh_inputs()
    tensors[j] = tensors[i]

    def both() -> list[Tensor | None]:
        run = case.forward_on(tensors)
        values.extend(run.outputs)
        with case.sandbox():
            return list(torch.autograd.grad(run.differentiable, [tensors[i]], case.cotangents(v), allow_unused=True))

    values: list[Tensor] = []
    result = attempt(both)
    if result.error is not None:
        message = f"passing the same tensor for {names} raises {result.complaint}, passing equal copies does not."
        verdict = "fail" if case.subject.function is not None and not isinstance(result.error, RuntimeError) else None
        return Finding("fail", message, HINT, where, repro=_script(case, i, j)) if verdict else False
    moved = value_mismatch(case, values, separate.outputs)
    if moved is not None:
        message = f"forward gives another value when the same tensor is passed for {names}: {moved.words}."
        hint = "write into no argument, and do not compare arguments by identity."
        return Finding("fail", message, hint, where, moved.got, moved.want, moved.allowed, _script(case, i, j))
    got: list[Tensor | None] = [None] * len(case.inputs)
    want: list[Tensor | None] = [None] * len(case.inputs)
    got[i], want[i] = result.gradients[0], expected[i] + expected[j]
    wrong = gradient_mismatch(case, got, want)
    if wrong is None:
        return True
    message = f"the gradient is not the sum of both when the same tensor is passed for {names}: {wrong.words}."
    where = Where(case.inputs[i].name, index=case.locate_input(i, wrong.position))
    return Finding("fail", message, HINT, where, wrong.got, wrong.want, wrong.allowed, _script(case, i, j))


def _script(case: Case, i: int, j: int) -> str:
    x, y = repro.variable(case.inputs[i].name), repro.variable(case.inputs[j].name)
    called = repro.call(case)
    body = [
        f"{y} = {x}.detach().clone().requires_grad_()",
        f"separate = {called}",
        "total = lambda value: sum(t.sum() for t in (value if isinstance(value, tuple) else (value,)))",
        f"print(sum(torch.autograd.grad(total(separate), [{x}, {y}])))",
        f"{y} = {x}",
        f"print(torch.autograd.grad(total({called}), [{x}])[0])",
    ]
    return repro.script(case, body)
