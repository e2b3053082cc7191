"""SciPy behind ``gw.external`` and ``gw.implicit``, as the example has it: every derivative, and every contract."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import gradwright as gw
from examples import wrap_scipy

F64 = torch.float64


def _samples() -> dict[str, tuple[Any, tuple[torch.Tensor, ...]]]:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(5, generator=generator, dtype=F64)
    heights = torch.randn(len(wrap_scipy.KNOTS), generator=generator, dtype=F64)
    b = torch.randn(6, generator=generator, dtype=F64)
    return {
        "spline": (wrap_scipy.spline, (x, heights)),
        "blur": (wrap_scipy.blur, (b,)),
        "smooth": (wrap_scipy.smooth, (b, torch.tensor(0.3, dtype=F64))),
    }


SAMPLES = _samples()


@pytest.mark.parametrize("name", SAMPLES)
def test_first_and_second_derivatives_are_those_of_differences(name: str) -> None:
    function, sample = SAMPLES[name]
    leaves = tuple(x.clone().requires_grad_() for x in sample)
    assert gradcheck(function, leaves, check_forward_ad=True)
    assert gradgradcheck(function, leaves)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_batch_is_its_samples(name: str) -> None:
    function, sample = SAMPLES[name]
    batches = [torch.stack([x, x.flip(0) if x.ndim else 2 * x, 0.5 * x]) for x in sample]

    def slope(*args: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: function(x, *args[1:]).square().sum())(args[0])  # type: ignore[no-any-return]

    for ask in (function, slope):
        expected = torch.stack([ask(*each) for each in zip(*batches)])
        torch.testing.assert_close(torch.func.vmap(ask)(*batches), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_every_contract_holds(name: str) -> None:
    function, sample = SAMPLES[name]
    report = gw.check(function, *sample, level="full", require=("vmap", "second-order", "gradient-penalty"))
    assert report, report
    assert not report.unresolved, report


def test_the_example_fits(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = wrap_scipy.fit(20)
    assert after < 0.01 * before
