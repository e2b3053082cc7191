"""The cotangents that a running program handed to backward, for the differentiable outputs of a case."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright.checking import trees
from gradwright.checking.case import Case
from gradwright.checking.limits import STOPS
from gradwright.checking.tensors import copy_of


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


def raises_only_here(case: Case) -> bool:
    """Tell whether backward raises for the recorded cotangents, with which it ran to its end in the program."""
    given = recorded_cotangents(case)
    if given is None:
        return False
    filled = [torch.zeros(o.shape, dtype=o.dtype) if g is None else copy_of(g) for g, o in zip(given, case.outputs)]
    run = case.forward()
    try:
        with case.sandbox():
            run.gradients(filled)
    except STOPS:
        raise
    except BaseException:
        return True
    return False
