"""Repro scripts: about ten lines that show a finding by themselves."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from keyword import iskeyword
from pathlib import Path

import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.subject import Subject

MAX_LITERAL = 64
"""Tensors with more elements are replaced by random ones of the same shape and spread."""


def script(case: Case, body: Sequence[str]) -> str:
    """Return a script that builds the inputs of the case, runs forward as ``out``, and then runs ``body``.

    In the body the inputs have their parameter names and ``out`` is what the subject returned.
    """
    _, lines = _arguments(case)
    load, _ = _subject(case.subject)
    return "\n".join([*load, *lines, f"out = {call(case)}", *body]) + "\n"


def argument_lines(case: Case) -> list[str]:
    """Return the lines of a script that build the inputs."""
    return _arguments(case)[1]


def call(case: Case) -> str:
    """Return the expression that calls the subject on the inputs of the script."""
    arguments, _ = _arguments(case)
    _, called = _subject(case.subject)
    return f"{called}({', '.join(arguments)})"


def cotangent_line(case: Case, name: str, values: Tensor) -> str:
    """Return a line that builds a cotangent of the first differentiable output from a real vector."""
    parts = [_literal(part) for part in case.cotangents(values)]
    return f"{name} = {parts[0]}" if case.n_outputs == 1 else f"{name} = [{', '.join(parts)}]"


def differentiable(case: Case) -> str:
    """Return the expression for the differentiable outputs within a script."""
    return "out" if case.n_outputs == 1 else listed(case)


def listed(case: Case) -> str:
    """Like :func:`differentiable`, as a list also when there is one output."""
    outputs = ["out"] if case.n_outputs == 1 else [f"out[{o.position}]" for o in case.outputs]
    return f"[{', '.join(outputs)}]"


def step(case: Case) -> str:
    """Return a step for central differences in a script, where inputs are float64 and outputs may not be."""
    coarse = any(output.dtype not in (torch.float64, torch.complex128) for output in case.outputs)
    return "1e-2" if coarse else "1e-6"


def gradient_of_sum(case: Case) -> str:
    """Return the expression for the gradients of the sum of all differentiable outputs."""
    inputs = ", ".join(variable(item.name) for item in case.inputs)
    outputs = listed(case)
    return f"torch.autograd.grad({outputs}, [{inputs}], [torch.ones_like(t) for t in {outputs}], allow_unused=True)"


def variable(name: str) -> str:
    """Turn an input's name into a Python variable name, for example ``layer.weight`` into ``layer_weight``."""
    cleaned = "".join(c if c.isalnum() else "_" for c in name).strip("_")
    return cleaned if cleaned.isidentifier() and not iskeyword(cleaned) else f"value_{cleaned}"


def _arguments(case: Case) -> tuple[list[str], list[str]]:
    wanted = {(item.argument, item.leaf) for item in case.inputs}
    texts, lines = [], []
    for number, argument in enumerate(case.arguments):
        if argument.origin in ("parameter", "buffer"):
            continue
        name = variable(argument.name)
        value = argument.value
        if isinstance(value, Tensor):
            tail = ".requires_grad_()" if (number, 0) in wanted else ""
            note = "  # stands for yours" if value.numel() > MAX_LITERAL else ""
            lines.append(f"{name} = {_literal(value)}{tail}{note}")
        elif isinstance(value, (int, float, bool, str, type(None), complex)):
            lines.append(f"{name} = {value!r}")
        else:
            lines.append(f"{name} = ...  # your {type(value).__name__}")
        texts.append(f"{argument.name}={name}" if argument.origin == "keyword" else name)
    return texts, lines


def _subject(subject: Subject) -> tuple[list[str], str]:
    """Return the lines that load the subject and the expression that calls it."""
    target = subject.target
    qualname = getattr(target, "__qualname__", "") or subject.name
    apply = ".apply" if subject.kind == "Function" else ""
    module = getattr(target, "__module__", None)
    if "<lambda>" in qualname:
        return ["import torch", "f = ...  # the lambda that was checked"], "f"
    name = variable(qualname.rpartition(".")[2])
    if subject.kind in ("custom op", "module") or "<" in qualname or not module or "<" in module:
        return ["import torch", f"# run this below the definition of {subject.name}"], variable(subject.name) + apply
    lines = _package_root(module, subject.file)
    if (
        not lines
        and subject.file is not None
        and Path(subject.file).is_file()
        and not _importable(module, subject.file)
    ):
        outer, _, inner = qualname.partition(".")
        path = os.path.relpath(subject.file)
        path = subject.file if path.startswith("..") else path
        found = f'runpy.run_path("{path}")["{outer}"]' + (f".{inner}" if inner else "")
        return ["import runpy", "import torch", f"{name} = {found}"], name + apply
    outer = qualname.partition(".")[0]
    return [*lines, "import torch", f"from {module} import {outer}"], qualname + apply


def _package_root(module: str, file: str | None) -> list[str]:
    """Return the line that puts a local package on the path; a module of one cannot be run by its own path."""
    if file is None or "." not in module or not Path(file).is_file() or _importable(module, file):
        return []
    root = Path(file).resolve().parents[module.count(".")]
    if not (root / module.partition(".")[0] / "__init__.py").is_file():
        return []
    return [f'import sys; sys.path.insert(0, "{os.path.relpath(root)}")']


def _importable(module: str, file: str) -> bool:
    """Tell whether ``import module`` in a fresh interpreter finds this very file."""
    if module == "__main__":
        return False
    try:
        top = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError, AttributeError):
        return False
    if top is None or top.origin is None:
        return False
    home = Path(top.origin).resolve()
    source = Path(file).resolve()
    installed = any(part in ("site-packages", "dist-packages") for part in source.parts)
    return installed and (home == source or home.parent in source.parents)


def _literal(tensor: Tensor) -> str:
    dtype = str(tensor.dtype)
    tensor = tensor.detach()
    if tensor.numel() <= MAX_LITERAL:
        return f"torch.tensor({_shorten(tensor.tolist())}, dtype={dtype})" + _reshape(tensor)
    shape = tuple(tensor.shape)
    if tensor.is_floating_point() or tensor.is_complex():
        return f"torch.randn({shape}, dtype={dtype})"
    return f"torch.randint({int(tensor.min())}, {int(tensor.max()) + 1}, {shape})"


def _shorten(values: object) -> str:
    text = repr(values)
    return text.replace("nan", "float('nan')").replace("inf", "float('inf')") if "n" in text else text


def _reshape(tensor: Tensor) -> str:
    # An empty list loses the shape of an empty tensor.
    return f".reshape({tuple(tensor.shape)})" if tensor.numel() == 0 else ""


__all__ = [
    "MAX_LITERAL",
    "argument_lines",
    "call",
    "cotangent_line",
    "differentiable",
    "gradient_of_sum",
    "listed",
    "script",
    "variable",
]
