"""What forward saved is what backward reads: nobody changes it unnoticed.

## What it checks
The bytes of every saved tensor of every Function in the graph, before and after backward. For a Function or a custom op
also: an input, a tensor that is not differentiated (a mask, an index, a target), or an output is edited in place
between forward and backward, however the rule keeps it: on ``ctx``, in an object, in NumPy memory, in a global. PyTorch
must refuse the backward, or the gradient must be the same.

## Why it matters
A saved input is also somebody else's tensor: writing to it in backward spoils another operation's gradient. And an
edited input or output that is not noticed, because what was saved is ``x.data`` or a NumPy view, gives a gradient of
values that forward never saw.

## If it fails
Write into no saved tensor; save tensors themselves, not ``.data``, ``.numpy()`` or another alias of their memory.

## References
linkedin/Liger-Kernel issue 254; axolotl-ai-cloud/axolotl issue 3892.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking import repro, trees
from gradwright.checking.audit import audit, random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.compare import attempt, first_change, gradient_mismatch, snapshot
from gradwright.checking.contracts import contract
from gradwright.checking.graph import graph_nodes
from gradwright.checking.guards import without_gradients
from gradwright.checking.parts import Pass
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.tensors import overlaps
from gradwright.checking.variants import slots

WRITING = "work on a copy in backward: saved tensors belong to the graph and, when they are inputs, to the caller."
ALIAS = (
    "save the tensor itself with ctx.save_for_backward, not its .data, .numpy() or another alias of its memory, nor in "
    "an object or a closure; only then does PyTorch notice the edit."
)


@contract(asks="is it pure?", presupposes=("inputs-untouched", "saved-through-hooks", "no-shared-state"))
def examine(case: Case) -> Outcome:
    """Compare saved tensors around a backward, and edit inputs and outputs before it."""
    watched = audit(case)
    if not watched.usable:
        return Outcome("skipped", watched.obstacle)
    finding, count = _written(case)
    if finding is not None:
        return Outcome("fail", finding.message, (finding,))
    message = f"{count} saved tensor{'s' if count != 1 else ''} unchanged by backward"
    if not case.subject.hand_written:
        return Outcome("pass", f"{message}; edits of inputs and outputs are tried for Functions and custom ops only")
    if without_gradients(case) is not None:
        return Outcome("pass", message)
    edited = 0
    v = random_cotangent(case)
    right = case.pull_all(v)
    for target in _editable(case):
        edited += 1
        finding = _stale(case, v, right, target)
        if finding is not None:
            return Outcome("fail", finding.message, (finding,))
    return Outcome(
        "pass", f"{message}; in-place edits of {edited} inputs and outputs before it are noticed or harmless"
    )


def _written(case: Case) -> tuple[Finding | None, int]:
    """Return a finding about a saved tensor that backward wrote to, and how many were looked at."""
    run = case.forward()
    saved = list(saved_tensors(run))
    before = snapshot([t for _, t in saved])
    with case.sandbox():
        run.gradients(case.cotangents(random_cotangent(case)))
    for (place, tensor), old in zip(saved, before):
        change = first_change(tensor, old)
        if change is None:
            continue
        what, where = _identity(case, run, tensor)
        message = f"backward writes to a saved tensor: {place}{what} changes in {change}."
        body = [
            f"saved = {repro.listed(case)}[0].grad_fn.saved_tensors",
            "before = [t.clone() for t in saved]",
            f"sum(t.sum() for t in {repro.listed(case)}).backward()",
            "print([bool((t != old).any()) for t, old in zip(saved, before)])",
        ]
        return Finding("fail", message, WRITING, where, repro=repro.script(case, body)), len(saved)
    return None, len(saved)


def saved_tensors(run: Pass) -> Iterator[tuple[str, Tensor]]:
    """Give every tensor that Functions in the graph of a pass saved, with its place in words."""
    for node in graph_nodes(run.differentiable):
        function = torch_compat.node_function(node)
        if function is None:
            continue
        for number, tensor in enumerate(node.saved_tensors):
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                yield f"saved_tensors[{number}] of {function.__name__}", tensor


def _identity(case: Case, run: Pass, tensor: Tensor) -> tuple[str, Where]:
    def same(other: Tensor) -> bool:
        return tensor.numel() > 0 and other.data_ptr() == tensor.data_ptr()

    for item, value in zip(case.inputs, run.inputs):
        if same(value):
            return f" (the input `{item.name}`)", Where(item.name)
    for position, out in enumerate(run.outputs):
        if same(out):
            return f" (output {position})", Where(output=position)
    return "", Where()


@dataclass(frozen=True)
class _Target:
    """A tensor to edit between forward and backward."""

    words: str
    where: Where
    variable: str
    """What the repro calls it."""
    get: Callable[[Pass], Tensor]


def _editable(case: Case) -> Iterator[_Target]:
    for slot in slots(case):
        if not slot.tensor.numel() or slot.tensor.layout != torch.strided or overlaps(slot.tensor):
            continue

        def argument(run: Pass, place: tuple[int, int] = slot.place) -> Tensor:
            value = run.arguments[place[0]].value
            return value if isinstance(value, Tensor) else trees.flatten(value)[0][place[1]]

        yield _Target(f"the input `{slot.name}`", Where(slot.name), repro.variable(slot.name), argument)
    for o, output in enumerate(case.outputs):
        if output.shape.numel():

            def result(run: Pass, o: int = o) -> Tensor:
                return run.differentiable[o]

            yield _Target(case.output_name(o), Where(output=output.position), f"{repro.listed(case)}[{o}]", result)


def _edit(tensor: Tensor) -> str | None:
    """Change a tensor in place and return the call that did; None when no harmless change exists.

    Whole numbers become the smallest of them that is not negative: an index, a label or an offset stays in range.
    """
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(2).add_(1)
        return "mul_(2).add_(1)"
    if tensor.dtype is torch.bool:
        tensor.logical_not_()
        return "logical_not_()"
    present = tensor[tensor >= 0]
    if not present.numel():
        return None
    smallest = int(present.min())
    value = smallest if bool((tensor != smallest).any()) else smallest - 1
    if value < 0:
        return None
    tensor.fill_(value)
    return f"fill_({value})"


def _stale(case: Case, v: Tensor, right: list[Tensor], target: _Target) -> Finding | None:
    run = case.forward()
    edited = target.get(run)
    call: str | None = None

    def backward() -> list[Tensor | None]:
        nonlocal call
        with torch.no_grad():
            call = _edit(edited)
        with case.sandbox():
            return run.gradients(case.cotangents(v))

    result = attempt(backward)
    if result.error is not None or call is None:
        return None  # noticed, as it should be
    wrong = gradient_mismatch(case, result.gradients, right)
    if wrong is None:
        return None
    message = (
        f"{target.words} was edited in place between forward and backward, and nobody noticed: the gradient of "
        f"`{case.inputs[wrong.number].name}` is {wrong.words}."
    )
    body = [
        "with torch.no_grad():",
        f"    {target.variable}.{call}",
        f"sum(t.sum() for t in {repro.listed(case)}).backward()  # should raise, but computes with edited values",
        f"print({repro.variable(case.inputs[0].name)}.grad)",
    ]
    return Finding("fail", message, ALIAS, target.where, wrong.got, wrong.want, wrong.allowed, repro.script(case, body))
