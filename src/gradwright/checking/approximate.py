"""Gradients that are approximations and say so: how far they may be off before anybody is accused."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.allowances import Allowances
from gradwright.checking.graph import graph_nodes
from gradwright.checking.judge import largest_entry
from gradwright.checking.subject import Subject


def allowed(
    allowances: Allowances, subject: Subject, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Allowances:
    """Return the allowances and what the subject, or a function behind the outputs, declares of its own gradient.

    A gradient is about as large as the outputs beside the inputs, so that is the measure of what is relative to it.
    """
    known = [getattr(torch_compat.node_function(node), "gw_definition", None) for node in graph_nodes(outputs)]
    accuracy = max([subject.accuracy, *(float(each.accuracy) for each in known if each is not None)])
    if not accuracy:
        return allowances
    smallest = min((size for x in inputs if (size := largest_entry(x))), default=1.0)
    return allowances.with_accuracy(accuracy, accuracy * largest_entry(*(out.detach() for out in outputs)) / smallest)
