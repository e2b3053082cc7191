"""The declared domain of a sample: bounds within which the inputs of a subject mean something."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwright.errors import SampleError, did_you_mean

Bounds: TypeAlias = tuple[float, float]
UNBOUNDED: Bounds = (-math.inf, math.inf)


@dataclass(frozen=True)
class Domain:
    """Closed bounds for the real inputs of a subject; the check evaluates it nowhere else."""

    everywhere: Bounds = UNBOUNDED
    by_name: Mapping[str, Bounds] = field(default_factory=dict)

    def of(self, name: str) -> Bounds:
        """Return the bounds of an input; those of an argument hold for every tensor inside it."""
        return self.by_name.get(name, self.by_name.get(name.partition("[")[0], self.everywhere))

    def is_bounded(self, name: str) -> bool:
        """Tell whether anything is declared for an input."""
        return self.of(name) != UNBOUNDED

    def contains(self, name: str, values: Tensor) -> bool:
        """Tell whether all values of an input lie in its bounds; complex and integer ones always do."""
        low, high = self.of(name)
        if (low, high) == UNBOUNDED or not values.is_floating_point() or not values.numel():
            return True
        values = values.detach().to(torch.float64)
        return bool(((values >= low) & (values <= high)).all())


def parse_domain(declared: Any, owner: str) -> Domain:
    """Turn what was declared as ``domain`` into bounds.

    Arguments:
        declared: one pair ``(low, high)`` for all inputs, a dictionary from input names to pairs, or None. None in the
            place of a bound means that there is none on that side.
        owner: how to call the declaration in messages.

    Raises:
        SampleError: it is neither, or a pair is not in order.
    """
    if declared is None:
        return Domain()
    if isinstance(declared, Mapping):
        return Domain(by_name={str(name): _pair(pair, f"{owner}[{name!r}]") for name, pair in declared.items()})
    return Domain(everywhere=_pair(declared, owner))


def refuse_unknown(domain: Domain, known: Sequence[str], owner: str) -> None:
    """Raise SampleError when a domain names an input that does not exist."""
    names = {name.partition("[")[0] for name in known} | set(known)
    for name in domain.by_name:
        if name not in names:
            raise SampleError(
                f"{owner}: domain names the unknown input {name!r}; expected one of {', '.join(known)}."
                f"{did_you_mean(name, known)}"
            )


def refuse_outside(domain: Domain, name: str, values: Tensor, owner: str) -> None:
    """Raise SampleError when a sample lies outside the domain it declares."""
    if not domain.contains(name, values):
        low, high = domain.of(name)
        raise SampleError(
            f"{owner}: the sample's `{name}` lies outside its declared domain, {low:g} to {high:g}; expected every "
            "value within it; change the sample or the domain."
        )


def _pair(pair: Any, owner: str) -> Bounds:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise SampleError(
            f"{owner}: got {pair!r}; expected a pair (low, high), or a dictionary from input names to pairs, with None "
            "for no bound, for example domain=(0, None)."
        )
    ends = []
    for end, missing in zip(pair, UNBOUNDED):
        if end is not None and (isinstance(end, bool) or not isinstance(end, (int, float)) or math.isnan(end)):
            raise SampleError(f"{owner}: got the bound {end!r}; expected a number or None.")
        ends.append(missing if end is None else float(end))
    low, high = ends
    if not low < high:
        raise SampleError(f"{owner}: got {low:g} to {high:g}; expected the lower bound first, below the upper one.")
    return low, high
