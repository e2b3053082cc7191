"""Tensors that a function uses without receiving them: to autograd they are constants, and their gradient is lost.

What is looked at is the function's own text: names of closures and globals, and attributes of ``self``. Nothing is
called. Where the text is not to be had, or does not say for certain that the value matters, nothing is said; a check
sees more.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring import trees, warned
from gradwright.authoring.definition import Definition

_CONSTANTS = {
    "data",
    "detach",
    "device",
    "dim",
    "dtype",
    "get_device",
    "is_complex",
    "is_contiguous",
    "is_cuda",
    "is_floating_point",
    "is_leaf",
    "item",
    "layout",
    "names",
    "ndim",
    "ndimension",
    "nelement",
    "new_empty",
    "new_full",
    "new_ones",
    "new_tensor",
    "new_zeros",
    "numel",
    "numpy",
    "requires_grad",
    "shape",
    "size",
    "stride",
    "tolist",
    "type",
}
"""Attributes and methods of a tensor through which no gradient flows."""
_INDIFFERENT = {
    "empty_like",
    "expand_as",
    "full_like",
    "hasattr",
    "id",
    "isinstance",
    "is_tensor",
    "len",
    "numel",
    "ones_like",
    "print",
    "rand_like",
    "randn_like",
    "repr",
    "reshape_as",
    "to",
    "type",
    "type_as",
    "view_as",
    "zeros_like",
}
"""Functions whose result has no gradient towards their arguments."""


def warn_of_captured(definition: Definition, values: Sequence[Any]) -> None:
    """Warn of tensors and modules that require grad and that the function reaches beside its arguments."""
    passed: list[Tensor] = []
    for argument, value in zip(definition.arguments, values):
        if argument.name != "self":
            trees.flatten(value, passed)
    owner = values[0] if definition.arguments[0].name == "self" else None
    found: dict[str, str] = {}
    for function in (definition.function, *[r.function for kind, r in definition.rules.items() if kind == "fwd"]):
        reached = _reached(function, owner)
        roots = {name: value for name, value in reached if name == "self" or _trained(value, passed)}
        node = _text_of(function) if roots else None
        if node is not None:
            found.update(_used(node, roots, passed))
    if found:
        warned.warn(
            f"{definition.name}: it uses {', '.join(found.values())} without receiving it as an argument, so that no "
            "gradient arrives there; expected everything that is trained among the arguments; pass it and return its "
            f"gradient from the rule, or use `{next(iter(found))}.detach()`, or `requires_grad_(False)` on a module, "
            "if it is meant as a constant."
        )


def captured_names(function: Any, moves: Callable[[Tensor], bool]) -> list[str]:
    """Return what a function reaches beside its arguments where tensors move, under the names that it has there."""
    found: dict[str, None] = {}
    pending, looked = [function], set()
    while pending:
        function = pending.pop()
        if id(function) in looked:
            continue
        looked.add(id(function))
        if isinstance(function, functools.partial):
            given = {**{f"argument {i} of partial": v for i, v in enumerate(function.args)}, **function.keywords}
            found.update(dict.fromkeys(name for name, value in given.items() if _moved(value, moves)))
            pending.append(function.func)
            continue
        function = function.forward if isinstance(function, torch.nn.Module) else function
        owner = getattr(function, "__self__", None)
        function = getattr(function, "__func__", function)
        for name, value in _reached(function, owner):
            if isinstance(value, (FunctionType, MethodType, functools.partial)):
                pending.append(value)
            elif name != "self" and _moved(value, moves):
                found[name] = None
            else:
                kept = {f"{name}.{key}": part for key, part in getattr(value, "__dict__", {}).items()}
                used = (key for key in kept if key.rpartition(".")[2] in function.__code__.co_names)
                found.update(dict.fromkeys(key for key in used if _moved(kept[key], moves)))
    return list(found)


def _moved(value: Any, moves: Callable[[Tensor], bool]) -> bool:
    """Tell whether a tensor in a value moves; of a module, one of its parameters."""
    parts = list(value.parameters()) if isinstance(value, torch.nn.Module) else trees.tensors_in(value)
    return any(moves(tensor) for tensor in parts)


def _reached(function: Any, owner: Any) -> Iterator[tuple[str, Any]]:
    """Give names and values of closures and globals that a function reads, and ``self``."""
    if not isinstance(function, FunctionType):
        return
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # not set yet
            yield name, cell.cell_contents
    for name in _global_names(code):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    if owner is not None:
        yield "self", owner


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _trained(value: Any, passed: Sequence[Tensor]) -> bool:
    """Tell whether something in a value requires grad and is not passed as an argument as well."""
    if isinstance(value, Tensor):
        return value.requires_grad and not any(value is tensor for tensor in passed)
    if isinstance(value, torch.nn.Module):
        return any(_trained(parameter, passed) for parameter in value.parameters())
    return False


def _text_of(function: Any) -> ast.FunctionDef | ast.Lambda | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    if function.__code__.co_name != "<lambda>":
        return tree.body[0] if isinstance(tree.body[0], ast.FunctionDef) else None
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    fitting = [node for node in lambdas if tuple(a.arg for a in node.args.args) == names]
    return fitting[0] if len(fitting) == 1 else None


def _used(
    function: ast.FunctionDef | ast.Lambda, roots: dict[str, Any], passed: Sequence[Tensor]
) -> Iterator[tuple[str, str]]:
    """Give expression and description of everything trained that is used where a gradient would flow."""
    body = ast.Module(function.body if isinstance(function, ast.FunctionDef) else [ast.Expr(function.body)], [])
    above = {child: node for node in ast.walk(body) for child in ast.iter_child_nodes(node)}
    bound = {node.arg for node in ast.walk(body) if isinstance(node, ast.arg)}
    bound |= {n.id for n in ast.walk(body) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    for name in ast.walk(body):
        if not isinstance(name, ast.Name) or name.id not in roots.keys() - bound:
            continue
        node: ast.expr = name
        value, parent = roots[name.id], above[name]
        while isinstance(parent, ast.Attribute) and not isinstance(value, Tensor):
            if isinstance(value, torch.nn.Module) and parent.attr == "forward":
                break
            value, node, parent = _attribute(value, parent.attr), parent, above[parent]
        if not _trained(value, passed) or _without_gradient(node, above):
            continue
        text = ast.unparse(node)
        if isinstance(value, Tensor):
            yield text, f"`{text}`, which requires grad,"
        elif isinstance(_call_of(node, above), ast.Call):
            yield text, f"the module `{text}`, whose parameters require grad,"


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute without running code of the user, or None where that is not possible."""
    if isinstance(value, torch.nn.Module):
        for named in (value.named_parameters(recurse=False), value.named_children()):
            for own, part in named:
                if own == name:
                    return part
    kept = getattr(value, "__dict__", {})
    return kept.get(name, inspect.getattr_static(type(value), name, None))


def _call_of(node: ast.expr, above: dict[ast.AST, ast.AST]) -> ast.AST | None:
    """Return what calls ``node`` or its ``forward``."""
    parent = above[node]
    if isinstance(parent, ast.Attribute):
        node, parent = parent, above[parent]
    return parent if isinstance(parent, ast.Call) and parent.func is node else None


def _without_gradient(node: ast.expr, above: dict[ast.AST, ast.AST]) -> bool:
    """Tell whether an expression is used where no gradient would flow, or where that cannot be told."""
    parent = above[node]
    if isinstance(parent, ast.Attribute) and parent.attr in _CONSTANTS:
        return True
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
        return True  # under another name, which may be read as a constant
    if isinstance(parent, ast.Compare):
        return True
    if isinstance(parent, ast.Call) and node in parent.args and _last_name(parent.func) in _INDIFFERENT:
        return True
    while parent in above:
        if isinstance(parent, ast.With) and any(
            word in ast.unparse(item.context_expr) for item in parent.items for word in ("no_grad", "inference_mode")
        ):
            return True
        parent = above[parent]
    return False


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
