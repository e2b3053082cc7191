"""Do networks train with these estimators, and in the expected order? Accuracies on scikit-learn's digits.

Every number is the mean over seeds of the accuracy on 450 test images, in percent. Tables: bits of weights and
activations; the edge of a mask; ternary weights; binary weights and activations; weights that are kept on a grid;
floating-point and block formats. Where Brevitas or torchao have the item, it stands beside (they are installed into
``build/``, without a second torch).

    python benchmarks/ste_training.py               # everything, 3 seeds: about half an hour on one core
    python benchmarks/ste_training.py --quick       # that it runs: one seed, one epoch
    python benchmarks/ste_training.py --write       # puts the tables into docs/ste-training.md
    python benchmarks/ste_training.py --json FILE   # writes rows of figures
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import _ste_anchors  # noqa: E402
import torch  # noqa: E402
from _digits import Network, Recipe, accuracy, digits, mean_accuracy, train  # noqa: E402
from _pages import write_tables  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import gradwright as gw  # noqa: E402

PAGE = ROOT / "docs" / "ste-training.md"
SEEDS = (0, 1, 2)
ANCHORS: list[bool] = []
"""Not empty where Brevitas and torchao are there to compare with."""
Table = dict[str, dict[str, float]]
"""Accuracy by row and column."""


class Learned(nn.Module):
    """LSQ, whose step starts from the first values that it sees."""

    def __init__(self, bits: int, *, signed: bool = True) -> None:
        super().__init__()
        self.bits, self.signed, self.started = bits, signed, False
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Quantise."""
        if not self.started:
            self.scale.data.copy_(gw.ste.lsq_scale(x.detach(), self.bits, signed=self.signed))
            self.started = True
        return gw.ste.lsq(x, self.scale, bits=self.bits, signed=self.signed)


class Anchor(Learned):
    """The same with the quantiser of Brevitas."""

    def forward(self, x: Tensor) -> Tensor:
        """Quantise."""
        if not self.started:
            self.scale.data.copy_(gw.ste.lsq_scale(x.detach(), self.bits, signed=self.signed))
            self.quantise = _ste_anchors.brevitas_quantizer(self.bits, signed=self.signed)
            self.started = True
        return self.quantise(x, self.scale)


class Clipped(nn.Module):
    """PACT, with a bound that is learned."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits
        self.bound = nn.Parameter(torch.tensor(6.0))

    def forward(self, x: Tensor) -> Tensor:
        """Quantise."""
        return gw.ste.pact(x, self.bound, bits=self.bits)


def absmax(bits: int, *, signed: bool = True) -> Callable[[Tensor], Tensor]:
    """Return a quantiser whose largest code is the largest value that there is."""

    def quantise(x: Tensor) -> Tensor:
        return gw.ste.absmax(x, x.detach().abs().max(), bits=bits, signed=signed, narrow=signed)

    return quantise


def no_gradient(quantise: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a quantiser through which no gradient passes, as rounding has none."""
    return lambda x: quantise(x).detach()


def by_bits(seeds: Sequence[int], epochs: int) -> Table:
    """Weights and activations of so many bits."""
    found: Table = {}
    for hidden in (64, 16):
        plain = Recipe("float32", hidden=hidden)
        networks = [train(plain, seed, epochs) for seed in seeds]
        found[f"float32, hidden {hidden}"] = {"32": sum(map(accuracy, networks)) / len(networks)}
        for name, weights, activations in (
            ("LSQ", Learned, functools.partial(Learned, signed=False)),
            ("DoReFa weights, PACT activations", dorefa, Clipped),
            ("absmax", absmax, functools.partial(absmax, signed=False)),
            *([("Brevitas, learned step", Anchor, functools.partial(Anchor, signed=False))] if ANCHORS else []),
        ):
            row = found.setdefault(f"{name}, hidden {hidden}", {})
            for bits in (4, 3, 2):
                recipe = Recipe(name, functools.partial(weights, bits), functools.partial(activations, bits), hidden)
                row[str(bits)] = mean_accuracy(recipe, seeds, epochs)
        row = found.setdefault(f"absmax after training, hidden {hidden}", {})
        for bits in (4, 3, 2):
            row[str(bits)] = sum(accuracy(quantised_afterwards(n, bits)) for n in networks) / len(networks)
    recipe = Recipe("none", lambda: no_gradient(absmax(2)), lambda: absmax(2, signed=False), 16)
    found["no gradient to the weights, hidden 16"] = {"2": mean_accuracy(recipe, seeds, epochs)}
    return found


def dorefa(bits: int) -> Callable[[Tensor], Tensor]:
    """Return DoReFa's quantiser of weights."""
    return lambda w: gw.ste.dorefa_weights(w, bits=bits)


def quantised_afterwards(network: Network, bits: int) -> Network:
    """Quantise a trained network without training it."""
    network.weights = [absmax(bits) for _ in network.weights]
    network.activations = [absmax(bits, signed=False) for _ in network.activations]
    return network


def by_edge(seeds: Sequence[int], epochs: int) -> Table:
    """What a mask does that leaves out the codes at the bounds, as the derivative of a ``clamp`` may."""
    found: Table = {}
    for edges in ("inclusive", "exclusive"):

        def ternary(w: Tensor, edges: Any = edges) -> Tensor:
            scale = w.detach().abs().mean().clamp_min(1e-5)
            return gw.ste.fake_quantize(w, scale, low=-1, high=1, mask="post-round", edges=edges)

        def two_bits(signed: bool, edges: Any = edges) -> Callable[[Tensor], Tensor]:
            low, high = gw.ste.codes(2, signed=signed)

            def quantise(x: Tensor) -> Tensor:
                scale = 2 * x.detach().abs().mean() / high**0.5
                return gw.ste.fake_quantize(x, scale, low=low, high=high, mask="post-round", edges=edges)

            return quantise

        recipe = Recipe("ternary", lambda ternary=ternary: ternary, hidden=16)
        found.setdefault("ternary weights", {})[edges] = mean_accuracy(recipe, seeds, epochs)
        recipe = Recipe("W2A2", lambda q=two_bits: q(True), lambda q=two_bits: q(False), hidden=16)
        found.setdefault("2 bits", {})[edges] = mean_accuracy(recipe, seeds, epochs)
    return found


def ternary_weights(seeds: Sequence[int], epochs: int) -> Table:
    """Weights of three values."""

    def dead_zone(w: Tensor) -> Tensor:
        """Let no gradient pass where the weight is zero."""
        out = gw.ste.twn(w)
        return torch.where(out == 0, out.detach(), out)

    recipes = {"BitNet b1.58": gw.ste.bitnet_weights, "TWN": gw.ste.twn, "TWN without a gradient at zero": dead_zone}
    return {
        name: {"accuracy": mean_accuracy(Recipe(name, lambda q=quantise: q, hidden=16), seeds, epochs)}
        for name, quantise in recipes.items()
    }


def binary(seeds: Sequence[int], epochs: int) -> Table:
    """Weights and activations of one bit."""
    gradients: dict[str, Callable[[Tensor], Tensor]] = {
        "identity": gw.ste.sign,
        "clipped": gw.ste.clipped_sign,
        "ApproxSign": gw.ste.approx_sign,
        "SwishSign": gw.ste.swish_sign,
        "none": no_gradient(gw.ste.sign),
    }
    found = {}
    for name, sign in gradients.items():
        recipe = Recipe(name, lambda q=sign: q, lambda q=sign: q, relu=False)
        found[name] = {"accuracy": mean_accuracy(recipe, seeds, epochs)}
    return found


def on_a_grid(seeds: Sequence[int], epochs: int) -> Table:
    """Weights that are kept on a grid and moved by plain gradient descent: to the nearest point, or at random."""
    found: Table = {}
    for power in (6, 4):
        row = found.setdefault(f"grid of 2^-{power}", {})
        for name, rounding in (("nearest", gw.ste.round), ("stochastic", gw.ste.stochastic_round)):
            row[name] = sum(_descended(2.0**-power, rounding, seed, epochs) for seed in seeds) / len(seeds)
    return found


def _descended(step: float, rounding: Callable[[Tensor], Tensor], seed: int, epochs: int) -> float:
    torch.manual_seed(seed)
    network = Network(Recipe("grid"))
    images, labels, _, _ = digits()
    for _ in range(epochs * 3 // 2):
        for batch in torch.randperm(len(images)).split(64):
            if len(batch) < 8:
                continue
            network.zero_grad()
            nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.copy_(rounding((parameter - 0.1 * parameter.grad) / step) * step)  # type: ignore[operator]
    return accuracy(network.eval())


def formats(seeds: Sequence[int], epochs: int) -> Table:
    """Weights and activations in small floating-point and block formats."""
    recipes: dict[str, Callable[[Tensor], Tensor]] = {
        "FP8 E4M3": lambda x: gw.ste.float8(x, amax=x.detach().abs().max()),
        "MXFP8": lambda x: gw.ste.mx(x, element="e4m3"),
        "MXFP4": lambda x: gw.ste.mx(x, element="e2m1"),
        "MXINT8": lambda x: gw.ste.mx(x, element="int8"),
        "NVFP4": gw.ste.nvfp4,
    }
    if ANCHORS:
        recipes["FP8 of torchao"] = _ste_anchors.torchao_float8()
    return {
        name: {"accuracy": mean_accuracy(Recipe(name, lambda q=q: q, lambda q=q: q, hidden=16), seeds, epochs)}
        for name, q in recipes.items()
    }


TABLES: dict[str, tuple[str, Callable[[Sequence[int], int], Table]]] = {
    "bits": ("Bits of weights and activations", by_bits),
    "edges": ("The edge of the mask", by_edge),
    "ternary": ("Ternary weights", ternary_weights),
    "binary": ("Binary weights and activations, by the gradient of the sign", binary),
    "grid": ("Weights kept on a grid", on_a_grid),
    "formats": ("Small floating-point and block formats", formats),
}


def main() -> int:
    """Train, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one seed, one epoch: only that it runs")
    parser.add_argument("--only", choices=list(TABLES), help="one table")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/ste-training.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    if not options.quick:
        _ste_anchors.install()
        ANCHORS.append(True)
    torch.set_num_threads(1)
    seeds, epochs = ((0,), 1) if options.quick else (SEEDS, 40)
    found = {}
    for key, (title, measure) in TABLES.items():
        if options.only in (None, key):
            found[key] = measure(seeds, epochs)
            print(f"\n{title}\n\n{markdown(found[key])}", flush=True)
    if options.write:
        write_tables(PAGE, {key: markdown(table) for key, table in found.items()})
    if options.json:
        options.json.write_text(json.dumps(figures(found), indent=2), encoding="utf-8")
    return 0


def markdown(table: Table) -> str:
    """Return a Markdown table."""
    columns = list(dict.fromkeys(column for row in table.values() for column in row))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, row in table.items():
        cells = [f"{row[column]:.1f}" if column in row else "" for column in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figures(tables: dict[str, Table]) -> list[dict[str, Any]]:
    """Return every accuracy as a row."""
    return [
        {"name": f"{TABLES[key][0]}: {name}, {column}", "value": round(value, 2), "unit": "percent"}
        | {"against": None, "ratio": None, "goal": None, "met": None}
        for key, table in tables.items()
        for name, row in table.items()
        for column, value in row.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
