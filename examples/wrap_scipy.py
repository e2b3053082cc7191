"""Functions of SciPy in a model that PyTorch trains: a spline, a convolution, and a banded solve.

A stretched and blurred signal is observed; its stretch and its shape are found again by gradient descent through
``scipy.interpolate``, ``scipy.ndimage`` and ``scipy.linalg``. Every function is checked before it is used.

    python examples/wrap_scipy.py
"""

from __future__ import annotations

import sys

import numpy as np
import scipy.interpolate
import scipy.linalg
import scipy.ndimage
import torch
from torch import Tensor

import gradwright as gw

KNOTS = np.linspace(0.0, 1.0, 12)
KERNEL = np.array([0.1, 0.2, 0.4, 0.2, 0.1])


@gw.external(out=gw.like("x"), argnums=("x", "heights"))
def spline(x, heights):
    """Evaluate the natural cubic spline through ``heights`` at ``x``."""
    return _spline(heights)(x)


@spline.register_vjp
def spline_vjp(g, x, heights):
    """The slope for the places; for the heights, of which the spline is a linear function, the spline of each."""
    return {"x": g * _spline(heights)(x, 1), "heights": _spline(np.eye(len(KNOTS)))(x).T @ g}


@spline.register_hvp
def spline_hvp(g, t, x, heights):
    """The gradient of ``<g, slope(heights) * t_x + spline(t_heights)>``."""
    by_x, by_heights = t["x"], t["heights"]
    slopes = _spline(np.eye(len(KNOTS)))(x, 1)
    moved = g * (_spline(heights)(x, 2) * by_x + slopes @ by_heights)
    return {"x": moved, "heights": slopes.T @ (g * by_x)}


def _spline(heights):
    return scipy.interpolate.CubicSpline(KNOTS, heights, bc_type="natural")


@gw.external(out=gw.like("x"))
def blur(x):
    """Convolve with a kernel, mirrored at the ends."""
    return scipy.ndimage.convolve1d(x, KERNEL, mode="mirror")


@blur.register_jvp
def blur_jvp(t):
    """It is linear."""
    return scipy.ndimage.convolve1d(t, KERNEL, mode="mirror")


@blur.register_vjp
def blur_vjp(g, x):
    """The adjoint at mirrored ends is not a convolution: the rows of the matrix are."""
    return g @ scipy.ndimage.convolve1d(np.eye(x.shape[-1]), KERNEL, axis=0, mode="mirror")


@blur.register_hvp
def blur_hvp(g, t, x):
    """It is linear."""
    return np.zeros_like(x)


def stiff(x: Tensor, d: Tensor) -> Tensor:
    """Multiply with the tridiagonal matrix of a smoothing spline."""
    padded = torch.nn.functional.pad(x, (1, 1))
    return (1 + 2 * d) * x - d * (padded[:-2] + padded[2:])


@gw.implicit.linear_solve(stiff, arrays=True)
def smooth(b, d):
    """Solve with it, by ``scipy.linalg.solve_banded``."""
    bands = np.stack([np.full_like(b, -d), np.full_like(b, 1 + 2 * d), np.full_like(b, -d)])
    return scipy.linalg.solve_banded((1, 1), bands, b)


def _samples() -> dict[str, tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.linspace(0.05, 0.95, 7, dtype=torch.float64)
    heights = torch.randn(len(KNOTS), generator=generator, dtype=torch.float64)
    return {"spline": (x, heights), "blur": (x,), "smooth": (x, torch.tensor(0.3, dtype=torch.float64))}


gradwright_samples = _samples()
"""On what `gradwright check examples/wrap_scipy.py` checks them."""


def model(stretch: Tensor, heights: Tensor, d: Tensor, places: Tensor) -> Tensor:
    """Return what is observed at ``places``."""
    return smooth(blur(spline(torch.sigmoid(stretch) * places, heights)), d)


def fit(steps: int) -> tuple[float, float]:
    """Return the loss before and after so many steps."""
    generator = torch.Generator().manual_seed(0)
    places = torch.linspace(0.0, 1.0, 80, dtype=torch.float64)
    truth = torch.sin(6 * torch.as_tensor(KNOTS))
    one = torch.tensor(1.0, dtype=torch.float64)
    observed = model(one, truth, 0.5 * one, places)
    stretch = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    heights = torch.randn(len(KNOTS), generator=generator, dtype=torch.float64).requires_grad_()
    optimiser = torch.optim.LBFGS([stretch, heights], max_iter=steps, line_search_fn="strong_wolfe")
    losses = []

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = (model(stretch, heights, 0.5 * one, places) - observed).square().mean()
        loss.backward()
        losses.append(float(loss.detach()))
        return loss

    optimiser.step(closure)
    return losses[0], losses[-1]


def main() -> int:
    """Check the functions and fit."""
    for function in (spline, blur, smooth):
        report = gw.check(function, *gradwright_samples[function.__name__], level="quick")
        print(f"{function.__name__:8}{'passed' if report else 'FAILED'}")
        if not report:
            print(report)
            return 1
    before, after = fit(60)
    print(f"loss: {before:.3g} before, {after:.3g} after")
    return 0


if __name__ == "__main__":
    sys.exit(main())
