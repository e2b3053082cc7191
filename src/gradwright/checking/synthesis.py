"""Finding inputs for a subject that declares none, by trying small ones until its forward runs.

The search goes from the likeliest guess to less likely ones over what each parameter may be
(:mod:`~gradwright.checking.guesses`), the shapes, and the range of the values (:mod:`~gradwright.checking.plans`). It
is bounded in tries and in time, every try is isolated from the next (:mod:`~gradwright.checking.attempts`), and a
failure on inputs found this way is a suspicion, not a verdict.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch.autograd import Function

from gradwright.checking.attempts import Attempt, Rank, UnusableError, try_plan, warm_up
from gradwright.checking.guesses import is_unguessable
from gradwright.checking.inputs import build, written
from gradwright.checking.plans import Plan, best_first, with_optional_tensors
from gradwright.checking.samples import Sample
from gradwright.checking.subject import Subject
from gradwright.errors import DefinitionError, RuleError, describe_exception

MAX_TRIES = 200
MAX_SECONDS = 4.0
SECONDS_A_TRY = 1.0
REFUSALS = 3
"""So many tries that gradwright refuses alike, for how something is declared, end the search: other inputs are no
remedy."""
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
    """A line of Python for the user's file that declares these inputs (or a first guess at them) to be edited; empty
    where the reason has nothing to do with the inputs."""
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
    warm_up()
    search = _Search(subject, seed)
    search.run()
    best = search.best
    if best is None:
        refusal = search.refusal()
        if refusal is not None:
            return Synthesis((), refusal, search.tries, "")
        return Synthesis((), search.reason(), search.tries, _typical_line(subject))
    notes, remedy = _notes(search), written(subject, best.plan, best.constants)
    samples = [_sample(attempt, seed) for attempt in (best, *search.second())]
    return Synthesis(tuple(samples), None, search.tries, remedy, notes)


@dataclass
class _Search:
    subject: Subject
    seed: int
    tries: int = 0
    best: Attempt | None = None
    errors: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """What gradwright itself said of how something is declared."""
    deadline: float = 0.0
    returns_float32: bool = False
    refused: list[Attempt] = field(default_factory=list)
    """Attempts on which forward ran and backward raised."""

    def run(self) -> None:
        self.deadline = time.monotonic() + MAX_SECONDS
        limit = MAX_TRIES
        for plan in self.plans():
            if self.tries >= limit or time.monotonic() > self.deadline:
                break
            attempt = self.attempt_in_either_dtype(plan)
            if attempt.rank is Rank.FORWARD:
                self.refused.append(attempt)
            if attempt.rank > (self.best.rank if self.best else Rank.FAILED):
                if self.best is None or self.best.rank <= Rank.NOT_DIFFERENTIABLE < attempt.rank:
                    limit = MAX_TRIES if attempt.rank is Rank.NOT_DIFFERENTIABLE else self.tries + TRIES_AFTER_FORWARD
                    limit = min(limit, MAX_TRIES)
                self.best = attempt
            if attempt.rank is Rank.BACKWARD or (self.tries >= REFUSALS and self.refusal() is not None):
                break
        if self.best is not None and self.best.all_float32:
            self.returns_float32 = self.improve(replace(self.best.plan, dtype=torch.float32))
        if self.best is not None and self.best.constants:
            self._prefer_numbers()

    def plans(self) -> Iterator[Plan]:
        """Yield every plan; once forward runs on one, every other plan differs from that only in shape and values."""
        every: Iterator[Plan] = best_first(self.subject)
        seen: set[tuple[object, ...]] = set()
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
                if plan is not None and plan.key not in seen:
                    seen.add(plan.key)
                    yield plan

    def attempt_in_either_dtype(self, plan: Plan) -> Attempt:
        attempt = self.attempt(plan)
        if attempt.rank is Rank.FAILED and _is_about_dtype(attempt.error):
            attempt = self.attempt(replace(plan, dtype=torch.float32))
        return attempt

    def attempt(self, plan: Plan) -> Attempt:
        self.tries += 1
        remaining = max(self.deadline - time.monotonic(), 0.05)
        attempt = try_plan(self.subject, plan, self.seed, min(SECONDS_A_TRY, remaining))
        attempt.number = self.tries
        if attempt.rank is Rank.FAILED and attempt.error is not None:
            raised = f"raised {describe_exception(attempt.error)}"
            self.errors[str(attempt.error) if isinstance(attempt.error, UnusableError) else raised] += 1
            if isinstance(attempt.error, (RuleError, DefinitionError)):
                self.refusals[str(attempt.error)] += 1
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
        kinds = [id(choice) for choice, _ in self.best.plan.choices]
        for attempt in self.refused:
            # The same arguments in another shape: backward must work there too, or be reported.
            if [id(choice) for choice, _ in attempt.plan.choices] == kinds:
                yield attempt
                return
        others = list(itertools.islice(with_optional_tensors(self.subject), 12))
        for plan in (*others, *self.best.plan.in_other_shapes()):
            if time.monotonic() > self.deadline:
                return
            attempt = self.attempt(replace(plan, dtype=self.best.plan.dtype))
            if attempt.rank is Rank.BACKWARD and attempt.constants == self.best.constants:
                yield attempt
                return

    def refusal(self) -> str | None:
        """Return what gradwright itself said where every try so far was refused alike."""
        if len(self.refusals) != 1 or self.refusals.total() < self.tries:
            return None
        said = next(iter(self.refusals))
        name = self.subject.name
        return said if said.startswith(f"{name}:") else f"{name}: its forward raised: {said}"

    def reason(self) -> str:
        """Say why nothing was found, by the error that came most often."""
        name = self.subject.name
        if not self.errors:
            return f"{name}: no parameter seems to be a tensor; expected one to differentiate; declare inputs."
        error, times = self.errors.most_common(1)[0]
        how = f"forward {error} on each of the {self.tries} inputs tried"
        if len(self.errors) > 1:
            how = f"forward ran on none of the {self.tries} inputs tried, and most often ({times} times) {error}"
        return f"{name}: {how}; expected inputs on which it runs; declare some.{_abstract_base(self.subject, error)}"

    def _prefer_numbers(self) -> None:
        """Replace tensors that get no gradient, and were only guessed to be tensors, by plain numbers if that runs."""
        for name in self.best.constants if self.best else ():
            assert self.best is not None
            plan = self.best.plan.with_number(name)
            if plan is not None:
                self.improve(plan)


def _is_about_dtype(error: BaseException | None) -> bool:
    words = r"dtype|double|float64|float32|scalar type|\bhalf\b"
    return error is not None and re.search(words, str(error), re.IGNORECASE) is not None


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
    if function is None or not error.startswith(("raised AttributeError", "raised NotImplementedError")):
        return ""
    children = [child.__name__ for child in function.__subclasses__() if child.__module__ == function.__module__]
    return f" It seems to be only a base of {', '.join(children[:4])}." if children else ""


def _sample(attempt: Attempt, seed: int) -> Sample:
    built = build(attempt.plan, seed)
    for name, leaf in zip(built.names, built.leaves):
        leaf.requires_grad_(bool(attempt.constants) and name not in attempt.constants)
    label = f"constant: {', '.join(attempt.constants)}" if attempt.constants else None
    typed = all(choice.from_annotation for choice, _ in attempt.plan.choices if choice.role != "omitted")
    return Sample(built.args, built.kwargs, name=label, provenance="typed" if typed else "synthesised")


def _notes(search: _Search) -> tuple[str, ...]:
    best = search.best
    assert best is not None
    notes = [f"no inputs are declared: these were found at try {best.number}"]
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
