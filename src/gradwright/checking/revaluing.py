"""Variants of other values: both signs, larger ones, zeros, ties, and duplicates among indices. Shapes stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.resizing import all_distinct, hangs_together, is_permutation
from gradwright.checking.variants import Slot, slots, try_vary

LARGER = 8.0
MAX_INPUTS = 4
"""Inputs that are varied one at a time; the others only all together."""


@dataclass(frozen=True)
class Revalued:
    """One variant of other values."""

    words: str
    case: Case
    singular: bool = False
    """True when the values are such that a function may well have a kink or jump there: zeros and ties."""
    duplicates: bool = False
    """True when an integer input that held every number once now holds one twice."""
    was_permutation: bool = False


def revalued(case: Case) -> Iterator[Revalued | None]:
    """Give the variants of other values; None stands for one that forward rejects or where it is not finite."""
    real = [s for s in slots(case) if s.number is not None and not s.tensor.is_complex() and s.tensor.numel()]
    real = [s for s in real if s.tensor.layout == torch.strided and not s.state]
    for slot in real[:MAX_INPUTS]:
        name = f"`{slot.name}`"
        if hangs_together(slot.tensor.detach()):
            yield _changed(case, [slot], lambda t: LARGER * t, f"{name} scaled by {LARGER:g}")
            yield _changed(case, [slot], torch.neg, f"{name} negated")
            continue
        for change, words in _CHANGES:
            yield _changed(case, [slot], change, words.format(name))
        for change, words in _SINGULAR:
            yield _changed(case, [slot], change, words.format(name), singular=True)
    if len(real) > 1:
        for change, words in _CHANGES:
            if not any(hangs_together(slot.tensor.detach()) for slot in real):
                yield _changed(case, real, change, words.format("all inputs"))
    yield from _duplicates(case)


def _changed(
    case: Case, chosen: list[Slot], change: Callable[[Tensor], Tensor | None], words: str, singular: bool = False
) -> Revalued | None:
    changed = {}
    for slot in chosen:
        old = slot.tensor.detach()
        new = change(old.contiguous())
        if new is not None and not torch.equal(new, old):
            low, high = case.domain.of(slot.name)
            changed[slot.place] = new if singular else _inside(new, old, low, high)
    variant = try_vary(case, changed) if changed else None
    return None if variant is None else Revalued(words, variant, singular)


def _inside(new: Tensor, old: Tensor, low: float, high: float) -> Tensor:
    """Keep the given value wherever the new one would leave the domain."""
    return torch.where((new >= low) & (new <= high), new, old)


def _signs(t: Tensor) -> Tensor:
    return torch.ones(t.numel(), dtype=t.dtype).index_fill(0, torch.arange(1, t.numel(), 2), -1.0).reshape(t.shape)


def _alternating(t: Tensor) -> Tensor | None:
    return t.abs() * _signs(t) if t.numel() > 1 else -t


def _opposite(t: Tensor) -> Tensor | None:
    return -t.abs() * _signs(t) if t.numel() > 1 else None


def _first_zero(t: Tensor) -> Tensor | None:
    new = t.clone()
    new.view(-1)[0] = 0
    return new if t.numel() > 1 else None


def _tied(t: Tensor) -> Tensor | None:
    new = t.clone()
    if t.ndim == 0 or t.shape[0] < 2:
        return None
    new.view(t.shape[0], -1)[1, 0] = new.view(t.shape[0], -1)[0, 0]
    return new


_CHANGES: tuple[tuple[Callable[[Tensor], Tensor | None], str], ...] = (
    (_alternating, "{} of alternating signs"),
    (_opposite, "{} of the opposite alternating signs"),
    (lambda t: LARGER * t, f"{{}} {LARGER:g} times as large"),
    (lambda t: -LARGER * t, f"{{}} {LARGER:g} times as large and negated"),
)
_SINGULAR: tuple[tuple[Callable[[Tensor], Tensor | None], str], ...] = (
    (_first_zero, "a zero in {}"),
    (torch.zeros_like, "{} all zero"),
    (_tied, "two equal elements in {}"),
)


def _duplicates(case: Case) -> Iterator[Revalued | None]:
    for slot in slots(case):
        t = slot.tensor
        if t.is_floating_point() or t.is_complex() or t.dtype is torch.bool or slot.state or t.numel() < 2:
            continue
        flat = t.detach().contiguous().view(-1)
        if not all_distinct(flat):
            continue  # the sample has some already
        new = flat.clone()
        new[1] = new[0]
        variant = try_vary(case, {slot.place: new.view(t.shape)})
        if variant is None:
            yield None
            continue
        yield Revalued(f"an index twice in `{slot.name}`", variant, False, True, is_permutation(flat))
