"""The source of what runs on every call: a function with the user's own signature, and the class of the plain call.

A plain call has tensors and constants as arguments, one tensor or a tuple of tensors as output, and no transform
around it. Source is generated so that nothing has to be bound, packed or looked up then. It is registered with
``linecache``: debuggers step through it, and tracebacks show its lines. Names of gradwright's own start with ``gw_``.
"""

from __future__ import annotations

import inspect
import itertools
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.authoring import autocast, returns, trees
from gradwright.authoring.definition import Definition
from gradwright.authoring.rules import Argument, Rule
from gradwright.authoring.seal import may_be_differentiated, seal
from gradwright.errors import RuleError

_COUNTER = itertools.count(1)

HELPERS: dict[str, Any] = {
    "gw_Tensor": Tensor,
    "gw_isinstance": isinstance,
    "gw_type": type,
    "gw_dict": dict,
    "gw_tuple": tuple,
    "gw_PLAIN": trees.PLAIN,
    "gw_is_compiling": torch.compiler.is_compiling,
    "gw_transforms_active": torch_compat.transforms_active,
    "gw_forward_mode_on": torch_compat.forward_mode_on,
    "gw_unwrap_dead": torch_compat.unwrap_dead,
    "gw_any_autocast": torch_compat.any_autocast,
    "gw_state_of": autocast.state_of,
    "gw_replay": autocast.replay,
    "gw_may_be_differentiated": may_be_differentiated,
}
"""What generated source calls, by the names it has there."""


def make_wrapper(
    definition: Definition, general: Callable[..., Any], compiling: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[[Callable[..., Any]], None]]:
    """Return the function that users call, and one that sets what plain calls go to.

    Until it is set, they go to ``general`` like all other calls; calls that torch.compile traces go to ``compiling``.
    Each gets the arguments by position.
    """
    arguments = definition.arguments
    name = definition.name if definition.name.isidentifier() else "gw_function"
    named = ", ".join(a.name for a in arguments)
    odd = ["gw_transforms_active()", "gw_forward_mode_on()", *filter(None, map(_is_odd, arguments))]
    source = f"""\
def {name}({_signature(arguments)}):
    if gw_is_compiling():
        return gw_compiling({named})
    if {" or ".join(odd)}:
        return gw_general({named})
    return gw_plain({", ".join(map(_without_wrapper, arguments))})

def gw_set_plain(gw_function):
    nonlocal gw_plain
    gw_plain = gw_function
"""
    defaults = {a.name: a.default for a in arguments}
    extra = {"gw_plain": general, "gw_general": general, "gw_compiling": compiling, "gw_defaults": defaults}
    wrapper, set_plain = _run(source, definition.name, (name, "gw_set_plain"), extra)
    return wrapper, set_plain


def plain_class(definition: Definition, outputs: int | None) -> type[Function]:
    """Make the class for plain calls of a function with a VJP rule.

    ``outputs`` is the length of the tuple it returns, or None when it returns one tensor.
    """
    rule = definition.rules["vjp"]
    saved = [a for a in definition.arguments if a.name in rule.asks]
    parts = [
        *_forward_source(definition, rule, outputs),
        "",
        *_setup_source(definition, rule, saved, outputs),
        "",
        *_backward_source(definition, rule, saved, outputs),
    ]
    extra = {
        "gw_fn": definition.function,
        "gw_rule": rule.function,
        "gw_collect": _collector(definition),
        "gw_summed": _summer(definition),
        "gw_check_output": _output_check(definition, outputs),
        "gw_refuse": _refusal(definition),
        "gw_sealed": _sealer(definition),
        "gw_names": frozenset(definition.names),
    }
    functions = _run("\n".join(parts) + "\n", definition.name, ("forward", "setup_context", "backward"), extra)
    body = dict(zip(("forward", "setup_context", "backward"), map(staticmethod, functions)))
    return type(definition.name, (Function,), {**body, "__module__": definition.function.__module__})


# -------------------------------------------------------------------- pieces of source


def _signature(arguments: Sequence[Argument]) -> str:
    parts: list[str] = []
    for before, a in zip([None, *arguments], arguments):
        if before is not None and before.passed is inspect.Parameter.POSITIONAL_ONLY is not a.passed:
            parts.append("/")
        if a.keyword_only and (before is None or not before.keyword_only):
            parts.append("*")
        parts.append(a.name if a.default is inspect.Parameter.empty else f"{a.name}=gw_defaults[{a.name!r}]")
    if arguments and arguments[-1].passed is inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    return ", ".join(parts)


def _is_odd(a: Argument) -> str:
    """Return the condition under which an argument makes a call other than plain."""
    tensor = f"gw_isinstance({a.name}, gw_Tensor)"
    return {
        "tensor": f"not {tensor}",
        "optional": f"not ({tensor} or {a.name} is None)",
        "static": "" if a.name == "self" else tensor,
        "unknown": f"not ({tensor} or gw_isinstance({a.name}, gw_PLAIN))",
        "tree": "True",
    }[a.kind]


def _without_wrapper(a: Argument) -> str:
    if a.kind == "tensor":
        return f"gw_unwrap_dead({a.name})"
    if a.kind == "static":
        return a.name
    return f"gw_unwrap_dead({a.name}) if gw_isinstance({a.name}, gw_Tensor) else {a.name}"


def _passed(names: Sequence[str], by_keyword: Sequence[str]) -> str:
    return ", ".join([n for n in names if n not in by_keyword] + [f"{n}={n}" for n in names if n in by_keyword])


def _forward_source(definition: Definition, rule: Rule, outputs: int | None) -> list[str]:
    names = definition.names
    call = f"gw_fn({_passed(names, [a.name for a in definition.arguments if a.keyword_only])})"
    candidates = [names[i] for i in definition.candidates]
    lines = [f"def forward({', '.join(names)}):"]
    if outputs is not None:
        return [*lines, f"    return gw_check_output({', '.join([call, *candidates])})"]
    if "out" not in rule.asks or not candidates:
        return [*lines, f"    return {call}"]
    # What is saved as `out` must be the output, with the derivative of the rule, and not the input.
    same = " or ".join(f"gw_out is {name}" for name in candidates)
    return [
        *lines,
        f"    gw_out = {call}",
        f"    if {same}:",
        "        gw_out = gw_out.view_as(gw_out)",
        "    return gw_out",
    ]


def _setup_source(definition: Definition, rule: Rule, saved: Sequence[Argument], outputs: int | None) -> list[str]:
    lines = ["def setup_context(gw_ctx, gw_inputs, gw_output):"]
    if outputs is None:
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
        keep.append("gw_output" if outputs is None else "*gw_output")
    if keep:
        lines.append(f"    gw_ctx.save_for_backward({', '.join(keep)})")
    shapes = [_shape_of(a, where[a.name]) for a in definition.arguments]
    lines.append(f"    gw_ctx.gw_shapes = ({', '.join(shapes)},)")
    lines.append("    gw_ctx.gw_autocast = gw_state_of(gw_inputs) if gw_any_autocast() else None")
    return lines


def _backward_source(definition: Definition, rule: Rule, saved: Sequence[Argument], outputs: int | None) -> list[str]:
    lines = [f"def backward(gw_ctx, {'gw_g' if outputs is None else '*gw_g'}):"]
    load = [a.name for a in saved if a.kind != "static"]
    if "out" in rule.asks:
        load.append("out" if outputs is None else "*out")
    if load:
        lines.append(f"    {', '.join(load)}, = gw_ctx.saved_tensors")
    if "out" in rule.asks and outputs is not None:
        lines.append("    out = gw_tuple(out)")
    for a in saved:
        if a.kind == "static":
            lines.append(f"    {a.name} = gw_ctx.gw_{a.name}")
        elif a.kind != "tensor":
            lines += [f"    if {a.name} is None:", f"        {a.name} = gw_ctx.gw_{a.name}"]
    needs = [f"gw_needs_{i}" for i in range(len(definition.names))]
    several = len(definition.candidates) > 1
    if several or "needs" in rule.asks:
        lines.append(f"    {', '.join(needs)}, = gw_ctx.needs_input_grad")
    if "needs" in rule.asks:
        lines.append("    needs = {" + ", ".join(f"{n!r}: {flag}" for n, flag in zip(definition.names, needs)) + "}")
    asked = _passed(rule.asks, rule.by_keyword)
    call = f"gw_grads = gw_rule(gw_g{', ' if asked else ''}{asked})"
    first = "gw_g" if outputs is None else "gw_g[0]"
    lines += [
        "    if gw_ctx.gw_autocast is None and not gw_any_autocast():",
        f"        {call}",
        "    else:",
        f"        with gw_replay(gw_ctx.gw_autocast, {first}):",
        f"            {call}",
    ]
    lines.append("    gw_shapes = gw_ctx.gw_shapes")
    grads = [f"gw_grad_{i}" for i in range(len(needs))]
    if several:
        lines.append("    if gw_type(gw_grads) is gw_dict and gw_grads.keys() <= gw_names:")
        for i in definition.candidates:
            lines.append(f"        {grads[i]} = gw_grads.get({definition.names[i]!r}) if {needs[i]} else None")
    else:
        lines += ["    if gw_isinstance(gw_grads, gw_Tensor):", f"        {grads[definition.candidates[0]]} = gw_grads"]
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
        read = f"({'gw_g' if outputs is None else '*gw_g'}, *gw_ctx.saved_tensors)"
        lines += ["    if gw_may_be_differentiated():", f"        return tuple(gw_sealed(({returned},), {read}))"]
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


def _run(source: str, name: str, wanted: Sequence[str], extra: dict[str, Any]) -> list[Any]:
    """Run generated definitions inside a function whose arguments are the names they use, and return the ``wanted``."""
    names = {**HELPERS, **extra}
    body = "".join(f"    {line}\n" if line else "\n" for line in source.splitlines())
    text = f"def gw_make({', '.join(names)}):\n{body}    return [{', '.join(wanted)}]\n"
    filename = f"<gradwright {next(_COUNTER)}: {name}>"
    # Without a time of change, `linecache.checkcache` leaves the entry alone.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, filename, "exec"), scope)
    found: list[Any] = scope["gw_make"](**names)
    return found
