"""The even series are right on both sides of their switch, with three derivatives."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from gradwright.stable.stumpff import SWITCH, stumpff


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-14), (torch.float32, 4e-6)])
def test_values_are_those_of_the_series(dtype: torch.dtype, bar: float) -> None:
    switch = torch.tensor(SWITCH, dtype=dtype)
    near = [torch.nextafter(switch, torch.tensor(float(end), dtype=dtype)) for end in (0, 2)]
    s = torch.stack([*torch.tensor([0.0, 1e-30, 1e-5, 0.3, 3.0, 9.8, 40.0], dtype=dtype), switch, *near])
    found = stumpff(s, 1, 5)
    with mpmath.workdps(60):
        for k, row in enumerate(found, 1):
            for x, value in zip(s.tolist(), row.tolist()):
                true = mpmath.nsum(lambda j, x=x, k=k: (-x) ** j / mpmath.factorial(2 * j + k), [0, mpmath.inf])
                # Below 1 an error is one of the largest value, 1 / k!, and where it is small one of the cosine's.
                assert abs(value - float(true)) < bar / math.factorial(k - 1), (k, x)


def test_derivatives_are_right_to_third_order() -> None:
    for s in (0.0, 0.5, 2.0, 9.0):
        x = torch.tensor(s, dtype=torch.float64, requires_grad=True)
        for k in (1, 2, 3, 4):
            y = stumpff(x, k, 1)[0]
            for order in (1, 2, 3):
                (y,) = torch.autograd.grad(y, x, create_graph=True)
                terms = range(order, 40)
                true = sum(
                    (-1) ** j * math.perm(j, order) * s ** (j - order) / math.factorial(2 * j + k) for j in terms
                )
                assert abs(float(y.detach()) - true) < 1e-10 * math.factorial(order) / math.factorial(2 * order + k)
