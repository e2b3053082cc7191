"""Parameters of every shape and dtype: what fits is used as it is meant, and what does not is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError
from gradwright.ste.parameters import check_broadcast

ONE_PARAMETER: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "fake_quantize": lambda x, s: gw.ste.fake_quantize(x, s, low=-4, high=3),
    "lsq": lambda x, s: gw.ste.lsq(x, s, bits=3),
    "lsq_plus": lambda x, s: gw.ste.lsq_plus(x, s, 0.0, bits=3),
    "pact": lambda x, s: gw.ste.pact(x, s, bits=3),
    "apot": lambda x, s: gw.ste.apot(x, s, bits=3),
    "seq": lambda x, s: gw.ste.seq(x, s, levels=4),
    "tqt": lambda x, s: gw.ste.tqt(x, s, bits=3),
    "learned_range": lambda x, s: gw.ste.learned_range(x, -1.0, s, bits=3),
    "minifloat": lambda x, s: gw.ste.minifloat(x, s, exponent_bits=2, mantissa_bits=1),
    "float8": lambda x, s: gw.ste.float8(x, amax=s),
    "clamp_learned": lambda x, s: gw.ste.clamp_learned(x, -1.0, s),
    "ttq": lambda x, s: gw.ste.ttq(x, s, 0.5),
}
CONSTANT_PARAMETER: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "absmax": lambda x, s: gw.ste.absmax(x, s, bits=3),
    "quest": lambda x, s: gw.ste.quest(x, s, bits=3),
}


def both(call: Callable[[Tensor, Any], Tensor], x: Tensor, scale: Tensor) -> list[Tensor]:
    """Return values and both gradients."""
    x, scale = x.clone().requires_grad_(), scale.clone().requires_grad_()
    out = call(x, scale)
    return [out.detach(), *torch.autograd.grad(out.sum(), (x, scale))]


@pytest.mark.parametrize("name", [*ONE_PARAMETER, *CONSTANT_PARAMETER])
def test_a_parameter_that_does_not_say_for_which_elements_is_refused(name: str) -> None:
    call = {**ONE_PARAMETER, **CONSTANT_PARAMETER}[name]
    square = torch.ones(3, 3)
    for shape in ((3,), (2, 3, 3), (0,), (2, 3)):
        with pytest.raises(ArgumentError, match=rf"{name}: a parameter has the shape \({shape[0]},.*write axis=0"):
            call(square, torch.ones(shape))
    assert torch.equal(call(square, torch.ones(3, 1)), call(square, torch.tensor(1.0)))


@pytest.mark.parametrize("name", ONE_PARAMETER)
def test_one_number_of_any_shape_leaves_the_shape(name: str) -> None:
    x, call = torch.tensor(0.3), ONE_PARAMETER[name]
    want = both(call, x, torch.tensor(0.5))
    for shape in ((1,), (1, 1)):
        out, dx, dscale = both(call, x, torch.full(shape, 0.5))
        assert torch.equal(out, want[0])
        assert torch.equal(dx, want[1])
        assert torch.equal(dscale, want[2].reshape(shape))


@pytest.mark.parametrize("name", ONE_PARAMETER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_parameter_of_another_dtype(name: str, dtype: torch.dtype) -> None:
    x, call = torch.tensor([0.375, 9.0, -0.5], dtype=dtype), ONE_PARAMETER[name]
    want = both(call, x, torch.tensor([0.5], dtype=torch.float32))
    got = both(call, x, torch.tensor([0.5], dtype=torch.float64))
    assert [t.dtype for t in got] == [dtype, dtype, torch.float64]
    for mine, other in zip(got, want):
        torch.testing.assert_close(mine, other, check_dtype=False)


def test_numbers_for_what_is_usually_learned() -> None:
    x = torch.tensor([-2.0, 0.4, 9.0], dtype=torch.float64)
    low, high = torch.tensor(-0.1, dtype=torch.float64), torch.tensor(1.1, dtype=torch.float64)
    assert torch.equal(gw.ste.learned_range(x, -0.1, 1.1, bits=4), gw.ste.learned_range(x, low, high, bits=4))
    assert torch.equal(gw.ste.tqt(x, 0.3, bits=4), gw.ste.tqt(x, torch.tensor(0.3), bits=4))


def test_bits_and_codes_are_whole_numbers() -> None:
    x: Any = torch.ones(2)
    for bits in (2.5, 4.0, "4", 0):
        for call in (gw.ste.codes, gw.ste.apot_levels):
            with pytest.raises(OptionError, match="expected a whole number from"):
                call(bits)  # type: ignore[arg-type]
        for options in ({"low": -1.0, "high": 1.0}, {}):
            function = gw.ste.dsq if options else gw.ste.ewgs_round
            with pytest.raises(OptionError, match="expected a whole number from 1"):
                function(x, bits=bits, **options)
    with pytest.raises(OptionError, match=r"seq: levels is 3.5; expected a whole number from 3"):
        gw.ste.seq(x, 1.0, levels=3.5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"exponent_bits is 2.5; expected a whole number from 1 to 8"):
        gw.ste.minifloat(x, exponent_bits=2.5, mantissa_bits=1)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"low is -4.5 and high 3; expected low < high, whole numbers"):
        gw.ste.fake_quantize(x, 0.5, low=-4.5, high=3)  # type: ignore[arg-type]


def test_factors_that_would_sum_the_gradient_are_refused() -> None:
    x = torch.ones(2, 3)
    check_broadcast("f", "factor", torch.ones(3), x)
    for shape in ((5, 2, 3), (2,), (1, 1, 1)):
        for function, name in ((gw.ste.reverse_gradient, "strength"), (gw.ste.scale_gradient, "factor")):
            with pytest.raises(ArgumentError, match=rf"{function.__name__}: {name} has the shape \({shape[0]},"):
                function(x, torch.ones(shape))
        with pytest.raises(ArgumentError, match=r"uniform_noise: scale has the shape .* expected one that broadcasts"):
            gw.ste.uniform_noise(x, torch.ones(shape))
