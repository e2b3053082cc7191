"""The same call gives the same value and the same gradient, and the gradient belongs to the value returned.

## What it checks
Forward and backward are run again with the same random state, and with another one. Random numbers that forward draws
must be the ones that backward uses: a backward that draws its own (a dropout mask, for example) differentiates another
function than the one that was evaluated. That is shown by comparing with a difference quotient. State that changes from
call to call is named. Differences of the size of rounding, as the order of summation makes them, are allowed and
reported.

## Why it matters
A redrawn mask trains on noise without an error. Nothing can be compared with a function that is another one each time.

## If it fails
Draw random numbers in forward and save them (``ctx.save_for_backward(mask)``); keep no state between calls.

## References
kornia/kornia issue 3639; NVlabs/DiffRL issue 16.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import audit, functions_in_graph, random_cotangent
from gradwright.checking.captured import StateWatch
from gradwright.checking.case import Case
from gradwright.checking.compare import Mismatch, worst_mismatch
from gradwright.checking.contracts import contract
from gradwright.checking.differences import element_steps, signed
from gradwright.checking.randomness import fixed_random_state
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.tensors import join, same_bits, to_flat

SAVE_MASK = "draw the random numbers in forward, save them with ctx.save_for_backward, and use the saved ones."
SEEDS = (11, 12)
NOISE = 1e4
"""Differences between two calls up to this many rounding units are taken for the order of summation."""


@contract(asks="is it pure?")
def examine(case: Case) -> Outcome:
    """Run forward and backward under equal and under different random states."""
    watch = StateWatch(case.subject, tuple(functions_in_graph(case)))
    one, same, other = (_value(case, seed) for seed in (SEEDS[0], SEEDS[0], SEEDS[1]))
    if not same_bits(one, same):
        return _forward_varies(case, one, same, watch)
    random = not same_bits(one, other)
    forward = (
        "forward draws random numbers and was seeded at every call; seed it (torch.manual_seed) to reproduce a value"
        if random
        else "forward gives the same bits"
    )
    watched = audit(case)
    if not watched.usable or case.m == 0:
        return Outcome("pass", f"{forward}; {watched.obstacle}" if not watched.usable else forward)
    v = random_cotangent(case)
    watch = StateWatch(case.subject, tuple(functions_in_graph(case)))
    first, again, redrawn = (_gradient(case, v, seed) for seed in (SEEDS[0], SEEDS[0], SEEDS[1]))
    if not same_bits(first, again):
        return _backward_varies(case, first, again, watch, forward)
    if same_bits(first, redrawn):
        return Outcome("pass", f"{forward}; backward gives the same bits")
    if random:
        return _redrawn(case, v, first, redrawn, forward)
    return Outcome(
        "pass", f"{forward}; backward draws random numbers, so that two backwards of one value give two gradients"
    )


def _value(case: Case, seed: int) -> Tensor:
    """Return all floating outputs under a random state, as one vector."""
    run = case.forward_on(case.fresh_inputs(), mode=fixed_random_state(seed)).outputs
    floating = [out for out in run if out.is_floating_point() or out.is_complex()]
    return join([to_flat(out) for out in floating])


def _gradient(case: Case, v: Tensor, seed: int) -> Tensor:
    """Return the gradient of the forward of the first random state, with backward under another one."""
    with torch.enable_grad():
        run = case.forward_on(case.fresh_inputs(), mode=fixed_random_state(SEEDS[0]))
        with fixed_random_state(seed):
            gradients = run.gradients(case.cotangents(v))
    return join(case.flatten_inputs(gradients))


def _differ(case: Case, a: Tensor, b: Tensor) -> tuple[Mismatch | None, float]:
    """Return where two vectors differ by more than noise, and the largest relative difference."""
    size = float(torch.maximum(a.abs(), b.abs()).nan_to_num(0.0, 0.0, 0.0).max())
    largest = float((a - b).nan_to_num(0.0).abs().max()) / size if size else 0.0
    return worst_mismatch([(0, b, a)], NOISE / 256 * case.epsilon, case.allowances.nondet_tol), largest


def _excuse(case: Case) -> str:
    tolerance = case.allowances.nondet_tol
    return f"as nondet_tol={tolerance:g} allows" if tolerance else "as the order of summation makes it"


def _forward_varies(case: Case, one: Tensor, same: Tensor, watch: StateWatch) -> Outcome:
    wrong, largest = _differ(case, one, same) if one.shape == same.shape else (None, 1.0)
    if wrong is None and one.shape == same.shape:
        return Outcome(
            "pass",
            f"forward differs from call to call by {largest:.1e} of its size, {_excuse(case)}; nothing finer can be "
            "compared",
        )
    changed = watch.changed()
    generators = [c.words for c in changed if c.is_generator]
    state = [c.words for c in changed if not c.is_generator]
    if generators:
        why = f"it draws from {', '.join(generators)}; draw from the global generator, or seed that one in each call"
    elif state:
        why = f"it keeps state between calls: {', '.join(state[:3])} changed; pass the state as an argument"
    else:
        why = "it draws random numbers that cannot be seeded, or keeps state that cannot be seen from outside"
    amount = f", by {largest:.1e} of its size" if one.shape == same.shape else ", even in shape"
    return Outcome(
        "unresolved", f"forward gives another value each time for the same inputs and random state{amount}: {why}"
    )


def _backward_varies(case: Case, first: Tensor, again: Tensor, watch: StateWatch, forward: str) -> Outcome:
    wrong, largest = _differ(case, first, again)
    if wrong is None:
        return Outcome(
            "pass",
            f"{forward}; two backwards differ by {largest:.1e} of the gradient's size, {_excuse(case)}; nothing finer "
            "can be compared",
            sensitivity=largest,
        )
    changed = watch.changed()
    state = [c.words for c in changed if not c.is_generator]
    message = f"backward gives another gradient each time for the same inputs and random state ({wrong.words})"
    if state and not any(c.is_generator for c in changed):
        message += f": it keeps state between calls ({', '.join(state[:3])} changed)."
        hint = "keep what backward needs on ctx, and allocate its result anew; a gradient depends on its inputs only."
        name, index = _place(case, wrong.position)
        inputs = ", ".join(repro.variable(item.name) for item in case.inputs)
        body = [
            "for _ in range(2):",
            f"    total = sum(t.sum() for t in {repro.listed(case)})",
            f"    print(torch.autograd.grad(total, [{inputs}], allow_unused=True)[0].clone())",
            f"    out = {repro.call(case)}",
        ]
        where = Where(name, index=index)
        finding = Finding(
            "fail", message, hint, where, wrong.got, wrong.want, wrong.allowed, repro=repro.script(case, body)
        )
        return Outcome("fail", message, (finding,))
    source = next((c.words for c in changed if c.is_generator), "a source that cannot be seeded, or hidden state")
    return Outcome("unresolved", f"{message}; it draws from {source}")


def _place(case: Case, position: int) -> tuple[str, tuple[int, ...]]:
    k = 0
    while position >= case.n[k]:
        position -= case.n[k]
        k += 1
    return case.inputs[k].name, case.locate_input(k, position)


def _redrawn(case: Case, v: Tensor, same: Tensor, redrawn: Tensor, forward: str) -> Outcome:
    """Forward and backward are both random: tell a redrawn mask from a backward that is random by design.

    The gradient must belong to the value: only under forward's own random state, repeated in backward, it may match.
    """
    generator = case.generator("redrawn")
    steps = [signed(n, generator) * element_steps(x) * 1e-2 for n, x in zip(case.n, case.base)]
    u = join(steps)

    def value(sign: float) -> Tensor:
        moved = {k: x + sign * step.to(x.dtype) for k, (x, step) in enumerate(zip(case.base, steps))}
        run = case.forward_on(case.fresh_inputs(moved), mode=fixed_random_state(SEEDS[0]))
        return join([to_flat(out) for out in run.differentiable])

    numeric = float(((value(1.0) - value(-1.0)) * v).sum()) / 2
    with_same, with_other = float((same * u).sum()), float((redrawn * u).sum())
    size = float((same * u).abs().sum()) + 1e-300
    if abs(numeric - with_same) > 1e-3 * size or abs(numeric - with_other) < 2e-2 * size:
        return Outcome(
            "unresolved",
            f"{forward}; backward draws random numbers of its own, so that the gradient is random for a given value",
        )
    message = (
        "backward draws its own random numbers instead of using those of forward: the gradient belongs to another draw "
        f"than the value that was returned (along one direction {with_other:.4g} instead of {numeric:.4g})."
    )
    body = [
        "total = sum(t.sum() for t in " + repro.listed(case) + ")",
        f"inputs = [{', '.join(repro.variable(item.name) for item in case.inputs)}]",
        "for _ in range(2):  # one value, two gradients",
        "    print(torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)[0])",
    ]
    finding = Finding(
        "fail", message, SAVE_MASK, None, with_other, numeric, 1e-3 * size, repro=repro.script(case, body)
    )
    return Outcome("fail", message, (finding,))
