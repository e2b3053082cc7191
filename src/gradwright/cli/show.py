"""``gradwright show``: the catalogue, or one entry of it with its formulae and plots of what it really returns."""

from __future__ import annotations

import inspect
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from gradwright import torch_compat as torch_compat  # first: it says clearly when torch is missing

# isort: split

import torch
from torch import Tensor

from gradwright import fused, stable, ste
from gradwright.authoring.catalogue import Entry, Example, SurrogateEntry, entries
from gradwright.authoring.cheaper import CheaperEntry
from gradwright.authoring.exact import TrueEntry
from gradwright.cli.names import without_torch
from gradwright.errors import unknown_name
from gradwright.reporting.curve import ASCII, MARGIN, UNICODE, curve

PACKAGES = (fused, stable, ste)
MAX_WIDTH = 100
MAX_EDGES = 8
"""Jumps of the gradient that are listed."""
JUMP = 1e-3
"""What counts as one between neighbouring numbers, as a part of the largest gradient."""
FAR = 8
"""Points farther from zero than so many times the median one are left out of a plot."""
NO_PLOT = "no plot: its output is no function of one number"


def run_show(name: str | None) -> int:
    """Print one entry of the catalogue, or a list of a family, a package or all."""
    known = [entry for package in PACKAGES for entry in entries(package)]
    if name is None:
        _print(_listed(known))
        return 0
    wanted = without_torch(name) or name.removeprefix("gradwright.").removeprefix("gw.")
    group = [entry for entry in known if wanted in (_package(entry), entry.family, f"{_package(entry)}.{entry.family}")]
    found = [entry for entry in known if wanted in (entry.name, entry.name.rpartition(".")[2])]
    if found or group:
        _print("\n\n".join(map(described, found)) if found else _listed(group))
        return 0
    tools = {full: tool for package in PACKAGES for full, tool in _tools(package, known).items()}
    fitting = [full for full in tools if wanted in (full, full.rpartition(".")[2])]
    if not fitting:
        full_names = [*(entry.name for entry in known), *tools]
        names = full_names + [full.rpartition(".")[2] for full in full_names]
        print(unknown_name("show", wanted, names, "gradwright show"), file=sys.stderr)
        return 2
    _print("\n\n".join(_documented(full, tools[full]) for full in fitting))
    return 0


def _tools(package: ModuleType, known: Sequence[Entry]) -> dict[str, Callable[..., Any]]:
    """Return what a package has beside its entries, such as functions that make functions, by name."""
    names = {entry.name for entry in known}
    short = package.__name__.rpartition(".")[2]
    return {
        f"{short}.{name}": value
        for name, value in vars(package).items()
        if callable(value) and not name.startswith("_") and f"{short}.{name}" not in names
    }


def _documented(name: str, tool: Callable[..., Any]) -> str:
    """Return how something that is no entry is called, and its docstring."""
    empty = inspect.Parameter.empty
    signature = inspect.signature(tool)
    bare = [parameter.replace(annotation=empty) for parameter in signature.parameters.values()]
    called = signature.replace(parameters=bare, return_annotation=empty)
    without_addresses = re.sub(r"<function (\S+) at 0x\w+>", r"\1", str(called))
    return f"{name}{without_addresses}\n\n{_plain(inspect.getdoc(tool) or '')}"


def _print(text: str) -> None:
    """Print a text; what the encoding of the terminal lacks, such as a letter of an author's name, is escaped."""
    encoding = sys.stdout.encoding or "ascii"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _plain(text: str) -> str:
    """Take off a docstring what is written for Sphinx."""
    return re.sub(r":[a-z:]+:`~?([^`]+)`", r"\1", text).replace("``", "")


def _package(entry: Entry) -> str:
    return entry.name.partition(".")[0]


def _listed(chosen: Sequence[Entry]) -> str:
    """Return a list of entries under what their families are about."""
    width = max((len(entry.name) for entry in chosen), default=0)
    blocks: dict[str, list[str]] = {}
    for entry in chosen:
        about = (sys.modules[entry.function.__module__].__doc__ or "").strip().splitlines()[0]
        head = f"{_package(entry)}.{entry.family}: {_plain(about)}"
        blocks.setdefault(head, []).append(f"  {entry.name:<{width}}  {_plain(entry.summary)}")
    lines = ["\n".join([head, *rows]) for head, rows in blocks.items()]
    return "\n\n".join([*lines, "`gradwright show NAME` prints the formulae of one and plots it."])


# -------------------------------------------------------------------- one entry


def described(entry: Entry) -> str:
    """Return everything about one entry: what it declares, and what it returns on the first of its examples."""
    columns = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    facts = [
        ("values", entry.forward),
        *((f"gradient of {name}", formula) for name, formula in entry.gradient.items()),
        *(_about_surrogate(entry) if isinstance(entry, SurrogateEntry) else ()),
        *(_about_true(entry) if isinstance(entry, TrueEntry) else ()),
        *(_about_cost(entry) if isinstance(entry, CheaperEntry) else ()),
        ("paper", entry.paper),
    ]
    width = max(len(title) for title, _ in facts)
    lines = [f"{entry.name} ({_package(entry)}.{entry.family})", *textwrap.wrap(_plain(entry.summary), columns), ""]
    for title, text in facts:
        wrapped = textwrap.wrap(text, max(columns - width - 2, 20), break_long_words=False) or [""]
        lines += [f"{title if not number else '':<{width}}  {line}" for number, line in enumerate(wrapped)]
    return "\n".join([*lines, "", *_plots(entry, columns)])


_SECOND_ORDER = {
    "surrogate": "that of the surrogate",
    "raises": "refused, at least while parameters are learned",
}


def _about_surrogate(entry: SurrogateEntry) -> list[tuple[str, str]]:
    return [
        ("edges", _edges(entry)),
        ("second order", _SECOND_ORDER[entry.second_order]),
        ("in the cotangent", "linear" if entry.linear else "not linear"),
        ("random", entry.random or "no"),
        ("saved", f"{entry.saved:g} bytes an element" if entry.saved else "nothing beyond the arguments"),
    ]


def _about_true(entry: TrueEntry) -> list[tuple[str, str]]:
    bars = ", ".join(f"{bar:.1e} in {str(dtype).removeprefix('torch.')}" for dtype, bar in entry.bars.items())
    return [("defined for", entry.domain), ("largest relative error", bars), ("second order", "the true one")]


def _about_cost(entry: CheaperEntry) -> list[tuple[str, str]]:
    goals = {"time": entry.goal.time, "peak memory": entry.goal.peak, "kept bytes": entry.goal.kept}
    parts = [f"{_part(part)} of the {what}" for what, part in goals.items() if part is not None]
    return [("goal", f"at most {', '.join(parts)} of what it replaces (benchmarks/fused.py)")]


def _part(part: float) -> str:
    """Return a part as a decimal of two digits, or as a fraction."""
    return f"{part:g}" if part == round(part, 3) else f"1/{1 / part:.2g}"


def _edges(entry: SurrogateEntry) -> str:
    """Say where the gradient that is returned jumps, and what it is there, on the points of the first example."""
    if entry.random:
        return "not measured: the values are random"
    example = entry.examples(torch.float32)[0]
    x = _first(example)
    if x is None:
        return "not measured: the first argument is no tensor"
    points, where = x.detach().reshape(-1).unique(return_inverse=True)
    _, grad = _returned(entry.function, example, x)
    slopes = torch.zeros_like(points).index_copy_(0, where, grad.reshape(-1))
    jumps: dict[int, str] = {}
    for place in range(1, len(points) - 1):
        below, at, above = points[place - 1 : place + 2]
        neighbours = bool(torch.nextafter(at, -_INFINITE) == below) and bool(torch.nextafter(at, _INFINITE) == above)
        around = slopes[place - 1 : place + 2]
        if neighbours and bool(around.max() - around.min() > JUMP * slopes.abs().max()):
            before, here, after = around.tolist()
            jumps[place] = f"at {at + 0.0:g}: {before:g} below, {here:g} at, {after:g} above"
    # A jump between two points is seen from both: the one that is meant has the shorter decimals.
    for place in [place for place in jumps if place + 1 in jumps]:
        longer = place if len(f"{points[place] + 0.0:g}") > len(f"{points[place + 1] + 0.0:g}") else place + 1
        jumps.pop(longer, None)
    if not jumps:
        return "the gradient has no jump at the points of the first example"
    more = f"; {len(jumps) - MAX_EDGES} more" if len(jumps) > MAX_EDGES else ""
    return "; ".join(list(jumps.values())[:MAX_EDGES]) + more + " (as returned, for a cotangent of 1)"


_INFINITE = torch.tensor(math.inf)


def _plots(entry: Entry, columns: int) -> list[str]:
    """Return plots of the values and of the gradient, on the first example that a row of points fits."""
    if isinstance(entry, TrueEntry) and not entry.elementwise:
        return [NO_PLOT]  # a row of points would be one argument of it, as it is of a softmax
    strokes = UNICODE if _encodable("".join(vars(UNICODE).values())) else ASCII
    for example in entry.examples(torch.float32):
        given = _first(example)
        if given is None or given.is_complex():
            continue
        x = torch.linspace(*_range(given), max(columns - MARGIN, 16))
        example = _along(example, given, x)
        try:
            out, grad = _returned(entry.function, example, x)
        except (ValueError, TypeError, RuntimeError, IndexError):
            continue
        if out.shape != x.shape:
            continue
        note = f" ({_arguments(example)})" if _arguments(example) else ""
        drawn = ", one draw" if getattr(entry, "random", "") else ""
        lines = [f"values over x{note}{drawn}", *curve(x.tolist(), out.tolist(), strokes=strokes), ""]
        return [
            *lines,
            "gradient of x as returned, for a cotangent of 1",
            *curve(x.tolist(), grad.tolist(), strokes=strokes),
        ]
    return [NO_PLOT]


def _along(example: Example, given: Tensor, x: Tensor) -> Example:
    """Return an example for another ``x``; what has a number for each element gets the first everywhere."""

    def spread(value: Any) -> Any:
        per_element = isinstance(value, Tensor) and value.shape == given.shape and value.numel() > 1
        return value.detach().reshape(-1)[0].expand(x.shape) if per_element else value

    kwargs = {name: spread(value) for name, value in example.kwargs.items()}
    return Example((x, *map(spread, example.args[1:])), kwargs, example.note)


def _range(x: Tensor) -> tuple[float, float]:
    """Return the range of a plot that shows the points of an example, but those far outside."""
    finite = x.detach().double().reshape(-1)
    finite = finite[finite.isfinite()]
    if not len(finite):
        return -1.0, 1.0
    near = finite[finite.abs() <= FAR * finite.abs().median().clamp(min=finite.abs().max() / 1e6)]
    low, high = float(near.min()), float(near.max())
    margin = (high - low) / 20 or 1.0
    return low - margin, high + margin


def _returned(function: Callable[..., Tensor], example: Example, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return values and gradient of a function at ``x``, the other arguments being those of an example."""
    leaf = x.detach().clone().requires_grad_()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        out = function(leaf, *example.args[1:], **example.kwargs)
    (grad,) = torch.autograd.grad(out, leaf, torch.ones_like(out), materialize_grads=True)
    return out.detach(), grad


def _first(example: Example) -> Tensor | None:
    """Return the first argument where it is a tensor."""
    value = example.args[0] if example.args else None
    return value if isinstance(value, Tensor) else None


def _arguments(example: Example) -> str:
    """Return the other arguments in short."""
    given = [_short(value) for value in example.args[1:]]
    return ", ".join([*given, *(f"{name}={_short(value)}" for name, value in example.kwargs.items())])


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        if value.numel() and bool((value == value.reshape(-1)[0]).all()):
            return f"{value.reshape(-1)[0].item():g}"
        return f"tensor{tuple(value.shape)}"
    return repr(value)


def _encodable(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
