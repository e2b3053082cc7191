"""What is seen of values before a shorter way to the same result is taken.

Most numbers need none of the care that a few do. Looking at them costs little beside the arithmetic, but values can
be looked at only in eager mode: in compiled code and under transforms both questions are answered with no.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import Parameter

from gradwright import torch_compat


def visible(values: Tensor) -> bool:
    """Tell whether values may be looked at: not while they are recorded, under transforms, or on a device.

    Under the vmap that runs batched gradients, of which torch tells nobody, looking fails: the others here know that.
    """
    if torch_compat.is_recording() or torch_compat.transforms_active():
        return False
    return type(values) in (Tensor, Parameter) and values.device.type == "cpu"


def seen_below(values: Tensor, high: float) -> bool:
    """Tell whether all values are seen to be below a bound: a shorter way to the same result is open then.

    False where they cannot be looked at.
    """
    if not visible(values):
        return False
    try:
        return not values.numel() or values.amax().item() < high  # nan is not
    except RuntimeError:  # under the vmap of batched gradients
        return False


def seen_within(values: Tensor, low: float, high: float) -> bool:
    """Tell whether all values are seen to lie between two bounds; see :func:`seen_below`."""
    return seen_below(values, high) and (not values.numel() or values.amin().item() > low)
