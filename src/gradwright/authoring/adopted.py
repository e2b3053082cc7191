"""How the derivatives of an adopted Function are computed from what is known of a call.

The old backward is run with what the old forward kept. Before a second derivative, what is neither input nor output is
computed again with gradients on; where that cannot be done, the result is sealed. Forward mode is the transpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring import trees
from gradwright.authoring.adopted_call import Old, State, first_line, no_transform, versions
from gradwright.authoring.derive import Meta, NotLinearError, smooth, transpose, zeros
from gradwright.authoring.one_by_one import WAYS_OUT, AllUsed, Task, random_states, run, set_random_states
from gradwright.authoring.recompute import MOVING, STILL, Watch, constants_of, same_values, watching
from gradwright.authoring.recording import Context, Needed
from gradwright.authoring.returns import fit
from gradwright.authoring.seal import may_be_differentiated, opaque, seal
from gradwright.errors import RuleError


def pull(state: State, g: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
    """Return the gradient of each tensor among the arguments."""
    if not may_be_differentiated():
        return _pull(state, state.kept, g, needed)
    before = state.kept
    kept, reason = _for_second(state)
    if reason is None:
        try:
            grads, reason = _followed(state, kept, g, needed)
        except RuleError:
            raise
        except Exception as error:
            if kept is before:
                raise
            kept = before
            reason = (
                f"{state.call.old.name}: its gradient was differentiated again, but its backward cannot be run with "
                f"gradients on ({type(error).__name__}: {first_line(error)}); {WAYS_OUT}"
            )
        else:
            return grads if reason is None else seal(reason, grads, [*g, *kept, *(state.leaves or ())])
    return opaque(reason, lambda g, kept: _pull(state, kept, g, needed), list(g), kept, [*kept, *(state.leaves or ())])


def push(state: State, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the tangent of each output, by transposing the backward."""
    kept, reason = _for_second(state)
    moving = [tangent is not None for tangent in tangents]
    old = state.call.old
    cuts: list[str] = []
    states = random_states(kept)

    def linear(g: Sequence[Tensor | None]) -> list[Tensor | None]:
        set_random_states(states)  # a backward that draws random numbers is linear for each draw
        if reason is not None:
            return _pull(state, kept, g, moving)
        grads, cut = _followed(state, kept, g, moving)
        cuts.extend([] if cut is None else [cut])
        return grads

    try:
        found, seen = transpose(
            linear,
            state.out_metas,
            tangents,
            verify=not old.linear and not torch_compat.is_recording(),
        )
    except NotLinearError:
        raise RuleError(
            f"{old.name}: its backward is not linear in the incoming gradient, or detaches it, so that no forward mode "
            "can be derived from it; expected a linear backward; use reverse mode, or give both rules with "
            "gw.custom_gradient."
        ) from None
    except RuleError:
        raise
    except (RuntimeError, TypeError) as error:
        raise RuleError(
            f"{old.name}: forward mode is derived from its backward, which cannot be differentiated in the incoming "
            f"gradient ({type(error).__name__}: {first_line(error)}); expected PyTorch operations; use reverse mode, "
            "or write it with gw.custom_gradient and a rule under .jvp."
        ) from error
    old.linear = old.linear or seen
    reason = cuts[0] if cuts else reason
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
    elif state.result.kept.objects:
        reason = "keeps an object with tensors in it on ctx, where transforms do not see them"
    elif not own and not state.result.kept.numbers:
        return state.kept, None
    else:
        reason = state.trouble or _recompute(state, own)
    if reason is None:
        return state.kept, None
    return state.kept, (
        f"{name} it uses {'a tensor' if own else 'a number or array'} that forward kept and that is neither input nor "
        f"output, and forward {reason}, so that a second derivative would be wrong; expected PyTorch operations that "
        "autograd can follow; compute it in the backward from saved inputs, or write it with gw.custom_gradient."
    )


def _recompute(state: State, own: Sequence[int]) -> str | None:
    """Replace what is neither input nor output by the same computed with gradients on, or return why not."""
    old, result = state.call.old, state.result
    if not result.kept.numbers and not any(smooth(state.kept[i]) for i in own):
        return None
    if result.dirty:
        return "changes its inputs in place"
    assert state.leaves is not None
    copies = [leaf.clone() for leaf in state.leaves]
    context = Context(state.call.needs)
    left = iter(copies)
    values = [trees.rebuild(structure, left) for structure in state.call.structures]
    try:
        moving = [c for c in copies if smooth(c)]
        with watching(moving, old.body) as watch, Needed(state.call.needed(copies)):
            out = old.forward(context, *values)
        outs: list[Tensor] = []
        trees.flatten(out, outs)
        saved, attributes = context.gw_kept()
        again: list[Tensor] = []
        trees.flatten([list(saved), attributes], again)
    except Exception as error:
        if state.call.everywhere and not torch_compat.is_recording():
            return _recompute_one_by_one(state, own)
        return f"cannot be run again with gradients on ({type(error).__name__}: {first_line(error)})"
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
    if result.kept.numbers and watch.escaped is not None:
        return watch.escaped
    state.kept = fresh
    return None


def _recompute_one_by_one(state: State, own: Sequence[int]) -> str | None:
    """Do the same where transforms cannot follow forward; what autograd cannot follow raises when it is asked for."""
    call, leaves = state.call, state.leaves
    assert leaves is not None
    own = [i for i in own if smooth(state.kept[i])]
    escaped: list[str | None] = []

    def compute(tensors: Sequence[Tensor]) -> list[Tensor]:
        context = Context(call.needs)
        left = iter(tensors)
        with Watch([t for t in tensors if smooth(t)], constants_of(call.old.body)) as watch:
            call.old.forward(context, *(trees.rebuild(structure, left) for structure in call.structures))
        escaped.append(watch.escaped)
        again: list[Tensor] = []
        saved, attributes = context.gw_kept()
        trees.flatten([list(saved), attributes], again)
        return [again[i] for i in own]

    message = (
        f"{call.old.name}: its gradient was differentiated again, but it uses a tensor that forward kept and that is "
        "neither input nor output, and forward"
    )
    try:
        found = run(Task(message, compute, call.old.body), leaves)
    except Exception as error:
        return f"cannot be run again with gradients on ({type(error).__name__}: {first_line(error)})"
    reason = next((reason for reason in escaped if reason is not None), None)
    if state.result.kept.numbers and reason is not None:
        return reason
    fresh = list(state.kept)
    for i, tensor in zip(own, found):
        if tensor is None or not same_values(tensor, state.kept[i]):
            return "gives other values when it is run again (random numbers, or a state of its own)"
        fresh[i] = tensor
    state.kept = fresh
    return None


def _followed(
    state: State, kept: Sequence[Any], g: Sequence[Tensor | None], needed: Sequence[bool]
) -> tuple[list[Tensor | None], str | None]:
    """Run the backward; where it may be differentiated again, return why that would be wrong, or None."""
    tensors = [t for t in (*g, *kept) if isinstance(t, Tensor)]
    moving = [t for t in tensors if smooth(t) and torch_compat.tracked(t)]
    if not moving or torch_compat.is_recording():
        return _pull(state, kept, g, needed), None
    old = state.call.old
    with Watch(moving, [*constants_of(old.backward), *tensors]) as watch:
        grads = _pull(state, kept, g, needed)
        states = [watch.state(grad) for grad in grads if grad is not None]
    cut = next((state for state in states if state not in (MOVING, STILL)), None)
    if cut is None:
        return grads, None
    return grads, (
        f"{old.name}: its gradient was differentiated again, but its backward {cut}, so that a second derivative "
        f"would be wrong; {WAYS_OUT}"
    )


def _pull(state: State, kept: Sequence[Any], g: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
    if not state.call.everywhere:
        return _pull_once(state, kept, g, needed)
    tensors = [t for t in (*g, *kept) if isinstance(t, Tensor)]
    before, states = versions(tensors), random_states(tensors)
    try:
        return _pull_once(state, kept, g, needed)
    except RuleError:
        raise
    except Exception as error:
        if torch_compat.is_recording() or versions(tensors) != before:
            raise RuleError(no_transform(state.call.old, "backward", error)) from error
    set_random_states(states)
    # A backward may use autograd on what was saved, so that this must require a gradient as it does without transforms.
    needs = state.call.needs_leaf()
    entered = [kind == "output" or (kind == "argument" and needs[i]) for kind, i in state.result.kept.sources]

    def compute(tensors: Sequence[Tensor]) -> list[Tensor | None]:
        left = iter(tensors)
        given, own = ([next(left) if isinstance(t, Tensor) else None for t in part] for part in (g, kept))
        if not torch.is_grad_enabled():
            own = [
                t.detach().requires_grad_() if e and t is not None and smooth(t) else t for t, e in zip(own, entered)
            ]
        with AllUsed(name):
            return _pull_once(state, own, given, needed)

    name = state.call.old.name
    message = f"{name}: its gradient was differentiated again, but its backward"
    try:
        return run(Task(message, compute, state.call.old.backward), tensors)
    except RuleError:
        raise
    except Exception as error:
        raise RuleError(no_transform(state.call.old, "backward", error)) from error


def _pull_once(
    state: State, kept: Sequence[Any], g: Sequence[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    call, result, old = state.call, state.result, state.call.old
    given: list[Tensor | None] = []
    # A backward may write on its cotangent, which autograd refuses to follow where that is a leaf.
    copies = may_be_differentiated()
    for place in result.shown:
        cotangent = None if place is None or place in result.still else g[place]
        if cotangent is None and place is not None and result.materialize:
            cotangent = zeros(state.out_metas[place])
        given.append(cotangent.clone() if copies and cotangent is not None else cotangent)
    saved, attributes = result.kept.rebuild(iter(kept))
    left = iter(needed)
    needs: list[bool] = []
    for structure in call.structures:
        own = [next(left) for _ in range(trees.count(structure))]
        needs.append(isinstance(structure, trees.Leaf) and own[0])
    context = Context(needs, saved, attributes)
    returned = old.backward(context, *given)
    grads = list(returned) if isinstance(returned, tuple) else [returned]
    check_number(old, grads, call.structures)
    return list(fitted(old, call.structures, state.metas, grads, needed))


def fitted(
    old: Old,
    structures: Sequence[trees.Structure],
    metas: Sequence[Meta],
    grads: Sequence[Any],
    needed: Sequence[bool],
) -> Iterator[Tensor | None]:
    """Yield the gradient of each tensor among the arguments, in its shape and dtype; None where none is needed.

    Raises:
        RuleError: a gradient cannot be that of its argument.
    """
    leaf = 0
    for position, structure in enumerate(structures):
        where = f"{old.name}: backward returned for {old.argument(position)!r}"
        found: list[Tensor | None] = []
        trees.match(structure, grads[position], where, found)
        for grad in found:
            meta = metas[leaf]
            if grad is not None and needed[leaf] and grad.device != meta[2] and grad.ndim:
                raise RuleError(
                    f"{where} a gradient on {grad.device}; expected one on {meta[2]}, where the argument is."
                )
            if grad is not None and needed[leaf] and grad.dtype != meta[1] and not old.casts:
                old.tell(
                    f"dtype of {position}",
                    f"backward returned for {old.argument(position)!r} a gradient of dtype {grad.dtype}; expected "
                    f"{meta[1]}, that of the argument, to which it is converted; convert it where precision matters.",
                )
            yield fit(grad, meta, where) if grad is not None and needed[leaf] else None
            leaf += 1


def check_number(old: Old, grads: Sequence[Any], structures: Sequence[trees.Structure]) -> None:
    """Raise unless there is one gradient for each argument, and none for what is no tensor."""
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
