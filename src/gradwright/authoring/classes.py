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
from gradwright.errors import ArgumentError, RuleError


@dataclass
class Call:
    """The arguments of one call without their tensors."""

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


def apply(definition: Definition, function: type[Function], values: Sequence[Any]) -> Any:
    """Call ``function``, one of the classes that :func:`function_class` makes, on the values of all arguments."""
    leaves: list[Tensor] = []
    structures, owners = [], []
    for i, value in enumerate(values):
        before = len(leaves)
        structures.append(trees.flatten(value, leaves))
        owners += [i] * (len(leaves) - before)
    if not leaves:
        return definition.run(dict(zip(definition.names, values)))[0]
    outputs = function.apply(Call(tuple(structures), tuple(owners)), *leaves)
    result = outputs[-1]
    return trees.rebuild(result.structure, iter(outputs[: result.number]))


def check_values(definition: Definition, values: Sequence[Any]) -> None:
    """Refuse values that contradict the annotations.

    Raises:
        ArgumentError: a tensor is given where none is declared, or the other way round.
    """
    for argument, value in zip(definition.arguments, values):
        if argument.kind == "static" and isinstance(value, Tensor):
            raise ArgumentError(
                f"{definition.name}: {argument.name!r} is a tensor, but its annotation says that it is none, so it "
                "would get no gradient; expected a value of the annotated type; pass `.item()`, or annotate it "
                "`Tensor` and let the rule return its gradient."
            )
        if argument.kind == "tensor" and not isinstance(value, Tensor) and value is not argument.default:
            raise ArgumentError(
                f"{definition.name}: {argument.name!r} is a {type(value).__name__}, but its annotation is Tensor; "
                "expected a tensor; pass torch.tensor(...), or change the annotation."
            )


def function_class(definition: Definition, *, forward_mode: bool) -> type[Function]:
    """Make the class for calls of any kind; with ``forward_mode`` also for forward mode and ``torch.func``.

    There are two because torch.compile refuses a class that has a ``jvp``.
    """
    asks = definition.asks(forward_mode=forward_mode)
    body: dict[str, Any] = {
        "forward": staticmethod(_forward(definition, copies=forward_mode, aliases="out" in asks)),
        "setup_context": staticmethod(_setup_context(definition, asks, forward_mode)),
        "backward": staticmethod(_backward(definition, asks)),
        "__module__": definition.function.__module__,
        "__doc__": definition.function.__doc__,
    }
    if forward_mode:
        body["jvp"] = staticmethod(_jvp(definition, asks))
    if "vmap" in definition.rules:
        body["vmap"] = staticmethod(_vmap(definition))
    elif definition.options.vmap == "derive":
        body["generate_vmap_rule"] = True
    else:
        body["vmap"] = staticmethod(_no_vmap(definition))
    return type(definition.name, (Function,), body)


def _forward(definition: Definition, *, copies: bool, aliases: bool) -> Callable[..., Any]:
    def forward(call: Call, *leaves: Tensor) -> Any:
        context, cast, state = autocast.enter(definition.options.autocast, leaves)
        left = iter(cast)
        values = [trees.rebuild(structure, left) for structure in call.structures]
        with context:
            out, residuals = definition.run(dict(zip(definition.names, values)))
        out_leaves: list[Tensor] = []
        structure = trees.flatten(out, out_leaves)
        _refuse_callables(definition, out)
        kept: list[Tensor] = []
        residual_structure = trees.flatten(residuals, kept)
        hidden: list[Tensor] = []
        sources = []
        for tensor in kept:
            source = _place("argument", tensor, leaves) or _place("output", tensor, out_leaves)
            source = source or _place("own", tensor, hidden)
            if source is None:
                source = ("own", len(hidden))
                hidden.append(tensor)
            sources.append(source)
        returned = trees.distinct(out_leaves, leaves, copies=copies, aliases=aliases)
        return (*returned, *hidden, Result(structure, len(out_leaves), residual_structure, tuple(sources), state))

    return forward


def _setup_context(definition: Definition, asks: frozenset[str], forward_mode: bool) -> Callable[..., Any]:
    wanted = [name in asks for name in definition.names]
    refusing = [i for i, name in enumerate(definition.names) if name in definition.options.nondiff]
    own_zeros = definition.options.symbolic_zeros or "fwd" in definition.rules

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call, *leaves = inputs
        result = output[-1]
        outs, hidden = output[: result.number], output[result.number : -1]
        for i in refusing:
            if any(ctx.needs_input_grad[1 + k] for k, owner in enumerate(call.owners) if owner == i):
                raise RuleError(definition.nondiff_message(i))
        saved = [leaf for leaf, owner in zip(leaves, call.owners) if wanted[owner]]
        if "out" in asks:
            saved += outs
        if "residuals" in asks:
            pools = {"argument": leaves, "output": outs, "own": hidden}
            saved += [pools[kind][i] for kind, i in result.sources]
        ctx.save_for_backward(*saved)
        if forward_mode:
            ctx.save_for_forward(*saved)
        if own_zeros:
            ctx.set_materialize_grads(False)
        ctx.call, ctx.result = call, result
        ctx.metas = [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]
        ctx.out_metas = [(leaf.shape, leaf.dtype, leaf.device) for leaf in outs]
        ctx.hidden_metas = [(leaf.shape, leaf.dtype, leaf.device) for leaf in hidden]

    return setup_context


def _backward(definition: Definition, asks: frozenset[str]) -> Callable[..., Any]:
    def backward(ctx: Any, *grads: Any) -> Any:
        cotangents = list(grads[: ctx.result.number])
        if all(g is None for g in cotangents):
            return (None,) * (1 + len(ctx.metas))
        state = _state(definition, asks, ctx, ctx.saved_tensors)
        with autocast.replay(ctx.result.autocast):
            found = definition.pull(state, cotangents, ctx.needs_input_grad[1:])
        return (None, *found)

    return backward


def _jvp(definition: Definition, asks: frozenset[str]) -> Callable[..., Any]:
    refusing = [i for i, name in enumerate(definition.names) if name in definition.options.nondiff]

    def jvp(ctx: Any, *tangents: Any) -> Any:
        for i in refusing:
            if any(tangents[1 + k] is not None for k, owner in enumerate(ctx.call.owners) if owner == i):
                raise RuleError(definition.nondiff_message(i))
        # PyTorch switches forward mode off in here, so that an outer level of it would see a constant, and
        # nested forward mode would give 0 (pytorch/pytorch#197867).
        with torch_compat.forward_mode_enabled(), autocast.replay(ctx.result.autocast):
            saved = [torch_compat.primal(tensor) for tensor in ctx.saved_tensors]
            found = definition.push(_state(definition, asks, ctx, saved), tangents[1:])
            # A residual has no tangent that anybody knows. A zero is given so that the seal sees it move.
            hidden = [
                torch.zeros(shape, dtype=dtype, device=device) if dtype.is_floating_point or dtype.is_complex else None
                for shape, dtype, device in ctx.hidden_metas
            ]
        return (*found, *hidden, None)

    return jvp


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
        flat_dims = [out_dims] * len(outs) if out_dims is None or isinstance(out_dims, int) else _dims_of(out_dims)
        if len(flat_dims) != len(outs):
            raise RuleError(
                f"{definition.name}: the rule {rule.function.__name__!r} returned {len(flat_dims)} batch dimensions "
                f"for {len(outs)} tensors; expected one for each, None for those that are not batched."
            )
        result = Result(structure, len(outs), trees.Static(None), ())
        return (*outs, result), (*flat_dims, None)

    return vmap


def _no_vmap(definition: Definition) -> Callable[..., Any]:
    def vmap(*_: Any) -> Any:
        raise RuleError(
            f"{definition.name}: it was called under vmap, but is declared with vmap='none'; give it a rule with "
            f"@{definition.name}.vmap, or leave vmap='none' away if its body is made of PyTorch operations."
        )

    return vmap


def _state(definition: Definition, asks: frozenset[str], ctx: Any, saved: Sequence[Any]) -> State:
    left = iter(saved)
    values: dict[str, Any] = {}
    for name, structure in zip(definition.names, ctx.call.structures):
        if name in asks:
            values[name] = trees.rebuild(structure, left)
    if "out" in asks:
        values["out"] = trees.rebuild(ctx.result.structure, left)
    if "residuals" in asks:
        values["residuals"] = trees.rebuild(ctx.result.residuals, left)
    return State(ctx.call.structures, ctx.metas, ctx.result.structure, ctx.out_metas, values, saved)


def _place(kind: str, tensor: Tensor, among: Sequence[Tensor]) -> tuple[str, int] | None:
    return next(((kind, i) for i, other in enumerate(among) if other is tensor), None)


def _dims_of(out_dims: Any) -> list[int | None]:
    if out_dims is None or isinstance(out_dims, int):
        return [out_dims]
    parts = out_dims.values() if isinstance(out_dims, dict) else out_dims
    return [dim for part in parts for dim in _dims_of(part)]


def _refuse_callables(definition: Definition, out: Any) -> None:
    if isinstance(out, tuple) and any(callable(part) and not isinstance(part, Tensor) for part in out):
        raise RuleError(
            f"{definition.name}: it returned a tuple with a function in it, as custom gradients of TensorFlow do; "
            "expected the output alone; attach the gradient as a rule, which asks by name for what it needs: "
            f"`@{definition.name}.vjp` above `def {definition.name}_vjp(g, out): ...`."
        )
