"""A small network on scikit-learn's handwritten digits, quantised in different ways; seconds for a training run.

1,347 images train and 450 test, always the same ones: figures are accuracies in percent, a function of the recipe and the
seed alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

TRAINING = 1347
BATCH = 64
Quantiser = Callable[[], Callable[[Tensor], Tensor]]
"""Makes one quantiser for one place in the network; it may be a module with parameters of its own."""


@dataclass(frozen=True)
class Recipe:
    """How the weights and the activations of the network are quantised."""

    name: str
    weights: Quantiser = nn.Identity
    activations: Quantiser = nn.Identity
    hidden: int = 64
    relu: bool = True
    """Whether a ReLU follows the normalisation; a binary activation is given the normalised value itself."""


class Network(nn.Module):
    """Three linear layers with batch normalisation."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        sizes = (64, recipe.hidden, recipe.hidden, 10)
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])
        self.norms = nn.ModuleList([nn.BatchNorm1d(recipe.hidden) for _ in range(2)])
        self.weights = [recipe.weights() for _ in self.layers]
        self.activations = [recipe.activations() for _ in self.norms]
        self.own = nn.ModuleList([q for q in (*self.weights, *self.activations) if isinstance(q, nn.Module)])
        self.relu = recipe.relu

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the ten digits."""
        for i, layer in enumerate(self.layers):
            x = nn.functional.linear(x, self.weights[i](layer.weight), layer.bias)
            if i < len(self.norms):
                x = self.norms[i](x)
                x = self.activations[i](x.relu() if self.relu else x)
        return x


@functools.cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images and digits for training and for testing."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images, labels = torch.tensor(data.data, dtype=torch.float32)[order] / 16, torch.tensor(data.target)[order]
    return images[:TRAINING], labels[:TRAINING], images[TRAINING:], labels[TRAINING:]


def train(recipe: Recipe, seed: int, epochs: int = 40) -> Network:
    """Train a network from the start."""
    torch.manual_seed(seed)
    network = Network(recipe)
    images, labels, _, _ = digits()
    network(images[:BATCH])  # quantisers that take their first step from the data
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(TRAINING).split(BATCH):
            if len(batch) < 8:
                continue
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimiser.step()
        schedule.step()
    return network.eval()


def accuracy(network: nn.Module) -> float:
    """Return how many of the test images a network reads rightly, in percent."""
    _, _, images, labels = digits()
    with torch.no_grad():
        return float((network(images).argmax(1) == labels).double().mean()) * 100


def mean_accuracy(recipe: Recipe, seeds: Sequence[int], epochs: int = 40) -> float:
    """Return the accuracy of a recipe, the mean over seeds."""
    return sum(accuracy(train(recipe, seed, epochs)) for seed in seeds) / len(seeds)
