"""PyTorch's own operators on PyTorch's own sample inputs, as subjects that must not be accused.

The list of operators is private to PyTorch's tests; it is used here only, and only by the slow suite.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
import types
import unittest
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

MAX_ELEMENTS = 400
"""Samples with more elements are left out, for time."""
MAX_DRAWN = 60
"""So many of an operator's samples are looked at."""


@dataclass(frozen=True)
class OperatorSample:
    """One operator on one of its samples, as a callable and its arguments."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def operators() -> dict[str, Any]:
    """Return every differentiable operator of PyTorch's tests that takes float64 on the CPU, by name."""
    with without_expecttest():
        from torch.testing._internal.common_methods_invocations import op_db

    return {
        op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op
        for op in op_db
        if op.supports_autograd and torch.float64 in op.supported_backward_dtypes(torch.device("cpu"))
    }


@contextlib.contextmanager
def without_expecttest() -> Iterator[None]:
    """Let PyTorch's test modules be imported where `expecttest`, which the list does not use, is not installed."""
    if importlib.util.find_spec("expecttest") is not None:
        yield
        return
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stand_in
    try:
        yield
    finally:
        del sys.modules["expecttest"]


def samples(name: str, op: Any, count: int = 3) -> list[OperatorSample]:
    """Return a few small samples of an operator, spread over its list: the first, the last and some between."""
    torch.manual_seed(zlib.crc32(name.encode()))
    drawn = itertools.islice(op.sample_inputs("cpu", torch.float64, requires_grad=True), MAX_DRAWN)
    small = [sample for sample in drawn if _differentiable_elements(sample) in range(1, MAX_ELEMENTS + 1)]
    picked = sorted({round(i * (len(small) - 1) / max(count - 1, 1)) for i in range(count)}) if small else []
    return [_one(f"{name}[{i}]", op, small[i]) for i in picked]


def _one(name: str, op: Any, sample: Any) -> OperatorSample:
    def function(*args: Any, **kwargs: Any) -> Any:
        # Outputs that are only defined up to a sign or a rotation are made definite as PyTorch's own tests do it.
        return sample.output_process_fn_grad(op.gradcheck_wrapper(op.get_op(), *args, **kwargs))

    function.__name__ = op.name.replace(".", "_")
    return OperatorSample(name, function, (sample.input, *sample.args), dict(sample.kwargs))


def _differentiable_elements(sample: Any) -> int:
    return sum(t.numel() for t in _tensors((sample.input, sample.args, sample.kwargs)) if t.requires_grad)


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, Tensor))
