"""Batching with vmap gives what a loop over the examples gives.

## What it checks
``torch.func.vmap`` of the subject and of its VJP, over several ``in_dims`` (all 0, all last with ``out_dims=-1``,
mixed, and each input batched alone beside ``None``), against a loop over the examples: outputs and gradients, by value.
Also the gradient of the batched call, which must still follow the rule, and batched gradients
(``torch.autograd.grad(..., is_grads_batched=True)``) against a loop over the cotangents. What raises is
``unsupported``; a batching rule of your own that breaks on some ``in_dims`` by accident is a ``fail``.

## Why it matters
Per-example gradients, ensembles, ``jacrev`` and ``hessian`` are vmap. A batching rule that assumes ``in_dims=0``, that
mixes examples or that returns the wrong ``out_dims`` gives wrong numbers without an error.

## If it fails
In ``vmap(info, in_dims, *args)`` move every batched argument's dimension to a known place, leave those with ``None``
unbatched, return where the batch dimension of each output is, and compute by calling ``apply`` again, so that the rule
is kept. Or set ``generate_vmap_rule = True``.

## References
PyTorch documentation, "Extending torch.func with autograd.Function"; pytorch/pytorch issue 90037.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.checking.batches import Batch, Dims, draw
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients
from gradwright.checking.judge import Tolerance
from gradwright.checking.report import Outcome
from gradwright.checking.transforms import Mismatch, Result, ShapeError, compare, function_of, observe, quiet, spread
from gradwright.checking.trials import Trial, conclude, failed, refused
from gradwright.errors import describe_exception

MAX_ALONE = 4
"""Inputs that are batched alone, each in turn."""
RULE_HINT = (
    "look at the vmap rule: does it use in_dims for every argument (None included), keep the examples apart, and "
    "return the right out_dims? `generate_vmap_rule = True` derives one."
)
DROPPED_HINT = (
    "compute in the vmap rule by calling apply again: autograd differentiates plain operations in it instead of using "
    "backward."
)
WHOLE = "differentiated as a whole, "


@contract(asks="does it compose?", level="standard", presupposes=("linear-in-cotangent",))
def examine(case: Case) -> Outcome:
    """Compare batched calls with loops."""
    case = case.exact
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    batch = draw(case)
    choices = list(_choices(len(case.inputs)))
    with quiet():
        trials = [_vmap(batch, choices), _batched_gradients(batch)]
    return conclude(case, trials, "values and gradients as a loop gives", Tolerance.for_epsilon(case.epsilon).relative)


def _choices(n: int) -> Iterator[Dims]:
    yield (0,) * n
    yield (-1,) * n
    if n > 1:
        yield tuple(-(k % 2) for k in range(n))
        yield from (tuple(0 if k == alone else None for k in range(n)) for alone in range(min(n, MAX_ALONE)))
    if n > 2:
        yield (None, *(-1,) * (n - 1))


def _vmap(batch: Batch, choices: Sequence[Dims]) -> Trial:
    for number, dims in enumerate(choices):
        trial = _over(batch, dims)
        if trial is None:
            continue
        if trial.verdict == "unsupported" and number:
            return Trial("vmap", "unsupported", f"with in_dims={_said(dims)} it {trial.reason}")
        return trial
    return Trial("vmap", "pass")


def _over(batch: Batch, dims: Dims) -> Trial | None:
    """Try one choice of in_dims; None when everything agrees."""
    ways = ((_values, "", RULE_HINT), (_vmap_of_vjp, "", RULE_HINT), (_vjp_of_vmap, WHOLE, DROPPED_HINT))
    for way, how, hint in ways:
        try:
            results = way(batch, dims)
        except ShapeError as error:
            return failed("vmap", f"under torch.func.vmap with in_dims={_said(dims)} it gives {error}.", RULE_HINT)
        except Exception as error:
            if _breaks_by_accident(batch.case, error):
                words = describe_exception(error)
                return failed("vmap", f"the vmap rule breaks with in_dims={_said(dims)}: {words}", RULE_HINT)
            return refused("vmap", error)
        for b, got in enumerate(results):
            mismatch = _differs(batch, dims, b, got)
            if mismatch is not None:
                return _mismatch(batch, dims, b, mismatch, hint, how)
    return None


def _differs(batch: Batch, dims: Dims, b: int, got: Result) -> Mismatch | None:
    v, flats = batch.cotangents[b], batch.flats(dims, b)
    return compare(batch.case, got, batch.looped(dims, b), lambda: spread(batch.case, v, flats))


def _values(batch: Batch, dims: Dims) -> list[Result]:
    """Return the outputs of each example, without gradients."""
    out_dim = -1 if dims == (-1,) * len(dims) else 0
    with batch.case.sandbox():
        outputs = torch.func.vmap(function_of(batch.case), dims, out_dim, randomness="same")(*batch.inputs(dims))
    return batch.examples([out.movedim(out_dim, 0) for out in outputs], [])


def _vmap_of_vjp(batch: Batch, dims: Dims) -> list[Result]:
    """Return what each example gets from vmap over the VJP."""
    function, n = function_of(batch.case), len(dims)

    def both(*arguments: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        outputs, pull = torch.func.vjp(function, *arguments[:n])[:2]
        return tuple(outputs), tuple(pull(tuple(arguments[n:])))

    cotangents = batch.stacked_cotangents()
    in_dims = (*dims, *(0 for _ in cotangents))
    with batch.case.sandbox():
        outputs, gradients = torch.func.vmap(both, in_dims, randomness="same")(*batch.inputs(dims), *cotangents)
    return batch.examples(outputs, gradients)


def _vjp_of_vmap(batch: Batch, dims: Dims) -> list[Result]:
    """Return what each example gets from the gradient of the batched call; nothing when an input is not batched."""
    if any(dim is None for dim in dims):
        return []
    inputs = [t.requires_grad_() for t in batch.inputs(dims)]
    with batch.case.sandbox():
        outputs = torch.func.vmap(function_of(batch.case), dims, randomness="same")(*inputs)
    pairs = [(out, c) for out, c in zip(outputs, batch.stacked_cotangents()) if out.requires_grad]
    if not pairs:
        raise ShapeError("outputs that do not require grad")
    with batch.case.sandbox():
        got: Any = torch.autograd.grad([o for o, _ in pairs], inputs, [c for _, c in pairs], allow_unused=True)

    filled = [torch.zeros_like(x) if g is None else g for g, x in zip(got, inputs)]
    return batch.examples(outputs, [g.movedim(dim or 0, 0) for g, dim in zip(filled, dims)])


def _mismatch(batch: Batch, dims: Dims, b: int, mismatch: Mismatch, hint: str, how: str = "") -> Trial:
    if batch.case.randomness == "seeded":
        return Trial(
            "vmap", "unresolved", "it draws other random numbers when it is batched, so nothing can be compared"
        )
    message = (
        f"under torch.func.vmap with in_dims={_said(dims)}, {how}"
        f"{mismatch.describe('a loop gives')}, example {b} of the batch."
    )
    return failed("vmap", message, hint, mismatch)


def _said(dims: Dims) -> str:
    return str(dims[0] if len(dims) == 1 else tuple(dims))


def _breaks_by_accident(case: Case, error: Exception) -> bool:
    """Tell an own vmap rule that breaks from one that refuses with a ``raise`` or ``assert`` of its own."""
    function = case.subject.function
    if function is None or function.vmap is Function.vmap or isinstance(error, NotImplementedError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    rule = inspect.unwrap(function.vmap).__code__
    inside = [frame for frame in frames if frame.filename == rule.co_filename and frame.name == rule.co_name]
    return bool(inside) and not (frames[-1].line or "").lstrip().startswith(("raise", "assert"))


def _batched_gradients(batch: Batch) -> Trial:
    name, case = "batched gradients", batch.case
    run = case.forward()
    pairs = list(zip(run.differentiable, batch.stacked_cotangents()))
    try:
        with case.sandbox(), torch_compat.data_of_batched_tensors_refused():
            got: Any = torch.autograd.grad(
                [out for out, _ in pairs],
                run.inputs,
                [c for _, c in pairs],
                is_grads_batched=True,
                allow_unused=True,
            )
    except Exception as error:
        return refused(name, error)
    for b, v in enumerate(batch.cotangents):
        want = observe(case, v)
        mine = Result(want.value, case.flatten_inputs([None if g is None else g[b] for g in got]))
        mismatch = compare(case, mine, want, lambda v=v: spread(case, v))  # type: ignore[misc]
        if mismatch is not None:
            if case.backward_randomness != "none":
                return Trial(name, "unresolved", "backward draws random numbers")
            message = f"with is_grads_batched=True {mismatch.describe('one cotangent at a time gives')}."
            hint = "look in backward for a use of the number of dimensions or of the batch size of grad_output."
            return failed(name, message, hint, mismatch)
    return Trial(name, "pass")
