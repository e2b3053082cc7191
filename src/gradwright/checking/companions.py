"""Companions of a subject: the surrogate and the reference that a sample declares, run on the same arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gradwright.checking.parts import Pass
from gradwright.checking.tensors import copy_of, tensors_in
from gradwright.errors import SampleError, describe_exception

if TYPE_CHECKING:
    from gradwright.checking.case import Case

Word = Literal["surrogate", "reference"]


def companion_run(case: Case, word: Word, others: Mapping[int, Tensor] | None = None) -> Pass:
    """Run a declared companion on fresh copies of the case's arguments; all its outputs, whatever their shapes.

    Arguments:
        case: the case.
        word: which companion.
        others: tensors in the place of some inputs, by number.

    Raises:
        SampleError: it raises.
    """
    function = case.sample.surrogate if word == "surrogate" else case.sample.reference
    assert function is not None
    given = [(others or {}).get(k, item.tensor) for k, item in enumerate(case.inputs)]
    fresh = [copy_of(tensor).requires_grad_() for tensor in given]
    arguments = case.rebuild(fresh)
    positional = [a.value for a in arguments if a.origin == "positional"]
    keyword = {a.name: a.value for a in arguments if a.origin in ("keyword", "parameter")}
    try:
        with case.sandbox():
            outputs = tensors_in(function(*positional, **keyword))
    except Exception as error:
        raise SampleError(
            f"{case.subject.name}: the declared {word} raised {describe_exception(error)}; it is called with "
            f"the same arguments as forward {case.subject.signature}; change its parameters."
        ) from error
    return Pass(arguments, fresh, outputs, [out for out in outputs if out.requires_grad])


def companion_pass(case: Case, word: Word, others: Mapping[int, Tensor] | None = None) -> Pass:
    """Run a declared companion, whose outputs must be those that the case differentiates; see :func:`companion_run`.

    Raises:
        SampleError: it raises, or its outputs have other shapes than the subject's.
    """
    run = companion_run(case, word, others)
    outputs = run.outputs
    shapes = [tuple(out.shape) for out in outputs]
    expected = [tuple(o.shape) for o in case.outputs]
    if case.n_outputs != len(case.outputs) and len(outputs) == case.n_outputs:
        outputs = [outputs[o.position] for o in case.outputs]
        shapes = [tuple(out.shape) for out in outputs]
    if shapes != expected:
        raise SampleError(
            f"{case.subject.name}: the declared {word} returns outputs of the shapes {shapes}; expected the "
            f"shapes of forward's differentiable outputs, {expected}; return one tensor for each."
        )
    return Pass(run.arguments, run.inputs, outputs, outputs)


def pull_companion(case: Case, word: Word, v: Tensor) -> list[Tensor]:
    """Return the VJP of ``v`` through a companion, as real float64 vectors with zeros where it gives none."""
    run = companion_pass(case, word)
    pairs = [(out, c) for out, c in zip(run.outputs, case.cotangents(v)) if out.requires_grad]
    if not pairs:
        return [torch.zeros(n, dtype=torch.float64) for n in case.n]
    outputs = [out for out, _ in pairs]
    cotangents = [c.to(out.dtype) for out, c in pairs]
    with case.sandbox():
        return case.flatten_inputs(torch.autograd.grad(outputs, run.inputs, cotangents, allow_unused=True))
