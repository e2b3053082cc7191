"""Finding inputs for a subject that declares none, by trying small ones until its forward runs.

The search goes from the likeliest guess to less likely ones over what each parameter may be
(:mod:`~gradwright.checking.guesses`), the shapes, and the range of the values (:mod:`~gradwright.checking.plans`). It
is bounded in tries and in time, every try is isolated from the next, and a failure on inputs found this way is a
suspicion, not a verdict.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.checking.case import fixed_random_state
from gradwright.checking.guesses import is_unguessable
from gradwright.checking.limits import time_limit
from gradwright.checking.plans import Built, Plan, best_first, build, with_optional_tensors, written
from gradwright.checking.samples import Sample
from gradwright.checking.subject import Subject
from gradwright.errors import describe_exception

MAX_TRIES = 200
MAX_SECONDS = 4.0
SECONDS_A_TRY = 1.0
TRIES_AFTER_FORWARD = 30
"""Tries spent on inputs on which backward runs too, once there are some on which forward runs."""


@dataclass(frozen=True)
class Synthesis:
    """Inputs found for a subject, or why there are none."""

    samples: tuple[Sample, ...]
    reason: str | None
    """Why none were found; None when some were."""
    tries: int
    remedy: str
    """A line of Python for the user's file that declares these inputs (or a first guess at them) to be edited."""
    notes: tuple[str, ...] = ()
    """What the reader must know about the inputs."""


def synthesise(subject: Subject, seed: int = 0) -> Synthesis:
    """Look for inputs on which ``subject`` runs forward and, if possible, backward.

    Arguments:
        subject: what is to be checked.
        seed: the same seed gives the same inputs.
    """
    obstacle = _obstacle(subject)
    if obstacle is not None:
        return Synthesis((), obstacle, 0, _typical_line(subject))
    _warm_up()
    search = _Search(subject, seed)
    search.run()
    best = search.best
    if best is None:
        return Synthesis((), search.reason(), search.tries, _typical_line(subject))
    samples = [_sample(subject, best)]
    samples += [_sample(subject, other) for other in search.second()]
    return Synthesis(tuple(samples), None, search.tries, written(subject, best.plan, best.constants), _notes(search))


class Rank(IntEnum):
    """How good an attempt was, the best last."""

    FAILED = 0
    NOT_DIFFERENTIABLE = 1
    """Forward runs, but nothing it returns requires grad."""
    NOT_FINITE = 2
    """Part of the output is infinite or not a number."""
    CONSTANT = 3
    """Forward runs, but the output does not depend on the inputs; backward raises."""
    CONSTANT_BACKWARD = 4
    """The same, and backward runs."""
    FORWARD = 5
    """Forward runs and depends on the inputs; backward raises, or gives no finite gradient."""
    BACKWARD = 6
    """Backward runs too."""


@dataclass
class Attempt:
    """What came of running the subject on one plan."""

    plan: Plan
    rank: Rank
    error: BaseException | None = None
    """Why forward, or else backward, failed."""
    constants: tuple[str, ...] = ()
    """Parameters that are tensors and for which backward gives no gradient, while it does for others."""
    all_float32: bool = False
    """Every floating output was float32 although the inputs were float64."""


@dataclass
class _Search:
    subject: Subject
    seed: int
    tries: int = 0
    best: Attempt | None = None
    errors: Counter[str] = field(default_factory=Counter)
    deadline: float = 0.0
    returns_float32: bool = False

    def run(self) -> None:
        self.deadline = time.monotonic() + MAX_SECONDS
        limit = MAX_TRIES
        for plan in self.plans():
            if self.tries >= limit or time.monotonic() > self.deadline:
                break
            attempt = self.attempt_in_either_dtype(plan)
            if attempt.rank > (self.best.rank if self.best else Rank.FAILED):
                if self.best is None or self.best.rank <= Rank.NOT_DIFFERENTIABLE < attempt.rank:
                    limit = MAX_TRIES if attempt.rank is Rank.NOT_DIFFERENTIABLE else self.tries + TRIES_AFTER_FORWARD
                    limit = min(limit, MAX_TRIES)
                self.best = attempt
            if attempt.rank is Rank.BACKWARD:
                break
        if self.best is not None and self.best.all_float32:
            self.returns_float32 = self.improve(replace(self.best.plan, dtype=torch.float32))
        if self.best is not None and self.best.constants:
            self._prefer_numbers()

    def plans(self) -> Iterator[Plan]:
        """Yield every plan; once forward runs on one, every other plan differs from that only in shape and values."""
        every, seen = best_first(self.subject), []
        variations: Iterator[Plan] = iter(())
        around: Plan | None = None
        while True:
            if self.best is not None and self.best.rank > Rank.NOT_DIFFERENTIABLE and around is not self.best.plan:
                around = self.best.plan
                variations = around.variations()
            for stream in (variations, every):
                plan = next(stream, None)
                if plan is None and stream is every:
                    return
                if plan is not None and plan not in seen:
                    seen.append(plan)
                    yield plan

    def attempt_in_either_dtype(self, plan: Plan) -> Attempt:
        attempt = self.attempt(plan)
        if attempt.rank is Rank.FAILED and _is_about_dtype(attempt.error):
            attempt = self.attempt(replace(plan, dtype=torch.float32))
        return attempt

    def attempt(self, plan: Plan) -> Attempt:
        self.tries += 1
        remaining = max(self.deadline - time.monotonic(), 0.05)
        attempt = _try(self.subject, plan, self.seed, min(SECONDS_A_TRY, remaining))
        if attempt.rank is Rank.FAILED and attempt.error is not None:
            self.errors[describe_exception(attempt.error)] += 1
        return attempt

    def improve(self, plan: Plan) -> bool:
        """Take another plan if it does at least as well as the best one."""
        attempt = self.attempt(plan)
        if self.best is not None and attempt.rank >= self.best.rank:
            self.best = attempt
            return True
        return False

    def second(self) -> Iterator[Attempt]:
        """Look for one more sample, when that is cheap: with the optional tensors passed, else of another shape."""
        if self.best is None or self.best.rank is not Rank.BACKWARD:
            return
        others = list(itertools.islice(with_optional_tensors(self.subject), 12))
        if self.best.plan.is_uniform:
            shapes = [shape for shape in ((2, 3, 4), (4,)) if shape != self.best.plan.shapes[0]]
            others += [self.best.plan.reshaped(shape) for shape in shapes]
        for plan in others:
            if time.monotonic() > self.deadline:
                return
            attempt = self.attempt(replace(plan, dtype=self.best.plan.dtype))
            if attempt.rank is Rank.BACKWARD and attempt.constants == self.best.constants:
                yield attempt
                return

    def reason(self) -> str:
        """Say why nothing was found, by the error that came most often."""
        name = self.subject.name
        if not self.errors:
            return f"{name}: no inputs were found in {self.tries} tries; declare some."
        error, times = self.errors.most_common(1)[0]
        if len(self.errors) == 1:
            how = f"forward raised {error} on each of the {self.tries} inputs tried"
        else:
            how = f"forward ran on none of the {self.tries} inputs tried, and most often ({times} times) raised {error}"
        return f"{name}: {how}; expected inputs on which it runs; declare some.{_abstract_base(self.subject, error)}"

    def _prefer_numbers(self) -> None:
        """Replace tensors that get no gradient, and were only guessed to be tensors, by plain numbers if that runs."""
        for name in self.best.constants if self.best else ():
            assert self.best is not None
            plan = self.best.plan.with_number(name)
            if plan is not None:
                self.improve(plan)


def _try(subject: Subject, plan: Plan, seed: int, seconds: float) -> Attempt:
    """Run forward and backward on fresh tensors; nothing that happens inside reaches the next try."""
    attempt = Attempt(plan, Rank.FAILED)
    try:
        with _isolated(seed), time_limit(seconds):
            _run(subject, plan, seed, attempt)
    except (Exception, SystemExit) as error:
        attempt.error = error
    return attempt


def _run(subject: Subject, plan: Plan, seed: int, attempt: Attempt) -> None:
    built = build(plan, seed)
    outputs = _forward(subject, built)
    floating = [out for out in outputs if out.is_floating_point() or out.is_complex()]
    if not floating or not any(bool(torch.isfinite(out).any()) for out in floating if out.numel()):
        raise ValueError("forward returned no finite floating-point tensor")
    attempt.rank = Rank.NOT_DIFFERENTIABLE
    differentiable = [out for out in floating if out.requires_grad]
    if not differentiable:
        return
    attempt.all_float32 = plan.dtype is torch.float64 and all(out.dtype is torch.float32 for out in floating)
    if not all(bool(torch.isfinite(out).all()) for out in floating):
        attempt.rank = Rank.NOT_FINITE
        return
    again = _forward(subject, build(plan, seed, draw=1))
    depends = not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(outputs, again))
    attempt.rank = Rank.FORWARD if depends else Rank.CONSTANT
    cotangents = [torch.randn_like(out) for out in differentiable]
    gradients: Sequence[Tensor | None] = torch.autograd.grad(
        differentiable, built.leaves, cotangents, allow_unused=True
    )
    given = [g for g in gradients if g is not None]
    if not given or not all(bool(torch.isfinite(g).all()) for g in given):
        return
    attempt.rank = Rank.BACKWARD if depends else Rank.CONSTANT_BACKWARD
    attempt.constants = tuple(
        dict.fromkeys(name for name, g in zip(built.names, gradients) if not isinstance(g, Tensor))
    )


def _forward(subject: Subject, built: Built) -> list[Tensor]:
    sample = Sample(tuple(map(_pass_on, built.args)), {name: _pass_on(v) for name, v in built.kwargs.items()})
    leaves, _ = torch_compat.flatten(subject.call(subject.bind(sample)))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _pass_on(value: Any) -> Any:
    """Pass computed tensors, not leaves: an in-place Function refuses a leaf that requires grad."""
    leaves, structure = torch_compat.flatten(value)
    return torch_compat.unflatten([x.clone() if isinstance(x, Tensor) else x for x in leaves], structure)


@contextlib.contextmanager
def _isolated(seed: int) -> Iterator[None]:
    with (
        fixed_random_state(seed),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        torch.enable_grad(),
    ):
        warnings.simplefilter("ignore")
        yield


def _is_about_dtype(error: BaseException | None) -> bool:
    words = r"dtype|double|float64|float32|scalar type|\bhalf\b"
    return error is not None and re.search(words, str(error), re.IGNORECASE) is not None


@cache
def _warm_up() -> None:
    """Let torch import what it imports at the first backward, which takes longer than a try may take."""

    class Identity(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g

    Identity.apply(torch.ones(1, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]


def _obstacle(subject: Subject) -> str | None:
    """Return why a search would be of no use, if so."""
    if subject.function is not None and subject.function.forward is Function.forward:
        return f"{subject.name}: defines no forward; expected one; if it is only a base for others, leave it."
    if subject.parameters is None:
        return f"{subject.name}: its parameters cannot be read; expected a signature; declare inputs."
    for parameter in subject.parameters:
        if is_unguessable(subject, parameter):
            return (
                f"{subject.name}: no value can be guessed for the parameter {parameter.name}, which seems to be a "
                "function, a text or some other object; expected declared inputs; write some."
            )
    return None


def _abstract_base(subject: Subject, error: str) -> str:
    """Name the subclasses of what seems to be an abstract base."""
    function = subject.function
    if function is None or not error.startswith(("AttributeError", "NotImplementedError")):
        return ""
    children = [child.__name__ for child in function.__subclasses__() if child.__module__ == function.__module__]
    return f" It seems to be only a base of {', '.join(children[:4])}." if children else ""


def _sample(subject: Subject, attempt: Attempt) -> Sample:
    built = build(attempt.plan, attempt.plan.seed)
    for name, leaf in zip(built.names, built.leaves):
        leaf.requires_grad_(bool(attempt.constants) and name not in attempt.constants)
    name = f"constant: {', '.join(attempt.constants)}" if attempt.constants else None
    typed = all(choice.from_annotation for choice, parameter in attempt.plan.choices if parameter.required)
    return Sample(built.args, built.kwargs, name=name, provenance="typed" if typed else "synthesised")


def _notes(search: _Search) -> tuple[str, ...]:
    best = search.best
    assert best is not None
    notes = [f"no inputs are declared: these were found at try {search.tries}"]
    if best.constants:
        names = ", ".join(best.constants)
        notes.append(f"{names}: held constant, since backward gives no gradient; declare a sample to have it checked")
    if best.rank is Rank.NOT_DIFFERENTIABLE:
        notes.append("no inputs were found for which an output requires grad")
    elif best.rank is Rank.NOT_FINITE:
        notes.append("no inputs were found on which every output is finite")
    elif best.rank is Rank.CONSTANT_BACKWARD:
        notes.append("the outputs depend on none of the inputs tried")
    elif best.error is not None:
        notes.append(f"backward ran on no inputs tried; on these it raised {describe_exception(best.error)}")
    elif best.rank < Rank.BACKWARD:
        notes.append("backward gave no finite gradient on any inputs tried")
    if best.plan.dtype is torch.float32:
        why = "returns float32 whatever it is given" if search.returns_float32 else "does not run in float64"
        notes.append(f"the inputs are float32: forward {why}")
    return tuple(notes)


def _typical_line(subject: Subject) -> str:
    plan = next(iter(best_first(subject)), None)
    return written(subject, plan, ())
