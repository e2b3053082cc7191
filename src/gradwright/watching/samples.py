"""Samples from calls that a program made: as they were, or smaller where they are too large to be checked whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from gradwright.checking import trees
from gradwright.checking.samples import Sample
from gradwright.errors import SampleError
from gradwright.watching.calls import Call, Elsewhere, Unkept
from gradwright.watching.smaller import MANNERS, smaller
from gradwright.watching.specs import TensorSpec

LARGE = 300_000
"""With more elements in all its tensors than this, a call is checked smaller; whole, it would take minutes."""
HUGE = 2_000_000
"""With more elements than this it is not even compared along projections."""
WHEN_LARGE = ("matches-differences",)
"""What is examined on a whole large call."""
SMALLER = "The recorded inputs were made smaller"
DRAWN = "The values of the recorded inputs were not kept, and others are drawn"
NEVER = "The program did not differentiate this call, which leaves open by which inputs it may be"
SHOWN = 3


def as_samples(call: Call, seed: int = 0) -> list[Sample]:
    """Return what a call is checked on: the call itself, or a smaller one and, for a few contracts, the call itself.

    Arguments:
        call: with values as they were captured, or as they were read from a store.
        seed: of what is drawn in the place of values that were not kept.

    Raises:
        SampleError: a value that the call needs was not kept.
    """
    lost = unkept(call)
    if lost is not None:
        raise SampleError(f"{lost}; expected all values of a call; declare a sample.")
    leaves, structure = trees.flatten((call.args, call.kwargs, _cotangents(call)))
    devices = sorted({leaf.device for leaf in leaves if isinstance(leaf, Elsewhere)})
    place = f"recorded on {', '.join(devices)}, checked on the CPU" if devices else ""
    here = [leaf.values if isinstance(leaf, Elsewhere) else leaf for leaf in leaves]
    specified = any(isinstance(leaf, TensorSpec) for leaf in here)
    elements = sum(leaf.numel() for leaf in here if isinstance(leaf, Tensor))

    def named(words: str) -> str | None:
        return ", ".join(filter(None, [words, place, call.note])) or None

    def sample(values: list[Any], words: str = "") -> Sample:
        args, kwargs, cotangents = trees.unflatten(values, structure)
        return Sample(
            args,
            kwargs,
            name=named(words),
            provenance="recorded",
            cotangents=cotangents,
            random_state=call.random_state,
        )

    # Which inputs may be differentiated is only known of a call that was.
    tracked = any(isinstance(leaf, (Tensor, TensorSpec)) and leaf.requires_grad for leaf in here)
    whole = replace(sample(here), doubt=None if tracked else NEVER)
    if not specified and elements <= LARGE:
        return [whole]
    made = []
    for manner in MANNERS:
        values = smaller(here, seed, manner)
        sizes = _sizes(here, values)  # none where they are small already, and only the values are missing
        words, doubt = (f"made smaller: {sizes}", SMALLER) if sizes else ("values drawn", DRAWN)
        made.append(replace(sample(values, words), doubt=doubt))
    samples = [replace(made[0], alternatives=tuple(made[1:]))]
    if not specified and elements <= HUGE:
        samples.append(replace(whole, contracts=WHEN_LARGE, name=named("whole, for the first derivative only")))
    return samples


def unkept(call: Call) -> str | None:
    """Say which value of a call was not kept, and why; None when all were."""
    for number, argument in enumerate(call.args, 1):
        reason = _lost(argument)
        if reason is not None:
            return f"argument {number} could not be kept: {reason}"
    for name, argument in call.kwargs.items():
        reason = _lost(argument)
        if reason is not None:
            return f"`{name}` could not be kept: {reason}"
    return None


def _lost(value: Any) -> str | None:
    for leaf in trees.flatten(value)[0]:
        if isinstance(leaf, Unkept):
            return f"{leaf.what}, {leaf.reason}"
    return None


def _cotangents(call: Call) -> Any:
    """Return the cotangents of a call; None as well when they were not kept, without which it can be checked."""
    return None if _lost(call.cotangents) else call.cotangents


def _sizes(values: Sequence[Any], made: Sequence[Any]) -> str:
    """Say which sizes became which, for example ``(8192, 4096) as (34, 32)``."""
    pairs = {}
    for old, new in zip(values, made):
        if isinstance(old, (Tensor, TensorSpec)) and tuple(old.shape) != tuple(new.shape):
            pairs[tuple(old.shape)] = tuple(new.shape)
    words = [f"{old} as {new}" for old, new in pairs.items()]
    return ", ".join([*words[:SHOWN], *(["..."] if len(words) > SHOWN else [])])
