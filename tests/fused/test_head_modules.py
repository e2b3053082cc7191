"""The heads as modules."""

from __future__ import annotations

import pytest
import torch

import gradwright as gw
from gradwright.errors import ArgumentError
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
