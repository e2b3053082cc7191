"""Under activation checkpointing the gradients are the same.

## What it checks
``torch.utils.checkpoint.checkpoint`` around the subject, with ``use_reentrant=False`` and ``True``: forward runs again
during backward, and the gradients must be those without it. A recomputation that saves another number of tensors
raises, which is ``unsupported``; random numbers that are not drawn from torch's generators are others the second time,
which gives a wrong gradient without an error.

## Why it matters
Large models are trained with checkpoints. A Function that keeps state between calls, or draws random numbers by itself,
pairs the mask of one call with the output of another.

## If it fails
Let forward depend on its arguments only, draw random numbers from torch's generators (checkpoint restores those), and
save with ``ctx.save_for_backward``.

## References
PyTorch documentation, "torch.utils.checkpoint"; pytorch/pytorch issue 153334.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients
from gradwright.checking.judge import Tolerance
from gradwright.checking.randomness import fixed_random_state
from gradwright.checking.report import Outcome
from gradwright.checking.tensors import join, to_flat
from gradwright.checking.transforms import Result, compare, function_of, leaves, quiet, spread
from gradwright.checking.trials import Trial, conclude, failed, refusal
from gradwright.errors import describe_exception

STATE_HINT = (
    "forward must depend on its arguments alone: keep no state between calls, and draw random numbers from torch's "
    "generators, whose state checkpoint restores (Python's and NumPy's it does not)."
)


@contract(
    asks="does it compose?",
    level="standard",
    presupposes=("linear-in-cotangent", "inputs-untouched", "saved-untouched"),
)
def examine(case: Case) -> Outcome:
    """Compare gradients with and without checkpoints."""
    case = case.exact
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    with quiet():
        trials = [_try(case, "checkpoint", False), _try(case, "checkpoint (reentrant)", True)]
    return conclude(case, trials, "gradients as without it", Tolerance.for_epsilon(case.epsilon).relative)


def _try(case: Case, name: str, reentrant: bool) -> Trial:
    v = random_cotangent(case, "checkpoint")
    try:
        got = _observe(case, v, functools.partial(checkpoint, use_reentrant=reentrant))
    except Exception as error:
        text = str(error)
        if "number of tensors" in text or "recomputed" in text:
            words = f"forward saves something else when it runs again ({describe_exception(error)[:120]})"
            return Trial(name, "unsupported", words)
        return Trial(name, "unsupported", refusal(error))
    plain = _observe(case, v, lambda function, *inputs: function(*inputs))
    mismatch = compare(case, got, plain, lambda: spread(case, v))
    if mismatch is None:
        return Trial(name, "pass")
    message = f"under torch.utils.checkpoint (use_reentrant={reentrant}) {mismatch.describe()}."
    if case.randomness == "seeded":
        message += " Forward draws random numbers that are others when it runs again."
    return failed(name, message, STATE_HINT, mismatch)


def _observe(case: Case, v: Tensor, run: Callable[..., Sequence[Tensor]]) -> Result:
    """Run forward through ``run``, and ``backward`` on leaves, because reentrant checkpoints refuse ``grad``.

    In training the recomputation meets generators that have moved on, and only torch's are restored by checkpoint. What
    backward itself draws is drawn from there with a checkpoint and without one.
    """
    fresh, function = leaves(case), function_of(case)
    with case.sandbox():
        outputs = run(function, *fresh)
    pairs = [(out, c) for out, c in zip(outputs, case.cotangents(v)) if out.requires_grad]
    with case.sandbox(), fixed_random_state(case.seed + 1):
        torch.autograd.backward([out for out, _ in pairs], [c for _, c in pairs])
    gradients = case.flatten_inputs([None if x.grad is None else x.grad.detach() for x in fresh])
    return Result(join([to_flat(out) for out in outputs]), gradients)
