"""Can a principal plane be trained? Through repeated eigenvalues, where eigenvectors have no gradient.

A linear map is learned that turns data until the space of its first principal components is a given one. The data is as
wide in several directions, so that these components are no single vectors; the space that they span is well defined
nevertheless, and so is its gradient. Three ways to differentiate it are compared, on data along the axes, whose
variances are the same to the last bit, and on the same data turned, where they differ by rounding. A few seconds:

    python examples/pca_alignment.py
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import TypeAlias

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import gradwright as gw

DIMENSIONS, COMPONENTS = 6, 3
STEPS, SHOWN, RATE = 50, 10, 0.05
Space: TypeAlias = Callable[[Tensor], Tensor]
console = Console()


def main() -> None:
    """Train in each way, and show how far the space is from where it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how long each training is ({STEPS})")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    start = time.perf_counter()
    ways: dict[str, Space] = {
        "PyTorch": by_pytorch,
        "our eigh": by_eigenvectors,
        "projector": lambda covariance: gw.stable.projector(covariance, COMPONENTS),
    }
    turn, basis = orthonormal(DIMENSIONS, seed=0), orthonormal(DIMENSIONS, seed=1)[:, :COMPONENTS]
    target = basis @ basis.mT
    table = Table("", *(heading for name in ways for heading in (name, "")), box=None)
    curves = [train(space, along_axes(), target, steps) for space in ways.values()]
    for step in range(0, steps + 1, max(steps // SHOWN, 1)):
        table.add_row(f"step {step}", *(cell for curve in curves for cell in shown(curve[step])))
    table.add_section()
    errors = [error_of_gradient(space, along_axes() @ turn, target) for space in ways.values()]
    table.add_row("gradient", *(cell for error in errors for cell in (f"{error:.0e}", "")))
    console.print(table)
    console.print(
        "steps: squared sines of the angles to the target, for data along the axes; a block is a power of ten"
    )
    console.print(
        "gradient: relative error of the first gradient, for the same data turned, where PyTorch's is no nan but wrong"
    )
    console.print(f"{time.perf_counter() - start:.0f} s")


def along_axes() -> Tensor:
    """Return data whose variances are 4, 4, 4, 1, 1, 1: two points on each axis."""
    wide = torch.tensor([2.0] * COMPONENTS + [1.0] * (DIMENSIONS - COMPONENTS), dtype=torch.float64)
    points = torch.diag(wide) * math.sqrt(DIMENSIONS)
    return torch.cat([points, -points])


def orthonormal(size: int, seed: int) -> Tensor:
    """Return a random orthogonal matrix."""
    q: Tensor = torch.linalg.qr(
        torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    )[0]
    return q


def by_pytorch(covariance: Tensor) -> Tensor:
    """Return the projector onto the first components, through the eigenvectors of PyTorch."""
    vectors = torch.linalg.eigh(covariance).eigenvectors[:, -COMPONENTS:]
    return vectors @ vectors.mT


def by_eigenvectors(covariance: Tensor) -> Tensor:
    """Return the same through eigenvectors whose backward knows that it does not matter which they are."""
    vectors = gw.stable.eigh(covariance).eigenvectors[:, -COMPONENTS:]
    return vectors @ vectors.mT


def distance(space: Space, data: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Return how far the space of the first components of mapped data is from the target."""
    moved = data @ weight.mT
    return COMPONENTS - (space(moved.mT @ moved / len(moved)) * target).sum()


def train(space: Space, data: Tensor, target: Tensor, steps: int) -> list[float]:
    """Learn a map by gradient descent, and return the distance before each step and after the last one."""
    weight = torch.eye(DIMENSIONS, dtype=torch.float64)
    curve: list[float] = []
    for _ in range(steps + 1):
        if bool(weight.isnan().any()):  # of such a matrix there are no eigenvectors at all
            curve.append(math.nan)
            continue
        weight.requires_grad_()
        loss = distance(space, data, weight, target)
        curve.append(loss.item())
        (g,) = torch.autograd.grad(loss, weight)
        weight = weight.detach() - RATE * g
    return curve


def error_of_gradient(space: Space, data: Tensor, target: Tensor) -> float:
    """Return the relative error of the first gradient, against central differences."""
    weight = torch.eye(DIMENSIONS, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(distance(space, data, weight, target), weight)
    step = 1e-5
    true = torch.zeros_like(found)
    for place in torch.eye(DIMENSIONS**2, dtype=torch.float64).view(-1, DIMENSIONS, DIMENSIONS):
        ahead, behind = (distance(space, data, weight.detach() + h * place, target) for h in (step, -step))
        true += (ahead - behind) / (2 * step) * place
    return float((found - true).norm() / true.norm())


def shown(value: float) -> tuple[str, str]:
    """Return a number and a bar, a block for each power of ten above 1e-9."""
    if math.isnan(value):
        return "nan", ""
    return f"{value:.0e}", "█" * max(round(math.log10(max(value, 1e-16)) + 9), 0)


if __name__ == "__main__":
    main()
