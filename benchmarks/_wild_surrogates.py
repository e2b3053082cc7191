"""What the rules of published spiking and quantising Functions say they are the derivatives of.

Each is written from the package's own documentation, as a function whose derivative is the documented one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def identity(u: Tensor, *_: Any) -> Tensor:
    return u


def fast_sigmoid(u: Tensor, slope: float) -> Tensor:
    return u / (1 + slope * u.abs())


def sparse_fast_sigmoid(u: Tensor, slope: float, bound: float) -> Tensor:
    return torch.where(u > bound, fast_sigmoid(u, slope), 0.0)


def arctan(u: Tensor, alpha: float = 2.0) -> Tensor:
    return torch.atan(math.pi * u * alpha / 2) / math.pi


def logistic(u: Tensor, slope: float) -> Tensor:
    return torch.sigmoid(slope * u)


def triangle(u: Tensor, threshold: float) -> Tensor:
    return -threshold * u.abs()


def boltzmann(u: Tensor, beta: float, slope: float) -> Tensor:
    return slope / beta * (u - 1).sign() * (1 - torch.exp(-beta * (u - 1).abs()))


def leaky(u: Tensor, slope: float) -> Tensor:
    return torch.nn.functional.leaky_relu(u, slope)


def stochastic(u: Tensor, mean: float, variance: float) -> Tensor:
    """The slope below the threshold is drawn anew at every backward; the checker fixes the random state."""
    slope = (torch.rand_like(u) - 0.5 + mean) * variance
    return torch.where(u > 0, u, slope * u)


def first_spike(spikes: Tensor) -> Tensor:
    """Minus the spike at the time of the first one; a neuron that never spikes counts as spiking at the end."""
    steps = torch.arange(len(spikes)).reshape(-1, 1, 1)
    last = len(spikes) - 1
    time = torch.where(spikes > 0, steps, last).amin(dim=0, keepdim=True)
    return -spikes.gather(0, time)[0]


def user_rule(u: Tensor, g: Tensor, spikes: Tensor) -> Tensor:
    return g / (1 + u.abs()) ** 2


def user_primitive(u: Tensor, rule: Any) -> Tensor:
    return u / (1 + u.abs())


def half_erf(u: Tensor, k: Tensor) -> Tensor:
    """Norse prints ``erfc``, which falls; its rule is positive, so the error function is meant."""
    return 0.5 + 0.5 * torch.erf(k.detach() * u)


def half_tanh(u: Tensor, k: Tensor) -> Tensor:
    return 0.5 + 0.5 * torch.tanh(k.detach() * u)


def circle(u: Tensor, alpha: Tensor) -> Tensor:
    return 0.5 + 0.5 * u / (u**2 + alpha.detach() ** 2).sqrt()


def tent(u: Tensor, alpha: Tensor) -> Tensor:
    """The integral of ``alpha * relu(1 - |u|)``."""
    v = u.clamp(-1, 1)
    return alpha.detach() * (v - v * v.abs() / 2)


def super_spike(u: Tensor, alpha: float) -> Tensor:
    """Spikingjelly documents the derivative, ``alpha / (1 + |u|)**2``, and has no function for it."""
    return alpha * u / (1 + u.abs())


def s2nn(u: Tensor, alpha: float, beta: float) -> Tensor:
    """As documented; the package's own ``primitive_function`` adds 1e-5 inside the logarithm."""
    return torch.where(u < 0, torch.sigmoid(alpha * u), beta * torch.log(u.clamp(min=0) + 1) + 0.5)


def fake_numerical(u: Tensor, alpha: float) -> Tensor:
    """The integral of ``min(1 / |u|, alpha)``."""
    bound = 1 / alpha
    outside = u.sign() * (1 + torch.log(alpha * u.abs().clamp(min=bound)))
    return torch.where(u.abs() < bound, alpha * u, outside)


def above_window(u: Tensor, threshold: float, window: float) -> Tensor:
    return torch.relu(u - (threshold - window))


def decayed(u: Tensor, _: Tensor, tau: Tensor) -> Tensor:
    return tau * u


def clipped(u: Tensor, low: float, high: float) -> Tensor:
    return u.clamp(low, high)


def counted(u: Tensor, _: int, low: float, high: float) -> Tensor:
    return u.clamp(low, high)


def reversed_by(x: Tensor, alpha: Any = 1.0) -> Tensor:
    """The gradient is turned round and scaled, as for a domain adversary."""
    return -alpha * x


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def both(weight: Tensor, scores: Tensor) -> Tensor:
    """Straight through to the weight and to the scores of a mask."""
    return weight + scores


def filled(scratch: Tensor, value: Tensor, index: Any) -> Tensor:
    """A buffer whose slots are filled one by one: what was in a slot before is not used."""
    added = torch.zeros_like(scratch)
    added[index] = value
    return scratch + added


def quantised(inputs: Tensor, codebook: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Straight through to the inputs; the codebook gets the gradient of the codes that were picked."""
    flat = inputs.detach().reshape(-1, inputs.shape[-1])
    picked = torch.cdist(flat, codebook.detach()).argmin(dim=1)
    return inputs + codebook[picked].view_as(inputs), picked
