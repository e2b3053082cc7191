"""What a recorder sees of a running program, and that the program does not see the recorder."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import gradwright as gw
from gradwright import torch_compat
from gradwright.watching import recorder as recorder_module
from gradwright.watching.recorder import MAX_CALLS, Recorder, Watched


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Modern(Function):
    @staticmethod
    def forward(x, k=2.0):
        return x * k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None

    @staticmethod
    def jvp(ctx, t, _):
        return t * ctx.k


class OwnApply(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g

    @classmethod
    def apply(cls, x):
        return super().apply(x)


class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        return Square.apply(x)

    @staticmethod
    def backward(ctx, g):
        return g


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx, g):
        return 3 * g


class TwoOutputs(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        return sum(f * c for f, c in ((2, g), (3, h)) if c is not None)


early = Square.apply


@contextmanager
def recording(**options: Any) -> Iterator[Recorder]:
    recorder = Recorder(**options)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()
    assert recorder.failures == []


def of(recorder: Recorder, name: str) -> Watched:
    (found,) = [w for w in recorder.used() if w.target.qualname.rpartition(".")[2] == name]
    return found


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_calls_and_backwards_are_counted() -> None:
    with recording() as recorder:
        for _ in range(3):
            Square.apply(leaf(2)).sum().backward()
        Square.apply(leaf(2))
    watched = of(recorder, "Square")
    assert (watched.calls, watched.backwards) == (4, 3)
    assert recorder.complete


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated")
@pytest.mark.parametrize("apply", [Square.apply, early, lambda x: torch.jit.trace(Square.apply, (x,))(x)])
def test_aliases_are_seen(apply: Any) -> None:
    with recording() as recorder:
        apply(leaf(2))
    assert of(recorder, "Square").calls >= 1


def test_an_apply_of_its_own_nesting_threads_and_checkpoints_are_seen() -> None:
    class Kept(Square):
        pass

    with recording() as recorder:
        OwnApply.apply(leaf(2)).sum().backward()
        Nested.apply(leaf(2)).sum().backward()
        thread = threading.Thread(target=lambda: Square.apply(leaf(3)).sum().backward())
        thread.start()
        thread.join()
        for reentrant in (False, True):
            checkpoint(Kept.apply, leaf(2), use_reentrant=reentrant).sum().backward()
    assert of(recorder, "OwnApply").backwards == 1
    assert (of(recorder, "Square").calls, of(recorder, "Square").backwards) == (2, 1)
    assert (of(recorder, "Kept").calls, of(recorder, "Kept").backwards) == (4, 2)


def test_calls_without_a_graph_do_not_hide_those_with_one() -> None:
    x = leaf(2)
    with recording() as recorder:
        with torch.no_grad():
            Square.apply(x)
        Square.apply(x).sum().backward()
    assert [k.needs for k in of(recorder, "Square").kept] == [False, True]
    assert of(recorder, "Square").kept[1].call.cotangents is not None


def test_what_is_kept_is_the_call_as_it_was_before_it_ran() -> None:
    x = leaf(2, 3)
    before = x.detach().clone()
    with recording() as recorder:
        InPlace.apply(x * 1).sum().backward()
    (kept,) = of(recorder, "InPlace").kept
    (value,) = kept.call.args
    assert torch.equal(value, before)
    assert value.is_leaf
    assert value.requires_grad
    assert kept.subject is InPlace


def test_the_cotangents_are_the_real_ones() -> None:
    with recording() as recorder:
        Square.apply(leaf(2, 3)).sum().backward()
        TwoOutputs.apply(leaf(2))[1].sum().backward()
    (g,) = of(recorder, "Square").kept[0].call.cotangents or ()
    assert g.stride() == (0, 0)  # that of a sum is expanded
    first, second = of(recorder, "TwoOutputs").kept[0].call.cotangents or ()
    assert first is None
    assert second.shape == (2,)


def test_a_backward_of_a_later_call_like_it_tells_the_cotangents() -> None:
    with recording() as recorder:
        Square.apply(leaf(2))
        Square.apply(leaf(2)).sum().backward()
    watched = of(recorder, "Square")
    assert len(watched.kept) == 1
    assert watched.kept[0].call.cotangents is not None
    assert watched.waiting == 0


def test_distinct_calls_are_kept_up_to_a_number() -> None:
    with recording() as recorder:
        for n in (2, 2, 3, 4):
            Square.apply(leaf(n)).sum().backward()
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.complex64):
            Square.apply(torch.ones(2, dtype=dtype, requires_grad=True)).sum().abs().backward()
    kept = of(recorder, "Square").kept
    assert [tuple(k.call.args[0].shape) for k in kept[:2]] == [(2,), (3,)]
    assert len(kept) == MAX_CALLS
    assert of(recorder, "Square").full


def test_of_calls_that_are_not_differentiated_one_is_kept() -> None:
    with recording() as recorder:
        with torch.no_grad():
            for n in (2, 3):
                Square.apply(leaf(n))
        Square.apply(torch.ones(5))
        Square.apply(leaf(4))
    assert [k.needs for k in of(recorder, "Square").kept] == [False, True]


def test_a_program_that_repeats_itself_is_looked_at_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MANY", 10)
    looks = []
    original = recorder_module._signature
    monkeypatch.setattr(recorder_module, "_signature", lambda args, **k: looks.append(1) or original(args, **k))
    with recording() as recorder:
        x = leaf(2)
        for _ in range(200):
            Square.apply(x)
    assert of(recorder, "Square").calls == 200
    assert len(looks) == 1 + 10 + 190 // recorder_module.STRIDE  # the first one twice: it is unlike all before


def test_a_call_that_raises_is_not_kept() -> None:
    class Picky(Function):
        @staticmethod
        def forward(ctx, x):
            if x.numel() > 2:
                raise ValueError("too many")
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g

    with recording() as recorder:
        with pytest.raises(ValueError, match="too many"):
            Picky.apply(leaf(3))
        Picky.apply(leaf(2)).sum().backward()
    assert [tuple(k.call.args[0].shape) for k in of(recorder, "Picky").kept] == [(2,)]


def test_a_call_that_raises_does_not_take_one_like_it_along() -> None:
    class Negative(Function):
        @staticmethod
        def forward(ctx, x):
            if bool((x < 0).any()):
                raise ValueError("negative")
            return x.sqrt()

        @staticmethod
        def backward(ctx, g):
            return g

    with recording() as recorder:
        Negative.apply(torch.ones(2, requires_grad=True))
        with pytest.raises(ValueError, match="negative"):
            Negative.apply(-torch.ones(2, requires_grad=True))
    (kept,) = of(recorder, "Negative").kept
    assert torch.equal(kept.call.args[0], torch.ones(2))
    assert of(recorder, "Negative").refused == 1


def test_cotangents_are_those_of_a_backward_that_ran_to_its_end() -> None:
    class Refuses(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise ValueError("not now")

    with recording() as recorder, pytest.raises(ValueError, match="not now"):
        Refuses.apply(leaf(2)).sum().backward()
    assert of(recorder, "Refuses").kept[0].call.cotangents is None


def test_transforms_are_counted_and_credited() -> None:
    with recording() as recorder:
        torch.func.grad(lambda x: Modern.apply(x).sum())(torch.ones(2))
        torch.func.jvp(Modern.apply, (torch.ones(2),), (torch.ones(2),))
    watched = of(recorder, "Modern")
    assert watched.transformed >= 2
    assert watched.backwards >= 2
    assert {w.target.qualname for w in recorder.used()} == {"Modern"}


def test_decorated_functions_operators_and_adopted_functions_are_themselves() -> None:
    with recording() as recorder:

        @gw.custom_gradient
        def scaled(x: torch.Tensor, *, k: float = 2.0) -> torch.Tensor:
            return x * k

        @scaled.vjp
        def scaled_vjp(g, k):
            return g * k

        @torch.library.custom_op("gradwright_tests::recorded", mutates_args=())
        def recorded(x: torch.Tensor, k: float) -> torch.Tensor:
            return x * k

        recorded.register_autograd(lambda ctx, g: (g * 3, None))
        adopted = gw.adopt(Square)
        for _ in range(3):
            scaled(leaf(2), k=3.0).sum().backward()
            recorded(leaf(2), 3.0).sum().backward()
            adopted(leaf(2)).sum().backward()
    for name, subject, given in (("scaled", scaled, {"k": 3.0}), ("recorded", recorded, {}), ("Square", adopted, {})):
        watched = of(recorder, name)
        assert watched.backwards == 3, name
        assert all(kept.subject is subject for kept in watched.kept), name
        assert watched.kept[0].call.kwargs == given
        assert isinstance(watched.kept[0].call.args[0], torch.Tensor)


def test_classes_of_a_factory_keep_their_own_calls() -> None:
    def make(k: float) -> Any:
        class Scale(Function):
            @staticmethod
            def forward(ctx, x):
                return x * k

            @staticmethod
            def backward(ctx, g):
                return g * k

        return Scale

    first, second = make(2.0), make(3.0)
    with recording() as recorder:
        first.apply(leaf(2))
        second.apply(leaf(3))
    watched = of(recorder, "Scale")
    assert watched.calls == 2
    assert [kept.subject for kept in watched.kept] == [first, second]


def test_classes_that_are_gone_leave_nothing() -> None:
    def once() -> None:
        class Gone(Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, g):
                return g

        Gone.apply(torch.ones(1))

    with recording() as recorder:
        for _ in range(10):
            once()
        gc.collect()
        assert len(recorder._of) < 5
        assert of(recorder, "Gone").calls == 10


def test_torch_and_the_catalogue_are_not_listed() -> None:
    with recording() as recorder:
        checkpoint(torch.sin, leaf(2), use_reentrant=True).sum().backward()
        gw.ste.round(leaf(2)).sum().backward()
    assert list(recorder.used()) == []


def test_the_program_does_not_notice() -> None:
    def program() -> list[Any]:
        torch.manual_seed(0)
        w = torch.randn(4, requires_grad=True)
        for _ in range(3):
            Square.apply(w * torch.rand(4)).sum().backward()
        return [w.grad, torch.rand(3), torch.is_grad_enabled(), w._version]

    plain = program()
    with recording():
        watched = program()
    for a, b in zip(plain, watched):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_modes_of_the_program_see_its_own_operations_alone() -> None:
    def operations() -> list[Any]:
        seen = []
        with torch_compat.watch_operations(lambda operation, result: seen.append(operation)):
            torch.autograd.grad(Square.apply(x).sum(), x)
        return seen

    x = leaf(2)
    plain = operations()
    with recording():
        assert operations() == plain


def test_inference_mode_and_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with recording() as recorder:
        with torch.inference_mode():
            Square.apply(torch.ones(2))
        with FakeTensorMode():
            Modern.apply(torch.ones(2))
    (kept,) = of(recorder, "Square").kept
    assert not kept.call.args[0].is_inference()
    assert of(recorder, "Modern").kept == []


def test_the_trial_starts_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("forks of the program could not differentiate any more where there is a GPU")

    monkeypatch.setattr(torch.Tensor, "backward", refuse)
    monkeypatch.setattr(torch.autograd, "backward", refuse)
    with recording() as recorder:
        assert recorder.complete


def test_afterwards_pytorch_is_as_it_was() -> None:
    base: Any = Function.__mro__[1]
    before = dict(vars(base)), dict(vars(torch.autograd.function.BackwardCFunction))
    with recording():
        assert "apply" in vars(base)
    assert (dict(vars(base)), dict(vars(torch.autograd.function.BackwardCFunction))) == before


def test_another_version_of_pytorch_is_watched_by_public_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_compat, "watch_functions", lambda *told: None)
    original = vars(Function)["apply"]
    with recording() as recorder:
        Square.apply(leaf(2)).sum().backward()
        OwnApply.apply(leaf(2))
    assert not recorder.complete
    assert of(recorder, "Square").calls == 1
    assert of(recorder, "OwnApply").calls == 1
    assert len(of(recorder, "Square").kept) == 1
    assert vars(Function)["apply"] is original


def test_a_hook_that_does_not_hold_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    base: Any = Function.__mro__[1]
    before = dict(vars(base))
    monkeypatch.setattr("gradwright.torch_compat.functions._Trial.apply", lambda x: x * 1)
    assert torch_compat.watch_functions(lambda function: None, lambda node, function: None) is None
    assert dict(vars(base)) == before


def test_what_goes_wrong_inside_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "capture_call", lambda *a: 1 / 0)
    recorder = Recorder()
    recorder.start()
    try:
        Square.apply(leaf(2)).sum().backward()
    finally:
        recorder.stop()
    assert of(recorder, "Square").calls == 1
    assert "ZeroDivisionError" in recorder.failures[0]


def test_a_fork_counts_anew() -> None:
    with recording() as recorder:
        Square.apply(leaf(2))
        recorder.forget()
        assert list(recorder.used()) == []
        Square.apply(leaf(2))
    assert of(recorder, "Square").calls == 1
    assert len(of(recorder, "Square").kept) == 1


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile does (torch 2.13)
def test_compiled_code_is_named_as_not_seen() -> None:
    with recording() as recorder:
        compiled = torch.compile(lambda x: Square.apply(x) * 2, fullgraph=True, backend="aot_eager")
        compiled(leaf(3)).sum().backward()
    assert recorder.compiled
    assert "Square" not in {w.target.qualname for w in recorder.used()}
