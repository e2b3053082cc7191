"""Index writes: values are PyTorch's, and the gradient goes to the write that won, in every mode and transform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import ArgumentError
from gradwright.stable import writes

Call = Callable[..., Tensor]
ROWS, GRID = torch.tensor([2, 0, 2]), torch.tensor([[2, 0, 2], [1, 1, 0]])

KINDS: dict[str, tuple[Call, Call, tuple[int, ...]]] = {
    "scatter": (lambda x, s: gw.stable.scatter(x, 1, GRID, s), lambda x, s: torch.scatter(x, 1, GRID, s), (2, 3)),
    "index_copy": (
        lambda x, s: gw.stable.index_copy(x, -1, ROWS, s),
        lambda x, s: torch.index_copy(x, -1, ROWS, s),
        (2, 3),
    ),
    "index_put": (
        lambda x, s: gw.stable.index_put(x, [GRID - 2, GRID.flip(1)], s),
        lambda x, s: torch.index_put(x, [GRID - 2, GRID.flip(1)], s),
        (2, 3),
    ),
    "put": (lambda x, s: gw.stable.put(x, GRID - 3, s), lambda x, s: torch.put(x, GRID - 3, s), (2, 3)),
}
EACH = pytest.mark.parametrize(("ours", "plain", "shape"), list(KINDS.values()), ids=KINDS)


def numbers(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def leaves(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return -numbers(2, 3).requires_grad_(), (10 * numbers(*shape)).requires_grad_()


@EACH
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch.put has no batching rule
def test_values_are_those_of_torch_and_gradients_those_of_forward_mode(
    ours: Call, plain: Call, shape: tuple[int, ...]
) -> None:
    x, s = (leaf.detach().requires_grad_() for leaf in leaves(shape))
    assert torch.equal(ours(x, s), plain(x, s))
    g = numbers(2, 3)
    got = torch.autograd.grad(ours(x, s), (x, s), g)
    jacobians = torch.func.jacfwd(lambda x, s: (plain(x, s) * g).sum(), (0, 1))(x.detach(), s.detach())
    for a, b in zip(got, jacobians):
        assert torch.equal(a, b)
    (theirs,) = torch.autograd.grad(plain(x, s), s, g)
    assert not torch.equal(theirs, got[1]), "PyTorch gets it right now: say so in the docs"


@EACH
def test_gradients_agree_with_differences_in_every_mode(ours: Call, plain: Call, shape: tuple[int, ...]) -> None:
    x, s = (leaf.detach().requires_grad_() for leaf in leaves(shape))
    assert torch.autograd.gradcheck(ours, (x, s), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, s: ours(x, s) ** 3, (x, s), check_batched_grad=True)
    for constant in (0, 1):
        given = [x, s]
        given[constant] = given[constant].detach()
        assert torch.autograd.gradcheck(ours, given, check_forward_ad=True)
    z = torch.complex(x, x.flip(0)).detach().requires_grad_()
    assert torch.autograd.gradcheck(ours, (z, torch.complex(s, -s).detach().requires_grad_()))


@EACH
def test_many_writes_at_once_are_those_of_a_loop(ours: Call, plain: Call, shape: tuple[int, ...]) -> None:
    x, s = (torch.stack([leaf.detach(), leaf.detach() * 2]) for leaf in leaves(shape))

    def pulled(x: Tensor, s: Tensor) -> Any:
        out, pull = torch.func.vjp(ours, x, s)
        return out, *pull(numbers(2, 3))

    for in_dims in ((0, 0), (None, 0), (0, None)):
        given = (x if in_dims[0] == 0 else x[0], s if in_dims[1] == 0 else s[0])
        got = torch.func.vmap(pulled, in_dims=in_dims)(*given)
        rows = [pulled(*(v[i] if d == 0 else v for v, d in zip(given, in_dims))) for i in range(2)]
        for batch, one, two in zip(got, *rows):
            assert torch.equal(batch, torch.stack([one, two]))


def test_each_example_has_indices_of_its_own() -> None:
    index = torch.tensor([[0, 0, 1], [2, 1, 1]])
    s = numbers(2, 3)
    for function in (
        lambda index, s: gw.stable.scatter(torch.zeros(3, dtype=s.dtype), 0, index, s),
        lambda index, s: gw.stable.index_copy(torch.zeros(3, dtype=s.dtype), 0, index, s),
        lambda index, s: gw.stable.index_put(torch.zeros(3, dtype=s.dtype), (index,), s),
        lambda index, s: gw.stable.put(torch.zeros(3, dtype=s.dtype), index, s),
        lambda index, s: gw.stable.put(torch.zeros(3, dtype=s.dtype), index, s, accumulate=True) / s.sum(),
    ):
        for transform in (torch.func.jacrev, torch.func.jacfwd):
            slope = transform(function, argnums=1)
            got = torch.func.vmap(slope)(index, s)
            torch.testing.assert_close(got, torch.stack([slope(index[0], s[0]), slope(index[1], s[1])]))
    assert got.shape == (2, 3, 3)


@EACH
def test_where_order_is_left_to_a_device_values_follow_the_winner(
    ours: Call, plain: Call, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Say that this device keeps no order: each write carries the value of its winner, and nothing changes here."""
    x, s = (leaf.detach().requires_grad_() for leaf in leaves(shape))
    want = [ours(x, s), *torch.autograd.grad(ours(x, s), (x, s), numbers(2, 3))]
    monkeypatch.setattr(writes.torch_compat, "is_recording", lambda: True)
    got = [ours(x, s), *torch.autograd.grad(ours(x, s), (x, s), numbers(2, 3))]
    assert all(map(torch.equal, got, want))
    assert torch.autograd.gradcheck(ours, (x, s), check_forward_ad=True)


def test_a_device_may_let_any_write_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the number of the first write stand where numbers were written: value and gradient are those of the first."""
    monkeypatch.setattr(writes.torch_compat, "is_recording", lambda: True)
    scatter = Tensor.scatter

    def first_wins(self: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
        if isinstance(src, Tensor) and not src.is_floating_point():
            return scatter(self, dim, index.flip(dim), src.flip(dim))
        return scatter(self, dim, index, src)

    monkeypatch.setattr(Tensor, "scatter", first_wins)
    s = numbers(3).requires_grad_()
    for out in (
        gw.stable.scatter(torch.zeros(2).double(), 0, torch.tensor([1, 1, 1]), s),
        gw.stable.index_copy(torch.zeros(2).double(), 0, torch.tensor([1, 1, 1]), s),
    ):
        assert out.tolist() == [0.0, 1.0]
        assert torch.autograd.grad(out.sum(), s)[0].tolist() == [1.0, 0.0, 0.0]


def test_the_last_write_wins_on_a_cpu_with_threads() -> None:
    """``torch.index_copy`` and ``torch.put`` share the index among threads, so that any write may win there."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(0)
        index = torch.randint(0, 1000, (200_000,))
        s = torch.arange(200_000.0, requires_grad=True)
        last = torch.zeros(1000).scatter_reduce(0, index, s.detach(), "amax")
        wide, narrow = torch.arange(600_000.0).reshape(2000, 300).requires_grad_(), index[:2000] % 10
        last_rows = wide.detach()[[int((narrow == row).nonzero().max()) for row in range(10)]]
        calls = [
            (lambda: gw.stable.scatter(torch.zeros(1000), 0, index, s), s, last),
            (lambda: gw.stable.index_copy(torch.zeros(1000), 0, index, s), s, last),
            (lambda: gw.stable.index_put(torch.zeros(1000), (index,), s), s, last),
            (lambda: gw.stable.put(torch.zeros(1000), index, s), s, last),
            (lambda: gw.stable.index_copy(torch.zeros(10, 300), 0, narrow, wide), wide, last_rows),
            (lambda: gw.stable.index_put(torch.zeros(10, 300), (narrow,), wide), wide, last_rows),
        ]
        for call, leaf, want in calls:
            for _ in range(5):
                out = call()
                assert torch.equal(out, want)
                (slope,) = torch.autograd.grad(out.sum(), leaf)
                assert torch.equal(leaf.detach()[slope != 0], want.flatten().sort().values)
    finally:
        torch.set_num_threads(threads)


def test_a_source_that_is_longer_than_the_index() -> None:
    """PyTorch's own backward raises here."""
    s = numbers(3, 3).requires_grad_()
    out = gw.stable.scatter(torch.zeros(2, 3).double(), 0, torch.tensor([[0, 1], [0, 1]]), s)
    assert out.tolist() == [[4.0, 0.0, 0.0], [0.0, 5.0, 0.0]]
    assert torch.autograd.grad(out.sum(), s)[0].tolist() == [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


def test_one_number_at_many_places_counts_each_place_once() -> None:
    value = torch.tensor(2.0, requires_grad=True)
    for out in (
        gw.stable.index_put(torch.zeros(3), (torch.tensor([1, 1, 0]),), value),
        gw.stable.scatter(torch.zeros(3), 0, torch.tensor([1, 1, 0]), value),
    ):
        assert out.tolist() == [2.0, 2.0, 0.0]
        assert torch.autograd.grad(out.sum(), value)[0].item() == 2
    x = torch.ones(3, requires_grad=True)
    out = gw.stable.scatter(x, 0, torch.tensor([1, 1]), 5.0)
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [1.0, 0.0, 1.0]


def test_accumulated_writes_are_those_of_torch() -> None:
    x, s = leaves((2, 3))
    x, s = x.detach().requires_grad_(), s.detach().requires_grad_()
    index = (GRID - 2, GRID)
    for ours, plain in (
        (gw.stable.put(x, GRID - 3, s, accumulate=True), torch.put(x, GRID - 3, s, accumulate=True)),
        (gw.stable.index_put(x, index, s, accumulate=True), torch.index_put(x, index, s, accumulate=True)),
    ):
        assert torch.equal(ours, plain)
        for a, b in zip(*(torch.autograd.grad(out, (x, s), numbers(2, 3)) for out in (ours, plain))):
            assert torch.equal(a, b)


def test_small_shapes_integers_and_nan() -> None:
    point, number = torch.tensor(1.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    zero, none = torch.tensor(0), torch.zeros(0, dtype=torch.int64)
    for out in (
        gw.stable.scatter(point, 0, zero, number),
        gw.stable.index_copy(point, 0, zero, number),
        gw.stable.put(point, zero, number),
        gw.stable.index_put(point, (torch.tensor(True),), number),
    ):
        assert (out.shape, out.item()) == ((), 2.0)
        assert [g.item() for g in torch.autograd.grad(out, (point, number))] == [0.0, 1.0]
    x, empty = torch.ones(3, requires_grad=True), torch.ones(0, requires_grad=True)
    for out in (
        gw.stable.scatter(x, 0, none, empty),
        gw.stable.index_copy(x, 0, none, empty),
        gw.stable.put(x, none, empty),
        gw.stable.index_put(x, (none,), empty),
        gw.stable.index_put(x, (torch.zeros(3, dtype=torch.bool),), empty),
    ):
        assert torch.autograd.grad(out.sum(), x)[0].tolist() == [1.0, 1.0, 1.0]
    whole = torch.tensor([1, 2, 3])
    assert gw.stable.scatter(whole, 0, torch.tensor([0, 0]), torch.tensor([7, 8])).tolist() == [8, 2, 3]
    assert gw.stable.index_copy(whole, 0, torch.tensor([0, 0], dtype=torch.int32), whole[1:]).tolist() == [3, 2, 3]
    s = torch.tensor([1.0, 2.0], requires_grad=True)
    out = gw.stable.scatter(x, 0, torch.tensor([0, 0]), s)
    (slope,) = torch.autograd.grad(out, s, torch.tensor([1.0, torch.nan, torch.inf]))
    assert slope.tolist() == [0.0, 1.0]


def test_booleans_beside_integers() -> None:
    x, s = torch.zeros(2, 3, requires_grad=True), torch.tensor([1.0, 2.0], requires_grad=True)
    index = (torch.tensor([0, 0]), torch.tensor([False, True, True]))
    out = gw.stable.index_put(x, index, s)
    assert torch.equal(out, torch.index_put(x, index, s))
    assert torch.autograd.grad(out.sum(), (x, s))[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: gw.stable.scatter(x, 0, ROWS.float(), x), "scatter: index is a tensor of torch.float32; expected"),
        (lambda x: gw.stable.scatter(x, 0, [0], 1.0), "scatter: index is a list; expected a tensor of torch.int64"),
        (
            lambda x: gw.stable.scatter(x, 0, ROWS, x.double()),
            "scatter: src is of torch.float64 and input of torch.flo",
        ),
        (lambda x: gw.stable.scatter(x, 0, GRID, x), "scatter: input has 1 dimensions, index 2 and src 1"),
        (lambda x: gw.stable.scatter(x, 0, ROWS, x[:2]), r"scatter: src has the shape \(2,\), which is smaller than"),
        (lambda x: gw.stable.index_copy(x, 0, ROWS, 1.0), "index_copy: source is a float and input of torch.float32"),
        (lambda x: gw.stable.index_put(x, (ROWS.half(),), x), r"index_put: indices\[0\] is a tensor of torch.float16"),
        (lambda x: gw.stable.put(x, ROWS, x[:1]), "put: there are 3 indices and 1 numbers; expected as many"),
    ],
)
def test_what_does_not_fit_is_refused(call: Call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(torch.ones(3))


def test_places_that_do_not_exist_raise() -> None:
    x, far = torch.ones(3), torch.tensor([3])
    for call in (
        lambda: gw.stable.scatter(x, 0, far, x[:1]),
        lambda: gw.stable.index_copy(x, 0, far, x[:1]),
        lambda: gw.stable.index_put(x, (far,), x[:1]),
        lambda: gw.stable.put(x, far, x[:1]),
        lambda: gw.stable.put(x, -1 - far, x[:1]),
    ):
        with pytest.raises((RuntimeError, IndexError), match=r"out of (bounds|range)"):
            call()
