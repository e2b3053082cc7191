from __future__ import annotations

import math

import torch
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.case import Case
from gradwright.checking.samples import Sample
from gradwright.checking.saved import Memory, saved_bytes
from gradwright.checking.subject import as_subject
from tests.subjects import Exp, Scale

DOUBLE = torch.float64


class Pairwise(Function):
    """Keeps a matrix for a vector."""

    @staticmethod
    def forward(ctx, x):
        apart = x[:, None] - x[None, :]
        ctx.apart = apart  # not by save_for_backward
        ctx.save_for_backward(apart, x)
        return apart.square().sum(1)

    @staticmethod
    def backward(ctx, g):
        apart, _ = ctx.saved_tensors
        return 2 * (apart * (g[:, None] + g[None, :])).sum(1)


def case_of(target, *inputs):
    return Case(as_subject(target), Sample(inputs))


def test_each_piece_of_memory_counts_once_wherever_it_is_kept():
    assert saved_bytes(case_of(Pairwise, torch.randn(5, dtype=DOUBLE))) == 8 * (25 + 5)
    assert saved_bytes(case_of(Exp, torch.randn(5, dtype=DOUBLE))) == 8 * 5
    assert saved_bytes(case_of(Scale, torch.randn(5, dtype=DOUBLE))) == 0


def test_the_bytes_grow_as_they_do():
    report = gw.check(Pairwise, torch.randn(5, dtype=DOUBLE), only="shapes")
    assert report
    (drawn,) = report["shapes"].pictures
    assert drawn.logarithmic
    known = {int(n): y for n, y in zip(drawn.x, drawn.lines[0].y) if not math.isnan(y)}
    assert len(known) > 2
    assert known == {n: 8.0 * (n * n + n) for n in known}


def test_nothing_is_drawn_where_nothing_is_kept_or_too_little_known():
    assert gw.check(Scale, torch.randn(5, dtype=DOUBLE), only="shapes")["shapes"].pictures == ()
    memory = Memory(case_of(Exp, torch.randn(5, dtype=DOUBLE)))
    memory.add(5, 33, case_of(Exp, torch.randn(33, dtype=DOUBLE)))
    assert memory.drawn() == ()
    memory.add(5, 0, case_of(Exp, torch.randn(2, dtype=DOUBLE)))
    assert memory.drawn() == ()
    memory.add(5, 129, case_of(Exp, torch.randn(129, dtype=DOUBLE)))
    assert memory.drawn()[0].x == (5.0, 33.0, 129.0)
