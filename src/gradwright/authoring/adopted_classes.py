"""The Function classes behind an adopted Function: they run the old forward and the old backward in every transform.

As in :mod:`~gradwright.authoring.classes`, tensors travel one by one and an object beside them says how they belong
together. What the old forward keeps that is neither input nor output becomes a hidden output without derivative, so
that batching sees it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.authoring import trees
from gradwright.authoring.adopted import pull, push
from gradwright.authoring.adopted_call import Call, Old, Result, State, no_transform, versions
from gradwright.authoring.derive import differentiable, zeros
from gradwright.authoring.one_by_one import Task, random_states, run, set_random_states
from gradwright.authoring.recording import Context, Needed, read_kept, tensors_inside
from gradwright.authoring.seal import may_be_differentiated
from gradwright.errors import RuleError


def function_class(name: str, module: str, *, forward_mode: bool) -> type[Function]:
    """Make the class for calls of one adopted Function; with ``forward_mode`` for all calls, without for plain ones."""
    body: dict[str, Any] = {
        "forward": staticmethod(_forward),
        "setup_context": staticmethod(_setup_context),
        "backward": staticmethod(_backward),
        "generate_vmap_rule": True,
        "__module__": module,
    }
    if forward_mode:
        body["jvp"] = staticmethod(_jvp)
    return type(name, (Function,), body)


# -------------------------------------------------------------------- forward


def _forward(call: Call, *leaves: Tensor) -> Any:
    if not call.everywhere:
        return _forward_once(call, leaves)
    before, states = versions(leaves), random_states(leaves)
    try:
        return _forward_once(call, leaves)
    except RuleError:
        raise
    except Exception as error:
        if torch_compat.is_recording() or versions(leaves) != before:
            raise RuleError(no_transform(call.old, "forward", error)) from error
    set_random_states(states)
    return _forward_one_by_one(call, leaves)


def _forward_one_by_one(call: Call, leaves: Sequence[Tensor]) -> Any:
    """Run a forward that no transform can follow on plain tensors, one element of the batch at a time."""
    results: list[Result] = []

    def compute(tensors: Sequence[Tensor]) -> list[Tensor]:
        returned = _forward_once(call, tensors)
        results.append(returned[-1])
        return list(returned[:-1])

    try:
        found = run(Task(f"{call.old.name}: its forward", compute, call.old.body), leaves)
    except RuleError:
        raise
    except Exception as error:
        raise RuleError(no_transform(call.old, "forward", error)) from error
    if any(result != results[0] for result in results):
        raise RuleError(
            f"{call.old.name}: what its forward keeps on ctx that is no tensor depends on the values of tensors, and "
            "differs from one element of the batch to the next; expected tensors under vmap; keep it as a tensor, or "
            "write it with gw.custom_gradient, which takes a batching rule under .vmap."
        )
    return (*found, results[0])


def _forward_once(call: Call, leaves: Sequence[Tensor]) -> Any:
    old = call.old
    work = [leaf.clone() for leaf in leaves] if old.edits else list(leaves)
    before = versions(work)
    context = Context(call.needs)
    given = _arguments(call, work)
    out = _run_forward(call, context, given)
    if not context.gw_dirty and before != versions(work):
        _refuse_edits(call, work, before)
    outs: list[Tensor] = []
    structure = trees.flatten(out, outs)
    shown = (0,) if structure is trees.LEAF else _shown(out)
    kept, own = read_kept(context, work, outs)
    if old.teach and trees.count(trees.flatten(list(context.kept()[1].values()), [])):
        old.tell(
            "attribute",
            "its forward keeps a tensor as an attribute of ctx, where PyTorch's own Function leaks it and sees neither "
            "edits of it nor hooks for saved tensors; expected ctx.save_for_backward; save it there, and "
            "read ctx.saved_tensors in backward.",
        )
    if kept.held and call.everywhere:
        raise RuleError(
            f"{old.name}: its forward keeps a tensor with a graph of its own (made under enable_grad) on ctx, which no "
            "transform of torch.func and no forward mode can follow; expected plain calls only; write it with "
            "gw.custom_gradient, or compute that tensor again in the backward from what was saved."
        )
    if call.everywhere:
        inside = tensors_inside(list(context.kept()[1].values()), given)
        kept.objects = bool(inside)
        if torch_compat.any_batched(inside):
            raise RuleError(
                f"{old.name}: its forward keeps an object with tensors in it on ctx, which vmap does not see; expected "
                "tensors; save them with ctx.save_for_backward and make the object anew in backward, or write it with "
                "gw.custom_gradient, which takes a batching rule under .vmap."
            )
    still = [i for i, tensor in enumerate(outs) if any(tensor is other for other in context.gw_still)]
    still += [i for i in range(len(outs)) if i not in shown]
    dirty = _dirty(old, context, work, outs)
    returned = trees.distinct(outs, work, copies=call.everywhere, aliases=True)
    if call.everywhere:
        # A constant output has no batch, and PyTorch's generated rule then sums its cotangents over the batch.
        returned, own = _without_views(torch_compat.batched_like(returned, leaves)), _without_views(own)
    result = Result(structure, len(outs), shown, tuple(still), dirty, kept, context.gw_materialize)
    return (*returned, *own, result)


def _arguments(call: Call, leaves: Sequence[Tensor]) -> list[Any]:
    left = iter(leaves)
    values = [trees.rebuild(structure, left) for structure in call.structures]
    if not call.everywhere:
        return values
    # It may have to be run more than once, and some take options out of a dict that they are given.
    return [copy.copy(value) if type(value) in (dict, list) else value for value in values]


def _run_forward(call: Call, context: Context, arguments: Sequence[Any]) -> Any:
    if not call.everywhere:
        return call.old.forward(context, *arguments)
    needed = [a for a, need in zip(arguments, call.needs) if need and isinstance(a, Tensor)]
    with Needed(needed):
        return call.old.forward(context, *arguments)


def _without_views(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of views: forward mode wants their tangents to be views too, and cannot write to expanded ones."""
    return [t.clone(memory_format=torch.contiguous_format) if torch_compat.is_view(t) else t for t in tensors]


def _refuse_edits(call: Call, leaves: Sequence[Tensor], before: Sequence[int]) -> None:
    for leaf, one, other, owner in zip(leaves, before, versions(leaves), call.owners()):
        if call.needs[owner] and differentiable((leaf.shape, leaf.dtype, leaf.device)) and one != other:
            raise RuleError(
                f"{call.old.name}: its forward edited {call.old.argument(owner)!r} in place without saying so, so that "
                "gradients of what used it before are wrong; expected ctx.mark_dirty on it, called by forward itself, "
                "or an edit of a copy (`x = x.clone()`); where the class is not yours, stay with its apply."
            )


def _shown(out: Any) -> tuple[int | None, ...]:
    place = 0
    shown: list[int | None] = []
    for part in out if isinstance(out, tuple) else (out,):
        shown.append(place if isinstance(part, Tensor) else None)
        place += trees.count(trees.flatten(part, []))
    return tuple(shown)


def _dirty(old: Old, context: Context, leaves: Sequence[Tensor], outs: Sequence[Tensor]) -> tuple[tuple[int, int], ...]:
    pairs = []
    for tensor in context.gw_dirty:
        if tensor is None:
            continue
        source = next((i for i, leaf in enumerate(leaves) if leaf is tensor), None)
        place = next((i for i, out in enumerate(outs) if out is tensor), None)
        if source is None or place is None or not old.edits:
            raise RuleError(
                f"{old.name}: it marks a tensor as dirty that "
                f"{'is no input' if source is None else 'it does not return' if place is None else 'it does not name'}"
                "; expected an input that forward itself marks with ctx.mark_dirty and returns; return it, or write on "
                "a copy."
            )
        pairs.append((source, place))
    return tuple(pairs)


# -------------------------------------------------------------------- what is kept


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    call, *leaves = inputs
    result = output[-1]
    outs, own = output[: result.number], output[result.number : -1]
    pools = {"argument": leaves, "output": outs, "own": own}
    saved = [pools[kind][i] for kind, i in result.kept.sources]
    extra = leaves if _needs_arguments(call, result) else []
    if call.everywhere:
        # What has no derivative is not marked here: vmap forgets that. It is detached afterwards.
        saved += extra
        ctx.save_for_forward(*saved)
    else:
        ctx.mark_non_differentiable(*(outs[i] for i in result.still))
        # An input that is kept only to run forward again may change in place until then, as running statistics do:
        # that must not stop a first derivative, so it is saved apart.
        ctx.extra = _saved_apart(extra) if extra else None
    ctx.save_for_backward(*saved)
    ctx.set_materialize_grads(False)
    ctx.call, ctx.result, ctx.number = call, result, len(result.kept.sources)
    ctx.metas = [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]
    ctx.out_metas = [(leaf.shape, leaf.dtype, leaf.device) for leaf in outs]
    ctx.hidden_metas = [(leaf.shape, leaf.dtype, leaf.device) for leaf in own]


class _Apart(Function):
    """A node of its own for saved tensors, so that PyTorch looks for edits of them only when they are asked for."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return tensors[0].new_empty(0, dtype=torch.float32)


def _saved_apart(tensors: Sequence[Tensor]) -> Any:
    with torch.enable_grad():
        return _Apart.apply(*tensors).grad_fn  # type: ignore[no-untyped-call]


def _needs_arguments(call: Call, result: Result) -> bool:
    """Tell whether forward may have to be run again, or the seal be joined to the inputs."""
    return (
        call.old.once
        or result.kept.held
        or result.kept.objects
        or any(kind == "own" for kind, _ in result.kept.sources)
    )


def _state(ctx: Any, saved: Sequence[Any]) -> State:
    kept, leaves = list(saved[: ctx.number]), list(saved[ctx.number :])
    trouble = None
    if not ctx.call.everywhere and ctx.extra is not None and may_be_differentiated():
        try:
            leaves = list(ctx.extra.saved_tensors)
        except RuntimeError:
            trouble = "an input was changed in place since"
    return State(ctx.call, ctx.result, leaves or None, kept, ctx.metas, ctx.out_metas, trouble)


# -------------------------------------------------------------------- both directions


def _backward(ctx: Any, *grads: Any) -> Any:
    cotangents = grads[: ctx.result.number]
    if all(g is None or i in ctx.result.still for i, g in enumerate(cotangents)):
        return (None,) * (1 + len(ctx.metas))
    return (None, *pull(_state(ctx, ctx.saved_tensors), cotangents, ctx.needs_input_grad[1:]))


def _jvp(ctx: Any, *tangents: Any) -> Any:
    # PyTorch switches forward mode off in here (pytorch/pytorch#197867).
    with torch_compat.forward_mode_enabled():
        saved = [torch_compat.primal(tensor) if isinstance(tensor, Tensor) else tensor for tensor in ctx.saved_tensors]
        found = push(_state(ctx, saved), tangents[1:])
        # Nobody sees the hidden outputs; under vmap PyTorch wants a tangent for each all the same.
        for i in ctx.result.still:
            found[i] = zeros(ctx.out_metas[i]) if differentiable(ctx.out_metas[i]) else None
        hidden = [zeros(meta) if differentiable(meta) else None for meta in ctx.hidden_metas]
    return (*found, *hidden, None)
