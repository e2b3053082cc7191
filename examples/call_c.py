"""C and C++ in a training loop: a pendulum that is simulated in C, and a tridiagonal system that is solved in C++.

Both sources lie in `native/` and are compiled by the compiler of the system. The friction of a pendulum, and how it was
let go, are found from noisy measurements of its angle; then the stiffness of a rod is found from how it bends under
two loads. Takes a few seconds:

    python examples/call_c.py
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

import gradwright as gw

SOURCES = Path(__file__).with_name("native")
COMPILERS = {".c": ("cc", "gcc", "clang"), ".cpp": ("c++", "g++", "clang++")}
STEPS, DT, NOISE = 400, 0.05, 0.05
START, FRICTION = (1.2, 0.0), 0.12
CELLS = 60
WIDTH = 60
console = Console()


def main() -> None:
    """Fit both and show what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=200, help="how many steps are taken (200)")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        swing = pendulum(build(SOURCES / "pendulum.c", Path(folder)))
        solve = tridiagonal(build(SOURCES / "solver.cpp", Path(folder)))
    start, friction, angles, measured = fit_pendulum(swing, steps)
    console.print(plot(measured, angles))
    console.print(f"friction {friction:.4f} (it is {FRICTION}), let go at {start[0]:.3f} (it was {START[0]})\n")
    found, true = fit_rod(solve, steps)
    for name, stiffness in (("true", true), ("found", found)):
        console.print(f"stiffness, {name:5} {bars(stiffness)}")
    console.print(f"off by at most {(found / true - 1).abs().max().item():.1%}")


def build(source: Path, folder: Path) -> Path:
    """Compile a shared library.

    Raises:
        SystemExit: there is no compiler.
    """
    names = COMPILERS[source.suffix]
    compiler = next((found for name in names if (found := shutil.which(name))), None)
    if compiler is None:
        raise SystemExit(f"{source.name} cannot be compiled: none of {', '.join(names)} is there; install one of them.")
    library = folder / f"lib{source.stem}.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"], check=True)
    return library


# --- a simulation in C, with its derivative in C ----------------------------------------------------


def pendulum(library: Path) -> Callable[..., Tensor]:
    """Return the angles of a pendulum after each step, as a function of steps, dt, start and friction."""
    swing: Callable[..., Tensor] = gw.native(
        library,
        "swing",
        "steps:int, dt:f8, start[2]:f8, friction[]:f8, angles[steps]:f8:out -> int",
        vjp=(
            "swing_vjp",
            "steps:int, dt:f8, start[2]:f8, friction[]:f8, grad_angles[steps]:f8, speeds[steps]:f8:work, "
            "grad_start[2]:f8:out, grad_friction[]:f8:out, angles[steps]:f8",
        ),
        codes={1: "the pendulum went round so fast that its angle is no number"},
        second_order="differences",
    )
    return swing


def fit_pendulum(swing: Callable[..., Tensor], steps: int) -> tuple[Tensor, float, Tensor, Tensor]:
    """Return start, friction and angles that were found, and the measured angles."""
    generator = torch.Generator().manual_seed(0)
    true = swing(STEPS, DT, torch.tensor(START), torch.tensor(FRICTION))
    measured = true + NOISE * torch.randn(STEPS, generator=generator)
    start = torch.tensor([0.5, 0.5], requires_grad=True)
    friction = torch.tensor(0.5, requires_grad=True)
    optimizer = torch.optim.Adam([start, friction], lr=0.03)
    for _ in range(steps):
        optimizer.zero_grad()
        (swing(STEPS, DT, start, friction) - measured).square().mean().backward()
        optimizer.step()
    found = start.detach(), friction.detach()
    return found[0], friction.item(), swing(STEPS, DT, *found), measured


# --- a solver in C++, with a rule that calls it again -----------------------------------------------


def tridiagonal(library: Path) -> Callable[..., Tensor]:
    """Return the solution of a tridiagonal system, as a function of its three diagonals and the right side.

    Row i is ``lower[i] x[i-1] + diagonal[i] x[i] + upper[i] x[i+1] = b[i]``.
    """
    solve = gw.native(
        library,
        "tridiagonal",
        "n:i8, lower[n]:f8, diagonal[n]:f8, upper[n]:f8, x[n]:f8:inout -> int",
        codes={1: "there is no memory left", 2: "the matrix is singular, or needs its rows exchanged"},
    )

    # On tensors, since the rule uses the solver: it may be differentiated again, as often as one likes.
    @solve.vjp
    def solve_vjp(g: Tensor, lower: Tensor, diagonal: Tensor, upper: Tensor, out: Tensor) -> dict[str, Tensor]:
        zero = torch.zeros_like(g[:1])
        w = solve(torch.cat([zero, upper[:-1]]), diagonal, torch.cat([lower[1:], zero]), g)  # of the transpose
        before, after = torch.cat([zero, out[:-1]]), torch.cat([out[1:], zero])
        return {"lower": -w * before, "diagonal": -w * out, "upper": -w * after, "x": w}

    found: Callable[..., Tensor] = solve
    return found


def fit_rod(solve: Callable[..., Tensor], steps: int) -> tuple[Tensor, Tensor]:
    """Return the stiffness of the cells of a rod found from how they bend under two loads, and the true one."""
    places = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64)
    true = 1 + 0.6 * torch.sin(2 * torch.pi * places)
    loads = torch.stack([torch.ones_like(places[1:]), places[1:]]) / CELLS  # where one tells nothing, the other does

    def bend(stiffness: Tensor) -> Tensor:
        zero = torch.zeros(1, dtype=torch.float64)
        left, right = stiffness[:-1], stiffness[1:]
        lower, upper = torch.cat([zero, -left[1:]]), torch.cat([-right[:-1], zero])
        return torch.func.vmap(lambda load: solve(lower, left + right, upper, load))(loads)

    seen = bend(true)
    logarithm = torch.zeros(CELLS + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logarithm], max_iter=2 * steps, history_size=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = (bend(logarithm.exp()) / seen - 1).square().sum()
        found.backward()
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return logarithm.detach().exp(), true


# --- showing it -------------------------------------------------------------------------------------


def plot(measured: Tensor, angles: Tensor, rows: int = 11) -> str:
    """Return a picture of angles: dots for what was measured, a line for what was found."""
    picture = [[" "] * WIDTH for _ in range(rows)]
    for mark, series in ((".", measured), ("━", angles)):
        for column in range(WIDTH):
            height = series[column * len(series) // WIDTH].item() / 1.3
            picture[round((1 - max(-1.0, min(1.0, height))) / 2 * (rows - 1))][column] = mark
    return "\n".join("".join(row) for row in picture)


def bars(values: Tensor) -> str:
    """Return one character for each value, the taller the larger."""
    blocks = "▁▂▃▄▅▆▇█"
    return "".join(blocks[min(len(blocks) - 1, int(value / values.max().item() * len(blocks)))] for value in values)


if __name__ == "__main__":
    main()
