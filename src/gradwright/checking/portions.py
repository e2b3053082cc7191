"""Smaller inputs: the leading part of large ones, where forward still runs on it.

Dimensions of the same size are cut together, so that matrices still fit. What cannot be cut stays as it is; large
inputs are then examined along random directions.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from gradwright.checking import trees
from gradwright.checking.limits import STOPS, TimeLimitError, time_limit
from gradwright.checking.randomness import fixed_random_state
from gradwright.checking.samples import Sample, describe_value
from gradwright.checking.settings import preserved_settings
from gradwright.checking.subject import Subject
from gradwright.errors import describe_exception

ENOUGH = 4096
"""Elements of all inputs together that are worth no cut: matrices of all derivatives can still be built."""
SECONDS_A_TRY = 10.0
_LENGTHS = (256, 128, 64, 32, 16, 8)
_MOST_SIZES = 4
"""Distinct sizes that are cut, the largest ones."""


def made_smaller(subject: Subject, sample: Sample, seed: int) -> tuple[Sample, str]:
    """Return the leading part of the inputs on which forward runs, and what was cut; both as they were if small."""
    tensors = [leaf for leaf in trees.flatten([sample.args, dict(sample.kwargs)])[0] if isinstance(leaf, Tensor)]
    if sample.elements <= ENOUGH:
        return sample, ""
    best = sample
    for lengths in _cuts(tensors):
        cut = _cut(sample, lengths)
        if cut.elements < best.elements and why_it_fails(subject, cut, seed) is None:
            best = cut
            if best.elements <= ENOUGH:
                break
    if best is sample:
        return sample, "the inputs are large, and forward runs on no part of them: derivatives along random directions"
    was, now = _shapes(sample), _shapes(best)
    changed = dict.fromkeys(f"{a} -> {b}" for a, b in zip(was, now) if a != b)
    return best, f"only the leading part of large inputs is taken: {', '.join(changed)}"


def why_it_fails(subject: Subject, sample: Sample, seed: int) -> str | None:
    """Run forward once without a trace and return what it raised, if it did."""
    try:
        with (
            fixed_random_state(seed),
            preserved_settings(),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            time_limit(SECONDS_A_TRY),
        ):
            warnings.simplefilter("ignore")
            subject.call(subject.bind(replace(sample, args=_copied(sample.args), kwargs=_copied(dict(sample.kwargs)))))
    except TimeLimitError:
        return f"forward did not return within {SECONDS_A_TRY:g} s"
    except STOPS:
        raise
    except BaseException as error:
        return f"forward raised {describe_exception(error)}"
    return None


def _cuts(tensors: list[Tensor]) -> Iterator[dict[int, int]]:
    """Yield new lengths by old ones: of all large sizes, of the first dimension alone, of all others, of some."""
    sizes = sorted({size for t in tensors for size in t.shape if size > _LENGTHS[-1]}, reverse=True)[:_MOST_SIZES]
    batch = {t.shape[0] for t in tensors[:1] if t.dim()}
    chosen = [sizes, [s for s in sizes if s in batch], [s for s in sizes if s not in batch]]
    chosen += [list(some) for count in (2, 1) for some in combinations(sizes, count)]
    for some in filter(None, chosen):
        yield _lengths(tensors, some)


def _lengths(tensors: list[Tensor], sizes: list[int]) -> dict[int, int]:
    lengths: dict[int, int] = {}
    for longest in _LENGTHS:
        # Each its own length, so that it shows when two are mixed up, and multiples of each other as sizes often are.
        lengths = {size: min(size, max(longest >> place, 2)) for place, size in enumerate(sizes)}
        if sum(_elements(t, lengths) for t in tensors) <= ENOUGH:
            break
    return lengths


def _elements(tensor: Tensor, lengths: Mapping[int, int]) -> int:
    return int(torch.Size([lengths.get(size, size) for size in tensor.shape]).numel())


def _cut(sample: Sample, lengths: Mapping[int, int]) -> Sample:
    def part(value: Any) -> Any:
        if not isinstance(value, Tensor) or not any(size in lengths for size in value.shape):
            return value
        places = tuple(slice(lengths.get(size, size)) for size in value.shape)
        return value.detach()[places].clone().requires_grad_(value.requires_grad)

    args, kwargs = _mapped(part, sample.args), _mapped(part, dict(sample.kwargs))
    return replace(sample, args=args, kwargs=kwargs, doubt="The inputs were cut to a part")  # rows no longer sum to one


def _copied(value: Any) -> Any:
    return _mapped(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, value)


def _mapped(change: Any, value: Any) -> Any:
    leaves, structure = trees.flatten(value)
    return trees.unflatten([change(leaf) for leaf in leaves], structure)


def _shapes(sample: Sample) -> list[str]:
    leaves, _ = trees.flatten([sample.args, dict(sample.kwargs)])
    return [describe_value(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
