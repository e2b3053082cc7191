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
    accuracy: float = 0.0
    """The relative error that its gradient may have by the way it is computed."""
