"""Heads in compiled code: an operator that a compiler leaves whole, so that the logits are never all there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright as gw
from gradwright.errors import RuleError
from gradwright.fused import head_operators, head_sweep
from gradwright.fused.cross_entropy_rows import CrossEntropy
from gradwright.fused.divergence_rows import JS, KL, TV, ReverseKL
from gradwright.fused.log_prob_rows import LogProbs
from gradwright.fused.rows import Bend, Rows
from tests.footprint import peak_bytes
from tests.fused.heads import IGNORED, gradients, layer

pytestmark = pytest.mark.filterwarnings("ignore")

fused: Any = gw.fused
Call = tuple[Callable[..., Tensor], tuple[Tensor, ...]]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def calls(dtype: torch.dtype) -> dict[str, Call]:
    """Return a call of each class of rows, with every kind of option, and the leaves that it is called with."""
    x, w, target = layer(dtype=dtype)
    b, tokens = torch.randn(9, dtype=dtype, requires_grad=True), torch.rand(6, dtype=dtype, requires_grad=True)
    target[2] = IGNORED
    soft, teacher = torch.softmax(torch.randn(6, 9, dtype=dtype), 1), torch.randn(6, 4, dtype=dtype)
    options: dict[str, Any] = {"label_smoothing": 0.1, "z_loss": 0.01, "entropy_bonus": 0.1, "softcap": 5, "block": 4}
    found: dict[str, Call] = {
        "mean": (lambda x, w: fused.linear_cross_entropy(x, w, target), (x, w)),
        "options": (
            lambda x, w, b, t: fused.linear_cross_entropy(
                x, w, target, linear_bias=b, token_weight=t, reduction="sum", **options
            ),
            (x, w, b, tokens),
        ),
        "recompute": (
            lambda x, w, b, t: fused.linear_cross_entropy(
                x, w, target, linear_bias=b, token_weight=t, recompute=True, **options
            ),
            (x, w, b, tokens),
        ),
        "none": (lambda x, w: fused.linear_cross_entropy(x, w, target, reduction="none"), (x, w)),
        "soft": (lambda x, w: fused.linear_cross_entropy(x, w, soft), (x, w)),
        "a frozen weight": (lambda x: fused.linear_cross_entropy(x, w.detach(), target), (x,)),
        "weights alone": (
            lambda t: fused.linear_cross_entropy(x.detach(), w.detach(), target, token_weight=t),
            (tokens,),
        ),
        "log-probs": (
            lambda x, w: torch.stack(fused.linear_log_probs(x, w, target, entropy=True, temperature=2)),
            (x, w),
        ),
    }
    for kind in ("kl", "reverse-kl", "js", "tv"):
        found[kind] = (
            lambda x, w, kind=kind: fused.linear_distillation(
                x, w, teacher, w.detach() * 2, divergence=kind, beta=0.3, temperature=1.5
            ),
            (x, w),
        )
    return found


def agree(call: Call, **how: Any) -> None:
    function, leaves = call
    want, got = function(*leaves), torch.compile(function, fullgraph=True, **how)(*leaves)
    g = torch.linspace(0.5, 1.5, want.numel(), dtype=want.dtype).reshape(want.shape)
    torch.testing.assert_close(got, want)
    for found, true in zip(torch.autograd.grad(got, leaves, g), torch.autograd.grad(want, leaves, g)):
        assert found.dtype == true.dtype
        torch.testing.assert_close(found, true)


NAMES = sorted(calls(torch.float64))


@pytest.mark.parametrize("name", NAMES)
def test_compiled_code_gives_what_eager_mode_gives(name: str) -> None:
    agree(calls(torch.float64)[name], backend="aot_eager", dynamic=False)


@pytest.mark.parametrize("name", ["options", "none"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_lower_precision_and_with_any_size(name: str, dtype: torch.dtype) -> None:
    agree(calls(dtype)[name], backend="aot_eager", dynamic=True)


def test_one_compilation_serves_every_number_of_rows_and_every_option_is_a_number() -> None:
    counted = []

    def backend(graph: Any, inputs: Any) -> Any:
        counted.append(graph.code)
        return graph

    def call(x: Tensor, w: Tensor, target: Tensor, smoothing: float) -> Tensor:
        loss: Tensor = fused.linear_cross_entropy(x, w, target, label_smoothing=smoothing)
        return loss

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=backend)
    for rows in (5, 8, 600):
        x, w, target = layer(rows)
        torch.testing.assert_close(compiled(x, w, target, 0.25), call(x, w, target, 0.25))
    assert len(counted) == 1


def test_small_gradients_of_halves_are_no_zeros() -> None:
    x, w, target = layer(64, dtype=torch.float16)

    def call(x: Tensor, w: Tensor) -> Tensor:
        scale = torch.full((64,), 1e-7)
        loss: Tensor = fused.linear_cross_entropy(
            x, w, target, reduction="sum", token_weight=scale, dtype=torch.float32
        )
        return loss * 2.0**20

    agree((call, (x, w)), backend="aot_eager")
    assert torch.autograd.grad(torch.compile(call, backend="aot_eager")(x, w), x)[0].abs().amax() > 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["mean", "none", "kl"])
def test_under_autocast(name: str, backend: str) -> None:
    """The layer is rounded and nothing else, as in eager mode; also what runs inside of the operator."""
    function, leaves = calls(torch.float32)[name]

    def cast(*leaves: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return function(*leaves).float()

    agree((cast, leaves), backend=backend)


def recorded(call: Callable[..., Any], *leaves: Tensor) -> str:
    seen = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(graph.code)
        return graph

    torch.compiler.reset()
    torch.compile(call, fullgraph=True, backend=backend)(*leaves)
    return "".join(seen)


@pytest.mark.parametrize("name", ["mean", "none"])
def test_what_is_recorded_is_one_operator_and_the_same_each_time(name: str) -> None:
    """A cache on disk finds it again in another process: nothing in it is drawn or counted."""
    function, leaves = calls(torch.float64)[name]
    first = recorded(function, *leaves)
    assert first.count("torch.ops.gradwright.head_") == 1
    assert "linear(" not in first
    assert recorded(function, *leaves) == first


def test_without_grad_mode_no_gradients_are_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = []
    original = head_sweep.swept

    def watched(*arguments: Any) -> Any:
        wanted.append(arguments[5])
        return original(*arguments)

    monkeypatch.setattr(head_sweep, "swept", watched)
    function, leaves = calls(torch.float64)["mean"]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(*leaves), function(*leaves))
    compiled(*leaves)
    assert wanted == [(False, False, False), (True, True, False)]


def test_rows_that_do_not_count_are_not_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    original = head_sweep.swept

    def watched(x: Tensor, *rest: Any) -> Any:
        counted.append(len(x))
        return original(x, *rest)

    monkeypatch.setattr(head_sweep, "swept", watched)
    function, leaves = calls(torch.float64)["none"]
    losses = torch.compile(function, fullgraph=True, backend="aot_eager")(*leaves)
    torch.autograd.grad(losses[:4].sum(), leaves)
    assert counted == [5, 3]


@pytest.mark.parametrize("name", ["mean", "recompute", "none", "log-probs"])
def test_a_second_derivative_raises(name: str) -> None:
    function, leaves = calls(torch.float64)[name]
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    first = torch.autograd.grad(compiled(*leaves).sum(), leaves[0], create_graph=True)[0]
    with pytest.raises(RuleError, match=r"differentiated again inside of torch\.compile"):
        torch.autograd.grad(first.sum(), leaves)


@pytest.mark.parametrize("name", ["mean", "none"])
def test_a_graph_may_be_run_backward_twice(name: str) -> None:
    function, leaves = calls(torch.float64)[name]
    loss = torch.compile(function, fullgraph=True, backend="aot_eager")(*leaves).sum()
    for first, second in zip(gradients(loss, *leaves), gradients(loss, *leaves)):
        assert torch.equal(first, second)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_transforms_inside_of_compiled_code_get_formulas(transform: Any) -> None:
    x, w, target = layer()

    def call(x: Tensor) -> Any:
        return transform(lambda x: fused.linear_cross_entropy(x, w, target))(x)

    given = x.detach() if transform is torch.func.grad else torch.stack([x.detach(), 2 * x.detach()])
    torch.testing.assert_close(torch.compile(call, backend="aot_eager")(given), call(given))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_knows_no_operator_of_ours(strict: bool) -> None:
    x, w, target = layer()

    class Loss(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            loss: Tensor = fused.linear_cross_entropy(x, w, target)
            return loss

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(Loss(), (x.detach(), w.detach()), strict=strict)
    assert "gradwright" not in str(exported.graph)


# -------------------------------------------------------------------- what travels as words and numbers


ROWS: list[Rows] = [
    CrossEntropy(True, 0.1, 0.2, 0.3),
    LogProbs(True),
    *(kind(Bend(3.0, 2.0)) for kind in (KL, ReverseKL, TV)),
    JS(Bend(None, 2.0), 0.25),
]


@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: type(rows).__name__)
def test_rows_come_back_as_they_were(rows: Rows) -> None:
    bend = getattr(rows, "bend", Bend(3.0, 2.0))
    assert head_operators.decoded(*head_operators.encoded(rows, bend)) == (rows, bend)


def test_every_class_of_rows_can_travel() -> None:
    def concrete(kind: type[Any]) -> Iterator[type[Any]]:
        for child in kind.__subclasses__():
            yield from concrete(child)
            if not child.__abstractmethods__ and child.__module__.startswith("gradwright."):
                yield child

    assert {type(rows) for rows in ROWS} == set(concrete(Rows))


# -------------------------------------------------------------------- slow: what a compiler makes of it


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_inductor_gives_what_eager_mode_gives(name: str, dynamic: bool) -> None:
    agree(calls(torch.float32)[name], dynamic=dynamic)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_inductor_holds_a_block_and_the_gradients(reduction: str) -> None:
    x, w, target = layer(1024, 64, 16000, torch.float32)

    def loss(x: Tensor, w: Tensor) -> Tensor:
        found: Tensor = fused.linear_cross_entropy(x, w, target, reduction=reduction).mean()
        return found

    def run(function: Callable[..., Tensor]) -> Any:
        return torch.autograd.grad(function(x, w), (x, w))

    compiled = torch.compile(loss, fullgraph=True)
    run(compiled)
    assert peak_bytes(lambda: run(compiled)) <= 1.05 * peak_bytes(lambda: run(loss)) < 1024 * 16000 * 4
