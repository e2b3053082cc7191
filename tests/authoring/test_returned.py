"""What bytecode tells of the returns of a function; where it does not tell all of them, nothing is said."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradwright.authoring.returned import ends_with_function, tuple_lengths


def yes_a_lambda(x: Any) -> Any:
    return x, lambda g: g * x


def yes_defined_before(x: Any) -> Any:
    y = x * 2

    def gradient(g: Any) -> Any:
        return g * y

    return y, gradient


def yes_in_every_branch(x: Any, k: Any = 2) -> Any:
    def gradient(g: Any, scale: Any = k) -> Any:
        return g * scale

    if k:
        return x, gradient
    return x + 1, gradient


def yes_it_calls_itself(x: Any) -> Any:
    def gradient(g: Any) -> Any:
        return gradient(g)

    return x, gradient


def yes_three_parts(x: Any) -> Any:
    return x, x, lambda g: g


def no_it_is_called(x: Any) -> Any:
    def helper(t: Any) -> Any:
        return t

    return x, helper(x)


def no_one_branch(x: Any) -> Any:
    def helper(t: Any) -> Any:
        return t

    if x:
        return helper(x)
    return x, helper


def no_one_branch_of_an_expression(x: Any) -> Any:
    def helper(t: Any) -> Any:
        return t

    return x if x else (x, helper)


def no_part_of_an_expression(x: Any) -> Any:
    def helper(t: Any) -> Any:
        return t

    return x, (None if x else helper)


def no_an_argument_of_that_name(x: Any, gradient: Any = None) -> Any:
    def helper(t: Any) -> Any:
        return t

    if gradient:
        gradient = helper
    return x, gradient


def no_replaced(x: Any) -> Any:
    def helper(t: Any) -> Any:
        return t

    helper = helper(x)
    return x, helper


def no_replaced_by_a_loop(x: Any) -> Any:
    helper = lambda t: t  # noqa: E731
    for helper in x:  # noqa: B007
        pass
    return x, helper


def no_replaced_from_within(x: Any) -> Any:
    def helper(t: Any) -> Any:
        return t

    def replace() -> None:
        nonlocal helper
        helper = x

    replace()
    return x, helper


def no_decorated(x: Any) -> Any:
    @functools.partial
    def helper(t: Any) -> Any:
        return t

    return x, helper


def no_a_function_alone(x: Any) -> Any:
    return lambda g: g


def no_a_generator(x: Any) -> Iterator[Any]:
    yield x, lambda g: g


def no_it_raises(x: Any) -> Any:
    raise NotImplementedError(lambda g: g)


CASES = [value for name, value in list(globals().items()) if name.startswith(("yes_", "no_"))]


@pytest.mark.parametrize("function", [*CASES, abs, functools.partial(yes_a_lambda)])
def test_a_function_at_the_end(function: Callable[..., Any]) -> None:
    expected = getattr(function, "__name__", "").startswith("yes_")
    assert ends_with_function(function) is expected


def two(g: Any, k: Any) -> Any:
    return g * k, None


def constant(g: Any) -> Any:
    return None, None


def nothing_in_it(g: Any) -> Any:
    return ()


def of_two_lengths(g: Any) -> Any:
    if g:
        return g, g
    return None, g, g


def sometimes(g: Any) -> Any:
    if g:
        return g, g
    return None


def unpacked(g: Any) -> Any:
    return (*g, None)


def by_a_variable(g: Any) -> Any:
    gradients = g, g
    return gradients  # noqa: RET504


def a_generator(g: Any) -> Iterator[Any]:
    yield g, g


@pytest.mark.parametrize(
    ("function", "lengths"),
    [
        (two, {2}),
        (constant, {2}),
        (nothing_in_it, {0}),
        (of_two_lengths, {2, 3}),
        (sometimes, set()),
        (unpacked, set()),
        (by_a_variable, set()),
        (a_generator, set()),
        (no_it_raises, set()),
        (lambda g: (g, g), {2}),
        (lambda g: g, set()),
        (abs, set()),
    ],
)
def test_the_lengths_of_returned_tuples(function: Callable[..., Any], lengths: set[int]) -> None:
    assert tuple_lengths(function) == lengths


def test_an_expression_with_two_tuples_is_understood_or_left_alone() -> None:
    assert tuple_lengths(lambda g: (g, g) if g else (g,)) in ({1, 2}, set())
