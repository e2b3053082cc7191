"""The sweep of a head as one operator of PyTorch, for code that torch.compile records.

A compiler that looks into the blocks of a head reorders what it finds: it holds the logits of all of them, as eager
PyTorch does. An operator it leaves whole. ``gradwright::head_sweep`` is
:func:`gradwright.fused.head_sweep.swept_where`, and ``gradwright::head_sum`` adds up what that returns, so that its
gradients can be formed in the forward.

A second derivative, which torch.compile has not either, raises: ``gradwright::head_sealed`` ties the gradients to all
that they depend on. One hole is left, and is PyTorch's (2.13): the backend ``aot_eager`` keeps views of arguments as if
nothing depended on them, and takes a second derivative by these for zero, whatever the function is.

An operator knows tensors, numbers and words. So what becomes of a row travels as the name of its class, with its
options as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.exact import HALF
from gradwright.errors import RuleError
from gradwright.fused.cross_entropy_rows import CrossEntropy
from gradwright.fused.divergence_rows import JS, KL, TV, Divergence, ReverseKL
from gradwright.fused.head_sweep import plan_of, swept_where, top_of
from gradwright.fused.log_prob_rows import LogProbs
from gradwright.fused.rows import Bend, Rows
from gradwright.stable.arguments import widened

DIVERGENCES: dict[str, type[Divergence]] = {kind.__name__: kind for kind in (KL, ReverseKL, JS, TV)}


def compiled() -> bool:
    """Tell whether torch.compile records, with nothing around it that an operator has no rule for.

    ``torch.export`` gets formulas: a program that is exported knows no gradwright.
    """
    if not torch.compiler.is_dynamo_compiling() or torch_compat.is_exporting():
        return False
    return not torch_compat.transforms_active() and not torch_compat.forward_mode_on()


def summed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    rows: Rows,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    *,
    bend: Bend,
    block: int | None,
    recompute: bool,
) -> Tensor:
    """Return what :func:`gradwright.fused.heads.summed` returns, where :func:`compiled` says so."""
    marked = None if scale.requires_grad else scale != 0
    top = top_of(scale) if x.dtype in HALF else 1.0
    arguments = (x, weight, bias, scale / top, marked, list(by_row), list(shared), *encoded(rows, bend), block)
    wanted = [False] * 3
    if torch.is_grad_enabled() and not recompute:
        wanted = [x.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad]
    total: Tensor = sweep_and_sum(*arguments, wanted)[0]
    return top * total


def each(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: Rows,
    by_row: tuple[Tensor, ...],
    shared: tuple[Tensor, ...],
    *,
    bend: Bend,
    kept: Tensor | None,
    block: int | None,
) -> Tensor:
    """Return what :func:`gradwright.fused.heads.each` returns, where :func:`compiled` says so."""
    marked = None if kept is None else kept.unsqueeze(1)
    arguments = (x, weight, bias, None, marked, list(by_row), list(shared), *encoded(rows, bend), block)
    values: Tensor = sweep(*arguments, [False] * 3)[0]
    return values


# -------------------------------------------------------------------- what an operator is told of rows


def encoded(rows: Rows, bend: Bend) -> tuple[str, tuple[float, ...]]:
    """Return the class of rows and, after those of the bend, its options."""
    own: tuple[float, ...] = ()
    if isinstance(rows, CrossEntropy):
        own = (rows.soft, rows.smoothing, rows.z_loss, rows.entropy)
    elif isinstance(rows, LogProbs):
        own = (rows.entropy,)
    elif isinstance(rows, JS):
        own = (rows.beta,)
    return type(rows).__name__, (bend.softcap or 0.0, bend.temperature, *own)


def decoded(kind: str, options: Sequence[float]) -> tuple[Rows, Bend]:
    """Undo :func:`encoded`."""
    softcap, temperature, *own = options
    bend = Bend(softcap or None, temperature)
    if kind == "CrossEntropy":
        return CrossEntropy(bool(own[0]), *own[1:]), bend
    if kind == "LogProbs":
        return LogProbs(bool(own[0])), bend
    return DIVERGENCES[kind](bend, *own), bend


# -------------------------------------------------------------------- the operators

TAGS = [tag for name in ("cudagraph_unsafe",) if (tag := getattr(torch.Tag, name, None)) is not None]
"""It asks which rows count, for which the host waits; known since torch 2.8."""
ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor? g, Tensor? marked, Tensor[] by_row, Tensor[] shared, str kind, "
    "float[] options, SymInt? block"
)


@torch.library.custom_op(
    "gradwright::head_sweep",
    mutates_args=(),
    tags=TAGS,
    schema=f"({ARGUMENTS}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor)",
)
def sweep(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    g: Tensor | None,
    marked: Tensor | None,
    by_row: list[Tensor],
    shared: list[Tensor],
    kind: str,
    options: list[float],
    block: int | None,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the numbers of all rows and the gradients of input, weight and bias; empty ones that are not wanted.

    Rows in which nothing of ``marked`` is true are left out: they get zeros.
    """
    plan = plan_of(x, weight, bias, *decoded(kind, options), block)
    which = (wanted[0], wanted[1], wanted[2])
    with torch.autocast(x.device.type, enabled=False):
        values, grads = swept_where(marked, x, weight, bias, plan, g, which, by_row, shared)
    of_x, of_weight, of_bias = (x.new_empty(0) if grad is None else grad for grad in grads)
    return values, of_x, of_weight, of_bias


@sweep.register_fake
def _sweep_fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    g: Tensor | None,
    marked: Tensor | None,
    by_row: list[Tensor],
    shared: list[Tensor],
    kind: str,
    options: list[float],
    block: int | None,
    wanted: list[bool],
) -> tuple[Tensor, ...]:
    rows, _ = decoded(kind, options)
    wide = widened(x[:0]).dtype
    shapes = (x.shape, x.dtype), (weight.shape, wide), (weight.shape[:1], wide)
    grads = (x.new_empty(shape, dtype=dtype) if w else x.new_empty(0) for (shape, dtype), w in zip(shapes, wanted))
    return x.new_empty(x.shape[0], rows.outputs, dtype=wide), *grads


@torch.library.custom_op(
    "gradwright::head_sum",
    mutates_args=(),
    tags=TAGS,
    schema=f"({ARGUMENTS}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def sweep_and_sum(*arguments: Any) -> tuple[Tensor, ...]:
    """Return what :func:`sweep` does, and before it the sum of the numbers, each times its ``g``."""
    found = sweep(*arguments)
    return (found[0] * arguments[3]).sum(), *found


@sweep_and_sum.register_fake
def _sweep_and_sum_fake(*arguments: Any) -> tuple[Tensor, ...]:
    found = _sweep_fake(*arguments)
    return found[0].new_empty(()), *found


@torch.library.custom_op("gradwright::head_sealed", mutates_args=(), schema="(Tensor g, Tensor[] read) -> Tensor")
def sealed(g: Tensor, read: list[Tensor]) -> Tensor:
    """Return a cotangent, so that whoever differentiates it finds all that a backward depends on, and is refused."""
    return g.clone()


@sealed.register_fake
def _sealed_fake(g: Tensor, read: list[Tensor]) -> Tensor:
    return torch.empty_like(g)


# -------------------------------------------------------------------- their gradients


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, g, marked, by_row, shared, *ctx.rest, wanted = inputs
    ctx.set_materialize_grads(False)
    ctx.formed = any(wanted)
    ctx.lengths = len(by_row), len(shared)
    ctx.save_for_backward(x, weight, bias, g, marked, *by_row, *shared, *(output if ctx.formed else ()))


def _sweep_backward(ctx: Any, up: Tensor | None, *others: Tensor | None) -> tuple[Any, ...]:
    _refuse(others)
    if up is None:
        return _padded(ctx, (None,) * 4)
    x, weight, bias, _, _, by_row, shared, _ = _kept(ctx)
    found = sweep(x, weight, bias, up, up != 0, by_row, shared, *ctx.rest, list(ctx.needs_input_grad[:3]))
    return _given(ctx, found, None)


def _sum_backward(ctx: Any, up: Tensor | None, *others: Tensor | None) -> tuple[Any, ...]:
    _refuse(others)
    if up is None:
        return _padded(ctx, (None,) * 4)
    x, weight, bias, scale, marked, by_row, shared, found = _kept(ctx)
    if found:
        up = sealed(up, [tensor for tensor in (x, weight, bias, scale) if tensor is not None])
    else:
        found = sweep(x, weight, bias, scale, marked, by_row, shared, *ctx.rest, list(ctx.needs_input_grad[:3]))
    return _given(ctx, found, up)


def _sealed_backward(ctx: Any, up: Tensor) -> tuple[Any, ...]:
    _refuse([up])
    return up, None


def _refuse(cotangents: Sequence[Tensor | None]) -> None:
    if any(cotangent is not None for cotangent in cotangents):
        raise RuleError(
            "gw.fused heads: their gradient was differentiated again inside of torch.compile, which has no second "
            "derivatives; expected a first one; call them outside of compiled code for a second."
        )


def _kept(ctx: Any) -> tuple[Any, ...]:
    x, weight, bias, g, marked, *rest = ctx.saved_tensors
    ends = ctx.lengths[0], sum(ctx.lengths)
    found = rest[ends[1] :]
    return x, weight, bias, g, marked, rest[: ends[0]], rest[ends[0] : ends[1]], found[-4:]


def _given(ctx: Any, found: Sequence[Tensor], up: Tensor | None) -> tuple[Any, ...]:
    """Return the gradients that are needed, times a cotangent of the sum, in the dtypes of the arguments."""
    values, *grads = found
    given = [
        (grad if up is None else grad * up).to(grad.dtype if k == 3 else grads[0].dtype) if needed else None
        for k, (grad, needed) in enumerate(zip((*grads, values), ctx.needs_input_grad))
    ]
    return _padded(ctx, given)


def _padded(ctx: Any, given: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Return the gradients of tensors, and that other arguments have none, in the structure in which they are given."""
    by_row, shared = ctx.lengths
    return (*given, None, [None] * by_row, [None] * shared, None, None, None, None)


sweep.register_autograd(_sweep_backward, setup_context=_keep)
sweep_and_sum.register_autograd(_sum_backward, setup_context=_keep)
sealed.register_autograd(_sealed_backward)
