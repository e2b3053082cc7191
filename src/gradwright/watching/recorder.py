"""Counts the calls and the backwards of every Function in a running program, and keeps a few distinct calls of each.

It must cost nothing that is noticed: a call of a Function whose calls are known is counted and no more. Nothing that
goes wrong in here may reach the program.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gradwright import torch_compat
from gradwright.checking.settings import checks_running
from gradwright.watching.calls import Call
from gradwright.watching.capture import Budget, capture, capture_call
from gradwright.watching.targets import Kind, Target, target_of

MAX_CALLS = 4
"""Distinct calls that are kept of each Function."""
MAX_ALIKE = 2
"""Of these, such as differ in nothing but the sizes of their tensors."""
MAX_SEEN = 64
"""Once so many calls were unlike each other, as with a counter among the arguments, no more are looked at."""
MANY = 128
"""Calls of a Function of which each is looked at; of those after them one in :data:`STRIDE` is."""
STRIDE = 61
"""A prime, so that a program that repeats itself does not show the same call each time."""

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_dtype_of = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]
_shape_of = torch.Tensor.shape.__get__  # type: ignore[attr-defined]
_needs_of = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]


@dataclass(eq=False)
class Kept:
    """One call that is kept."""

    subject: Any
    """What was called: a Function class, a function, an operator."""
    call: Call
    needs: bool
    """Whether it could be differentiated."""
    signature: tuple[Any, ...] = ()
    """What tells it from other calls."""
    ran: bool = False
    """True once its forward, or that of another call like it, has returned."""


@dataclass(eq=False)
class Watched:
    """What is known of one Function, or of several classes that one place in the source makes."""

    target: Target
    calls: int = 0
    backwards: int = 0
    transformed: int = 0
    """Calls inside of a transform of ``torch.func``, of which no values are kept."""
    checked: int = 0
    """Calls by ``gw.check`` in the program itself, on inputs that the program did not choose: none is kept."""
    refused: int = 0
    """Calls that were looked at and raised."""
    kept: list[Kept] = field(default_factory=list)
    seen: dict[Any, Kept | None] = field(default_factory=dict)
    """By what tells calls apart, the call of that kind that is kept, as long as its backward is waited for."""
    alike: Counter[Any] = field(default_factory=Counter)
    full: bool = False
    """True once no further call is looked at."""
    waiting: int = 0
    """Kept calls that can be differentiated, for which no backward has run yet."""


class Recorder:
    """Watches the Functions of this process from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        budget: Budget | None = None,
        keep: Callable[[Watched, Kept], None] = lambda watched, kept: None,
        drop: Callable[[Watched, Kept], None] = lambda watched, kept: None,
    ) -> None:
        self.budget = budget if budget is not None else Budget()
        self.keep = keep
        """Told each call that is kept, before it runs, and again before its backward does."""
        self.forgo = drop
        """Told each call that is not kept after all."""
        self.watched: dict[Any, Watched] = {}
        """By what is checked in the end: a place in the source."""
        self.complete = True
        """False when no backward can be seen, nor calls through an earlier alias, in this version of PyTorch."""
        self.compiled = False
        """True once code ran that torch.compile had made, in which calls are not seen."""
        self.compiled_before = frozenset(map(id, torch_compat.compiled_code()))
        """Identities of the code that torch.compile had taken over before."""
        self.failures: list[str] = []
        """What went wrong in the recorder itself."""
        self._of: dict[int, Watched | None] = {}
        """By the identity of the class; None for what is not watched."""
        self._inner: dict[int, Watched] = {}
        """The same for classes that a transform makes, a new one in each call: what they stand for."""
        self._alive: dict[int, Any] = {}
        self._lock = threading.RLock()
        self._busy = threading.local()
        self._end: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        end = torch_compat.watch_functions(self._called, self._pulled)
        self.complete = end is not None
        self._end = end or torch_compat.watch_apply(self._called)

    def stop(self) -> None:
        """Put everything in PyTorch back as it was; what was recorded stays."""
        if self._end is not None:
            self._end()
            self._end = None

    def forget(self) -> None:
        """Begin anew, in a process that was forked from the one that is watched."""
        self._lock = threading.RLock()
        for watched in self.watched.values():
            watched.calls = watched.backwards = watched.transformed = watched.checked = watched.refused = 0
            watched.waiting = 0
            watched.kept, watched.full = [], False
            watched.seen.clear()
            watched.alike.clear()

    # ------------------------------------------------------------------ what PyTorch tells

    def _called(self, _: None, function: type, original: Any) -> Any:
        key = id(function)
        watched = self._of[key] if key in self._of else self._new(function)
        if watched is None:
            return original
        if checks_running:
            watched.checked += 1
            return original
        watched.calls += 1
        if watched.full or (watched.calls > MANY and watched.calls % STRIDE):
            return original
        # Tracing runs code twice, and refuses it when one more frame is there the first time.
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            return original
        return functools.partial(_run, self, watched, function, original)

    def _pulled(self, node: Any, kind: Any, original: Any) -> Any:
        if node is None:
            return original
        key = id(torch_compat.function_of(kind))
        watched = self._of.get(key)
        if watched is None:
            inner = self._inner.get(key)
            if inner is not None:
                inner.backwards += 1
            return original
        watched.backwards += 1
        if not watched.waiting:
            return original
        kept = vars(node).get("gradwright_call")
        if kept is None or kept.call.cotangents is not None:
            return original
        return functools.partial(self._run_backward, watched, kept, original)

    def _run_backward(self, watched: Watched, kept: Kept, original: Any, *cotangents: Any) -> Any:
        __tracebackhide__ = True
        self.safely(self._keep_cotangents, watched, kept, cotangents)
        try:
            return original(*cotangents)
        except BaseException as error:
            self.safely(self._forget_cotangents, watched, kept)
            _leave_out_this_frame(error)
            raise

    def _forget_cotangents(self, watched: Watched, kept: Kept) -> None:
        """Do not say of a backward that raised that it ran to its end."""
        with self._lock:
            kept.call = replace(kept.call, cotangents=None)
            self.keep(watched, kept)

    def _keep_cotangents(self, watched: Watched, kept: Kept, cotangents: Any) -> None:
        given = cotangents[0] if len(cotangents) == 1 and isinstance(cotangents[0], list) else cotangents
        with self._lock:
            if kept.call.cotangents is None and not torch_compat.without_numbers(given):
                kept.call = replace(kept.call, cotangents=capture(tuple(given), self.budget))
                watched.waiting -= 1
                watched.seen[kept.signature] = None
                watched.full = watched.full or (len(watched.kept) >= MAX_CALLS and not watched.waiting)
                self.keep(watched, kept)

    # ------------------------------------------------------------------ keeping calls

    def _new(self, function: type) -> Watched | None:
        """Find out what a class is that is called for the first time."""
        found: Watched | None = None
        key = id(function)

        def gone(_: Any) -> None:
            for table in (self._of, self._inner, self._alive):
                table.pop(key, None)

        with self._lock:
            target = self.safely(target_of, function)
            self._alive[key] = weakref.ref(function, gone)
            if target is not None and target.kind is Kind.TRANSFORMED:
                inner = self._inner[key] = self._at(target)
                own = not checks_running
                inner.calls += own
                inner.transformed += own
                inner.checked += not own
            self.compiled = self.compiled or (target is not None and target.kind is Kind.COMPILED)
            if target is not None and target.kind is Kind.USER:
                found = self._at(target)
            self._of[key] = found
        return found

    def _at(self, target: Target) -> Watched:
        return self.watched.setdefault(target.key, Watched(target))

    def look(self, watched: Watched, function: type, args: Any, kwargs: Any) -> Kept | None:
        """Keep a call unlike all before, if it says more than those that are kept.

        Returns:
            the call that is kept and waits for its backward, this one or an earlier one like it; None for all others.
        """
        if getattr(self._busy, "now", False):
            return None
        kept: Kept | None = self.safely(self._look, watched, function, args, kwargs)
        return kept

    def _look(self, watched: Watched, function: type, args: Any, kwargs: Any) -> Kept | None:
        exact = _signature(args, protected=True)
        assert exact is not None
        if exact in watched.seen:
            return watched.seen[exact]
        with self._lock:
            try:
                return self._look_first(watched, function, exact, args, kwargs)
            except BaseException:
                watched.seen.pop(exact, None)  # as if it had not been looked at
                raise

    def _look_first(self, watched: Watched, function: type, exact: Any, args: Any, kwargs: Any) -> Kept | None:
        """Look at a call unlike all before."""
        watched.seen[exact] = None
        watched.full = watched.full or len(watched.seen) > MAX_SEEN
        recorded, *parts = exact
        coarse = tuple((p[0], len(p[1]), *p[2:]) if isinstance(p, tuple) else p for p in parts)
        needs = recorded and any(isinstance(p, tuple) and p[2] for p in parts)
        enough = len(watched.kept) >= MAX_CALLS or watched.alike[coarse] >= MAX_ALIKE
        # Of calls that are not differentiated, one says enough.
        if enough or (watched.kept and not needs) or torch_compat.without_numbers(args):
            return None
        given = watched.target.arguments(function, args, kwargs)
        call = capture_call(given.args, dict(given.kwargs), self.budget)
        kept = Kept(given.subject, call, needs, exact)
        watched.alike[coarse] += 1
        watched.kept.append(kept)
        if needs:
            watched.seen[exact] = kept
            watched.waiting += 1
        self.safely(self.keep, watched, kept)
        return kept

    def drop(self, watched: Watched, kept: Kept) -> None:
        """Do not keep a call after all that raised, unless another one like it has run."""
        with self._lock:
            watched.refused += 1
            if kept in watched.kept and not kept.ran:
                watched.kept.remove(kept)
                del watched.seen[kept.signature]
                watched.waiting -= kept.needs
                watched.full = False
                self.budget.give_back((kept.call.args, kept.call.kwargs))
                self.forgo(watched, kept)

    def returned(self, function: type, kept: Kept, outputs: Any) -> None:
        """Tie a kept call to its node in the graph, so that its backward is known when it comes."""
        kept.ran = True
        for output in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
            node = output.grad_fn if isinstance(output, torch.Tensor) else None
            if node is not None and torch_compat.node_function(node) is function:
                vars(node)["gradwright_call"] = kept
                return

    def safely(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do something that the program must not notice, whatever comes of it."""
        self._busy.now = True
        try:
            with torch_compat.unseen():
                return work(*arguments)
        except (RecursionError, MemoryError):  # limits of the program's; another call may be within them
            return None
        except Exception as error:
            if len(self.failures) < 8:
                self.failures.append(f"{type(error).__name__}: {error}")
            return None
        finally:
            self._busy.now = False

    def used(self) -> Iterator[Watched]:
        """Give every Function that was called, in the order in which it was first."""
        yield from (watched for watched in self.watched.values() if watched.calls or watched.checked)


def _run(recorder: Recorder, watched: Watched, function: type, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a call that is looked at, and keep it if it is unlike the others."""
    __tracebackhide__ = True  # pytest leaves such frames out
    exact = None if torch_compat.function_modes() else _signature(args, protected=False)
    kept = watched.seen[exact] if exact in watched.seen else recorder.look(watched, function, args, kwargs)
    try:
        outputs = original(*args, **kwargs)
    except BaseException as error:  # what a program refuses is not what it uses
        if kept is not None:
            recorder.safely(recorder.drop, watched, kept)
        _leave_out_this_frame(error)
        raise
    if kept is not None:
        recorder.safely(recorder.returned, function, kept, outputs)
    return outputs


def _leave_out_this_frame(error: BaseException) -> None:
    """Let a program that prints an error it caught print what it would without the hook.

    From Python 3.11 on, a bare ``raise`` adds no entry for the frame that it is in.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _signature(args: Any, *, protected: bool) -> tuple[Any, ...] | None:
    """Return what tells calls apart: whether a graph is recorded, and of each argument what can be had for little.

    Arguments:
        args: of the call.
        protected: whether nothing that is done here can reach code of the program's. Otherwise only what is certain not
            to reach any is looked at, which takes a third of the time; None where that is not all.
    """
    parts: list[Any] = [torch.is_grad_enabled()]
    for value in args:
        kind = type(value)
        if kind in _PLAIN:
            try:
                parts.append((value.dtype, value.shape, value.requires_grad, value.is_contiguous()))
            except RuntimeError:  # sparse and nested tensors have no strides, or no shape
                parts.append(_looks(value))
        elif issubclass(kind, torch.Tensor):
            if not protected:
                return None
            parts.append(_looks(value))
        elif value is None or kind in (bool, str) or (kind is int and -16 <= value <= 16):
            parts.append(value)
        else:
            parts.append(kind)
    return tuple(parts)


def _looks(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what tells a tensor from others, by what no class of the program's may have written anew."""
    dtype, needs = _dtype_of(tensor), _needs_of(tensor)
    try:
        looks = dtype, _shape_of(tensor), needs, torch.Tensor.is_contiguous(tensor)
        hash(looks)  # sizes that only stand for numbers cannot be
    except (RuntimeError, TypeError):  # sparse and nested tensors have no strides, or no shape
        looks = dtype, (), needs, torch.Tensor.layout.__get__(tensor)  # type: ignore[attr-defined]
    return looks
