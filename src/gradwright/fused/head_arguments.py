"""The arguments that functions of a linear layer and a loss have in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwright.errors import ArgumentError, OptionError
from gradwright.fused.heads import Bend
from gradwright.stable.arguments import require_floating, require_number


@dataclass(frozen=True)
class Head:
    """The layer, with all rows of its input in one dimension."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    leading: torch.Size
    """The shape of the input without its features."""

    @property
    def classes(self) -> int:
        """How many numbers the layer returns for a row."""
        return int(self.weight.shape[0])


def flat_head(name: str, x: Tensor, weight: Tensor, bias: Tensor | None, *, prefix: str = "linear_") -> Head:
    """Return the layer, cast as autocast casts the input of a layer.

    Raises:
        ArgumentError: shapes or dtypes do not fit.
    """
    weight_name, bias_name = f"{prefix}weight", f"{prefix}bias"
    require_floating(name, **{"x": x, weight_name: weight}, **({} if bias is None else {bias_name: bias}))
    if weight.dim() != 2 or not x.dim() or x.shape[-1] != weight.shape[1]:
        raise ArgumentError(
            f"{name}: x has the shape {tuple(x.shape)} and {weight_name} {tuple(weight.shape)}; expected (..., "
            "features) and (classes, features), as for torch.nn.functional.linear; transpose or reshape one."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ArgumentError(
            f"{name}: {bias_name} has the shape {tuple(bias.shape)}; expected ({weight.shape[0]},), one number for each"
            " class; reshape it."
        )
    device = x.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x, weight = _cast(x, dtype), _cast(weight, dtype)
        bias = None if bias is None else _cast(bias, dtype)
    given = {tensor.dtype for tensor in (x, weight, bias) if tensor is not None}
    if len(given) > 1:
        third = "" if bias is None else f", {bias_name} {bias.dtype}"
        raise ArgumentError(
            f"{name}: x is {x.dtype}, {weight_name} {weight.dtype}{third}; expected one dtype, as for "
            "torch.nn.functional.linear; convert them, or use torch.autocast."
        )
    return Head(x.reshape(-1, x.shape[-1]), weight, bias, x.shape[:-1])


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)


def check_bend(name: str, softcap: float | None, temperature: float = 1.0) -> Bend:
    """Return what is done to logits.

    Raises:
        OptionError: a number is not positive.
    """
    require_number(name, temperature=temperature, **({} if softcap is None else {"softcap": softcap}))
    for option, value in (("softcap", softcap), ("temperature", temperature)):
        if value is not None and not value > 0:
            raise OptionError(f"{name}: {option} is {value}; expected a positive number; correct it.")
    return Bend(softcap, temperature)


def require_block(name: str, block: object) -> None:
    """Refuse what is no number of rows.

    Raises:
        OptionError: it is.
    """
    if block is not None and (not isinstance(block, int) or isinstance(block, bool) or block < 1):
        raise OptionError(f"{name}: block is {block!r}; expected a number of rows, or None; leave it away.")
