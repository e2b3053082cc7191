"""An output that the loss does not use changes nothing.

## What it checks
Each output's incoming gradient is left undefined in turn, by differentiating the other outputs only, and at last all
of them. The result must equal that of a zero incoming gradient. PyTorch hands backward zeros for an undefined gradient,
or ``None`` after ``ctx.set_materialize_grads(False)``; both are tried as the Function itself asks for them.

## Why it matters
Most losses use some outputs only. A ``None`` that is not expected crashes the first such program; one that is taken
for ones, or for the last gradient seen, gives a wrong gradient without an error.

## If it fails
After ``ctx.set_materialize_grads(False)`` every incoming gradient may be ``None``: skip its term, and return ``None``
when all of them are.

## References
PyTorch documentation of ``FunctionCtx.set_materialize_grads``; yastn/yastn issue 53.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking import repro
from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.compare import Attempt, attempt, gradient_mismatch
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients
from gradwright.checking.report import Finding, Outcome, Where

MAX_OUTPUTS = 16
HINT = (
    "after ctx.set_materialize_grads(False) an incoming gradient is None when its output is not used: leave its term "
    "out (`if g is not None: ...`) and return None when all of them are None."
)


class _GivesNone(Function):
    """A loss whose gradient is undefined."""

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> Tensor:
        ctx.n = len(outputs)
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return (None,) * ctx.n


@contract(asks="is the interface kept?", presupposes=("linear-in-cotangent", "gradient-count"))
def examine(case: Case) -> Outcome:
    """Compare undefined incoming gradients with zero ones."""
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    v = random_cotangent(case)
    several = len(case.outputs) > 1
    tried = range(min(len(case.outputs), MAX_OUTPUTS)) if several else range(0)
    for output in (*tried, None):
        without = _without(case, v, output)
        if without.error is None:
            zero = v.clone()
            zero[case.output_slice(output) if output is not None else slice(None)] = 0.0
            with_zero = attempt(functools.partial(case.pull_all, zero))
            if with_zero.error is not None:
                continue  # a zero gradient is refused for a reason of its own
            finding = _differs(case, output, without, with_zero)
        else:
            finding = _raises(case, output, without)
        if finding is not None:
            return Outcome("fail", finding.message, (finding,))
    each = f"each of {len(tried)} outputs in turn, and all of them: " if several else ""
    return Outcome("pass", f"{each}an undefined incoming gradient counts as zero")


def _without(case: Case, v: Tensor, output: int | None) -> Attempt:
    """Differentiate with one output left out of the loss, or with a loss that gives None for all."""
    run = case.forward()
    kept = [k for k in range(len(case.outputs)) if k != output and run.differentiable[k].requires_grad]
    cotangents = case.cotangents(v)

    def backward() -> list[Tensor | None]:
        with case.sandbox():
            if output is None:
                loss = _GivesNone.apply(*run.differentiable)  # type: ignore[no-untyped-call]
                return list(torch.autograd.grad(loss, run.inputs, allow_unused=True))
            outputs, used = [run.differentiable[k] for k in kept], [cotangents[k] for k in kept]
            return list(torch.autograd.grad(outputs, run.inputs, used, allow_unused=True)) if kept else []

    return attempt(backward)


def _differs(case: Case, output: int | None, without: Attempt, with_zero: Attempt) -> Finding | None:
    if not without.gradients:
        return None
    wrong = gradient_mismatch(case, without.gradients, with_zero.gradients)
    if wrong is None:
        return None
    name = case.inputs[wrong.number].name
    message = (
        f"the gradient of `{name}` is wrong when {_left_out(case, output)}: {wrong.words}, which a zero incoming "
        "gradient gives; an undefined incoming gradient counts as something else than zero."
    )
    return Finding(
        "fail",
        message,
        HINT,
        Where(name, _position(case, output), case.locate_input(wrong.number, wrong.position)),
        wrong.got,
        wrong.want,
        wrong.allowed,
        _script(case, output),
    )


def _raises(case: Case, output: int | None, without: Attempt) -> Finding:
    message = f"backward raises {without.complaint} when {_left_out(case, output)}."
    return Finding("fail", message, HINT, Where(output=_position(case, output)), repro=_script(case, output))


def _left_out(case: Case, output: int | None) -> str:
    if output is not None:
        return f"{case.output_name(output)} is not used by the loss"
    if len(case.outputs) > 1:
        return "no output receives a gradient (all incoming gradients are undefined)"
    return "the incoming gradient is undefined"


def _position(case: Case, output: int | None) -> int | None:
    return case.outputs[output].position if output is not None else None


def _script(case: Case, output: int | None) -> str:
    names = ", ".join(repro.variable(item.name) for item in case.inputs)
    if output is not None:
        kept = [f"out[{o.position}]" for k, o in enumerate(case.outputs) if k != output]
        body = [
            f"loss = {' + '.join(f'{name}.sum()' for name in kept)}",
            f"print(torch.autograd.grad(loss, [{names}], allow_unused=True))",
        ]
        return repro.script(case, body)
    body = [
        "class GivesNone(torch.autograd.Function):",
        "    forward = staticmethod(lambda ctx, *outputs: torch.zeros(()))",
        "    backward = staticmethod(lambda ctx, g: (None,) * len(ctx.needs_input_grad))",
        "",
        f"loss = GivesNone.apply(*{repro.listed(case)})",
        f"print(torch.autograd.grad(loss, [{names}], allow_unused=True))  # None or zeros expected",
    ]
    return repro.script(case, body)
