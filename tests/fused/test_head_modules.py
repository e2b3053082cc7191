"""The heads as modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError
from tests.fused.heads import layer


def test_the_module_is_a_drop_in() -> None:
    theirs_class = getattr(torch.nn, "LinearCrossEntropyLoss", None)
    if theirs_class is None:
        pytest.skip("this torch has no LinearCrossEntropyLoss")
    weight = torch.linspace(0.5, 2.0, 9)
    theirs = theirs_class(4, 9, bias=True, weight=weight, label_smoothing=0.1)
    ours = gw.fused.LinearCrossEntropyLoss(4, 9, bias=True, weight=weight, label_smoothing=0.1)
    ours.load_state_dict(theirs.state_dict())
    x, _, target = layer(dtype=torch.float32)
    torch.testing.assert_close(ours(x, target), theirs(x, target))
    assert "label_smoothing=0.1" in repr(ours)
    with pytest.raises(ArgumentError, match=r"weight has the shape \(3,\); expected \(9,\)"):
        gw.fused.LinearCrossEntropyLoss(4, 9, weight=torch.ones(3))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"reduction": "avg"}, OptionError, "LinearCrossEntropyLoss: reduction"),
        ({"label_smoothing": 2.0}, OptionError, "expected a number from 0 to 1"),
        ({"softcap": -1.0}, OptionError, "softcap is -1.0"),
        ({"block": 0}, OptionError, "block is 0"),
        ({"weight": [1.0] * 9}, ArgumentError, "weight is a list"),
        ({"softcp": 3.0}, TypeError, "softcp"),
    ],
)
def test_a_wrong_option_is_refused_when_the_module_is_made(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        gw.fused.LinearCrossEntropyLoss(4, 9, **options)
