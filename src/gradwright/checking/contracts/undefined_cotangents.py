"""An output that the loss does not use changes nothing.

## What it checks
Each output's incoming gradient is left undefined in turn, by differentiating the other outputs only, and at last all
of them; on a recorded call also those that were undefined in the program. The result must equal that of a zero incoming
gradient. PyTorch hands backward zeros for an undefined gradient, or ``None`` after
``ctx.set_materialize_grads(False)``; both are tried as the Function itself asks for them.

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
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking import repro
from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.compare import Attempt, attempt, gradient_mismatch
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients
from gradwright.checking.recorded_cotangents import recorded_cotangents
from gradwright.checking.report import Finding, Outcome, Where

MAX_OUTPUTS = 16
HINT = (
    "after ctx.set_materialize_grads(False) an incoming gradient is None when its output is not used: leave its term "
    "out (`if g is not None: ...`) and return None when all of them are None."
)


Omitted: TypeAlias = "tuple[int, ...] | None"
"""Outputs that are left out of the loss; None when the loss has no gradient at all."""


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
    tried: list[Omitted] = [(k,) for k in range(min(len(case.outputs), MAX_OUTPUTS))] if several else []
    for omitted in (*tried, *_recorded(case), None):
        without = _without(case, v, omitted)
        if without.error is None:
            zero = v.clone()
            for output in range(len(case.outputs)) if omitted is None else omitted:
                zero[case.output_slice(output)] = 0.0
            with_zero = attempt(functools.partial(case.pull_all, zero))
            if with_zero.error is not None:
                continue  # a zero gradient is refused for a reason of its own
            finding = _differs(case, omitted, without, with_zero)
        else:
            finding = _raises(case, omitted, without)
        if finding is not None:
            return Outcome("fail", finding.message, (finding,))
    each = f"each of {len(tried)} outputs in turn, and all of them: " if several else ""
    return Outcome("pass", f"{each}an undefined incoming gradient counts as zero")


def _recorded(case: Case) -> list[tuple[int, ...]]:
    """Return the outputs that got no gradient in the program, where these are several and not all."""
    given = recorded_cotangents(case) or []
    omitted = tuple(k for k, g in enumerate(given) if g is None)
    return [omitted] if 1 < len(omitted) < len(given) else []


def _without(case: Case, v: Tensor, omitted: Omitted) -> Attempt:
    """Differentiate with outputs left out of the loss, or with a loss that gives None for all."""
    run = case.forward()
    left = omitted or ()
    kept = [k for k in range(len(case.outputs)) if k not in left and run.differentiable[k].requires_grad]
    cotangents = case.cotangents(v)

    def backward() -> list[Tensor | None]:
        with case.sandbox():
            if omitted is None:
                loss = _GivesNone.apply(*run.differentiable)  # type: ignore[no-untyped-call]
                return list(torch.autograd.grad(loss, run.inputs, allow_unused=True))
            outputs, used = [run.differentiable[k] for k in kept], [cotangents[k] for k in kept]
            return list(torch.autograd.grad(outputs, run.inputs, used, allow_unused=True)) if kept else []

    return attempt(backward)


def _differs(case: Case, omitted: Omitted, without: Attempt, with_zero: Attempt) -> Finding | None:
    if not without.gradients:
        return None
    wrong = gradient_mismatch(case, without.gradients, with_zero.gradients)
    if wrong is None:
        return None
    name = case.inputs[wrong.number].name
    message = (
        f"the gradient of `{name}` is wrong when {_left_out(case, omitted)}: {wrong.words}, which a zero incoming "
        "gradient gives; an undefined incoming gradient counts as something else than zero."
    )
    return Finding(
        "fail",
        message,
        HINT,
        Where(name, _position(case, omitted), case.locate_input(wrong.number, wrong.position)),
        wrong.got,
        wrong.want,
        wrong.allowed,
        _script(case, omitted),
    )


def _raises(case: Case, omitted: Omitted, without: Attempt) -> Finding:
    message = f"backward raises {without.complaint} when {_left_out(case, omitted)}."
    return Finding("fail", message, HINT, Where(output=_position(case, omitted)), repro=_script(case, omitted))


def _left_out(case: Case, omitted: Omitted) -> str:
    if omitted is not None and len(omitted) == 1:
        return f"{case.output_name(omitted[0])} is not used by the loss"
    if omitted is not None:
        names = " and ".join(case.output_name(output) for output in omitted)
        return f"{names} are not used by the loss, as in the program"
    if len(case.outputs) > 1:
        return "no output receives a gradient (all incoming gradients are undefined)"
    return "the incoming gradient is undefined"


def _position(case: Case, omitted: Omitted) -> int | None:
    return case.outputs[omitted[0]].position if omitted is not None else None


def _script(case: Case, omitted: Omitted) -> str:
    names = ", ".join(repro.variable(item.name) for item in case.inputs)
    if omitted is not None:
        kept = [f"out[{o.position}]" for k, o in enumerate(case.outputs) if k not in omitted]
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
