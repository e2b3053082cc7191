"""Trying a plan: forward and backward on fresh tensors, isolated from everything else, and how well that went."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking import trees
from gradwright.checking.inputs import Built, build
from gradwright.checking.limits import time_limit
from gradwright.checking.plans import Plan
from gradwright.checking.randomness import fixed_random_state
from gradwright.checking.samples import Sample
from gradwright.checking.settings import preserved_settings
from gradwright.checking.subject import Subject


class UnusableError(Exception):
    """Forward ran, but what it returned is of no use to a check."""


class Rank(IntEnum):
    """How good an attempt was, the best last."""

    FAILED = 0
    NOT_DIFFERENTIABLE = 1
    """Forward runs, but nothing it returns requires grad."""
    NOT_FINITE = 2
    """Part of the output is infinite or not a number."""
    CONSTANT = 3
    """Forward runs, but the output does not depend on the inputs; backward raises."""
    CONSTANT_BACKWARD = 4
    """The same, and backward runs."""
    FORWARD = 5
    """Forward runs and depends on the inputs; backward raises, or gives no finite gradient."""
    BACKWARD = 6
    """Backward runs too."""


@dataclass
class Attempt:
    """What came of running the subject on one plan."""

    plan: Plan
    rank: Rank
    error: BaseException | None = None
    """Why forward, or else backward, failed."""
    constants: tuple[str, ...] = ()
    """Parameters that are tensors and for which backward gives no gradient, while it does for others."""
    number: int = 0
    """How many tries it took."""
    all_float32: bool = False
    """Every floating output was float32 although the inputs were float64."""


def try_plan(subject: Subject, plan: Plan, seed: int, seconds: float) -> Attempt:
    """Run forward and backward on fresh tensors; nothing that happens inside reaches the next try."""
    attempt = Attempt(plan, Rank.FAILED)
    try:
        with _isolated(seed), time_limit(seconds):
            _run(subject, plan, seed, attempt)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        attempt.error = error
    return attempt


def _run(subject: Subject, plan: Plan, seed: int, attempt: Attempt) -> None:
    built = build(plan, seed)
    outputs = _forward(subject, built)
    floating = [out for out in outputs if out.is_floating_point() or out.is_complex()]
    if not floating or not any(bool(torch.isfinite(out).any()) for out in floating if out.numel()):
        raise UnusableError("returned no finite floating-point tensor")
    attempt.rank = Rank.NOT_DIFFERENTIABLE
    differentiable = [out for out in floating if out.requires_grad]
    if not differentiable:
        return
    given_float64 = any(leaf.dtype is torch.float64 for leaf in built.leaves)
    attempt.all_float32 = given_float64 and all(out.dtype is torch.float32 for out in floating)
    if not all(bool(torch.isfinite(out).all()) for out in floating):
        attempt.rank = Rank.NOT_FINITE
        return
    again = _forward(subject, build(plan, seed, draw=1))
    depends = not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(outputs, again))
    attempt.rank = Rank.FORWARD if depends else Rank.CONSTANT
    cotangents = [torch.randn_like(out) for out in differentiable]
    gradients: Sequence[Tensor | None] = torch.autograd.grad(
        differentiable, built.leaves, cotangents, allow_unused=True
    )
    given = [g for g in gradients if g is not None]
    if not given or not all(bool(torch.isfinite(g).all()) for g in given):
        return
    attempt.rank = Rank.BACKWARD if depends else Rank.CONSTANT_BACKWARD
    attempt.constants = tuple(
        dict.fromkeys(name for name, g in zip(built.names, gradients) if not isinstance(g, Tensor))
    )


def _forward(subject: Subject, built: Built) -> list[Tensor]:
    sample = Sample(tuple(map(_pass_on, built.args)), {name: _pass_on(v) for name, v in built.kwargs.items()})
    leaves, _ = trees.flatten(subject.call(subject.bind(sample)))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _pass_on(value: Any) -> Any:
    """Pass computed tensors, not leaves: an in-place Function refuses a leaf that requires grad."""
    leaves, structure = trees.flatten(value)
    return trees.unflatten([x.clone() if isinstance(x, Tensor) else x for x in leaves], structure)


@contextlib.contextmanager
def _isolated(seed: int) -> Iterator[None]:
    with (
        fixed_random_state(seed),
        preserved_settings(),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        torch.enable_grad(),
    ):
        warnings.simplefilter("ignore")
        yield


@cache
def warm_up() -> None:
    """Let torch import what it imports at the first backward, which takes longer than a try may take."""

    class Identity(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    Identity.apply(torch.ones(1, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]
