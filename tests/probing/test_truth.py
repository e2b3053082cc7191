"""The truth: differences and closed forms say the same, and what they are given is what torch gets."""

from __future__ import annotations

import itertools

import pytest
import torch
from mpmath import mp

from gradwright.probing.row import Probe
from gradwright.probing.run import sections
from gradwright.probing.truth import DIGITS, by_differences, flat, wanted

PROBES = [probe for section in sections() for probe in section.probes]
BOTH = [probe for probe in PROBES if probe.scalar is not None and probe.right is not None]


def made(**fields):
    return Probe(**{"id": "1", "case": "made up", "at": (0.5,), "call": torch.sin, **fields})


def truth(probe):
    return wanted(probe, probe.inputs())


def test_differences_are_right_to_forty_digits():
    at = ([0.5, -2.0], 3.0)
    with mp.workdps(DIGITS):

        def scalar(x, y):
            return mp.sin(x[0]) * x[1] ** 2 * mp.exp(y)

        a, b, c = map(mp.mpf, (0.5, -2.0, 3.0))
        first = [mp.cos(a) * b**2, mp.sin(a) * 2 * b, mp.sin(a) * b**2]
        second = [
            -mp.sin(a) * b**2 + 2 * mp.cos(a) * 2 * b + 3 * mp.cos(a) * b**2,
            mp.cos(a) * 2 * b + 2 * mp.sin(a) * 2 + 3 * mp.sin(a) * 2 * b,
            mp.cos(a) * b**2 + 2 * mp.sin(a) * 2 * b + 3 * mp.sin(a) * b**2,
        ]
        for of, exact in (("gradient", first), ("second derivative", second)):
            found = truth(made(at=at, scalar=scalar, of=of))
            for number, right in zip(found, exact, strict=True):
                assert abs(number - right * mp.exp(c)) < mp.mpf("1e-40")


def test_the_truth_gets_the_rounded_numbers():
    for dtype, rounded in ((torch.float32, 0.10000000149011612), (torch.float16, 0.0999755859375)):
        assert truth(made(at=(0.1,), dtype=dtype, of="value", scalar=lambda x: x)) == [rounded]


def test_small_and_large_numbers_have_steps_of_their_size():
    for size in (1e-300, 1e300):
        found = truth(made(at=(size, size), scalar=mp.hypot))
        assert [float(number) for number in found] == [pytest.approx(0.5**0.5, rel=1e-15)] * 2


def test_noise_is_zero():
    assert truth(made(at=([2.0, 3.0],), scalar=lambda x: x[0] ** 3 + x[1] * 0))[1] == 0
    assert truth(made(right=lambda x: [1, mp.mpf("1e-90")])) == [1, 0]
    assert truth(made(right=lambda x: [1, mp.mpf("1e-60"), mp.inf]))[1] > 0


def test_outputs_are_summed_before_they_are_differentiated():
    assert [float(x) for x in truth(made(scalar=lambda x: [x, 2 * x]))] == [pytest.approx(3)]
    assert truth(made(of="value", scalar=lambda x: [x, 2 * x])) == [0.5, 1]


def test_a_matrix_is_read_row_by_row():
    assert flat([mp.matrix([[1, 2], [3, 4]]), 5]) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("probe", BOTH, ids=lambda probe: probe.id)
def test_closed_forms_agree_with_differences(probe):
    closed = truth(probe)
    with mp.workdps(DIGITS):
        exact = [[*map(mp.mpf, tensor.double().reshape(-1).tolist())] for tensor in probe.inputs()]
        shaped = [numbers if tensor.dim() else numbers[0] for numbers, tensor in zip(exact, probe.inputs())]
        differences = by_differences(probe.scalar, shaped, probe.of)
        largest = max(map(abs, closed)) or 1
        for number, right in zip(differences, closed, strict=True):
            assert abs(number - right) <= mp.mpf("1e-30") * largest


def test_many_closed_forms_are_checked_by_differences():
    assert len(BOTH) >= 40


def test_formulae_of_matrix_functions_agree_with_differences():
    from gradwright.probing.rows import extra_matrices, linear_algebra

    spread = [[2.0, 0.5, -0.25], [0.5, 3.0, 0.125], [-0.25, 0.125, 1.0]]
    known = {
        mp.sqrt: linear_algebra._of_sqrt,
        mp.log: linear_algebra._of_log,
        mp.exp: extra_matrices._of_exp,
        (lambda x: 1 / mp.sqrt(x)): extra_matrices._of_inverse_sqrt,
    }

    def weighed(matrix):
        weights = linear_algebra.weights(3)
        return mp.fsum(weights[i][j] * matrix[i, j] for i, j in itertools.product(range(3), repeat=2))

    with mp.workdps(DIGITS):
        for function, divided in known.items():

            def whole(a, function=function):
                values, vectors = mp.eigsy((mp.matrix(a) + mp.matrix(a).T) / 2)
                return weighed(vectors * mp.diag([function(x) for x in values]) * vectors.T)

            close(
                by_differences(whole, [mapped(spread)], "gradient"), linear_algebra.spectral_gradient(divided)(spread)
            )


def test_the_formula_of_the_orthogonal_factor_agrees_with_differences():
    from gradwright.probing.rows import linear_algebra

    spread = mapped([[2.0, 0.5, -0.25], [0.25, 3.0, 0.125], [-0.5, 0.75, 1.0]])
    weights = linear_algebra.weights(3, lean=1)

    def whole(a):
        u, _, vh = mp.svd_r(mp.matrix(a))
        q = u * vh
        return mp.fsum(weights[i][j] * q[i, j] for i, j in itertools.product(range(3), repeat=2))

    with mp.workdps(DIGITS):
        close(by_differences(whole, [spread], "gradient"), linear_algebra.polar_gradient(spread, weights))


def mapped(rows):
    return [[mp.mpf(x) for x in row] for row in rows]


def close(found, right):
    for number, exact in zip(found, flat(right), strict=True):
        assert abs(number - exact) < mp.mpf("1e-30")
