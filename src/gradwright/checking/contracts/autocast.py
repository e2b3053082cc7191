"""Under autocast the value and the gradient are those of float32, up to the rounding of bfloat16.

## What it checks
The subject on float32 inputs under ``torch.autocast("cpu", dtype=torch.bfloat16)``, backward outside of it, as in
training. What it gives is compared with float32. Where no operation that autocast lowers was run and the value is the
same number for number, the gradient must be too, up to float32 rounding: there is no reason for it to be coarser. Else
both have the budget of bfloat16: what moves when inputs, incoming gradients and results move by bfloat16 units. What
raises is ``unsupported``.

## Why it matters
Inside autocast a custom Function gets inputs of mixed precision. It may save one in half precision, overflow, or meet a
dtype in backward that it did not expect.

## If it fails
Decorate forward with ``torch.amp.custom_fwd(device_type=...)`` and backward with ``torch.amp.custom_bwd``, so that both
see the same autocast state, or cast inside forward and save what was really used.

## References
PyTorch documentation, "Automatic Mixed Precision examples: functions with multiple inputs or autocastable ops";
pytorch/pytorch issues 132388 and 87979.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.differences import signed
from gradwright.checking.guards import without_gradients
from gradwright.checking.judge import Tolerance
from gradwright.checking.report import Outcome
from gradwright.checking.transforms import Result, compare, function_of, observe, quiet, spread
from gradwright.checking.trials import Trial, conclude, failed, refusal

UNIT = float(torch.finfo(torch.bfloat16).eps)
DRAWS = 4
LOW = (torch.bfloat16, torch.float16)
LOWERED = ("mm", "mv", "dot", "conv", "linear", "attention", "lstm", "gru", "rnn", "einsum", "matmul")
"""Parts of the names of the operations that autocast runs in low precision on the CPU."""
HINT = (
    "look for .half(), .bfloat16() or a test of torch.is_autocast_enabled() in forward: what is saved for backward "
    "must not be coarser than what was computed with. custom_fwd and custom_bwd of torch.amp give both the same state."
)
DTYPE_HINT = "decorate forward with torch.amp.custom_fwd and backward with torch.amp.custom_bwd"


@contract(asks="does it compose?", level="standard", presupposes=("linear-in-cotangent", "matches-differences"))
def examine(case: Case) -> Outcome:
    """Compare with float32."""
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    single = case if case.dtype == torch.float32 else case.twin(torch.float32)
    if single is None or single.detached or without_gradients(single) is not None:
        return Outcome("skipped", "it does not run in float32, which is what autocast lowers")
    with quiet():
        trial = _try(single)
    words = "value and gradient as in float32, up to the rounding of bfloat16"
    return conclude(case, [trial], words, UNIT)


def _try(case: Case) -> Trial:
    name, v = "autocast", random_cotangent(case, "autocast")
    want, function, lowered = observe(case, v), function_of(case), _Lowered()

    def lowered_to(dtype: torch.dtype) -> Result:
        def runner(*inputs: Tensor) -> Sequence[Tensor]:
            with torch.autocast("cpu", dtype=dtype):
                return function(*inputs)

        return observe(case, v, runner)

    try:
        with lowered.watch():
            got = lowered_to(torch.bfloat16)
    except Exception as error:
        words = refusal(error)
        if "custom_fwd" in words or "_fwd_used_autocast" in words:
            return Trial(name, "unsupported", f"{words}: custom_bwd needs custom_fwd (pytorch/pytorch#132388)")
        return Trial(name, "unsupported", f"{words}; {DTYPE_HINT}" if "dtype" in words or "type" in words else words)
    same_value = bool(torch.equal(got.value.nan_to_num(), want.value.nan_to_num()))
    strict = same_value and not lowered.seen
    if strict:
        mismatch = compare(case, got, want, lambda: spread(case, v))
    else:
        coarse = Tolerance(16 * UNIT, 8 * UNIT)
        mismatch = compare(case, got, want, lambda: _coarse_spread(case, v), coarse)
        if mismatch is not None and _shrinks(got, want, lambda: lowered_to(torch.float16)):
            return Trial(name, "pass")
    if mismatch is None:
        return Trial(name, "pass")
    if "seeded" in (case.randomness, case.backward_randomness):
        return Trial(name, "unresolved", "it draws other random numbers under autocast, so nothing can be compared")
    message = f"under torch.autocast {mismatch.describe('float32 gives')}"
    if strict:
        message += ", although forward gives the same value and nothing was computed in low precision by autocast"
    return failed(name, f"{message}.", HINT, mismatch)


def _shrinks(got: Result, want: Result, finer: Callable[[], Result]) -> bool:
    """Tell whether the error is rounding after all: float16 has eight times finer units, and a mistake has none."""
    try:
        closer = finer()
    except Exception:
        return False
    errors = []
    for result in (closer, got):
        parts = zip([result.value, *result.gradients], [want.value, *want.gradients])
        errors.append(max(float((a - b).nan_to_num().abs().max()) for a, b in parts if a.numel()))
    return errors[0] <= errors[1] / 3


class _Lowered:
    """Sees whether an operation that autocast lowers was run in low precision."""

    def __init__(self) -> None:
        self.seen = False

    def watch(self) -> Any:
        """Return a context that watches every operation."""
        return torch_compat.watch_operations(self._look)

    def _look(self, operation: Any, result: Any) -> None:
        name = str(getattr(operation, "name", operation)())
        if isinstance(result, Tensor) and result.dtype in LOW and any(part in name for part in LOWERED):
            self.seen = True


def _coarse_spread(case: Case, v: Tensor) -> Result:
    """Return by how much value and gradients move when inputs and cotangents move by bfloat16 units."""
    generator = case.generator("autocast")

    def moved(x: Tensor) -> Tensor:
        return x * (1 + UNIT * signed(x.numel(), generator).sign().to(x.dtype))

    here = observe(case, v)
    value, gradients = torch.zeros_like(here.value), [torch.zeros_like(g) for g in here.gradients]
    for _ in range(DRAWS):
        there = observe(case, moved(v), flats={k: moved(x) for k, x in enumerate(case.base)})
        value = value.maximum((there.value - here.value).abs().nan_to_num(torch.inf))
        pairs = zip(gradients, there.gradients, here.gradients)
        gradients = [most.maximum((a - b).abs().nan_to_num(torch.inf)) for most, a, b in pairs]
    return Result(value, gradients)
