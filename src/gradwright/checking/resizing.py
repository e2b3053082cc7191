"""Variants of other shapes: the inputs cut down or grown along dimensions that belong together.

Dimensions of equal size are taken to be the same dimension, in all inputs at once; where forward refuses that, only the
leading ones among them are. They may be equal by chance, so that each is also made one larger alone, where forward
accepts it: a square matrix hides what is transposed. What would become too large is left out and named. New numbers
lie between those that were given, so that they keep signs and bounds; inputs whose numbers hang together (symmetric,
triangular, orthogonal, or summing to one) are only cut down.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.growth import Growth, watch
from gradwright.checking.variants import Place, Slot, slots, try_vary
from gradwright.typing import Level

SIZES = (1, 0, 33, 129, 1025)
"""Batch 1, empty, and just past the block sizes of most kernels."""
PROBE = 33
MAX_LENGTHS = 1_000
"""Integer tensors with more elements than this are not taken for lengths."""
MAX_ELEMENTS: dict[Level, int] = {"quick": 5_000, "standard": 20_000, "full": 2_000_000}
"""Largest number of elements that the inputs and outputs of a variant may have."""


MAX_ALONE, MAX_TRIED_ALONE = 4, 12
"""So many dimensions are resized alone, of so many that are tried."""


@dataclass(frozen=True)
class Group:
    """Dimensions that are resized together."""

    size: int
    dims: tuple[tuple[Slot, int], ...]
    whole: bool
    """True when these are all the dimensions of that size."""


@dataclass(frozen=True)
class Resized:
    """One variant of other shapes."""

    words: str
    case: Case
    rank_changed: bool = False
    duplicates: bool = False
    """True when an integer input that held every number once now holds one twice."""
    was_permutation: bool = False
    constants_only: bool = False
    """True when only real constants were resized, a filter say, whose numbers may mean something as they are."""
    inner_empty: bool = False
    """True when a dimension other than the first one of a tensor is empty: no features, rather than no rows."""
    resize: Callable[[int], Resized | NotTried | None] | None = None
    """Makes the same variant of another size, when the given size is even and this one is odd."""
    alone: bool = False
    """True when one dimension was resized and others of its size were not, which may not be meant."""
    sizes: tuple[int, int] = (0, 0)
    """Of the dimensions that were resized, before and after."""


@dataclass(frozen=True)
class NotTried:
    """A size that was not tried."""

    words: str


def resized(case: Case) -> Iterator[Resized | NotTried | None]:
    """Give the variants of other shapes; None stands for one that forward rejects or where it is not finite."""
    tensors = [slot for slot in slots(case) if not slot.state and slot.tensor.layout == torch.strided]
    seen = watch(case)
    for size in sorted({size for slot in tensors for size in slot.tensor.shape}):
        restating = _restated(case, size) if size > 1 else None
        if restating is not None:
            yield NotTried(f"other than {size} (`{restating}` restates it)")
            continue
        growth = Growth(case.level, size, seen)
        group = _accepted(case, tensors, size, growth)
        if not isinstance(group, Group):
            yield group
            continue
        for new in SIZES:
            # A dimension of size 1 beside others that stay would broadcast, which is another function.
            if new == size or (new == 1 and not group.whole):
                continue
            variant = _resize(case, tensors, group, new, growth)
            if isinstance(variant, Resized):
                growth.add(variant.case, new)
                if size % 2 == 0 and new % 2 == 1:
                    again = functools.partial(_resize, case, tensors, group, growth=growth)
                    variant = replace(variant, resize=again)
            yield variant
    yield from _alone(case, tensors, Growth(case.level, 0, seen))
    yield _without_dimensions(case, tensors)


def _alone(case: Case, tensors: list[Slot], growth: Growth) -> Iterator[Resized]:
    """Make single dimensions larger that have the size of others."""
    dims = [(slot, d, size) for slot in tensors for d, size in enumerate(slot.tensor.shape) if size > 1]
    sizes = [size for _, _, size in dims]
    shared = [(slot, d, n) for slot, d, n in dims if sizes.count(n) > 1 and _restated(case, n) is None]
    accepted = 0
    for slot, d, size in shared[:MAX_TRIED_ALONE]:
        new = next(n for n in range(size + 1, size + 2 + len(sizes)) if n not in sizes)
        variant = _resize(case, tensors, Group(size, ((slot, d),), False), new, growth)
        if isinstance(variant, Resized):
            accepted += 1
            yield replace(variant, alone=True)
        if accepted == MAX_ALONE:
            return


def _restated(case: Case, size: int) -> str | None:
    """Return the name of an argument that restates a size, as lengths do: native code may trust it without a look."""
    numbers = []
    for argument in case.arguments:
        value = argument.value
        if isinstance(value, Tensor) and _may_be_lengths(value) and size in (int(value.max()), int(value.sum())):
            return argument.name
        if type(value) is int and value == size:
            numbers.append(argument.name)
    return numbers[0] if len(numbers) > 1 else None


def _may_be_lengths(t: Tensor) -> bool:
    return t.dtype in (torch.int32, torch.int64) and 0 < t.numel() <= MAX_LENGTHS and int(t.min()) >= 1


def _accepted(case: Case, tensors: list[Slot], size: int, growth: Growth) -> Group | NotTried | None:
    """Return the dimensions of one size that may be resized together, as forward sees it."""
    dims = [(slot, d) for slot in tensors for d, s in enumerate(slot.tensor.shape) if s == size]
    leading = [(slot, d) for slot, d in dims if d == 0]
    candidates = [Group(size, tuple(dims), True)] if size > 1 else []
    # Of several tensors with dimensions of size 1, those that stay would broadcast, which is another function.
    broadcasts = size == 1 and leading != dims and len({slot.place for slot, _ in dims}) > 1
    if leading and (leading != dims or size == 1) and not broadcasts:
        candidates.append(Group(size, tuple(leading), False))
    not_tried = None
    for group in candidates:
        # Never 1: beside a tensor that forward captures, of a fixed size, that alone would be accepted, and broadcast.
        for new in (PROBE, size + 1, size - 1) if group.whole else (PROBE,):
            probe = _resize(case, tensors, group, new, growth) if new not in (0, 1, size) else None
            if isinstance(probe, Resized):
                return group
            not_tried = probe or not_tried
    return not_tried


def _resize(case: Case, tensors: list[Slot], group: Group, new: int, growth: Growth) -> Resized | NotTried | None:
    limit = MAX_ELEMENTS[case.level]
    words = f"{new} for a dimension of size {group.size}"
    dims_of = [(slot, [d for s, d in group.dims if s.place == slot.place]) for slot in tensors]
    elements = sum(
        math.prod(new if d in dims else size for d, size in enumerate(slot.tensor.shape))
        for slot, dims in dims_of
        if dims
    )
    # Asked before anything is made: three dimensions of a small kernel that grow together are gigabytes.
    refusal = f"{elements:,} elements of input" if elements > limit else growth.refusal(new)
    if refusal is not None:
        return NotTried(f"{words} ({refusal})")
    generator = case.generator(f"resize {group.size} {new}")
    changed: dict[Place, Tensor] = {}
    repeated: list[Tensor] = []
    for slot, dims in dims_of:
        tensor = _with_size(slot.tensor.detach(), dims, group.size, new, generator)
        if tensor is None:
            return None
        if not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype is not torch.bool:
            tensor = keep_in_range(tensor, group.size, new)
            if tensor is None:
                return None
            # Numbers that were distinct along a dimension only cannot stay so when it grows.
            if tensor.numel() > slot.tensor.numel() or (all_distinct(slot.tensor) and not all_distinct(tensor)):
                repeated.append(slot.tensor)
        if tensor is not slot.tensor:
            changed[slot.place] = tensor
    variant = try_vary(case, changed)
    if variant is None or (variant.m == 0 and 0 not in (case.m, new)):
        return None  # a slice beyond the end, say
    if variant.m > limit:
        return NotTried(f"{words} ({variant.m:,} elements of output)")
    what = {0: "an empty input", 1: "a dimension of size 1"}.get(new, f"a dimension of size {new}")
    permuted = any(is_permutation(index) for index in repeated)
    inner = new == 0 and any(d > 0 for _, d in group.dims)
    fixed = all(slot.number is None and slot.tensor.is_floating_point() for slot, _ in group.dims)
    return Resized(
        f"{what} ({variant.describe()})",
        variant,
        duplicates=bool(repeated),
        was_permutation=permuted,
        constants_only=fixed,
        inner_empty=inner,
        sizes=(group.size, new),
    )


def all_distinct(index: Tensor) -> bool:
    """Tell whether no number occurs twice."""
    return len(index.unique()) == index.numel()


def is_permutation(index: Tensor) -> bool:
    """Tell whether an index holds every number from 0 on once, so that it may be meant to be a permutation."""
    flat = index.detach().reshape(-1)
    return bool((flat.sort().values == torch.arange(len(flat))).all())


def _with_size(t: Tensor, dims: list[int], old: int, new: int, generator: torch.Generator) -> Tensor | None:
    if not dims:
        return t
    for d in dims:
        if new <= old:
            t = t.narrow(d, 0, new)
    if new <= old:
        return t.contiguous()
    if hangs_together(t):
        return None
    shape = [new if d in dims else size for d, size in enumerate(t.shape)]
    if t.numel() == 0:
        return t.new_zeros(shape) if not t.is_floating_point() else None
    discrete = not (t.is_floating_point() or t.is_complex()) or bool(((t == 0) | (t.abs() == 1)).all())
    if t.ndim <= 2:
        return _filled(t, shape, discrete, generator)
    for d in dims:
        t = _mixed_slices(t, d, new, discrete, generator)
    return t


def _filled(t: Tensor, shape: list[int], discrete: bool, generator: torch.Generator) -> Tensor:
    """Fill a shape with numbers between random pairs of the given ones."""
    flat = t.reshape(-1)
    size = torch.Size(shape)
    first = flat[torch.randint(len(flat), (size.numel(),), generator=generator)]
    if t.ndim == 1 and _is_sorted(t):
        # Offsets, from the first to the last one.
        first[0], first[-1] = flat[0], flat[-1]
        first = first.sort().values
    if discrete:
        return first.reshape(size)
    second = flat[torch.randint(len(flat), (size.numel(),), generator=generator)]
    share = torch.rand(size.numel(), generator=generator, dtype=torch.float64)
    return _between(first, second, share).reshape(size)


def _is_sorted(t: Tensor) -> bool:
    """Tell whether integers go up, so that they may be offsets into something."""
    discrete = not (t.is_floating_point() or t.is_complex()) and t.dtype is not torch.bool
    return discrete and len(t) > 1 and bool((t[1:] >= t[:-1]).all())


def _mixed_slices(t: Tensor, d: int, new: int, discrete: bool, generator: torch.Generator) -> Tensor:
    """Grow one dimension by slices between random pairs of the given slices, which keeps what holds for each slice."""
    first = t.index_select(d, torch.randint(t.shape[d], (new,), generator=generator))
    if discrete:
        return first
    second = t.index_select(d, torch.randint(t.shape[d], (new,), generator=generator))
    share = torch.rand(new, generator=generator, dtype=torch.float64)
    return _between(first, second, share.reshape([-1 if i == d else 1 for i in range(t.ndim)]))


def _between(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """Mix two tensors; where they are equal, shrink the number a little instead, so that no ties arise."""
    dtype = torch.complex128 if first.is_complex() else torch.float64
    a, b = first.to(dtype), second.to(dtype)
    return torch.where(a == b, a * (0.9 + 0.1 * share), a + share * (b - a)).to(first.dtype)


def hangs_together(t: Tensor) -> bool:
    """Tell whether the numbers of a matrix depend on each other, so that it cannot be grown freely."""
    if not (t.is_floating_point() or t.is_complex()) or t.ndim < 2 or t.numel() < 4:
        return False
    t = t.to(torch.complex128 if t.is_complex() else torch.float64).nan_to_num(0.0, 0.0, 0.0)
    if t.shape[-1] == t.shape[-2] and t.shape[-1] > 1:
        size = float(t.abs().max())
        for other in (t.mT, t.mH, -t.mT):
            if torch.allclose(t, other, rtol=0, atol=1e-6 * size):
                return True
        unit = torch.eye(t.shape[-1], dtype=t.dtype)
        if torch.allclose(t @ t.mH, unit.expand_as(t), atol=1e-5):
            return True
        if bool((t.tril(-1) == 0).all()) or bool((t.triu(1) == 0).all()):
            return True
    sums = t.sum(dim=-1)
    return bool((sums - sums.reshape(-1)[0]).abs().max() <= 1e-6 * float(t.abs().sum(dim=-1).max()))


def keep_in_range(index: Tensor, old: int, new: int) -> Tensor | None:
    """Return integers that are still valid when what they may index has another size; negative ones are left alone.

    Offsets that go up to that size go on doing so, and those that go further belong to something else.
    """
    largest = int(index.max()) if index.numel() else -1
    if largest >= old and index.ndim == 1 and _is_sorted(index):
        return torch.where(index == old, new, index.clamp(max=new)) if largest == old else index
    if new >= old or largest < new:
        return index
    return None if new == 0 else torch.where(index < 0, index, index % new)


def _without_dimensions(case: Case, tensors: list[Slot]) -> Resized | None:
    """Return the case on tensors without dimensions, when all of them have the same shape."""
    shapes = {slot.tensor.shape for slot in tensors}
    if len(shapes) != 1 or not next(iter(shapes)) or not all(slot.tensor.numel() for slot in tensors):
        return None
    variant = try_vary(case, {slot.place: slot.tensor.detach().reshape(-1)[0].clone() for slot in tensors})
    # An output with dimensions was broadcast with a tensor that forward captures.
    if variant is None or any(out.shape for out in variant.outputs):
        return None
    return Resized(f"inputs without dimensions ({variant.describe()})", variant, rank_changed=True)
