"""Backward returns one gradient for each argument of forward.

## What it checks
The number of values that ``backward`` returned, before PyTorch looks at it: one for each argument that was passed to
``apply`` (with ``setup_context``: one for each parameter of ``forward``), in order, and ``None`` for arguments that are
not tensors. Extra ``None`` at the end are legal. A list is counted by PyTorch as a single gradient.

## Why it matters
PyTorch raises when a gradient is missing, but only once somebody trains, and its message names positions, not
parameters. A gradient in the wrong position trains the wrong parameter.

## If it fails
Return a tuple with one entry for each parameter of ``forward``, and ``None`` for those without a gradient.

## References
PyTorch, Extending PyTorch, "Extending torch.autograd".
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import Audit, audit
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.report import Finding, Outcome, Where


@contract(asks="is the interface kept?")
def examine(case: Case) -> Outcome:
    """Count what backward returned."""
    watched = audit(case)
    if case.subject.function is None:
        return _without_class(watched)
    if watched.no_graph or watched.no_backward:
        return Outcome("unsupported" if watched.no_backward else "skipped", f"{watched.obstacle}: nothing to count")
    if watched.user_error is not None:
        return Outcome("skipped", f"{watched.obstacle}; see matches-differences")
    if not watched.called:
        return Outcome("unresolved", "backward was not called by a backward pass through the outputs")
    return _counted(case, watched)


def _counted(case: Case, watched: Audit) -> Outcome:
    names = [case.subject.position_name(i) for i in range(watched.expected)]
    listed = f"{len(names)} argument{'s' if len(names) != 1 else ''} ({', '.join(f'`{n}`' for n in names)})"
    parameters = case.subject.parameters or ()
    left_out = [f"`{p.name}`" for p in parameters[len(names) :] if p.kind == "positional"]
    if isinstance(watched.returned, list):
        return _fail(
            case,
            f"backward returned a list of {len(watched.returned)}, which PyTorch counts as one gradient, for {listed}.",
            "return a tuple: `return grad_a, grad_b` without square brackets.",
        )
    gradients = watched.gradients
    if len(gradients) < len(names):
        missing = names[len(gradients) :]
        return _fail(
            case,
            f"backward returned {len(gradients)} gradient{'s' if len(gradients) != 1 else ''}, but forward has {listed}"
            f": one gradient too few for {', '.join(f'`{n}`' for n in missing)}."
            if len(missing) == 1
            else f"backward returned {len(gradients)} gradients, but forward has {listed}: "
            f"{len(missing)} gradients too few, for {', '.join(f'`{n}`' for n in missing)}.",
            f"write `return {_suggestion(case, gradients, names)}`.",
            missing[0],
        )
    extra = gradients[len(names) :]
    if any(value is not None for value in extra):
        return _fail(
            case,
            f"backward returned {len(gradients)} values, but forward was called with {listed}, and the extra ones are "
            "not None.",
            f"return None for what was not passed ({', '.join(left_out)}), for example when it is None in forward."
            if left_out
            else "return one gradient for each argument, in the order of forward's parameters.",
        )
    for name, value, argument in zip(names, gradients, case.arguments):
        if isinstance(value, Tensor) and not isinstance(argument.value, Tensor):
            return _fail(
                case,
                f"backward returned a tensor as the gradient of `{name}`, which is not a tensor "
                f"(it is {argument.value!r:.60}).",
                f"return None in its place: `return {_suggestion(case, gradients, names)}`.",
                name,
            )
    note = f"; {len(extra)} extra None at the end, which PyTorch ignores" if extra else ""
    return Outcome("pass", f"one gradient for each of {listed}{note}")


def _suggestion(case: Case, gradients: tuple[Any, ...], names: list[str]) -> str:
    parts = []
    for i, name in enumerate(names):
        value = case.arguments[i].value if i < len(case.arguments) else None
        returned = gradients[i] if i < len(gradients) else None
        wants = isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
        parts.append(f"grad_{repro.variable(name)}" if wants or (returned is not None and wants) else "None")
    return ", ".join(parts)


def _fail(case: Case, message: str, hint: str, name: str | None = None) -> Outcome:
    body = ["first = out[0] if isinstance(out, tuple) else out", "first.sum().backward()  # raises"]
    finding = Finding("fail", message, hint, Where(input=name), repro=repro.script(case, body))
    return Outcome("fail", message, (finding,))


def _without_class(watched: Audit) -> Outcome:
    error = str(watched.engine_error or "")
    if "incorrect number of gradients" in error:
        finding = Finding("fail", error, "return one gradient, or None, for each argument of forward.")
        return Outcome("fail", error, (finding,))
    return Outcome("skipped", "what backward returned can be seen only when the subject is a Function class")
