"""Where does the camera stand? A pose fitted to points by gradient descent, from no motion at all.

A cloud of points is seen from another place, with noise; a twist is fitted that moves the one cloud onto the other.
It starts at zero, the identity, where the exponential as people write it has a gradient of nan. Takes a few seconds:

    python examples/fit_pose.py
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import gradwright as gw

POINTS, NOISE, STEPS, RATE = 200, 0.01, 400, 0.05
TWIST = (0.8, -0.5, 1.2, 1.1, -1.6, 0.9)
"""The motion to be found: translation part, then rotation vector; it turns by 123 degrees."""
ROWS, WIDTH = 9, 40
console = Console()


def main() -> None:
    """Fit the pose with the exponential as people write it and with ours, and show both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how many steps are taken ({STEPS})")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    start = time.perf_counter()
    points, seen = clouds()
    written, ours = fit(written_exp, points, seen, steps), fit(gw.stable.se3_exp, points, seen, steps)
    lost = next((step for step, twist in enumerate(written) if bool(twist.isnan().any())), None)
    console.print(f"as people write it: {'fits' if lost is None else f'nan after step {lost}'}")
    table = Table("step", "degrees off", "", "distance off", "", box=None)
    for step in sorted({round(steps * row / (ROWS - 1)) for row in range(ROWS)}):
        degrees, distance = off(ours[step])
        table.add_row(str(step), f"{degrees:.2f}", bar(degrees, 180.0), f"{distance:.4f}", bar(distance, 3.0))
    console.print("gw.stable.se3_exp:", table)
    console.print(f"bars are logarithmic; {POINTS} points, noise {NOISE}; {time.perf_counter() - start:.1f} s")


def clouds() -> tuple[Tensor, Tensor]:
    """Return points, and the same points as they are seen after the motion, always the same ones."""
    torch.manual_seed(0)
    points = torch.randn(POINTS, 3) * torch.tensor([1.0, 0.6, 0.3])
    return points, moved(gw.stable.se3_exp(torch.tensor(TWIST)), points) + NOISE * torch.randn(POINTS, 3)


def moved(motion: Tensor, points: Tensor) -> Tensor:
    """Return points after a rigid motion."""
    return points @ motion[:3, :3].mT + motion[:3, 3]


def fit(exponential: Callable[[Tensor], Tensor], points: Tensor, seen: Tensor, steps: int) -> list[Tensor]:
    """Return the twist before each step, and at last."""
    twist = torch.zeros(6, requires_grad=True)
    optimiser = torch.optim.Adam([twist], RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    found = [twist.detach().clone()]
    for _ in range(steps):
        optimiser.zero_grad()
        (moved(exponential(twist), points) - seen).square().mean().backward()
        optimiser.step()
        schedule.step()
        found.append(twist.detach().clone())
    return found


def written_exp(twist: Tensor) -> Tensor:
    """Return the motion of a twist by the formulae of the textbooks, which divide by the angle."""
    v, w = twist[:3], twist[3:]
    angle = w.norm()
    x, y, z = w
    k = torch.stack([0 * x, -z, y, z, 0 * x, -x, -y, x, 0 * x]).reshape(3, 3)
    a, b, c = angle.sin() / angle, (1 - angle.cos()) / angle**2, (angle - angle.sin()) / angle**3
    eye = torch.eye(3)
    top = torch.cat([eye + a * k + b * k @ k, ((eye + b * k + c * k @ k) @ v)[:, None]], 1)
    return torch.cat([top, torch.tensor([[0.0, 0.0, 0.0, 1.0]])])


def off(twist: Tensor) -> tuple[float, float]:
    """Return how far a twist is from the one to be found: the angle in degrees, and the distance."""
    true, here = gw.stable.se3_exp(torch.tensor(TWIST)), gw.stable.se3_exp(twist)
    rest = gw.stable.so3_log(true[:3, :3].mT @ here[:3, :3])
    return math.degrees(float(rest.norm())), float((true[:3, 3] - here[:3, 3]).norm())


def bar(value: float, most: float) -> str:
    """Return a bar that is long for much and empty for a ten-thousandth of it."""
    return "█" * max(round(WIDTH / 2 * (1 + math.log10(max(value, 1e-9) / most) / 4)), 0)


if __name__ == "__main__":
    main()
