"""Which rows are combined with which: every row ends up with all before it, once each, whatever the number of rows."""

from __future__ import annotations

import pytest
import torch

from gradwright.fused.sweep import blocks, joined, pairs, put


@pytest.mark.parametrize("reverse", [False, True])
def test_each_row_joins_all_before_it_once(reverse: bool) -> None:
    for size in range(1, 40):
        held = [[k] for k in range(size)]
        calls = 0
        for late, early, _ in pairs(size, reverse):
            calls += 1
            for a, b in zip(range(size)[late], range(size)[early], strict=True):
                held[a] = held[a] + held[b] if reverse else held[b] + held[a]
        want = [list(range(k, size)) if reverse else list(range(k + 1)) for k in range(size)]
        assert held == want
        assert calls <= 2 * max(size.bit_length(), 1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "x", [torch.zeros(3000, 100), torch.zeros(100, 3000).t(), torch.zeros(40, 1000, 9).movedim(1, 0), torch.zeros(7)]
)
def test_blocks_are_the_whole_in_order(x: torch.Tensor, reverse: bool) -> None:
    seen = torch.zeros_like(x)
    for block in blocks(x, reverse):
        before = seen[(slice(block.rows.stop, None) if reverse else slice(0, block.rows.start), *block.columns)]
        assert before.bool().all(), "rows come after those before them"
        assert block.begins == (before.numel() == 0)
        seen[block.index] += 1
    assert (seen == 1).all()


def test_joined_blocks_are_one_run() -> None:
    for x in (torch.randn(3000, 100), torch.randn(100, 3000), torch.randn(5, 900, 80)):
        for dim in range(x.dim()):
            assert torch.equal(joined(torch.maximum, x, dim, False), x.cummax(dim).values)


def test_rows_are_put_into_any_layout() -> None:
    source = torch.randn(6, 4, 3)
    for target in (torch.zeros(6, 4, 3), torch.zeros(4, 3, 6).movedim(-1, 0), torch.zeros(3, 6, 4).movedim(0, -1)):
        assert put(target, source) is target
        assert torch.equal(target, source)
    assert torch.equal(put(torch.zeros(6), source[:, 0, 0]), source[:, 0, 0])
