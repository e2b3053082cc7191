"""A comparison says where two estimators differ, by how much, and tells rounding from more."""

from __future__ import annotations

import functools
import json

import pytest
import torch
from torch import Tensor, nn

import gradwright as gw
from gradwright.errors import ArgumentError
from gradwright.ste import Quantize, compare, fake_quantize

X = torch.tensor([[-9.0, -4.25, -1.2, 0.1], [0.6, 3.2, 3.4, 50.0]])
quantize = functools.partial(fake_quantize, low=-4, high=3)
lsq = functools.partial(quantize, mask="pre-round")


def test_masks_differ_beyond_the_codes_but_before_the_tie() -> None:
    found = compare(quantize, lsq, X, torch.tensor(1.0))
    assert not found.same
    assert found.value.differing == 0
    grad = found.gradients["x"]
    assert (grad.differing, grad.total, grad.fraction, grad.largest) == (3, 8, 0.375, 1.0)
    assert [(r.low, r.high, r.count) for r in grad.ranges] == [
        (-4.25, -4.25, 1),
        (pytest.approx(3.2), pytest.approx(3.4), 2),
    ]
    assert [(e.index, e.a, e.b) for e in grad.examples] == [((0, 1), 1, 0), ((1, 1), 1, 0), ((1, 2), 1, 0)]
    step = found.gradients["scale"]
    assert step.differing == 1
    # -4.25: 0.25 against -4; 3.2: -0.2 against 3; 3.4: -0.4 against 3
    assert step.largest == pytest.approx(abs((0.25 - 0.2 - 0.4) - (-4 + 3 + 3)), rel=1e-5)
    assert str(found).splitlines() == [
        "a = fake_quantize(low=-4, high=3), b = fake_quantize(low=-4, high=3, mask='pre-round')",
        "value: the same in all of 8 elements",
        "gradient of x: 3 of 8 elements differ (38 %), by 1 at most",
        "  where x is -4.25 (1), 3.2 to 3.4 (2)",
        "  [0, 1] x = -4.25: a 1, b 0",
        "  [1, 1] x = 3.2: a 1, b 0",
        "  [1, 2] x = 3.4: a 1, b 0",
        "gradient of scale: differs",
        "  a -0.85, b 1.5",
    ]


def test_the_same_is_the_same() -> None:
    found = compare(quantize, quantize, X, torch.tensor(1.0))
    assert found.same
    assert "gradient of scale: the same" in str(found).splitlines()


def test_rounding_is_told_from_more() -> None:
    found = compare(lambda x: x / 3, lambda x: x * (1 / 3), torch.linspace(1, 2, 100))
    assert found.same
    assert found.value.rounding > 0
    assert found.value.differing == 0
    assert "up to rounding" in str(found)
    exact = compare(lambda x: x / 3, lambda x: x * (1 / 3), torch.linspace(1, 2, 100), tolerance=0.0)
    assert exact.value.differing == found.value.rounding
    wrong = compare(lambda x: x, lambda x: torch.where(x > 1.5, 2 * x, x * (1 + 1e-7)), torch.linspace(1, 2, 100))
    assert wrong.value.differing == 50
    assert "50 more by rounding" in str(wrong)


def test_the_dtype_counts() -> None:
    found = compare(lambda x: x, lambda x: x.double(), X)
    assert not found.same
    assert "dtype of the value: float32 in a, float64 in b" in str(found)


def test_special_values() -> None:
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0])
    assert compare(lambda x: x, lambda x: x.clone(), x).same
    found = compare(lambda x: x, lambda x: torch.nan_to_num(x, nan=0.0, posinf=1.0), x)
    assert found.value.differing == 3
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["value"]["examples"][1] == {"index": [1], "x": "inf", "a": "inf", "b": 1.0}


def test_modules_are_compared_in_their_parameters_and_stay_as_they_are() -> None:
    a, b = Quantize(2), Quantize(2, mask="post-round")
    found = compare(a, b, torch.cat([torch.linspace(-3, 3, 101), torch.tensor([4.0])]))
    assert set(found.gradients) == {"x", "step"}
    assert found.gradients["x"].differing > 0
    assert found.gradients["step"].differing == 1
    assert not a.calibrated
    assert all(p.grad is None for p in (*a.parameters(), *b.parameters()))
    assert "Quantize(2 bits, codes -2 to 1" in str(found)


def test_a_gradient_that_only_one_has() -> None:
    found = compare(nn.Linear(4, 4), nn.Linear(4, 4, bias=False), X)
    assert (found.only_a, found.only_b) == (("bias",), ())
    assert "gradient of bias: only a has one" in str(found)
    assert compare(torch.round, lambda x: x.detach().round(), X).only_a == ("x",)


def test_a_cotangent_and_random_numbers() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * torch.rand(())

    assert compare(scaled, scaled, X).same, "both draw the same"
    found = compare(lambda x: x, lambda x: 2 * x, X, cotangent=torch.tensor(5.0))
    assert found.gradients["x"].largest == 5.0
    state = torch.get_rng_state()
    compare(scaled, scaled, X)
    assert torch.equal(state, torch.get_rng_state())


def test_many_ranges_are_counted() -> None:
    x = torch.arange(40.0)
    found = compare(lambda x: x, lambda x: torch.where(x % 2 == 0, x, -x), x)
    assert len(found.value.ranges) == 6
    assert found.value.more_ranges == 14
    assert "and 14 more ranges" in str(found)


def test_a_step_held_by_a_partial_is_compared() -> None:
    a = functools.partial(quantize, scale=torch.tensor(1.0))
    b = functools.partial(lsq, scale=torch.tensor(1.0))
    assert compare(a, b, X).gradients["scale"].differing == 1


def test_what_cannot_be_compared() -> None:
    with pytest.raises(ArgumentError, match=r"compare: x is torch.int64; expected a floating-point tensor"):
        compare(quantize, lsq, torch.arange(3))
    with pytest.raises(ArgumentError, match=r"compare: the outputs have shapes \(2, 4\) and \(4, 2\)"):
        compare(lambda x: x, lambda x: x.T, X)
    with pytest.raises(ArgumentError, match="returned tuple; expected one tensor"):
        compare(lambda x: (x, x), lambda x: x, X)  # type: ignore[arg-type,return-value]


def test_it_is_public() -> None:
    assert gw.ste.compare is compare


def test_values_without_gradients_are_refused() -> None:
    for function in (lambda x: x > 0, lambda x: x.int()):
        with pytest.raises(ArgumentError, match=r"returned a tensor of torch\.\w+; expected a floating-point one"):
            compare(function, gw.ste.round, X)


def test_a_partial_module_is_a_module() -> None:
    quantizer = Quantize(4)
    found = compare(functools.partial(quantizer), Quantize(4), X)
    assert found.same
    assert "step" in found.gradients
    assert not quantizer.calibrated  # a copy has run
