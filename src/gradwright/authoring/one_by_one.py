"""A computation that PyTorch's transforms cannot follow, run one element of the batch at a time, without transforms.

``vmap`` cannot follow NumPy, ``item``, a branch on a value or a mask that chooses; ``torch.func`` refuses
``requires_grad_`` and Functions in the old style. A loop over the batch on plain tensors, which is what a batch means,
needs none of that. Derivatives are those that autograd takes of the plain computation, each again one by one; where
autograd cannot follow it they raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from gradwright.authoring.derive import smooth
from gradwright.authoring.recompute import MOVING, STILL, watching
from gradwright.errors import RuleError

Computation = Callable[[Sequence[Tensor]], Sequence[Tensor | None]]


@dataclass(eq=False)
class Task:
    """A computation on plain tensors; an object, since PyTorch would take lists apart."""

    message: str
    """Says what was differentiated; followed by the reason why that cannot be."""
    compute: Computation
    source: Any
    """The function of the user that it runs, whose constants are known."""
    present: list[tuple[bool, ...]] = field(default_factory=list)
    """For each run, which of its results are tensors; the rest is None."""


class _OneByOne(Function):
    """Runs a task on plain tensors."""

    @staticmethod
    def forward(task: Task, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run it."""
        found = task.compute(tensors)
        task.present.append(tuple(value is not None for value in found))
        # A result must be a tensor of its own, and forward mode wants no views.
        return tuple(value.detach().clone() for value in found if value is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep everything: the derivative runs it again."""
        task, *tensors = inputs
        ctx.task = task
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.metas = [(out.shape, out.dtype, out.device) for out in output]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Return the derivative of the task, as a task."""
        tensors = ctx.saved_tensors
        needed = [bool(need) and smooth(t) for need, t in zip(ctx.needs_input_grad[1:], tensors)]
        shown = [i for i, g in enumerate(cotangents) if g is not None]
        if not shown or not any(needed):
            return (None,) * (1 + len(tensors))

        def derivative(given: Sequence[Tensor]) -> list[Tensor | None]:
            inputs, gs = given[: len(tensors)], given[len(tensors) :]
            return _pulled(ctx.task, inputs, dict(zip(shown, gs)), needed)

        task = Task(ctx.task.message, derivative, ctx.task.source)
        return (None, *run(task, [*tensors, *(cotangents[i] for i in shown)]))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        """Return the tangents: the transpose of the transpose."""
        tensors = ctx.saved_tensors
        moving = [i for i, t in enumerate(tangents) if t is not None and smooth(tensors[i])]

        def derivative(given: Sequence[Tensor]) -> list[Tensor | None]:
            inputs, ts = given[: len(tensors)], given[len(tensors) :]
            return _pushed(ctx.task, inputs, dict(zip(moving, ts)))

        found = run(Task(ctx.task.message, derivative, ctx.task.source), [*tensors, *(tangents[i] for i in moving)])
        return tuple(
            torch.zeros(shape, dtype=dtype, device=device)
            if t is None and (dtype.is_floating_point or dtype.is_complex)
            else t
            for t, (shape, dtype, device) in zip(found, ctx.metas)
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, task: Task, *tensors: Tensor) -> Any:
        """Loop over the batch."""
        rows = []
        states = random_states(tensors)
        for i in range(info.batch_size):
            if i and info.randomness == "same":
                set_random_states(states)
            row = [t if d is None else t.select(d, i) for t, d in zip(tensors, in_dims[1:])]
            rows.append(_OneByOne.apply(task, *row))  # type: ignore[no-untyped-call]
            if info.randomness == "error" and not _same_states(states, random_states(tensors)):
                raise RuleError(
                    f"{task.message.split(':')[0]}: it draws random numbers under vmap; expected to be told how; pass "
                    "randomness='same' or 'different' to vmap (jacfwd has it too)."
                )
        if len(set(task.present)) > 1 or any([t.shape for t in row] != [t.shape for t in rows[0]] for row in rows):
            raise RuntimeError("what it keeps or returns differs from one element of the batch to the next")
        outs = tuple(torch.stack(parts) for parts in zip(*rows))
        return outs, (0,) * len(outs)


class AllUsed(TorchFunctionMode):
    """Stops a backward that differentiates in itself in a tensor which it reaches in some other way as well.

    A module that a Function is given holds its parameters, and the Function is given them once more: outside of a
    transform both are one tensor, inside they are two, and the derivative would be silently zero.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at what is differentiated."""
        found = func(*args, **(kwargs or {}))
        if func is torch.autograd.grad and any(part is None for part in found):
            raise RuleError(
                f"{self.name}: its backward differentiates in itself in a tensor that the result does not depend on, "
                "perhaps since it uses the parameters of a module under another name, as transforms make one; expected "
                "a result that depends on each; use reverse mode without torch.func."
            )
        return found


def run(task: Task, tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Run a task one by one; its result can be differentiated where autograd can follow it."""
    task.present.clear()
    outs = iter(_OneByOne.apply(task, *tensors))  # type: ignore[no-untyped-call]
    return [next(outs) if there else None for there in task.present[0]]


def _traced(task: Task, inputs: Sequence[Tensor], moving: Sequence[bool]) -> tuple[list[Tensor], list[Tensor | None]]:
    """Run the computation with gradients on, or say why autograd cannot follow it."""
    leaves = [t.detach().clone().requires_grad_() if m else t.detach() for t, m in zip(inputs, moving)]
    with torch.enable_grad():
        entered = [t.clone() if m else t for t, m in zip(leaves, moving)]  # an edit of a leaf is not allowed
    with watching([t for t, m in zip(entered, moving) if m], task.source, entered) as watch:
        outs = list(task.compute(entered))
        states = [STILL if out is None else watch.state(out) for out in outs]
    for out, state in zip(outs, states):
        assert state != MOVING or out is None or out.requires_grad
        if state not in (MOVING, STILL):
            raise RuleError(f"{task.message} {state}, so that the derivative would be wrong; {WAYS_OUT}")
    return [leaf for leaf, m in zip(leaves, moving) if m], outs


WAYS_OUT = (
    "expected PyTorch operations that autograd can follow; write it so, or use gw.custom_gradient, where each rule "
    "can be given."
)


def _pulled(task: Task, inputs: Sequence[Tensor], gs: dict[int, Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
    deeper = torch.is_grad_enabled()
    leaves, outs = _traced(task, inputs, needed)
    pairs = [(out, g) for out, g in ((outs[i], g) for i, g in gs.items()) if out is not None and out.requires_grad]
    if not pairs:
        return [None] * len(needed)
    ends, cotangents = zip(*pairs)
    found = iter(torch.autograd.grad(ends, leaves, cotangents, create_graph=deeper, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _pushed(task: Task, inputs: Sequence[Tensor], tangents: dict[int, Tensor]) -> list[Tensor | None]:
    deeper = torch.is_grad_enabled()
    leaves, outs = _traced(task, inputs, [i in tangents for i in range(len(inputs))])
    found: list[Tensor | None] = [None] * len(outs)
    for place, out in enumerate(outs):
        if out is None or not out.requires_grad:
            continue
        with torch.enable_grad():
            g = torch.zeros_like(out).requires_grad_()
            pulled: Sequence[Tensor | None] = torch.autograd.grad(out, leaves, g, create_graph=True, allow_unused=True)
            pairs = [(p, t) for p, t in zip(pulled, tangents.values()) if p is not None]
            if pairs:
                ps, ts = zip(*pairs)
                found[place] = torch.autograd.grad(ps, g, ts, create_graph=deeper, allow_unused=True)[0]
    return found


def random_states(tensors: Sequence[Any]) -> list[tuple[Any, Tensor]]:
    """Return the states of the random numbers of the CPU and of the devices of these tensors."""
    devices = {t.device for t in tensors if isinstance(t, Tensor) and t.device.type == "cuda"}
    return [(None, torch.get_rng_state()), *((d, torch.cuda.get_rng_state(d)) for d in sorted(devices, key=str))]


def set_random_states(states: Sequence[tuple[Any, Tensor]]) -> None:
    """Draw again what was drawn since."""
    for device, state in states:
        torch.set_rng_state(state) if device is None else torch.cuda.set_rng_state(state, device)


def _same_states(one: Sequence[tuple[Any, Tensor]], other: Sequence[tuple[Any, Tensor]]) -> bool:
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(one, other))
