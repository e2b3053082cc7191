"""The derivative of a batch where the rules are on tensors: that of each sample, under ``vmap``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """A function with a derivative of its own, and which of its arguments are differentiated."""

    call: Callable[[Sequence[Any]], Any]
    """Runs one sample, given all arguments by position."""
    places: Sequence[int]

    def pull(self, args: Sequence[Any], batch: int, c: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the gradient for each place, with the leading dimensions of the batch; None is a zero cotangent."""

        def one(args: list[Any], given: list[Any]) -> tuple[Any, ...]:
            found = torch.func.vjp(self._moving(args), *(args[place] for place in self.places))
            outs, pulled = found[0], found[1]
            left = iter(given)
            if not isinstance(outs, tuple):
                return tuple(pulled(next(left)))
            return tuple(pulled(tuple([torch.zeros_like(o) if g is None else next(left) for o, g in zip(outs, c)])))

        return list(_by_sample(one, batch, args, [g for g in c if g is not None]))

    def push(self, args: Sequence[Any], batch: int, t: Sequence[Tensor]) -> list[Tensor]:
        """Return the tangent of each output, with the leading dimensions of the batch."""

        def one(args: list[Any], t: list[Any]) -> tuple[Any, ...]:
            primals = tuple([args[place] for place in self.places])
            pushed = torch.func.jvp(self._moving(args), primals, tuple(t))[1]
            return pushed if isinstance(pushed, tuple) else (pushed,)

        return list(_by_sample(one, batch, args, t))

    def _moving(self, args: Sequence[Any]) -> Callable[..., Any]:
        def function(*moving: Any) -> Any:
            values = list(args)
            for place, value in zip(self.places, moving):
                values[place] = value
            return self.call(values)

        return function


def _by_sample(function: Callable[..., Any], batch: int, args: Sequence[Any], more: Sequence[Tensor]) -> Any:
    """Call a function of arguments and further tensors under one ``vmap`` for each leading dimension."""
    tensors = [each for each in (*args, *more) if isinstance(each, Tensor)]
    lead = torch.broadcast_shapes(*(each.shape[:batch] for each in tensors))

    def flat(*given: Tensor) -> Any:
        left = iter(given)
        own = [next(left) if isinstance(arg, Tensor) else arg for arg in args]
        return function(own, list(left))

    for _ in range(batch):
        flat = torch.func.vmap(flat)
    return flat(*[each.expand(*lead, *each.shape[batch:]) for each in tensors])
