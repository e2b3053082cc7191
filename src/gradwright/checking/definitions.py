"""What a module defines: hand-written gradients, classes of modules, and anything by its dotted name."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from torch import nn
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.typing import has_custom_gradient


def defined(module: ModuleType) -> list[tuple[str, Any]]:
    """Return the hand-written gradients defined in a module, also nested in its classes, with their names."""
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()

    def walk(namespace: dict[str, Any], prefix: str) -> None:
        for name, value in list(namespace.items()):
            value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if id(value) in seen:
                continue
            if isinstance(value, type) and value.__module__ == module.__name__:
                seen.add(id(value))
                local = "<locals>" in value.__qualname__
                qualname = prefix + name if local else value.__qualname__
                if issubclass(value, Function):
                    found.append((qualname, value))
                walk(vars(value), qualname + ".")  # type: ignore[arg-type]
            elif has_custom_gradient(value):
                # A routine of a library, or a program, is of no module; it is checked where it was made.
                if value.__module__ == module.__name__ or value.__module__ not in sys.modules:
                    seen.add(id(value))
                    found.append((prefix + name, value))
            elif torch_compat.is_operator(value):
                source = torch_compat.operator_source(value)
                if getattr(source, "__module__", None) == module.__name__:
                    seen.add(id(value))
                    found.append((prefix + name, value))

    walk(vars(module), "")
    return found


def module_classes(module: ModuleType) -> list[str]:
    """Return the names of the classes of ``nn.Module`` that are defined in a module."""
    return [
        name
        for name, value in list(vars(module).items())
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
    ]


def attribute(module: ModuleType, dotted: str) -> Any:
    """Return what a module has under a dotted name, which may lead through its classes; None if there is nothing."""
    value: Any = module
    for part in dotted.split("."):
        value = inspect.getattr_static(value, part, None) if isinstance(value, type) else getattr(value, part, None)
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if value is None:
            return None
    return value
