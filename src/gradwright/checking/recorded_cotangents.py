"""The cotangents that a running program handed to backward, for the differentiable outputs of a case."""

from __future__ import annotations

from torch import Tensor

from gradwright.checking import trees
from gradwright.checking.case import Case


def recorded_cotangents(case: Case) -> list[Tensor | None] | None:
    """Return the recorded cotangent of each differentiable output; None where none fits, or none is known."""
    given = case.sample.cotangents
    if given is None:
        return None
    leaves, _ = trees.flatten(case.forward().returned)
    if len(leaves) != len(given):
        return None
    of_tensors = [g for g, leaf in zip(given, leaves) if isinstance(leaf, Tensor)]
    found = [of_tensors[out.position] for out in case.outputs]
    pairs = zip(found, case.outputs)
    fits = all(g is None or (g.shape, g.dtype) == (out.shape, out.dtype) for g, out in pairs)
    return found if fits else None
