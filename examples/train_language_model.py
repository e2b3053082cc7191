"""A small language model, trained with and without gw.fused.patch: the same curve, and how much memory a step takes.

It learns the English of Python's help texts and docstrings, word by word: with ten thousand words, most of the memory
of a step are the logits. Both models take every step in turn, from the same start. Takes less than a minute:

    python examples/train_language_model.py
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import re
import statistics
import sysconfig
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import gradwright as gw

STEPS, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 80, 64, 4, 2, 128, 10
QUICK = {"steps": 6, "batch": 4}
COLUMNS, ROWS, MIB = 64, 7, 2.0**20
console = Console()


def main() -> None:
    """Train both, and show the curve, the time and the memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"how long the training is ({STEPS})")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"how many texts each step has ({BATCH})")
    parser.add_argument("--quick", action="store_true", help="a few small steps, to see that it runs")
    options = parser.parse_args()
    if options.quick:
        parser.set_defaults(**QUICK)
        options = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler says on stderr that it begins, and that it ends
    torch.set_num_threads(1)
    start = time.perf_counter()
    tokens, words = corpus()
    torch.manual_seed(0)
    plain = LanguageModel(len(words))
    patched = copy.deepcopy(plain)
    console.print(str(gw.fused.patch(patched, loss=True)), soft_wrap=True, highlight=False)
    count = sum(parameter.numel() for parameter in plain.parameters())
    console.print(f"\n{count:,} parameters; {len(tokens):,} words, {len(words):,} different ones\n")
    both = [Training(model) for model in (plain, patched)]
    for batch in batches(tokens, options.steps, options.batch):
        for training in both:
            training.step(batch)
    show_curves(*both)
    curves = [memory(training, batch) for training in both]
    show_memory(*curves)
    console.print(f"\n{time.perf_counter() - start:.0f} s")


# -------------------------------------------------------------------- model and text


@dataclass
class Output:
    """What the model returns: a loss where there are labels, and logits."""

    loss: Tensor | None
    logits: Tensor | None


class LanguageModel(nn.Module):
    """A causal transformer, which shifts the labels and computes its loss itself, as those of Hugging Face do."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, words, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Output:
        x = self.embedding(input_ids) + self.places.weight[: input_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.norm(x))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Output(loss, logits)


class Block(nn.Module):
    """Attention to the words before, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


def corpus() -> tuple[Tensor, list[str]]:
    """Return the words of what Python says of itself as numbers, and the words, the most frequent first."""
    texts = [topics[name] for name in sorted(topics)]
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                texts.append(ast.get_docstring(node) or "")
    found = re.findall(r"\w+|[^\w\s]", " ".join(texts))
    words = [word for word, _ in Counter(found).most_common()]
    number = {word: place for place, word in enumerate(words)}
    return torch.tensor([number[word] for word in found]), words


def batches(tokens: Tensor, steps: int, size: int) -> list[Tensor]:
    """Return texts for each step, taken anywhere, always the same."""
    starts = torch.randint(len(tokens) - LENGTH, (steps, size, 1), generator=torch.Generator().manual_seed(1))
    return list(tokens[starts + torch.arange(LENGTH)])


# -------------------------------------------------------------------- training


class Training:
    """A model with its optimiser, its losses and how long its steps took."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, batch: Tensor) -> None:
        """Learn from some texts."""
        start = time.perf_counter()
        self.optimiser.zero_grad()
        loss = self.model(batch, labels=batch).loss
        loss.backward()
        self.optimiser.step()
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(loss.item())


def memory(training: Training, batch: Tensor) -> list[tuple[float, float]]:
    """Return how much memory one more step has taken at each time, in MiB and seconds, beyond what was there."""
    training.optimiser.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        training.step(batch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    curve, held = [], 0
    for moment, change in changes:
        held += change
        curve.append(((moment - changes[0][0]) / 1e6, held / MIB))
    return curve


# -------------------------------------------------------------------- what is shown


def show_curves(plain: Training, patched: Training) -> None:
    """Show both curves, how far they are apart, and the time."""
    steps = len(plain.losses)
    table = Table("step", "PyTorch", "patched", "difference", "", box=None)
    for step in sorted({round((steps - 1) * row / 9) for row in range(10)}):
        both = plain.losses[step], patched.losses[step]
        table.add_row(
            str(step), *(f"{loss:.4f}" for loss in both), f"{both[1] - both[0]:+.0e}", "█" * round(4 * both[1])
        )
    console.print(table)
    apart = max(abs(a - b) for a, b in zip(plain.losses, patched.losses, strict=True))
    ratio = statistics.median(b / a for a, b in zip(plain.seconds, patched.seconds, strict=True))
    console.print(f"\nthe losses differ by at most {apart:.0e}; a patched step takes {ratio:.2f} of the time")


def show_memory(plain: list[tuple[float, float]], patched: list[tuple[float, float]]) -> None:
    """Draw the memory of one step of each over time, to the same scale."""
    peaks = [max(held for _, held in curve) for curve in (plain, patched)]
    console.print(f"peak of a step: {peaks[0]:.0f} MiB, patched {peaks[1]:.0f} MiB, {peaks[1] / peaks[0]:.2f} of it")
    last = max(curve[-1][0] for curve in (plain, patched))
    for name, curve in (("PyTorch", plain), ("patched", patched)):
        console.print(f"\nmemory of one step of {name}, MiB over seconds")
        for line in drawn(curve, last, peaks[0]):
            console.print(line, highlight=False)


def drawn(curve: list[tuple[float, float]], last: float, most: float) -> list[str]:
    """Return the rows of a picture of the largest value in each part of the time."""
    heights = [0.0] * COLUMNS
    for (moment, value), (following, _) in zip(curve, [*curve[1:], (curve[-1][0], 0.0)], strict=True):
        first, end = (min(int(COLUMNS * at / last), COLUMNS - 1) for at in (moment, following))
        for column in range(first, end + 1):
            heights[column] = max(heights[column], value)
    rows = []
    for row in reversed(range(ROWS)):
        eighths = [max(0, min(8, round(8 * (ROWS * height / most - row)))) for height in heights]
        rows.append(f"{most * (row + 1) / ROWS:5.0f} │" + "".join(" ▁▂▃▄▅▆▇█"[part] for part in eighths))
    return [*rows, "    0 └" + "─" * COLUMNS, f"       0{last:>{COLUMNS - 1}.2f}"]


if __name__ == "__main__":
    main()
