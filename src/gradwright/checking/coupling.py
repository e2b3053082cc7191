"""Hypotheses about how elements act on each other: what backward mixes, leaves out, or takes from the wrong place.

Forward may treat slices along a dimension independently of each other (softmax its rows); what is said here is said of
each slice by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradwright.checking.blocks import Block, Diagnosis
from gradwright.checking.case import Case
from gradwright.checking.pattern import Pattern, along, find_pattern

MAX_SLICES = 64
CROSSED = 1e-9
"""A gradient across slices counts from this fraction of the largest one on."""


def crossing(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """Backward mixes slices that forward keeps apart: a sum, mean, index or flip along a dimension of its own."""
    return mixed_slices(block.case, block.input, block.output, _pattern(block))


def mixed_slices(case: Case, k: int, o: int, pattern: Pattern) -> Diagnosis | None:
    """Send a cotangent for one slice of the output, and look for gradient in the other slices of the input."""
    item, out_shape = case.inputs[k], case.real_output_shape(o)
    shape = (*item.tensor.shape, 2) if item.tensor.is_complex() else tuple(item.tensor.shape)
    for d, e in pattern.pairs:
        v = torch.zeros(case.m, dtype=torch.float64)
        size = out_shape[e]
        chosen = along(torch.arange(size) == size - 1, out_shape, e)
        numbers = 1 + torch.rand(len(chosen), generator=case.generator("mixed slices"), dtype=torch.float64)
        v[case.output_slice(o)] = torch.where(chosen, numbers, 0.0)
        gradient = case.pull_all(v)[k]
        outside = gradient[~along(torch.arange(size) == size - 1, shape, d)].abs()
        if bool((outside > CROSSED * gradient.abs().max()).any()):
            return Diagnosis(
                "crossing",
                f"backward mixes grad_output along dimension {e} of the output, along which forward keeps its slices "
                f"apart: elements of `{item.name}` get gradient from outputs that do not depend on them",
                f"look for a sum, mean, index or flip along the wrong dimension, {e}, in backward",
            )
    return None


def low_rank(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """What is missing has rank one: a mean, a norm or a normaliser that was treated as a constant."""
    found = False
    if not bool(block.known.all()):
        return None
    for numeric, analytic, bar in _slices(block):
        missing = numeric - analytic
        if min(missing.shape) < 3:
            return None
        singular = torch.linalg.svdvals(missing)
        noise = float(bar.norm()) + 1e-9 * float(singular[0])
        if float(singular[0]) <= 10 * noise:
            continue
        there = missing.abs() > bar
        # A single row or column has rank one whatever is wrong with it.
        if float(singular[1]) > noise or int(there.any(0).sum()) < 2 or int(there.any(1).sum()) < 2:
            return None
        found = True
    if not found:
        return None
    return Diagnosis(
        "low-rank",
        "what the gradient lacks has rank one: a mean, norm or normaliser over all elements was treated as a constant",
        "differentiate the normaliser too: its term is a sum over all outputs, the same for every element",
    )


def own_output_only(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """Backward is that of an elementwise function, though in forward each element acts on the outputs of others."""
    case = block.case
    tensor = case.inputs[block.input].tensor
    if tensor.is_complex() or tuple(tensor.shape) != case.real_output_shape(block.output):
        return None
    acts = total = 0
    for numeric, analytic, bar in _slices(block):
        if numeric.shape[0] != numeric.shape[1]:
            return None
        off = ~torch.eye(len(numeric), dtype=torch.bool)
        if bool((analytic[off] != 0).any()):
            return None
        acts += int((numeric[off].abs() > bar[off]).sum())
        total += int(off.sum())
    if not total or 2 * acts < total or not bool((block.analytic != 0).any()):
        return None
    return Diagnosis(
        "own-output-only",
        f"each element of {block.name} gets gradient from its own output alone, as if the function were elementwise; "
        "the terms by which it acts on the other outputs (through a sum, mean, norm or normaliser) are missing",
        "differentiate what the elements share too: its term is a sum over outputs of grad_output times something",
    )


def partial_sum(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """The contributions of some outputs are missing, and those of the others are right."""
    wrong = block.known & ((block.analytic - block.numeric).abs() > block.bar)
    right = block.known & ~wrong & (block.numeric.abs() > block.bar)
    if bool((block.analytic[wrong] != 0).any()) or not bool(right.any()):
        return None
    rows = wrong.any(dim=0).nonzero().flatten()
    if bool((right.any(dim=0) & wrong.any(dim=0)).any()):
        return None
    shape = block.case.outputs[block.output].shape
    scale = 2 if block.case.outputs[block.output].dtype.is_complex else 1
    first = list(map(int, torch.unravel_index(rows[0] // scale, shape)))
    return Diagnosis(
        "partial-sum",
        f"the gradient of {block.name} lacks what {len(rows)} of {block.analytic.shape[1]} elements of grad_output "
        f"contribute, the first at index {first}; what the others contribute is right",
        "sum over every dimension along which forward broadcast or reused the input, and over all of its length",
    )


def swapped_cotangents(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """The incoming gradients of two outputs have each other's place."""
    for other in others:
        if other.input != block.input or other.output == block.output or other.numeric.shape != block.numeric.shape:
            continue
        if block.explains(other.numeric) and other.explains(block.numeric):
            case = block.case
            return Diagnosis(
                "swapped-cotangents",
                f"the incoming gradients of {case.output_name(block.output)} and {case.output_name(other.output)} are "
                "swapped",
                "backward receives one gradient for each output, in the order in which forward returns them",
            )
    return None


def copied(block: Block, others: Sequence[Block]) -> Diagnosis | None:
    """One input gets the gradient of another."""
    for other in others:
        same_kind = other.output == block.output and other.whole and other.numeric.shape == block.numeric.shape
        if other.input == block.input or not block.whole or not same_kind or not other.explains(other.numeric):
            continue
        if block.explains(other.numeric):
            return Diagnosis(
                "copied",
                f"backward returns for {block.name} what is the gradient of {other.name}",
                "look for one variable returned twice, or one buffer (out=, an in-place operation) used for both",
            )
    return None


def _pattern(block: Block) -> Pattern:
    """Return the pattern of a block, which is looked for here where the block was compared whole."""
    return find_pattern(block.case, block.input, block.output) if block.whole else block.comparison.pattern


def _slices(block: Block) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Give the numeric and analytic entries and the bars of each independent slice, each (inputs, outputs)."""
    pattern = _pattern(block)
    for p in range(min(len(pattern.element), MAX_SLICES)):
        columns = (pattern.slice_of == p).nonzero().flatten()
        entries = [t[:, columns] for t in (block.numeric, block.analytic, block.bar)]
        if block.whole:
            entries = [t[pattern.element[p]] for t in entries]
        yield entries[0], entries[1], entries[2]
