"""How much does it rain when it rains? A loss with a mask, which plain torch.where turns into nan at the first step.

Days without rain have no logarithm, and some days were not measured. Both are masked out of the loss, once with
``torch.where`` and once with ``gw.stable.masked_mean``; all else is the same. Takes a few seconds:

    python examples/masked_loss.py
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
from torch import Tensor, nn

import gradwright as gw

STEPS, DAYS, YEAR = 400, 12 * 365, 365.0
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
console = Console()


def main() -> None:
    """Train with both losses, and show what comes of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how long each training is ({STEPS})")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    start = time.perf_counter()
    rain = measured()
    dry, missing = int((rain == 0).sum()), int(rain.isnan().sum())
    console.print(f"{DAYS} days, {dry} of them dry and {missing} not measured\n")
    losses = Table("steps", "torch.where", "gw.stable.masked_mean", "", box=None)
    plain, ours = (train(loss, rain, steps) for loss in (with_where, with_masked_mean))
    shown = sorted({step for step in (0, 1, 2, 5, 10, 20, 50, 100, 200) if step < steps} | {steps - 1})
    for step in shown:
        losses.add_row(str(step), f"{plain.losses[step]:.3f}", f"{ours.losses[step]:.3f}", bar(ours.losses[step] * 6))
    console.print(losses)
    console.print("\nmillimetres on a rainy day, by month: true, and as learned with gw.stable.masked_mean\n")
    curve = Table("", "true", "learned", "", box=None)
    for month, true, learned in zip(MONTHS, by_month(typical(days())), by_month(ours.amount), strict=True):
        curve.add_row(month, f"{true:.1f}", f"{learned:.1f}", bar(learned * 4, mark=round(true * 4)))
    console.print(curve)
    console.print(f"\n│ is the truth, what is left is chance; {time.perf_counter() - start:.0f} s")


def negative_log_density(rain: Tensor, mean: Tensor, log_width: Tensor) -> Tensor:
    """Return how unlikely an amount is: its logarithm has a normal distribution. At 0 and nan there is none."""
    return 0.5 * ((rain.log() - mean) / log_width.exp()) ** 2 + log_width + rain.log()


def with_where(wet: Tensor, rain: Tensor, mean: Tensor, log_width: Tensor) -> Tensor:
    """Return the loss as it is usually written: the value is right, and the gradient is nan."""
    return torch.where(wet, negative_log_density(rain, mean, log_width), 0.0).sum() / wet.sum()


def with_masked_mean(wet: Tensor, rain: Tensor, mean: Tensor, log_width: Tensor) -> Tensor:
    """Return the same loss, which does not look at other days."""
    return gw.stable.masked_mean(negative_log_density, wet, rain, mean, log_width)


class Trained:
    """A training: the loss before each step, and the amount for each day that was learned."""

    def __init__(self, losses: list[float], amount: Tensor) -> None:
        self.losses = losses
        self.amount = amount


def train(loss: Loss, rain: Tensor, steps: int) -> Trained:
    """Train a small network, always from the same start, to give mean and width of the logarithm for each day."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimiser = torch.optim.Adam(network.parameters(), 2e-2)
    angle = days() * (2 * math.pi / YEAR)
    season = torch.stack([angle.sin(), angle.cos()], 1)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        mean, log_width = network(season).unbind(1)
        value = loss(rain > 0, rain, mean, log_width)
        value.backward()
        optimiser.step()
        losses.append(value.item())
    with torch.no_grad():
        return Trained(losses, network(season)[:, 0].exp())


def measured() -> Tensor:
    """Return the rain of each day in millimetres, 0 where there was none and nan where nobody looked."""
    generator = torch.Generator().manual_seed(1)
    noise, chance, seen = (torch.randn(DAYS, generator=generator), *torch.rand(2, DAYS, generator=generator))
    rain = torch.where(chance < 0.45, typical(days()) * (0.6 * noise).exp(), 0.0)
    return torch.where(seen < 0.9, rain, torch.nan)


def typical(day: Tensor) -> Tensor:
    """Return the true median of a rainy day: much in summer."""
    return 5 - 3 * torch.cos((day - 20) * (2 * math.pi / YEAR))


def days() -> Tensor:
    """Return the number of each day."""
    return torch.arange(DAYS, dtype=torch.float32)


def by_month(amount: Tensor) -> list[float]:
    """Return the mean of each month."""
    month = (days() % YEAR / YEAR * 12).long()
    return [float(amount[month == number].mean()) for number in range(12)]


def bar(length: float, mark: int | None = None) -> str:
    """Return a bar, and a mark at another length."""
    row = list("█" * round(length)) if math.isfinite(length) else []
    if mark is not None:
        row += " " * (mark - len(row) + 1)
        row[mark] = "│"
    return "".join(row)


if __name__ == "__main__":
    main()
