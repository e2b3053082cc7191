"""Subjects: whatever can be checked, seen through one interface.

A subject knows the names of its parameters, binds a sample to them, and calls the user's code. It never changes it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.checking.samples import Sample, describe_value
from gradwright.checking.source_lines import source_lines
from gradwright.errors import SampleError, SubjectTypeError
from gradwright.typing import has_custom_gradient

Kind: TypeAlias = Literal["Function", "custom gradient", "callable", "custom op", "module"]
Origin: TypeAlias = Literal["positional", "keyword", "parameter", "buffer"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of the subject's forward, without ``ctx``."""

    name: str
    annotation: Any = inspect.Parameter.empty
    default: Any = inspect.Parameter.empty
    kind: Literal["positional", "variadic", "keyword"] = "positional"

    @property
    def required(self) -> bool:
        """True when a call without this argument is refused."""
        return self.default is inspect.Parameter.empty and self.kind != "variadic"


@dataclass(frozen=True)
class Argument:
    """One argument of one call: its name, its value, and how it is passed."""

    name: str
    value: Any
    origin: Origin = "positional"


def describe_arguments(arguments: Sequence[Argument]) -> str:
    """Return what one call was given, without buffers, for example ``x: float64 (3, 4), k=2``."""
    parts = []
    for argument in arguments:
        if argument.origin == "buffer":
            continue
        text = describe_value(argument.value)
        joint = ": " if isinstance(argument.value, Tensor) else "="
        parts.append(f"{argument.name}{joint}{text}")
    return ", ".join(parts)


@dataclass(frozen=True)
class Subject:
    """Something that can be checked.

    ``target`` is the user's object; ``parameters`` are those of its forward; ``call`` runs it on bound arguments.
    """

    name: str
    kind: Kind
    target: Any
    parameters: tuple[Parameter, ...] | None
    """None when the signature cannot be read (some built-in functions)."""
    file: str | None = None
    line: int | None = None
    rule: str = ""
    """Where the rule of a custom gradient is, for example ``exp_vjp in line 7``."""

    @property
    def elements(self) -> int:
        """The number of elements of its parameters and buffers, when it is a module."""
        if not isinstance(self.target, torch.nn.Module):
            return 0
        return sum(t.numel() for t in [*self.target.parameters(), *self.target.buffers()])

    @property
    def function(self) -> type[Function] | None:
        """The Function class, if the subject is one."""
        return self.target if self.kind == "Function" else None

    @property
    def hand_written(self) -> bool:
        """True when the subject itself is a hand-written gradient, and not code that may use some."""
        return self.kind in ("Function", "custom gradient", "custom op")

    @property
    def surrogate(self) -> Callable[..., Any] | None:
        """The function whose derivative the subject itself declares to be using, if it does.

        A module declares it by an attribute ``__surrogate__``, which takes its parameters by name.
        """
        declared: Callable[..., Any] | None = None
        if self.kind == "module":
            declared = getattr(self.target, "__surrogate__", None)
        elif (definition := _definition(self.target)) is not None:
            declared = definition.surrogate
            if declared is not None and isinstance(self.target, functools.partial):
                declared = functools.partial(declared, *self.target.args, **self.target.keywords)
        return declared

    @property
    def declared_linear(self) -> bool:
        """False when the subject declares that its rule is not linear in the cotangent, as one that clips it."""
        definition = _definition(self.target)
        return definition is None or bool(definition.declared_linear)

    @property
    def accuracy(self) -> float:
        """The relative error that its gradient may have by the way it is computed, as the subject declares it."""
        definition = _definition(self.target)
        return 0.0 if definition is None else float(definition.accuracy)

    def in_own_words(self, text: str) -> str:
        """Put what the rule of a custom gradient calls the cotangent in the place of PyTorch's word for it."""
        name = self.target.__custom_gradient__.cotangent
        # In code there must be a name.
        text = text if name else re.sub(r"`[^`]*`", lambda code: code[0].replace("grad_output", "g"), text)
        return re.sub(r"\bgrad_output\b", name or "the cotangent", text)

    @property
    def signature(self) -> str:
        """The parameter names as they are shown in messages, for example ``(x, k)``."""
        if self.parameters is None:
            return "(...)"
        stars = {"variadic": "*", "positional": "", "keyword": ""}
        return f"({', '.join(stars[p.kind] + p.name for p in self.parameters)})"

    def bind(self, sample: Sample) -> list[Argument]:
        """Match a sample with the parameters and return the arguments of the call, in order.

        Raises:
            SampleError: the sample does not fit the parameters.
        """
        positional, keyword = list(sample.args), dict(sample.kwargs)
        if self.parameters is not None:
            self._refuse_misfit(positional, keyword)
            if self.kind == "Function":
                positional, keyword = self._keywords_to_positions(positional, keyword)
        arguments = [Argument(self.position_name(i), value) for i, value in enumerate(positional)]
        arguments += [Argument(name, value, "keyword") for name, value in keyword.items()]
        if self.kind == "module":
            arguments += _module_state(self.target)
        return arguments

    def call(self, arguments: Sequence[Argument], function: type[Function] | None = None) -> Any:
        """Run the subject; ``function`` stands in for the Function class when its backward is being watched."""
        positional = [a.value for a in arguments if a.origin == "positional"]
        keyword = {a.name: a.value for a in arguments if a.origin == "keyword"}
        if self.kind == "Function":
            return (function or self.target).apply(*positional, **keyword)
        if self.kind == "module":
            state = {a.name: a.value for a in arguments if a.origin in ("parameter", "buffer")}
            places = torch_compat.module_places(self.target)
            return torch_compat.call_module(self.target, places, state, positional, keyword)
        return self.target(*positional, **keyword)

    def position_name(self, position: int) -> str:
        """Return the name of the ``position``-th positional argument, for example ``x`` or ``xs[2]``."""
        if self.parameters is None:
            return f"input{position}"
        places = [p for p in self.parameters if p.kind != "keyword"]
        if position < len(places) and places[position].kind == "positional":
            return places[position].name
        variadic = places[-1]
        return f"{variadic.name}[{position - len(places) + 1}]"

    def _refuse_misfit(self, positional: list[Any], keyword: Mapping[str, Any]) -> None:
        assert self.parameters is not None
        kinds = {
            "positional": inspect.Parameter.POSITIONAL_OR_KEYWORD,
            "variadic": inspect.Parameter.VAR_POSITIONAL,
            "keyword": inspect.Parameter.KEYWORD_ONLY,
        }
        signature = inspect.Signature(
            [inspect.Parameter(p.name, kinds[p.kind], default=p.default) for p in self.parameters]
        )
        try:
            signature.bind(*positional, **keyword)
        except TypeError as error:
            given = ", ".join(["..."] * len(positional) + [f"{name}=..." for name in keyword])
            raise SampleError(
                f"{self.name}: the sample has the arguments ({given}), but forward takes {self.signature}: {error}; "
                "expected one value for each parameter without a default; change the sample."
            ) from None

    def _keywords_to_positions(
        self, positional: list[Any], keyword: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Pass keyword arguments by position, as ``apply`` needs before torch 2.13, filling in skipped defaults."""
        assert self.parameters is not None
        places = [p for p in self.parameters if p.kind == "positional"]
        last = max((i for i, p in enumerate(places) if p.name in keyword), default=-1)
        for parameter in places[len(positional) : last + 1]:
            positional.append(keyword.pop(parameter.name, parameter.default))
        return positional, keyword


def as_subject(target: Any, name: str | None = None) -> Subject:
    """Turn a Function class, its ``apply``, a decorated function, a custom op, a module or any callable into a subject.

    Raises:
        SubjectTypeError: ``target`` is none of these.
    """
    function = _function_class(target)
    if function is not None:
        return _function_subject(function, name)
    if torch_compat.is_operator(target):
        return _operator_subject(target, name)
    if isinstance(target, torch.nn.Module):
        # One that gradwright made of the user's own is named for those.
        definition = _definition(target)
        own = target if definition is None else definition.source
        file, line = _location(type(own) if isinstance(own, torch.nn.Module) else own)
        parameters = _parameters(getattr(target, "__wrapped__", target.forward))
        return Subject(name or _callable_name(own), "module", target, parameters, file, line)
    if isinstance(target, type) and issubclass(target, torch.nn.Module):
        raise SubjectTypeError(
            f"{target.__name__}: this is a module class; expected an instance; "
            f"write gradwright.check({target.__name__}(...), ...)."
        )
    if isinstance(target, Function):
        raise SubjectTypeError(
            f"{type(target).__name__}: this is an instance of a Function; expected the class, whose methods are "
            f"static; write gradwright.check({type(target).__name__}, ...)."
        )
    if callable(target) and not isinstance(target, (type, torch.Tensor)):
        kind: Kind = "custom gradient" if has_custom_gradient(target) else "callable"
        file, line = _location(target.__custom_gradient__.source if has_custom_gradient(target) else target)
        return Subject(
            name or _callable_name(target), kind, target, _parameters(target), file, line, _rule(target, file)
        )
    raise SubjectTypeError(
        f"check: cannot check an object of type {type(target).__name__}; expected a torch.autograd.Function class, its "
        "apply, a custom op, an nn.Module or a callable of tensors."
    )


def _function_class(target: Any) -> type[Function] | None:
    if isinstance(target, type) and issubclass(target, Function):
        return target
    owner = getattr(target, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, Function) and getattr(target, "__name__", "") == "apply":
        return owner
    return None


def _function_subject(function: type[Function], name: str | None) -> Subject:
    parameters = _parameters(function.forward)
    if parameters is not None and not torch_compat.has_setup_context(function):
        parameters = parameters[1:] if parameters and parameters[0].kind == "positional" else parameters  # ctx
    file, line = _location(function)
    return Subject(name or function.__name__, "Function", function, parameters, file, line)


def _operator_subject(operator: Any, name: str | None) -> Subject:
    schema = torch_compat.operator_schema(operator)
    parameters = tuple(
        Parameter(
            argument.name,
            default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
            kind="keyword" if argument.kwarg_only else "positional",
        )
        for argument in schema.arguments
    )
    file, line = _location(torch_compat.operator_source(operator))
    return Subject(name or torch_compat.operator_name(operator), "custom op", operator, parameters, file, line)


def _parameters(function: Callable[..., Any]) -> tuple[Parameter, ...] | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    # Annotations written as text are resolved where possible; a name that does not resolve stays text.
    try:
        hints = inspect.get_annotations(inspect.unwrap(function), eval_str=True)
    except Exception:
        hints = {}
    kinds: dict[Any, Literal["positional", "variadic", "keyword"]] = {
        inspect.Parameter.POSITIONAL_ONLY: "positional",
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
        inspect.Parameter.VAR_POSITIONAL: "variadic",
        inspect.Parameter.KEYWORD_ONLY: "keyword",
    }
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()):
        return None
    return tuple(
        Parameter(p.name, hints.get(p.name, p.annotation), p.default, kinds[p.kind])
        for p in signature.parameters.values()
    )


def _module_state(module: torch.nn.Module) -> list[Argument]:
    state = [Argument(name, value.detach(), "parameter") for name, value in module.named_parameters()]
    # A frozen parameter is a constant of the check, like a buffer.
    frozen = {name for name, value in module.named_parameters() if not value.requires_grad}
    state = [Argument(a.name, a.value, "buffer" if a.name in frozen else "parameter") for a in state]
    return state + [Argument(name, value, "buffer") for name, value in module.named_buffers()]


def _definition(target: Any) -> Any:
    """Return what a function with a custom gradient declares, also one that ``functools.partial`` gave options."""
    function: Any = target.func if isinstance(target, functools.partial) else target
    return function.__custom_gradient__ if has_custom_gradient(function) else None


def _callable_name(target: Any) -> str:
    while isinstance(target, functools.partial):
        target = target.func
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or type(target).__name__
    return str(name).rpartition("<locals>.")[2]


def _location(target: Any) -> tuple[str | None, int | None]:
    while isinstance(target, functools.partial):
        target = target.func
    try:
        found = source_lines(inspect.unwrap(target))
    except ValueError:  # wraps itself
        return None, None
    if found is None:
        return None, None
    heads = (i for i, line in enumerate(found.lines) if re.match(r"\s*(async\s+def|def|class)\b", line))
    return found.file, found.first + next(heads, 0)  # below its decorators


def _rule(target: Any, file: str | None) -> str:
    """Say where the rule of a custom gradient is, beside ``file``."""
    gradient = target.__custom_gradient__.gradient if has_custom_gradient(target) else None
    own, line = (None, None) if gradient is None else _location(gradient)
    if own is None:
        return ""
    name = getattr(gradient, "__name__", "its rule")
    return f"{name} in line {line}" if own == file else f"{name} in {own}:{line}"
