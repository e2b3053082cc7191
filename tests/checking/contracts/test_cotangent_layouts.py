"""cotangent-layouts: a backward that reads memory without its strides, or refuses it, is found; right ones pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from gradwright.checking.run import check_subject
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.subjects import ComplexSquare, Exp, Gather, InPlaceDouble, Linear, NumpySquare, RoundSTE, SinCos, variant, x


def result(target: Any, *inputs: Any, seed: int = 0) -> ContractResult:
    return gw.check(target, *inputs, only="cotangent-layouts", seed=seed)["cotangent-layouts"]


class Flat(Function):
    """Adds over everything but the first dimension."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t.sin()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (t,) = ctx.saved_tensors
        return (g.reshape(-1) * t.cos().reshape(-1)).view(t.shape)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_right_ones_pass(seed: int) -> None:
    for target, inputs in (
        (Exp, (x(2, 3),)),
        (Exp, (x(2, 3, 2, 4),)),
        (Exp, (torch.tensor(0.3, dtype=torch.float64),)),
        (SinCos, (x(2, 3),)),
        (RoundSTE, (x(4),)),
        (Flat, (x(3, 4),)),
        (Linear, (x(2, 3), x(4, 3), x(4))),
        (Gather, (x(4), torch.tensor([0, 2, 2]))),
        (InPlaceDouble, (x(2, 3),)),
        (ComplexSquare, (torch.randn(2, 3, dtype=torch.complex128),)),
        (torch.nn.Conv2d(2, 3, 2), (torch.randn(1, 2, 4, 4),)),
        (lambda t: torch.linalg.inv(t), (1 / (torch.arange(6)[:, None] + torch.arange(6) + 1.0).double(),)),
        (lambda t: t.softmax(0), (torch.randn(3, 4, dtype=torch.bfloat16),)),
        (lambda t: torch.nn.functional.dropout(t, 0.5), (x(3, 4),)),
        (lambda t: t.max(0).values, (torch.ones(3, 4, dtype=torch.float64),)),
    ):
        found = result(target, *inputs, seed=seed)
        assert found.verdict == "pass", (target, found.message)


def test_numpy_may_refuse_lazy_bits_but_not_strides() -> None:
    found = result(NumpySquare, x(2, 3))
    assert found.verdict == "pass"
    assert "lazily negated" in found.message


def flat_memory(g: Tensor) -> Tensor:
    """Read memory as if it were contiguous, as a kernel that is given a pointer does."""
    return g.as_strided(g.shape, torch.empty(g.shape).stride(), g.storage_offset()).clone()


def reads(layouts: Any) -> Any:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return layouts(g) * ctx.saved_tensors[0]

    return variant(Exp, "Reads", backward=backward)


def padded(g: Tensor) -> Tensor:
    """Trust the last dimension only, as a kernel that is given a row pointer does."""
    if g.ndim < 2 or g.stride(-1) != 1 or 0 in g.stride():
        return g
    return g.as_strided(g.shape, (g.shape[-1], 1), g.storage_offset()).clone()


@pytest.mark.parametrize(
    ("change", "shape", "words"),
    [
        (lambda g: g.view(-1).view(g.shape), (2, 3), "backward raises when grad_output is transposed"),
        (lambda g: g.view(-1).view(g.shape), (4,), None),
        (lambda g: g if g.is_contiguous() else 1 / 0, (4,), "backward raises when grad_output is sliced"),
        (lambda g: g if 0 not in g.stride() else 1 / 0, (4,), "expanded (stride 0), as out.sum() sends it"),
        (flat_memory, (2, 3), "grad_output is transposed"),
        (padded, (2, 3), "a slice of a larger tensor, as torch.cat"),
        (lambda g: g if not g.storage_offset() else g + 1, (3,), "at an offset in its memory"),
        (lambda g: torch.from_numpy(np.lib.stride_tricks.as_strided(g.resolve_neg().numpy())), (3,), None),
        (lambda g: -g if g.is_neg() else g, (3,), "lazily negated"),
        (
            lambda g: 2 * g if g.ndim == 4 and g.is_contiguous(memory_format=torch.channels_last) else g,
            (2, 3, 2, 2),
            "in channels-last memory format",
        ),
    ],
)
def test_broken_ones_are_named(change: Any, shape: tuple[int, ...], words: str | None) -> None:
    found = result(reads(change), x(*shape))
    if words is None:
        assert found.verdict == "pass", found.message
        return
    assert found.verdict == "fail", found.message
    assert words in found.message
    assert "contiguous()" in (found.findings[0].hint or "")
    assert found.findings[0].repro


def test_the_repro_runs() -> None:
    finding = result(reads(flat_memory), x(2, 3)).findings[0]
    assert finding.repro is not None
    assert "relaid" in finding.repro
    assert finding.where is not None
    assert finding.where.input == "x"


def test_lazily_conjugated_memory() -> None:
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        g = g.conj().resolve_conj() if g.is_conj() else g
        return g * 2 * z.conj()

    found = result(variant(ComplexSquare, "Forgets", backward=backward), torch.randn(3, dtype=torch.complex128))
    assert found.verdict == "fail"
    assert "lazily conjugated" in found.message


def test_writing_to_an_expanded_cotangent_belongs_to_another_contract() -> None:
    found = result(variant(Exp, "Writes", backward=lambda ctx, g: g.mul_(ctx.saved_tensors[0])), x(3))
    assert found.verdict == "pass"


def test_the_graph_delivers_what_users_write() -> None:
    """A backward that breaks only for what autograd itself makes: one storage element for many."""
    odd = reads(lambda g: g * 3 if g.untyped_storage().nbytes() < g.numel() * g.element_size() else g)
    assert "stride 0" in result(odd, x(4)).message


class OddStride(Function):
    """Wrong for one stride only, which no program but this one sends."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> tuple[Tensor, int, Tensor]:
        return t * 2, 3, t * 5

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: None, h: Tensor) -> Any:
        if g.stride() == (11, 1):
            g = torch.zeros_like(g)
        return g * 2 + h * 5


def recorded(cotangents: Any) -> ContractResult:
    sample = Sample((x(3, 4),), provenance="recorded", cotangents=cotangents)
    report = check_subject(as_subject(OddStride), [sample], only="cotangent-layouts")
    return report["cotangent-layouts"]


def test_the_layout_that_a_program_sent_is_tried() -> None:
    odd, plain = x(3, 11)[:, :4], x(3, 4)
    assert recorded(None).verdict == "pass"
    assert recorded((plain, None, plain)).verdict == "pass"
    failed = recorded((odd, None, plain))
    assert failed.verdict == "fail"
    assert "laid out as the program sent it (strides (11, 1))" in failed.message
    assert ".as_strided((3, 4), (11, 1)) if t.shape == (3, 4) else t" in (failed.findings[0].repro or "")
    assert recorded((odd, None, None)).verdict == "fail", "an output that got none counts as zero"


def test_recorded_cotangents_that_do_not_fit_are_left_alone() -> None:
    odd = x(3, 11)[:, :4]
    for wrong in ((odd,), (odd.float(), None, odd), (odd[:2], None, odd), ()):
        assert recorded(wrong).verdict == "pass"


def test_a_recorded_cotangent_stays_as_it_is() -> None:
    class Writes(OddStride):
        @staticmethod
        def backward(ctx: Any, g: Tensor, _: None, h: Tensor) -> Any:
            return g.mul_(2).add_(h * 5)

    odd = x(3, 11)[:, :4]
    before = odd.clone()
    sample = Sample((x(3, 4),), provenance="recorded", cotangents=(odd, None, odd))
    check_subject(as_subject(Writes), [sample], only="cotangent-layouts")
    assert torch.equal(odd, before)
