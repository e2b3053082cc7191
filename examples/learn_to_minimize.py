"""What are the springs made of? Stiffnesses learned from where a chain hangs, with SciPy inside the training loop.

A chain of springs hangs between two walls, and its shape is what minimises its energy: SciPy finds it, and autograd
cannot look into SciPy. The gradient of the shape is that of the minimum, whatever found it. Takes a few seconds:

    python examples/learn_to_minimize.py
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import scipy.optimize
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import gradwright as gw

STIFFNESSES = (40.0, 90.0, 25.0, 60.0, 120.0, 30.0)
"""Of the springs, from wall to wall; to be found."""
LENGTH, NOISE, STEPS, RATE = 0.15, 1e-4, 100, 0.1
ROWS, WIDTH = 6, 18
console = Console()


def main() -> None:
    """Learn the stiffnesses and show how they come nearer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how many steps are taken ({STEPS})")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    start = time.perf_counter()
    found, losses = learn(steps)
    true = torch.tensor(STIFFNESSES, dtype=torch.float64)
    table = Table("step", "loss", *(str(i + 1) for i in range(len(true))), "off", "", box=None)
    for step in sorted({round(steps * row / (ROWS - 1)) for row in range(ROWS)}):
        off = float((found[step] / true - 1).abs().max())
        bar = "█" * round(WIDTH * min(off, 1))
        table.add_row(str(step), f"{losses[step]:.1e}", *(f"{k:.1f}" for k in found[step]), f"{off:.1%}", bar)
    table.add_row("true", "", *(f"{k:.1f}" for k in true))
    console.print(table)
    console.print("stiffness of each spring, and how far the worst is off")
    console.print(f"{len(LOADS) * (steps + 1)} solves by SciPy, {time.perf_counter() - start:.1f} s")


def energy(shape: Tensor, stiffnesses: Tensor, loads: Tensor) -> Tensor:
    """Return the energy of a chain whose inner knots are at ``shape`` (knots, 2), with a load at each."""
    walls = shape.new_tensor([[0.0, 0.0], [1.0, 0.0]])
    knots = torch.cat([walls[:1], shape, walls[1:]])
    stretched = (knots[1:] - knots[:-1]).norm(dim=1) - LENGTH
    return (stiffnesses * stretched.square()).sum() / 2 + (loads * shape[:, 1]).sum()


@gw.implicit.argmin(energy, arrays=True)
def hang(start: Any, stiffnesses: Any, loads: Any) -> Any:
    """Return where the knots come to rest."""
    constants = torch.from_numpy(stiffnesses), torch.from_numpy(loads)

    def value_and_slope(flat: Any) -> tuple[float, Any]:
        shape = torch.from_numpy(flat).reshape(start.shape).requires_grad_()
        with torch.enable_grad():
            value = energy(shape, *constants)
            (slope,) = torch.autograd.grad(value, shape)
        return value.item(), slope.reshape(-1).numpy()

    found = scipy.optimize.minimize(value_and_slope, start.reshape(-1), jac=True, method="BFGS")
    return found.x.reshape(start.shape)


LOADS = torch.tensor([[1.0, 1, 1, 1, 1], [4.0, 1, 0, 1, 0], [0.0, 0, 2, 0, 5]], dtype=torch.float64)
"""Of each knot, in each of the experiments."""


def learn(steps: int) -> tuple[list[Tensor], list[float]]:
    """Return the stiffnesses before each step and at last, and the losses there."""
    knots = len(STIFFNESSES) - 1
    across = torch.linspace(0, 1, knots + 2, dtype=torch.float64)[1:-1]
    start = torch.stack([across, -across * (1 - across)], 1)
    torch.manual_seed(0)
    true = torch.tensor(STIFFNESSES, dtype=torch.float64)
    seen = [hang(start, true, loads) for loads in LOADS]
    seen = [shape + NOISE * torch.randn_like(shape) for shape in seen]
    logs = torch.full((knots + 1,), 50.0, dtype=torch.float64).log().requires_grad_()
    optimiser = torch.optim.Adam([logs], RATE)
    found, losses = [], []
    for step in range(steps + 1):
        optimiser.zero_grad()
        shapes = [hang(shape, logs.exp(), loads) for shape, loads in zip(seen, LOADS)]
        loss = torch.stack([(one - other).square().mean() for one, other in zip(shapes, seen)]).mean()
        found.append(logs.detach().exp())
        losses.append(loss.item())
        if step < steps:
            loss.backward()
            optimiser.step()
    return found, losses


if __name__ == "__main__":
    main()
