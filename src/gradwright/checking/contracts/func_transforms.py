"""The transforms of torch.func give what eager autograd gives.

## What it checks
``torch.func.grad``, ``vjp``, ``jvp``, ``jacrev``, ``jacfwd``, ``hessian``, and ``grad`` of ``grad``, by value: each is
contracted with random vectors and compared with eager autograd (backward, forward mode, double backward). Full matrices
are built for small samples only. What raises is ``unsupported``, and the report says which transforms work.

## Why it matters
Meta-learning, per-example gradients, Hessian-vector products and physics-informed models are written with torch.func.
A Function whose forward takes ctx cannot be used there, and one without a ``jvp`` has no forward mode and no Hessian.

## If it fails
Split forward: ``forward(x, ...)`` without ctx, and ``setup_context(ctx, inputs, output)`` that saves what backward
needs; write ``jvp`` for forward mode and ``generate_vmap_rule = True`` for the transforms that are vmap inside.

## References
PyTorch documentation, "Extending torch.func with autograd.Function"; pytorch/pytorch issues 168393 and 170834.
"""

from __future__ import annotations

from collections.abc import Callable

from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.func_probe import FuncProbe, Reference, by_backward, by_double_backward, by_forward_mode
from gradwright.checking.guards import without_linearity
from gradwright.checking.intent import declared
from gradwright.checking.judge import Tolerance
from gradwright.checking.report import Outcome
from gradwright.checking.transforms import Result, compare, quiet
from gradwright.checking.trials import Trial, conclude, failed, refused

LARGEST_MATRIX = 4096
"""Entries of the largest Jacobian or Hessian that is built."""
HINT = (
    "the rule takes another path under torch.func than in eager mode: look for a test of requires_grad or of the type "
    "of a tensor, for .data and detach, and for tensors that bypass save_for_backward."
)


@contract(asks="does it compose?", level="standard", presupposes=("linear-in-cotangent", "modes-agree"))
def examine(case: Case) -> Outcome:
    """Run each transform and compare it with eager autograd."""
    case = case.exact
    if "side-loss" in declared(case):
        return Outcome(
            "skipped", "a gradient that does not depend on the incoming one is declared, which adds up per row"
        )
    obstacle = without_linearity(case)
    if obstacle is not None:
        return obstacle
    with quiet():
        trials = _trials(FuncProbe(case))
    return conclude(case, trials, "as eager autograd gives", Tolerance.for_epsilon(case.epsilon).relative)


def _trials(probe: FuncProbe) -> list[Trial]:
    first, forward, second = by_backward(probe), by_forward_mode(probe), by_double_backward(probe)
    n, m = sum(probe.case.n), probe.case.m
    return [
        _try(probe, "vjp", probe.vjp, first),
        _try(probe, "grad", probe.grad, first),
        _try(probe, "jacrev", probe.jacrev, first, entries=n * m),
        _try(probe, "jvp", probe.jvp, forward),
        _try(probe, "jacfwd", probe.jacfwd, forward, entries=n * m),
        _try(probe, "grad of grad", probe.grad_of_grad, second),
        _try(probe, "hessian", probe.hessian, second, entries=n * n),
    ]


def _try(probe: FuncProbe, name: str, run: Callable[[], Result], reference: Reference, entries: int = 0) -> Trial:
    case = probe.case
    if entries > LARGEST_MATRIX:
        return Trial(name, "skipped", f"the sample is too large to build a matrix of {entries} entries")
    if entries and not probe.real:
        return Trial(name, "skipped", "torch.func defines it for real tensors only")
    try:
        with case.sandbox():
            got = run()
    except Exception as error:
        return refused(name, error)
    if reference.result is None:
        return Trial(name, "unsupported", reference.refusal)
    mismatch = compare(case, got, reference.result, reference.scatter)
    if mismatch is None:
        return Trial(name, "pass")
    if case.randomness == "seeded" or case.backward_randomness == "seeded":
        return Trial(name, "unresolved", "it draws other random numbers under torch.func, so nothing can be compared")
    words = mismatch.describe("eager autograd gives", value=reference.noun)
    return failed(name, f"under torch.func.{name.split()[0]} {words}.", HINT, mismatch)
