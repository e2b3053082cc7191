"""Writes by index whose gradient goes to the write that won, where several go to one place.

PyTorch gives the cotangent of a place to every value that was written there, also to those that others overwrote
(pytorch#146299, #162242), and its forward mode contradicts that. Here only the winner has it: on a CPU, the last one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example
from gradwright.authoring.exact import Point, exact, ulps
from gradwright.errors import ArgumentError, kind_of
from gradwright.stable.arguments import not_a_tensor, require_dim, require_number
from gradwright.stable.writes import write_numbers, write_rows

PAPER = "pytorch#146299, #162242; the writes are written first to see which of them wins"
SLOWER = "it finds out which write wins"
GRADIENT = "g at the places where it is the last to write, else 0"
INPUT_GRADIENT = "g at the places that nothing is written to, else 0"


# -------------------------------------------------------------------- what is declared


def _true_scatter(mp: Any, input: Any, dim: int, index: Any, src: Any) -> Any:
    import numpy as np

    out = input.copy()
    for place in np.ndindex(index.shape):
        target = list(place)
        target[dim] = index[place]
        out[tuple(target)] = src[place] if np.ndim(src) else np.asarray(src).item()
    return out


def _true_rows(mp: Any, input: Any, dim: int, index: Any, source: Any) -> Any:
    out = input.copy().swapaxes(0, dim)
    for number, target in enumerate(index):
        out[target] = source.swapaxes(0, dim)[number]
    return out.swapaxes(0, dim)


def _true_put(mp: Any, input: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    out = input.reshape(-1).copy()
    for target, value in zip(index.reshape(-1), source.reshape(-1)):
        out[target] = out[target] + value if accumulate else value
    return out.reshape(input.shape)


def _true_index_put(mp: Any, input: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    import numpy as np

    numbers = np.arange(input.size).reshape(input.shape)[tuple(np.array(index.tolist()) for index in indices)]
    return _true_put(mp, input, numbers, np.broadcast_to(values, numbers.shape), accumulate)


def _eighths(dtype: torch.dtype, *shape: int) -> Tensor:
    """Return numbers whose sums no dtype rounds."""
    return ((torch.arange(math.prod(shape)) * 7 % 16 - 5) / 8).to(dtype).reshape(shape)


def _scatter_examples(dtype: torch.dtype) -> Sequence[Example]:
    x, index = _eighths(dtype, 4, 3), torch.tensor([[0, 2, 1], [0, 2, 3], [3, 2, 1]])
    return [
        Point((x, 0, index, _eighths(dtype, 3, 3)), note="duplicates"),
        Point((x, 1, index[:2, :2] % 2, _eighths(dtype, 4, 4)), note="an index smaller than both"),
        Point((x, -1, index % 3, _eighths(dtype)), note="one number"),
        Point((x, 0, torch.arange(12).reshape(4, 3) % 4, 2.0), note="a number that has no gradient"),
    ]


def _index_copy_examples(dtype: torch.dtype) -> Sequence[Example]:
    x = _eighths(dtype, 4, 3)
    return [
        Point((x, 0, torch.tensor([1, 3, 1, 1]), _eighths(dtype, 4, 3)), note="duplicates"),
        Point((x, -1, torch.tensor([2, 2]), _eighths(dtype, 4, 2)), note="the last dimension"),
    ]


def _put_examples(dtype: torch.dtype) -> Sequence[Example]:
    x, index = _eighths(dtype, 2, 4), torch.tensor([[1, -1, 1], [7, 0, 1]])
    return [
        Point((x, index, _eighths(dtype, 2, 3)), note="duplicates, from either end"),
        Point((x, index, _eighths(dtype, 6)), {"accumulate": True}, note="accumulated"),
    ]


def _index_put_examples(dtype: torch.dtype) -> Sequence[Example]:
    x, rows, columns = _eighths(dtype, 4, 3), torch.tensor([1, -1, 1, 3]), torch.tensor([0, 2, 0, -1])
    return [
        Point((x, (rows, columns), _eighths(dtype, 4)), note="duplicates, from either end"),
        Point((x, (rows,), _eighths(dtype, 3)), note="rows, of one that is repeated"),
        Point((x, (rows[:, None], columns), _eighths(dtype)), note="one number at a grid of places"),
        Point((x, (x > 0,), _eighths(dtype)), note="a mask"),
        Point((x, (rows, columns), _eighths(dtype, 4)), {"accumulate": True}, note="accumulated"),
    ]


def _million(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(*shape), torch.randint(0, shape[0], shape), torch.randn(*shape)


def _ordinary_scatter() -> tuple[Any, ...]:
    x, index, src = _million(1000, 1000)
    return x, 1, index, src


def _ordinary_rows() -> tuple[Any, ...]:
    x, index, src = _million(1000, 1000)
    return x, 0, index[0], src


def _ordinary_index_put() -> tuple[Any, ...]:
    x, index, src = _million(1_000_000)
    return x, (index,), src


# -------------------------------------------------------------------- what is offered


@exact(
    forward="out = input, with out[..., index[i], ...] = src[i] along dim",
    gradient={"input": INPUT_GRADIENT, "src": GRADIENT},
    reference=_true_scatter,
    domain="indices within the dimension; others raise",
    bars=ulps(0),
    examples=_scatter_examples,
    elementwise=False,
    replaces=torch.scatter,
    ordinary=_ordinary_scatter,
    slower=SLOWER,
    paper=PAPER,
)
def scatter(input: Tensor, dim: int, index: Tensor, src: Tensor | float) -> Tensor:
    """Write ``src`` into a copy of ``input`` along a dimension, as ``torch.scatter``; overwritten values get nothing.

    There is no ``reduce``, which PyTorch deprecates: ``torch.scatter_add`` and ``torch.scatter_reduce`` have right
    gradients.

    Arguments:
        input: what is written into.
        dim: the dimension that ``index`` goes along.
        index: integers, with as many dimensions as ``input``, in none but ``dim`` longer than it.
        src: a number, a tensor of one number, or a tensor that has an element for each of ``index``, or more.

    Returns:
        a tensor like ``input``.

    Raises:
        ArgumentError: dtypes or dimensions do not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> src = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> out = gw.stable.scatter(torch.zeros(3), 0, torch.tensor([1, 1]), src)
        >>> out, *torch.autograd.grad(out.sum(), src)
        (tensor([0., 2., 0.], grad_fn=<...>), tensor([0., 1.]))
    """
    require_dim("scatter", dim)
    if not isinstance(src, Tensor):
        _check_tensor("scatter", input)
        _check_index("scatter", "index", index)
        require_number("scatter", src=src)
        return torch.scatter(input, dim, index, src)
    _check("scatter", input, "index", index, "src", src)
    if input.ndim == 0:
        return scatter(input.reshape(1), dim, index.reshape(1), src.reshape(1)).reshape(())
    src = src.expand(index.shape) if src.ndim == 0 else src
    if not input.ndim == index.ndim == src.ndim:
        raise ArgumentError(
            f"scatter: input has {input.ndim} dimensions, index {index.ndim} and src {src.ndim}; expected as many; "
            "write index[:, None].expand_as(src) for one index a row."
        )
    for own in range(index.ndim):
        if src.shape[own] < index.shape[own]:
            raise ArgumentError(
                f"scatter: src has the shape {tuple(src.shape)}, which is smaller than that of index, "
                f"{tuple(index.shape)}; expected an element for each index; give one number for all, or a larger src."
            )
        src = src.narrow(own, 0, index.shape[own])
    return write_numbers(input, dim, index.long(), src)


@exact(
    forward="out = input, with out[..., index[i], ...] = source[..., i, ...]",
    gradient={"input": INPUT_GRADIENT, "source": GRADIENT},
    reference=_true_rows,
    domain="indices within the dimension; others raise",
    bars=ulps(0),
    examples=_index_copy_examples,
    elementwise=False,
    replaces=torch.index_copy,
    ordinary=_ordinary_rows,
    slower=SLOWER,
    paper=PAPER,
)
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Write slices into a copy of ``input``, as ``torch.index_copy``; those that are overwritten get no gradient.

    Arguments:
        input: what is written into.
        dim: the dimension that ``index`` goes along.
        index: integers, in one dimension.
        source: as ``input``, but in ``dim`` as long as ``index``.

    Returns:
        a tensor like ``input``.

    Raises:
        ArgumentError: dtypes do not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> source = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> out = gw.stable.index_copy(torch.zeros(3), 0, torch.tensor([1, 1]), source)
        >>> torch.autograd.grad(out.sum(), source)
        (tensor([0., 1.]),)
    """
    require_dim("index_copy", dim)
    _check("index_copy", input, "index", index, "source", source)
    if input.ndim == 0:
        return index_copy(input.reshape(1), dim, index.reshape(1), source.reshape(1)).reshape(())
    return write_rows(input, dim, index.long().reshape(-1), source)


@exact(
    forward="out = input, with out[indices] = values (or += where they accumulate)",
    gradient={"input": INPUT_GRADIENT + "; g where they accumulate", "values": GRADIENT + "; g where they accumulate"},
    reference=_true_index_put,
    domain="indices within the dimensions, from either end; others raise",
    bars=ulps(0),
    examples=_index_put_examples,
    elementwise=False,
    replaces=torch.index_put,
    ordinary=_ordinary_index_put,
    slower=SLOWER,
    paper=PAPER,
)
def index_put(input: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
    """Write values into a copy of ``input``, as ``torch.index_put``; those that are overwritten get no gradient.

    Arguments:
        input: what is written into.
        indices: integers or booleans for the leading dimensions, as in ``input[indices]``. Under ``vmap`` and
            ``torch.compile`` booleans are refused, since how many are true depends on values.
        values: broadcast to the shape of ``input[indices]``; its gradient is summed over what was not overwritten.
        accumulate: add instead.

    Returns:
        a tensor like ``input``.

    Raises:
        ArgumentError: dtypes do not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> value = torch.tensor(2.0, requires_grad=True)
        >>> out = gw.stable.index_put(torch.zeros(3), (torch.tensor([1, 1, 0]),), value)
        >>> torch.autograd.grad(out.sum(), value)
        (tensor(2.),)
    """
    indices = tuple(indices)
    for number, index in enumerate(indices):
        _check("index_put", input, f"indices[{number}]", index, "values", values, booleans=True)
    if accumulate or not indices:
        return torch.index_put(input, indices, values, accumulate)
    depth = sum(index.ndim if index.dtype == torch.bool else 1 for index in indices)
    lead, rest = input.shape[:depth], input.shape[depth:]
    numbers = torch.arange(math.prod(lead), device=input.device).reshape(lead)[indices]
    source = values.expand(numbers.shape + rest).reshape(-1, *rest)
    return write_rows(input.reshape(-1, *rest), 0, numbers.reshape(-1), source).reshape(input.shape)


@exact(
    forward="out = input, with out.flatten()[index] = source (or += where they accumulate)",
    gradient={"input": INPUT_GRADIENT + "; g where they accumulate", "source": GRADIENT + "; g where they accumulate"},
    reference=_true_put,
    domain="indices within the tensor, from either end; others raise",
    bars=ulps(0),
    examples=_put_examples,
    elementwise=False,
    replaces=torch.put,
    slower="it finds out which write wins",
    ordinary=lambda: _million(1_000_000),
    paper=PAPER,
)
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write numbers into a copy of ``input`` seen as flat, as ``torch.put``; overwritten ones get no gradient.

    Arguments:
        input: what is written into.
        index: integers, of any shape.
        source: as many numbers as ``index``.
        accumulate: add instead.

    Returns:
        a tensor like ``input``.

    Raises:
        ArgumentError: dtypes or the numbers of elements do not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> source = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> out = gw.stable.put(torch.zeros(2, 2), torch.tensor([-1, 3]), source)
        >>> torch.autograd.grad(out.sum(), source)
        (tensor([0., 1.]),)
    """
    _check("put", input, "index", index, "source", source)
    if index.numel() != source.numel():
        raise ArgumentError(
            f"put: there are {index.numel()} indices and {source.numel()} numbers; expected as many; expand source."
        )
    index = index.long().reshape(-1)
    index = torch.where(index < 0, index + input.numel(), index)
    write = torch.index_add if accumulate else write_rows  # torch.put has no batching rule (torch 2.13)
    return write(input.reshape(-1), 0, index, source.reshape(-1)).reshape(input.shape)


# -------------------------------------------------------------------- what is refused


def _check(name: str, input: Tensor, its: str, index: Any, other: str, values: Any, *, booleans: bool = False) -> None:
    _check_tensor(name, input)
    _check_index(name, its, index, booleans=booleans)
    if not isinstance(values, Tensor) or values.dtype != input.dtype:
        kind = f"of {values.dtype}" if isinstance(values, Tensor) else kind_of(values)
        raise ArgumentError(
            f"{name}: {other} is {kind} and input of {input.dtype}; expected tensors of one dtype; write "
            f"{other}.to(input.dtype), or torch.tensor(...) of a number."
        )


def _check_tensor(name: str, input: Any) -> None:
    if not isinstance(input, Tensor):
        raise not_a_tensor(name, "input", input, "a tensor to write to")


def _check_index(name: str, its: str, index: Any, *, booleans: bool = False) -> None:
    known = (torch.int64, torch.int32, *([torch.bool] if booleans else []))
    if not isinstance(index, Tensor) or index.dtype not in known:
        kind = f"a tensor of {index.dtype}" if isinstance(index, Tensor) else kind_of(index)
        raise ArgumentError(
            f"{name}: {its} is {kind}; expected a tensor of {' or '.join(map(str, known))}; write {its}.long()."
        )
