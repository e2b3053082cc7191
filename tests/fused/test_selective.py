"""Log-probabilities of chosen classes: as PyTorch's, in blocks of rows, and with the logits alone for the backward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError, OptionError
from gradwright.fused import logit_rows, route
from tests.footprint import kept_bytes, peak_bytes

INF, NAN = math.inf, math.nan
ours = gw.fused.selective_log_softmax
entropy_of = gw.fused.entropy_from_logits
topk = gw.fused.topk_log_softmax


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a block have three rows of 20 numbers of float64, where it has one buffer."""
    monkeypatch.setitem(route.CACHED_BYTES, "cpu", 3 * 20 * 8)


@pytest.fixture
def blocks_of_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a block have eight rows of 1000 numbers of float32, so that small tensors have many."""
    monkeypatch.setitem(route.CACHED_BYTES, "cpu", 8 * 1000 * 4)


def theirs(logits: Tensor, index: Tensor, temperature: float = 1.0) -> Tensor:
    logs = torch.log_softmax(logits / temperature, -1)
    places = index.unsqueeze(-1) if index.dim() < logits.dim() else index
    return logs.gather(-1, places).reshape(index.shape)


def their_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    logs = torch.log_softmax(logits / temperature, -1)
    return -(logs.exp() * logs).sum(-1)


def case(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype).requires_grad_()


def indices(classes: int, *shape: int) -> Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(1))


# -------------------------------------------------------------------- values and gradients


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lead", [(), (1,), (7,), (2, 5), (2, 3, 4)])
@pytest.mark.usefixtures("small_blocks")
def test_the_values_are_those_of_torch_to_the_last_bit(dtype: torch.dtype, lead: tuple[int, ...]) -> None:
    x = case(*lead, 20, dtype=dtype).detach()
    for index in (indices(20, *lead), indices(20, *lead, 3)):
        assert torch.equal(ours(x, index), theirs(x, index))
        assert ours(x, index).dtype == dtype


@pytest.mark.parametrize("lead", [(), (1,), (7,), (2, 5), (2, 3, 4)])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.usefixtures("small_blocks")
def test_one_backward_is_that_of_both(lead: tuple[int, ...], temperature: float) -> None:
    """Over whole blocks and the last, shorter one, and for indices that are there twice."""
    x = case(*lead, 20)
    for index in (indices(20, *lead), indices(2, *lead, 5)):
        g, h = torch.randn(index.shape, dtype=torch.float64), torch.randn(lead, dtype=torch.float64)
        out, total = ours(x, index, entropy=True, temperature=temperature)
        want, wanted = theirs(x, index, temperature), their_entropy(x, temperature)
        torch.testing.assert_close((out, total), (want, wanted))
        for outs, cotangents, found in (
            ((want,), (g,), ours(x, index, temperature=temperature)),
            ((want, wanted), (g, h), (out, total)),
            ((wanted,), (h,), entropy_of(x, temperature=temperature)),
        ):
            grad = torch.autograd.grad(outs, x, cotangents, retain_graph=True)
            torch.testing.assert_close(torch.autograd.grad(found, x, cotangents, retain_graph=True), grad)


def test_one_output_alone_has_the_gradient_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x, index = case(6, 20), indices(20, 6)
    out, total = ours(x, index, entropy=True)
    (grad,) = torch.autograd.grad(total.sum(), x, retain_graph=True)
    torch.testing.assert_close(grad, torch.autograd.grad(their_entropy(x).sum(), x)[0])
    monkeypatch.delattr(logit_rows, "write_joint_slope")  # an entropy that is only logged costs no backward
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad(theirs(x, index).sum(), x)[0])


def test_an_index_that_is_there_twice_counts_twice() -> None:
    x = torch.zeros(1, 2, requires_grad=True)
    out = ours(x, torch.tensor([[1, 1, 0]]))
    assert torch.autograd.grad(out, x, torch.tensor([[1.0, 2.0, 4.0]]))[0].tolist() == [[4 - 3.5, 3 - 3.5]]


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_likeliest_classes(temperature: float) -> None:
    x = case(2, 5, 20)
    found = topk(x, 4, temperature=temperature)
    want = torch.log_softmax(x / temperature, -1).topk(4)
    assert torch.equal(found.indices, want.indices)
    assert torch.equal(found.values, want.values)
    g = torch.randn(2, 5, 4, dtype=torch.float64)
    grads = (torch.autograd.grad(out.values, x, g, retain_graph=True) for out in (found, want))
    torch.testing.assert_close(*grads)
    assert not found.indices.requires_grad
    student = case(2, 5, 20, seed=1)
    assert torch.equal(ours(student, found.indices), theirs(student, want.indices))


def functions() -> dict[str, Callable[[Tensor], Any]]:
    index, several = indices(5, 3), indices(5, 3, 2)
    return {
        "one": lambda x: ours(x, index),
        "several, entropy": lambda x: ours(x, several, entropy=True, temperature=0.75),
        "ignored": lambda x: ours(x, several, ignore_index=2),
        "entropy": lambda x: entropy_of(x),
        "top-k": lambda x: topk(x, 2).values,
    }


@pytest.mark.parametrize("name", list(functions()))
def test_derivatives_of_two_orders(name: str) -> None:
    function, x = functions()[name], case(3, 5)
    assert torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, x, check_batched_grad=True)


def test_derivatives_of_three_orders() -> None:
    index = indices(4, 2)

    def scalar(pair: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Callable[[Tensor], Tensor]:
        return lambda x: sum((out.sin().sum() for out in pair(x)), torch.zeros(()))

    x = case(2, 4).detach()
    found = scalar(lambda x: ours(x, index, entropy=True))
    want = scalar(lambda x: (theirs(x, index), their_entropy(x)))
    third = [torch.func.jacrev(torch.func.hessian(f))(x) for f in (found, want)]
    torch.testing.assert_close(*third)


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("entropy", [False, True])
def test_batches_of_one_argument_alone(in_dims: tuple[int | None, int | None], entropy: bool) -> None:
    shapes = {None: ((3, 5), (3, 2)), 0: ((4, 3, 5), (4, 3, 2)), 1: ((3, 4, 5), (3, 4, 2))}
    x, index = case(*shapes[in_dims[0]][0]).detach(), indices(5, *shapes[in_dims[1]][1])

    def pulled(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        out, pull = torch.func.vjp(lambda x: ours(x, index, entropy=entropy), x)  # type: ignore[call-overload]
        return (*out, *pull(out)) if entropy else (out, *pull(out))

    together = torch.func.vmap(pulled, in_dims)(x, index)
    for number in range(4):
        one = [v if d is None else v.select(d, number) for v, d in zip((x, index), in_dims)]
        torch.testing.assert_close(tuple(part[number] for part in together), pulled(*one))


# -------------------------------------------------------------------- rows that are out of the ordinary


@pytest.mark.parametrize("entropy", [False, True])
def test_an_ignored_row_is_zero_whatever_is_in_it(entropy: bool) -> None:
    x = torch.tensor([[NAN, 1.0], [0.0, 0.0], [INF, 0.0]], requires_grad=True)
    out = ours(x, torch.tensor([-100, 1, -100]), entropy=entropy)  # type: ignore[call-overload]
    out = out[0] if entropy else out
    assert out[::2].tolist() == [0, 0]
    (grad,) = torch.autograd.grad(out, x, torch.tensor([NAN, 1.0, INF]))
    assert grad.tolist() == [[0, 0], [-0.5, 0.5], [0, 0]]


def test_the_index_that_is_ignored_may_be_a_class() -> None:
    x = case(2, 3)
    out = ours(x, torch.tensor([[1, 0], [2, 1]]), ignore_index=1)
    assert (out == 0).tolist() == [[True, False], [False, True]]
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad(theirs(x, torch.tensor([0, 2])).sum(), x)[0])


@pytest.mark.usefixtures("small_blocks")
def test_rows_without_a_cotangent_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of nothing else are not computed, and in the others those rows are 0 as well, whatever their logits."""
    asked = []
    write = logit_rows.write_slope
    monkeypatch.setattr(logit_rows, "write_slope", lambda z, *rest: (asked.append(z.shape[0]), write(z, *rest)))
    x, index = case(12, 20).detach(), indices(20, 12)
    x[[0, 7]] = NAN
    x.requires_grad_()
    g = torch.tensor([0.0] * 6 + [1.0, 0.0, 2.0] + [0.0] * 3, dtype=torch.float64)
    (grad,) = torch.autograd.grad(ours(x, index), x, g)
    assert asked == [3]
    rows = [6, 8]
    assert (grad[[r for r in range(12) if r not in rows]] == 0).all()
    kept = x.detach()[rows].requires_grad_()
    torch.testing.assert_close(grad[rows], torch.autograd.grad(theirs(kept, index[rows]), kept, g[rows])[0])


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("through", ["blocks", "transforms"])
def test_excluded_classes(entropy: bool, through: str) -> None:
    """They have no gradient; where one is picked its cotangent is ignored; a row may have nothing else."""
    x = torch.tensor([[0.0, -INF, 0.0], [-INF, -INF, -INF], [0.0, -INF, 0.0]], dtype=torch.float64)
    index, half = torch.tensor([1, 0, 2]), math.log(2)
    g = torch.tensor([[NAN, 2.0, 1.0], [1.0, 1.0, 1.0]], dtype=torch.float64)[: 2 if entropy else 1]

    def both(x: Tensor) -> tuple[Tensor, ...]:
        return ours(x, index, entropy=True) if entropy else (ours(x, index),)

    def pulled(x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        if through == "transforms":
            outs, pull = torch.func.vjp(both, x)
            return outs, pull(tuple(g))[0]
        outs = both(x.requires_grad_())
        return outs, torch.autograd.grad(outs, x, tuple(g))[0]

    outs, grad = pulled(x)
    assert outs[0].tolist() == [-INF, -INF, pytest.approx(-half)]
    if entropy:
        assert outs[1].tolist() == pytest.approx([half, 0.0, half])
    want = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [-0.5, 0.0, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(grad.detach(), want)


@pytest.mark.parametrize("entropy", [False, True])
def test_second_derivatives_beside_excluded_classes(entropy: bool) -> None:
    """They are those of the other classes alone, and 0 in a row without any."""
    values = case(2, 5).detach()
    x = torch.cat([values, torch.full((1, 5), -INF, dtype=torch.float64)])
    x[:2, 3] = -INF
    index, u = torch.tensor([0, 1, 2]), torch.randn(3, 5, dtype=torch.float64)

    def second(x: Tensor, index: Tensor, u: Tensor, function: Callable[..., Any]) -> Tensor:
        x = x.detach().requires_grad_()
        outs = function(x, index)
        (grad,) = torch.autograd.grad(sum(out.cos().sum() for out in outs), x, create_graph=True)
        return torch.autograd.grad((grad * u).sum(), x)[0]

    def found(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        return tuple(out[:2] for out in ours(x, index, entropy=True)) if entropy else (ours(x, index)[:2],)

    def all_rows(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        return (ours(x, index, entropy=True)[1] + 1,) if entropy else (ours(x, index),)

    def true(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        return (theirs(x, index), their_entropy(x)) if entropy else (theirs(x, index),)

    others = [0, 1, 2, 4]
    want = second(x[:2, others], index[:2], u[:2, others], true)
    got = second(x, index, u, found)
    torch.testing.assert_close(got[:2, others], want)
    assert not got[:, 3].any()
    assert not second(x, index, u, all_rows)[2].any()


def test_large_logits() -> None:
    """What is far from zero loses nothing: the largest is subtracted first."""
    x = case(3, 5, dtype=torch.float32).detach()
    moved, index = (x * 64).round() / 64 + 4096, indices(5, 3)
    want = theirs((moved - 4096).double(), index)
    torch.testing.assert_close(ours(moved, index).double(), want, rtol=1e-6, atol=1e-6)
    grads = [torch.func.grad(lambda x: ours(x, index).sum())(x) for x in (moved, moved - 4096)]
    torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-7)
    leaf = moved.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(ours(leaf, index).sum(), leaf)[0], grads[1], rtol=1e-6, atol=1e-7)


def test_nothing_is_there() -> None:
    for x, index in (
        (torch.zeros(0, 5, requires_grad=True), torch.zeros(0, dtype=torch.int64)),
        (torch.zeros(2, 5, requires_grad=True), torch.zeros(2, 0, dtype=torch.int64)),
        (torch.zeros(2, 0, 5, requires_grad=True), torch.zeros(2, 0, 3, dtype=torch.int64)),
    ):
        out, total = ours(x, index, entropy=True)
        assert out.shape == index.shape
        assert total.shape == x.shape[:-1]
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert grad.shape == x.shape
        assert not grad.any()
    assert topk(torch.zeros(2, 5), 0).values.shape == (2, 0)
    assert entropy_of(torch.zeros(3, 0)).tolist() == [0, 0, 0]


# -------------------------------------------------------------------- dtypes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    x, index = case(4, 300, dtype=dtype), indices(300, 4, 2)
    out, total = ours(x, index, entropy=True, temperature=0.7)
    assert (out.dtype, total.dtype) == (dtype, dtype)
    wide = x.detach().float().requires_grad_()
    want = ours(wide, index, entropy=True, temperature=0.7)
    assert torch.equal(out, want[0].to(dtype))
    assert torch.equal(total, want[1].to(dtype))
    g = torch.randn(4, 2).to(dtype), torch.randn(4).to(dtype)
    (grad,) = torch.autograd.grad((out, total), x, g)
    (wanted,) = torch.autograd.grad(want, wide, [part.float() for part in g])
    assert grad.dtype == dtype
    assert torch.equal(grad, wanted.to(dtype))


@pytest.mark.parametrize(
    ("given", "asked"), list(itertools.permutations([torch.float64, torch.float32, torch.bfloat16], 2))
)
def test_the_dtype_that_is_asked_for(given: torch.dtype, asked: torch.dtype) -> None:
    x, index = case(4, 20, dtype=given), indices(20, 4)
    out, total = ours(x, index, entropy=True, dtype=asked)
    want = torch.log_softmax(x, -1, dtype=torch.promote_types(asked, torch.float32)).gather(-1, index.unsqueeze(-1))
    assert torch.equal(out, want.squeeze(-1).to(asked))
    assert out.dtype == total.dtype == entropy_of(x, dtype=asked).dtype == topk(x, 2, dtype=asked).values.dtype == asked
    assert torch.autograd.grad(out.sum() + total.sum(), x)[0].dtype == given


def test_autocast_changes_nothing() -> None:
    x, index = case(4, 20, dtype=torch.float32), indices(20, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = ours(x, index)
    assert torch.equal(out, theirs(x, index))
    want = torch.autograd.grad(theirs(x, index).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x), want)


# -------------------------------------------------------------------- memory


@pytest.mark.parametrize("entropy", [False, True])
def test_the_result_may_be_edited(entropy: bool) -> None:
    """As trainers do that mask it in place: nothing of it is kept."""
    x, index = case(4, 20), indices(20, 4)
    out = ours(x, index, entropy=entropy)  # type: ignore[call-overload]
    for part in out if entropy else (out,):
        part[1] = 0.0
        part.mul_(2.0)
    total = sum(part.sum() for part in out) if entropy else out.sum()
    (grad,) = torch.autograd.grad(total, x)
    assert not grad[1].any()
    want = theirs(x, index)[0] + (their_entropy(x)[0] if entropy else 0)
    torch.testing.assert_close(grad[0], 2 * torch.autograd.grad(want, x)[0][0])


@pytest.mark.parametrize("name", ["one", "entropy", "top-k"])
@pytest.mark.usefixtures("blocks_of_some_rows")
def test_the_gradient_is_the_one_large_tensor(name: str) -> None:
    x, index = case(500, 1000, dtype=torch.float32), indices(1000, 500)
    size = x.numel() * 4
    call: Callable[[], Any] = {
        "one": lambda: (ours(x, index),),
        "entropy": lambda: ours(x, index, entropy=True),
        "top-k": lambda: topk(x, 2)[:1],
    }[name]
    assert kept_bytes(call, [x, index]) <= (500 * 2 * 8 if name == "top-k" else 0)

    def step() -> object:
        outs = call()
        return torch.autograd.grad(outs, x, [torch.ones_like(out) for out in outs])

    assert size <= peak_bytes(step) <= 1.05 * size
    with torch.no_grad():
        assert peak_bytes(call) <= 0.05 * size


@pytest.mark.usefixtures("blocks_of_some_rows")
def test_logits_without_some_positions_are_not_copied() -> None:
    """``logits[:, :-1]`` is no matrix of rows; nor is what has its classes in another dimension."""
    whole, index = case(4, 101, 1000, dtype=torch.float32).detach(), indices(1000, 4, 100)
    for x in (
        whole[:, :-1],
        whole.transpose(0, 1).contiguous().transpose(0, 1)[:, :-1],
        whole.mT.contiguous().mT[:, 1:],
    ):
        with torch.no_grad():
            assert peak_bytes(lambda x=x: ours(x, index)) <= 0.05 * x.numel() * 4  # type: ignore[misc]


@pytest.mark.parametrize("rows", [1, 2, 5, 100])
def test_blocks_are_the_rows_in_their_order(rows: int) -> None:
    whole = torch.arange(3 * 4 * 5 * 2.0).reshape(3, 4, 5, 2)
    for x in (
        whole,
        whole[:, :-1],
        whole[:, :, 1:],
        whole[::2, :, ::2],
        whole.transpose(0, 2),
        whole.permute(1, 3, 0, 2),
        whole[:, :1].expand(3, 4, 5, 2),
        whole[0, 0],
        whole[0, :, 0],
        whole[0, 0, 0],
        whole[:0],
        whole[:, :0],
    ):
        blocks = list(logit_rows.row_blocks(x, rows))
        assert all(0 < block.shape[0] <= rows for block in blocks)
        together = torch.cat(blocks) if blocks else x.new_zeros(0, x.shape[-1])
        assert torch.equal(together, x.reshape(-1, x.shape[-1]))


@pytest.mark.usefixtures("small_blocks")
def test_two_runs_are_equal_to_the_bit() -> None:
    x, index = case(50, 20, dtype=torch.float32), indices(4, 50, 6)

    def run() -> Tensor:
        out, total = ours(x, index, entropy=True)
        return torch.autograd.grad(out.sum() + total.sum(), x)[0]

    assert torch.equal(run(), run())


# -------------------------------------------------------------------- errors


def test_errors() -> None:
    x, index = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(
        ArgumentError, match=r"selective_log_softmax: logits is torch\.int64; expected a floating-point"
    ):
        ours(index, index)
    with pytest.raises(
        ArgumentError, match=r"selective_log_softmax: logits has no dimension; expected \(\.\.\., classes\)"
    ):
        ours(torch.tensor(1.0), index[0])
    with pytest.raises(
        ArgumentError, match=r"selective_log_softmax: index is a list; expected a tensor of class indices"
    ):
        ours(x, [0, 1])  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match=r"selective_log_softmax: index is torch\.int32; expected int64"):
        ours(x, index.int())
    for shape in ((3,), (), (1, 2), (2, 1, 1)):
        with pytest.raises(
            ArgumentError, match=r"index has the shape .*; expected \(2,\) or \(2, k\) for logits of \(2, 3\)"
        ):
            ours(x, torch.zeros(shape, dtype=torch.int64))
    with pytest.raises(ArgumentError, match=r"selective_log_softmax: temperature is a Tensor; expected a number"):
        ours(x, index, temperature=torch.tensor(1.0))  # type: ignore[call-overload]
    for temperature in (0.0, -1.0, INF, NAN):
        with pytest.raises(OptionError, match=r"temperature is .*; expected a positive number"):
            ours(x, index, temperature=temperature)
    with pytest.raises(
        OptionError, match=r"entropy_from_logits: dtype is torch\.int64; expected a floating-point dtype"
    ):
        entropy_of(x, dtype=torch.int64)
    for k in (4, -1, 1.0, "2"):
        with pytest.raises(ArgumentError, match=r"topk_log_softmax: k is .*; expected an int from 0 to 3"):
            topk(x, k)  # type: ignore[arg-type]
    for place in (3, -1):
        with pytest.raises((RuntimeError, IndexError), match=r"index .* is out of bounds"):
            ours(x, torch.full((2,), place))
