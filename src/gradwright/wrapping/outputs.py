"""What a foreign function returns, said beforehand: ``gw.like``, ``gw.spec`` or a function of empty tensors."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradwright.authoring.derive import smooth
from gradwright.authoring.rules import read_annotations
from gradwright.errors import DefinitionError, OptionError, RuleError, describe_exception, did_you_mean, kind_of

Order: TypeAlias = Literal["C", "F"]


@dataclass(frozen=True)
class Like:
    """An output that is built like an argument."""

    argument: int | str
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Spec:
    """An output of a shape, a dtype and an order of its elements in memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    order: Order = "C"


Fake: TypeAlias = Callable[..., Any]
Out: TypeAlias = Like | Spec | Fake | tuple[Like | Spec, ...] | None


def like(argument: int | str = 0, *, dtype: torch.dtype | None = None) -> Like:
    """Say that a foreign function returns something of the shape and dtype of one of its arguments.

    Arguments:
        argument: its position or its name.
        dtype: another dtype.

    Example:
        >>> import gradwright as gw
        >>> gw.like("x")
        Like(argument='x', dtype=None)
    """
    if isinstance(argument, bool) or not isinstance(argument, (int, str)):
        raise OptionError(f"like: got {argument!r}; expected the position or the name of an argument.")
    return Like(argument, dtype)


def spec(shape: int | Sequence[int], dtype: torch.dtype | None = None, *, order: Order = "C") -> Spec:
    """Say what a foreign function returns.

    Arguments:
        shape: of the output; ``()`` for a number.
        dtype: of the output; None for that of the floating arguments.
        order: of its elements in memory, ``"C"`` (the last index runs fastest) or ``"F"`` (the first one).

    Example:
        >>> import gradwright as gw
        >>> gw.spec((3, 2))
        Spec(shape=(3, 2), dtype=None, order='C')
    """
    sizes: Any = (shape,) if isinstance(shape, int) and not isinstance(shape, bool) else shape
    if not isinstance(sizes, Sequence) or not all(isinstance(n, int) and n >= 0 for n in sizes):
        raise OptionError(f"spec: shape is {shape!r}; expected a tuple of sizes; write gw.spec((3, 2)).")
    if order not in ("C", "F"):
        raise OptionError(f"spec: order is {order!r}; expected 'C' or 'F'.")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise OptionError(f"spec: dtype is {dtype!r}; expected one of torch's; write dtype=torch.float64.")
    return Spec(tuple(sizes), dtype, order)


class Declared:
    """What was said of the outputs of one function.

    Raises:
        DefinitionError: it says something that cannot be used.
    """

    def __init__(self, name: str, out: Any, arguments: Sequence[str]) -> None:
        self.name, self.out, self.arguments = name, out, arguments
        parts = out if isinstance(out, tuple) else (out,)
        if out == () or not all(
            isinstance(part, (Like, Spec)) or (callable(part) and len(parts) == 1) for part in parts
        ):
            raise DefinitionError(
                f"{name}: out is {out!r}; expected what it returns: gw.like(0) (as the first argument), gw.spec(shape, "
                "dtype), a tuple of these, or a function of the same arguments that returns empty tensors."
            )
        for part in parts:
            if isinstance(part, Like):
                self.place_of(part)

    def place_of(self, part: Like) -> str:
        """Return the name of the argument that an output is like."""
        known = self.arguments
        if isinstance(part.argument, str):
            if part.argument not in known:
                raise DefinitionError(
                    f"{self.name}: out=gw.like({part.argument!r}) names no argument; expected one of "
                    f"{', '.join(known)}; correct the name.{did_you_mean(part.argument, known)}"
                )
            return part.argument
        if not -len(known) <= part.argument < len(known):
            raise DefinitionError(
                f"{self.name}: out=gw.like({part.argument}), but it has {len(known)} arguments; expected a position "
                f"from 0 to {len(known) - 1}, or a name."
            )
        return known[part.argument]

    @functools.cached_property
    def number(self) -> int | None:
        """The length of the tuple that is returned, None for one output; of a function, by its annotation."""
        if isinstance(self.out, (Like, Spec)):
            return None
        if isinstance(self.out, tuple):
            return len(self.out)
        parts = typing.get_args(read_annotations(self.out).get("return"))
        return len(parts) or None

    def empty(self, values: Mapping[str, Any], batch: Sequence[int] = ()) -> tuple[Tensor, ...]:
        """Return empty tensors like the outputs for the arguments of one sample, with the sizes of a batch before.

        Raises:
            RuleError: what was declared does not fit the arguments.
        """
        first = next(value for value in values.values() if isinstance(value, Tensor))
        floating = [v.dtype for v in values.values() if isinstance(v, Tensor) and smooth(v)]
        usual = functools.reduce(torch.promote_types, floating) if floating else torch.get_default_dtype()
        if isinstance(self.out, (Like, Spec, tuple)):
            parts = self.out if isinstance(self.out, tuple) else (self.out,)
            return tuple([self._one(part, values, tuple(batch), usual, first.device) for part in parts])
        said = self._said(values)
        tensors = said if isinstance(said, tuple) else (said,)
        if not all(isinstance(tensor, Tensor) for tensor in tensors):
            raise RuleError(
                f"{self.name}: the function given as out returned {kind_of(said)}; expected an empty tensor or a tuple "
                "of them; write `return torch.empty(shape, dtype=...)`, or use gw.spec."
            )
        return tuple([t if not batch else t.new_empty((*batch, *t.shape)) for t in tensors])

    def _said(self, values: Mapping[str, Any]) -> Any:
        try:
            return self.out(**values)
        except Exception as error:
            raise RuleError(
                f"{self.name}: the function given as out raised {describe_exception(error)}; expected one of the same "
                f"arguments ({', '.join(self.arguments)}) that returns empty tensors; correct it, or use gw.spec."
            ) from error

    def _one(
        self, part: Like | Spec, values: Mapping[str, Any], batch: tuple[int, ...], usual: torch.dtype, device: Any
    ) -> Tensor:
        if isinstance(part, Like):
            model = values[self.place_of(part)]
            if not isinstance(model, Tensor):
                raise RuleError(
                    f"{self.name}: out=gw.like({part.argument!r}), which is {kind_of(model)} in this call; expected a "
                    "tensor; declare gw.spec(shape, dtype) or pass a tensor."
                )
            return torch.empty((*batch, *model.shape), dtype=part.dtype or model.dtype, device=device)
        shape = (*batch, *part.shape)
        empty = torch.empty(shape, dtype=part.dtype or usual, device=device)
        if part.order == "C" or len(part.shape) < 2:
            return empty
        order = (*range(len(batch)), *reversed(range(len(batch), len(shape))))
        turned = torch.empty([shape[i] for i in order], dtype=empty.dtype, device=device)
        return turned.permute(order)
