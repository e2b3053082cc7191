"""What the gradient of a solution costs, beside solving for it and beside PyTorch's own, and how right it is.

Candidates take turns on one thread, each once untimed and once timed, and the median of the thread's own CPU time
counts. "Backward to b" is one solve with the conjugate transpose: a factorisation that is used again makes it a small
part of the forward, one that is made again as dear.

    python benchmarks/implicit.py                  # everything
    python benchmarks/implicit.py --quick          # that it runs: small and few rounds
    python benchmarks/implicit.py --write          # puts the table into docs/implicit.md
    python benchmarks/implicit.py --json FILE      # writes rows of figures
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _pages import table_of, write_tables
from _timing import keep_memory, medians

ROOT = Path(__file__).resolve().parents[1]

keep_memory()
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.autograd import Function  # noqa: E402

import gradwright as gw  # noqa: E402

Row = dict[str, Any]
OURS, TORCH, AGAIN = "gw.implicit.linear_solve", "torch.linalg.solve", "a Function that solves again"


class SolvesAgain(Function):
    """How a solve is differentiated by hand as a rule: the backward factorises the transposed matrix anew."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, b: Tensor) -> Tensor:
        x = torch.linalg.solve(matrix, b)
        ctx.save_for_backward(matrix, x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        matrix, x = ctx.saved_tensors
        w = torch.linalg.solve(matrix.mH, g)
        return -torch.outer(w, x) if ctx.needs_input_grad[0] else None, w


def product(x: Tensor, matrix: Tensor) -> Tensor:
    """Apply a matrix."""
    return matrix @ x


def main() -> int:
    """Time everything and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="small and few rounds")
    parser.add_argument("--write", action="store_true", help="put the table into docs/implicit.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size, rounds = (60, 2) if options.quick else (1000, 15)
    rows = list(linear_rows(size, rounds, quick=options.quick))
    rows += list(tolerance_rows())
    rows += list(batch_rows(64 if options.quick else 1024, rounds=1 if options.quick else 5))
    for row in rows:
        met = {True: "met", False: "NOT met", None: ""}[row["met"]]
        ratio = "" if row["ratio"] is None else f", {row['ratio']:.3g} of {row['against']}"
        print(f"{row['name']}: {row['value']:.3g} {row['unit']}{ratio}; {row['goal'] or ''} {met}")
    if options.write:
        write_tables(ROOT / "docs" / "implicit.md", {"cost": table_of(rows)})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


def linear_rows(size: int, rounds: int, *, quick: bool) -> Iterator[Row]:
    """Give the figures of linear solves in float64, of a matrix and of a function that applies it."""
    # Far from singular, so that no candidate has a reason to say anything.
    matrix = torch.randn(size, size, dtype=torch.float64) + 2 * size**0.5 * torch.eye(size)
    b, g = torch.randn(size, dtype=torch.float64).requires_grad_(), torch.randn(size, dtype=torch.float64)
    solve = gw.implicit.linear_solve(product)
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        OURS: gw.implicit.linear_solve,
        TORCH: torch.linalg.solve,
        AGAIN: SolvesAgain.apply,
        f"{OURS} of a function": lambda matrix, b: solve(b, matrix),
    }
    forward = medians({name: lambda way=way: way(matrix, b) for name, way in ways.items()}, rounds)  # type: ignore[misc]
    for name in ways:
        goal = 1.5 if name == OURS and not quick else None  # it looks at the condition number too
        yield row(f"{name}, n = {size}: forward", forward[name], TORCH, forward[TORCH], goal)
    for target, given in (("b", matrix), ("the matrix and b", matrix.clone().requires_grad_())):
        leaves = [x for x in (given, b) if x.requires_grad]
        graphs = {name: way(given, b) for name, way in ways.items()}
        times = medians(
            {
                name: lambda x=x, to=leaves: torch.autograd.grad(x, to, g, retain_graph=True)  # type: ignore[misc]
                for name, x in graphs.items()
            },
            rounds,
        )
        for name in ways:
            yield row(f"{name}, n = {size}: backward to {target}", times[name], TORCH, times[TORCH], None)
        goal = None if quick else 0.05 if target == "b" else 0.2
        for against, base in (("its own forward", forward[OURS]), (AGAIN, times[AGAIN])):
            yield row(f"{OURS}, n = {size}: backward to {target}", times[OURS], against, base, goal)


def contraction(z: Tensor, w: Tensor, x: Tensor) -> Tensor:
    """One layer whose fixed point is looked for; it contracts by about 0.24."""
    return torch.tanh(w @ z + x)


def tolerance_rows(n: int = 20) -> Iterator[Row]:
    """Give the relative errors of gradients of a fixed point that was found to several tolerances.

    The implicit gradient is nearer to that of the fixed point than the one of the iteration that found it.
    """
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(n, n, dtype=torch.float64, generator=generator)
    w = (0.3 * w / torch.linalg.matrix_norm(w, 2)).requires_grad_()
    x = torch.randn(n, dtype=torch.float64, generator=generator)
    start = torch.zeros(n, dtype=torch.float64)

    def iterated(tolerance: float, w: Tensor) -> Tensor:
        z, following = start, contraction(start, w, x)
        while float((following - z).detach().norm()) > tolerance:
            z, following = following, contraction(following, w, x)
        return following

    def gradient(z: Tensor) -> Tensor:
        return torch.autograd.grad(z.sin().sum(), w)[0]

    truth = gradient(iterated(1e-14, w))
    for tolerance in (1e-1, 1e-2, 1e-4, 1e-6):
        errors = {}
        for name, backward in (("implicit", "exact"), ("one step", "one-step")):
            solve = gw.implicit.fixed_point(contraction, backward=backward, tol_residual=1.0)  # type: ignore[arg-type]
            errors[name] = gradient(solve(lambda z0, w, x, t=tolerance: iterated(t, w))(start, w, x))
        errors["unrolled"] = gradient(iterated(tolerance, w))
        off = {name: float((found - truth).norm() / truth.norm()) for name, found in errors.items()}
        for name in ("implicit", "one step"):
            goal = 1.0 if name == "implicit" else None
            yield {
                "name": f"gradient of a fixed point found to {tolerance:.0e}, {name}: relative error",
                "value": off[name],
                "unit": "",
                "against": "unrolled",
                "ratio": off[name] / off["unrolled"],
                "goal": None if goal is None else f"at most {goal} of unrolled",
                "met": None if goal is None else off[name] <= goal * off["unrolled"],
            }


def batch_rows(rows: int, rounds: int) -> Iterator[Row]:
    """Give what a batch of scalar roots and their gradients takes under vmap, beside one by one."""
    solve, start = gw.implicit.root(lambda y, t: y**3 + y - t), torch.zeros((), dtype=torch.float64)
    ts = torch.linspace(-5, 5, rows, dtype=torch.float64)
    slope = torch.func.grad(lambda t: solve(start, t))
    goal = 0.01 if rows >= 1000 else None
    ways = {"vmap": lambda: torch.func.vmap(slope)(ts), "loop": lambda: [slope(t) for t in ts[:: rows // 16]]}
    times = medians(ways, rounds)  # the loop over 16 of the rows
    yield row(f"{rows} roots and gradients under vmap", times["vmap"], "one by one", times["loop"] * rows / 16, goal)


def row(name: str, seconds: float, against: str, base: float, goal: float | None) -> Row:
    """Return a figure in milliseconds; the goal is the largest ratio that meets it."""
    ratio = seconds / base
    return {
        "name": name,
        "value": seconds * 1e3,
        "unit": "ms",
        "against": against,
        "ratio": ratio,
        "goal": None if goal is None else f"at most {goal} of {against}",
        "met": None if goal is None else ratio <= goal,
    }


if __name__ == "__main__":
    sys.exit(main())
