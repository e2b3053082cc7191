"""What a straight-through estimator costs: time and memory beside PyTorch's own operators, Brevitas and torchao.

Each candidate runs forward and backward (``autograd.grad`` with a given cotangent) in float32 on one thread. Candidates
take turns, each once untimed and once timed, and the median of the thread's own CPU time counts, so that other work on
the machine does not. The allocator is told to keep memory: otherwise every large tensor is paged in anew, which costs
more than the arithmetic. "Saved" is what is kept for the backward beyond the input, in bytes an element.

    python benchmarks/ste_speed.py                  # everything, with Brevitas and torchao (installed into build/)
    python benchmarks/ste_speed.py --quick          # that it runs: small, without those two and without compiling
    python benchmarks/ste_speed.py --write          # puts the tables into docs/speed.md
    python benchmarks/ste_speed.py --json FILE      # writes rows of figures
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _timing import keep_memory, medians

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "speed.md"

keep_memory()
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import _ste_anchors  # noqa: E402
import torch  # noqa: E402
from _pages import write_tables  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.autograd import Function  # noqa: E402

import gradwright as gw  # noqa: E402

STEP, LOW, HIGH = 0.25, -8, 7
ROUNDS = 15
Row = dict[str, Any]


@dataclass(frozen=True)
class Candidate:
    """One way to compute the same."""

    name: str
    run: Callable[..., Tensor]
    """Takes the input and, where the step is learned, the step."""


@dataclass(frozen=True)
class Goal:
    """What must hold between two candidates: ``name`` is so many times faster than ``against``."""

    name: str
    against: str
    times: float


class RoundFunction(Function):
    """A straight-through round written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


def detach_round(x: Tensor) -> Tensor:
    return x + (torch.round(x) - x).detach()


def composed(x: Tensor, step: Tensor | float = STEP) -> Tensor:
    return torch.clamp(detach_round(x / step), LOW, HIGH) * step


def fixed(x: Tensor) -> Tensor:
    return gw.ste.fake_quantize(x, STEP, low=LOW, high=HIGH)


def learned(x: Tensor, step: Tensor) -> Tensor:
    return gw.ste.fake_quantize(x, step, low=LOW, high=HIGH)


def rounding(anchors: bool, compiling: bool) -> list[Candidate]:
    found = [
        Candidate("clone", torch.clone),
        Candidate("x + (x.round() - x).detach()", detach_round),
        Candidate("Function, by hand", RoundFunction.apply),
        Candidate("gw.ste.round", gw.ste.round),
    ]
    if anchors:
        found.append(Candidate("Brevitas RoundSteFn", _ste_anchors.brevitas_round()))
    if compiling:
        found.append(Candidate("compiled gw.ste.round", torch.compile(gw.ste.round)))
    return found


def fixed_step(anchors: bool, compiling: bool) -> list[Candidate]:
    def built_in(x: Tensor) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(x, STEP, 0, LOW, HIGH)

    found = [Candidate("torch.fake_quantize_per_tensor_affine", built_in), Candidate("composed with detach", composed)]
    if anchors:
        quantise, constant = _ste_anchors.torchao_fake_quantize(LOW, HIGH), torch.tensor([STEP])
        found.append(Candidate("torchao", lambda x: quantise(x, constant)))
    found.append(Candidate("gw.ste.fake_quantize", fixed))
    if compiling:
        found += [
            Candidate("compiled torch.fake_quantize_per_tensor_affine", torch.compile(built_in)),
            Candidate("compiled composed", torch.compile(composed)),
            Candidate("compiled gw.ste.fake_quantize", torch.compile(fixed, fullgraph=True)),
        ]
    return found


def learned_step(anchors: bool, compiling: bool) -> list[Candidate]:
    zero = torch.zeros(1, requires_grad=True)

    def built_in(x: Tensor, step: Tensor) -> Tensor:
        return torch._fake_quantize_learnable_per_tensor_affine(x, step, zero, LOW, HIGH, 1.0)

    found = [
        Candidate("torch._fake_quantize_learnable_per_tensor_affine", built_in),
        Candidate("composed with detach", composed),
    ]
    if anchors:
        found += [
            Candidate("Brevitas IntQuant", _ste_anchors.brevitas_quantizer(4)),
            Candidate("torchao", _ste_anchors.torchao_fake_quantize(LOW, HIGH)),
        ]
    found.append(Candidate("gw.ste.fake_quantize", learned))
    if compiling:
        found += [
            Candidate("compiled composed", torch.compile(composed)),
            Candidate("compiled gw.ste.fake_quantize", torch.compile(learned, fullgraph=True)),
        ]
    return found


TABLES: dict[str, tuple[str, Callable[[bool, bool], list[Candidate]], tuple[Goal, ...]]] = {
    "round": ("Round", rounding, (Goal("gw.ste.round", "clone", 1 / 1.1),)),
    "fixed": (
        "Fake quantisation, 4 bits, fixed step",
        fixed_step,
        (
            Goal("gw.ste.fake_quantize", "torch.fake_quantize_per_tensor_affine", 1.8),
            Goal("compiled gw.ste.fake_quantize", "torch.fake_quantize_per_tensor_affine", 4.0),
        ),
    ),
    "learned": (
        "Fake quantisation, 4 bits, learned step",
        learned_step,
        (
            Goal("gw.ste.fake_quantize", "torch._fake_quantize_learnable_per_tensor_affine", 1.7),
            Goal("compiled gw.ste.fake_quantize", "torch._fake_quantize_learnable_per_tensor_affine", 7.0),
        ),
    ),
}


def main() -> int:
    """Measure, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, nothing compiled or installed")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/speed.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.quick:
        _ste_anchors.install()
    sizes = (1_000, 10_000) if options.quick else (1_000, 1_000_000)
    rows: list[Row] = []
    tables = {}
    for key, (title, make, goals) in TABLES.items():
        candidates = make(not options.quick, not options.quick)
        times = {size: measured(candidates, size, key == "learned", 1 if options.quick else ROUNDS) for size in sizes}
        saved = {c.name: saved_bytes(c, key == "learned") for c in candidates}
        tables[f"ste {key}"] = table(times, saved)
        print(f"\n{title}\n\n{tables[f'ste {key}']}")
        rows += figures(title, times, goals)
    for row in rows:
        if row["goal"] is not None and not options.quick:
            print(f"{row['name']}: {row['ratio']} times as fast as {row['against']} (goal {row['goal']})")
    if options.write:
        write_tables(PAGE, tables)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


def measured(candidates: Sequence[Candidate], size: int, step: bool, rounds: int) -> dict[str, float]:
    """Return the median time of each candidate in microseconds."""
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).requires_grad_()
    g = torch.randn(size, generator=torch.Generator().manual_seed(1))
    leaves = (x, torch.tensor([STEP], requires_grad=True)) if step else (x,)

    def run(candidate: Candidate) -> None:
        torch.autograd.grad(candidate.run(*leaves), leaves, g)

    runs = {c.name: functools.partial(run, c) for c in candidates}
    return {name: seconds * 1e6 for name, seconds in medians(runs, rounds, max(1, 20_000 // size)).items()}


def saved_bytes(candidate: Candidate, step: bool) -> float:
    """Return the bytes an element that are kept for the backward beyond the input."""
    size = 4096
    x = torch.randn(size, requires_grad=True)
    leaves = (x, torch.tensor([STEP], requires_grad=True)) if step else (x,)
    known = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = candidate.run(*leaves)
    del out
    return round(sum(kept.values()) / size, 2)


def table(times: dict[int, dict[str, float]], saved: dict[str, float]) -> str:
    """Return a Markdown table, a row for each candidate."""
    sizes = list(times)
    lines = ["| | " + " | ".join(f"{size:,} elements, µs" for size in sizes) + " | saved, bytes an element |"]
    lines.append("|---" * (len(sizes) + 2) + "|")
    for name in saved:
        cells = [f"{times[size][name]:.0f}" for size in sizes]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {saved[name]:g} |")
    return "\n".join(lines)


def figures(title: str, times: dict[int, dict[str, float]], goals: Sequence[Goal]) -> list[Row]:
    """Return every time as a row, and the goals with what came of them, for the largest size."""
    rows: list[Row] = []
    for size, found in times.items():
        for name, value in found.items():
            row: Row = {"name": f"{title}, {size:,} elements: {name}", "value": round(value, 1), "unit": "us"}
            rows.append(row | {"against": None, "ratio": None, "goal": None, "met": None})
    largest = times[max(times)]
    for goal in goals:
        if goal.name in largest:
            ratio = round(largest[goal.against] / largest[goal.name], 2)
            rows.append(
                {"name": f"{title}: {goal.name}", "value": round(largest[goal.name], 1), "unit": "us"}
                | {"against": goal.against, "ratio": ratio, "goal": round(goal.times, 2), "met": ratio >= goal.times}
            )
    return rows


if __name__ == "__main__":
    sys.exit(main())
