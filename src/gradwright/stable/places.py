"""The places of a mask: what functions get and return for those that are left out.

A place is one element of the mask, with all elements of a tensor that broadcasting lays over it: one number, or a row
where the mask has size 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwright.authoring import trees
from gradwright.errors import ArgumentError, describe_exception, did_you_mean, kind_of
from gradwright.stable.selecting import keep, pick

Value: TypeAlias = Tensor | bool | int | float | complex
NUMBERS = (bool, int, float, complex)

# -------------------------------------------------------------------- what functions are given


def substituted(name: str, mask: Tensor, given: Sequence[Any], safe: Any) -> list[Any]:
    """Return the arguments of a function with something that it takes wherever the mask is false."""
    if mask.numel() == 0:
        return list(given)
    points = list(safe) if isinstance(safe, (tuple, list)) else [safe] * len(given)
    if len(points) != len(given):
        raise ArgumentError(
            f"{name}: safe has {len(points)} values, but there are {len(given)} arguments; expected one for each; "
            "write None for those that need none."
        )
    some, place = _one_selected(mask)
    found = []
    for number, (value, point) in enumerate(zip(given, points)):
        if not isinstance(value, Tensor):
            found.append(value)
            continue
        dims = [dim for dim in place if -dim <= value.ndim and value.shape[dim] > 1]
        nothing = 0.5 ** (number + 1) if value.is_floating_point() or value.is_complex() else 0
        if not dims:  # the same at all places, so that it is in use if any is
            point = nothing if point is None else point
        elif point is None:
            there = value.detach()
            for dim in dims:
                there = there.index_select(dim, place[dim].reshape(1))
            point = torch.where(some, there, torch.full((), nothing, dtype=value.dtype, device=value.device))
        if not isinstance(point, Tensor):
            point = torch.full((), point, dtype=value.dtype, device=value.device)
        shape, point = _common(value, mask), point.detach().to(value.dtype)
        found.append(pick(mask, value.expand(shape), point) if dims else pick(some, value, point).expand(shape))
    return found


def _common(x: Tensor, mask: Tensor) -> torch.Size:
    return x.shape if x.shape == mask.shape else torch.broadcast_shapes(x.shape, mask.shape)


def _one_selected(mask: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
    """Return whether any element is true, and where one is, in each dimension longer than 1 (counted from the end)."""
    found = mask.reshape(-1).to(torch.uint8).max(0)
    number = found.indices
    place = {}
    for dim in range(-1, -mask.ndim - 1, -1):
        size = mask.shape[dim]
        if size > 1:
            place[dim] = number % size
            number = number // size
    return found.values.bool(), place


def called(name: str, own: Sequence[str], f: Any, given: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Return what a function returns; ``own`` are the keywords that are not passed on to it.

    Raises:
        ArgumentError: it was given keywords, and refused its arguments.
    """
    if not keywords:
        return f(*given)
    try:
        return f(*given, **keywords)
    except TypeError as error:
        guess = "".join(did_you_mean(keyword, own) for keyword in keywords)
        raise ArgumentError(
            f"{name}: {_called(f)} was given {', '.join(keywords)} by keyword and raised {describe_exception(error)}; "
            f"expected keywords that it takes; those of {name} itself are {', '.join(own)}.{guess}"
        ) from error


# -------------------------------------------------------------------- what functions return


def results(name: str, f: Any, out: Any, mask: Tensor, given: Sequence[Any]) -> Any:
    """Return what a function returned, if it has a place for each of the mask's."""
    rank = max(value.ndim for value in (mask, *given) if isinstance(value, Tensor))
    tensors = [out] if isinstance(out, Tensor) else trees.tensors_in(out)
    if not tensors:
        raise ArgumentError(
            f"{name}: {_called(f)} returned a {type(out).__name__} without tensors; expected a tensor or several."
        )
    for tensor in tensors:
        there = tensor.shape[tensor.ndim - mask.ndim :] if tensor.ndim == rank else ()
        if len(there) != mask.ndim or any(size not in (1, has) for size, has in zip(mask.shape, there)):
            raise ArgumentError(
                f"{name}: {_called(f)} returned a tensor of shape {tuple(tensor.shape)}, which does not have a place "
                f"for each of the mask, of shape {tuple(mask.shape)}; expected a function that treats them one by one; "
                "keep reduced dimensions (keepdim=True) and let the mask have size 1 there, or use masked_sum."
            )
    return out


def combined(name: str, mask: Tensor, a: Any, b: Any) -> Any:
    """Return the results of one side where the mask is true and those of the other elsewhere."""
    if all(isinstance(side, (Tensor, *NUMBERS)) for side in (a, b)):
        return _chosen(mask, a, b)
    first: list[Tensor] = []
    second: list[Tensor] = []
    structures = [trees.flatten(a, first), trees.flatten(b, second)]
    structure = structures[0] if first else structures[1]
    count = max(len(first), len(second))
    left, right = (_spread(side, own, count) for side, own in ((a, first), (b, second)))
    if not len(left) == len(right) == count:
        raise ArgumentError(
            f"{name}: there are {len(left)} values where the mask is true and {len(right)} where it is false; expected "
            "as many; let both functions return the same number of tensors, or give one number for all of them."
        )
    return trees.rebuild(structure, iter([_chosen(mask, x, y) for x, y in zip(left, right)]))


def _spread(side: Any, tensors: list[Tensor], count: int) -> list[Any]:
    """Return the values of one side: those that it holds, or as many as are needed of the one that it is."""
    if isinstance(side, (Tensor, *NUMBERS)):
        return [side] * count
    return tensors or list(side)


def _chosen(mask: Tensor, a: Value, b: Value) -> Tensor:
    if not isinstance(a, Tensor):
        mask, a, b = ~mask, b, a
    assert isinstance(a, Tensor)
    if isinstance(b, Tensor):
        if a.dtype != b.dtype:
            return torch.where(mask, a, b)  # which promotes
        shape = torch.broadcast_shapes(mask.shape, a.shape, b.shape)
        return pick(mask, a.expand(shape), b.expand(shape))
    if isinstance(b, complex) or not a.is_floating_point():
        return torch.where(mask, a, b)
    a = a.expand(_common(a, mask))
    return pick(mask, a, torch.full((), b, dtype=a.dtype, device=a.device)) if b else keep(a, mask)


# -------------------------------------------------------------------- what is refused


def check(name: str, f: Any, mask: Any, given: Sequence[Any]) -> None:
    if not callable(f):
        raise ArgumentError(
            f"{name}: f is {kind_of(f)}; expected a function of x; pass torch.log, not torch.log(x), or write "
            "`lambda x: ...`."
        )
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = f"a tensor of {mask.dtype}" if isinstance(mask, Tensor) else kind_of(mask)
        raise ArgumentError(f"{name}: mask is {kind}; expected a tensor of booleans; write `mask.bool()` or `x > 0`.")
    tensors = [(number, value) for number, value in enumerate(given) if isinstance(value, Tensor)]
    if not tensors:
        raise ArgumentError(
            f"{name}: x is {kind_of(given[0])}, and none of the arguments for f is a tensor; expected what f is "
            "differentiated in; write torch.tensor(...) for it."
        )
    shape = mask.shape
    for number, value in tensors:
        if value.shape == shape:  # finding that out at length takes longer than the rest
            continue
        try:
            shape = torch.broadcast_shapes(shape, value.shape)
        except RuntimeError:
            what = "x" if number == 0 else f"argument {number + 1} for f"
            raise ArgumentError(
                f"{name}: {what} has the shape {tuple(value.shape)}, which does not broadcast with the mask and what "
                f"stands before, {tuple(shape)}; expected a place for each of the mask; where whole rows are masked, "
                "write mask[:, None], so that it has one dimension of size 1, and y[:, None] for what has a number a "
                "row; what f may see whole, nan included, goes by keyword."
            ) from None


def _called(f: Any) -> str:
    return str(getattr(f, "__name__", type(f).__name__))
