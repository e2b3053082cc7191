"""A call becomes the samples that it is checked on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwright.checking.run import check_subject
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from gradwright.cli.recorded import MOST_CALLS
from gradwright.errors import ForwardError, SampleError
from gradwright.watching.calls import Call, Elsewhere, Unkept
from gradwright.watching.capture import MIB, Budget, capture_call
from gradwright.watching.samples import HUGE, LARGE, as_samples
from gradwright.watching.smaller import smaller


class Swish(torch.autograd.Function):
    """Right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))


class SlightlyOff(Swish):
    """Wrong by some thousandths."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + 1.01 * x * s * (1 - s))


class Blocks(Swish):
    """Works in blocks of 16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.shape[-1] % 16:
            raise ValueError("blocks of 16, please")
        return Swish.forward(ctx, x)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def recorded(*args: Any, budget: Budget | None = None) -> list[Sample]:
    """Return the samples of a call in which each tensor is differentiated."""
    args = tuple(a.requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
    return as_samples(capture_call(args, {}, budget or Budget()))


def verdict(function: Any, samples: list[Sample], contract: str = "matches-differences") -> str:
    report = check_subject(as_subject(function), samples, only=(contract,))
    return report.results[0].verdict


def test_a_call_is_a_sample() -> None:
    x = normal(3).requires_grad_()
    (sample,) = as_samples(Call((x, 2), {"k": "a"}, (x, None), torch.get_rng_state()))
    assert sample.args[0] is x
    assert (sample.args[1], sample.kwargs, sample.provenance, sample.name) == (2, {"k": "a"}, "recorded", None)
    assert sample.cotangents == (x, None)
    assert sample.random_state is not None
    assert sample.doubt is None


def test_single_precision_is_judged_sharply() -> None:
    assert verdict(Swish, recorded(normal(4, 8))) == "pass"
    assert verdict(SlightlyOff, recorded(normal(4, 8))) == "fail"
    report = check_subject(as_subject(Swish), recorded(normal(4, 8)), only=("matches-differences",))
    assert "float64 twin" in report.results[0].message
    assert report.results[0].sensitivity < 1e-8


def test_a_large_call_is_checked_smaller_and_once_whole() -> None:
    small, whole = recorded(normal(700, 800))
    assert small.doubt is not None
    assert whole.doubt is None
    assert small.elements < 5000
    assert small.name is not None
    assert small.name.startswith("made smaller: (700, 800) as (")
    assert whole.elements == 560_000
    assert whole.contracts == ("matches-differences",)
    assert verdict(Swish, [small, whole]) == "pass"
    assert verdict(SlightlyOff, [small, whole]) == "fail"
    assert verdict(SlightlyOff, [small]) == "suspect", "its values were made up"


def test_on_a_large_call_most_contracts_are_left_to_the_smaller_one() -> None:
    small, whole = recorded(normal(700, 800))
    assert verdict(Swish, [whole], "deterministic") == "skipped"
    assert verdict(Swish, [small, whole], "deterministic") == "pass"


def test_a_specification_is_drawn() -> None:
    samples = recorded(normal(64, 64).requires_grad_(), budget=Budget(sample=0))
    (sample,) = samples
    assert sample.doubt is not None
    assert sample.args[0].requires_grad
    assert verdict(Swish, samples) == "pass"


def test_sizes_that_forward_refuses_are_chosen_otherwise() -> None:
    samples = recorded(normal(480, 640, 3), budget=Budget(sample=0))
    assert [bool(alternative.doubt) for alternative in samples[0].alternatives] == [True, True]
    assert verdict(Blocks, [_uneven()]) == "pass"
    with pytest.raises(ForwardError, match="blocks of 16"):
        verdict(Blocks, [replace(_uneven(), alternatives=())])


def _uneven() -> Sample:
    good = Sample((normal(2, 16),), provenance="recorded")
    return Sample((normal(2, 6),), provenance="recorded", alternatives=(good,))


def test_a_recorded_call_that_does_not_run_is_left_out() -> None:
    good, bad = Sample((normal(2, 16),), provenance="recorded"), Sample((normal(2, 6),), provenance="recorded")
    report = check_subject(as_subject(Blocks), [bad, good], only=("matches-differences",))
    assert report.results[0].verdict == "pass"
    assert any("left out" in note and "blocks of 16" in note for note in report.notes)
    with pytest.raises(ForwardError, match="blocks of 16"):
        check_subject(as_subject(Blocks), [bad], only=("matches-differences",))
    with pytest.raises(ForwardError, match="blocks of 16"):
        check_subject(as_subject(Blocks), [Sample((normal(2, 6),)), good], only=("matches-differences",))


def test_what_was_not_kept_is_named() -> None:
    with pytest.raises(SampleError, match="argument 2 could not be kept: FakeTensor, it has no values"):
        as_samples(Call((1, [Unkept("FakeTensor", "it has no values")]), {}))
    with pytest.raises(SampleError, match="`k` could not be kept"):
        as_samples(Call((), {"k": Unkept("A", "b")}))
    (sample,) = as_samples(Call((normal(2),), {}, (Unkept("A", "b"),)))
    assert sample.cotangents is None


def test_a_call_that_was_not_differentiated_is_no_proof() -> None:
    class Shift(torch.autograd.Function):
        """Treats the second input as a constant, which the program does as well."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, mean: Tensor) -> Tensor:
            return x * 2 - mean

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g * 2, None

    x, mean = normal(3), normal(3) + 1
    assert verdict(Shift, as_samples(Call((x, mean), {}))) == "suspect"
    assert verdict(Shift, as_samples(Call((x.requires_grad_(), mean), {}))) == "pass"


def test_the_device_is_told() -> None:
    (sample,) = as_samples(Call((Elsewhere(normal(2), "cuda:0"),), {}))
    assert isinstance(sample.args[0], Tensor)
    assert sample.name == "recorded on cuda:0, checked on the CPU"


def test_cotangents_fit_the_smaller_outputs() -> None:
    x = normal(700, 800)
    small, _ = as_samples(Call((x,), {}, (torch.ones(()).expand(700, 800),)))
    assert small.cotangents is not None
    (g,) = small.cotangents
    assert g.shape == small.args[0].shape
    assert g.stride() == (0, 0)


def test_a_size_stays_a_size() -> None:
    class Filled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, size: torch.Size) -> Tensor:
            ctx.count = size.numel()
            return x.expand(size).clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g.sum(), None

    assert verdict(Filled, recorded(torch.tensor(2.0), torch.Size([2, 3]))) == "pass"


def test_the_page_says_what_is_done() -> None:
    page = " ".join((Path(__file__).resolve().parents[2] / "docs" / "samples.md").read_text(encoding="utf-8").split())
    assert f"of at most {LARGE:,} elements" in page
    assert f"up to {HUGE:,} elements" in page
    assert f"more than {Budget().sample // MIB} MiB" in page
    small = smaller([torch.empty(8192, 4096)], 0)[0]
    assert f"made smaller: (8192, 4096) as {tuple(small.shape)}" in page
    assert MOST_CALLS == 4
    assert "the four newest calls" in page
