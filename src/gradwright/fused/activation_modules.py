"""Modules of the activations that keep their output alone, and of the layers that keep their input alone.

Each takes the place of PyTorch's: same constructor, same names in the state dict, and an instance of its class. They do
nothing in place: what ``inplace=True`` saves is saved by keeping one tensor instead of two.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradwright.errors import OptionError, unknown_choice
from gradwright.fused.activated_linear import gelu_linear, mish_linear, silu_linear
from gradwright.fused.kinked import hardtanh, leaky_relu, relu6
from gradwright.fused.outputs import celu, elu, selu, softplus


def _never_in_place(module: str, inplace: bool) -> None:
    if inplace:
        raise OptionError(
            f"{module}: inplace is True; expected False, as nothing is kept but the output anyway; leave it away."
        )


class Softplus(nn.Softplus):
    """``torch.nn.Softplus`` by :func:`gradwright.fused.softplus`.

    Arguments:
        beta: how steep it is.
        threshold: of ``beta x``, beyond which it is ``x``.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.Softplus()
        Softplus(beta=1.0, threshold=20.0)
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of ``input``."""
        return softplus(input, self.beta, self.threshold)


class ELU(nn.ELU):
    """``torch.nn.ELU`` by :func:`gradwright.fused.elu`.

    Arguments:
        alpha: minus the limit on the negative side.
        inplace: False.

    Raises:
        OptionError: ``inplace`` is True.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.ELU(0.5)
        ELU(alpha=0.5)
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        _never_in_place("ELU", inplace)
        super().__init__(alpha)

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of ``input``."""
        return elu(input, self.alpha)


class CELU(nn.CELU):
    """``torch.nn.CELU`` by :func:`gradwright.fused.celu`.

    Arguments:
        alpha: minus the limit on the negative side.
        inplace: False.

    Raises:
        OptionError: ``inplace`` is True.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.CELU(0.5)
        CELU(alpha=0.5)
    """

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        _never_in_place("CELU", inplace)
        super().__init__(alpha)

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of ``input``."""
        return celu(input, self.alpha)


class SELU(nn.SELU):
    """``torch.nn.SELU`` by :func:`gradwright.fused.selu`.

    Arguments:
        inplace: False.

    Raises:
        OptionError: ``inplace`` is True.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.SELU()
        SELU()
    """

    def __init__(self, inplace: bool = False) -> None:
        _never_in_place("SELU", inplace)
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of ``input``."""
        return selu(input)


class LeakyReLU(nn.LeakyReLU):
    """``torch.nn.LeakyReLU`` by :func:`gradwright.fused.leaky_relu`.

    Arguments:
        negative_slope: the slope where the input is not positive.
        inplace: False.

    Raises:
        OptionError: ``inplace`` is True.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.LeakyReLU(0.2)
        LeakyReLU(negative_slope=0.2)
    """

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        _never_in_place("LeakyReLU", inplace)
        super().__init__(negative_slope)

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of ``input``."""
        return leaky_relu(input, self.negative_slope)


class Hardtanh(nn.Hardtanh):
    """``torch.nn.Hardtanh`` by :func:`gradwright.fused.hardtanh`.

    Arguments:
        min_val: the lower bound.
        max_val: the upper bound.
        inplace: False.

    Raises:
        OptionError: ``inplace`` is True.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.Hardtanh(-2.0, 2.0)
        Hardtanh(min_val=-2.0, max_val=2.0)
    """

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        _never_in_place("Hardtanh", inplace)
        super().__init__(min_val, max_val)

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of ``input``."""
        return hardtanh(input, self.min_val, self.max_val)


class ReLU6(nn.ReLU6):
    """``torch.nn.ReLU6`` by :func:`gradwright.fused.relu6`.

    Arguments:
        inplace: False.

    Raises:
        OptionError: ``inplace`` is True.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.ReLU6()
        ReLU6()
    """

    def __init__(self, inplace: bool = False) -> None:
        _never_in_place("ReLU6", inplace)
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation of ``input``."""
        return relu6(input)


class GELULinear(nn.Linear):
    """``Sequential(GELU(approximate), Linear(...))`` by :func:`gradwright.fused.gelu_linear`.

    It is the linear layer, with its parameters under its names: in a model put it in the place of that, and
    ``torch.nn.Identity()`` in the place of the activation.

    Arguments:
        in_features: how many numbers go into the activation and the layer.
        out_features: how many come out.
        bias: whether there is one.
        device: of the parameters.
        dtype: of the parameters.
        approximate: ``"none"`` or ``"tanh"``, as for ``torch.nn.GELU``.

    Raises:
        OptionError: ``approximate`` is something else.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.GELULinear(4, 2, approximate="tanh")
        GELULinear(in_features=4, out_features=2, bias=True, approximate='tanh')
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        approximate: str = "none",
    ) -> None:
        if approximate not in ("none", "tanh"):
            raise unknown_choice("approximate", approximate, ("none", "tanh"))
        super().__init__(in_features, out_features, bias, device, dtype)
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output for the activation of ``input``."""
        return gelu_linear(input, self.weight, self.bias, self.approximate)

    def extra_repr(self) -> str:
        """Return the arguments of the constructor."""
        return f"{super().extra_repr()}, approximate={self.approximate!r}"


class SiLULinear(nn.Linear):
    """``Sequential(SiLU(), Linear(...))`` by :func:`gradwright.fused.silu_linear`; takes the arguments of ``Linear``.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.SiLULinear(4, 2)
        SiLULinear(in_features=4, out_features=2, bias=True)
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output for the activation of ``input``."""
        return silu_linear(input, self.weight, self.bias)


class MishLinear(nn.Linear):
    """``Sequential(Mish(), Linear(...))`` by :func:`gradwright.fused.mish_linear`; takes the arguments of ``Linear``.

    Example:
        >>> import torch, gradwright as gw
        >>> gw.fused.MishLinear(4, 2)
        MishLinear(in_features=4, out_features=2, bias=True)
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's output for the activation of ``input``."""
        return mish_linear(input, self.weight, self.bias)
