"""Reading signatures: what a function's arguments are, and what a rule asks for.

A rule asks by name. That is how the library knows what to save for it, and why a wrong name fails when the module is
imported instead of in the middle of a training.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradwright.authoring import trees
from gradwright.authoring.returned import tuple_lengths
from gradwright.authoring.returns import count_message
from gradwright.errors import DefinitionError, did_you_mean

ArgumentKind: TypeAlias = Literal["tensor", "optional", "static", "tree", "unknown"]
"""``optional`` is a tensor or None; ``static`` never has a gradient; ``unknown`` is looked at on each call."""

RuleKind: TypeAlias = Literal["vjp", "jvp", "vmap", "fwd", "fake", "derivative", "jacobian", "hvp"]

RESERVED = ("out", "needs", "residuals")
"""What a rule may ask for besides arguments."""

LEADING: dict[RuleKind, tuple[str, ...]] = {
    "vjp": ("g",),
    "jvp": ("t",),
    "vmap": ("info", "in_dims"),
    "fwd": (),
    "fake": (),
    "derivative": (),
    "jacobian": (),
    "hvp": ("g", "t"),
}
"""What a rule receives by position, before what it asks for by name; it may call these as it likes."""

MEANING = {
    "g": "the cotangent",
    "t": "the tangent",
    "info": "the batch size and more",
    "in_dims": "the batch dimensions",
}

ASKABLE: dict[RuleKind, tuple[str, ...]] = {
    "vjp": ("out", "needs", "residuals"),
    "jvp": ("out", "residuals"),
    "vmap": (),
    "fwd": (),
    "fake": (),
    "derivative": ("out",),
    "jacobian": ("out", "residuals"),
    "hvp": ("out", "residuals"),
}

_STATIC_TYPES = (
    int,
    float,
    bool,
    complex,
    str,
    bytes,
    type,
    type(None),
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    torch.Generator,
)
_CONTAINERS = (collections.abc.Mapping, collections.abc.Sequence, collections.abc.Set)
_BY_TEXT: dict[str, ArgumentKind] = {
    "Tensor": "tensor",
    "torch.Tensor": "tensor",
    "Tensor | None": "optional",
    "torch.Tensor | None": "optional",
    "Optional[Tensor]": "optional",
    "Optional[torch.Tensor]": "optional",
    **dict.fromkeys(("int", "float", "bool", "complex", "str", "torch.dtype", "torch.device"), "static"),
}


@dataclass(frozen=True)
class Argument:
    """One argument of a function with a custom gradient."""

    name: str
    kind: ArgumentKind
    default: Any
    passed: Any
    """How it may be passed: a kind of ``inspect.Parameter``."""

    @property
    def keyword_only(self) -> bool:
        """True when it stands after the ``*`` of the signature."""
        return bool(self.passed is inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Rule:
    """A user's rule and what it asks for, in the order of its signature."""

    function: Callable[..., Any]
    kind: RuleKind
    asks: tuple[str, ...]
    by_keyword: tuple[str, ...] = ()
    """Those of ``asks`` that the rule takes by keyword only."""

    def call(self, leading: Sequence[Any], values: typing.Mapping[str, Any]) -> Any:
        """Run the rule with what it asks for."""
        keyword = {name: values[name] for name in self.by_keyword}
        return self.function(*leading, *(values[n] for n in self.asks if n not in self.by_keyword), **keyword)


def read_arguments(
    name: str,
    function: Callable[..., Any],
    *,
    stars: bool = False,
    tell: Callable[[Any], ArgumentKind] | None = None,
) -> tuple[Argument, ...]:
    """Return the arguments of ``function``.

    With ``stars`` those behind stars may be there, and are left out. ``tell`` replaces :func:`kind_of` for functions
    of something else than tensors.

    Raises:
        DefinitionError: the signature has ``*args``, ``**kwargs`` or a reserved name, or cannot be read.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise DefinitionError(
            f"{name}: Python does not know the signature of this function; expected named arguments; write a function "
            f"around it (`def {name}(x: Tensor) -> Tensor: ...`) and decorate that."
        ) from None
    annotations = read_annotations(function)
    arguments = []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            if stars:
                continue
            sign = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise DefinitionError(
                f"{name}: the argument {sign}{parameter.name} has no fixed names; rules ask for arguments by name; "
                f"name each argument, or take one list or dict (`{parameter.name}: "
                f"{'list' if sign == '*' else 'dict[str, Tensor]'}`), whose tensors get gradients too."
            )
        kind = "static" if parameter.name == "self" else (tell or kind_of)(annotations.get(parameter.name))
        arguments.append(Argument(parameter.name, kind, parameter.default, parameter.kind))
    return checked_arguments(name, arguments)


def checked_arguments(name: str, arguments: Sequence[Argument]) -> tuple[Argument, ...]:
    """Return ``arguments`` as a tuple, refusing reserved names and defaults that contradict the annotation."""
    for argument in arguments:
        if argument.name in RESERVED:
            raise DefinitionError(
                f"{name}: an argument is called {argument.name!r}, which is what rules use for "
                f"{_reserved_meaning(argument.name)}; expected another name; rename the argument."
            )
        if argument.name.startswith("gw_"):
            raise DefinitionError(
                f"{name}: an argument is called {argument.name!r}; names that start with gw_ are those of generated "
                "code; expected another name; rename the argument."
            )
        if argument.kind == "static" and _holds_gradients(argument.default):
            what = "is a tensor" if isinstance(argument.default, Tensor) else "holds tensors"
            raise DefinitionError(
                f"{name}: the default of {argument.name!r} {what}, but its annotation says that it never has a "
                "gradient; expected `Tensor`; correct the annotation."
            )
    if all(argument.kind == "static" for argument in arguments):
        raise DefinitionError(
            f"{name}: none of its arguments ({', '.join(a.name for a in arguments)}) can have a gradient by their "
            "annotations; expected a tensor or a container of tensors; annotate it `Tensor`."
        )
    return tuple(arguments)


def read_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of ``function``; one that names something unknown here stays text."""
    function = inspect.unwrap(function)
    try:
        return dict(inspect.get_annotations(function, eval_str=True))
    except Exception:
        pass
    found: dict[str, Any] = {}
    scope = getattr(function, "__globals__", {})
    for name, annotation in getattr(function, "__annotations__", {}).items():
        try:
            found[name] = eval(annotation, scope) if isinstance(annotation, str) else annotation
        except Exception:
            found[name] = annotation
    return found


def kind_of(annotation: Any) -> ArgumentKind:
    """Tell what an annotation says about an argument."""
    if isinstance(annotation, str):
        return _BY_TEXT.get(annotation.strip(), "unknown")
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kind_of(inner[0])
    if origin is Literal:
        return "static"
    if origin is typing.Union or origin is types.UnionType:
        kinds: set[ArgumentKind] = {kind_of(part) for part in inner if part is not type(None)}
        if len(kinds) != 1:
            return "unknown"
        kind = kinds.pop()
        return "optional" if kind == "tensor" and type(None) in inner else kind
    if _is_numpy_array(origin):
        return "static"
    if isinstance(origin, type) and issubclass(origin, _CONTAINERS):
        parts = [kind_of(part) for part in inner if part is not Ellipsis]
        return "static" if parts and all(part == "static" for part in parts) else "tree"
    if not isinstance(annotation, type):
        return "unknown"
    if issubclass(annotation, Tensor):
        return "tensor"
    if issubclass(annotation, _STATIC_TYPES) or _is_numpy_array(annotation):
        return "static"
    if issubclass(annotation, _CONTAINERS) or dataclasses.is_dataclass(annotation):
        return "tree"
    return "unknown"


def read_rule(name: str, kind: RuleKind, function: Any, arguments: Iterable[Argument]) -> Rule:
    """Return the rule ``function`` of the function called ``name``.

    Raises:
        DefinitionError: it takes too few arguments, asks for something unknown, or is no function.
    """
    arguments = tuple(arguments)
    known = [argument.name for argument in arguments]
    leading = LEADING[kind]
    if not callable(function):
        raise DefinitionError(
            f"{name}.{kind}: got {function!r}; expected a function; write `@{name}.{kind}` above its definition."
        )
    rule = getattr(function, "__name__", "rule")
    if rule == name and rule != "<lambda>":
        raise DefinitionError(
            f"{name}: its {kind} rule is called {rule!r} too, and would replace it; expected another name; call the "
            f"rule {name}_{kind}."
        )
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise DefinitionError(
                f"{name}: the rule {rule!r} takes {'*' if parameter.kind is parameter.VAR_POSITIONAL else '**'}"
                f"{parameter.name}; a rule names what it asks for, so that only that is saved; write "
                f"`def {rule}({', '.join([*leading, *known])})` with the names it needs."
            )
    first = [p.name for p in parameters[: len(leading)] if p.kind is not p.KEYWORD_ONLY]
    if len(first) < len(leading) or set(first) & {*known, *RESERVED}:
        got = ", ".join(p.name for p in parameters)
        meaning = " and ".join(MEANING[word] for word in leading)
        raise DefinitionError(
            f"{name}: the rule {rule!r} takes ({got}); its first argument{'s are' if len(leading) > 1 else ' is'} "
            f"{meaning}, under a name that is no argument of {name}; write "
            f"`def {rule}({', '.join([*leading, *(p.name for p in parameters if p.name in (*known, *RESERVED))])})`."
        )
    asked = parameters[len(leading) :]
    allowed = (*known, *ASKABLE[kind])
    for parameter in asked:
        if parameter.name not in allowed:
            after = f"after {MEANING[leading[-1]]} " if leading else ""
            raise DefinitionError(
                f"{name}: the rule {rule!r} asks for {parameter.name!r}; {after}it can ask for "
                f"{', '.join(allowed)}; correct the name."
                f"{_habit(kind, first, parameter.name) or did_you_mean(parameter.name, allowed)}"
            )
    if kind == "vjp":
        _refuse_other_number(name, rule, function, arguments)
    by_keyword = tuple(p.name for p in asked if p.kind is p.KEYWORD_ONLY)
    return Rule(function, kind, tuple(p.name for p in asked), by_keyword)


def _refuse_other_number(name: str, rule: str, function: Any, arguments: Sequence[Argument]) -> None:
    """Refuse a rule whose every return writes out a tuple that no call can use."""
    candidates = [argument.name for argument in arguments if argument.kind != "static"]
    certain = [a for a in arguments if a.kind == "tensor" and a.default is inspect.Parameter.empty]
    lengths = tuple_lengths(function)
    if lengths and all(not len(certain) <= number <= len(candidates) for number in lengths):
        raise DefinitionError(count_message(name, rule, max(lengths), candidates))


def _habit(kind: RuleKind, first: Sequence[str], unknown: str) -> str:
    """Say what replaces the usual first arguments of other systems' rules."""
    if kind in ("vjp", "jvp") and first[0] == "ctx":
        return f" There is no ctx: {MEANING[LEADING[kind][0]]} comes first, and what is needed is asked for by name."
    if kind == "vjp" and unknown == "g":
        return " The cotangent comes first, and what .fwd kept is asked for as residuals."
    return ""


def _holds_gradients(default: Any) -> bool:
    """Tell whether a default is a tensor, or holds some that can have a gradient."""
    tensors = trees.tensors_in(default)
    return isinstance(default, Tensor) or any(t.is_floating_point() or t.is_complex() for t in tensors)


def _is_numpy_array(annotation: Any) -> bool:
    numpy = sys.modules.get("numpy")  # an annotation cannot speak of it unless it was imported
    return numpy is not None and isinstance(annotation, type) and issubclass(annotation, numpy.ndarray)


def _reserved_meaning(name: str) -> str:
    return {"out": "the output", "needs": "which arguments need a gradient", "residuals": "what .fwd kept"}[name]
