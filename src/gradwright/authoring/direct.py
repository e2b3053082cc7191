"""The Function class behind plain calls of an adopted Function: PyTorch's own ``ctx``, as far as that is right.

While no transform and no forward mode is open, the old forward gets the ``ctx`` of this class. Where it kept nothing but
inputs, outputs and numbers, PyTorch does the rest, second derivatives too, and the gradients are only looked at. What
else it kept is taken off the ``ctx`` again and saved as :mod:`~gradwright.authoring.adopted_classes` does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.authoring import trees
from gradwright.authoring.adopted import Call, Old, check_number, fitted, pull
from gradwright.authoring.adopted_classes import read, state_of
from gradwright.authoring.derive import Meta
from gradwright.authoring.recording import Context
from gradwright.errors import RuleError


def direct_class(old: Old, module: str) -> type[Function]:
    """Make the class for plain calls of one adopted Function.

    Its arguments are those of the old forward; where they are containers or may be edited, a ``Call`` and the tensors.
    It returns what forward returned, or the tensors in that and a ``Result``.
    """

    def forward(ctx: Any, *args: Any) -> Any:
        if args and type(args[0]) is Call:
            return _recorded(ctx, args[0], args[1:])
        watched = [value for value, need in zip(args, ctx.needs_input_grad) if need]
        versions = torch_compat.all_edits(watched)
        out = old.forward(ctx, *args)
        dirty = torch_compat.marked_dirty(ctx)
        if versions != torch_compat.all_edits(watched) and not dirty:
            places = [i for i, need in enumerate(ctx.needs_input_grad) if need]
            _refuse_edits(old, places, watched, versions)
        if not dirty and not old.once and _as_it_is(ctx, args, out):
            ctx.gw_metas = [
                (value.shape, value.dtype, value.device) if isinstance(value, Tensor) else None for value in args
            ]
            return out
        call = Call(old, _structures(args), ctx.needs_input_grad, everywhere=False)
        context = Context(call.needs, torch_compat.saved_so_far(ctx), vars(ctx))
        context.mark_dirty(*dirty)
        context.mark_non_differentiable(*torch_compat.marked_still(ctx))
        vars(ctx).clear()
        leaves = [value for value in args if isinstance(value, Tensor)]
        return _keep(ctx, call, context, leaves, leaves, out, flat=True)

    def backward(ctx: Any, *grads: Any) -> Any:
        metas = vars(ctx).get("gw_metas")
        if metas is None:
            return _backward(ctx, grads)
        returned = old.backward(ctx, *grads)
        if _as_wanted(returned if type(returned) is tuple else (returned,), metas):
            return returned
        return _fitted(old, returned, metas, ctx.needs_input_grad)

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward), "__module__": module}
    return type(old.name, (Function,), body)


def _as_it_is(ctx: Any, args: Sequence[Any], out: Any) -> bool:
    """Tell whether PyTorch does right by what forward kept and returned.

    It does where each output is another tensor, and where everything kept is an input, an output or has no derivative.
    """
    outs = out if type(out) is tuple else (out,)
    known = set(map(id, outs))
    if len(known) < len(outs) or not all(isinstance(part, Tensor) or type(part) in trees.PLAIN for part in outs):
        return False
    for value in vars(ctx).values():
        if type(value) not in trees.PLAIN and trees.count(trees.flatten(value, [])):
            return False
    known.update(map(id, args))
    return all(
        id(kept) in known or kept is None or (isinstance(kept, Tensor) and not _smooth(kept))
        for kept in torch_compat.saved_so_far(ctx)
    )


def _smooth(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


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
        owners = call.owners()
        watched = [i for i, owner in enumerate(owners) if call.needs[owner]]
        _refuse_edits(call.old, [owners[i] for i in watched], [work[i] for i in watched], [versions[i] for i in watched])
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
    result = replace(result, still=(), materialize=False)
    ctx.call, ctx.result, ctx.flat = call, result, flat
    ctx.number = len(result.kept.sources)
    ctx.metas = [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]
    ctx.out_metas = [(leaf.shape, leaf.dtype, leaf.device) for leaf in returned]
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


def _refuse_edits(old: Old, places: Sequence[int], tensors: Sequence[Tensor], versions: Sequence[int]) -> None:
    for place, tensor, before, after in zip(places, tensors, versions, torch_compat.all_edits(tensors)):
        if before != after and _smooth(tensor):
            raise RuleError(
                f"{old.name}: its forward edited {old.argument(place)!r} in place without saying so, so that "
                "gradients of what used it before are wrong; expected ctx.mark_dirty on it, called by forward itself, "
                "or an edit of a copy (`x = x.clone()`)."
            )


# -------------------------------------------------------------------- backward


def _backward(ctx: Any, grads: Sequence[Any]) -> Any:
    needs = ctx.needs_input_grad
    cotangents = grads[: ctx.result.number]
    if all(g is None for g in cotangents):
        return (None,) * len(needs)
    if not ctx.flat:
        return (None, *pull(state_of(ctx, ctx.saved_tensors), cotangents, needs[1:]))
    structures = ctx.call.structures
    needed = [need for need, structure in zip(needs, structures) if structure is trees.LEAF]
    found = iter(pull(state_of(ctx, ctx.saved_tensors), cotangents, needed))
    return tuple([next(found) if structure is trees.LEAF else None for structure in structures])


def _as_wanted(grads: Sequence[Any], metas: Sequence[Meta | None]) -> bool:
    """Tell whether there is one gradient for each argument, built like it."""
    return len(grads) == len(metas) and all(
        grad is None
        or (meta is not None and isinstance(grad, Tensor) and (grad.shape, grad.dtype, grad.device) == meta)
        for grad, meta in zip(grads, metas)
    )


def _fitted(old: Old, returned: Any, metas: Sequence[Meta | None], needs: Sequence[bool]) -> Any:
    """Return gradients that are built like their arguments, or say why these cannot be."""
    grads = list(returned) if isinstance(returned, tuple) else [returned]
    structures = [trees.NOTHING if meta is None else trees.LEAF for meta in metas]
    check_number(old, grads, structures)
    needed = [need for need, meta in zip(needs, metas) if meta is not None]
    found = fitted(old, structures, [meta for meta in metas if meta is not None], grads, needed)
    return tuple([None if meta is None else next(found) for meta in metas])
