"""Gradients that are approximations and say so: how far they may be off before anybody is accused."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.allowances import Allowances
from gradwright.checking.graph import graph_nodes
from gradwright.checking.judge import largest_entry
from gradwright.checking.subject import Subject


class Approximations:
    """What a subject, and the functions behind its outputs, declare of their own gradients.

    It is asked for when it is needed: how precise differences are, is known once some were taken.
    """

    def __init__(self, subject: Subject, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        behind = [getattr(torch_compat.node_function(node), "gw_definition", None) for node in graph_nodes(outputs)]
        self._declared = [subject, *(each for each in behind if each is not None)]
        # A gradient is about as large as the outputs beside the inputs, so that is what an error is relative to.
        smallest = min((size for x in inputs if (size := largest_entry(x))), default=1.0)
        self._size = largest_entry(*(out.detach() for out in outputs)) / smallest

    @property
    def accuracy(self) -> float:
        """The largest relative error, infinite where one is right on average only."""
        return max(float(each.accuracy) for each in self._declared)

    def allowed(self, allowances: Allowances) -> Allowances:
        """Return allowances that are no smaller than what is declared."""
        accuracy = self.accuracy
        if not accuracy or math.isinf(accuracy):
            return allowances
        return allowances.with_accuracy(accuracy, accuracy * self._size)
