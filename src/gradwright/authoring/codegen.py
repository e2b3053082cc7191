"""Generated source: the function that users call, with the signature of the one they wrote.

Source is generated so that nothing has to be bound, packed or looked up on a call. It is registered with ``linecache``:
debuggers step through it, and tracebacks show its lines. Names of gradwright's own start with ``gw_``.
"""

from __future__ import annotations

import inspect
import itertools
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring import autocast, trees
from gradwright.authoring.definition import Definition
from gradwright.authoring.rules import Argument
from gradwright.authoring.seal import may_be_differentiated

_COUNTER = itertools.count(1)

HELPERS: dict[str, Any] = {
    "gw_Tensor": Tensor,
    "gw_isinstance": isinstance,
    "gw_type": type,
    "gw_dict": dict,
    "gw_tuple": tuple,
    "gw_PLAIN": trees.PLAIN,
    "gw_HOLDERS": trees.HOLDERS,
    "gw_holds": trees.holds,
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
    wrapper, set_plain = run(source, definition.name, (name, "gw_set_plain"), extra)
    return wrapper, set_plain


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
        "static": "" if a.name == "self" else f"gw_isinstance({a.name}, gw_HOLDERS) and gw_holds({a.name})",
        "unknown": f"not ({tensor} or gw_isinstance({a.name}, gw_PLAIN))",
        "tree": "True",
    }[a.kind]


def _without_wrapper(a: Argument) -> str:
    if a.kind == "tensor":
        return f"gw_unwrap_dead({a.name})"
    if a.kind == "static":
        return a.name
    return f"gw_unwrap_dead({a.name}) if gw_isinstance({a.name}, gw_Tensor) else {a.name}"


def passed(names: Sequence[str], by_keyword: Sequence[str]) -> str:
    """Return the source of the arguments of a call that passes variables under their own names."""
    return ", ".join([n for n in names if n not in by_keyword] + [f"{n}={n}" for n in names if n in by_keyword])


def run(source: str, name: str, wanted: Sequence[str], extra: dict[str, Any]) -> list[Any]:
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
