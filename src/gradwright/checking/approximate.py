"""Gradients that are approximations and say so: how far they may be off before anybody is accused."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from gradwright import torch_compat
from gradwright.checking.allowances import Allowances
from gradwright.checking.graph import graph_nodes
from gradwright.checking.judge import largest_entry

if TYPE_CHECKING:
    from gradwright.checking.case import Case

TOO_ROUGH = 0.05
"""With a larger relative error a gradient is not compared with differences."""


def accuracy_of(case: Case) -> float:
    """Return the relative error that the subject, and the functions behind its outputs, declare of their gradients.

    It is 0 where nothing is declared, and infinite where a gradient is right on average only. How precise differences
    are is known once they were taken at this point, so one gradient is computed.
    """
    declared: list[Any] = [case.subject]
    if not case.subject.hand_written and not case.detached:
        functions = map(torch_compat.node_function, graph_nodes(case.forward().differentiable))
        behind = [getattr(function, "gw_definition", None) for function in functions]
        declared += [each for each in behind if each is not None]
    if not any(float(each.accuracy) for each in declared):
        return 0.0
    with contextlib.suppress(Exception):  # whatever it raises is for the contracts
        case.pull_all(torch.ones(case.m, dtype=torch.float64))
    return max(float(each.accuracy) for each in declared)


def allowed(case: Case) -> Allowances:
    """Return what the caller allows, and no less than what is declared."""
    accuracy = case.accuracy
    if not accuracy or accuracy > TOO_ROUGH:
        return case.granted
    # A gradient is about as large as the outputs beside the inputs, so that is what an error is relative to.
    smallest = min((size for x in case.base if (size := largest_entry(x))), default=1.0)
    outputs = largest_entry(*(out.detach() for out in case.forward().differentiable))
    return case.granted.with_accuracy(accuracy, accuracy * outputs / smallest)
