"""The judge of the true gradients is judged: what it calls the truth, and that it lets nothing wrong pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.authoring.catalogue import Example
from gradwright.authoring.exact import ExactEntry, Point, exact, ulps
from tests.measured import errors, forward_errors
from tests.truth import truth

Examples = Callable[[torch.dtype], list[Example]]


def entry(function: Any, reference: Any, examples: Examples, **more: Any) -> ExactEntry:
    """Enter a function that is made up."""
    function.__name__ = "made_up"
    declared = {"forward": "f", "gradient": {"x": "g"}, "domain": "all", "paper": "none", "bars": ulps(4), **more}
    exact(reference=reference, examples=examples, **declared)(function)
    found: ExactEntry = function.__catalogue_entry__
    return found


def at(*numbers: float) -> Examples:
    return lambda dtype: [Point((torch.tensor(numbers, dtype=dtype),))]


def close(got: Tensor, want: Any) -> None:
    torch.testing.assert_close(got, torch.as_tensor(want, dtype=got.dtype), rtol=1e-15, atol=0)


def test_derivatives_of_numbers_of_every_size() -> None:
    points = [-700.0, -1.0, 0.0, 5e-324, 40.0, 700.0]
    made = entry(lambda x: x, lambda mp, x: mp.tanh(x), at(*points))
    found = truth(made, made.examples(torch.float64)[0])
    with mpmath.workdps(50):
        slopes = [float(mpmath.sech(x) ** 2) for x in points]
        bends = [float(-2 * mpmath.tanh(x) * mpmath.sech(x) ** 2) for x in points]
    close(found.value[:5], [math.tanh(x) for x in points[:5]])
    close(found.first["x"], slopes)
    close(found.second["x"], bends)


def test_several_arguments_are_broadcast_and_their_gradients_summed() -> None:
    x, y = torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.tensor([3.0, 5.0], dtype=torch.float64)
    made = entry(lambda x, y: x, lambda mp, x, y: x * y * y, lambda dtype: [Example((x, y))])
    found = truth(made, made.examples(torch.float64)[0])
    close(found.value, x * y * y)
    close(found.first["x"], [[34.0], [34.0]])
    close(found.first["y"], [18.0, 30.0])
    close(found.second["x"], [[16.0], [16.0]])  # y ** 2 moves by 2 y, summed over the row
    close(found.second["y"], [2 * 3 + 2 * 3 + 6.0, 2 * 5 + 2 * 5 + 6.0])


def test_whole_tensors_with_a_cotangent_and_directions() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]], dtype=torch.float64)
    made = entry(lambda x: x, lambda mp, x: x.dot(x), lambda dtype: [Example((x,))], elementwise=False)
    g, v = torch.tensor([[1.0, 0.5], [0.25, -1.0]], dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64)
    found = truth(made, made.examples(torch.float64)[0], g, {"x": v})
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(leaf @ leaf, leaf, g, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    close(found.value, (x @ x))
    close(found.first["x"], first.detach())
    close(found.second["x"], second)


def test_complex_arguments() -> None:
    z = torch.tensor([1 + 2j, -0.5j], dtype=torch.complex128)
    made = entry(lambda x: x, lambda mp, x: x * x, lambda dtype: [Example((z,))], elementwise=False)
    g = torch.tensor([1 - 1j, 2 + 0.5j], dtype=torch.complex128)
    found = truth(made, made.examples(torch.float64)[0], g, {"x": torch.ones_like(z)})
    leaf = z.clone().requires_grad_()
    close(found.first["x"], torch.autograd.grad(leaf * leaf, leaf, g)[0])


def test_infinities_count_as_constants_and_conventions_are_taken_as_given() -> None:
    made = entry(lambda x: x, lambda mp, x: mp.sqrt(x * x), at(math.inf, 0.0))
    found = truth(made, made.examples(torch.float64)[0], orders=1)
    assert found.value.tolist() == [math.inf, 0]
    assert found.first["x"].tolist() == [0, 0]  # at a kink that is symmetric, the subgradient of minimum norm
    said = Point((torch.tensor([1.0]),), value=[7.0], first={"x": 8.0}, second={"x": [9.0]})
    found = truth(made, said)
    assert (found.value.item(), found.first["x"].item(), found.second["x"].item()) == (7, 8, 9)


def test_infinite_outputs_count_as_constants() -> None:
    made = entry(lambda x: x, lambda mp, x: x * mp.log(0), at(1.0))
    assert truth(made, made.examples(torch.float64)[0]).first["x"].tolist() == [0.0]


def test_a_tiny_value_beside_a_large_one_is_found() -> None:
    made = entry(lambda x: x, lambda mp, x: mp.log(mp.exp(x)), at(5e-300))
    assert truth(made, made.examples(torch.float64)[0]).value.tolist() == [5e-300]


def test_an_infinity_that_more_digits_dissolve_is_none() -> None:
    made = entry(lambda x: x, lambda mp, x: mp.log(mp.exp(x) - 1), at(1e-200))
    found = truth(made, made.examples(torch.float64)[0])
    close(found.value, [math.log(1e-200)])
    close(found.first["x"], [1e200])


def test_no_derivative_is_said_to_be_none() -> None:
    made = entry(lambda x: x, lambda mp, x: mp.sqrt(abs(x)), at(0.0))
    with pytest.raises(ArithmeticError, match="does not settle"):
        truth(made, made.examples(torch.float64)[0], orders=2)


# -------------------------------------------------------------------- what must not pass


def custom(value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Any:
    """Return a function with a rule, in its own scope: each call makes another."""

    def function(x: Tensor) -> Tensor:
        return value(x)

    return gw.define(function, vjp=lambda g, x: g * slope(x), name="made_up")


def rejected(value: Any, slope: Any, dtype: torch.dtype = torch.float64) -> set[str]:
    """Return the quantities of a function against exp that are not within the bar, at a few points."""
    made = entry(custom(value, slope), lambda mp, x: mp.exp(x), at(-3.0, 0.0, 0.5, 2.0))
    return {error.quantity for error in [*errors(made, 0, dtype), *forward_errors(made, 0, dtype)] if not error.within}


def test_what_is_right_passes() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        assert not rejected(torch.exp, torch.exp, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_is_wrong_does_not(dtype: torch.dtype) -> None:
    off = 1 + 12 * torch.finfo(dtype).eps
    first = {"first x", "forward x"}
    assert rejected(lambda x: x.exp() * off, torch.exp, dtype) == {"value"}
    assert rejected(torch.exp, lambda x: x.exp() * off, dtype) == first
    assert rejected(torch.exp, lambda x: x.exp() * (x != 0), dtype) == {*first, "second x"}
    assert rejected(torch.exp, lambda x: x.exp() + 0 / x, dtype) == {*first, "second x"}
    assert rejected(torch.exp, lambda x: x.exp().detach(), dtype) == {"second x"}


def test_numbers_below_the_normal_ones_are_compared_by_their_distance() -> None:
    def made(slope: float) -> ExactEntry:
        return entry(custom(lambda x: x * 1e-320, lambda x: torch.full_like(x, slope)), lambda mp, x: x * 1e-320, at(1))

    assert all(error.within for error in errors(made(1e-320), 0, torch.float64))
    assert not all(error.within for error in errors(made(2e-320), 0, torch.float64))
    assert not all(error.within for error in errors(made(0.0), 0, torch.float64))


def test_a_number_beyond_the_range_may_be_infinite_but_no_other() -> None:
    made = entry(custom(lambda x: x * 1e300, lambda x: torch.full_like(x, 1e300)), lambda mp, x: x * 1e300, at(1, 1e9))
    assert all(error.within for error in errors(made, 0, torch.float64))
    wrong = entry(
        custom(lambda x: x * 1e300, lambda x: torch.full_like(x, math.inf)), lambda mp, x: x * 1e300, at(1, 1e9)
    )
    assert [e.quantity for e in errors(wrong, 0, torch.float64) if not e.within] == ["first x"]
