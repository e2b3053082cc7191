"""The Function classes behind a function with a custom gradient, for every call that is not the plain one.

They take any arguments and outputs: containers, residuals, forward mode, ``torch.func``. Tensors travel one by one, and
one object beside them says how they belong together. The plain call has a class of its own, made of generated source,
in :mod:`~gradwright.authoring.codegen`.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.authoring import autocast, trees
from gradwright.authoring.definition import Definition, State
from gradwright.authoring.derive import differentiable, meta_of, zeros
from gradwright.errors import ArgumentError, GradwrightError, RuleError, describe_exception, kind_of


@dataclass
class Call:
    """The arguments of one call without their tensors.

    It also carries what is known of the function: torch.compile cannot follow an object in a closure.
    """

    definition: Definition
    asks: frozenset[str]
    """Everything that must be saved."""
    forward_mode: bool
    """True when there may be tangents or a transform."""
    structures: tuple[trees.Structure, ...]
    """One for each argument."""
    owners: tuple[int, ...]
    """For each tensor, the position of the argument it is in."""


@dataclass
class Result:
    """What one call returned, without its tensors."""

    structure: trees.Structure
    number: int
    """How many tensors the output holds; those after them are residuals."""
    residuals: trees.Structure
    sources: tuple[tuple[str, int], ...]
    """For each tensor among the residuals: whether it is an argument, an output or a tensor of its own, and which."""
    autocast: autocast.State | None = None
    """Under which the backward runs."""


def run(
    definition: Definition, apply: Callable[..., Any], values: Sequence[Any], *, forward_mode: bool
) -> tuple[Any, Result | None]:
    """Call the ``apply`` of one of the classes that :func:`function_class` makes on the values of all arguments.

    Returns:
        what the function returned, and how that was built; None for the second where there were no tensors.
    """
    leaves: list[Tensor] = []
    structures, owners = [], []
    for i, value in enumerate(values):
        before = len(leaves)
        structures.append(trees.flatten(value, leaves))
        owners += [i] * (len(leaves) - before)
    if not leaves:
        return definition.run(dict(zip(definition.names, values)))[0], None
    asks = definition.asks(forward_mode=forward_mode)
    call = Call(definition, asks, forward_mode, tuple(structures), tuple(owners))
    outputs = apply(call, *leaves)
    result = outputs[-1]
    return trees.rebuild(result.structure, iter(outputs[: result.number])), result


def check_values(definition: Definition, values: Sequence[Any]) -> None:
    """Refuse values that contradict the annotations.

    Raises:
        ArgumentError: a tensor is given where none is declared, or the other way round.
    """
    for argument, value in zip(definition.arguments, values):
        if argument.name == "self":
            continue
        if argument.kind != "static" and any(map(torch_compat.may_move, trees.hidden_in(value))):
            raise ArgumentError(
                f"{definition.name}: {argument.name!r} holds a tensor that requires grad in a container of a kind that "
                "is not taken apart, so that it would get no gradient; expected dicts, lists, tuples and dataclasses; "
                "pass one of these (`dict(...)`), or the tensor detached."
            )
        if argument.kind == "static" and _loses_gradient(value):
            what = "is a tensor" if isinstance(value, Tensor) else "holds tensors"
            if definition.foreign is not None:
                raise ArgumentError(
                    f"{definition.name}: {argument.name!r} {what}, but it is declared as a constant, so that there "
                    "would be no gradient; expected a value of its type; pass numbers (`.item()`), or name it in "
                    "argnums and give its gradient."
                )
            raise ArgumentError(
                f"{definition.name}: {argument.name!r} {what}, but its annotation says that there are none, so they "
                "would get no gradient; expected a value of the annotated type; pass numbers (`.item()`), or annotate "
                "it `Tensor` (`list[Tensor]`, ...) and let the rule return its gradient."
            )
        if argument.kind == "tensor" and not isinstance(value, Tensor) and value is not argument.default:
            if definition.foreign is not None:
                raise ArgumentError(
                    f"{definition.name}: {argument.name!r} is {kind_of(value)}, but it is among the arguments that "
                    "have a derivative; expected a tensor; write torch.as_tensor(...) for it, or name in argnums only "
                    "those that have one."
                )
            raise ArgumentError(
                f"{definition.name}: {argument.name!r} is {kind_of(value)}, but its annotation is Tensor; expected a "
                "tensor; write torch.tensor(...) for it, or change the annotation if the function is yours."
            )


def _loses_gradient(value: Any) -> bool:
    """Tell whether a value for an argument that is declared to have no gradient has one to lose.

    A container may hold constants where numbers are declared.
    """
    if isinstance(value, Tensor):
        return True
    return any(map(torch_compat.may_move, [*trees.tensors_in(value), *trees.hidden_in(value)]))


def function_class(definition: Definition, *, forward_mode: bool) -> type[Function]:
    """Make the class for calls of any kind; with ``forward_mode`` also for forward mode and ``torch.func``.

    There are two because torch.compile refuses a class that has a ``jvp``.
    """
    body: dict[str, Any] = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(_setup_context),
        "backward": staticmethod(_backward),
        "__module__": definition.module,
        "gw_definition": definition,
        "gw_values": given,
        "__doc__": definition.function.__doc__,
    }
    if forward_mode:
        body["jvp"] = staticmethod(_jvp)
    if "vmap" in definition.rules:
        body["vmap"] = staticmethod(_vmap(definition))
    elif definition.options.vmap == "derive":
        body["generate_vmap_rule"] = True
    else:
        body["vmap"] = staticmethod(_no_vmap(definition))
    return type(definition.name, (Function,), body)


def given(definition: Definition, args: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of the function, by position and by keyword, from those of a class that was made here."""
    call, *leaves = args
    left = iter(leaves)
    return definition.arranged([trees.rebuild(structure, left) for structure in call.structures])


def forward(call: Call, *leaves: Tensor) -> Any:
    """Run the function on the tensors of a call; return those it returned, those it keeps, and how they were built."""
    definition = call.definition
    context, cast, state = autocast.enter(definition.options.autocast, leaves)
    left = iter(cast)
    values = [trees.rebuild(structure, left) for structure in call.structures]
    try:
        with context:
            out, residuals = definition.run_on(leaves, dict(zip(definition.names, values)))
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, GradwrightError) or not torch_compat.transforms_active() or torch.compiler.is_compiling():
            raise
        raise RuleError(
            f"{definition.name}: its forward failed under a transform ({describe_exception(error)}); expected PyTorch "
            "operations whose course does not depend on the values of tensors; for other code say vmap='none' and give "
            f"it a rule for batches with @{definition.name}.vmap."
        ) from error
    out_leaves: list[Tensor] = []
    structure = trees.flatten(out, out_leaves)
    _refuse_callables(definition, out)
    _refuse_hidden(definition.name, "the output", out)
    kept: list[Tensor] = []
    residual_structure = trees.flatten(residuals, kept)
    _refuse_hidden(definition.name, "what .fwd keeps", residuals)
    hidden: list[Tensor] = []
    sources = []
    for tensor in kept:
        source = place("argument", tensor, leaves) or place("output", tensor, out_leaves)
        source = source or place("own", tensor, hidden)
        if source is None:
            source = ("own", len(hidden))
            hidden.append(tensor)
        sources.append(source)
    returned = trees.distinct(out_leaves, leaves, copies=call.forward_mode, aliases="out" in call.asks)
    return (*returned, *hidden, Result(structure, len(out_leaves), residual_structure, tuple(sources), state))


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    call, *leaves = inputs
    keep(ctx, call, leaves, output[:-1], output[-1], ctx.needs_input_grad[1:])


def keep(
    ctx: Any, call: Call, leaves: Sequence[Tensor], outputs: Sequence[Tensor], result: Result, needed: Sequence[bool]
) -> None:
    """Save on ``ctx`` what :func:`gradients` needs; ``outputs`` are those of the function and then its residuals."""
    definition, asks = call.definition, call.asks
    outs, hidden = outputs[: result.number], outputs[result.number :]
    _refuse_nondiff(call, needed)
    saved = [leaf for leaf, owner in zip(leaves, call.owners) if definition.names[owner] in asks]
    if "out" in asks:
        saved += outs
    if "residuals" in asks:
        pools = {"argument": leaves, "output": outs, "own": hidden}
        saved += [pools[kind][i] for kind, i in result.sources]
    ctx.save_for_backward(*saved)
    if call.forward_mode:
        ctx.save_for_forward(*saved)
    # None stays None: a tangent that is zero is told from one that moves, and residuals need no zeros.
    ctx.set_materialize_grads(False)
    ctx.call, ctx.result = call, result
    ctx.metas = [meta_of(leaf) for leaf in leaves]
    ctx.out_metas = [meta_of(leaf) for leaf in outs]
    ctx.hidden_metas = [meta_of(leaf) for leaf in hidden]


def _backward(ctx: Any, *grads: Any) -> Any:
    return (None, *gradients(ctx, grads, ctx.needs_input_grad[1:]))


def gradients(ctx: Any, grads: Sequence[Any], needed: Sequence[bool]) -> Sequence[Tensor | None]:
    """Return the gradient of each tensor among the arguments of the call that :func:`keep` saw."""
    cotangents = list(grads[: ctx.result.number])
    if all(g is None for g in cotangents):
        return (None,) * len(ctx.metas)
    state = _state(ctx, ctx.saved_tensors)
    with autocast.replay(ctx.result.autocast):
        return ctx.call.definition.pull(state, cotangents, needed)  # type: ignore[no-any-return]


def _jvp(ctx: Any, *tangents: Any) -> Any:
    _refuse_nondiff(ctx.call, [tangent is not None for tangent in tangents[1:]])
    # PyTorch switches forward mode off in here, so that an outer level of it would see a constant, and
    # nested forward mode would give 0 (pytorch/pytorch#197867).
    with torch_compat.forward_mode_enabled(), autocast.replay(ctx.result.autocast):
        saved = [torch_compat.primal(tensor) for tensor in ctx.saved_tensors]
        found = ctx.call.definition.push(_state(ctx, saved), tangents[1:])
        # A residual has no tangent that anybody knows. A zero is given so that the seal sees it move.
        hidden = [zeros(meta) if differentiable(meta) else None for meta in ctx.hidden_metas]
    return (*found, *hidden, None)


def _vmap(definition: Definition) -> Callable[..., Any]:
    rule = definition.rules["vmap"]
    in_dims_of = collections.namedtuple("in_dims", definition.names, rename=True)  # type: ignore[misc]

    def vmap(info: Any, in_dims: Any, call: Call, *leaves: Any) -> Any:
        left, dims = iter(leaves), iter(in_dims[1:])
        values = [trees.rebuild(structure, left) for structure in call.structures]
        places = [trees.rebuild(structure, dims, statics=False) for structure in call.structures]
        answer = rule.call((info, in_dims_of(*places)), dict(zip(definition.names, values)))
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise RuleError(
                f"{definition.name}: the rule {rule.function.__name__!r} returned a {type(answer).__name__}; expected "
                "the batched output and the place of its batch dimension; write `return out, 0`."
            )
        out, out_dims = answer
        outs: list[Tensor] = []
        structure = trees.flatten(out, outs)
        flat_dims = _dims_of(structure, out_dims, f"{definition.name}: the rule {rule.function.__name__!r} returned")
        result = Result(structure, len(outs), trees.NOTHING, ())
        return (*outs, result), (*flat_dims, None)

    return vmap


def _no_vmap(definition: Definition) -> Callable[..., Any]:
    def vmap(*_: Any) -> Any:
        raise RuleError(
            f"{definition.name}: it was called under vmap, but is declared with vmap='none'; give it a rule with "
            f"@{definition.name}.vmap, or leave vmap='none' away if its body is made of PyTorch operations."
        )

    return vmap


def _state(ctx: Any, saved: Sequence[Any]) -> State:
    left = iter(saved)
    call, result = ctx.call, ctx.result
    values: dict[str, Any] = {}
    for name, structure in zip(call.definition.names, call.structures):
        if name in call.asks:
            values[name] = trees.rebuild(structure, left)
    if "out" in call.asks:
        values["out"] = trees.rebuild(result.structure, left)
    if "residuals" in call.asks:
        values["residuals"] = trees.rebuild(result.residuals, left)
    return State(call.structures, ctx.metas, result.structure, ctx.out_metas, values, saved)


def _refuse_nondiff(call: Call, moving: Sequence[bool]) -> None:
    refusing = call.definition.options.nondiff
    if refusing:
        for owner, moves in zip(call.owners, moving):
            if moves and call.definition.names[owner] in refusing:
                raise RuleError(call.definition.nondiff_message(owner))


def place(kind: str, tensor: Tensor, among: Sequence[Tensor]) -> tuple[str, int] | None:
    """Return ``kind`` and the position of a tensor among others, None where it is none of them."""
    return next(((kind, i) for i, other in enumerate(among) if other is tensor), None)


def _dims_of(structure: trees.Structure, out_dims: Any, where: str) -> list[int | None]:
    """Return the batch dimension of each tensor of an output; one for all of a container may stand in its place."""
    if isinstance(structure, trees.Static):
        return []
    if out_dims is None or isinstance(out_dims, int):
        return [out_dims] * trees.count(structure)
    if isinstance(structure, trees.Leaf):
        raise RuleError(f"{where} {out_dims!r} as the batch dimension of a tensor; expected a number or None.")
    parts = trees.parts(structure, out_dims, f"{where} as batch dimensions")
    missing = [key for key, child in zip(structure.keys, structure.children) if trees.count(child) and key not in parts]
    if missing:
        raise RuleError(
            f"{where} no batch dimension for the tensors at {missing[0]!r}; expected one for each, None for those that "
            "are not batched."
        )
    return [
        dim for key, child in zip(structure.keys, structure.children) for dim in _dims_of(child, parts.get(key), where)
    ]


def _refuse_callables(definition: Definition, out: Any) -> None:
    if isinstance(out, tuple) and any(callable(part) and not isinstance(part, Tensor) for part in out):
        raise RuleError(definition.closure_message)


def _refuse_hidden(name: str, what: str, value: Any) -> None:
    if trees.hidden_in(value, attributes=True):
        raise RuleError(
            f"{name}: {what} holds a tensor in an object of a kind that is not taken apart, so that it would have no "
            "gradient; expected dicts, lists, tuples and dataclasses; return one of these."
        )
