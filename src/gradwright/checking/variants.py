"""Variants of a case: the same subject on other inputs that are derived from the ones that were given."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import Tensor

from gradwright.checking import trees
from gradwright.checking.audit import functions_in_graph
from gradwright.checking.case import Case
from gradwright.checking.report import Outcome
from gradwright.errors import GradwrightError

Place: TypeAlias = tuple[int, int]
"""Where a tensor is among the arguments: number of the argument, number of the leaf within it."""


@dataclass(frozen=True)
class Slot:
    """One tensor among the arguments of a case."""

    place: Place
    name: str
    tensor: Tensor
    number: int | None
    """Which differentiable input it is, or None for a constant."""
    state: bool
    """True for the parameters and buffers of a module."""


@contextmanager
def quietly() -> Iterator[None]:
    """Silence warnings: one about inputs that the user did not give (an overflow, say) is no news for the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def slots(case: Case) -> list[Slot]:
    """Return every tensor among the arguments of a case, in order."""
    numbers = {(item.argument, item.leaf): k for k, item in enumerate(case.inputs)}
    found = []
    for a, argument in enumerate(case.arguments):
        leaves, _ = trees.flatten(argument.value)
        paths = [""] if isinstance(argument.value, Tensor) else trees.leaf_paths(argument.value)
        state = argument.origin in ("parameter", "buffer")
        for i, (leaf, path) in enumerate(zip(leaves, paths)):
            if isinstance(leaf, Tensor):
                found.append(Slot((a, i), argument.name + path, leaf, numbers.get((a, i)), state))
    return found


def vary(case: Case, changed: Mapping[Place, Tensor]) -> Case:
    """Return the case with some of its tensors replaced.

    Raises:
        GradwrightError: forward raises there.
    """
    arguments = []
    for a, argument in enumerate(case.arguments):
        leaves, structure = trees.flatten(argument.value)
        leaves = [
            changed[a, i].detach().requires_grad_(leaf.requires_grad) if (a, i) in changed else leaf
            for i, leaf in enumerate(leaves)
        ]
        arguments.append(replace(argument, value=trees.unflatten(leaves, structure)))
    with quietly():
        variant = case.on(arguments)
    if case.randomness != "none":
        variant.randomness = case.randomness  # few elements may agree by chance
    return variant


def try_vary(case: Case, changed: Mapping[Place, Tensor]) -> Case | None:
    """Return the varied case when forward runs there, has gradients, and gives finite values; else None."""
    for slot in slots(case):
        if slot.place in changed and not case.domain.contains(slot.name, changed[slot.place]):
            return None
    try:
        variant = vary(case, changed)
        if variant.randomness == "uncontrolled" or (variant.detached and not case.detached):
            return None
        return variant if bool(variant.value().isfinite().all()) else None
    except GradwrightError:
        return None


def without_rule(case: Case) -> Outcome | None:
    """Return the outcome of a contract that leaves the sample when only PyTorch's own derivatives take part, else None.

    Away from the sample they have faults of their own, and some of their kernels crash on sizes that do not fit.
    """
    if is_hand_written(case):
        return None
    return Outcome("skipped", "no hand-written gradient takes part; PyTorch's own are judged on the sample only")


def is_hand_written(case: Case) -> bool:
    """Tell whether a rule somebody wrote is involved, rather than PyTorch's own derivatives alone."""
    return case.subject.hand_written or bool(functions_in_graph(case))
