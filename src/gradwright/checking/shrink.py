"""Shrinking: a smaller sample on which the same contract fails in the same way, for a repro that can be read.

The finding stays what it is, about the sample that was given: only its script changes. In this order: fewer inputs that
are differentiated, smaller dimensions, contiguous tensors, simple values, float64. Every step is kept only when the
contract still fails on the same input and output with a finding of the same kind.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwright.checking import repro, trees
from gradwright.checking.case import Case
from gradwright.checking.contracts import Contract
from gradwright.checking.limits import time_limit
from gradwright.checking.report import COMPOSES, Finding
from gradwright.checking.resizing import keep_in_range
from gradwright.checking.samples import describe_value
from gradwright.checking.settings import preserved_settings
from gradwright.checking.tensors import same_bits
from gradwright.checking.variants import Place, Slot, quietly, slots, try_vary
from gradwright.typing import Level

SECONDS: dict[Level, float] = {"quick": 0.0, "standard": 1.0, "full": 5.0}
"""How long the findings of one report may be shrunk, all together."""
TRIES: dict[Level, int] = {"quick": 0, "standard": 60, "full": 300}
SMALL = 4
"""Tensors of this many elements with tidy values are left alone."""
SHORTEST = 2
"""Dimensions are not cut down further: a wrong element beside a right one says more than a wrong one alone."""
SIMPLE = (0.0, 1.0, -1.0, 2.0, 0.5)
DIGITS = 3


@dataclass(frozen=True)
class _Found:
    """A sample on which the finding is there, and the finding made on it."""

    case: Case
    finding: Finding


class Shrinker:
    """Shrinks the repros of one report within one budget of time and tries."""

    def __init__(self, level: Level) -> None:
        self.seconds = SECONDS[level]
        self.tries = TRIES[level]
        self._deadline: float | None = None
        self._small: list[tuple[Case, Case]] = []
        """Samples that were shrunk, each with what became of it: often several contracts fail for one reason."""

    def shrink(self, contract: Contract, case: Case, finding: Finding, seconds: float) -> Finding:
        """Return the finding with a script on a smaller sample, if there is one.

        Arguments:
            contract: what failed.
            case: on what.
            finding: what it found; its script is the one to be made smaller.
            seconds: how long the contract took.
        """
        if finding.repro is None or not self.tries or not _is_of_sample(case, finding.repro) or _is_small(case):
            return finding
        # A compiler takes seconds whatever the size, and is best not interrupted.
        if contract.asks == COMPOSES and seconds > self.seconds / 2:
            return finding
        if self._deadline is None:
            self._deadline = time.monotonic() + self.seconds
        best = self._smallest(contract, _Found(case, finding))
        if best.case is case or best.finding.repro is None:
            return finding
        self._small.append((case, best.case))
        return replace(finding, repro=f"# {_words(case, best.case)}\n{best.finding.repro}")

    def _smallest(self, contract: Contract, start: _Found) -> _Found:
        best = start
        for original, small in self._small:
            found = self._try(contract, start, lambda small=small: small) if original is start.case else None  # type: ignore[misc]
            best = found or best
        for step in (_fewer_inputs, _smaller, _contiguous, _simple_values, _double):
            going = True
            while going:
                going = False
                for candidate in step(best):
                    found = self._try(contract, start, candidate)
                    if found is not None:
                        best, going = found, step is _smaller or step is _simple_values
                        break
        return best

    def _try(self, contract: Contract, start: _Found, candidate: Callable[[], Case | None]) -> _Found | None:
        """Return what the contract finds on a candidate when it is the same kind of thing."""
        assert self._deadline is not None
        left = self._deadline - time.monotonic()
        if left <= 0 or self.tries <= 0:
            return None
        self.tries -= 1
        try:
            with time_limit(left), preserved_settings(), quietly():
                case = candidate()
                outcome = contract.examine(case) if case is not None else None
        except KeyboardInterrupt:
            raise
        except BaseException:
            return None
        if case is None or outcome is None or outcome.verdict != "fail":
            return None
        same = [f for f in outcome.findings if _kind(f) == _kind(start.finding) and f.repro is not None]
        return _Found(case, same[0]) if same else None


def _kind(finding: Finding) -> tuple[object, ...]:
    """What a finding is about and, in the words before any number, what it says."""
    where = finding.where
    words = re.split(r"[:(]| in |[-+]?\b\d", finding.message)[0]
    return finding.verdict, words.strip(), where and where.input, where and where.output


def _is_of_sample(case: Case, script: str) -> bool:
    """Tell whether a script runs on the sample itself, not on a variant of it."""
    return any(all(line in script for line in repro.argument_lines(c)) for c in (case, case.exact))


def _own(case: Case) -> list[Slot]:
    """Return the tensors of the sample, which a module's state is no part of."""
    return [s for s in slots(case) if not s.state and s.tensor.layout == torch.strided]


def _is_small(case: Case) -> bool:
    return all(s.tensor.numel() <= SMALL and _is_tidy(s.tensor) for s in _own(case))


def _is_tidy(tensor: Tensor) -> bool:
    return same_bits(_mapped(tensor, _short), tensor.detach())


# ---------------------------------------------------------------- the steps, each a few candidates

Candidates = Iterator[Callable[[], "Case | None"]]


def _fewer_inputs(found: _Found) -> Candidates:
    """Differentiate the input that the finding is about alone."""
    where = found.finding.where
    name = where.input if where is not None else None
    if name is None or len(found.case.inputs) < 2 or name not in {s.name for s in _own(found.case)}:
        return
    yield lambda: _differentiating(found.case, name)


def _differentiating(case: Case, name: str) -> Case:
    chosen = {s.place for s in slots(case) if s.name == name}
    arguments = []
    for a, argument in enumerate(case.arguments):
        leaves, structure = trees.flatten(argument.value)
        leaves = [
            leaf.detach().requires_grad_((a, i) in chosen)
            if (isinstance(leaf, Tensor) and leaf.requires_grad) or (a, i) in chosen
            else leaf
            for i, leaf in enumerate(leaves)
        ]
        arguments.append(replace(argument, value=trees.unflatten(leaves, structure)))
    return case.on(arguments)


def _smaller(found: _Found) -> Candidates:
    """Cut down all dimensions of one size together, the largest first; then single ones."""
    tensors = _own(found.case)
    for size in sorted({size for s in tensors for size in s.tensor.shape if size > SHORTEST}, reverse=True):
        dims = [(s, d) for s in tensors for d, length in enumerate(s.tensor.shape) if length == size]
        groups = [dims] if len(dims) == 1 else [dims, *([dim] for dim in dims)]
        for group in groups:
            for length in sorted({SHORTEST, (size + 1) // 2}):
                for start in _starts(found.finding, group, size, length):
                    changed = _cut(tensors, group, start, length, size)
                    yield lambda changed=changed: try_vary(found.case, changed)  # type: ignore[misc]


def _starts(finding: Finding, group: list[tuple[Slot, int]], size: int, length: int) -> list[int]:
    """Return where to cut: around the element that is wrong, then at the beginning."""
    where = finding.where
    place = 0
    if where is not None and where.index is not None:
        place = next((where.index[d] for s, d in group if s.name == where.input and d < len(where.index)), 0)
    return list(dict.fromkeys([min(place, size - length), 0]))


def _cut(
    tensors: list[Slot], group: list[tuple[Slot, int]], start: int, length: int, size: int
) -> Mapping[Place, Tensor]:
    changed: dict[Place, Tensor] = {}
    for slot, d in group:
        changed[slot.place] = changed.get(slot.place, slot.tensor.detach()).narrow(d, start, length)
    for slot in tensors:
        if slot.tensor.dtype in (torch.int64, torch.int32):  # it may index what was cut
            kept = keep_in_range(changed.get(slot.place, slot.tensor.detach()), size, length)
            if kept is not None and kept is not slot.tensor:
                changed[slot.place] = kept
    return changed


def _contiguous(found: _Found) -> Candidates:
    changed = {s.place: s.tensor.detach().contiguous().clone() for s in _own(found.case) if not _is_plain(s.tensor)}
    if changed:
        yield lambda: try_vary(found.case, changed)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.storage_offset() == 0


def _simple_values(found: _Found) -> Candidates:
    """Replace numbers by near ones that are short to write, in all tensors at once, then in each."""
    if sum(s.tensor.numel() for s in _own(found.case)) > repro.MAX_LITERAL:
        return  # the script makes random numbers up
    ugly = [s for s in _own(found.case) if not _is_tidy(s.tensor)]
    for number in (_simplest, _short):
        for group in [ugly] if len(ugly) == 1 else [ugly, *([s] for s in ugly)]:
            changed = {s.place: _mapped(s.tensor, number) for s in group}
            if changed:
                yield lambda changed=changed: try_vary(found.case, changed)  # type: ignore[misc]


def _double(found: _Found) -> Candidates:
    changed = {
        s.place: s.tensor.detach().to(torch.complex128 if s.tensor.is_complex() else torch.float64)
        for s in _own(found.case)
        if s.tensor.is_floating_point() or s.tensor.is_complex()
    }
    if any(changed[s.place].dtype != s.tensor.dtype for s in _own(found.case) if s.place in changed):
        yield lambda: try_vary(found.case, changed)


def _simplest(value: float) -> float:
    return min(SIMPLE, key=lambda simple: abs(simple - value)) if value == value else value


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _mapped(tensor: Tensor, number: Callable[[float], float]) -> Tensor:
    """Replace every floating-point number of a tensor."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_complex(_mapped(torch.view_as_real(tensor.resolve_conj()), number))
    if not tensor.is_floating_point():
        return tensor
    flat = [number(value) for value in tensor.reshape(-1).tolist()]
    return torch.tensor(flat, dtype=tensor.dtype).reshape(tensor.shape)


def _words(case: Case, small: Case) -> str:
    """Say how the sample of the script came from the one that was given."""
    pairs = list(zip(_own(case), _own(small)))
    shrunk = [
        f"{old.name}: {describe_value(old.tensor)}"
        for old, new in pairs
        if describe_value(old.tensor) != describe_value(new.tensor)
    ]
    if shrunk:
        return f"shrunk from {', '.join(shrunk)}"
    return "the sample with simpler values"
