"""How few bits does a network need? Quantisation-aware training on scikit-learn's handwritten digits.

A network is trained as it is, then with weights and activations of 8, 4, 3 and 2 bits whose steps are learned (LSQ),
and for comparison the trained network is quantised without training. Takes half a minute or so on one core:

    python examples/quantize_digits.py
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import gradwright as gw

BITS = (8, 4, 3, 2)
HIDDEN, EPOCHS, BATCH, TRAINING = 64, 30, 64, 1347
console = Console()


def main() -> None:
    """Train, and show accuracy against bits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"how long each training is ({EPOCHS})")
    epochs = parser.parse_args().epochs
    torch.set_num_threads(1)
    start = time.perf_counter()
    training, testing = digits()
    plain = train(network(), training, epochs)
    table = Table("bits", "trained", "", "only quantised", "", box=None)
    table.add_row("32", *shown(accuracy(plain, testing)), "", "")
    for bits in track(BITS, "training", console=console, transient=True):
        model = network()
        gw.ste.quantize_model(model, weights=bits, activations=activations(bits))
        trained = accuracy(train(model, training, epochs), testing)
        table.add_row(str(bits), *shown(trained), *shown(accuracy(quantised(plain, bits, training), testing)))
    console.print(table)
    console.print(f"accuracy on {len(testing[1])} images, in percent; {time.perf_counter() - start:.0f} s")


def network() -> nn.Sequential:
    """Return a new network, always the same one."""
    torch.manual_seed(0)
    sizes = (64, HIDDEN, HIDDEN)
    hidden = [[nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()] for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*itertools.chain(*hidden), nn.Linear(HIDDEN, 10))


def activations(bits: int) -> gw.ste.Quantize:
    """Return a quantiser for what follows a ReLU, as the pixels do: no negative codes."""
    return gw.ste.Quantize(bits, signed=False)


def quantised(model: nn.Sequential, bits: int, training: tuple[Tensor, Tensor]) -> nn.Sequential:
    """Return a trained network with values of so many bits, whose steps cover the largest value that was seen."""
    model = copy.deepcopy(model).eval()
    weights = gw.ste.Quantize(bits, axis=0, init="absmax", learned=False)
    inputs = gw.ste.Quantize(bits, signed=False, init="absmax", learned=False)
    gw.ste.quantize_model(model, weights=weights, activations=inputs)
    with torch.no_grad():
        model(training[0])  # finds the steps
    return model


def train(model: nn.Sequential, training: tuple[Tensor, Tensor], epochs: int) -> nn.Sequential:
    """Train a network."""
    images, labels = training
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH)[:-1]:  # the last is too small for its statistics
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimiser.step()
        schedule.step()
    return model.eval()


def accuracy(model: nn.Sequential, testing: tuple[Tensor, Tensor]) -> float:
    """Return how many images are read rightly, in percent."""
    images, labels = testing
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).double().mean()) * 100


def shown(percent: float) -> tuple[str, str]:
    """Return a number and a bar."""
    return f"{percent:.1f}", "█" * round(percent / 6)


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return images and labels for training, and for testing."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise SystemExit("scikit-learn, which has the images, is missing: pip install scikit-learn") from None
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images, labels = torch.tensor(data.data, dtype=torch.float32)[order] / 16, torch.tensor(data.target)[order]
    return (images[:TRAINING], labels[:TRAINING]), (images[TRAINING:], labels[TRAINING:])


if __name__ == "__main__":
    main()
