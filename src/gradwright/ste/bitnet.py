"""BitNet b1.58: ternary weights with one scale, and activations of 8 bits with a scale for each token.

Values are the codes times the scale, computed as such: ``w + (q - w)`` would return seven values, not three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring.catalogue import Example, around, catalogued, joined
from gradwright.authoring.decorator import custom_gradient
from gradwright.errors import OptionError
from gradwright.ste.masks import working_dtype
from gradwright.ste.parameters import mean_size
from gradwright.ste.ternary import either, long_tails, three, weights_of_mean
from gradwright.ste.uniform import codes

BITNET = "Ma et al. 2024, arXiv 2402.17764"


def _straight(x: Tensor, **_: Any) -> Tensor:
    return x.clone()


def _passes(g: Tensor) -> Tensor:
    return g


def _check_eps(function: str, eps: float) -> None:
    if not eps > 0:
        raise OptionError(f"{function}: eps is {eps!r}; expected a positive number, for weights that are all zero.")


# -------------------------------------------------------------------- weights


def _weight_size(w: Tensor, eps: float) -> Tensor:
    return w.detach().double().abs().mean().clamp(min=eps).expand(w.shape)


def _weight_values(w: Tensor, *, eps: float = 1e-5) -> Tensor:
    size = _weight_size(w, eps)
    return (w / size).round().clamp(-1, 1) * size


def _weight_codes(w: Tensor, *, eps: float = 1e-5) -> Tensor:
    return either(_scale(w, eps))


def _weight_examples(dtype: torch.dtype) -> Sequence[Example]:
    return [
        Example((weights_of_mean(1.5, 0.75, dtype),), {}, "ties"),
        Example((weights_of_mean(1.0, 1.5, dtype),), {}, "where the larger codes end"),
        Example((long_tails(4, 60, dtype),), {}, "long tails"),
        Example((around(2.0**-8, -(2.0**-8), dtype=dtype),), {"eps": 2.0**-7}, "smaller than eps"),
    ]


@catalogued(
    forward="out = clip(round(w / a), -1, 1) a, a = max(mean |w|, eps); ties to even",
    gradient={"w": "g everywhere"},
    surrogate=_straight,
    examples=_weight_examples,
    values=_weight_values,
    codes=_weight_codes,
    paper=BITNET,
)
@custom_gradient
def bitnet_weights(w: Tensor, *, eps: float = 1e-5) -> Tensor:
    """Return the ternary weights of BitNet b1.58: -a, 0 and a for the mean size ``a``; the gradient passes everywhere.

    Arguments:
        w: floating point, of any shape; one scale for all of it.
        eps: the smallest scale, positive. The paper adds it to the mean; its authors' code takes the larger of the two.

    Returns:
        three values, a tensor like ``w``.

    Raises:
        OptionError: ``eps`` is not positive.

    Example:
        >>> import torch, gradwright as gw
        >>> w = torch.tensor([-3.0, 0.5, 0.25, 0.25], requires_grad=True)
        >>> out = gw.ste.bitnet_weights(w)
        >>> out.tolist(), torch.autograd.grad(out.sum(), w)[0].tolist()
        ([-1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0])
    """
    _check_eps("bitnet_weights", eps)
    dtype, scale = working_dtype(w.dtype), _scale(w, eps)
    size = scale.to(dtype)
    return three(w, scale / 2, size, size).to(w.dtype)  # rounding to 1 begins beyond one half, a tie


def _scale(w: Tensor, eps: float) -> Tensor:
    """Return the scale of all weights, with as many dimensions."""
    return mean_size(w, tuple(range(w.dim()))).clamp(min=eps)


bitnet_weights.vjp(_passes)


# -------------------------------------------------------------------- activations


def _token_steps(x: Tensor, bits: int, eps: float) -> Tensor:
    """Return the step of each element, token by token."""
    tokens = x.detach().double().reshape(-1, x.shape[-1])
    steps = [token.abs().max().clamp(min=eps).expand(len(token)) / codes(bits)[1] for token in tokens]
    return torch.cat(steps).reshape(x.shape)


def _activation_values(x: Tensor, *, bits: int = 8, eps: float = 1e-5) -> Tensor:
    steps = _token_steps(x, bits, eps)
    return (x / steps).round().clamp(*codes(bits)) * steps


def _activation_codes(x: Tensor, *, bits: int = 8, eps: float = 1e-5) -> Tensor:
    low, high = codes(bits)
    return torch.arange(low, high + 1, dtype=torch.float64) * _token_steps(x, bits, eps)[..., None]


def _activation_examples(dtype: torch.dtype) -> Sequence[Example]:
    def token(step: float, high: int) -> Tensor:
        """Return a token whose largest size is so many steps, with ties."""
        ties = around(*[k * step for k in (-2.5, -0.5, 0.5, 1.5)], dtype=dtype)
        return joined([ties, torch.tensor([0.0, -high * step, high * step], dtype=dtype)])

    x = torch.stack([token(2.0**-5, 127), token(1.0, 127), torch.zeros(15, dtype=dtype)])
    return [
        Example((x,), {}, "ties and a token of zeros"),
        Example((token(0.25, 7).reshape(1, 1, 15),), {"bits": 4}, "4 bits"),
        Example((token(2.0**-12, 7)[:-2],), {"bits": 4, "eps": 7 * 2.0**-10}, "smaller than eps"),
    ]


@catalogued(
    forward="out = clip(round(x / s), -128, 127) s, s = max(max |x| of the token, eps) / 127",
    gradient={"x": "g everywhere"},
    surrogate=_straight,
    examples=_activation_examples,
    values=_activation_values,
    codes=_activation_codes,
    paper=BITNET,
)
@custom_gradient
def bitnet_activations(x: Tensor, *, bits: int = 8, eps: float = 1e-5) -> Tensor:
    """Quantise each token by its largest size, as BitNet b1.58 does with activations; the gradient passes everywhere.

    Arguments:
        x: floating point; a token is everything along the last dimension.
        bits: at least 2.
        eps: the smallest largest size, positive.

    Returns:
        a tensor like ``x``. A token with infinity or nan in it is all nan.

    Raises:
        OptionError: ``bits`` or ``eps`` has no value that is possible.

    Example:
        >>> import torch, gradwright as gw
        >>> x = torch.tensor([[127.0, 0.4, -3.6], [0.0, 63.5, -0.3]], requires_grad=True)
        >>> out = gw.ste.bitnet_activations(x)
        >>> out.tolist()
        [[127.0, 0.0, -4.0], [0.0, 63.5, -0.5]]
        >>> bool((torch.autograd.grad(out.sum(), x)[0] == 1).all())
        True
    """
    _check_eps("bitnet_activations", eps)
    low, high = codes(bits)
    if high < 1:
        raise OptionError(f"bitnet_activations: bits is {bits!r}; expected at least 2.")
    wide = x.to(working_dtype(x.dtype))
    if not x.numel():
        return x.clone()
    step = wide.abs().amax(-1, keepdim=True).clamp(min=eps) / high
    return (torch.round(wide / step).clamp(low, high) * step).to(x.dtype)


bitnet_activations.vjp(_passes)
