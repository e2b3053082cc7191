"""What nothing declares: rules that are wrong on purpose are suspected, with evidence; mistakes stay failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

import gradwright as gw
from gradwright.checking.case import Case
from gradwright.checking.intent_guess import jumps
from gradwright.checking.report import Report
from gradwright.checking.samples import Sample
from gradwright.checking.subject import as_subject
from tests.defects.entries import rule, t, x

Row = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]

VECTOR = t(-2.3, -1.4, -0.71, -0.35, -0.12, 0.08, 0.29, 0.44, 0.93, 1.2, 1.8, 2.6)
ROWS = VECTOR[torch.tensor([3, 8, 1, 11, 0, 5, 9, 2, 7, 10, 4, 6])].reshape(3, 4)


def ternary(x: Tensor) -> Tensor:
    kept = x.abs() > 0.7 * x.abs().mean()
    return x[kept].abs().mean() * x.sign() * kept


def quantised(x: Tensor, s: Tensor) -> Tensor:
    return (x / s).round().clamp(-4, 3) * s


def learned_scale(g: Tensor, x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    q = x / s
    inside = (q >= -4) & (q <= 3)
    return g * inside, (g * torch.where(inside, q.round() - q, q.clamp(-4, 3))).sum()


def clipped_activation(x: Tensor, top: Tensor) -> Tensor:
    return (torch.minimum(x.clamp(min=0), top) * 15 / top).round() * top / 15


def by_largest(x: Tensor) -> Tensor:
    scale = x.abs().max() / 7
    return (x / scale).round() * scale


def largest_kept(x: Tensor, k: int) -> Tensor:
    return x * (x.abs() >= x.abs().topk(k).values[-1])


def hard(x: Tensor) -> Tensor:
    return one_hot(x.argmax(-1), x.shape[-1]).to(x)


def softmax_vjp(g: Tensor, x: Tensor) -> Tensor:
    p = x.softmax(-1)
    return p * (g - (g * p).sum(-1, keepdim=True))


def nearest(z: Tensor, codes: Tensor) -> Tensor:
    return codes[torch.cdist(z, codes).argmin(1)]


def nearest_vjp(g: Tensor, z: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    return g, torch.zeros_like(codes).index_add(0, torch.cdist(z, codes).argmin(1), g)


def largest_logit(y: Tensor) -> Tensor:
    top = y.max(-1, keepdim=True)
    return torch.zeros_like(y).scatter(-1, top.indices, 1e-3 * top.values)


ON_PURPOSE: dict[str, tuple[str, Row]] = {
    "round": ("surrogate", (lambda x: x.round(), lambda g, x: g, (VECTOR,))),
    "floor": ("surrogate", (lambda x: x.floor(), lambda g, x: g, (VECTOR,))),
    "sign": ("surrogate", (lambda x: x.sign(), lambda g, x: g, (VECTOR,))),
    "binarise with clip": ("surrogate", (lambda x: x.sign(), lambda g, x: g * (x.abs() <= 1), (VECTOR,))),
    "binarise positive numbers": ("surrogate", (lambda x: x.sign(), lambda g, x: g * (x <= 1), (VECTOR.abs(),))),
    "threshold": ("surrogate", (lambda x: (x > 0.5).to(x), lambda g, x: g, (VECTOR,))),
    "ternary with a mean": ("surrogate", (ternary, lambda g, x: g, (VECTOR,))),
    "binary with a mean": ("surrogate", (lambda x: x.sign() * x.abs().mean(), lambda g, x: g, (VECTOR,))),
    "eight levels": ("surrogate", (lambda x: (x * 4).round().clamp(-4, 3) / 4, lambda g, x: g, (VECTOR / 3,))),
    "learned scale": ("surrogate", (quantised, learned_scale, (VECTOR, t(0.3)[0]))),
    "scale without gradient": ("surrogate", (quantised, lambda g, x, s: (g, None), (VECTOR, t(0.3)[0]))),
    "scale of the largest": ("surrogate", (by_largest, lambda g, x: g, (VECTOR,))),
    "clipped activation": (
        "surrogate",
        (clipped_activation, lambda g, x, a: (g * ((x > 0) & (x < a)), (g * (x >= a)).sum()), (VECTOR, t(1.3)[0])),
    ),
    "spike, arctangent": ("surrogate", (lambda v: (v > 0).to(v), lambda g, v: g / (1 + (3 * v).square()), (VECTOR,))),
    "spike, sigmoid": (
        "surrogate",
        (lambda v: (v >= 0).to(v), lambda g, v: 4 * g * (4 * v).sigmoid() * (-4 * v).sigmoid(), (VECTOR,)),
    ),
    "spike, boxcar": ("surrogate", (lambda v: (v > 0).to(v), lambda g, v: g * (v.abs() < 0.5), (VECTOR,))),
    "spike, learned threshold": (
        "surrogate",
        (
            lambda v, s: (v > s).to(v),
            lambda g, v, s: (g / (1 + (v - s).abs()), -(g / (1 + (v - s).abs())).sum()),
            (VECTOR, t(0.4)[0]),
        ),
    ),
    "k largest": ("surrogate", (largest_kept, lambda g, x, k: (g, None), (VECTOR, 4))),
    "one-hot of the largest": ("surrogate", (hard, softmax_vjp, (ROWS,))),
    "hard Gumbel": (
        "surrogate",
        (lambda x: hard(x - torch.empty_like(x).exponential_().log()), softmax_vjp, (ROWS,)),
    ),
    "Bernoulli": ("surrogate", (lambda p: torch.bernoulli(p), lambda g, p: g, (VECTOR.sigmoid(),))),
    "nearest code": ("surrogate", (nearest, nearest_vjp, (ROWS.reshape(6, 2), t(-2, 1, 0.3, 1, 2, -1).reshape(3, 2)))),
    "gradient reversal": ("reversed", (lambda x, a: x.view_as(x), lambda g, x, a: (-a * g, None), (VECTOR, 0.3))),
    "gradient reversal by a tensor": ("reversed", (lambda x, a: x * 1, lambda g, x, a: (-a * g, None), (VECTOR, t(2)))),
    "gradient reversal not yet begun": ("scaled", (lambda x, a: x * 1, lambda g, x, a: (-a * g, None), (VECTOR, 0.0))),
    "scaled gradient": ("scaled", (lambda x: x * 1, lambda g, x: 0.1 * g, (VECTOR,))),
    "scaled gradient of a view": ("scaled", (lambda x: x.reshape(2, -1), lambda g, x: 0.1 * g.flatten(), (VECTOR,))),
    "two scaled gradients": (
        "scaled",
        (lambda x, y: (x * 1, y * 1), lambda g, h, x, y: (0.1 * g, 0.2 * h), (VECTOR, ROWS)),
    ),
    "auxiliary loss": ("side-loss", (lambda x, a: x * 1, lambda g, x, a: (g, torch.ones_like(a)), (VECTOR, t(0.4)))),
    "penalty on activity": ("side-loss", (lambda x: x * 1, lambda g, x: g + 0.1 * x.sign(), (VECTOR,))),
    "penalty on logits": ("side-loss", (lambda s, y: s * 1, lambda g, s, y: (g, largest_logit(y)), (t(1)[0], ROWS))),
}
"""What is found in published code and is meant so: the intent, forward, backward and inputs."""

SETTLED = {"surrogate": "skipped", "scaled": "pass", "reversed": "pass", "side-loss": "pass"}
MISTAKES: dict[str, Row] = {
    "half the gradient": (lambda x: x.exp(), lambda g, x: 0.5 * g * x.exp(), (VECTOR,)),
    "sign": (lambda x: x.sin(), lambda g, x: -g * x.cos(), (VECTOR,)),
    "factor": (lambda x: 2 * x, lambda g, x: g, (VECTOR,)),
    "identity for positive numbers": (lambda x: x.relu(), lambda g, x: 0.5 * g, (VECTOR.abs(),)),
    "identity for positive numbers, reversed": (lambda x: x.abs(), lambda g, x: -g, (VECTOR.abs(),)),
    "no mask": (lambda x: x.relu(), lambda g, x: g, (VECTOR,)),
    "no mask, where all is flat": (lambda x: x.relu(), lambda g, x: g, (-VECTOR.abs(),)),
    "inverted mask": (lambda x: x.relu(), lambda g, x: g * (x < 0), (VECTOR,)),
    "no bound": (lambda x: x.clamp(-1, 1), lambda g, x: g, (VECTOR,)),
    "no bound, where all is clipped": (lambda x: x.clamp(-0.01, 0.01), lambda g, x: g, (VECTOR,)),
    "or for and": (lambda x: x.clamp(0, 6), lambda g, x: g * ((x > 0) | (x < 6)), (4 * VECTOR,)),
    "identity without gradient": (lambda x: x * 1, lambda g, x: 0 * g, (VECTOR,)),
    "identity with a dead end": (lambda x: x * 1, lambda g, x: torch.cat([g[:8], 0 * g[8:]]), (VECTOR,)),
    "identity with one element twice": (lambda x: x * 1, lambda g, x: g * (1 + (x == x.max())), (VECTOR,)),
    "identity that ignores what comes in": (lambda x: x * 1, lambda g, x: torch.ones_like(g), (VECTOR,)),
    "identity that clips": (lambda x: x * 1, lambda g, x: g.clamp(-1, 1), (VECTOR,)),
    "identity that loses the sign": (lambda x: x * 1, lambda g, x: g.abs(), (VECTOR,)),
    "identity times itself": (lambda x: x * 1, lambda g, x: g * x, (VECTOR,)),
    "identity, transposed": (lambda x: x.mT, lambda g, x: g.reshape(x.shape), (ROWS,)),
    "outputs swapped": (lambda x, y: (x * 1, y * 1), lambda g, h, x, y: (h, g), (VECTOR, 2 * VECTOR)),
    "identity with a constant added": (lambda x: x * 1, lambda g, x: g + 1, (VECTOR,)),
    "sum of one number": (lambda x: x.sum(), lambda g, x: 2 * g.expand(x.shape), (VECTOR[:1],)),
    "clamp with wide bounds": (lambda x: x.clamp(-50, 50), lambda g, x: 2 * g, (VECTOR,)),
    "a term without what comes in": (lambda x: x.exp(), lambda g, x: g * x.exp() + 0.1, (VECTOR,)),
    "a product beside a rounding": (lambda x, b: x.round() + b, lambda g, x, b: (g, 2 * g), (VECTOR, VECTOR)),
    "twice the slope between jumps": (lambda x: x - x.floor(), lambda g, x: 2 * g, (VECTOR,)),
    "a factor of a rounding": (
        lambda x, y: x.floor() * y,
        lambda g, x, y: (g * y, 2 * g * x.floor()),
        (VECTOR, VECTOR + 3.1),
    ),
    "through a pole": (lambda x: 1 / x, lambda g, x: g, (VECTOR,)),
    "through many poles": (lambda x: x.tan(), lambda g, x: g, (VECTOR,)),
    "through a root": (lambda x: x.abs().sqrt() * x.sign(), lambda g, x: g, (VECTOR,)),
    "through a cubic root": (lambda x: x.abs().pow(1 / 3) * x.sign(), lambda g, x: g, (VECTOR,)),
    "through a steep sigmoid": (lambda x: (1e4 * x).sigmoid(), lambda g, x: g, (VECTOR,)),
    "to the wrong branch": (
        lambda c, y, z: torch.where(c > 0, y, z),
        lambda g, c, y, z: (g, g * (c <= 0), g * (c > 0)),
        (VECTOR, VECTOR + 1, VECTOR + 2),
    ),
    "to an input that is not used": (lambda x, y: x.sin(), lambda g, x, y: (g * x.cos(), g), (VECTOR, VECTOR)),
    "to nobody": (lambda x, y: x * y, lambda g, x, y: (g * y, None), (VECTOR, VECTOR)),
    "a sum for a mean": (lambda x: x.mean(), lambda g, x: g.expand(x.shape), (VECTOR,)),
    "to all for to the largest": (lambda x: x.amax(-1), lambda g, x: g[:, None].expand(x.shape) * 1, (ROWS,)),
    "factor of a product with 1": (lambda x, k: x * k, lambda g, x, k: (2 * g * k, None), (VECTOR, 1.0)),
    "sign of a power of 1": (lambda x, k: x**k, lambda g, x, k: (-g * k * x ** (k - 1), None), (VECTOR, 1)),
    "sum in place of a mean over one": (lambda x, n: x / n, lambda g, x, n: (3 * g, None), (VECTOR, 1)),
    "a branch that is not taken": (
        lambda x, y, a: x + a * y,
        lambda g, x, y, a: (2 * g, a * g, None),
        (VECTOR, ROWS.flatten(), 0.0),
    ),
    "dropout in evaluation": (
        lambda x, p, training: nn.functional.dropout(x, p, training),
        lambda g, x, p, training: (g / (1 - p), None, None),
        (VECTOR, 0.5, False),
    ),
    "a mask of ones": (
        lambda x, m: x * m,
        lambda g, x, m: (2 * g * m, None),
        (VECTOR.clone().requires_grad_(), torch.ones(12, dtype=torch.float64)),
    ),
    "a mask that is true": (
        lambda x, m: x * m,
        lambda g, x, m: (2 * g * m, None),
        (VECTOR, torch.ones(12, dtype=torch.bool)),
    ),
    "half a product rule": (lambda x: x * x.sigmoid(), lambda g, x: g * x.sigmoid(), (VECTOR,)),
}
"""What may look like it and is wrong."""


DRAWN = ("hard Gumbel", "Bernoulli")
"""Each evaluation of these saves and restores the state of the generators: on a busy machine quick is too short."""


def check(row: Row, **options: Any) -> Report:
    forward, backward, inputs = row
    level = "standard" if row in (ON_PURPOSE[name][1] for name in DRAWN) else "quick"
    if level == "standard":
        options["only"] = ("matches-differences", "linear-in-cotangent")
    return gw.check(rule(forward, backward), *inputs, level=level, **options)


@pytest.mark.parametrize(("intent", "row"), ON_PURPOSE.values(), ids=ON_PURPOSE)
def test_what_is_wrong_on_purpose_is_suspected(intent: str, row: Row) -> None:
    report = check(row)
    suspected = [r for r in report.results if r.verdict == "suspect"]
    assert len(suspected) == 1, str(report)
    assert report, str(report)
    assert report.verdict == "suspect"
    assert report.intent is not None
    assert (report.intent.value, report.intent.origin) == ((intent,), "guessed")
    assert f"intent: guessed {intent}: {report.intent.evidence}" in report.notes
    (finding,) = suspected[0].findings
    assert report.intent.evidence in finding.message
    assert f"intent='{intent}'" in str(finding.hint)


@pytest.mark.parametrize(("intent", "row"), ON_PURPOSE.values(), ids=ON_PURPOSE)
def test_declaring_it_settles_it(intent: str, row: Row) -> None:
    report = check(row, intent=intent)
    zero = isinstance(row[2][-1], float) and row[2][-1] == 0.0
    assert report["matches-differences"].verdict == ("unresolved" if zero else SETTLED[intent]), str(report)
    assert not [r.id for r in report.results if r.verdict in ("fail", "suspect")], str(report)
    assert report.intent is not None
    assert report.intent.origin == "declared"


@pytest.mark.parametrize("row", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_stays_a_failure(row: Row) -> None:
    report = check(row)
    assert not report, str(report)
    assert report.intent is None
    assert not [r.id for r in report.results if r.verdict == "suspect"]


@pytest.mark.parametrize(
    ("backward", "contract"),
    [
        (lambda g, x: g.sum(), "gradient-shape-and-dtype"),
        (lambda g, x: g.sign(), "linear-in-cotangent"),
        (lambda g, x: torch.ones_like(g), "linear-in-cotangent"),
        (lambda g, x: g.mul_(1), "cotangent-untouched"),
    ],
)
def test_what_a_straight_through_rule_may_not_do_either(backward: Any, contract: str) -> None:
    report = check((lambda x: x.round(), backward, (VECTOR,)))
    assert [r.id for r in report.failed] == [contract]
    assert report["matches-differences"].verdict == "skipped"


@pytest.mark.parametrize(
    "backward",
    [
        lambda g, x, a: (g.clamp(-1e6, 1e6), torch.ones_like(a)),
        lambda g, x, a: (0.5 * g.clamp(-1e6, 1e6), torch.zeros_like(a)),
        lambda g, x, a: (g, torch.ones_like(a) + g.clamp(1e6).sum() - 1e6 * len(g)),
    ],
)
def test_what_limits_large_gradients_is_no_side_loss_alone(backward: Any) -> None:
    report = check((lambda x, a: x * 1, backward, (VECTOR, t(0.4))))
    assert [r.id for r in report.failed] == ["linear-in-cotangent"]


def test_exact_is_taken_at_its_word() -> None:
    for name in ("round", "gradient reversal", "auxiliary loss"):
        report = check(ON_PURPOSE[name][1], intent="exact")
        assert not report
        assert report.intent is not None
        assert report.intent.origin == "declared"


def test_the_message_says_what_was_seen_and_what_to_do() -> None:
    report = check(ON_PURPOSE["round"][1])
    (finding,) = report["matches-differences"].findings
    assert finding.message == (
        "this looks like a straight-through or surrogate gradient, and nothing declares it: the output does not move "
        "with `x` except in jumps (0 of 11 differences), while backward gives 1."
    )
    assert finding.hint == (
        "if it is, declare it with intent='surrogate', or with surrogate=lambda x: x, which it is then compared "
        "with; else mend backward."
    )
    assert (finding.analytic, finding.numeric) == (1.0, 0.0)
    assert finding.repro


def test_the_surrogate_that_is_proposed_takes_the_arguments_of_forward() -> None:
    class Grid(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, step: float) -> Tensor:
            return (x / step).round() * step

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return g, None

    (finding,) = gw.check(Grid, VECTOR, 0.1)["matches-differences"].findings
    assert finding.hint is not None
    assert "surrogate=lambda x, step: x," in finding.hint
    assert gw.check(Grid, VECTOR, 0.1, surrogate=lambda x, step: x)


def test_the_argument_that_is_the_factor_is_named() -> None:
    assert "by -0.3 (minus the argument `a`) for `x`" in check(ON_PURPOSE["gradient reversal"][1]).notes[0]


def test_what_follows_from_a_guess_is_as_uncertain() -> None:
    spike = rule(lambda v: (v > 0).to(v), lambda g, v: g / (1 + v.detach().square()))
    report = gw.check(spike, VECTOR, level="quick")
    assert {r.id for r in report.results if r.verdict == "suspect"} == {"matches-differences", "second-order"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name", ["round", "learned scale", "gradient reversal", "auxiliary loss", "penalty on activity"]
)
def test_inputs_of_lower_precision(name: str, dtype: torch.dtype) -> None:
    intent, (forward, backward, inputs) = ON_PURPOSE[name]
    low = tuple(value.to(dtype) if isinstance(value, Tensor) else value for value in inputs)
    report = check((forward, backward, low))
    assert report, str(report)
    assert report.intent is not None
    assert report.intent.value == (intent,)
    settled = check((forward, backward, low), intent=intent)
    assert not [r.id for r in settled.results if r.verdict in ("fail", "suspect")], str(settled)


def test_large_inputs_are_guessed_about_too() -> None:
    wide = torch.linspace(-3.03, 3.02, 5000, dtype=torch.float64)
    for name in ("round", "scaled gradient", "binarise with clip"):
        forward, backward, _ = ON_PURPOSE[name][1]
        report = gw.check(rule(forward, backward), wide, only=["matches-differences"], level="quick")
        assert report["matches-differences"].verdict in ("suspect", "unresolved"), str(report)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4, dtype=torch.float64)
        self.quantise = rule(lambda x: (2 * x).round(), lambda g, x: g).apply

    def forward(self, x: Tensor) -> Any:
        return self.quantise(self.layer(x))


def test_a_module_with_an_estimator_inside() -> None:
    torch.manual_seed(0)
    report = gw.check(Net(), x(3, 3), level="quick")
    assert report["matches-differences"].verdict == "suspect"


def test_where_an_output_jumps() -> None:
    def jumping(function: Callable[[Tensor], Tensor]) -> bool:
        return jumps(Case(as_subject(function), Sample((VECTOR,))), 0)

    assert all(map(jumping, (torch.round, torch.sign, torch.floor, torch.frac, hard, ternary)))
    smooth = (torch.sin, torch.relu, torch.tan, torch.reciprocal, torch.sigmoid, lambda x: (1e6 * x).sigmoid())
    assert not any(map(jumping, smooth))
    assert not jumping(lambda x: x.abs().pow(1 / 3))
    assert not jumping(lambda x: torch.ones(3, dtype=x.dtype) + 0 * x.sum())
