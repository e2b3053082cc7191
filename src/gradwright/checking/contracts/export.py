"""An exported program computes the same, and trains with the same gradient.

## What it checks
``torch.export.export`` of a small module around the subject, not strict and strict. The exported program is run, and
then trained for one step: its value and its gradient are compared with eager mode. What cannot be exported, an
exported program whose result has no gradient (its backward raises), and one of whose rule a warning says that it was
not exported, is ``unsupported``.

## Why it matters
An exported program holds the operations of forward and not the rule. Training it uses the derivative of those
operations: for a straight-through estimator that is zero, without an error. The rule is not at fault, but its user gets
another derivative.

## If it fails
Export for inference only. To train what was exported, let export keep the function whole: declare a
``gw.custom_gradient`` with ``op="namespace::name"``, or put forward and backward into a ``torch.library.custom_op``
with ``register_autograd``. A straight-through rule can also be written in plain operations (``gw.surrogate``).

## References
pytorch/rfcs pull request 28; PyTorch documentation, "torch.export".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.compiling import first_line, fresh_compiler
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients
from gradwright.checking.judge import Tolerance
from gradwright.checking.plain import PlainCall, plain_call
from gradwright.checking.replaced import replacement
from gradwright.checking.report import Outcome
from gradwright.checking.transforms import compare, leaves, observe, spread
from gradwright.checking.trials import Trial, conclude, failed
from gradwright.errors import RuleNotExportedWarning

HINT = (
    "export for inference only; to train what was exported declare it with gw.custom_gradient(op='namespace::name') "
    "or torch.library.custom_op with register_autograd, which export keeps whole; or write a straight-through rule in "
    "plain operations, as gw.surrogate does."
)


@contract(asks="does it compose?", level="full", presupposes=("linear-in-cotangent",))
def examine(case: Case) -> Outcome:
    """Export the subject, run it and train it."""
    case = case.exact
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    trials = []
    for strict in (False, True):
        with fresh_compiler():
            trials.append(_try(case, strict))
    return conclude(case, trials, "value and gradient as in eager mode", Tolerance.for_epsilon(case.epsilon).relative)


class _Around(torch.nn.Module):
    """The small module around the subject."""

    def __init__(self, call: PlainCall) -> None:
        super().__init__()
        self.run = call.run

    def forward(self, *tensors: Tensor) -> Any:
        """Call the subject."""
        return self.run(*tensors)


def _try(case: Case, strict: bool) -> Trial:
    name = "export (strict)" if strict else "export"
    call, v = plain_call(case), random_cotangent(case, "export")
    try:
        with case.sandbox(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            program = torch.export.export(_Around(call), tuple(call.arguments(leaves(case))), strict=strict)
        module = program.module()

        def runner(*inputs: Tensor) -> Sequence[Tensor]:
            result: Sequence[Tensor] = module(*call.arguments(inputs))
            return result

        got = observe(case, v, runner)
    except Exception as error:
        return Trial(name, "unsupported", f"raises {first_line(error)}")
    mismatch = compare(case, got, observe(case, v), lambda: spread(case, v))
    if mismatch is None:
        return Trial(name, "pass")
    told = next((w for w in said if issubclass(w.category, RuleNotExportedWarning)), None)
    if told is not None and mismatch.input is not None:
        return Trial(name, "unsupported", f"warns, and does not export the rule: {told.message}"[:160])
    if "seeded" in (case.randomness, case.backward_randomness):
        return Trial(name, "unresolved", "it draws other random numbers when it is exported")
    if mismatch.input is not None and not got.connected:
        return Trial(name, "unsupported", "the exported program has no gradient: training it raises")
    how = None if mismatch.input is None else replacement(case, v, got)
    message = f"trained after torch.export (strict={strict}), {mismatch.describe()}"
    if how:
        message += f": {how}, without an error, because an exported program does not hold it (pytorch/rfcs#28)"
    return failed(name, f"{message}. The rule itself is not at fault.", HINT, mismatch)
