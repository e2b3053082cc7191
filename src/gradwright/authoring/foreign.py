"""What is known of functions that only call code which autograd cannot see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Foreign:
    """What is known of a function that only calls code which autograd cannot see.

    What its ``.fwd`` keeps is a shortcut: the rules are right without it, and get None where it was not kept.
    """

    source: Callable[..., Any]
    """What the user wrote, around which ``function`` was made."""
    unrecorded: str
    """Why torch.compile and torch.export cannot keep it, where it is no operator."""
    approximation: Any = None
    """How its derivative is computed where there is no rule for it, with an ``accuracy``; None where there is one."""

    @property
    def accuracy(self) -> float:
        """The relative error that its gradient may have by the way it is computed, as far as known."""
        return 0.0 if self.approximation is None else float(self.approximation.accuracy)
