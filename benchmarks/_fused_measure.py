"""What one scenario costs: time, what is kept, the peak and the error of the gradient, for ways to compute the same."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from _calls import leaves_of
from _fused_machine import Machine, work_of
from _timing import in_turns
from torch import Tensor

from tests.footprint import kept, peak_bytes

ROUNDS = 15
MIB = 1024 * 1024
Quantity = Literal["time", "peak", "kept"]


@dataclass(frozen=True)
class Candidate:
    """One way to compute the same."""

    name: str
    run: Callable[..., Any]
    """Takes the arguments of the scenario."""
    same: bool = True
    """Whether it computes the same as the plain way; else it is there for what it costs."""


@dataclass(frozen=True)
class Target:
    """What must hold: a quantity of ``name`` is at most so many times that of ``against``."""

    name: str
    against: str
    quantity: Quantity
    most: float


@dataclass(frozen=True)
class Scenario:
    """A call of some size, and the ways to compute it, the plain one first."""

    title: str
    args: tuple[Any, ...]
    """Those that require a gradient are differentiated."""
    candidates: Sequence[Candidate]
    targets: Sequence[Target] = ()
    random: bool = False
    """Whether its values are random, so that gradients cannot be compared."""
    compiled: bool | None = None
    """Whether the plain way is measured compiled as well; None where that is asked for."""


def with_compiled(scenario: Scenario, ours: bool = False) -> Scenario:
    """Return a scenario with the plain way compiled beside the others, and ``ours`` with those of ``gw`` as well."""
    chosen = {"PyTorch, compiled": scenario.candidates[0].run}
    if ours:
        mine = [c for c in scenario.candidates if c.name.startswith("`gw.")]
        chosen |= {f"{c.name}, compiled": c.run for c in mine}
    found = [Candidate(name, torch.compile(run)) for name, run in chosen.items()]
    return replace(scenario, candidates=[*scenario.candidates, *found])


@dataclass(frozen=True)
class Figures:
    """What one candidate costs."""

    seconds: float
    wall: float
    """Its time as a part of that of the plain way."""
    cpu: float
    saved: int
    hidden: int
    peak: int
    error: float | None
    """The largest of its gradients, relative to the largest element of each; None where it cannot be told."""
    bound: float
    """Its time as a multiple of what the machine needs at least."""

    def of(self, quantity: Quantity) -> float:
        """Return a quantity that can be compared between candidates."""
        return {"time": self.seconds, "peak": float(self.peak), "kept": float(self.saved + self.hidden)}[quantity]


@dataclass(frozen=True)
class Result:
    """What was measured of a scenario."""

    scenario: Scenario
    """Without its arguments, which are large."""
    figures: Mapping[str, Figures]
    pairs: Mapping[tuple[str, str], float]
    """Ratios of times in the same round, for the targets."""

    def ratio(self, target: Target) -> float:
        """Return a quantity as a part of what it is compared with."""
        if target.quantity == "time":
            return self.pairs[target.name, target.against]
        ours, theirs = self.figures[target.name].of(target.quantity), self.figures[target.against].of(target.quantity)
        return ours / theirs if theirs else (math.inf if ours else 0.0)

    def judged(self) -> list[tuple[Target, float]]:
        """Return the targets whose candidates were measured, with the ratio that was found."""
        known = [t for t in self.scenario.targets if t.name in self.figures and t.against in self.figures]
        return [(target, self.ratio(target)) for target in known]


@dataclass
class Step:
    """Forward and backward of one candidate."""

    candidate: Candidate
    args: tuple[Any, ...]
    cotangents: list[Tensor] = field(default_factory=list)

    def outs(self) -> list[Tensor]:
        """Run the forward alone."""
        out = self.candidate.run(*self.args)
        return [o for o in (out if isinstance(out, (tuple, list)) else [out]) if o.requires_grad]

    def __call__(self) -> tuple[Tensor, ...]:
        leaves = leaves_of(self.args)
        return torch.autograd.grad(self.outs(), leaves, self.cotangents, materialize_grads=True)


def measured(scenario: Scenario, machine: Machine, quick: bool) -> Result:
    """Measure every candidate of a scenario, in turns."""
    plain = scenario.candidates[0]
    outs = [out.detach() for out in Step(plain, scenario.args).outs()]
    torch.manual_seed(1)
    cotangents = [torch.ones_like(out) if out.dim() == 0 else torch.randn_like(out) for out in outs]
    steps = {c.name: Step(c, scenario.args, cotangents) for c in scenario.candidates}
    leaves = leaves_of(scenario.args)
    least = machine.least(work_of(steps[plain.name], scenario.args, outs, leaves))
    del outs
    true = None if scenario.random else truth(plain, scenario.args, cotangents)
    errors = {name: error(step(), true if step.candidate.same else None) for name, step in steps.items()}
    del true
    footprints = {name: footprint(step) for name, step in steps.items()}
    turns = in_turns(steps, 1 if quick else ROUNDS, 0.0 if quick else 0.02)
    figures = {}
    for name, turn in turns.items():
        wall, cpu = turn.ratios(turns[plain.name])
        saved, hidden, peak = footprints[name]
        figures[name] = Figures(turn.seconds, wall, cpu, saved, hidden, peak, errors[name], turn.seconds / least)
    pairs = {
        (t.name, t.against): turns[t.name].ratios(turns[t.against])[0]
        for t in scenario.targets
        if t.name in turns and t.against in turns
    }
    return Result(replace(scenario, args=()), figures, pairs)


def footprint(step: Step) -> tuple[int, int, int]:
    """Return what hooks see of what is kept, what they do not see, and the peak: bytes."""
    call = functools.partial(step.candidate.run, *step.args)
    try:
        found = kept(call, step.args)
    except RuntimeError as error:  # it uses torch.func in its forward
        if "saved tensor hooks" not in str(error):
            raise
        found = kept(call, step.args, hooks=False)
    with _without_errors():
        return found.saved, found.hidden, peak_bytes(step)


@contextlib.contextmanager
def _without_errors() -> Iterator[None]:
    """Keep away what PyTorch's profiler writes to the standard error each time that it starts and stops."""
    sys.stderr.flush()
    saved = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def truth(plain: Candidate, args: Sequence[Any], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of the plain way in float64."""
    wide = tuple(
        x.detach().double().requires_grad_(x.requires_grad) if isinstance(x, Tensor) and x.is_floating_point() else x
        for x in args
    )
    return Step(plain, wide, [g.double() for g in cotangents])()


def error(grads: Sequence[Tensor], true: Sequence[Tensor] | None) -> float | None:
    """Return how far gradients are from the truth, each relative to its largest element."""
    if true is None:
        return None
    worst = 0.0
    for grad, want in zip(grads, true):
        size = float(want.abs().max()) if want.numel() else 0.0
        off = float((grad - want).abs().max()) if want.numel() else 0.0
        worst = max(worst, off / size if size else off)
    return worst
