"""Samples for the Functions of entmax and snntorch: inputs of the kind they are used on, and what their rules mean.

The surrogates are written from the packages' own documentation, as primitives whose derivative is the documented one.
Names are ``module:Class``, because two modules define an ``ATan``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

SCORES = torch.tensor([[1.3, 1.1, 0.7, -0.4], [0.2, 0.9, 0.6, 0.5], [-1.0, 0.3, 0.1, 0.2]], dtype=torch.float64)
TARGET = torch.tensor([0, 2, 1])
ALPHA = torch.tensor([[1.3], [1.6], [1.9]], dtype=torch.float64)
MEMBRANE = torch.tensor([-6.0, -1.5, -0.4, -0.02, 0.03, 0.3, 1.4, 4.0])  # the package works in float32
SPIKES = torch.tensor(
    [[[0.0, 1.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]], dtype=torch.float32
)  # time x batch x neuron; the last neuron of the second row never spikes


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


def declared(surrogate: Any, *args: Any) -> dict[str, Any]:
    return {"args": args, "surrogate": surrogate}


gradwright_samples: dict[str, Any] = {
    "entmax.activations:SparsemaxFunction": (SCORES,),
    "entmax.activations:Entmax15Function": [(SCORES,), (SCORES, -1, 2)],
    "entmax.root_finding:EntmaxBisectFunction": (SCORES, ALPHA),
    "entmax.root_finding:SparsemaxBisectFunction": (SCORES,),
    "entmax.root_finding:NormmaxBisectFunction": (SCORES,),
    "entmax.root_finding:BudgetBisectFunction": (SCORES,),
    "entmax.losses:SparsemaxLossFunction": (SCORES, TARGET),
    "entmax.losses:SparsemaxBisectLossFunction": (SCORES, TARGET),
    "entmax.losses:Entmax15LossFunction": (SCORES, TARGET),
    "entmax.losses:EntmaxBisectLossFunction": (SCORES, TARGET),
    "entmax.losses:NormmaxBisectLossFunction": (SCORES, TARGET),
    "snntorch.surrogate:StraightThroughEstimator": declared(identity, MEMBRANE),
    "snntorch.surrogate:Triangular": declared(triangle, MEMBRANE, 1.0),
    "snntorch.surrogate:FastSigmoid": declared(fast_sigmoid, MEMBRANE, 25),
    "snntorch.surrogate:ATan": declared(arctan, MEMBRANE, 2.0),
    "snntorch.surrogate:Heaviside": declared(torch.relu, MEMBRANE),
    "snntorch.surrogate:Sigmoid": declared(logistic, MEMBRANE, 25),
    "snntorch.surrogate:SpikeRateEscape": declared(boltzmann, MEMBRANE, 1, 25),
    "snntorch.surrogate:StochasticSpikeOperator": declared(stochastic, MEMBRANE, 0, 0.2),
    "snntorch.surrogate:LeakySpikeOperator": declared(leaky, MEMBRANE, 0.1),
    "snntorch.surrogate:SparseFastSigmoid": declared(sparse_fast_sigmoid, MEMBRANE, 25, 1),
    "snntorch.surrogate:CustomSurrogate": declared(user_primitive, MEMBRANE, user_rule),
    "snntorch.functional.quant:StateQuant": declared(identity, MEMBRANE, torch.linspace(-2, 2, 9)),
    "snntorch.functional.loss:SpikeTime.FirstSpike": declared(first_spike, SPIKES),
    "snntorch.functional.loss:SpikeTime.MultiSpike": declared(lambda spikes, _: first_spike(spikes)[None], SPIKES, 1),
    "snntorch.functional.loss:SpikeTime.Tolerance": declared(
        identity, torch.tensor([[0.4, 3.0], [7.0, 2.1]]), torch.tensor([[0, 5], [6, 2]]), 0.5
    ),
    "snntorch._neurons.leakykernel:LeakyKernel.ATan": declared(arctan, MEMBRANE),
    "snntorch._neurons.leakyparallel:LeakyParallel.ATan": declared(arctan, MEMBRANE),
    "snntorch._neurons.leakyunroll:LeakyParallel.ATan": declared(arctan, MEMBRANE),
}
