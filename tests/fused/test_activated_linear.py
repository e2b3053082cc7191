"""A linear layer of an activation that is formed again: exact, what it keeps and allocates, frozen parts, autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError
from tests.footprint import kept_bytes, peak_bytes
from tests.fused.stack import Stack, after

PAIRS: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "gelu": (gw.fused.gelu_linear, functional.gelu),
    "gelu_tanh": (
        lambda x, weight, bias=None: gw.fused.gelu_linear(x, weight, bias, approximate="tanh"),
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
    "silu": (gw.fused.silu_linear, functional.silu),
    "mish": (gw.fused.mish_linear, functional.mish),
}
EACH = pytest.mark.parametrize("name", PAIRS)
PUBLIC = pytest.mark.parametrize("name", ["gelu_linear", "silu_linear", "mish_linear"])


def arguments(rows: int = 600, inner: int = 300, outer: int = 70, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    found = [torch.randn(rows, inner), torch.randn(outer, inner) / inner**0.5, torch.randn(outer)]
    return [x.to(dtype).requires_grad_() for x in found]


def eager(name: str) -> Callable[..., Tensor]:
    activation = PAIRS[name][1]
    return lambda x, weight, bias=None: functional.linear(activation(x), weight, bias)


def close(got: Tensor, want: Tensor, off: float) -> None:
    got, want = got.detach().double(), want.detach().double()
    assert got.shape == want.shape
    if want.numel():
        assert float((got - want).abs().max()) <= off * float(want.abs().max())


# -------------------------------------------------------------------- numbers


def test_worked_numbers() -> None:
    """``silu(0) = 0`` with slope 1/2, and ``silu(1) = 0.7311`` with slope 0.9277."""
    x = torch.tensor([[0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[2.0, 4.0]], dtype=torch.float64, requires_grad=True)
    bias = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    out = gw.fused.silu_linear(x, weight, bias)
    dx, dw, db = torch.autograd.grad(out, [x, weight, bias], torch.tensor([[3.0]], dtype=torch.float64))
    assert out.item() == pytest.approx(0.5 + 4 * 0.7310585786300049)
    assert dx[0].tolist() == pytest.approx([3 * 2 * 0.5, 3 * 4 * 0.9276705118714867])
    assert dw[0].tolist() == pytest.approx([0.0, 3 * 0.7310585786300049])
    assert db.item() == 3.0


@EACH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 255, 257, 600])
def test_blocks_are_the_whole(name: str, dtype: torch.dtype, rows: int) -> None:
    """With rows that fill no block, one, and more than one."""
    given = arguments(rows, dtype=dtype)
    g = torch.randn(rows, 70).to(dtype)
    off = {torch.float64: 1e-14, torch.float32: 1e-6}.get(dtype, torch.finfo(dtype).eps)
    wide = [x.detach().double().requires_grad_() for x in given]
    out, true = PAIRS[name][0](*given), eager(name)(*wide)
    assert out.dtype == dtype
    close(out, true, 2 * off)
    for got, want in zip(torch.autograd.grad(out, given, g), torch.autograd.grad(true, wide, g.double())):
        assert got.dtype == dtype
        close(got, want, 2 * off)


@EACH
@pytest.mark.parametrize(("rows", "inner", "outer"), [(0, 4, 3), (5, 0, 3), (5, 4, 0), (0, 0, 0)])
def test_sizes_of_zero(name: str, rows: int, inner: int, outer: int) -> None:
    given = [torch.ones(shape, requires_grad=True) for shape in ((2, rows, inner), (outer, inner), (outer,))]
    out, true = PAIRS[name][0](*given), eager(name)(*given)
    assert torch.equal(out, true)
    for got, want in zip(*(torch.autograd.grad(y.sum(), given) for y in (out, true))):
        assert torch.equal(got, want)


@EACH
def test_derivatives_compose(name: str) -> None:
    given = arguments(3, 4, 2, torch.float64)
    function = PAIRS[name][0]
    assert torch.autograd.gradcheck(function, given, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, given, check_batched_grad=True)


@EACH
def test_the_second_derivative_is_that_of_pytorch(name: str) -> None:
    """Of a gradient penalty, over more rows than a block has."""
    found = []
    for function in (PAIRS[name][0], eager(name)):
        torch.manual_seed(0)
        given = arguments(dtype=torch.float64)
        first = torch.autograd.grad(function(*given).square().sum(), given, create_graph=True)
        found.append(torch.autograd.grad(sum((x * x).sum() for x in first), given))  # type: ignore[arg-type]
    for got, want in zip(*found):
        close(got, want, 1e-12)


# -------------------------------------------------------------------- memory


@EACH
def test_a_stack_keeps_what_one_of_relu_keeps(name: str) -> None:
    """And the gradient of every parameter is right."""
    stack = Stack()
    fused, plain = PAIRS[name][0], eager(name)
    inner = stack.rows * stack.inner * 4
    assert stack.kept(fused) == stack.kept(after(functional.relu)) == stack.kept(plain) - stack.blocks * inner
    for got, want in zip(stack.gradients(fused), stack.gradients(plain)):
        close(got, want, 1e-6)


def test_a_stack_has_a_lower_peak_by_what_is_not_kept() -> None:
    stack = Stack()
    inner = stack.rows * stack.inner * 4
    assert stack.peak(gw.fused.silu_linear) <= stack.peak(eager("silu")) - (stack.blocks - 0.9) * inner


@EACH
def test_nothing_is_kept_but_the_arguments(name: str) -> None:
    given = arguments()
    assert kept_bytes(lambda: PAIRS[name][0](*given), given) == 0
    assert kept_bytes(lambda: eager(name)(*given), given) == given[0].nbytes


@pytest.mark.parametrize("name", ["gelu", "mish"])
def test_a_step_allocates_its_gradients_and_one_block(name: str) -> None:
    given = arguments(2048, 512, 128)
    out = PAIRS[name][0](*given)
    g = torch.ones_like(out)
    gradients = sum(x.nbytes for x in given)
    block = 256 * 512 * 4
    assert peak_bytes(lambda: PAIRS[name][0](*given)) <= out.nbytes + 1.1 * block
    assert peak_bytes(lambda: torch.autograd.grad(out, given, g)) <= gradients + 1.1 * block


def test_what_is_frozen_costs_nothing() -> None:
    """Without a gradient of the weight no activation is formed, and without one of the input no tensor of its size."""
    x, weight, bias = arguments(2048, 512, 128)
    g = torch.ones(2048, 128)
    head = gw.fused.gelu_linear(x.detach(), weight, bias)
    assert peak_bytes(lambda: torch.autograd.grad(head, [weight, bias], g)) <= x.nbytes / 2
    frozen = gw.fused.gelu_linear(x, weight.detach(), bias.detach())
    assert peak_bytes(lambda: torch.autograd.grad(frozen, x, g)) <= 1.01 * x.nbytes


# -------------------------------------------------------------------- dtypes and autocast


@EACH
def test_under_autocast_it_is_the_two_of_pytorch(name: str) -> None:
    """The activation in the dtype of the input, the layer in that of autocast; gradients in those of the arguments."""
    found = []
    for function in (PAIRS[name][0], eager(name)):
        torch.manual_seed(0)
        given = arguments()
        with torch.autocast("cpu", torch.bfloat16):
            out = function(*given)
        assert out.dtype == torch.bfloat16
        found.append([out, *torch.autograd.grad(out.float().square().sum(), given)])
    for got, want in zip(*found):
        assert got.dtype == want.dtype
        close(got, want, 2**-8)


def test_a_weight_that_a_later_layer_shares_has_both_gradients_under_autocast() -> None:
    """Autocast hands on what it has cast: that must not be a copy without a graph."""
    found = []
    for function in (PAIRS["gelu"][0], eager("gelu")):
        torch.manual_seed(0)
        x, weight, _ = arguments(8, 16, 16)
        with torch.autocast("cpu", torch.bfloat16):
            out = functional.linear(function(x, weight), weight)
        found.append(torch.autograd.grad(out.float().sum(), weight)[0])
    close(found[0], found[1], 2**-7)


def test_one_tensor_may_be_input_and_weight() -> None:
    x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    (got,) = torch.autograd.grad(gw.fused.gelu_linear(x, x).square().sum(), x)
    (want,) = torch.autograd.grad(eager("gelu")(x, x).square().sum(), x)
    close(got, want, 1e-13)


def test_a_cotangent_of_a_sum_is_no_obstacle() -> None:
    """Its strides are zero."""
    given = arguments()
    got = torch.autograd.grad(gw.fused.gelu_linear(*given).sum(), given)
    for one, two in zip(got, torch.autograd.grad(eager("gelu")(*given).sum(), given)):
        close(one, two, 1e-6)


def test_per_sample_gradients() -> None:
    x, weight, bias = (t.detach() for t in arguments(5, 6, 3, torch.float64))

    def loss(function: Callable[..., Tensor]) -> Callable[..., Any]:
        return torch.func.vmap(
            torch.func.grad(lambda w, b, row: function(row, w, b).square().sum(), (0, 1)), (None, None, 0)
        )

    for got, want in zip(loss(gw.fused.gelu_linear)(weight, bias, x), loss(eager("gelu"))(weight, bias, x)):
        close(got, want, 1e-12)


@EACH
def test_two_runs_are_equal_to_the_bit(name: str) -> None:
    given, g = arguments(), torch.randn(600, 70)
    one, two = (torch.autograd.grad(PAIRS[name][0](*given), given, g) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two))


@pytest.mark.slow
@pytest.mark.compile
@EACH
@pytest.mark.filterwarnings("ignore")
def test_compiled_code_under_autocast(name: str) -> None:
    given = arguments(8, 16, 4)
    fast = torch.compile(PAIRS[name][0], fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = fast(*given), eager(name)(*given)
    close(got, want, 2**-6)
    pairs = zip(*(torch.autograd.grad(out.float().square().sum(), given) for out in (got, want)))
    for one, two in pairs:
        close(one, two, 2**-6)


# -------------------------------------------------------------------- refusals


@PUBLIC
@pytest.mark.parametrize(
    ("x", "weight", "bias", "message"),
    [
        ((3, 4), (4,), None, "weight has 1 dimensions; expected 2, \\(out_features, in_features\\)"),
        ((3, 4), (4, 3), None, "x has shape \\(3, 4\\); expected \\(..., 3\\)"),
        ((), (4, 3), None, "x has shape \\(\\); expected \\(..., 3\\)"),
        ((3, 4), (2, 4), (4,), "bias has shape \\(4,\\); expected \\(2,\\)"),
    ],
)
def test_shapes_that_do_not_fit(name: str, x: Any, weight: Any, bias: Any, message: str) -> None:
    given = [None if shape is None else torch.ones(shape) for shape in (x, weight, bias)]
    with pytest.raises(ArgumentError, match=f"{name}: {message}"):
        getattr(gw.fused, name)(*given)


@PUBLIC
def test_dtypes_that_do_not_fit(name: str) -> None:
    function = getattr(gw.fused, name)
    x, weight, bias = (t.detach() for t in arguments(2, 4, 3))
    with pytest.raises(ArgumentError, match=f"{name}: weight is torch.float64 and x is torch.float32; expected one"):
        function(x, weight.double())
    with pytest.raises(ArgumentError, match=f"{name}: bias is torch.bfloat16 and x is torch.float32; expected one"):
        function(x, weight, bias.bfloat16())
    with pytest.raises(ArgumentError, match=f"{name}: x is torch.int64; expected a floating-point tensor"):
        function(x.long(), weight)
    with pytest.raises(ArgumentError, match=f"{name}: weight is None; expected"):
        function(x, None)


def test_an_unknown_approximation() -> None:
    with pytest.raises(OptionError, match=r"approximate: got 'tan'; expected one of none, tanh\. Did you mean 'tanh'"):
        gw.fused.gelu_linear(torch.ones(2, 3), torch.ones(1, 3), approximate="tan")
