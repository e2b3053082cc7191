"""Every tensor that the output depends on, and that requires grad, gets its gradient.

## What it checks
Three ways to lose a gradient without an error. Tensors inside containers that are passed to a Function: autograd does
not see them. Tensors that a Function returns inside a list or a dictionary: they carry no graph. And tensors that the
methods of a Function reach by themselves, from a global, a closure or an attribute: the output moves with them, they
require grad, and none arrives. Captured tensors that forward or backward changes in place are reported too.

## Why it matters
Only tensors that are passed to ``apply`` directly are tracked. Everything else is a constant to autograd: the loss
goes down through the other parameters, and one of them never moves.

## If it fails
Pass each tensor as an argument of its own (``apply(*tensors)``) and return a tensor or a flat tuple of tensors; put
containers together outside. A tensor that is meant as a constant is read as ``w.detach()`` or does not require grad.

## References
pytorch/pytorch issues 44276, 87713 and 64444; pytorch/functorch issue 1064.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradwright.checking import repro, trees
from gradwright.checking.audit import functions_in_graph, random_cotangent
from gradwright.checking.captured import Captured, captured_by
from gradwright.checking.case import Case
from gradwright.checking.compare import first_change, snapshot, value_mismatch
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_numbers
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.tensors import bits, copy_of

MAX_CAPTURED = 20
PASS_SEPARATELY = (
    "pass each tensor as an argument of its own, for example apply(*tensors), and collect them in forward."
)
RETURN_FLAT = "return a tensor, or a flat tuple of tensors, and build the container after apply."


@contract(asks="is the interface kept?")
def examine(case: Case) -> Outcome:
    """Look into containers and at what the subject's code captures."""
    obstacle = without_numbers(case)
    if obstacle is not None:
        return obstacle
    functions = tuple(functions_in_graph(case))
    captured = [c for c in captured_by(case.subject, functions) if isinstance(c.value, Tensor)]
    findings = [*_lost_in_containers(case), *_returned_in_containers(case), *_changed(case, captured)]
    candidates = [c for c in captured if _can_lose(case, c)]
    findings += [found for c in candidates[:MAX_CAPTURED] if (found := _lost(case, c)) is not None]
    if findings:
        return Outcome("fail", findings[0].message, tuple(findings))
    constants = [c.words for c in captured if c.function is not None and c.value.requires_grad and c.constant]
    parts = [f"{len(candidates)} captured tensor{'s' if len(candidates) != 1 else ''} that require grad"]
    if case.subject.kind == "Function":
        parts.insert(0, "containers of tensors among arguments and outputs")
    if constants:
        parts.append(f"{', '.join(constants)} is read as a constant")
    return Outcome("pass", "; ".join(parts))


# -------------------------------------------------------------------- containers


def _lost_in_containers(case: Case) -> Iterator[Finding]:
    """Tensors that require grad inside a container that is passed to a Function."""
    if case.subject.kind != "Function":
        return
    for number, argument in enumerate(case.arguments):
        if isinstance(argument.value, Tensor):
            continue
        leaves, _ = trees.flatten(argument.value)
        paths = trees.leaf_paths(argument.value)
        for i, (leaf, path) in enumerate(zip(leaves, paths)):
            if isinstance(leaf, Tensor) and leaf.requires_grad and _depends_on_leaf(case, number, i):
                message = (
                    f"`{argument.name}{path}` requires grad and the output moves with it, but it is inside a "
                    f"{type(argument.value).__name__}, where autograd does not track it: its gradient is lost without "
                    "an error."
                )
                yield Finding("fail", message, PASS_SEPARATELY, Where(argument.name + path))


def _depends_on_leaf(case: Case, number: int, i: int) -> bool:
    argument = case.arguments[number]
    leaves, structure = trees.flatten(argument.value)
    moved = list(leaves)
    moved[i] = _moved(copy_of(leaves[i]))
    arguments = list(case.arguments)
    arguments[number] = replace(argument, value=trees.unflatten(moved, structure))
    try:
        other = case.on(arguments)
        other.randomness = case.randomness
        return value_mismatch(case, other.forward().outputs, case.forward().outputs) is not None
    except Exception:
        return False


def _returned_in_containers(case: Case) -> Iterator[Finding]:
    """Outputs of a Function that are inside a list, a dictionary or a nested tuple."""
    if case.subject.kind != "Function":
        return
    run = case.forward()
    for place, container, out in _inside(run.returned, "the output"):
        if out.requires_grad or not (out.is_floating_point() or out.is_complex()):
            continue
        position = next(p for p, known in enumerate(run.outputs) if known is out)
        name = _mover(case, position)
        if name is None:
            continue
        message = (
            f"output {position} is returned inside a {container} ({place}), where autograd does not track it: it moves "
            f"with `{name}`, but carries no graph, and its gradient is lost without an error."
        )
        body = [f'print("requires grad:", {place}.requires_grad)']
        yield Finding("fail", message, RETURN_FLAT, Where(name, position), repro=repro.script(case, body))


def _inside(returned: Any, place: str) -> Iterator[tuple[str, str, Tensor]]:
    """Give place, kind of container and tensor for everything that ``apply`` does not look into."""
    tops = list(enumerate(returned)) if isinstance(returned, tuple) else [(None, returned)]
    for number, top in tops:
        if not isinstance(top, Tensor):
            leaves, paths = trees.flatten(top)[0], trees.leaf_paths(top)
            prefix = "out" if number is None else f"out[{number}]"
            for leaf, path in zip(leaves, paths):
                if isinstance(leaf, Tensor):
                    yield prefix + path, type(top).__name__, leaf


def _mover(case: Case, position: int) -> str | None:
    """Return the first input that an output moves with, or None."""
    here = case.forward().outputs
    for k, x in enumerate(case.base):
        try:
            there = case.forward({k: _moved(x.clone())}).outputs
        except Exception:
            continue
        if len(there) == len(here) and value_mismatch(case, [there[position]], [here[position]]) is not None:
            return case.inputs[k].name
    return None


def _moved(tensor: Tensor) -> Tensor:
    """Return other values of the same sign and size."""
    return (tensor * 1.0625).to(tensor.dtype)


# -------------------------------------------------------------------- captured tensors


def _can_lose(case: Case, c: Captured) -> bool:
    # Plain code is tracked by autograd: a gradient that stops there was stopped on purpose.
    if c.function is None or not c.value.requires_grad or c.constant:
        return False
    return c.value.numel() > 0 and not any(c.value is item.tensor for item in case.inputs)


def _lost(case: Case, c: Captured) -> Finding | None:
    """Move a captured tensor for a moment, and look for its gradient when the output follows."""
    before = case.forward()
    kept, value = c.value.detach().clone(), c.value.data
    expected = snapshot(before.outputs)
    try:
        value.copy_(_moved(kept) + (kept == 0))
        moved = value_mismatch(case, case.forward().outputs, expected)
    except Exception:
        return None
    finally:
        value.copy_(kept)
    if moved is None or _receives(case, c.value):
        return None
    assert c.function is not None
    message = (
        f"{c.words} requires grad and the output moves with it, but {c.function.__name__} uses it without receiving it "
        "as an argument: to autograd it is a constant, and its gradient is lost without an error."
    )
    hint = (
        "pass it to apply as an argument and return its gradient from backward; if it is meant as a constant, read it "
        "as `.detach()`."
    )
    return Finding("fail", message, hint, Where(output=moved.number), 0.0)


def _receives(case: Case, tensor: Tensor) -> bool:
    """Tell whether a backward brings a gradient to a captured tensor, by the graph or by the rule's own hand."""
    run = case.forward()
    cotangents = case.cotangents(random_cotangent(case))
    with _grads_kept([tensor]):
        old = _grad_bits(tensor)
        try:
            # Our own inputs are asked for too, or the engine would not run the rule at all.
            wanted = [tensor, *run.inputs]
            with case.sandbox():
                found = torch.autograd.grad(run.differentiable, wanted, cotangents, allow_unused=True)[0]
        except Exception:
            return True  # nothing can be said
        by_hand = _grad_bits(tensor) != old
    return by_hand or isinstance(found, Tensor)  # typed as always a tensor, but None for an unused one


def _grad_bits(tensor: Tensor) -> bytes | None:
    if not tensor.is_leaf or tensor.grad is None:
        return None
    return bytes(bits(tensor.grad).tolist())


@contextmanager
def _grads_kept(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put back the ``.grad`` of the user's leaves, which a rule may write to itself."""
    kept = [(t, t.grad, None if t.grad is None else t.grad.detach().clone()) for t in tensors if t.is_leaf]
    try:
        yield
    finally:
        for tensor, grad, values in kept:
            if grad is not None and values is not None:
                grad.data.copy_(values)
            tensor.grad = grad


def _changed(case: Case, captured: list[Captured]) -> Iterator[Finding]:
    """Captured tensors that require grad and are written to by the subject."""
    watched = [c for c in captured if c.function is not None and c.value.requires_grad and c.value.numel()]
    before = snapshot([c.value for c in watched])
    try:
        with _grads_kept([c.value for c in watched]), case.sandbox():
            run = case.forward()
            run.gradients(case.cotangents(random_cotangent(case)))
    except Exception:
        return
    for c, old in zip(watched, before):
        change = first_change(c.value, old)
        if change is not None:
            c.value.data.copy_(old)
            message = f"{c.words}, which requires grad, is changed in place by forward or backward: {change}."
            hint = "work on a copy; whoever else uses that tensor gets other values."
            yield Finding("fail", message, hint)
