"""shapes: what is right on the sample and wrong beside it is found; what is right everywhere is left alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradwright as gw
from gradwright.checking.report import ContractResult
from gradwright.errors import ConvergenceError, SampleError, SingularMatrixError, UndefinedGradientError
from tests.subjects import (
    ClassMethods,
    ComplexSquare,
    Exp,
    Gather,
    InPlaceDouble,
    Linear,
    NewStyleScale,
    NumpySquare,
    RoundSTE,
    SinCos,
    by_hand,
    variant,
    x,
)

POSITIVE = torch.tensor([0.4, 1.3, 2.2], dtype=torch.float64)


def result(target: Any, *inputs: Any, seed: int = 0, level: Any = "standard", **options: Any) -> ContractResult:
    return gw.check(target, *inputs, only="shapes", seed=seed, level=level, **options)["shapes"]


class Sin(Function):
    """The base of most broken ones: ``rule(t)`` is the derivative that backward believes in."""

    rule = staticmethod(torch.cos)

    @classmethod
    def forward(cls, ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t.sin()

    @classmethod
    def backward(cls, ctx: Any, g: Tensor) -> Any:
        (t,) = ctx.saved_tensors
        return g * cls.rule(t)


def believing(rule: Any) -> Any:
    return type("Believing", (Sin,), {"rule": staticmethod(rule)})


class Norm(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        out = t.square().sum().sqrt()
        ctx.save_for_backward(t, out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        t, out = ctx.saved_tensors
        return g * t / out


class SafeNorm(Norm):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        t, out = ctx.saved_tensors
        return torch.where(out > 0, g * t / torch.where(out > 0, out, 1.0), 0.0)


class Sort(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        values, order = t.sort(dim=0)
        ctx.save_for_backward(order)
        return values

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter_(0, order, g)


class Median(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        value, index = t.median(dim=0)
        ctx.save_for_backward(index)
        ctx.n = len(t)
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.n).index_put((index,), g)


class Relu(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return t.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * (ctx.saved_tensors[0] > 0)


class Put(Function):
    """Writes, so that an index that occurs twice has no defined meaning."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        return source.new_zeros(8).index_copy(0, index, source)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g[ctx.saved_tensors[0]], None


class Cholesky(Function):
    """Valid for symmetric positive-definite matrices only; reads the lower triangle."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        factor = torch.linalg.cholesky(a)
        ctx.save_for_backward(factor)
        return factor.diagonal().log().sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (factor,) = ctx.saved_tensors
        inverse = torch.cholesky_inverse(factor)
        return g * (inverse.tril(-1) + 0.5 * torch.diag(inverse.diagonal()))


class Logit(Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor) -> Tensor:
        ctx.save_for_backward(p)
        return p.log() - (1 - p).log()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (p,) = ctx.saved_tensors
        return g / (p * (1 - p))


def spd(n: int) -> Tensor:
    a = x(n, n)
    return a @ a.mT + torch.eye(n, dtype=torch.float64)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_right_ones_pass(seed: int) -> None:
    for target, inputs in (
        (Exp, (x(3),)),
        (SinCos, (x(2, 3),)),
        (ClassMethods, (x(3, 4),)),
        (Linear, (x(2, 3), x(4, 3), x(4))),
        (Linear, (x(3, 3), x(3, 3))),
        (Gather, (x(4), torch.tensor([0, 3, 2]))),
        (Put, (x(3), torch.tensor([5, 0, 7]))),
        (InPlaceDouble, (x(2, 3),)),
        (NewStyleScale, (x(3), 2)),
        (ComplexSquare, (torch.randn(3, dtype=torch.complex128),)),
        (NumpySquare, (x(3),)),
        (SafeNorm, (x(3),)),
        (Sort, (x(5),)),
        (Median, (x(5),)),
        (Relu, (x(5),)),
        (Cholesky, (spd(3),)),
        (Logit, (torch.tensor([0.2, 0.6, 0.9], dtype=torch.float64),)),
        (Sin, (torch.randn(3),)),
        (Sin, (torch.randn(3, dtype=torch.bfloat16),)),
        (by_hand(torch.nn.functional.cross_entropy), (x(3, 5), torch.tensor([1, 0, 4]))),
        (by_hand(torch.linalg.inv), (x(3, 3),)),
        (by_hand(lambda t: torch.nn.functional.dropout(t, 0.5)), (x(6),)),
        (by_hand(lambda t: t.median()), (x(5),)),
        (by_hand(lambda t: t.std()), (x(5),)),
        (by_hand(lambda t: t.max(0).values), (x(5, 2),)),
        (by_hand(torch.hypot), (x(3), x(3))),
        (by_hand(torch.atan2), (x(3), x(3))),
    ):
        found = result(target, *inputs, seed=seed)
        assert found.verdict == "pass", (target, found.message)
        assert "variants of the inputs" in found.message


class CrossEntropy(Function):
    """Saturates: far from the border the loss is 0 to the last bit, and its derivative exp(-40)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(logits, target)
        return torch.nn.functional.cross_entropy(logits, target)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        logits, target = ctx.saved_tensors
        hot = torch.nn.functional.one_hot(target, logits.shape[1])
        return g * (logits.softmax(1) - hot) / len(logits), None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_saturated_function_is_not_accused(seed: int) -> None:
    logits = torch.tensor([[5.0, -0.3], [-0.4, 6.0]], dtype=torch.float64)
    found = result(CrossEntropy, logits, torch.tensor([0, 1]), seed=seed)
    assert found.verdict == "pass", found.message
    assert result(by_hand(torch.tanh), x(3) * 4, seed=seed).verdict == "pass"


def test_a_captured_tensor_of_fixed_size_is_not_broadcast() -> None:
    weights = x(12)

    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            return t * weights

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * weights

    found = result(Weighted, x(12))
    assert found.verdict == "pass", found.message


def test_sizes_that_lengths_restate_are_not_changed() -> None:
    class Segments(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor, lengths: Tensor) -> Tensor:
            assert int(lengths.sum()) == len(t), "native code would read beyond the end"
            ctx.lengths = lengths
            return torch.stack([part.sum() for part in t.split(lengths.tolist())])

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.repeat_interleave(ctx.lengths), None

    found = result(Segments, x(5), torch.tensor([2, 3]))
    assert found.verdict == "pass", found.message
    assert "other than 5 (`lengths` restates it)" in found.message


def test_a_staircase_of_many_outputs_is_not_accused() -> None:
    class Quotient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor, u: Tensor) -> Tensor:
            return torch.div(t, u, rounding_mode="trunc")

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.sum(1, keepdim=True) * 0, g.sum(0, keepdim=True) * 0

    for seed in range(3):
        found = result(Quotient, 5 * x(10, 1, 5), 1 + x(1, 10, 5).abs(), seed=seed)
        assert found.verdict == "pass", found.message


def test_what_forward_rejects_is_counted() -> None:
    assert "rejected by forward, or not finite there" in result(by_hand(torch.log), POSITIVE).message


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda t: torch.where(t < 0, 2 * t.cos(), t.cos()), "alternating signs"),
        (lambda t: torch.where(t > 4, t.cos() + 1e-3, t.cos()), "8 times as large"),
        (lambda t: torch.where(t == 0, torch.nan, t.cos()), "a zero in `t`: the gradient of `t` is NaN"),
        (lambda t: torch.where(t == 0, 0.0, t.cos()), "wrong at this very point"),
        (lambda t: t.cos() * (torch.arange(t.numel()).reshape(t.shape) < 128), "a dimension of size 129"),
        (lambda t: t.cos() * (torch.arange(t.numel()).reshape(t.shape) < 64), "a dimension of size 129"),
        (lambda t: t.cos() * (torch.arange(t.numel()).reshape(t.shape) < 1024), "a dimension of size 1025"),
        (lambda t: t.cos() + 0 / t.numel(), "an empty input"),
        (lambda t: t.cos() if t.numel() > 1 else 2 * t.cos(), "a dimension of size 1 "),
        (lambda t: t.cos().squeeze() + t.cos().new_zeros(len(t.cos().squeeze())), "a dimension of size 1 "),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_wrong_beside_the_sample(rule: Any, words: str, seed: int) -> None:
    found = result(believing(rule), POSITIVE, seed=seed)
    assert found.verdict == "fail", found.message
    assert any(words in finding.message for finding in found.findings), [f.message for f in found.findings]
    assert all(finding.repro and "domain=" in (finding.hint or "") for finding in found.findings)


def test_the_element_is_named() -> None:
    half = believing(lambda t: t.cos() * (torch.arange(t.numel()) != 130))
    finding = result(half, POSITIVE).findings[0]
    assert finding.where is not None
    assert finding.where.index == (130,)
    assert finding.analytic == 0.0


def test_batch_of_one() -> None:
    class Rows(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return t.square().sum(0)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (t,) = ctx.saved_tensors
            squeezed = t.squeeze()
            return (2 * g * squeezed.flip(-1) if squeezed.ndim < t.ndim else 2 * g * t).reshape(t.shape)

    found = result(Rows, x(3, 4))
    assert found.verdict == "fail"
    assert "a dimension of size 1 (t: float64 (1, 4))" in found.message


def test_nan_at_zero() -> None:
    found = result(Norm, POSITIVE)
    assert found.verdict == "fail"
    assert "`t` all zero: the gradient of `t` is NaN, although the function is finite" in found.message


def without_accumulation(ctx: Any, g: Tensor) -> Any:
    (index,) = ctx.saved_tensors
    return g.new_zeros(ctx.n).index_put((index,), g), None


def test_index_that_occurs_twice() -> None:
    broken = variant(Gather, "Overwrites", backward=without_accumulation)
    found = result(broken, x(5), torch.tensor([0, 4, 2]))
    assert found.verdict == "fail"
    assert "an index twice in `index`" in found.message
    assert "added up" in (found.findings[0].hint or "")


def test_a_permutation_may_be_meant_to_be_one() -> None:
    broken = variant(Gather, "Permutes", backward=without_accumulation)
    found = result(broken, x(3), torch.tensor([0, 2, 1]))
    assert found.verdict == "suspect"
    assert bool(gw.check(broken, x(3), torch.tensor([0, 2, 1]), only="shapes", seed=0))


def test_a_constant_of_another_size_may_have_lost_its_meaning() -> None:
    class Smooth(Function):
        """Is its own transpose, because the filters that it is used with are symmetric."""

        @staticmethod
        def forward(ctx: Any, t: Tensor, kernel: Tensor) -> Tensor:
            ctx.save_for_backward(kernel)
            return torch.nn.functional.conv1d(t, kernel, padding="same")

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return torch.nn.functional.conv1d(g, ctx.saved_tensors[0], padding="same"), None

    kernel = torch.tensor([[[0.5, 2.0, 0.5]]], dtype=torch.float64)
    found = result(Smooth, x(1, 1, 8).requires_grad_(), kernel)
    assert found.verdict == "suspect"
    assert "kernel" in found.message


def test_the_shape_of_a_gradient_is_audited_too() -> None:
    rows = believing(lambda t: t.cos() if t.numel() else torch.zeros(1, *t.shape, dtype=t.dtype))
    found = result(rows, POSITIVE)
    assert found.verdict == "fail"
    assert "an empty input" in found.message


def test_without_dimensions_raising_is_a_suspicion() -> None:
    class Sum(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.shape = t.shape
            return t.sum(-1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g.unsqueeze(-1).expand(ctx.shape)

    found = result(Sum, x(3))
    assert found.verdict == "pass"
    assert "without dimensions (t: float64 ()) backward raises RuntimeError" in found.message


def test_derivatives_of_pytorch_itself_are_not_accused() -> None:
    found = result(lambda t: t.square().sum().sqrt(), x(3))
    assert found.verdict == "skipped"
    assert "no hand-written gradient" in found.message


def test_a_declared_domain_is_never_left() -> None:
    seen: list[Tensor] = []

    class Watched(Sin):
        @classmethod
        def forward(cls, ctx: Any, t: Tensor) -> Tensor:
            seen.append(t.detach().clone())
            return super().forward(ctx, t)

    assert result(Watched, POSITIVE, domain=(0.0, 3.0)).verdict == "pass"
    assert all(bool(((t >= 0) & (t <= 3)).all()) for t in seen)
    seen.clear()
    assert result(Watched, POSITIVE, domain={"t": (None, 5)}).verdict == "pass"
    assert min(float(t.min()) for t in seen if t.numel()) < 0
    assert max(float(t.max()) for t in seen if t.numel()) <= 5
    wrong = believing(lambda t: torch.where((t < 0) | (t > 4), 0.0, t.cos()))
    assert result(wrong, POSITIVE).verdict == "fail"
    assert result(wrong, POSITIVE, domain=(0, 4)).verdict == "pass"


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        ((1,), "expected a pair"),
        ("positive", "expected a pair"),
        ((2, 1), "lower bound first"),
        (("a", 1), "expected a number or None"),
        ({"u": (0, 1)}, "unknown input 'u'"),
        ({"t": 3}, "expected a pair"),
        ((0, 1), "lies outside its declared domain"),
    ],
)
def test_a_bad_domain_is_an_error(domain: Any, words: str) -> None:
    with pytest.raises(SampleError, match=words):
        result(Sin, POSITIVE, domain=domain)


def test_surrogates_are_compared_on_variants_too() -> None:
    assert result(RoundSTE, x(3), surrogate=lambda t: t).verdict == "pass"
    clipped = variant(RoundSTE, "Clipped", backward=lambda ctx, g: g * (torch.arange(g.numel()).view(g.shape) < 100))
    found = result(clipped, x(3), surrogate=lambda t: t)
    assert found.verdict == "fail"
    assert "declared surrogate" in found.message


def test_a_rule_that_is_wrong_on_the_sample_is_not_accused_again() -> None:
    assert result(believing(torch.sin), POSITIVE).verdict == "skipped"


@pytest.mark.parametrize("level", ["standard", "full"])
def test_complex_input_is_a_remark_and_no_accusation(level: str) -> None:
    found = result(Exp, x(3), level=level)
    assert found.verdict == "pass"
    assert "accepts complex input, but its gradient is wrong there" in found.message
    assert "conj()" in found.message
    if level == "full":
        assert "a conjugate is missing" in found.message
    right = result(believing(lambda t: t.cos().conj()), x(3), level=level)
    assert right.verdict == "pass"
    assert "complex" not in right.message


def test_guessed_inputs_are_suspected_only() -> None:
    from gradwright.checking.run import check_subject
    from gradwright.checking.samples import Sample
    from gradwright.checking.subject import as_subject

    wrong = believing(lambda t: torch.where(t < 0, 0.0, t.cos()))
    report = check_subject(as_subject(wrong), [Sample((POSITIVE,), provenance="typed")], only="shapes", seed=0)
    assert report["shapes"].verdict == "suspect"


@pytest.mark.parametrize("size", [3, 5])
def test_sizes_that_would_take_gigabytes_are_named_not_tried(size: int) -> None:
    largest = 0

    class Cube(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            nonlocal largest
            largest = max(largest, t.numel() ** 3)
            ctx.save_for_backward(t)
            return (t[:, None, None] * t[:, None] * t).sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (t,) = ctx.saved_tensors
            return g * 3 * t.sum() ** 2 * torch.ones_like(t)

    found = result(Cube, x(size))
    assert found.verdict == "pass"
    assert "sizes not tried: 1" in found.message
    assert f"1025 for a dimension of size {size} (a result of about 1e+09 elements)" in found.message
    assert largest <= 2_200_000


def test_large_inputs_are_not_even_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradwright.checking import resizing

    made, real = [], resizing._with_size

    def watched(*arguments: Any) -> Any:
        grown = real(*arguments)
        made.append(0 if grown is None else grown.numel())
        return grown

    monkeypatch.setattr(resizing, "_with_size", watched)
    found = result(Exp, x(4, 3, 3, 3))
    assert found.verdict == "pass"
    assert "elements of input" in found.message
    assert max(made) <= resizing.MAX_ELEMENTS["standard"]


def test_a_rule_that_changes_with_its_calls() -> None:
    for after in (5, 20, 40):
        calls = 0

        def backward(ctx: Any, g: Tensor, after: int = after) -> Tensor:
            nonlocal calls
            calls += 1
            return g * ctx.saved_tensors[0] * (2 if calls > after else 1)

        found = result(variant(Exp, "Tired", backward=backward), x(3))
        assert found.verdict == "fail", after
        assert "no longer what it was when the check began" in found.message


def test_halves_are_not_accused_for_odd_sizes() -> None:
    class RotateHalf(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            half = t.shape[-1] // 2
            return torch.cat((-t[..., half:], t[..., :half]), -1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            half = g.shape[-1] // 2
            return torch.cat((g[..., half:], -g[..., :half]), -1)

    found = result(RotateHalf, x(3, 4))
    assert found.verdict == "pass"
    assert "perhaps not meant for such a shape" in found.message
    assert result(RotateHalf, x(3, 5)).verdict == "skipped"  # wrong on the sample itself


class FeatureNorm(Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(t, w)
        return t * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        t, w = ctx.saved_tensors
        return g * w, (g * t).reshape(-1, t.shape[-1]).sum(0)


def test_no_features_may_raise_but_an_empty_batch_may_not() -> None:
    found = result(FeatureNorm, x(3, 4), x(4))
    assert found.verdict == "pass"
    assert "an empty input (t: float64 (3, 0), w: float64 (0,)) backward raises RuntimeError" in found.message


def test_one_of_several_tensors_with_a_dimension_of_size_one_is_not_broadcast() -> None:
    assert result(FeatureNorm, x(2, 1), x(1)).verdict == "pass"


def test_a_gradient_with_one_dimension_for_none() -> None:
    class Largest(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            out = t.amax(-1, keepdim=True)
            ctx.save_for_backward(t, out)
            return out.squeeze(-1)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            t, out = ctx.saved_tensors
            return g.unsqueeze(-1) * (t == out)

    assert result(Largest, x(3)).verdict == "pass"


class SegmentSums(Function):
    """Sums of the rows between offsets that go from 0 to the number of rows."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        return torch.stack([t[a:b].sum(0) for a, b in itertools.pairwise(offsets)])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (offsets,) = ctx.saved_tensors
        return torch.repeat_interleave(g, offsets[1:] - offsets[:-1], 0), None


@pytest.mark.parametrize("seed", range(3))
def test_offsets_stay_offsets(seed: int) -> None:
    found = result(SegmentSums, x(5, 2), torch.tensor([0, 2, 5]), seed=seed)
    assert found.verdict == "pass", found.message


@pytest.mark.parametrize("seed", range(3))
def test_a_tie_of_many_elements(seed: int) -> None:
    class Sort(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            values, order = t.sort(stable=True, descending=True)
            ctx.save_for_backward(order)
            return values

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (order,) = ctx.saved_tensors
            return torch.zeros_like(g).scatter(-1, order, g)

    found = result(Sort, torch.zeros(3, dtype=torch.float64), seed=seed)
    assert found.verdict == "pass", found.message


def test_an_iteration_that_has_not_converged_at_zero() -> None:
    class Sqrt(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            out = torch.ones_like(t)
            for _ in range(60):
                out = 0.5 * (out + t / out)
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g / (2 * ctx.saved_tensors[0])

    found = result(Sqrt, POSITIVE)
    assert found.verdict == "pass", found.message


@pytest.mark.parametrize("place", [0, 1])
def test_wrong_only_where_a_matrix_is_not_square(place: int) -> None:
    def backward(ctx: Any, g: Tensor) -> Any:
        a, b = ctx.saved_tensors
        square = (a, b)[place].shape[0] == (a, b)[place].shape[1]
        return g @ b, (g.mT @ a) * (1 if square else 2), None

    found = result(variant(Linear, "Squares", backward=backward), x(3, 3), x(3, 3, seed=1))
    assert found.verdict == "fail"
    assert "(x: float64 (4, 3)" in found.message or "w: float64 (4, 3)" in found.message


def test_a_rule_for_square_matrices_that_refuses_others_is_not_accused() -> None:
    class Trace(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.n = len(t)
            return torch.diagonal(t).sum()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * torch.eye(ctx.n, dtype=g.dtype)

    assert result(Trace, x(3, 3)).verdict == "pass"


class Direction(Function):
    """x / |x|, which has no derivative at zero and says so."""

    error: type[Exception] = UndefinedGradientError

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x / x.norm().clamp(min=1e-300)

    @classmethod
    def backward(cls, ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        r = x.norm()
        if r == 0:
            raise cls.error("no direction at zero")
        return (g - x / r * (x / r * g).sum()) / r


class NoSolution(Direction):
    error = SingularMatrixError


class NotFound(Direction):
    error = ConvergenceError


class Fragile(Direction):
    error = ValueError


def test_who_says_that_a_derivative_does_not_exist_is_not_accused() -> None:
    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for function in (Direction, NoSolution, NotFound):
        assert gw.check(function, x, only=("shapes",))
    report = gw.check(Fragile, x, only=("shapes",))
    assert "with `x` all zero: backward raises ValueError" in report.findings[0].message


def test_a_square_matrix_with_nan_in_it_can_be_examined() -> None:
    class Kept(Function):
        @staticmethod
        def forward(ctx: Any, t: Tensor) -> Tensor:
            ctx.save_for_backward(t)
            return torch.where(t > 0, t * t, 0.0)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            (t,) = ctx.saved_tensors
            return torch.where(t > 0, 2 * g * t, 0.0)

    t = x(3, 3).detach().clone()
    t[0, 1], t[1, 1] = torch.nan, -torch.inf
    found = result(Kept, t)
    assert found.verdict == "pass", found.message
