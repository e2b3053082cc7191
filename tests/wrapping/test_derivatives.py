"""Differences of functions of arrays: values, costs, bounds, sparsity, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from gradwright.errors import ArgumentError, DomainError, OptionError, RuleError
from gradwright.wrapping import points
from gradwright.wrapping.derivatives import fd
from tests.wrapping.foreign import Evaluate, off

METHODS = ("3-point", "2-point", "cs")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def chained(a: Any, x: Any) -> Any:
    return np.sin(a @ x) * np.exp(0.3 * (a @ x))


def chained_jacobian(a: Any, x: Any) -> Any:
    tensor = torch.from_numpy(np.asarray(x, dtype=np.float64))
    matrix = torch.from_numpy(np.asarray(a, dtype=np.float64))
    return torch.autograd.functional.jacobian(
        lambda x: torch.sin(matrix @ x) * torch.exp(0.3 * (matrix @ x)), tensor
    ).numpy()


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [None, 0.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("method", METHODS)
def test_both_modes_are_as_accurate_as_promised(method: Any, dtype: Any, noise: Any, rng: np.random.Generator) -> None:
    a, x = rng.normal(size=(4, 7)).astype(dtype), rng.normal(size=7).astype(dtype)
    f, g, t = Evaluate(lambda x: chained(a, x)), rng.normal(size=4), rng.normal(size=7).astype(dtype)
    derivative = fd(method, noise=noise)
    jacobian = chained_jacobian(a, x)
    gradient = f.gradient(derivative, x, cotangent=g)
    assert gradient.shape == x.shape
    assert gradient.dtype == x.dtype
    assert off(gradient, g @ jacobian) < derivative.accuracy
    assert off(f.along(derivative, x, tangents=[t]), jacobian @ t) < derivative.accuracy
    best = float(np.finfo(dtype).eps) ** {"3-point": 2 / 3, "2-point": 1 / 2, "cs": 1}[method]
    assert best < derivative.accuracy < (3e4 if method == "2-point" else 1e3) * best


@pytest.mark.parametrize("method", METHODS)
def test_several_arguments_and_outputs(method: Any) -> None:
    def f(x: Any, n: int, y: Any) -> Any:
        return x.sum() * y, (x**n).sum(axis=0)

    x, y = np.arange(1.0, 7.0).reshape(2, 3), np.array(2.0)
    evaluate, derivative = Evaluate(f), fd(method)
    outs = evaluate.outs(x, 3, y)
    g = [np.array(1.5), np.array([1.0, -1.0, 2.0])]
    by_x, by_y = derivative.vjp(evaluate, [x, 3, y], [0, 2], outs, g)
    assert by_x.shape == (2, 3)
    assert by_y.shape == ()
    np.testing.assert_allclose(by_x, 1.5 * 2 + 3 * x**2 * g[1], rtol=1e-6)
    np.testing.assert_allclose(by_y, 1.5 * 21, rtol=1e-6)
    # One that is not used is zero, and an argument without a tangent stays where it is.
    by_x, by_y = derivative.vjp(evaluate, [x, 3, y], [0, 2], outs, [None, g[1]])
    np.testing.assert_allclose(by_x, 3 * x**2 * g[1], rtol=1e-6)
    np.testing.assert_allclose(by_y, 0.0, atol=1e-6)
    first, second = derivative.jvp(evaluate, [x, 3, y], [0, 2], outs, [None, np.array(2.0)])
    np.testing.assert_allclose(first, 42.0, rtol=1e-6)
    np.testing.assert_allclose(second, np.zeros(3), atol=1e-6)


def test_every_memory_order_is_kept_and_nothing_is_written_to() -> None:
    x = np.asfortranarray(np.arange(1.0, 7.0).reshape(2, 3))[:, ::-1]
    x.flags.writeable = False
    before, f = x.copy(), Evaluate(lambda x: (x**2).sum())
    np.testing.assert_allclose(f.gradient(fd(), x), 2 * x, rtol=1e-7)
    np.testing.assert_array_equal(x, before)
    assert all(point[0].flags.writeable for point in f.points)


@pytest.mark.parametrize("method", METHODS)
def test_linear_in_the_cotangent(method: Any, rng: np.random.Generator) -> None:
    x, f = rng.normal(size=5), Evaluate(np.exp)
    derivative = fd(method)
    v, w = rng.normal(size=(2, 5))
    one, other = f.gradient(derivative, x, cotangent=v), f.gradient(derivative, x, cotangent=w)
    np.testing.assert_allclose(f.gradient(derivative, x, cotangent=v + w), one + other, rtol=1e-14)
    np.testing.assert_array_equal(f.gradient(derivative, x, cotangent=-4 * v), -4 * one)


def test_zero_dim_empty_and_nothing_to_do() -> None:
    f = Evaluate(lambda x: x**3)
    assert f.gradient(fd(noise=0), np.array(2.0)) == pytest.approx(12.0)
    assert f.gradient(fd(), np.zeros((0, 3))).shape == (0, 3)
    assert f.along(fd(), np.zeros((0, 3)), tangents=[np.zeros((0, 3))]).shape == (0, 3)
    before = f.calls
    np.testing.assert_array_equal(f.gradient(fd(), np.ones(3), cotangent=np.zeros(3)), np.zeros(3))
    np.testing.assert_array_equal(f.along(fd(), np.ones(3), tangents=[None]), np.zeros(3))
    assert f.calls == before, "a derivative of nothing costs nothing"
    assert np.isnan(f.along(fd(), np.ones(3), tangents=[np.array([1.0, np.nan, 0.0])])).all()
    nothing = Evaluate(lambda x: x[:0])
    assert nothing.along(fd(), np.ones(3), tangents=[np.ones(3)]).shape == (0,)


def test_an_output_of_integers_is_left_out() -> None:
    f, x = Evaluate(lambda x: (x**2, np.array(7))), np.array([1.0, 2.0])
    outs, derivative = f.outs(x), fd(noise=0)
    np.testing.assert_allclose(derivative.vjp(f, [x], [0], outs, [np.ones(2), None])[0], 2 * x, rtol=1e-8)
    moved, count = derivative.jvp(f, [x], [0], outs, [np.ones(2)])
    np.testing.assert_allclose(moved, 2 * x, rtol=1e-8)
    assert count == 0
    assert count.dtype == outs[1].dtype
    with pytest.raises(ArgumentError, match=r"output 1 is of dtype int64"):
        derivative.vjp(f, [x], [0], outs, [np.ones(2), np.array(1.0)])


def test_a_masked_output_that_is_nan_does_no_harm() -> None:
    x = np.array([1.0, 2.0, 3.0])
    f = Evaluate(lambda x: np.where(x < 2.5, x**2, np.nan))
    for method in ("3-point", "2-point"):
        gradient = f.gradient(fd(method, noise=0), x, cotangent=np.array([1.0, 1.0, 0.0]))
        np.testing.assert_allclose(gradient, [2.0, 4.0, 0.0], rtol=1e-6)


# --- cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "each", "first"), [("3-point", 2, 8), ("2-point", 1, 8), ("cs", 1, 9)])
def test_evaluations(method: Any, each: int, first: int) -> None:
    f, x = Evaluate(np.exp), np.linspace(0.5, 1.0, 6)
    derivative = fd(method)
    f.gradient(derivative, x)
    assert f.calls == first + 6 * each
    f.batches.clear()
    f.gradient(derivative, x)
    assert f.batches == [6 * each], "all points in one batch, and nothing is measured again"
    f.batches.clear()
    f.along(derivative, x, tangents=[np.ones(6)])
    assert f.batches == [each]
    # Other shapes are another function, and so is one of another name.
    f.batches.clear()
    f.gradient(derivative, x[:2])
    f.gradient(derivative.of("other", ["x"]), x)
    assert f.calls == 2 * first + 8 * each


@pytest.mark.parametrize("options", [{"rel_step": 1e-6}, {"abs_step": 1e-6}])
def test_a_given_step_saves_measuring(options: Any) -> None:
    f = Evaluate(np.exp)
    f.gradient(fd(**options), np.ones(6))
    assert f.batches == [12]


def test_points_come_in_pieces_that_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x, f = np.linspace(0.5, 1.0, 10), Evaluate(np.exp)
    monkeypatch.setattr(points, "MEMORY", 2 * (x.nbytes + x.nbytes) * 4)
    np.testing.assert_allclose(f.gradient(fd(abs_step=1e-5), x), np.exp(x), rtol=1e-8)
    assert f.batches == [8, 8, 4]


def test_only_what_moves_is_copied() -> None:
    x, y, f = np.ones(3), np.ones(1000), Evaluate(lambda x, y: x.sum() * y.sum())
    f.gradient(fd(noise=0), x, y, places=[0])
    assert all(point[1] is y for point in f.points)


# --- steps ----------------------------------------------------------------------------------------


def moves(f: Evaluate, x: Any) -> Any:
    """Return by how much each element was moved at most."""
    return np.max([np.abs(point[0] - x) for point in f.points], axis=0)


def test_steps_can_be_given() -> None:
    x = np.array([1.0, 100.0, 0.0])
    for options, expected in [
        ({"rel_step": 1e-3}, [1e-3, 0.1, 1e-3]),
        ({"abs_step": 0.5}, [0.5, 0.5, 0.5]),
        ({"abs_step": [0.1, 0.2, 0.3]}, [0.1, 0.2, 0.3]),
        ({"abs_step": {0: [0.1, 0.2, 0.3]}}, [0.1, 0.2, 0.3]),
    ]:
        f = Evaluate(np.sin)
        f.gradient(fd(**options), x)
        np.testing.assert_allclose(moves(f, x), expected, rtol=1e-10)


def test_options_by_the_name_of_an_argument() -> None:
    f = Evaluate(lambda x, y: x * y)
    derivative = fd(abs_step={"x": 0.25}, bounds={"y": (0.0, None)}, noise=0).of("f", ["x", "y"])
    by_x, by_y = f.gradient(derivative, np.array([1.0]), np.array([0.0]))
    np.testing.assert_allclose([by_x[0], by_y[0]], [0.0, 1.0], atol=1e-9)
    assert max(abs(point[0][0] - 1) for point in f.points) == 0.25
    assert min(point[1][0] for point in f.points) == 0.0
    with pytest.raises(OptionError, match=r"f: abs_step has an entry for 'z'; expected .*'x', 'y'"):
        f.gradient(fd(abs_step={"z": 1.0}).of("f", ["x", "y"]), np.ones(1), np.ones(1))
    with pytest.raises(OptionError, match=r"abs_step has the shape \(3,\) for `x` of shape \(2,\)"):
        f.gradient(fd(abs_step={"x": np.ones(3)}).of("f", ["x", "y"]), np.ones(2), np.ones(2))


def test_elements_of_different_units_have_steps_of_their_own() -> None:
    x = np.array([1e5, 300.0, 2e-2, 1e-5])
    f = Evaluate(lambda x: np.log(x).sum())
    np.testing.assert_allclose(f.gradient(fd(), x), 1 / x, rtol=1e-6)
    assert all((point[0] > 0).all() for point in f.points)


def test_float32_functions_get_float32_steps() -> None:
    x = np.linspace(0.5, 2.0, 8, dtype=np.float32)
    for noise in (None, 0.0):
        f = Evaluate(np.sin)
        assert off(f.gradient(fd(noise=noise), x), np.cos(x.astype(np.float64))) < 1e-4
        assert (moves(f, x) > 1e-3 * x).all()
        assert f.points[0][0].dtype == np.float32


@pytest.mark.parametrize("method", ["3-point", "2-point"])
def test_steps_are_those_that_were_really_taken(method: Any) -> None:
    """In float32, 1 + 1e-6 is 1 + 9.5e-7."""
    x = np.array([1.0, 3.0], dtype=np.float32)
    f = Evaluate(lambda x: 2.0 * x.astype(np.float64))
    np.testing.assert_array_equal(f.gradient(fd(method, abs_step=1e-6), x), [2.0, 2.0])


def test_a_step_that_rounding_loses_is_refused() -> None:
    with pytest.raises(DomainError, match=r"argument 0\[0\] is 1.0, which a step of 1e-20 does not change"):
        Evaluate(np.sin).gradient(fd(abs_step=1e-20), np.ones(1))


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("method", METHODS)
def test_never_evaluated_outside_the_bounds(method: Any, dtype: Any) -> None:
    lower, upper = 0.1, 0.7
    x = np.array([0.1, 0.1 + 1e-7, 0.4, 0.7 - 1e-6, 0.7], dtype=dtype)
    f, derivative = Evaluate(lambda x: np.exp(x) * x), fd(method, bounds=(lower, upper))
    expected = np.exp(x.astype(np.float64)) * (1 + x)
    assert off(f.gradient(derivative, x), expected) < derivative.accuracy
    for tangent in (np.ones(5), np.array([1.0, 0, 0, 0, 0]), np.array([0, 1.0, 2.0, 0, -1.0])):
        if method == "cs" or not tangent.all():
            found = f.along(derivative, x, tangents=[tangent.astype(dtype)])
            assert off(found, expected * tangent) < 10 * derivative.accuracy
    for point in f.points:
        assert (np.real(point[0]) >= np.asarray(lower, dtype=dtype)).all()
        assert (np.real(point[0]) <= np.asarray(upper, dtype=dtype)).all()


def test_next_to_a_bound_the_order_stays() -> None:
    """A one-sided difference of first order would be off by 1e-3."""
    f = Evaluate(np.exp)
    for bounds in ((1.0, None), (None, 1.0)):
        assert f.gradient(fd(abs_step=1e-3, bounds=bounds), np.array(1.0)) == pytest.approx(np.e, rel=1e-6)
        assert f.along(fd(abs_step=1e-3, bounds=bounds), np.array(1.0), tangents=[np.array(2.0)]) == pytest.approx(
            2 * np.e, rel=1e-6
        )


def test_no_room_and_outside() -> None:
    f, x = Evaluate(np.exp), np.array([0.5, 1.0])
    narrow = fd(bounds=(np.array([0.0, 1.0]), np.array([1.0, 1.0])), noise=0).of("simulate", ["x"])
    with pytest.raises(DomainError, match=r"simulate: `x`\[1\] is 1.0 with the bounds 1.0 to 1.0, which leave no room"):
        f.gradient(narrow, x)
    np.testing.assert_allclose(f.along(narrow, x, tangents=[np.array([1.0, 0.0])]), [np.exp(0.5), 0.0], rtol=1e-8)
    with pytest.raises(DomainError, match=r"the bounds of `x`\[1\] leave no room along this direction"):
        f.along(narrow, x, tangents=[np.array([1.0, 1.0])])
    with pytest.raises(DomainError, match=r"`x`\[0\] is 0.5, outside the bounds 0.6 to inf"):
        f.gradient(fd(bounds=(0.6, None)).of("simulate", ["x"]), x)


# --- sparsity -------------------------------------------------------------------------------------


def smoothed(x: Any) -> Any:
    padded = np.concatenate([[0.0], x, [0.0]])
    return np.sin(x) + padded[2:] * padded[:-2]


def smoothed_jacobian(x: Any) -> Any:
    padded = np.concatenate([[0.0], x, [0.0]])
    return np.diag(np.cos(x)) + np.diag(padded[:-3], 1) + np.diag(padded[3:], -1)


def band(n: int) -> Any:
    return np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= 1


@pytest.mark.parametrize(
    "pattern",
    [
        band,
        lambda n: scipy.sparse.csr_array(band(n)),
        lambda n: scipy.sparse.coo_matrix(band(n).astype(float)),
        lambda n: lambda out, x: band(*x) if out == x else None,
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_columns_that_share_no_row_move_together(method: Any, pattern: Any, rng: np.random.Generator) -> None:
    x, f, g = rng.uniform(0.5, 1.0, size=40), Evaluate(smoothed), rng.normal(size=40)
    derivative = fd(method, noise=0, sparsity=pattern(40))
    assert off(f.gradient(derivative, x, cotangent=g), g @ smoothed_jacobian(x)) < derivative.accuracy
    f.batches.clear()
    assert off(f.gradient(derivative, x, cotangent=g), g @ smoothed_jacobian(x)) < derivative.accuracy
    assert f.calls == (6 if method == "3-point" else 3), "three groups, and the pattern is not compared again"


def test_sparsity_of_several_arguments_with_bounds() -> None:
    x, y = np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.0, 3.0])
    f = Evaluate(lambda x, y: np.exp(x) * y)
    derivative = fd(sparsity=lambda out, shapes: np.tile(np.eye(3, dtype=bool), 2), bounds=(0.0, None), noise=0)
    by_x, by_y = f.gradient(derivative, x, y)
    np.testing.assert_allclose(by_x, np.exp(x) * y, atol=1e-7)
    np.testing.assert_allclose(by_y, np.exp(x), rtol=1e-8)


@pytest.mark.parametrize("size", [1.0, 1e-6])
@pytest.mark.parametrize("method", METHODS)
def test_an_entry_outside_the_pattern_is_never_dropped(method: Any, size: float) -> None:
    x = np.linspace(0.5, 1.0, 30)
    size = max(size, 1e-4) if method == "2-point" else size
    # Far from the diagonal: its row is that of another column of the group.
    hidden = Evaluate(lambda x: smoothed(x) + size * np.roll(x, 3))
    with pytest.raises(RuleError, match=r"output\[\d+\] moves with .* where `sparsity` says that it does not"):
        hidden.gradient(fd(method, sparsity=band(30), noise=0), x)
    # In a row that no column of the group has: seen in every sweep, not only in the first.
    derivative = fd(method, sparsity=band(30), noise=0)
    smooth = Evaluate(smoothed)
    smooth.gradient(derivative, x)
    only = Evaluate(lambda x: smoothed(x) + size * np.roll(x, 2))
    with pytest.raises(RuleError, match=r"output\[\d+\] moves with argument 0\[\d+\] or "):
        only.gradient(derivative, x)


def test_a_pattern_that_is_larger_than_needed_is_no_error(rng: np.random.Generator) -> None:
    """Nor is a kink, curvature that a step does not resolve, or noise."""
    x = rng.uniform(0.5, 1.0, size=12)
    for function in (
        np.sin,
        lambda x: np.abs(x - x[3]) + np.sin(300 * x),
        lambda x: np.round(np.exp(x), 4),
        lambda x: np.exp(x) * (1 + 1e-7 * np.sin(1e9 * x)),
    ):
        pattern = np.eye(12, dtype=bool)
        pattern[:, 3] = True
        for method in ("3-point", "2-point"):
            Evaluate(function).gradient(fd(method, sparsity=pattern), x)
            Evaluate(function).gradient(fd(method, sparsity=np.ones((12, 12))), x)


def test_a_pattern_of_another_shape() -> None:
    with pytest.raises(OptionError, match=r"f: sparsity has the shape \(3, 2\); expected \(3, 3\), one row for each"):
        Evaluate(np.sin).gradient(fd(sparsity=np.ones((3, 2))).of("f", ["x"]), np.ones(3))


# --- what cannot be differentiated ----------------------------------------------------------------


def test_integer_and_complex_values_are_refused() -> None:
    named = fd().of("f", ["x"])
    with pytest.raises(ArgumentError, match=r"f: `x` is of dtype int64; .* pass it as float64"):
        Evaluate(np.sin).gradient(named, np.array([1]))
    with pytest.raises(ArgumentError, match=r"f: `x` is of dtype complex128"):
        Evaluate(np.sin).gradient(named, np.array([1j]))
    with pytest.raises(ArgumentError, match=r"f: output is of dtype int64"):
        Evaluate(lambda x: np.array([1])).gradient(named, np.ones(2))
    with pytest.raises(ArgumentError, match=r"f: output is of dtype complex128; .* real and imaginary part"):
        Evaluate(lambda x: 1j * x).gradient(named, np.ones(2))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("method", METHODS)
def test_a_point_where_the_function_is_not_finite_is_named(method: Any, bad: float) -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0]])

    def f(x: Any) -> Any:
        out = x * 2.0
        out[0] = bad if x[1, 0] != 3 else out[0]
        return out

    derivative = fd(method, abs_step=1e-6 if method != "cs" else None, noise=0).of("f", ["x"])
    with pytest.raises(
        DomainError, match=rf"f: output\[0, 0\] is .?{bad}.* at `x`\[1, 0\] = .*, moved from 3.0; .*bounds="
    ):
        Evaluate(f).gradient(derivative, x)
    with pytest.raises(DomainError, match=r"output\[0, 0\]"):
        Evaluate(f).along(derivative, x, tangents=[np.ones((2, 2))])
    # What is not used is not looked at, and other elements have their derivative.
    np.testing.assert_allclose(
        Evaluate(f).along(derivative, x, tangents=[np.array([[1.0, 1.0], [0.0, 1.0]])]), [[2, 2], [0, 2]], rtol=1e-8
    )


def test_outputs_of_another_shape_are_refused() -> None:
    f = Evaluate(lambda x: x[x > 0.9999999])
    with pytest.raises(RuleError, match=r"shapes \[\(0,\)\] next to the point where they have \[\(1,\)\]"):
        f.gradient(fd(noise=0), np.array([1.0]))


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "4-point"}, "fd: method: got '4-point'; expected one of 3-point, 2-point, cs"),
        ({"rel_step": 0.1, "abs_step": 0.1}, "got both rel_step and abs_step"),
        ({"noise": -1.0}, "noise is -1.0"),
        ({"noise": 2}, "noise is 2"),
        ({"noise": "solver"}, "noise is 'solver'"),
        ({"rel_step": 0}, "rel_step is 0; expected finite numbers above 0"),
        ({"abs_step": {"x": [1.0, -1.0]}}, "abs_step is "),
        ({"abs_step": "small"}, "abs_step is 'small'"),
        ({"bounds": 1.0}, "bounds is 1.0; expected a pair"),
        ({"bounds": {"x": (1, 2, 3)}}, r"bounds is \(1, 2, 3\)"),
    ],
)
def test_options_are_checked(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fd(**options)


def test_it_can_be_pickled_and_keeps_what_it_learned() -> None:
    f, derivative = Evaluate(np.exp), fd(sparsity=np.eye(3), bounds=(0.0, None), workers=2)
    gradient = f.gradient(derivative, np.ones(3))
    again = pickle.loads(pickle.dumps(derivative))
    f.batches.clear()
    np.testing.assert_array_equal(f.gradient(again, np.ones(3)), gradient)
    assert f.calls == 2
    assert again.workers == 2
