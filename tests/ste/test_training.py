"""Networks train with the estimators, in the expected order; the tables of ``docs/ste-training.md`` in small."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
pytest.importorskip("sklearn", reason="the images are scikit-learn's")

import _digits
import ste_training as tables

SEEDS = (0, 1)
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lsq(bits: int, hidden: int) -> _digits.Recipe:
    return _digits.Recipe("LSQ", lambda: tables.Learned(bits), lambda: tables.Learned(bits, signed=False), hidden)


def test_two_bits_are_enough_with_a_learned_step() -> None:
    assert _digits.mean_accuracy(lsq(2, 64), SEEDS) >= 97.0


def test_two_bits_in_order() -> None:
    """LSQ, DoReFa with PACT, the largest value as the bound, and far behind what was never trained with them."""
    plain = _digits.train(_digits.Recipe("float32", hidden=16), 0)
    never = _digits.accuracy(tables.quantised_afterwards(plain, 2))
    absmax = _digits.Recipe("absmax", lambda: tables.absmax(2), lambda: tables.absmax(2, signed=False), 16)
    dorefa = _digits.Recipe("DoReFa", lambda: tables.dorefa(2), lambda: tables.Clipped(2), 16)
    found = [_digits.mean_accuracy(recipe, SEEDS) for recipe in (lsq(2, 16), dorefa, absmax)]
    assert found[0] > found[1] > never + 20
    assert found[0] > found[2] > never + 20


def test_a_mask_that_leaves_the_bounds_out_loses_ternary_weights() -> None:
    table = tables.by_edge(SEEDS, 40)
    assert table["ternary weights"]["inclusive"] > table["ternary weights"]["exclusive"] + 10
    assert table["2 bits"]["inclusive"] > table["2 bits"]["exclusive"]


def test_ternary_weights_need_a_gradient_at_zero() -> None:
    table = tables.ternary_weights(SEEDS, 40)
    assert min(table["TWN"]["accuracy"], table["BitNet b1.58"]["accuracy"]) >= 95
    assert table["TWN"]["accuracy"] > table["TWN without a gradient at zero"]["accuracy"] + 3


def test_the_gradient_of_a_sign_matters() -> None:
    table = {name: row["accuracy"] for name, row in tables.binary(SEEDS, 40).items()}
    assert min(table["clipped"], table["ApproxSign"]) > table["identity"] > table["none"] + 10


def test_a_grid_is_left_only_at_random() -> None:
    table = tables.on_a_grid((0,), 40)
    assert table["grid of 2^-4"]["stochastic"] > table["grid of 2^-4"]["nearest"] + 10


def test_formats_train() -> None:
    table = {name: row["accuracy"] for name, row in tables.formats(SEEDS, 40).items()}
    assert table["FP8 E4M3"] >= 96
    assert min(table.values()) >= 94
