"""What torch does not say in public of its operators and custom ops."""

from __future__ import annotations

import sys
from typing import Any

import torch

CustomOpDef: Any
"""The type of what ``torch.library.custom_op`` returns; it has no public name (checked up to torch 2.13)."""
try:
    from torch._library.custom_ops import CustomOpDef
except ImportError:  # pragma: no cover - depends on the torch version
    CustomOpDef = None

OperatorTypes: tuple[type, ...]
"""The types of ``torch.ops.namespace.name`` and ``torch.ops.namespace.name.overload``."""
try:
    from torch._ops import OpOverload, OpOverloadPacket

    OperatorTypes = (OpOverload, OpOverloadPacket)
except ImportError:  # pragma: no cover - depends on the torch version
    OperatorTypes = ()


def is_operator(value: Any) -> bool:
    """Tell whether ``value`` is a custom op: the result of ``torch.library.custom_op`` or an entry of ``torch.ops``."""
    return isinstance(value, OperatorTypes) or (CustomOpDef is not None and isinstance(value, CustomOpDef))


def operator_overload(operator: Any) -> Any:
    """Return the ``torch.ops.namespace.name.overload`` of a custom op."""
    if CustomOpDef is not None and isinstance(operator, CustomOpDef):
        return operator._opoverload
    if not hasattr(operator, "_schema"):  # a packet: its first overload
        return getattr(operator, operator.overloads()[0])
    return operator


def operator_definition(operator: Any) -> Any:
    """Return what ``torch.library.custom_op`` made for an operator; the operator itself where it was not made so."""
    module = sys.modules.get("torch._library.custom_ops")
    return getattr(module, "OPDEFS", {}).get(operator_name(operator), operator)


def operator_named(name: str) -> Any:
    """Return the only overload of an operator by its ``namespace::name``."""
    namespace, _, own = name.partition("::")
    return getattr(getattr(torch.ops, namespace), own).default


def operator_schema(operator: Any) -> Any:
    """Return the schema of a custom op; its ``arguments`` have a name, a type and perhaps a default."""
    return operator_overload(operator)._schema


def operator_name(operator: Any) -> str:
    """Return ``namespace::name`` of a custom op."""
    return str(operator_schema(operator).name)


def operator_source(operator: Any) -> Any:
    """Return the Python function behind a custom op, or None when there is none."""
    return getattr(operator, "_init_fn", None)
