"""Forward mode: tangents pushed through a case by PyTorch's dual numbers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from gradwright.checking.case import Case
from gradwright.checking.tensors import copy_of, from_flat, tensors_in


@dataclass
class Push:
    """One forward with tangents."""

    tangents: list[Tensor | None]
    """Of each differentiable output; None where nothing arrives."""
    given: list[Tensor]
    """The tangents that were handed over, after the call."""
    primals: list[Tensor]


def push(
    case: Case,
    directions: Sequence[Tensor | None],
    flats: Mapping[int, Tensor] | None = None,
    function: type[Function] | None = None,
) -> Push:
    """Push a real flat direction for each input (None: no tangent) through forward.

    Raises whatever PyTorch or the subject raises.
    """
    flats = flats or {}
    fresh = [
        from_flat(flats[k], item.tensor) if k in flats else copy_of(item.tensor) for k, item in enumerate(case.inputs)
    ]
    tangents = [None if u is None else from_flat(u, t) for u, t in zip(directions, fresh)]
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore")
        duals = [
            t.requires_grad_() if d is None else forward_ad.make_dual(t.requires_grad_(), d)
            for t, d in zip(fresh, tangents)
        ]
        if case.in_place:
            duals = [t.clone() for t in duals]
        with case.sandbox():
            outputs = tensors_in(case.subject.call(case.rebuild(duals), function))
        chosen = [forward_ad.unpack_dual(outputs[o.position]) for o in case.outputs]
    return Push(
        [None if pair.tangent is None else pair.tangent.detach() for pair in chosen],
        [t for t in tangents if t is not None],
        [pair.primal.detach() for pair in chosen],
    )


def push_flat(case: Case, directions: Sequence[Tensor | None], flats: Mapping[int, Tensor] | None = None) -> Tensor:
    """Return the JVP as one real vector of length ``m``, with zeros where no tangent arrives."""
    return case.flatten_outputs(push(case, directions, flats).tangents)


def has_jvp(case: Case) -> bool:
    """Tell whether the subject is a Function with a ``jvp`` of its own."""
    function = case.subject.function
    return function is not None and function.jvp is not Function.jvp


def call_flat(case: Case, flats: Sequence[Tensor]) -> Tensor:
    """Run forward on the given real tensors, keeping any transform they carry, and join the outputs into one vector.

    Only for real inputs and outputs: it is what ``torch.func`` differentiates.
    """
    placed = [flat.reshape(item.tensor.shape).to(item.tensor.dtype) for flat, item in zip(flats, case.inputs)]
    if case.in_place:
        placed = [t.clone() for t in placed]
    with case.sandbox():
        outputs = tensors_in(case.subject.call(case.rebuild(placed)))
    return torch.cat([outputs[o.position].reshape(-1).to(torch.float64) for o in case.outputs])
