"""Specifications say what a tensor is like, and smaller calls fit together as the large ones did."""

from __future__ import annotations

import math

import pytest
import torch

from gradwright.watching.smaller import MANNERS, shrunk_sizes, smaller
from gradwright.watching.specs import LOOKED_AT, specify, strides_like

INF = math.inf


def test_a_specification_describes_a_tensor() -> None:
    x = torch.randn(300, 400, generator=torch.Generator().manual_seed(0)) * 3 + 1
    spec = specify(x.t().requires_grad_())
    assert (spec.shape, spec.stride, spec.dtype, spec.requires_grad) == ((400, 300), (1, 400), torch.float32, True)
    assert (spec.low, spec.high) == (float(x.min()), float(x.max()))
    assert spec.mean == pytest.approx(1, abs=0.05)
    assert spec.deviation == pytest.approx(3, rel=0.05)
    assert not any((spec.whole, spec.ascending, spec.distinct, spec.distribution))
    assert spec.finite


def test_extremes_are_those_of_all_elements() -> None:
    x = torch.zeros(10 * LOOKED_AT)
    x[-1], x[-2] = 9.0, -7.0
    assert (specify(x).low, specify(x).high) == (-7.0, 9.0)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.arange(20), {"whole", "ascending", "distinct"}),
        (torch.randperm(20, generator=torch.Generator().manual_seed(0)), {"whole", "distinct"}),
        (torch.tensor([0, 3, 3, 9]), {"whole", "ascending"}),
        (torch.tensor([[1.0, 0.0, 1.0]]), {"whole"}),
        (torch.tensor([[0.25, 0.75], [0.75, 0.25]]), {"distribution"}),
        (torch.tensor([True, False, True]), {"whole"}),
        (torch.ones(4), {"whole"}),
        (torch.tensor(3), {"whole"}),
        (torch.empty(0), set()),
        (torch.empty(3, 0), set()),
        (torch.tensor([1 + 1j, 0.5j]), set()),
    ],
)
def test_hints(tensor: torch.Tensor, expected: set[str]) -> None:
    spec = specify(tensor)
    assert {name for name in ("whole", "ascending", "distinct", "distribution") if getattr(spec, name)} == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64, torch.uint8])
def test_every_dtype_is_described_and_drawn(dtype: torch.dtype) -> None:
    spec = specify(torch.arange(12).reshape(3, 4).to(dtype))
    assert spec.high == 11
    (made,) = smaller([spec], 0)
    assert made.dtype == dtype


def test_what_is_not_finite_is_left_out_of_the_range() -> None:
    spec = specify(torch.tensor([0.0, -INF, 2.0, -INF]))
    assert (spec.low, spec.high, spec.hidden) == (0.0, 2.0, 0.5)
    (made,) = smaller([spec], 0)
    assert set(made.tolist()) <= {0.0, 1.0, 2.0, -INF}
    mask = torch.full((600, 600), -INF)
    mask[0] = 0.0
    (made,) = smaller([specify(mask)], 0)
    assert bool((made == -INF).any())
    assert torch.isfinite(made.softmax(-1)).all()
    assert smaller([specify(torch.tensor(-INF))], 0)[0] == -INF
    nothing = specify(torch.full((3,), math.nan))
    assert (nothing.low, nothing.high) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("old", "strides", "new", "expected"),
    [
        ((4, 6), (6, 1), (2, 3), (3, 1)),
        ((4, 6), (1, 4), (2, 3), (1, 2)),
        ((4, 6), (0, 1), (2, 3), (0, 1)),
        ((4, 6), (0, 0), (2, 3), (0, 0)),
        ((4, 6), (10, 1), (2, 3), (4, 1)),
        ((8,), (3,), (2,), (2,)),
        ((2, 3, 4, 5), (60, 1, 15, 3), (2, 2, 2, 2), (8, 1, 4, 2)),
        ((90, 30), (1, 1), (4, 3), (1, 1)),
        ((1, 5), (7, 1), (1, 2), (2, 1)),
        ((), (), (), ()),
        ((0, 3), (3, 1), (0, 3), (3, 1)),
    ],
)
def test_strides_in_the_same_manner(
    old: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert strides_like(new, old, strides) == expected


def test_equal_sizes_stay_equal_and_others_differ() -> None:
    x, w, b = torch.randn(4096, 1024), torch.randn(512, 1024).requires_grad_(), torch.randn(512)
    for manner in MANNERS:
        small = smaller([specify(x), w, specify(b)], 0, manner)
        assert small[0].shape[1] == small[1].shape[1]
        assert small[1].shape[0] == small[2].shape[0]
        assert len({*small[0].shape, *small[1].shape}) == 3
        assert sum(t.numel() for t in small) < 6000
        assert [t.requires_grad for t in small] == [False, True, False]
        torch.nn.functional.linear(*small)


def test_sizes_keep_order_parity_and_products() -> None:
    small = shrunk_sizes({1, 3, 12, 64, 768, 4096, 1001})
    assert small[1] == 1
    assert small[3] == 3
    assert small[768] == small[12] * small[64]
    assert [small[n] for n in sorted(small)] == sorted(set(small.values()))
    assert all(small[n] % 2 == 0 for n in (12, 64, 768, 4096))
    assert max(small.values()) <= 64
    blocks = shrunk_sizes({2, 16, 64, 768, 4096}, "multiples of 16")
    assert blocks == {2: 2, 16: 16, 64: 32, 768: 48, 4096: 64}
    for many in (set(range(1, 200)), {2**k for k in range(20)}, {0}, set()):
        assert all(small <= size for size, small in shrunk_sizes(many).items())


def test_neither_too_few_nor_too_many_elements() -> None:
    assert smaller([torch.randn(10**5)], 0)[0].numel() >= 16
    for shape in ((500, 600), (32, 16, 128, 64), (2, 3, 40, 50, 60)):
        assert 16 <= smaller([torch.randn(shape)], 0)[0].numel() <= 5000


def test_numbers_that_are_sizes_follow_them() -> None:
    leaves = [torch.randn(32000, 64), 32000, 64, 3, 2.5, torch.Size([64, 7]), True, "x"]
    small = smaller(leaves, 0)
    rows, columns = small[0].shape
    assert small[1:] == [rows, columns, 3, 2.5, torch.Size([columns, 7]), True, "x"]
    assert smaller(leaves, 0, "small, numbers kept")[1:3] == [32000, 64]


@pytest.mark.parametrize("specified", [True, False])
def test_indices_stay_in_range(specified: bool) -> None:
    table = torch.randn(30000, 512)
    index = torch.randint(0, 29990, (128,), generator=torch.Generator().manual_seed(1))
    target = index.clone()
    target[::5] = -100
    leaves = [table, index, target]
    small = smaller(list(map(specify, leaves)) if specified else leaves, 0)
    rows = small[0].shape[0]
    assert small[1].min() >= 0
    assert small[1].max() < rows
    assert small[1].unique().numel() > 1
    assert set(small[2][small[2] < 0].tolist()) <= {-100}
    assert small[2].max() < rows


@pytest.mark.parametrize("specified", [True, False])
def test_offsets_end_with_the_size(specified: bool) -> None:
    leaves = [torch.randn(5000, 32), torch.tensor([0, 1000, 1500, 4000, 5000])]
    small = smaller(list(map(specify, leaves)) if specified else leaves, 0)
    offsets = small[1]
    assert bool((offsets.diff() >= 0).all())
    assert offsets[0] == 0
    assert offsets[-1] <= small[0].shape[0]
    assert not specified or offsets[-1] == small[0].shape[0]


def test_hints_hold_for_what_is_drawn() -> None:
    rows = torch.randn(400, 900, generator=torch.Generator().manual_seed(2)).softmax(-1)
    order = torch.stack([torch.randperm(900) for _ in range(400)])
    rising = torch.rand(900).sort().values
    positive = torch.rand(400, 900) + 0.5
    p, q, r, s = smaller([specify(t) for t in (rows, order, rising, positive)], 0)
    torch.testing.assert_close(p.sum(-1), torch.ones(p.shape[0]))
    assert all(row.unique().numel() == row.numel() for row in q)
    assert bool((r.diff() >= 0).all())
    assert s.min() >= 0.5


def test_layouts_are_those_of_the_original() -> None:
    made = smaller(
        [
            specify(torch.randn(1000, 1).expand(1000, 500)),
            torch.randn(500, 1000).t(),
            torch.randn(1000).unfold(0, 20, 1),
        ],
        0,
    )
    assert made[0].stride()[1] == 0
    assert made[1].stride()[0] == 1
    assert torch.isfinite(made[2]).all()


def test_a_corner_of_real_values_is_taken() -> None:
    lower = torch.randn(200, 200, generator=torch.Generator().manual_seed(3)).tril()
    lower.requires_grad_()
    (small,) = smaller([lower], 0)
    assert torch.equal(small, lower[: small.shape[0], : small.shape[1]])
    assert small.requires_grad
    assert small.is_leaf
    shared = smaller([lower, lower], 0)
    assert shared[0] is shared[1]


def test_the_same_seed_draws_the_same_and_leaves_the_generator_alone() -> None:
    spec = specify(torch.randn(100, 100))
    before = torch.get_rng_state()
    assert torch.equal(smaller([spec], 5)[0], smaller([spec], 5)[0])
    assert not torch.equal(smaller([spec], 5)[0], smaller([spec], 6)[0])
    assert torch.equal(torch.get_rng_state(), before)
