"""A guess at the intent of a rule that fails and declares nothing, with the evidence for it.

A guess turns a failure into a suspicion, so it needs what no honest rule has: an output that jumps, which has no
derivative that could be meant; or a forward that returns its input as it is, which is written for its gradient alone.
Wherever a function moves smoothly and its gradient is another one, it is a failure, whatever the rule looks like.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradwright.checking.blocks import Block
from gradwright.checking.case import Case
from gradwright.checking.differences import FIRST_STEP, element_steps, signed
from gradwright.checking.intent import NOT_THE_DERIVATIVE, declared
from gradwright.checking.judge import State, largest_entry
from gradwright.checking.projection import Projection
from gradwright.checking.report import Outcome, Stated
from gradwright.errors import ForwardError, SampleError
from gradwright.typing import Intent, Level

LENGTHS = (1.0, 8.0, 64.0, 0.3)
"""How far, relative to the inputs, one goes to meet a jump."""
SHARES = (1.0, 1.0, 0.25)
"""The part of the elements that moves, in each of the directions."""
SHORTENED = 6
HALVINGS = 120
JUMP = 1e-5
"""A change this large, relative to the outputs, over a distance that is nothing, is a jump."""
GROWN = 100.0
"""An output so many times as large beside the jump as at the ends comes from a pole."""
HALF = 0.5
"""A quantised output has at most so many distinct values for each element, or so many elements that stay."""
ELEMENTS, SMALL = 16, 1e-6
"""So many elements are moved, each by this part of its size."""
EXACT = 1e-12
SIZES = (1.0, 3.0, 100.0, 1e4)
"""How far from the inputs it is seen whether forward returns them: beyond the bounds that a clamp may have."""
SECONDS: dict[Level, float] = {"quick": 2.0, "standard": 10.0, "full": 60.0}
"""No further direction is searched for a jump after that."""


LOOKS: dict[Intent, str] = {
    "surrogate": "a straight-through or surrogate gradient",
    "scaled": "a gradient that is scaled on purpose",
    "reversed": "a gradient reversal",
    "side-loss": "a loss that is added by its gradient alone",
}


@dataclass(frozen=True)
class Accused:
    """What is wrong about one input of one output: the entries, by both accounts."""

    input: int
    output: int
    analytic: Tensor
    numeric: Tensor
    bar: Tensor

    @property
    def flat(self) -> bool:
        """True when the output moves with none of the elements."""
        return bool((self.numeric.abs() <= self.bar).all() and self.bar.isfinite().all())


def guess(case: Case, blocks: Sequence[Block], projections: Sequence[Projection]) -> Stated | None:
    """Return what a rule seems to mean to be that does not match differences, or None."""
    try:
        return guess_surrogate(case, blocks, projections) or guess_identity(case)
    except Exception:  # a subject that raises elsewhere is not one to guess about, and its failure must not be lost
        return None


def guess_surrogate(case: Case, blocks: Sequence[Block], projections: Sequence[Projection]) -> Stated | None:
    """Return the guess that a rule which fails is a straight-through or surrogate gradient, or None.

    For every accused input the output must jump, and for one of them must not move otherwise, or be a quantised one
    whose levels follow the input, while backward passes the incoming gradient on as it is. Where it takes too long to
    look for jumps, an output that does not move is enough.
    """
    accused = [*_accused_entries(blocks), *_accused_projections(projections)]
    if not _open(case) or not accused:
        return None
    end = time.monotonic() + SECONDS[case.level]
    flat = {a.input for a in accused} - {a.input for a in accused if not a.flat}
    through = {a.input for a in accused if _passed_through(case, a.input) and _quantised(case, a.input)}
    if not flat | through:
        return None
    jumping = [jumps(case, k, end) for k in sorted({a.input for a in accused})]
    if False in jumping or (None in jumping and not flat):
        return None
    k = min(flat or through)
    name, one = f"`{case.inputs[k].name}`", next(a for a in accused if a.input == k)
    if not flat:
        seen = f"the output is quantised, in jumps with {name}, while backward passes the incoming gradient on as it is"
        return Stated(("surrogate",), "guessed", seen)
    count = sum(a.numeric.numel() for a in accused if a.input == k)
    none_of = f"0 of {count} difference{'s' if count != 1 else ''}"
    still = f"the output does not move with {name}{'' if None in jumping else ' except in jumps'} ({none_of})"
    return Stated(("surrogate",), "guessed", f"{still}, while backward gives {_largest(one.analytic):.4g}")


def guess_identity(case: Case) -> Stated | None:
    """Return the guess that a rule which fails is written for its gradient alone, as forward changes nothing, or None.

    Every output is one of the inputs, bit by bit, at several points and whatever the other arguments are. Then a
    constant factor is ``scaled`` or ``reversed``, and a gradient that comes whatever comes in, beside the right one, is
    ``side-loss``.
    """
    if not _open(case) or case.detached or not case.m:
        return None
    points = [flats for flats in _points(case) if not flats or bool(case.value(flats).isfinite().all())]
    sources = _sources(case, points)
    if sources is None or len(points) < 2 or any(_sources(other, [{}]) is None for other in _otherwise(case)):
        return None
    parts = [_parts(case, sources, {k: x for k, x in flats.items() if k in sources}) for flats in points]
    known = [part for part in parts if part is not None and _same(case, part.factors, parts[0])]
    if len(known) < len(parts):
        return None
    added = any(bool(b.any()) for part in known for b in part.offsets)
    return _side_loss(case, known) if added else _scaled(case, known[0])


def as_suspect(case: Case, guess: Stated, failed: Outcome) -> Outcome:
    """Return a failure as the suspicion that a guess makes of it: one finding, with what was seen and what to do."""
    word, subject = guess.value[0], case.subject
    marker = (
        f"with `# gradwright: {word}` above line {subject.line}, or " if subject.line and subject.hand_written else ""
    )
    compared = f", or with surrogate={_example(case)}, which it is then compared with" if word == "surrogate" else ""
    hint = f"if it is, declare it {marker}with intent={word!r}{compared}; else mend backward."
    message = f"this looks like {LOOKS[word]}, and nothing declares it: {guess.evidence}."
    finding = replace(failed.findings[0], verdict="suspect", message=message, hint=hint)
    return replace(failed, verdict="suspect", message=message, findings=(finding,), guess=guess)


def _example(case: Case) -> str:
    v = signed(case.m, case.generator("passed through"))
    straight = len(case.inputs) == 1 and case.n[0] == case.m and torch.equal(case.pull_all(v)[0], v)
    if not straight:
        return "the function whose derivative it uses"
    # It is called with the arguments of forward.
    names, through = [argument.name for argument in case.arguments], case.inputs[0].name
    named = through in names and all(map(str.isidentifier, names))
    return f"lambda {', '.join(names)}: {through}" if named else "lambda x: x"


def jumps(case: Case, k: int, end: float = math.inf) -> bool | None:
    """Tell whether the outputs jump somewhere as the ``k``-th input moves: by what no halving of a step lessens.

    None when the time ``end`` comes first.
    """
    x, generator = case.base[k], case.generator(f"jump {k}")
    unit = (element_steps(x) / FIRST_STEP).to(x.dtype)
    for length in LENGTHS:
        for share in SHARES:
            some = torch.rand(x.shape, generator=generator) < share
            u = length * unit * signed(case.n[k], generator).to(x.dtype) * some
            if _jumps_between(case, k, x, _within(case, k, u)):
                return True
            if time.monotonic() > end:
                return None
    return False


def _within(case: Case, k: int, u: Tensor) -> Tensor:
    """Return the first of the points x + u, x + u/2, ... at which forward has a value, or x."""
    for halved in range(SHORTENED):
        there = case.base[k] + u * 0.5**halved
        if bool(case.value({k: there}).isfinite().all()):
            return there
    return case.base[k]


def _open(case: Case) -> bool:
    return case.sample.surrogate is None and not declared(case) & (NOT_THE_DERIVATIVE | {"exact"})


def _jumps_between(case: Case, k: int, low: Tensor, high: Tensor) -> bool:
    """Follow the larger change from half to half."""
    at_low, at_high = case.value({k: low}), case.value({k: high})
    size = largest_entry(at_low, at_high)
    if not bool(at_low.isfinite().all() and at_high.isfinite().all()) or torch.equal(at_low, at_high):
        return False
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        if bool(((middle == low) | (middle == high)).all()):
            break
        value = case.value({k: middle})
        if not bool(value.isfinite().all()):
            return False
        if largest_entry(value - at_low) >= largest_entry(at_high - value):
            high, at_high = middle, value
        else:
            low, at_low = middle, value
        change = largest_entry(at_high - at_low)
        if change <= max(JUMP, 1e4 * case.epsilon) * size:
            return False
    return largest_entry(at_low, at_high) <= GROWN * size


def _accused_entries(blocks: Sequence[Block]) -> Iterator[Accused]:
    for block in blocks:
        wrong = block.comparison.state == State.WRONG
        if bool(wrong.any()):
            bar = block.comparison.estimate.bar
            yield Accused(block.input, block.output, block.analytic[wrong], block.numeric[wrong], bar[wrong])


def _accused_projections(projections: Sequence[Projection]) -> Iterator[Accused]:
    for projection in projections:
        element = projection.element
        if projection.wrong and element is not None:
            numbers = (torch.tensor([n], dtype=torch.float64) for n in (element.analytic, element.numeric, element.bar))
            yield Accused(projection.input, projection.output, *numbers)


def _passed_through(case: Case, k: int) -> bool:
    """Tell whether backward gives the incoming gradient as it is, or masked, for an input of the size of the output."""
    if len(case.outputs) != 1 or case.n[k] != case.m:
        return False
    v = signed(case.m, case.generator("passed through"))
    pulled = case.pull_all(v)[k]
    given = (pulled - v).abs() <= EXACT * v.abs()
    return bool((given | (pulled == 0)).all()) and bool(given.any())


def _quantised(case: Case, k: int) -> bool:
    """Tell whether an output of the size of an input has few levels, or most elements stay when theirs of it move."""
    value = case.value()
    digits = (value / (largest_entry(value) or 1.0) / 1e-9).round()
    if not bool(value.isfinite().all()) or len(digits.unique()) <= HALF * len(digits):
        return bool(value.isfinite().all())
    elements = torch.randperm(case.m, generator=case.generator("quantised"))[:ELEMENTS].tolist()
    unit = (element_steps(case.base[k]) / FIRST_STEP).to(case.base[k].dtype)
    stays = 0
    for i in elements:
        moved = case.base[k].clone()
        moved[i] += SMALL * unit[i]
        stays += bool(case.value({k: moved})[i] == value[i])
    return stays >= HALF * len(elements)


@dataclass(frozen=True)
class Parts:
    """What backward does to each input at one point: a factor of what comes in, and what it adds whatever comes in."""

    factors: dict[int, float]
    """Of each input that an output is a copy of."""
    offsets: list[Tensor]
    """B(0), for each input."""


def _points(case: Case) -> Iterator[dict[int, Tensor]]:
    """Give the inputs as they are, and other values of all of them, of both signs and up to large ones."""
    yield {}
    generator = case.generator("identity")
    for size in SIZES:
        yield {
            k: (x + size * (element_steps(x) / FIRST_STEP) * signed(case.n[k], generator)).to(x.dtype)
            for k, x in enumerate(case.base)
        }


def _sources(case: Case, points: Sequence[dict[int, Tensor]]) -> list[int] | None:
    """Return for each output which input it is a copy of at every point."""
    candidates = [set(range(len(case.inputs))) for _ in case.outputs]
    for flats in points:
        value = case.value(flats)
        for o, sources in enumerate(candidates):
            part = value[case.output_slice(o)]
            xs = {k: flats.get(k, case.base[k]).to(torch.float64) for k in sources}
            sources.intersection_update({k for k, x in xs.items() if torch.equal(x, part)})
        if not all(candidates):
            return None
    return [min(sources) for sources in candidates]


def _otherwise(case: Case) -> Iterator[Case]:
    """Give the case with one other argument changed: a product with 1, say, is the identity by chance."""
    differentiated = {item.argument for item in case.inputs}
    for number, argument in enumerate(case.arguments):
        for value in () if number in differentiated else _changed(argument.value):
            arguments = list(case.arguments)
            arguments[number] = replace(argument, value=value)
            with suppress(ForwardError, SampleError):  # it may well refuse another value
                yield case.on(arguments)


def _changed(value: Any) -> Sequence[Any]:
    """Return other values of an argument, of which one at least may make sense; none of what may be an index."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value + 0.3, value / 2]
    if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        return [value * 0.5 + 0.3]
    return [~value] if isinstance(value, Tensor) and value.dtype == torch.bool else []


def _parts(case: Case, sources: list[int], flats: dict[int, Tensor]) -> Parts | None:
    """Take a rule at one point apart; None when it is not a constant factor of what comes in and an offset."""
    offset = case.pull_all(torch.zeros(case.m, dtype=torch.float64), flats)
    factors: dict[int, float] = {}
    for number in range(3):
        v = signed(case.m, case.generator(f"parts {number}")) * 4.0**number
        v = v.to(case.dtype).to(torch.float64)  # what comes in must be what was sent
        for k, (pulled, b) in enumerate(zip(case.pull_all(v, flats), offset)):
            incoming = torch.zeros(case.n[k], dtype=torch.float64)
            for o, source in enumerate(sources):
                incoming += v[case.output_slice(o)] if source == k else 0.0
            linear = pulled - b
            allowed = max(EXACT, 64 * case.epsilon) * (linear.abs() + b.abs() + largest_entry(incoming))
            if k in sources and incoming.numel():
                ratio = float(torch.dot(linear, incoming) / incoming.square().sum())
                factor = factors.setdefault(k, ratio)
                linear = linear - factor * incoming
            if not bool((linear.abs() <= allowed).all()):  # not so for NaN
                return None
    return Parts(factors, offset)


def _same(case: Case, one: dict[int, float], other: Parts | None) -> bool:
    return other is not None and all(_close(case, c, other.factors[k]) for k, c in one.items())


def _close(case: Case, one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=max(1e-6, 4 * case.epsilon), abs_tol=1e-9)


def _scaled(case: Case, parts: Parts) -> Stated | None:
    others = {k: c for k, c in parts.factors.items() if not _close(case, c, 1.0)}
    if not others or any(case.n[k] == 1 for k in others):  # of a single number a sum and a mean are copies, too
        return None
    zeros = [a.name for a in case.arguments if isinstance(a.value, float) and a.value == 0.0]
    if 0.0 in others.values() and not zeros:
        return None  # a gradient that is lost is one that is lost
    word: Intent = "reversed" if any(c < 0 for c in others.values()) else "scaled"
    said = " and ".join(f"{c:.6g}{_named(case, c)} for `{case.inputs[k].name}`" for k, c in others.items())
    evidence = f"forward returns its input as it is, and backward multiplies the incoming gradient by {said}"
    return Stated((word,), "guessed", evidence)


def _named(case: Case, factor: float) -> str:
    """Say which argument a factor is, if any."""
    for argument in case.arguments:
        value = argument.value
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(number, float) and math.isclose(abs(number), abs(factor), rel_tol=1e-6):
            minus = "minus " if (number < 0) != (factor < 0) else ""
            return f" ({minus}the argument `{argument.name}`)"
    return ""


def _side_loss(case: Case, parts: Sequence[Parts]) -> Stated | None:
    """Guess a loss that is added to other inputs, or to the one that is passed on if it depends on that."""
    factors, offsets = parts[0].factors, parts[0].offsets
    if not all(_close(case, c, 1.0) for c in factors.values()):
        return None
    if any(bool(offsets[k].any()) and all(torch.equal(p.offsets[k], offsets[k]) for p in parts) for k in factors):
        return None  # a constant that is added to the gradient is no loss of anything
    said = [f"`{case.inputs[k].name}` {_largest(b):.6g}" for k, b in enumerate(offsets) if bool(b.any())]
    evidence = (
        "forward returns its input as it is, backward passes the incoming gradient on, and besides gives "
        f"{' and '.join(said) or 'something'} whatever comes in"
    )
    return Stated(("side-loss",), "guessed", evidence)


def _largest(values: Tensor) -> float:
    return float(values.flatten()[int(values.abs().argmax())])
