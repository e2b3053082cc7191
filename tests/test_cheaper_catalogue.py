"""What every entry of ``gw.fused`` promises beside true gradients: what it keeps, any layout, gradients one by one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.authoring.catalogue import entries
from gradwright.authoring.cheaper import CheaperEntry
from gradwright.authoring.exact import Point
from tests.footprint import kept_bytes
from tests.measured import points
from tests.truth import leaves_of, with_leaves

ENTRIES = [e for e in entries(gw.fused) if isinstance(e, CheaperEntry)]
EACH = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def call(entry: CheaperEntry, point: Point) -> tuple[tuple[Any, ...], dict[str, Any], list[Tensor]]:
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves_of(entry, point).items()}
    args, kwargs = with_leaves(entry, point, leaves)
    return args, kwargs, list(leaves.values())


@EACH
def test_no_more_is_kept_than_is_declared(entry: CheaperEntry) -> None:
    """Neither as saved tensors nor on the ctx, in its containers or in closures."""
    for dtype in entry.bars:
        for point in points(entry, dtype):
            args, kwargs, _ = call(entry, point)
            found = kept_bytes(
                lambda args=args, kwargs=kwargs: entry.function(*args, **kwargs), [*args, *kwargs.values()]
            )
            assert found <= entry.kept(*args, **kwargs), f"{entry.name} ({point.note}, {dtype})"


@EACH
def test_values_do_not_depend_on_whether_there_is_a_gradient(entry: CheaperEntry) -> None:
    """Under ``no_grad``, and where no argument requires one, they are the same, and have no graph."""
    for point in points(entry, torch.float64):
        args, kwargs, _ = call(entry, point)
        want = entry.seen(entry.function)(*args, **kwargs)
        with torch.no_grad():
            found = [entry.seen(entry.function)(*args, **kwargs)]
        frozen = {name: leaf.detach() for name, leaf in leaves_of(entry, point).items()}
        args, kwargs = with_leaves(entry, point, frozen)
        found.append(entry.seen(entry.function)(*args, **kwargs))
        for out in found:
            assert not out.requires_grad
            torch.testing.assert_close(out, want.detach(), rtol=1e-12, atol=1e-14, equal_nan=True)


@EACH
def test_a_second_backward_is_the_first(entry: CheaperEntry) -> None:
    """What one backward takes or writes over, a second one does not miss; twice the cotangent is twice the gradient."""
    for point in points(entry, torch.float64):
        args, kwargs, leaves = call(entry, point)
        out = entry.seen(entry.function)(*args, **kwargs)
        g = torch.ones_like(out)
        first = torch.autograd.grad(out, leaves, g, retain_graph=True, materialize_grads=True)
        again = torch.autograd.grad(out, leaves, 2 * g, materialize_grads=True)
        for one, two in zip(first, again):
            torch.testing.assert_close(2 * one, two, rtol=1e-12, atol=0.0, equal_nan=True)


@EACH
def test_layouts_do_not_matter(entry: CheaperEntry) -> None:
    """Arguments and cotangent may have any strides, and are left as they are."""
    for point in points(entry, torch.float64):
        args, kwargs, leaves = call(entry, point)
        out = entry.seen(entry.function)(*args, **kwargs)
        g = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).reshape(out.shape)
        want = torch.autograd.grad(out, leaves, g, materialize_grads=True)
        strided = {n: _strided(leaf.detach()).requires_grad_() for n, leaf in leaves_of(entry, point).items()}
        before = {n: leaf.detach().clone() for n, leaf in strided.items()}
        args, kwargs = with_leaves(entry, point, strided)
        other = entry.seen(entry.function)(*args, **kwargs)
        torch.testing.assert_close(other, out, rtol=1e-12, atol=1e-14, equal_nan=True)
        grads = torch.autograd.grad(other, list(strided.values()), _strided(g), materialize_grads=True)
        for got, true in zip(grads, want):
            size = float(true.abs().nan_to_num(0.0, 0.0, 0.0).max()) if true.numel() else 0.0
            torch.testing.assert_close(got, true, rtol=1e-12, atol=1e-12 * size, equal_nan=True)
        for n, leaf in strided.items():
            assert torch.equal(leaf.detach(), before[n]) or leaf.isnan().any(), f"{entry.name} edited {n}"


def _strided(x: Tensor) -> Tensor:
    """Return the same numbers with gaps between them."""
    wide = torch.zeros(*x.shape, 3, dtype=x.dtype)
    wide[..., 1] = x
    return wide[..., 1]


@EACH
def test_each_argument_alone_can_require_a_gradient(entry: CheaperEntry) -> None:
    for point in points(entry, torch.float64):
        args, kwargs, leaves = call(entry, point)
        out = entry.seen(entry.function)(*args, **kwargs)
        g = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).reshape(out.shape)
        want = torch.autograd.grad(out, leaves, g, materialize_grads=True)
        for name, true in zip(leaves_of(entry, point), want):
            alone = {n: leaf.detach().clone() for n, leaf in leaves_of(entry, point).items()}
            leaf = alone[name].requires_grad_()
            args, kwargs = with_leaves(entry, point, alone)
            (got,) = torch.autograd.grad(entry.seen(entry.function)(*args, **kwargs), leaf, g, materialize_grads=True)
            size = float(true.abs().nan_to_num(0.0, 0.0, 0.0).max()) if true.numel() else 0.0
            torch.testing.assert_close(got, true, rtol=1e-12, atol=1e-12 * size, equal_nan=True)


@EACH
def test_there_is_a_call_to_measure_and_a_goal(entry: CheaperEntry) -> None:
    assert entry.replaces is not None
    assert entry.ordinary is not None
    with torch.device("meta"):  # without the numbers, of which there are many
        args = entry.ordinary()
    inspect.signature(entry.function).bind(*args, **entry.options)
    if inspect.isfunction(entry.replaces):  # a kernel of PyTorch has no signature to ask for
        inspect.signature(entry.replaces).bind(*args, **entry.options)
    assert any(part is not None for part in (entry.goal.time, entry.goal.peak, entry.goal.kept))


@EACH
@pytest.mark.filterwarnings("ignore")
def test_torch_compile_traces_it_whole(entry: CheaperEntry) -> None:
    """Without a break, the rule included; what the compiler makes of it is a slow test of all true gradients."""
    args, kwargs, leaves = call(entry, points(entry, torch.float64)[0])
    torch.compiler.reset()
    traced = torch.compile(entry.seen(entry.function), fullgraph=True, dynamic=False, backend="eager")
    out, want = traced(*args, **kwargs), entry.seen(entry.function)(*args, **kwargs)
    torch.testing.assert_close(out, want)
    g = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).reshape(out.shape)
    for got, true in zip(torch.autograd.grad(out, leaves, g), torch.autograd.grad(want, leaves, g)):
        torch.testing.assert_close(got, true)
