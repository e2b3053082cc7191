"""Every entry with a true gradient is right: values and two derivatives, in every dtype, mode and transform.

An entry is proved here by being there; its family's own tests hold what is special about it. The truth comes from its
reference, differentiated in as many digits as it takes. No derivative may be nan or infinite where the truth is finite.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
import gradwright.fused
import gradwright.stable
from gradwright.authoring.catalogue import entries
from gradwright.authoring.exact import ALL, Point, TrueEntry
from tests.measured import cotangents, errors, forward_errors, points
from tests.truth import leaves_of, with_leaves

PACKAGES = (gradwright.fused, gradwright.stable)
ENTRIES = [e for package in PACKAGES for e in entries(package) if isinstance(e, TrueEntry)]
EACH = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
IN_EACH_DTYPE = pytest.mark.parametrize(
    ("entry", "dtype"),
    [
        pytest.param(entry, dtype, id=f"{entry.name}-{str(dtype).removeprefix('torch.')}")
        for entry in ENTRIES
        for dtype in entry.bars
    ],
)
ROUGH = ("gradient-penalty", "nested-forward", "second-order", "matches-differences", "low-precision", "modes-agree")
"""What differences of the dtype itself may leave open at points at the ends of its range."""


def about(entry: TrueEntry, number: int, point: Point) -> str:
    return f"{entry.name}, example {number} ({point.note})"


@IN_EACH_DTYPE
def test_values_and_derivatives_are_true(entry: TrueEntry, dtype: torch.dtype) -> None:
    for number, point in enumerate(points(entry, dtype)):
        found = list(errors(entry, number, dtype))
        assert all(error.within for error in found), "\n".join(
            f"{about(entry, number, point)}: {error}" for error in found if not error.within
        )


@EACH
def test_forward_mode_is_true(entry: TrueEntry) -> None:
    for number, point in enumerate(points(entry, torch.float64)):
        found = list(forward_errors(entry, number, torch.float64))
        assert all(error.within for error in found), "\n".join(
            f"{about(entry, number, point)}: {error}" for error in found if not error.within
        )


@EACH
def test_a_batch_is_each_of_its_examples(entry: TrueEntry) -> None:
    """Under vmap value and gradient are those of a loop, over the tensor and another one that is as much in the domain.

    That is its mirror image for elementwise functions, and half of it for others.
    """
    for point in points(entry, torch.float64):
        leaves = {name: leaf.detach() for name, leaf in leaves_of(entry, point).items()}
        g, _ = cotangents(entry, point, torch.float64)

        def call(*given: Tensor, point: Point = point, names: tuple[str, ...] = tuple(leaves)) -> Tensor:
            args, kwargs = with_leaves(entry, point, dict(zip(names, given)))
            result: Tensor = entry.subject(*args, **kwargs)
            return result

        def pulled(*given: Tensor, call: Any = call, g: Tensor | None = g) -> tuple[Tensor, ...]:
            out, pull = torch.func.vjp(call, *given)
            return (out, *pull(torch.ones_like(out) if g is None else g.to(out.dtype)))

        others = [x.flip(tuple(range(x.dim()))) if entry.elementwise else x * 0.5 for x in leaves.values()]
        alone = [pulled(*given) for given in (leaves.values(), others)]
        together = torch.func.vmap(pulled)(*(torch.stack(pair) for pair in zip(leaves.values(), others)))
        for each, batch in zip(zip(*alone), together):
            want = torch.stack(list(each))
            # A batched kernel may sum in another order: off by a part of the largest number that is finite.
            size = float(want.abs().nan_to_num(0.0, 0.0, 0.0).max()) if want.numel() else 0.0
            torch.testing.assert_close(batch, want, rtol=1e-12, atol=1e-12 * size, equal_nan=True)


@EACH
@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled_code_is_true(entry: TrueEntry) -> None:
    for dtype in (torch.float64, torch.float32):
        if dtype not in entry.bars:
            continue
        for number, point in enumerate(points(entry, dtype)):
            torch.compiler.reset()
            fast = torch.compile(entry.subject, fullgraph=True, dynamic=False)
            found = list(errors(entry, number, dtype, orders=1, function=fast))
            assert all(error.within for error in found), "\n".join(
                f"{about(entry, number, point)}: {error}" for error in found if not error.within
            )


def faults(entry: TrueEntry, point: Point, level: str) -> list[str]:
    """Return what a check finds against an entry, what it cannot tell, and what is refused that need not be."""
    report = gw.check(entry.subject, *point.args, kwargs=dict(point.kwargs), level=level, seed=0)  # type: ignore[arg-type]
    bad = [
        r
        for r in report.results
        if r.verdict in ("fail", "suspect") or (r.verdict == "unresolved" and not (point.extreme and r.id in ROUGH))
    ]
    allowed = ("export", "export (strict)")
    refused = [s for s in report.support if s.verdict == "unsupported" and s.transform not in allowed]
    return [f"{r.id}: {r.verdict}: {r.message}" for r in bad] + [f"{s.transform}: {s.reason}" for s in refused]


@EACH
def test_a_quick_check_finds_nothing(entry: TrueEntry) -> None:
    assert not faults(entry, points(entry, torch.float64)[0], "quick")


@EACH
@pytest.mark.slow
@pytest.mark.compile
def test_a_full_check_finds_nothing(entry: TrueEntry) -> None:
    for number, point in enumerate(points(entry, torch.float64)):
        found = faults(entry, point, "full")
        assert not found, f"{about(entry, number, point)}: {found}"


def test_names_are_unique() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(names) == len(set(names))


@EACH
def test_declarations_are_complete(entry: TrueEntry) -> None:
    package = getattr(gw, entry.name.split(".")[0])
    assert getattr(package, entry.name.split(".")[1]) is entry.function, "users find it under its name"
    assert entry.summary.endswith("."), "its docstring starts with a sentence"
    assert entry.paper
    assert entry.domain
    assert {torch.float64, torch.float32} <= set(entry.bars) <= set(ALL)
    arguments = [a.name for a in entry.function.__custom_gradient__.arguments]  # type: ignore[attr-defined]
    assert entry.gradient
    assert set(entry.gradient) <= set(arguments)
    assert not points(entry, torch.float64)[0].extreme, "the first example is an ordinary one"
