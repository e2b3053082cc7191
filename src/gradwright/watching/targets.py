"""What a Function class stands for: itself, a decorated function, an operator, or something that is not watched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gradwright import torch_compat
from gradwright.checking.subject import as_subject
from gradwright.typing import has_custom_gradient
from gradwright.watching.calls import FunctionKey


class Kind(Enum):
    """What is done with a call."""

    USER = "watched"
    TRANSFORMED = "counted: a transform of torch.func is around it"
    COMPILED = "made by torch.compile"


@dataclass(frozen=True)
class Given:
    """What a call gave, in the user's terms: what was called, and its arguments."""

    subject: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Target:
    """What a class stands for."""

    kind: Kind
    module: str
    qualname: str
    operator: Any = None
    """The operator, where the class was made for one."""

    @property
    def key(self) -> tuple[str, str]:
        """Tell it from others: several classes may come from one place in the source."""
        return self.module, self.qualname

    @property
    def name(self) -> str:
        """How it is called in reports."""
        return short_name(self.qualname)

    def arguments(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Given:
        """Return what the user called, and with what, when a class was applied to some arguments."""
        if self.operator is not None:
            *given, metadata = args
            return Given(self.operator, tuple(given), dict(metadata.keyword_only_args))
        definition = vars(function).get("gw_definition")
        if definition is not None:
            positional, keyword = vars(function)["gw_values"](definition, args)
            return Given(definition.made, tuple(positional), keyword)
        return Given(function, args, kwargs)


def short_name(qualname: str) -> str:
    """Return a qualified name without the function that a class was made in."""
    return qualname.rpartition("<locals>.")[2]


def target_of(function: type) -> Target | None:
    """Return what a class stands for; None for one of PyTorch's or of gradwright's own."""
    inner = torch_compat.generated_for(function)
    if isinstance(inner, type):
        found = target_of(inner)
        return None if found is None else Target(Kind.TRANSFORMED, found.module, found.qualname)
    if inner is not None and torch_compat.is_operator(inner):
        return _operator(inner)
    home = module_of(function)
    if _is_of("torch", home):
        return Target(Kind.COMPILED, "", "") if "CompiledFunction" in function.__qualname__ else None
    definition = vars(function).get("gw_definition")
    if definition is not None:
        source = definition.source
        module = str(getattr(source, "__module__", None) or definition.module)
        name = str(getattr(source, "__qualname__", None) or definition.name)
        return None if definition.made is None or _is_of("gradwright", module) else Target(Kind.USER, module, name)
    if _is_of("gradwright", home):
        return None
    return Target(Kind.USER, home, function.__qualname__)


def module_of(function: type) -> str:
    """Return the name of the module that says it defines a class; empty where none does, which a program can do."""
    name: Any = function.__module__
    return name if isinstance(name, str) else ""


def function_key(target: Target, subject: Any) -> FunctionKey:
    """Return by what a store knows something that was called."""
    known = as_subject(subject)
    name = known.name if known.kind == "custom op" else target.name
    file = known.file if known.file is None or known.file.startswith("<") else str(Path(known.file).resolve())
    return FunctionKey(target.module, target.qualname, name, file, known.line)


def _operator(overload: Any) -> Target | None:
    definition = torch_compat.operator_definition(overload)
    source = torch_compat.operator_source(definition)
    namespace, _, name = torch_compat.operator_name(overload).partition("::")
    module = str(getattr(source, "__module__", namespace))
    if _is_of("torch", module) or _is_of("gradwright", module):
        return None
    return Target(Kind.USER, module, str(getattr(source, "__qualname__", name)), definition)


def _is_of(package: str, module: str) -> bool:
    return module == package or module.startswith(package + ".")


def key_of(target: Any) -> tuple[str, str] | None:
    """Return the module and the qualified name by which the calls of what is checked are known, if they can be."""
    if isinstance(target, type):
        found = target_of(target)
        return None if found is None else found.key
    source = target.__custom_gradient__.source if has_custom_gradient(target) else torch_compat.operator_source(target)
    module, name = getattr(source, "__module__", None), getattr(source, "__qualname__", None)
    return None if module is None or name is None else (str(module), str(name))
