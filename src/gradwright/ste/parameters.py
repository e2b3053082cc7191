"""Parameters of quantisers: one for a tensor, for each slice along an axis, or for each group; and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import ArgumentError, OptionError


def whole(value: object, least: int, most: float = math.inf) -> bool:
    """Tell whether an option is a whole number in a range."""
    return isinstance(value, int) and least <= value <= most


def summed_product(a: Tensor, b: Tensor, parameter: Tensor) -> Tensor:
    """Return the product that is summed over the elements which share the parameter."""
    alike = a.shape == b.shape and a.dtype == b.dtype
    if parameter.numel() == 1 and alike and not torch.compiler.is_compiling():
        return torch.dot(a.reshape(-1), b.reshape(-1)).reshape(parameter.shape)  # in one pass over the memory
    return a * b


def summed(values: Tensor, parameter: Tensor) -> Tensor:
    """Return values that are summed over the elements which share the parameter."""
    if parameter.numel() == 1 and not torch.compiler.is_compiling():
        return values.sum().reshape(parameter.shape)
    return values


def elements_sharing(x: Tensor, parameter: Any) -> int:
    """Return how many elements of ``x`` share a number of the parameter, at least 1."""
    return max(x.numel() // (max(parameter.numel(), 1) if isinstance(parameter, Tensor) else 1), 1)


def shared_dims(function: str, x: Tensor, axis: int | None, group_size: int | None = None) -> tuple[int, ...]:
    """Return the dimensions of the arranged ``x`` whose elements share a parameter; ``x`` is as it was given.

    Raises:
        OptionError: ``x`` has no such axis.
    """
    if axis is None:
        return tuple(range(x.dim()))
    axis = _counted(function, x, axis)
    return tuple(d for d in range(x.dim()) if d != axis) if group_size is None else (axis + 1,)


def _counted(function: str, x: Tensor, axis: int) -> int:
    """Return an axis counted from the front.

    Raises:
        OptionError: ``x`` has no such axis.
    """
    if not -x.dim() <= axis < x.dim():
        raise OptionError(f"{function}: axis={axis} for a tensor of {x.dim()} dimensions; expected one of them.")
    return axis % x.dim()


def reduced(reduce: Callable[..., Tensor], x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return ``reduce(x, dim=dims)``, and ``x`` for no dimensions, which PyTorch takes for all."""
    return reduce(x, dim=dims) if dims else x


def is_learned(parameter: Any) -> bool:
    """Tell whether a gradient of a parameter may be asked for; while a transform runs that is not known."""
    if not isinstance(parameter, Tensor):
        return False
    return parameter.requires_grad or torch_compat.transforms_active() or torch_compat.forward_mode_on()


def arranged(
    function: str, x: Tensor, parameters: Sequence[Tensor | float | None], axis: int | None, group_size: int | None
) -> tuple[Tensor, list[Tensor | float | None]]:
    """Return ``x`` and parameters in shapes that broadcast: by tensor, by slice along an axis, or by group.

    Without an axis a parameter may also have every dimension of ``x``, with length 1 where it is shared.

    Raises:
        ArgumentError: the shape of a parameter does not fit.
        OptionError: ``group_size`` without ``axis``, or one that does not divide the dimension.
    """
    if axis is None:
        if group_size is not None:
            raise OptionError(f"{function}: group_size={group_size} without axis; expected both; write axis=-1.")
        return x, [_for_all(function, x, parameter) for parameter in parameters]
    axis = _counted(function, x, axis)
    wanted: tuple[int, ...] = (x.shape[axis],)
    if group_size is not None:
        if group_size < 1 or x.shape[axis] % group_size:
            raise OptionError(
                f"{function}: group_size={group_size} for {x.shape[axis]} elements along axis {axis}; expected a "
                "divisor of them."
            )
        wanted = (*x.shape[:axis], x.shape[axis] // group_size, *x.shape[axis + 1 :])
        x = x.reshape(*wanted[: axis + 1], group_size, *wanted[axis + 1 :])
    found: list[Tensor | float | None] = []
    for parameter in parameters:
        if isinstance(parameter, Tensor) and parameter.numel() != 1:
            if tuple(parameter.shape) != wanted:
                raise ArgumentError(
                    f"{function}: a parameter has the shape {tuple(parameter.shape)}; expected one number or "
                    f"{wanted} for x {tuple(x.shape)} with axis={axis} and group_size={group_size}."
                )
            if group_size is None:
                parameter = parameter.reshape([-1 if d == axis else 1 for d in range(x.dim())])
            else:
                parameter = parameter.unsqueeze(axis + 1)
        found.append(parameter)
    return x, found


def _for_all(function: str, x: Tensor, parameter: Tensor | float | None) -> Tensor | float | None:
    """Return a parameter that is given without an axis, in a shape which does not change that of ``x``.

    Raises:
        ArgumentError: it has many numbers, and does not say for which elements.
    """
    if not isinstance(parameter, Tensor):
        return parameter
    if parameter.numel() == 1:
        return parameter.reshape(()) if parameter.dim() > x.dim() else parameter
    if parameter.dim() != x.dim() or any(n not in (1, of) for n, of in zip(parameter.shape, x.shape)):
        # Broadcasting would line it up with the last dimension, in a square matrix without a word.
        raise ArgumentError(
            f"{function}: a parameter has the shape {tuple(parameter.shape)}; expected one number for x "
            f"{tuple(x.shape)} without axis; write axis=0 for one for each row, or give it every dimension of x."
        )
    return parameter


def check_broadcast(function: str, name: str, value: Tensor | float, x: Tensor) -> None:
    """Refuse a tensor that would change the shape of ``x``.

    Raises:
        ArgumentError: it does not broadcast to the shape of ``x``.
    """
    if not isinstance(value, Tensor):
        return
    ahead = x.dim() - value.dim()
    if ahead < 0 or any(n not in (1, of) for n, of in zip(value.shape, x.shape[ahead:])):
        raise ArgumentError(
            f"{function}: {name} has the shape {tuple(value.shape)}; expected one that broadcasts to that of x, "
            f"{tuple(x.shape)}; give a number, or a tensor of such a shape."
        )


def by_element(x: Tensor, parameter: Any, axis: int | None, group_size: int | None) -> Tensor:
    """Return a parameter once for each element of ``x``, in float64; zeros for None."""
    grouped, (spread,) = arranged("by_element", x, (parameter,), axis, group_size)
    return (
        torch.as_tensor(0.0 if spread is None else spread, dtype=torch.float64).expand(grouped.shape).reshape(x.shape)
    )


def weighed(parameter: Tensor, factor: float) -> Tensor:
    """Return a parameter as it is, whose gradient is multiplied by a factor (for surrogates)."""
    return parameter * factor + (parameter * (1 - factor)).detach()


def total(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return sums over some dimensions, which stay with length 1.

    They are taken in float64 where the device has it: in float32 their last digits depend on the order of the sum, so
    that another one would give other codes, for example in compiled code.
    """
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    return x.sum(dims, keepdim=True, dtype=wide) if dims else x.to(wide)  # for torch, no dimensions are all of them


def mean_size(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the mean of the sizes over some dimensions, which stay with length 1."""
    return total(x.abs(), dims) / math.prod([x.shape[d] for d in dims])
