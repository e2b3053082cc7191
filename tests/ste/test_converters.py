"""The settings that give what PyTorch's operators, LSQ and PACT give, as docs/ste-converting.md says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from tests.converters import (
    CLAIMS,
    HIGH,
    LOW,
    Row,
    clamp_edges,
    compositions,
    lsq_composed,
    measured,
    operators,
    quantised,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ste-converting.md"
ROWS = [*operators(), *compositions()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_as_close_as_it_claims(row: Row) -> None:
    found = measured(row)
    for name, claim in row.claims.items():
        assert CLAIMS.index(found[name]) <= CLAIMS.index(claim), (name, found)
        assert (found[name] == "differs") is (claim == "differs"), (name, found)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_page_has_the_row_and_says_what_differs(row: Row) -> None:
    text = PAGE.read_text(encoding="utf-8")
    name = row.name.replace("|", "\\|")
    assert f"| {name} | `{row.settings}` |" in text
    assert bool(row.why) or set(row.claims.values()) == {"same"}
    assert row.why in text


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"mask": "pre-round"}, "x"),  # what rounds into the range
        ({"edges": "exclusive"}, "x"),  # the outermost codes
        ({"mask": "none"}, "scale"),
        ({"gradient_scale": 0.25}, "scale"),
        ({"gradient_scale": 0.25}, "zero_point"),
    ],
)
def test_another_mask_edge_or_factor_is_told_apart(options: dict[str, Any], part: str) -> None:
    (row,) = [row for row in ROWS if row.name == "`torch._fake_quantize_learnable_per_tensor_affine`"]

    def changed(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        return quantised(x, scale, zero_point, **({"reciprocal": True, "gradient_scale": 0.3} | options))

    assert measured(dataclasses.replace(row, ours=changed))[part] == "differs"


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["number", "tensor"])
def test_the_reciprocal_decides_ties(kind: Callable[[float], Any]) -> None:
    divided = []
    for hundredths in range(5, 40):
        scale = kind(hundredths / 100)
        x = (torch.arange(LOW, HIGH) + 0.5) * torch.tensor(hundredths / 100)
        theirs = torch.fake_quantize_per_tensor_affine(x, hundredths / 100, 0, LOW, HIGH)
        assert torch.equal(theirs, quantised(x, scale, 0, reciprocal=True)), scale
        divided.append(torch.equal(theirs, quantised(x, scale, 0)))
    assert not all(divided)


def test_the_bound_of_composed_lsq_is_that_of_clamp() -> None:
    x, scale = torch.tensor([2.0 * LOW, LOW, 0.0, HIGH, 2.0 * HIGH], requires_grad=True), torch.ones(1)
    gradients = {
        edges: torch.autograd.grad(quantised(x, scale, mask="pre-round", edges=edges).sum(), x)[0].tolist()
        for edges in ("inclusive", "exclusive")
    }
    assert gradients == {"inclusive": [0, 1, 1, 1, 0], "exclusive": [0, 0, 1, 0, 0]}
    assert torch.autograd.grad(lsq_composed(x, scale).sum(), x)[0].tolist() == gradients[clamp_edges()]
    assert torch.autograd.grad(gw.ste.lsq(x, scale, bits=4).sum(), x)[0].tolist() == gradients["exclusive"]
