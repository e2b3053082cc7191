"""An accusation along a direction of many elements, followed down to one element that proves it.

Where several elements lie at kinks, what they add to the slopes of the two sides of a sum may cancel: the sum looks
smooth, and yet its slope is none that a right rule must have there. Along a single element nothing cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto

import torch
from torch import Tensor

TRIED = 24
"""Parts of a direction that are looked at. With many kinks an error may escape: it is missed, and nobody is accused."""


class Standing(Enum):
    """What is known of a part of a direction."""

    FINE = auto()
    OPEN = auto()
    WRONG = auto()


def wrong_element(u: Tensor, guesses: Iterable[int], judge: Callable[[Tensor], Standing]) -> int | None:
    """Return an element that is wrong when it is moved alone, or None when none was found.

    Arguments:
        u: the direction, shape (n,).
        guesses: elements to be looked at before all others.
        judge: tells the standing of a part of the direction: ``u`` with zeros in place of its other elements.
    """

    def standing(part: Tensor) -> Standing:
        alone = torch.zeros_like(u)
        alone[part] = u[part]
        return judge(alone)

    for guess in guesses:
        if standing(torch.tensor([guess])) is Standing.WRONG:
            return guess
    waiting = [u.nonzero().flatten()]
    for _ in range(TRIED):
        if not waiting:
            break
        part = waiting.pop()
        found = standing(part)
        if len(part) == 1:
            if found is Standing.WRONG:
                return int(part)
        elif found is not Standing.FINE:
            waiting += reversed(part.tensor_split(2))
    return None
