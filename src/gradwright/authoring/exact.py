"""Functions of the catalogue whose gradient is the true one, also where PyTorch's is nan, wrong, zero or missing.

An entry declares what it computes a second time, for numbers of any precision; the suite that proves it differentiates
that in as many digits as it takes, and compares values, first and second derivatives with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Entry, Example, definition_of, public_name

F = TypeVar("F", bound=Callable[..., Any])

Measure: TypeAlias = Literal["element", "tensor"]
"""What an error is relative to: each element of the truth, or the largest one of its tensor."""

ALL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that most entries know."""
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Point(Example):
    """Arguments of one call, and what is known of the truth there where it is no limit of differences.

    Differences are not asked where an argument is infinite: a derivative with respect to it counts as zero. Nor where
    the function has a kink, and a convention says what its derivative is: then the truth is given here.
    """

    value: Any = None
    """The true value: a number for all elements, or nested lists; None where the reference gives it."""
    first: Mapping[str, Any] = field(default_factory=dict)
    """The true derivative of the sum of the outputs with respect to arguments, by name; others from the reference."""
    second: Mapping[str, Any] = field(default_factory=dict)
    """The same of the sum of those derivatives, each once more differentiated."""
    extreme: bool = False
    """Whether values lie where differences in the dtype itself cannot tell anything: the check may be unresolved."""
    orders: int = 2
    """How many derivatives exist there."""
    scale: float = 0.0
    """What errors are relative to where the truth is smaller: the size of terms that cancel there, as in a determinant
    of zero."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TrueEntry(Entry):
    """A function whose gradient is the true one, however that is known."""

    domain: str
    """For which arguments it is defined, and what it does for others."""
    bars: Mapping[torch.dtype, float]
    """The largest error of the value and of the first derivative, by dtype; its keys are the dtypes it knows."""
    elementwise: bool = True
    """Whether each element of the output depends on the same element of the (broadcast) arguments alone."""
    measure: Measure = "element"
    second_measure: Measure | None = None
    """The same for second derivatives, where they are differences that cancel; None for the same one."""
    observed: Callable[[Any], Tensor] | None = None
    """What of the output is compared with the reference, as one tensor, where the output is several tensors, or is not
    determined by the arguments alone (as eigenvectors are not, up to their signs)."""
    replaces: Callable[..., Any] | None = None
    """What is written today in its place, for the comparison of speed; takes the same arguments."""
    ordinary: Callable[[], tuple[Any, ...]] | None = None
    """Arguments of an ordinary call of the size that people use, in float32; by default one million normal numbers."""
    slower: str = ""
    """The reason where it takes longer than its goal, by default 1.3 times what it replaces."""

    def second_bar(self, dtype: torch.dtype) -> float:
        """Return the largest error that a second derivative may have: that of half types has no room for 100 times."""
        return (4 if dtype in HALF else 100) * self.bars[dtype]

    @property
    def subject(self) -> Callable[..., Any]:
        """The function, as far as its output is determined: what is proved."""
        return self.seen(self.function)

    def seen(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function with the same output, as far as that is compared."""
        observed = self.observed
        return function if observed is None else lambda *args, **kwargs: observed(function(*args, **kwargs))


@dataclass(frozen=True, eq=False, kw_only=True)
class ExactEntry(TrueEntry):
    """One whose truth is computed in as many digits as it takes."""

    reference: Callable[..., Any]
    """Takes mpmath and then the same arguments, and returns the value. With ``elementwise`` tensors are numbers, else
    NumPy arrays of numbers (dtype object); complex ones hold ``mpc``. Everything else is passed as it is."""


def relative(float64: float, float32: float, *half: torch.dtype) -> dict[torch.dtype, float]:
    """Return bars for float64 and float32, and for the half types given: there two roundings of their own.

    Example:
        >>> relative(1e-12, 1e-5)
        {torch.float64: 1e-12, torch.float32: 1e-05}
    """
    found = {torch.float64: float64, torch.float32: float32}
    return {**found, **{dtype: 2 * torch.finfo(dtype).eps for dtype in half}}


def ulps(count: float, *dtypes: torch.dtype) -> dict[torch.dtype, float]:
    """Return bars of so many units in the last place, for the dtypes given or for all.

    Example:
        >>> ulps(4, torch.float32)
        {torch.float32: 4.76837158203125e-07}
    """
    return {dtype: count * torch.finfo(dtype).eps for dtype in dtypes or ALL}


def exact(
    *,
    forward: str,
    gradient: Mapping[str, str],
    reference: Callable[..., Any],
    domain: str,
    bars: Mapping[torch.dtype, float],
    examples: Callable[[torch.dtype], Sequence[Example]],
    paper: str,
    elementwise: bool = True,
    measure: Measure = "element",
    second_measure: Measure | None = None,
    observed: Callable[[Any], Tensor] | None = None,
    replaces: Callable[..., Any] | None = None,
    ordinary: Callable[[], tuple[Any, ...]] | None = None,
    slower: str = "",
) -> Callable[[F], F]:
    """Enter a function into the catalogue; the arguments are those of :class:`ExactEntry`."""

    def enter(function: F) -> F:
        definition_of(function)  # one that is made of others has the same attributes
        vars(function)["__catalogue_entry__"] = ExactEntry(
            name=public_name(function),
            function=function,
            forward=forward,
            gradient=dict(gradient),
            examples=examples,
            paper=paper,
            reference=reference,
            domain=domain,
            bars=dict(bars),
            elementwise=elementwise,
            measure=measure,
            second_measure=second_measure,
            observed=observed,
            replaces=replaces,
            ordinary=ordinary,
            slower=slower,
        )
        return function

    return enter


def sweep(low: int, high: int, dtype: torch.dtype, step: int = 1) -> Tensor:
    """Return plus and minus 1.375 times each power of two from ``low`` to ``high`` that the dtype holds.

    Example:
        >>> sweep(-1, 1, torch.float32)
        tensor([ 0.6875,  1.3750,  2.7500, -0.6875, -1.3750, -2.7500])
    """
    powers = torch.tensor([math.ldexp(1.375, k) for k in range(low, high + 1, step)], dtype=torch.float64).to(dtype)
    powers = powers[powers.isfinite() & (powers != 0)]
    return torch.cat([powers, -powers])


def whole_range(dtype: torch.dtype, count: int = 12) -> Tensor:
    """Return numbers of both signs over the whole range of a dtype, its smallest and its largest ones among them."""
    info = torch.finfo(dtype)
    low, high = math.frexp(info.smallest_normal)[1], math.frexp(info.max)[1] - 2
    step = max((high - low) // count, 1)
    ends = torch.tensor([info.smallest_normal * info.eps, info.smallest_normal, info.max], dtype=dtype)
    return torch.cat([ends, -ends, sweep(low, high, dtype, step)])
