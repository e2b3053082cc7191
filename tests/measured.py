"""How far an entry with a true gradient is from the truth, at one point, by quantity."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.exact import ExactEntry, Measure, Point, TrueEntry
from tests.truth import Truth, arguments_of, leaves_of, truth, with_leaves


@dataclass(frozen=True)
class Error:
    """The worst of the elements of one quantity."""

    quantity: str
    """``value``, ``first``, ``forward`` or ``second``, and the name of the argument."""
    error: float
    """Relative; infinite where it is nan or infinite and the truth is not."""
    bar: float
    got: float
    want: float

    @property
    def within(self) -> bool:
        """Whether it is as good as the entry promises."""
        return self.error <= self.bar

    def __str__(self) -> str:
        return f"{self.quantity} is {self.got!r}, the truth {self.want!r}: off by {self.error:.2g}, bar {self.bar:.2g}"


def points(entry: TrueEntry, dtype: torch.dtype) -> list[Point]:
    """Return the examples of an entry as points."""
    return [e if isinstance(e, Point) else Point(e.args, e.kwargs, e.note) for e in entry.examples(dtype)]


def cotangents(entry: TrueEntry, point: Point, dtype: torch.dtype) -> tuple[Tensor | None, dict[str, Tensor] | None]:
    """Return a cotangent and directions that every dtype holds exactly; None for ones, with elementwise functions.

    With ones, what is compared is the derivative itself, which a factor would push out of the range of the dtype.
    """
    if entry.elementwise:
        return None, None
    args, kwargs = with_leaves(entry, point, {})
    with torch.no_grad():
        out = entry.subject(*args, **kwargs)
    return _signed(out), {name: _signed(leaf) for name, leaf in leaves_of(entry, point).items()}


def _signed(like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(like.numel())
    eighths = torch.randint(1, 9, (*like.shape, 2), generator=generator, dtype=torch.float64) / 8
    eighths *= torch.randint(0, 2, eighths.shape, generator=generator) * 2 - 1
    return torch.view_as_complex(eighths).to(like.dtype) if like.is_complex() else eighths[..., 0].to(like.dtype)


@functools.cache
def known(entry: TrueEntry, number: int, dtype: torch.dtype, orders: int) -> Truth:
    """Return the truth at an example of an entry, found once."""
    point = points(entry, dtype)[number]
    g, v = cotangents(entry, point, dtype)
    if isinstance(entry, ExactEntry):
        return truth(entry, point, g, v, min(orders, point.orders))
    assert g is not None
    assert v is not None
    return replaced(entry, point, g, v, min(orders, point.orders))


def replaced(entry: TrueEntry, point: Point, g: Tensor, v: Mapping[str, Tensor], orders: int) -> Truth:
    """Return what an entry replaces, in float64 and differentiated by PyTorch, and what the point says of the truth."""
    assert entry.replaces is not None
    constants = {
        name: x for name, x in arguments_of(entry, point).items() if isinstance(x, Tensor) and x.is_floating_point()
    }
    wide = {name: x.detach().double() for name, x in constants.items()}
    leaves = {name: wide[name].requires_grad_() for name in leaves_of(entry, point)}
    args, kwargs = with_leaves(entry, point, wide)
    out = entry.seen(entry.replaces)(*args, **kwargs)
    first: dict[str, Tensor] = {}
    second: dict[str, Tensor] = {}
    if orders:
        many = list(leaves.values())
        grads = torch.autograd.grad(out, many, g.double(), create_graph=orders > 1, materialize_grads=True)
        first = dict(zip(leaves, grads))
        total: Any = sum((v[name].double() * grad).sum() for name, grad in first.items())
        if orders > 1 and total.requires_grad:
            second = dict(zip(leaves, torch.autograd.grad(total, many, materialize_grads=True)))
        elif orders > 1:
            second = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}

    def said(values: Mapping[str, Tensor], given: Mapping[str, Any]) -> dict[str, Tensor]:
        known = {name: torch.as_tensor(x, dtype=torch.float64).expand(leaves[name].shape) for name, x in given.items()}
        return {name: x.detach() for name, x in {**values, **known}.items()}

    value = out if point.value is None else torch.as_tensor(point.value, dtype=torch.float64).expand(out.shape)
    return Truth(value.detach(), said(first, point.first), said(second, point.second))


def errors(
    entry: TrueEntry, number: int, dtype: torch.dtype, orders: int = 2, function: Callable[..., Any] | None = None
) -> Iterator[Error]:
    """Give the errors of an entry at one of its examples, or of another function that takes the same arguments."""
    point = points(entry, dtype)[number]
    want = known(entry, number, dtype, orders)
    g, v = cotangents(entry, point, dtype)
    function = function or entry.subject
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves_of(entry, point).items()}
    args, kwargs = with_leaves(entry, point, leaves)
    out = function(*args, **kwargs)
    bar = entry.bars[dtype]
    yield worst("value", out.detach(), want.value, entry.measure, bar, point.scale)
    g = torch.ones_like(out) if g is None else g.to(out.dtype)
    v = {name: torch.ones_like(leaf) for name, leaf in leaves.items()} if v is None else v
    orders = min(orders, point.orders)
    if orders < 1:
        return
    first = torch.autograd.grad(
        out, list(leaves.values()), g, create_graph=orders > 1, retain_graph=orders > 1, materialize_grads=True
    )
    for name, grad in zip(leaves, first):
        yield worst(f"first {name}", grad.detach(), want.first[name], entry.measure, bar, point.scale)
    if orders < 2:
        return
    total: Any = sum(_dot(v[name], grad) for name, grad in zip(leaves, first))
    if total.requires_grad:
        second = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    else:  # the gradient is a constant
        second = tuple(torch.zeros_like(leaf) for leaf in leaves.values())
    for name, grad in zip(leaves, second):
        measure = entry.second_measure or entry.measure
        yield worst(f"second {name}", grad.detach(), want.second[name], measure, entry.second_bar(dtype), point.scale)


def forward_errors(entry: TrueEntry, number: int, dtype: torch.dtype) -> Iterator[Error]:
    """Give the error of forward mode: along ones for elementwise functions, else paired with the cotangent."""
    point = points(entry, dtype)[number]
    if point.orders < 1:
        return
    want = known(entry, number, dtype, 1)
    g, v = cotangents(entry, point, dtype)
    leaves = {name: leaf.detach() for name, leaf in leaves_of(entry, point).items()}
    for name, leaf in leaves.items():

        def along(x: Tensor, name: str = name) -> Any:
            args, kwargs = with_leaves(entry, point, {**leaves, name: x})
            return entry.subject(*args, **kwargs)

        t = torch.ones_like(leaf) if v is None else v[name]
        _, push = torch.func.jvp(along, (leaf,), (t,))
        if g is None:
            if push.shape == leaf.shape:
                yield worst(f"forward {name}", push, want.first[name], entry.measure, entry.bars[dtype])
            else:
                total = push.double().sum_to_size(leaf.shape)
                yield worst(f"forward {name}", total, want.first[name], entry.measure, 4 * entry.bars[dtype])
        else:
            # One number: as far off as the sum of what the elements of the gradient may be.
            terms = (t.to(want.first[name].dtype).conj() * want.first[name]).real
            wide = torch.complex128 if push.is_complex() else torch.float64  # the sum itself must not be rounded
            least = max(push.numel(), 1) * torch.finfo(push.dtype).smallest_normal  # an empty sum is off by nothing
            size = terms.abs().sum().clamp(min=max(point.scale, least))
            off = abs(_dot(g.to(wide), push.to(wide)) - terms.sum()) / size
            bar = max(leaf.numel(), push.numel()) ** 0.5 * entry.bars[dtype]
            yield Error(f"forward {name}", float(off), bar, float(off), 0.0)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a.conj() * b).real.sum() if b.is_complex() else (a * b).sum()


def worst(quantity: str, got: Tensor, want: Tensor, measure: Measure, bar: float, scale: float = 0.0) -> Error:
    """Return the worst element. Below the normal numbers of the dtype, an error is relative to the smallest of them."""
    info = torch.finfo(got.dtype)
    if got.is_complex() or want.is_complex():
        pair = [torch.view_as_real(x.to(torch.complex128).resolve_conj()) for x in (got, want)]
    else:
        pair = [got.double(), want.double()]
    found, true = pair
    if found.numel() == 0:
        return Error(quantity, 0.0, bar, 0.0, 0.0)
    size = true.abs() if measure == "element" else true.abs().nan_to_num(0.0, 0.0, 0.0).max().expand_as(true)
    # Numbers below the normal ones have fewer digits: what counts there is the distance between two of them.
    off = (found - true).abs() / size.clamp(min=max(info.smallest_normal, scale))
    same = (found == true) | (found.isnan() & true.isnan())
    beyond = true.isfinite() & (true.abs() > info.max * (1 - info.eps)) & (found.sign() == true.sign())
    beyond &= found.isinf() | (found.abs() >= info.max * (1 - bar))
    off = torch.where(same | beyond, 0.0, off.nan_to_num(torch.inf, torch.inf))
    place = int(off.reshape(-1).argmax())
    return Error(quantity, float(off.max()), bar, float(found.reshape(-1)[place]), float(true.reshape(-1)[place]))
