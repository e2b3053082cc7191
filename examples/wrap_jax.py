"""JAX in a torch program: the orbit of a satellite, simulated in JAX, is found from noisy sightings by Newton's method.

Newton's method needs the Hessian, which comes from JAX through `torch.func.hessian`; so do the error bars of what was
found. A few steps are enough, where gradient descent takes thousands. Takes a few seconds:

    python examples/wrap_jax.py
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import torch
from rich.console import Console
from torch import Tensor
from torch.func import grad, hessian

import gradwright as gw

START = (1.0, 0.0, 0.1, 1.1)
"""Where the satellite is, and how fast; the planet is in the origin, and pulls with one over the square."""
GUESS = (1.05, 0.05, 0.0, 1.0)
SIGHTINGS, STEPS, DT, NOISE = 40, 10, 0.02, 0.01
console = Console()


@gw.from_jax(out=Tensor)
def orbit(start, *, sightings: int = SIGHTINGS):
    """Return the places at each sighting, by a symplectic integrator."""

    def pull(place):
        return -place / jnp.sum(place**2) ** 1.5

    def step(state, _):
        place, speed = state
        speed = speed + DT / 2 * pull(place)
        place = place + DT * speed
        return (place, speed + DT / 2 * pull(place)), None

    def until_next(state, _):
        state, _ = jax.lax.scan(step, state, None, length=STEPS)
        return state, state[0]

    return jax.lax.scan(until_next, (start[:2], start[2:]), None, length=sightings)[1]


def find(seen: Tensor, newton_steps: int) -> tuple[Tensor, Tensor, list[float]]:
    """Return the start that explains the sightings best, its error bars, and the gradient's norm in each step."""

    def misfit(start: Tensor) -> Tensor:
        return (orbit(start) - seen).square().sum() / (2 * NOISE**2)

    start = torch.tensor(GUESS, dtype=torch.float64)
    norms = []
    for _ in range(newton_steps):
        slope, curvature = grad(misfit)(start), hessian(misfit)(start)
        norms.append(slope.norm().item())
        # Far away the curvature may point the wrong way along a direction: its size is what counts.
        values, vectors = torch.linalg.eigh(curvature)
        move = vectors @ ((vectors.mT @ slope) / values.abs())
        size = 1.0
        while size > 1e-3 and misfit(start - size * move) > misfit(start):
            size /= 2
        start = start - size * move
    return start, torch.linalg.inv(hessian(misfit)(start)).diagonal().sqrt(), norms


def main() -> None:
    """Look at the satellite, and find its orbit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=15, help="how many steps of Newton's method are taken (15)")
    newton_steps = parser.parse_args().steps
    true = torch.tensor(START, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    places = orbit(true)
    seen = places + NOISE * torch.randn(places.shape, generator=generator, dtype=torch.float64)
    found, bars, norms = find(seen, newton_steps)
    console.print("norm of the gradient: " + ", ".join(f"{norm:.0e}" for norm in norms))
    for name, was, value, bar in zip(("x", "y", "speed along x", "speed along y"), START, found, bars):
        console.print(f"{name:14} {value:.4f} ± {bar:.4f} (it is {was})")


if __name__ == "__main__":
    main()
