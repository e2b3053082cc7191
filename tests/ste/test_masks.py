"""Masks: where a gradient passes, at every edge, in eager and in compiled code."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.authoring.catalogue import around
from gradwright.errors import ArgumentError, OptionError
from gradwright.ste import masks


def points(dtype: torch.dtype) -> Tensor:
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, 1e-45, -1e-45, 5e-324, -5e-324], dtype=dtype)
    return torch.cat([around(-1.0, 0.0, 1.0, 3.0, dtype=dtype), special])


def wanted(v: Tensor, low: float, high: float, edges: str) -> Tensor:
    above = v >= low if edges == "inclusive" or low == -torch.inf else v > low
    within = above & (v <= high if edges == "inclusive" else v < high)
    return (within | v.isnan()).to(v.dtype)


BOUNDS = [(-1.0, 1.0), (0.0, 3.0), (-torch.inf, 1.0)]
CASES = list(itertools.product(BOUNDS, masks.EDGES, [torch.float32, torch.float64]))


@pytest.mark.parametrize(("bounds", "edges", "dtype"), CASES)
def test_every_edge_in_every_spelling(bounds: tuple[float, float], edges: masks.Edges, dtype: torch.dtype) -> None:
    v = points(dtype)
    want = wanted(v, *bounds, edges)
    ones = torch.ones_like(v)
    low, high = (torch.tensor(bound, dtype=dtype) for bound in bounds)
    for repeats in (1, 7):  # a kernel may treat the start of the memory and its end differently
        assert torch.equal(masks.passing(v.repeat(repeats), *bounds, edges)(ones.repeat(repeats)), want.repeat(repeats))
    if bounds[0] > -torch.inf:
        assert torch.equal(masks.passing(v, low, high, edges)(ones), want)
        assert torch.equal(masks._inside(v, low, high, edges), want)
    assert torch.equal(masks.passing(v, bounds[0], high, edges)(ones), want)  # an infinite number is no bound here too
    assert torch.equal(masks._inside(v, *bounds, edges), want)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("edges", masks.EDGES)
def test_compiled(edges: masks.Edges) -> None:
    torch.compiler.reset()
    v = points(torch.float32)
    function: Any = torch.compile(lambda g, v: masks.passing(v, -1.0, 1.0, edges)(g), fullgraph=True)
    assert torch.equal(function(torch.ones_like(v), v), wanted(v, -1.0, 1.0, edges))


def test_the_vocabulary() -> None:
    assert masks.check_mask("f", "pre-round", None) == ("pre-round", "exclusive")
    assert masks.check_mask("f", "post-round", "exclusive") == ("post-round", "exclusive")
    with pytest.raises(OptionError, match="f: mask: got 'pre'; expected one of none, range, pre-round"):
        masks.check_mask("f", "pre", None)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="f: edges: got 'open'; expected one of inclusive, exclusive"):
        masks.check_mask("f", "none", "open")  # type: ignore[arg-type]


COMPUTING = {
    "fake_quantize": lambda x: gw.ste.fake_quantize(x, 0.25, low=-4, high=3),
    "pact": lambda x: gw.ste.pact(x, 2.5, bits=3),
    "clamp_learned": lambda x: gw.ste.clamp_learned(x, -0.5, 0.5),
    "twn": gw.ste.twn,
    "mx": gw.ste.mx,
    "soft_round": gw.ste.soft_round,
    "dorefa_weights": lambda x: gw.ste.dorefa_weights(x, bits=2),
    "stochastic_round": gw.ste.stochastic_round,
    "Quantize": lambda x: gw.ste.Quantize(4)(x),
}


@pytest.mark.parametrize("name", COMPUTING)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.complex64, torch.float8_e4m3fn])
def test_a_dtype_that_would_cut_values_is_refused(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, 2.0, 3.0]).to(dtype)
    with pytest.raises(ArgumentError, match=f"got a tensor of {dtype}; expected float16, bfloat16, float32 or float64"):
        COMPUTING[name](x)


def check_bound_of_half_precision(function: Any) -> None:
    # 0.7 lies below the number that float16 has for it, which is outside then.
    x = around(0.7, -0.7, dtype=torch.float16).requires_grad_()
    (grad,) = torch.autograd.grad(function(x, bound=0.7).sum(), x)
    assert torch.equal(grad, (x.double().abs() <= 0.7).half())


def test_a_bound_that_half_precision_does_not_hold() -> None:
    check_bound_of_half_precision(gw.ste.clipped_sign)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_the_same_bound_in_compiled_code() -> None:
    torch.compiler.reset()
    check_bound_of_half_precision(torch.compile(gw.ste.clipped_sign, backend="aot_eager"))


@pytest.mark.parametrize("name", ["fake_quantize", "pact", "lsq_plus", "quest"])
def test_vmap_has_a_batching_rule_for_every_operation(name: str) -> None:
    function = {
        **COMPUTING,
        "lsq_plus": lambda x: gw.ste.lsq_plus(x, 0.25, 0.5, bits=3),
        "quest": lambda x: gw.ste.quest(x, 0.25, bits=3),
    }[name]
    x = torch.linspace(-2.0, 2.0, 12).reshape(3, 4)
    # A warning that an operation has none is an error here.
    grads = torch.func.vmap(torch.func.grad(lambda row: function(row).sum()))(x)
    leaf = x.clone().requires_grad_()
    assert torch.equal(grads, torch.autograd.grad(function(leaf).sum(), leaf)[0])
