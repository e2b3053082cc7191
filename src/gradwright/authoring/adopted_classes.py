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
from gradwright.authoring.adopted_call import Call, Old, Result, State, no_transform, refuse_edits, versions
from gradwright.authoring.derive import differentiable, meta_of, zeros
from gradwright.authoring.one_by_one import Task, random_states, run, set_random_states
from gradwright.authoring.recording import Context, Needed, own_numbers, read_kept, tensors_inside
from gradwright.errors import RuleError


def function_class(name: str, module: str) -> type[Function]:
    """Make the class for calls of one adopted Function while a transform or a level of forward mode is open."""
    body: dict[str, Any] = {
        "forward": staticmethod(_forward),
        "setup_context": staticmethod(_setup_context),
        "backward": staticmethod(_backward),
        "jvp": staticmethod(_jvp),
        "generate_vmap_rule": True,
        "__module__": module,
    }
    return type(name, (Function,), body)


# -------------------------------------------------------------------- forward


def _forward(call: Call, *leaves: Tensor) -> Any:
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
    if not all(_same(result, results[0]) for result in results):
        raise RuleError(
            f"{call.old.name}: what its forward keeps on ctx that is no tensor may depend on the values of tensors: it "
            "is not seen to be the same for each element of the batch; expected tensors under vmap; keep it as a "
            "tensor, or write it with gw.custom_gradient, which takes a batching rule under .vmap."
        )
    return (*found, results[0])


def _same(one: Result, other: Result) -> bool:
    try:
        return one == other
    except Exception:  # some objects, as arrays, do not say whether they are equal
        return False


def _forward_once(call: Call, leaves: Sequence[Tensor]) -> Any:
    old = call.old
    work = [leaf.clone() for leaf in leaves] if old.edits else list(leaves)
    before = versions(work)
    context = Context(call.needs)
    given = _arguments(call, work)
    with Needed([a for a, need in zip(given, call.needs) if need and isinstance(a, Tensor)]):
        out = old.forward(context, *given)
    if not context.gw_dirty and before != versions(work):
        refuse_edits(old, call.owners(), call.needs_leaf(), work, before)
    outs, own, result = read(call, context, work, out)
    if result.kept.held:
        raise RuleError(
            f"{old.name}: its forward keeps a tensor with a graph of its own (made under enable_grad) on ctx, which no "
            "transform of torch.func and no forward mode can follow; expected plain calls only; write it with "
            "gw.custom_gradient, or compute that tensor again in the backward from what was saved."
        )
    inside = tensors_inside(list(context.gw_kept()[1].values()), given)
    result.kept.objects = bool(inside)
    if torch_compat.any_batched(inside):
        raise RuleError(
            f"{old.name}: its forward keeps an object with tensors in it on ctx, which vmap does not see; expected "
            "tensors; save them with ctx.save_for_backward and make the object anew in backward, or write it with "
            "gw.custom_gradient, which takes a batching rule under .vmap."
        )
    returned = trees.distinct(outs, work, copies=True, aliases=True)
    # A constant output has no batch, and PyTorch's generated rule then sums its cotangents over the batch.
    return (*_without_views(torch_compat.batched_like(returned, leaves)), *_without_views(own), result)


def _arguments(call: Call, leaves: Sequence[Tensor]) -> list[Any]:
    left = iter(leaves)
    values = [trees.rebuild(structure, left) for structure in call.structures]
    # It may have to be run more than once, and some take options out of a dict that they are given.
    return [copy.copy(value) if type(value) in (dict, list) else value for value in values]


def read(call: Call, context: Context, leaves: Sequence[Tensor], out: Any) -> tuple[list[Tensor], list[Tensor], Result]:
    """Return the tensors in what an old forward returned, those it kept beside them and the inputs, and the rest."""
    old = call.old
    outs: list[Tensor] = []
    structure = trees.flatten(out, outs)
    shown = (0,) if structure is trees.LEAF else _shown(out)
    kept, own = read_kept(context, leaves, outs)
    constants = [structure.value for structure in call.structures if isinstance(structure, trees.Static)]
    kept.numbers = own_numbers(context.gw_kept(), [constants, old.constants])
    if old.teach and trees.count(trees.flatten(list(context.gw_kept()[1].values()), [])):
        old.tell(
            "attribute",
            "its forward keeps a tensor as an attribute of ctx, where PyTorch's own Function leaks it and sees neither "
            "edits of it nor hooks for saved tensors; expected ctx.save_for_backward; save it there, and "
            "read ctx.saved_tensors in backward.",
        )
    still = [i for i, tensor in enumerate(outs) if any(tensor is other for other in context.gw_still)]
    still += [i for i in range(len(outs)) if i not in shown]
    dirty = _dirty(old, context, leaves, outs)
    return outs, own, Result(structure, len(outs), shown, tuple(still), dirty, kept, context.gw_materialize)


def _without_views(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of views: forward mode wants their tangents to be views too, and cannot write to expanded ones."""
    return [t.clone(memory_format=torch.contiguous_format) if torch_compat.is_view(t) else t for t in tensors]


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
    saved += leaves if call.needs_arguments(result) else []
    # What has no derivative is not marked here: vmap forgets that. It is detached afterwards.
    ctx.save_for_forward(*saved)
    ctx.save_for_backward(*saved)
    ctx.set_materialize_grads(False)
    ctx.call, ctx.result, ctx.number = call, result, len(result.kept.sources)
    ctx.metas = [meta_of(leaf) for leaf in leaves]
    ctx.out_metas = [meta_of(leaf) for leaf in outs]
    ctx.hidden_metas = [meta_of(leaf) for leaf in own]


def _state(ctx: Any, saved: Sequence[Any]) -> State:
    kept, leaves = list(saved[: ctx.number]), list(saved[ctx.number :])
    return State(ctx.call, ctx.result, leaves or None, kept, ctx.metas, ctx.out_metas)


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
        moving = tangents[1:]
        if ctx.result.dirty:
            # The new values of an input are written over it afterwards, and their tangent over its tangent.
            moving = tuple(t.clone() if isinstance(t, Tensor) else t for t in moving)
        found = push(_state(ctx, saved), moving)
        # Nobody sees the hidden outputs; under vmap PyTorch wants a tangent for each all the same.
        for i in ctx.result.still:
            found[i] = zeros(ctx.out_metas[i]) if differentiable(ctx.out_metas[i]) else None
        hidden = [zeros(meta) if differentiable(meta) else None for meta in ctx.hidden_metas]
    return (*found, *hidden, None)
