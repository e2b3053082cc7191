"""The Function classes behind an adopted Function: they run the old forward and the old backward in every transform.

As in :mod:`~gradwright.authoring.classes`, tensors travel one by one and an object beside them says how they belong
together. What the old forward keeps that is neither input nor output becomes a hidden output without derivative, so
that batching sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.authoring import trees
from gradwright.authoring.derive import NotLinearError, differentiable, transpose, zeros
from gradwright.authoring.recompute import MOVING, STILL, same_values, watching
from gradwright.authoring.recording import Context, Kept, read_kept
from gradwright.authoring.returns import fit
from gradwright.authoring.seal import may_be_differentiated, opaque, seal
from gradwright.errors import RuleError


@dataclass(eq=False)
class Old:
    """What is known of a Function that was adopted."""

    name: str
    names: tuple[str, ...]
    """Of the arguments of forward, without ctx; the last may be that of ``*args``."""
    forward: Callable[..., Any]
    """``forward(ctx, *arguments)``, whatever the style."""
    body: Any
    """The function that computes."""
    backward: Callable[..., Any]
    once: bool
    """True when its backward is decorated with ``once_differentiable``."""
    edits: bool
    """True when it may change its inputs in place."""
    linear: bool = False
    """True once its backward was seen to be linear."""

    def argument(self, position: int) -> str:
        """Return what to call an argument."""
        return self.names[position] if position < len(self.names) else f"{self.names[-1]}[{position}]"


@dataclass
class Call:
    """The arguments of one call without their tensors."""

    old: Old
    structures: tuple[trees.Structure, ...]
    needs: tuple[bool, ...]
    """For each argument, whether a gradient may be asked for."""
    everywhere: bool
    """True when there may be tangents or a transform."""


@dataclass
class Result:
    """What one call returned and kept, without the tensors."""

    structure: trees.Structure
    number: int
    """How many tensors the output holds; hidden ones follow."""
    shown: tuple[int | None, ...]
    """For each output, its place among the tensors, or None for one that is no tensor."""
    still: tuple[int, ...]
    """The outputs that have no derivative."""
    dirty: tuple[tuple[int, int], ...]
    """Inputs that were changed in place, and the outputs that hold the new values."""
    kept: Kept
    materialize: bool


@dataclass
class State:
    """All that a backward or a JVP works with."""

    call: Call
    result: Result
    leaves: Sequence[Tensor] | None
    """The tensors of the arguments; None where they were not needed."""
    kept: list[Any]
    metas: Sequence[Any]
    out_metas: Sequence[Any]
    trouble: str | None = None
    """Why forward cannot be run again."""


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
    old = call.old
    work = [leaf.clone() for leaf in leaves] if old.edits else list(leaves)
    if call.everywhere:
        # Inside a transform the tensors are bare; a forward that looks at requires_grad shall see what is needed.
        work = [_requiring(leaf) if call.needs[owner] else leaf for leaf, owner in zip(work, _owners(call))]
    versions = [] if call.everywhere else [_version(leaf) for leaf in work]
    context = Context(call.needs)
    out = _run_forward(call, context, work)
    if versions and not context.gw_dirty:
        _refuse_edits(call, work, versions)
    outs: list[Tensor] = []
    structure = trees.flatten(out, outs)
    kept, own = read_kept(context, work, outs)
    if kept.held and call.everywhere:
        raise RuleError(
            f"{old.name}: its forward keeps a tensor with a graph of its own (made under enable_grad) on ctx, which no "
            "transform of torch.func and no forward mode can follow; expected plain calls only; write it with "
            "gw.custom_gradient, or compute that tensor again in the backward from what was saved."
        )
    shown = _shown(out)
    still = [i for i, tensor in enumerate(outs) if any(tensor is other for other in context.gw_still)]
    still += [i for i in range(len(outs)) if i not in shown]
    dirty = _dirty(old, context, work, outs)
    returned = trees.distinct(outs, work, copies=call.everywhere, aliases=True)
    result = Result(structure, len(outs), shown, tuple(still), dirty, kept, context.gw_materialize)
    return (*returned, *own, result)


def _run_forward(call: Call, context: Context, leaves: Sequence[Tensor]) -> Any:
    left = iter(leaves)
    values = [trees.rebuild(structure, left) for structure in call.structures]
    if not call.everywhere:
        return call.old.forward(context, *values)
    try:
        return call.old.forward(context, *values)
    except RuleError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        raise RuleError(_no_transform(call.old, "forward", error)) from error


def _no_transform(old: Old, part: str, error: BaseException) -> str:
    return (
        f"{old.name}: its {part} failed under a transform ({type(error).__name__}: {_first_line(error)}); expected "
        "PyTorch operations whose course does not depend on the values of tensors, without NumPy, item() or kernels of "
        "other libraries; write branches with torch.where; without vmap, decorate a NumPy backward with "
        "once_differentiable; or write it with gw.custom_gradient, which takes a batching rule under .vmap."
    )


def _requiring(leaf: Tensor) -> Tensor:
    if leaf.requires_grad or not differentiable((leaf.shape, leaf.dtype, leaf.device)):
        return leaf
    return torch_compat.requiring_grad(leaf)


def _refuse_edits(call: Call, leaves: Sequence[Tensor], versions: Sequence[int]) -> None:
    owners = _owners(call)
    for leaf, version, owner in zip(leaves, versions, owners):
        if call.needs[owner] and differentiable((leaf.shape, leaf.dtype, leaf.device)) and _version(leaf) != version:
            raise RuleError(
                f"{call.old.name}: its forward edited {call.old.argument(owner)!r} in place without saying so, so that "
                "gradients of what used it before are wrong; expected ctx.mark_dirty on it, called by forward itself, "
                "or an edit of a copy (`x = x.clone()`)."
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
        # that must not stop a first derivative.
        ctx.extra = [(leaf, _version(leaf)) for leaf in extra]
    ctx.save_for_backward(*saved)
    ctx.set_materialize_grads(False)
    ctx.call, ctx.result, ctx.number = call, result, len(result.kept.sources)
    ctx.metas = [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]
    ctx.out_metas = [(leaf.shape, leaf.dtype, leaf.device) for leaf in outs]
    ctx.hidden_metas = [(leaf.shape, leaf.dtype, leaf.device) for leaf in own]


def _needs_arguments(call: Call, result: Result) -> bool:
    """Tell whether forward may have to be run again, or the seal be joined to the inputs."""
    return call.old.once or result.kept.held or any(kind == "own" for kind, _ in result.kept.sources)


def _state(ctx: Any, saved: Sequence[Any]) -> State:
    kept, leaves = list(saved[: ctx.number]), list(saved[ctx.number :])
    trouble = None
    if not ctx.call.everywhere:
        leaves = [leaf for leaf, _ in ctx.extra]
        if any(_version(leaf) != version for leaf, version in ctx.extra):
            trouble = "an input was changed in place since"
    return State(ctx.call, ctx.result, leaves or None, kept, ctx.metas, ctx.out_metas, trouble)


# -------------------------------------------------------------------- derivatives


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


def pull(state: State, g: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
    """Return the gradient of each tensor among the arguments."""
    kept, reason = _for_second(state)
    if reason is None:
        return _pull(state, kept, g, needed)
    return opaque(reason, lambda g, kept: _pull(state, kept, g, needed), list(g), kept, [*kept, *(state.leaves or ())])


def push(state: State, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the tangent of each output, by transposing the backward."""
    kept, reason = _for_second(state)
    moving = [tangent is not None for tangent in tangents]
    old = state.call.old
    try:
        found, seen = transpose(
            lambda g: _pull(state, kept, g, moving),
            state.out_metas,
            tangents,
            verify=not old.linear and not torch_compat.is_recording(),
        )
    except NotLinearError:
        raise RuleError(
            f"{old.name}: its backward is not linear in the incoming gradient, so it is no derivative and no forward "
            "mode can be derived from it; expected a linear backward; use reverse mode, or give both rules with "
            "gw.custom_gradient."
        ) from None
    except RuleError:
        raise
    except (RuntimeError, TypeError) as error:
        raise RuleError(
            f"{old.name}: forward mode is derived from its backward, which cannot be differentiated in the incoming "
            f"gradient ({type(error).__name__}: {_first_line(error)}); expected PyTorch operations; use reverse mode, "
            "or write it with gw.custom_gradient and a rule under .jvp."
        ) from error
    old.linear = old.linear or seen
    return found if reason is None else seal(reason, found, [*tangents, *kept, *(state.leaves or ())])


def _for_second(state: State) -> tuple[list[Any], str | None]:
    """Return what was kept, fit for a second derivative where one may follow, and else why there can be none."""
    old = state.call.old
    own = [i for i, (kind, _) in enumerate(state.result.kept.sources) if kind == "own"]
    if not may_be_differentiated():
        return state.kept, None
    name = f"{old.name}: its gradient was differentiated again, but"
    if old.once:
        return state.kept, (
            f"{name} its backward is decorated as differentiable once; expected one differentiation; take the "
            "decorator off if the backward is made of PyTorch operations on inputs and outputs."
        )
    if state.result.kept.held:
        reason: str | None = "keeps a tensor with a graph of its own on ctx"
    elif not own:
        return state.kept, None
    else:
        reason = state.trouble or _recompute(state, own)
    if reason is None:
        return state.kept, None
    return state.kept, (
        f"{name} it uses a tensor that forward kept and that is neither input nor output, and forward {reason}, so that "
        "a second derivative would be wrong; expected PyTorch operations that autograd can follow; compute that tensor "
        "in the backward from saved inputs, or write it with gw.custom_gradient."
    )


def _recompute(state: State, own: Sequence[int]) -> str | None:
    """Replace what is neither input nor output by the same computed with gradients on, or return why not."""
    old, result = state.call.old, state.result
    if not any(differentiable((t.shape, t.dtype, t.device)) for t in (state.kept[i] for i in own)):
        return None
    if result.dirty:
        return "changes its inputs in place"
    assert state.leaves is not None
    copies = [leaf.clone() for leaf in state.leaves]
    context = Context(state.call.needs)
    left = iter(copies)
    values = [trees.rebuild(structure, left) for structure in state.call.structures]
    try:
        with watching([c for c in copies if differentiable((c.shape, c.dtype, c.device))], old.body) as watch:
            out = old.forward(context, *values)
        outs: list[Tensor] = []
        trees.flatten(out, outs)
        saved, attributes = context.kept()
        again: list[Tensor] = []
        trees.flatten([list(saved), attributes], again)
    except Exception as error:
        return f"cannot be run again with gradients on ({type(error).__name__}: {_first_line(error)})"
    if len(again) != len(result.kept.sources):
        return "keeps something else when it is run again"
    fresh = list(state.kept)
    for i in own:
        seen = watch.state(again[i])
        if seen == STILL:
            continue  # a mask or random numbers: what was kept has no derivative
        if seen != MOVING:
            return seen
        if not same_values(again[i], state.kept[i]):
            return "gives other values when it is run again (random numbers, or a state of its own)"
        fresh[i] = again[i]
    state.kept = fresh
    return None


def _pull(state: State, kept: Sequence[Any], g: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
    call, result, old = state.call, state.result, state.call.old
    given = []
    for place in result.shown:
        own = None if place is None or place in result.still else g[place]
        given.append(zeros(state.out_metas[place]) if own is None and place is not None and result.materialize else own)
    saved, attributes = result.kept.rebuild(iter(kept))
    left = iter(needed)
    needs = []
    for structure in call.structures:
        own = [next(left) for _ in range(trees.count(structure))]
        needs.append(isinstance(structure, trees.Leaf) and own[0])
    context = Context(needs, saved, attributes)
    if not call.everywhere:
        returned = old.backward(context, *given)
    else:
        try:
            returned = old.backward(context, *given)
        except RuleError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            raise RuleError(_no_transform(old, "backward", error)) from error
    grads = list(returned) if isinstance(returned, tuple) else [returned]
    _check_number(old, grads, call.structures)
    return list(_fitted(state, grads, needed))


def _fitted(state: State, grads: Sequence[Any], needed: Sequence[bool]) -> Iterator[Tensor | None]:
    old, leaf = state.call.old, 0
    for position, structure in enumerate(state.call.structures):
        where = f"{old.name}: backward returned for {old.argument(position)!r}"
        found: list[Tensor | None] = []
        trees.match(structure, grads[position], where, found)
        for grad in found:
            meta = state.metas[leaf]
            if grad is not None and needed[leaf] and grad.device != meta[2] and grad.ndim:
                raise RuleError(
                    f"{where} a gradient on {grad.device}; expected one on {meta[2]}, where the argument is."
                )
            yield fit(grad, meta, where) if grad is not None and needed[leaf] else None
            leaf += 1


def _check_number(old: Old, grads: Sequence[Any], structures: Sequence[trees.Structure]) -> None:
    expected = len(structures)
    if len(grads) < expected or any(grad is not None for grad in grads[expected:]):
        names = [old.argument(i) for i in range(expected)]
        missing = names[len(grads) :]
        todo = f"return None for {', '.join(missing)}" if missing else "leave out the rest"
        plural = "" if len(grads) == 1 else "s"
        inputs = "input" if expected == 1 else "inputs"
        raise RuleError(
            f"{old.name}.backward returned {len(grads)} gradient{plural} for {expected} {inputs} ({', '.join(names)}); "
            f"expected one for each; {todo} if it has none."
        )
    for position, (grad, structure) in enumerate(zip(grads, structures)):
        if isinstance(grad, Tensor) and not trees.count(structure):
            raise RuleError(
                f"{old.name}.backward returned a gradient for {old.argument(position)!r}, which is no tensor; expected "
                "None; look whether the order is that of forward."
            )


def _owners(call: Call) -> list[int]:
    return [i for i, structure in enumerate(call.structures) for _ in range(trees.count(structure))]


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else torch_compat.edits(tensor)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
