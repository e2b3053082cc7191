"""The class for plain calls, in generated source.

A plain call has tensors and constants as arguments, one tensor or a tuple of tensors as output, and no transform around
it. It must cost no more than a Function that is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.authoring import returns, trees
from gradwright.authoring.classes import Result
from gradwright.authoring.codegen import passed, run
from gradwright.authoring.definition import Definition
from gradwright.authoring.rules import Argument, Rule
from gradwright.authoring.seal import seal
from gradwright.errors import RuleError


class FormChangedError(Exception):
    """A forward kept other residuals than in its first call; the caller takes the long way."""


@dataclass(frozen=True)
class Form:
    """What a function returns in every call."""

    outputs: int | None
    """The length of the tuple it returns, or None for one tensor."""
    keeps: bool = False
    """Whether its forward keeps residuals."""
    residuals: int | None = None
    """The length of the tuple that it keeps, or None for one tensor."""


def seen_form(definition: Definition, result: Result) -> Form | None:
    """Return the form of what one call returned, or None where it is not one that plain calls can have."""
    outputs, residuals = _length(result.structure), _length(result.residuals)
    if outputs == -1:
        return None
    if "fwd" not in definition.rules:
        return Form(outputs)
    return None if residuals == -1 or outputs is not None else Form(outputs, True, residuals)


def _length(structure: trees.Structure) -> int | None:
    """Return None for a tensor, the length for a tuple of tensors, -1 for anything else."""
    if isinstance(structure, trees.Leaf):
        return None
    if not isinstance(structure, trees.Node) or structure.make is not tuple:
        return -1
    return len(structure.children) if all(isinstance(c, trees.Leaf) for c in structure.children) else -1


def make_class(definition: Definition, form: Form) -> type[Function]:
    """Make the class for plain calls of a function with a VJP rule.

    Where a forward keeps residuals, they are outputs after the first: only of arguments and outputs
    does autograd see that somebody differentiates through them.
    """
    rule = definition.rules["vjp"]
    saved = [a for a in definition.arguments if a.name in rule.asks]
    parts = [
        *_forward_source(definition, rule, form),
        "",
        *_setup_source(definition, rule, saved, form),
        "",
        *_backward_source(definition, rule, saved, form),
    ]
    extra = {
        "gw_fn": definition.rules["fwd"].function if form.keeps else definition.function,
        "gw_rule": rule.function,
        "gw_split": _splitter(form),
        "gw_collect": _collector(definition),
        "gw_summed": _summer(definition),
        "gw_check_output": _output_check(definition, form.outputs),
        "gw_refuse": _refusal(definition),
        "gw_edits_of": torch_compat.edits,
        "gw_edited": _edit_refusal(definition),
        "gw_RuntimeError": RuntimeError,
        "gw_sealed": _sealer(definition),
        "gw_names": frozenset(definition.names),
    }
    functions = run("\n".join(parts) + "\n", definition.name, ("forward", "setup_context", "backward"), extra)
    body = dict(zip(("forward", "setup_context", "backward"), map(staticmethod, functions)))
    known = {"__module__": definition.module, "gw_definition": definition, "gw_values": Definition.arranged}
    return type(definition.name, (Function,), {**body, **known})


# -------------------------------------------------------------------- pieces of source


def _forward_source(definition: Definition, rule: Rule, form: Form) -> list[str]:
    names = definition.names
    candidates = [names[i] for i in definition.candidates]
    lines = [f"def forward({', '.join(names)}):"]
    if form.keeps:
        fwd = definition.rules["fwd"]
        asks, by_keyword = fwd.asks, fwd.by_keyword
    else:
        asks, by_keyword = names, tuple(a.name for a in definition.arguments if a.keyword_only)
    edits = f"({', '.join(_edits_of(definition.arguments[i]) for i in definition.candidates)},)"
    call = f"    gw_out = gw_fn({passed(asks, by_keyword)})"
    if definition.foreign is not None:  # the memory that it is given is locked
        lines.append(call)
    else:
        lines += [
            "    try:",
            f"        gw_edits = {edits}",
            "    except gw_RuntimeError:",
            "        gw_edits = None",
            call,
            f"    if gw_edits is not None and gw_edits != {edits}:",
            "        gw_edited()",
        ]
    if form.keeps:
        return [*lines, f"    return gw_split({', '.join(['gw_out', *candidates])})"]
    if form.outputs is not None:
        return [*lines, f"    return gw_check_output({', '.join(['gw_out', *candidates])})"]
    if "out" not in rule.asks:
        return [*lines, "    return gw_out"]
    # What is saved as `out` must be the output, with the derivative of the rule, and not the input.
    same = " or ".join(f"gw_out is {name}" for name in candidates)
    lines += [f"    if {same}:", "        gw_out = gw_out.view_as(gw_out)"]
    return [*lines, "    return gw_out"]


def _edits_of(a: Argument) -> str:
    """Return the expression for how often an argument was edited; tensors of inference mode do not tell."""
    count = f"gw_edits_of({a.name})"
    return count if a.kind == "tensor" else f"{count} if gw_isinstance({a.name}, gw_Tensor) else 0"


def _setup_source(definition: Definition, rule: Rule, saved: Sequence[Argument], form: Form) -> list[str]:
    lines = ["def setup_context(gw_ctx, gw_inputs, gw_output):"]
    if form.keeps:
        lines += ["    gw_output, *gw_hidden = gw_output", "    gw_ctx.set_materialize_grads(False)"]
    elif form.outputs is None:
        lines += ["    if not gw_isinstance(gw_output, gw_Tensor):", "        gw_check_output(gw_output)"]
    for i, name in enumerate(definition.names):
        if name in definition.options.nondiff:
            lines += [f"    if gw_ctx.needs_input_grad[{i}]:", f"        gw_refuse({i})"]
    where = {name: f"gw_inputs[{i}]" for i, name in enumerate(definition.names)}
    keep = []
    for a in saved:
        value = where[a.name]
        if a.kind == "tensor":
            keep.append(value)
        elif a.kind == "static":
            lines.append(f"    gw_ctx.gw_{a.name} = {value}")
        else:
            keep.append(f"{value} if gw_isinstance({value}, gw_Tensor) else None")
            lines.append(f"    gw_ctx.gw_{a.name} = None if gw_isinstance({value}, gw_Tensor) else {value}")
    if "out" in rule.asks:
        keep.append("gw_output" if form.outputs is None else "*gw_output")
    if "residuals" in rule.asks:
        keep.append("*gw_hidden")
    if keep:
        lines.append(f"    gw_ctx.save_for_backward({', '.join(keep)})")
    shapes = [_shape_of(a, where[a.name]) for a in definition.arguments]
    lines.append(f"    gw_ctx.gw_shapes = ({', '.join(shapes)},)")
    lines.append("    gw_ctx.gw_autocast = gw_state_of(gw_inputs) if gw_any_autocast() else None")
    return lines


def _backward_source(definition: Definition, rule: Rule, saved: Sequence[Argument], form: Form) -> list[str]:
    flags = [f"gw_needs_{i}" for i in range(len(definition.names))]
    single = form.outputs is None
    lines = [f"def backward(gw_ctx, {'gw_g' if single else '*gw_g'}{', *gw_rest' if form.keeps else ''}):"]
    if form.keeps:
        lines += ["    if gw_g is None:", f"        return (None,) * {len(flags)}"]
    lines += _load_source(rule, saved, form)
    if len(definition.candidates) > 1 or "needs" in rule.asks:
        lines.append(f"    {', '.join(flags)}, = gw_ctx.needs_input_grad")
    if "needs" in rule.asks:
        lines.append("    needs = {" + ", ".join(f"{n!r}: {flag}" for n, flag in zip(definition.names, flags)) + "}")
    asked = passed(rule.asks, rule.by_keyword)
    call = f"gw_grads = gw_rule(gw_g{', ' if asked else ''}{asked})"
    lines += [
        "    if gw_ctx.gw_autocast is None and not gw_any_autocast():",
        f"        {call}",
        "    else:",
        f"        with gw_replay(gw_ctx.gw_autocast, {'gw_g' if single else 'gw_g[0]'}):",
        f"            {call}",
    ]
    return lines + _return_source(definition, flags, "gw_g" if single else "*gw_g")


def _load_source(rule: Rule, saved: Sequence[Argument], form: Form) -> list[str]:
    """Return the lines that give what the rule asks for its names."""
    load = [a.name for a in saved if a.kind != "static"]
    lines = []
    if "out" in rule.asks:
        load.append("out" if form.outputs is None else "*out")
    if "residuals" in rule.asks:
        load.append("residuals" if form.residuals is None else "*residuals")
    if load:
        lines.append(f"    {', '.join(load)}, = gw_ctx.saved_tensors")
    lines += [f"    {starred[1:]} = gw_tuple({starred[1:]})" for starred in load if starred.startswith("*")]
    for a in saved:
        if a.kind == "static":
            lines.append(f"    {a.name} = gw_ctx.gw_{a.name}")
        elif a.kind != "tensor":
            lines += [f"    if {a.name} is None:", f"        {a.name} = gw_ctx.gw_{a.name}"]
    return lines


def _return_source(definition: Definition, flags: Sequence[str], g: str) -> list[str]:
    """Return the lines that bring what the rule returned into the form that PyTorch wants."""
    grads = [f"gw_grad_{i}" for i in range(len(flags))]
    lines = ["    gw_shapes = gw_ctx.gw_shapes"]
    if len(definition.candidates) > 1:
        lines.append("    if gw_type(gw_grads) is gw_dict and gw_grads.keys() <= gw_names:")
        for i in definition.candidates:
            lines.append(f"        {grads[i]} = gw_grads.get({definition.names[i]!r}) if {flags[i]} else None")
    else:
        sole = min(definition.candidates)
        lines += ["    if gw_isinstance(gw_grads, gw_Tensor):", f"        {grads[sole]} = gw_grads"]
    lines += ["    else:", f"        {', '.join(grads)}, = gw_collect(gw_grads, gw_shapes)"]
    for i in definition.candidates:
        lines += [
            f"    if {grads[i]} is not None and not (",
            f"        gw_isinstance({grads[i]}, gw_Tensor) and {grads[i]}.shape == gw_shapes[{i}]",
            "    ):",
            f"        {grads[i]} = gw_summed({grads[i]}, gw_shapes[{i}], {i})",
        ]
    returned = ", ".join([grad if i in definition.candidates else "None" for i, grad in enumerate(grads)])
    if definition.double_backward != "auto":
        read = f"({g}, *gw_ctx.saved_tensors)"
        lines += ["    if gw_may_be_differentiated():", f"        return gw_tuple(gw_sealed(({returned},), {read}))"]
    return [*lines, f"    return {returned}"]


def _shape_of(a: Argument, value: str) -> str:
    """Return the expression for the shape of an argument, None for what is no tensor."""
    if a.kind == "tensor":
        return f"{value}.shape"
    return "None" if a.kind == "static" else f"{value}.shape if gw_isinstance({value}, gw_Tensor) else None"


# -------------------------------------------------------------------- what the source calls when something is unusual


# torch.compile follows functions in a closure, and constants, but no objects. So these hold names only.


def _collector(definition: Definition) -> Callable[..., Any]:
    name, names, candidates = definition.name, definition.names, definition.candidates
    rule = definition.rules["vjp"].function.__name__

    def collect(result: Any, shapes: Sequence[Any]) -> tuple[Tensor | None, ...]:
        tensors = [shape is not None for shape in shapes]
        structures: list[trees.Structure] = [trees.LEAF if is_tensor else trees.NOTHING for is_tensor in tensors]
        left = iter(returns.collect(name, rule, names, candidates, result, structures))
        return tuple([next(left) if is_tensor else None for is_tensor in tensors])

    return collect


def _summer(definition: Definition) -> Callable[..., Tensor]:
    rule = definition.rules["vjp"].function.__name__
    places = [f"{definition.name}: the rule {rule!r} returned for {name!r}" for name in definition.names]

    def summed(grad: Any, shape: torch.Size, position: int) -> Tensor:
        if not isinstance(grad, Tensor):
            trees.match(trees.LEAF, grad, places[position], [])
        return returns.summed(grad, shape, places[position])

    return summed


def _output_check(definition: Definition, outputs: int | None) -> Callable[..., Any]:
    name = definition.name
    expected = "one tensor" if outputs is None else f"a tuple of {outputs} tensors"
    aliases = "out" in definition.rules["vjp"].asks

    def check_output(output: Any, *arguments: Any) -> Any:
        is_tuple = outputs is not None and type(output) is tuple and len(output) == outputs
        if is_tuple and all(isinstance(t, Tensor) for t in output):
            return tuple(trees.distinct(output, arguments, copies=False, aliases=aliases))
        raise RuleError(
            f"{name}: it returned a {type(output).__name__}; expected {expected}, as its annotation or its first call "
            "said; annotate what it can return (`-> dict[str, Tensor]`, `-> tuple[Tensor, ...]`, `-> Any`)."
        )

    return check_output


def _splitter(form: Form) -> Callable[..., Any]:
    def split(result: Any, *arguments: Any) -> tuple[Tensor, ...]:
        if type(result) is not tuple or len(result) != 2:
            raise FormChangedError
        out, residuals = result
        kept = [residuals] if form.residuals is None else residuals
        if form.residuals is not None and (type(kept) is not tuple or len(kept) != form.residuals):
            raise FormChangedError
        tensors = [out, *kept]
        if not all(isinstance(tensor, Tensor) for tensor in tensors):
            raise FormChangedError
        return tuple(trees.distinct(tensors, arguments, copies=False, aliases=True))

    return split


def _sealer(definition: Definition) -> Callable[..., Any]:
    once, never = definition.once_message, definition.never_message

    def sealed(grads: Sequence[Tensor | None], read: Sequence[Any]) -> list[Tensor | None]:
        if never is not None and torch.is_grad_enabled() and not torch_compat.transforms_active():
            raise RuleError(never)
        return seal(once, grads, read)

    return sealed


def _refusal(definition: Definition) -> Callable[[int], None]:
    messages = [definition.nondiff_message(i) for i in range(len(definition.names))]

    def refuse(position: int) -> None:
        raise RuleError(messages[position])

    return refuse


def _edit_refusal(definition: Definition) -> Callable[[], None]:
    message = definition.edited_message

    def refuse() -> None:
        raise RuleError(message)

    return refuse
