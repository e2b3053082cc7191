"""The Function class behind plain calls of an adopted Function: PyTorch's own ``ctx``, as far as that is right.

While no transform and no forward mode is open, the old forward gets the ``ctx`` of this class. Where it kept nothing
but saved tensors and numbers, PyTorch does the rest, and first derivatives are only looked at; a backward
that may be differentiated again goes through :func:`~gradwright.authoring.adopted.pull`, which watches it. What else
forward kept is taken off the ``ctx`` again and saved as :mod:`~gradwright.authoring.adopted_classes` does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress, repeat
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.authoring import trees
from gradwright.authoring.adopted import check_number, fitted, pull
from gradwright.authoring.adopted_call import Call, Old, Result, State, refuse_edits
from gradwright.authoring.adopted_classes import read
from gradwright.authoring.derive import Meta, meta_of, smooth
from gradwright.authoring.recording import Context, Kept, own_numbers
from gradwright.authoring.seal import may_be_differentiated


def given(definition: Any, args: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the arguments of the old forward, by position and by keyword, from those of a class for plain calls."""
    if not args or type(args[0]) is not Call:
        return args, {}
    left = iter(args[1:])
    return [trees.rebuild(structure, left) for structure in args[0].structures], {}


def direct_class(old: Old, module: str) -> type[Function]:
    """Make the class for plain calls of one adopted Function.

    Its arguments are those of the old forward; where they are containers or may be edited, a ``Call`` and the tensors.
    It returns what forward returned, or the tensors in that and a ``Result``.
    """

    def forward(ctx: Any, *args: Any) -> Any:
        if args and type(args[0]) is Call:
            return _recorded(ctx, args[0], args[1:])
        watched = list(compress(args, ctx.needs_input_grad))
        versions = torch_compat.all_edits(watched)
        out = old.forward(ctx, *args)
        if ctx.saved_for_forward:
            ctx.save_for_forward()  # there is no forward mode here, and an output in there would never be freed
        dirty = torch_compat.marked_dirty(ctx)
        if versions != torch_compat.all_edits(watched) and not dirty:
            refuse_edits(old, compress(range(len(args)), ctx.needs_input_grad), repeat(True), watched, versions)
        own = None if dirty else _own(ctx, args, out)
        if own is not None:
            numbers = bool(vars(ctx)) and own_numbers(vars(ctx), [args, old.constants])
            ctx.gw_metas = [meta_of(value) if isinstance(value, Tensor) else None for value in args]
            if own or old.once or numbers:
                leaves = [value for value in args if isinstance(value, Tensor)]
                constants = [None if isinstance(value, Tensor) else value for value in args]
                ctx.gw_again = (own, numbers, constants, _saved_apart(leaves))
            return out
        call = Call(old, _structures(args), ctx.needs_input_grad, everywhere=False)
        context = Context(call.needs, torch_compat.saved_so_far(ctx) or (), vars(ctx))
        context.mark_dirty(*(dirty or ()))
        context.mark_non_differentiable(*(torch_compat.marked_still(ctx) or ()))
        vars(ctx).clear()
        leaves = [value for value in args if isinstance(value, Tensor)]
        return _keep(ctx, call, context, leaves, leaves, out, flat=True)

    def backward(ctx: Any, *grads: Any) -> Any:
        kept = vars(ctx)
        metas = kept.get("gw_metas")
        if metas is None:
            return _backward(ctx, grads)
        if may_be_differentiated():
            return _by_argument(metas, pull(_state_again(old, ctx, len(grads)), grads, _needed(ctx, metas)))
        returned = old.backward(ctx, *grads)
        if _as_wanted(returned if type(returned) is tuple else (returned,), metas):
            return returned
        return _by_argument(metas, _fitted(old, returned, metas, _needed(ctx, metas)))

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward), "__module__": module}
    return type(old.name, (Function,), body)


def _own(ctx: Any, args: Sequence[Any], out: Any) -> list[int] | None:
    """Return which saved tensors are neither input nor output and have a derivative.

    None means that PyTorch would do wrong by what forward kept and returned: a tensor as an attribute, a tensor with a
    graph of its own, an output in a container or returned twice.
    """
    # Loops instead of any() and all(): this is part of every call.
    outs: Sequence[Any] = (out,)
    if type(out) is tuple:
        outs = out
        if len(set(map(id, out))) < len(out):
            return None
    for part in outs:
        if not isinstance(part, Tensor) and type(part) not in trees.PLAIN:
            return None
    for value in vars(ctx).values():
        if type(value) not in trees.PLAIN and trees.count(trees.flatten(value, [])):
            return None
    own = []
    for i, kept in enumerate(torch_compat.saved_so_far(ctx) or ()):
        if kept is None or _among(kept, outs) or _among(kept, args):
            continue
        if not isinstance(kept, Tensor) or kept.requires_grad:
            return None
        if smooth(kept):
            own.append(i)
    return own


def _among(value: Any, known: Sequence[Any]) -> bool:
    for other in known:  # noqa: SIM110
        if value is other:
            return True
    return False


def _structures(args: Sequence[Any]) -> tuple[trees.Structure, ...]:
    return tuple([trees.LEAF if isinstance(value, Tensor) else trees.Static(value) for value in args])


def _recorded(ctx: Any, call: Call, leaves: Sequence[Tensor]) -> Any:
    """Run the old forward with a ctx of ours, which takes containers apart and edits on copies."""
    work = [leaf.clone() for leaf in leaves] if call.old.edits else list(leaves)
    versions = torch_compat.all_edits(work)
    context = Context(call.needs)
    left = iter(work)
    out = call.old.forward(context, *(trees.rebuild(structure, left) for structure in call.structures))
    if not context.gw_dirty and versions != torch_compat.all_edits(work):
        refuse_edits(call.old, call.owners(), call.needs_leaf(), work, versions)
    ctx.set_materialize_grads(context.gw_materialize)
    return _keep(ctx, call, context, leaves, work, out, flat=False)


def _keep(
    ctx: Any,
    call: Call,
    context: Context,
    leaves: Sequence[Tensor],
    work: Sequence[Tensor],
    out: Any,
    *,
    flat: bool,
) -> Any:
    """Save what the old forward kept, and return the outputs and a description of them."""
    outs, own, result = read(call, context, work, out)
    returned = trees.distinct(outs, work, copies=False, aliases=True)
    pools = {"argument": leaves, "output": returned, "own": own}
    ctx.save_for_backward(*(pools[kind][i] for kind, i in result.kept.sources))
    ctx.mark_non_differentiable(*(returned[i] for i in result.still))
    # An input that is kept only to run forward again may change in place until then, as running statistics do:
    # that must not stop a first derivative, so it is saved apart.
    ctx.extra = _saved_apart(leaves) if call.needs_arguments(result) else None
    # PyTorch was told of what has no derivative, and which gradients are zeros and which None.
    ctx.call, ctx.result, ctx.flat = call, replace(result, still=(), materialize=False), flat
    ctx.metas = [meta_of(leaf) for leaf in leaves]
    ctx.out_metas = [meta_of(leaf) for leaf in returned]
    return (*returned, result)


class _Apart(Function):
    """A node of its own for saved tensors, so that PyTorch looks for edits of them only when they are asked for."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return tensors[0].new_empty(0, dtype=torch.float32)


def _saved_apart(tensors: Sequence[Tensor]) -> Any:
    """Return an empty tensor that hangs on the node."""
    with torch.enable_grad():
        return torch_compat.direct_apply(_Apart)(*tensors)


# -------------------------------------------------------------------- backward


def _backward(ctx: Any, grads: Sequence[Any]) -> Any:
    needs = ctx.needs_input_grad
    cotangents = grads[: ctx.result.number]
    if all(g is None for g in cotangents):
        return (None,) * len(needs)
    leaves, trouble = (None, None) if ctx.extra is None else _arguments(ctx.extra)
    state = State(ctx.call, ctx.result, leaves, list(ctx.saved_tensors), ctx.metas, ctx.out_metas, trouble)
    if not ctx.flat:
        return (None, *pull(state, cotangents, needs[1:]))
    places = [None if structure is not trees.LEAF else structure for structure in ctx.call.structures]
    return _by_argument(places, pull(state, cotangents, _needed(ctx, places)))


def _arguments(apart: Tensor) -> tuple[list[Tensor], str | None]:
    """Return the tensors that were saved apart, or why there are none."""
    try:
        return list(apart.grad_fn.saved_tensors), None  # type: ignore[union-attr]
    except RuntimeError:
        # What can no longer be read can still be led back to the inputs, so that a second derivative is refused.
        return [apart], "an input was changed in place since"


def _state_again(old: Old, ctx: Any, number: int) -> State:
    """Return what is needed for a second derivative where the ctx is PyTorch's."""
    own, numbers, constants, apart = vars(ctx).get("gw_again", ((), False, repeat(None), None))
    leaves, trouble = (None, None) if apart is None else _arguments(apart)
    structures = tuple(
        [trees.Static(value) if meta is None else trees.LEAF for value, meta in zip(constants, ctx.gw_metas)]
    )
    saved = ctx.saved_tensors
    attributes = {name: value for name, value in vars(ctx).items() if not name.startswith("gw_")}
    kept: list[Any] = []
    structure = trees.flatten([list(saved), attributes], kept)
    sources = [("own" if i in own else "argument", i) for i, tensor in enumerate(saved) if tensor is not None]
    sources += [("own", i) for i in range(len(sources), len(kept))]  # set by a backward that ran before
    outputs = tuple(range(number))
    what = Kept(structure, tuple(sources), held=False, numbers=numbers)
    result = Result(trees.NOTHING, number, outputs, (), (), what, False)
    call = Call(old, structures, ctx.needs_input_grad, everywhere=False)
    return State(call, result, leaves, kept, [meta for meta in ctx.gw_metas if meta is not None], (), trouble)


def _as_wanted(grads: Sequence[Any], metas: Sequence[Meta | None]) -> bool:
    """Tell whether there is one gradient for each argument, built like it."""
    return len(grads) == len(metas) and all(
        grad is None
        or (meta is not None and isinstance(grad, Tensor) and (grad.shape, grad.dtype, grad.device) == meta)
        for grad, meta in zip(grads, metas)
    )


def _fitted(old: Old, returned: Any, metas: Sequence[Meta | None], needed: Sequence[bool]) -> Iterator[Tensor | None]:
    """Return gradients that are built like their arguments, or say why these cannot be."""
    grads = list(returned) if isinstance(returned, tuple) else [returned]
    structures = [trees.NOTHING if meta is None else trees.LEAF for meta in metas]
    check_number(old, grads, structures)
    return fitted(old, structures, [meta for meta in metas if meta is not None], grads, needed)


def _needed(ctx: Any, present: Sequence[Any]) -> list[bool]:
    """Return for each tensor among the arguments whether its gradient is wanted; elsewhere ``present`` has None."""
    return [need for need, value in zip(ctx.needs_input_grad, present) if value is not None]


def _by_argument(present: Sequence[Any], grads: Iterable[Tensor | None]) -> tuple[Tensor | None, ...]:
    left = iter(grads)
    return tuple([None if value is None else next(left) for value in present])
