"""What rules return, in the form that PyTorch wants: one tensor for each tensor, in its shape and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring import trees
from gradwright.authoring.derive import Meta, differentiable
from gradwright.errors import RuleError, did_you_mean


def collect(
    name: str,
    rule: str,
    names: Sequence[str],
    candidates: Sequence[int],
    result: Any,
    structures: Sequence[trees.Structure],
) -> list[Tensor | None]:
    """Return what a VJP rule returned as one gradient for each tensor among the arguments.

    Arguments:
        name: of the function.
        rule: the name of the rule.
        names: of the arguments.
        candidates: positions of the arguments that can have a gradient.
        result: a tensor, a tuple or a dict of gradients, or None.
        structures: one for each argument.

    Raises:
        RuleError: ``result`` has another form.
    """
    holding = [i for i, structure in enumerate(structures) if trees.count(structure)]
    listed = ", ".join([names[i] for i in candidates])
    by_place: dict[int, Any] = {}
    if isinstance(result, dict):
        for key, grad in result.items():
            if key not in names:
                raise RuleError(
                    f"{name}: the rule {rule!r} returned a gradient for {key!r}; expected names among {listed}; "
                    f"correct the name.{did_you_mean(str(key), names)}"
                )
            by_place[names.index(key)] = grad
    elif isinstance(result, tuple):
        places = next((p for p in (candidates, holding) if len(p) == len(result)), None)
        if places is None:
            raise RuleError(count_message(name, rule, len(result), [names[i] for i in candidates]))
        by_place = dict(zip(places, result))
    elif len(candidates) == 1 or len(holding) == 1:
        by_place[candidates[0] if len(candidates) == 1 else holding[0]] = result
    elif isinstance(result, Tensor):
        raise RuleError(
            f"{name}: the rule {rule!r} returned one tensor, but {len(holding)} arguments are tensors "
            f"({', '.join([names[i] for i in holding])}); expected a dict by argument name; write "
            f"`return {{{names[holding[0]]!r}: ...}}`."
        )
    elif result is not None:
        raise RuleError(
            f"{name}: the rule {rule!r} returned a {type(result).__name__}; expected a tensor, a tuple in the order of "
            "the arguments, a dict by argument name, or None."
        )
    grads: list[Tensor | None] = []
    for i, structure in enumerate(structures):
        trees.match(structure, by_place.get(i), f"{name}: the rule {rule!r} returned for {names[i]!r}", grads)
    return grads


def count_message(name: str, rule: str, number: int, candidates: Sequence[str]) -> str:
    """Say that a VJP rule has another number of gradients than there are arguments that can have one."""
    gradients = "1 gradient" if number == 1 else f"{number} gradients"
    arguments = "1 argument" if len(candidates) == 1 else f"{len(candidates)} arguments"
    return (
        f"{name}: the rule {rule!r} returns {gradients} for {arguments} ({', '.join(candidates)}); expected one for "
        "each that can have a gradient by its annotation, None for zero; or return a dict by argument name."
    )


def fit(grad: Tensor, meta: Meta, where: str) -> Tensor | None:
    """Return a gradient in the shape and dtype of its argument; broadcast dimensions are summed, as autograd does."""
    shape, dtype, _ = meta
    if not differentiable(meta):
        return None
    if grad.shape != shape:
        grad = summed(grad, shape, where)
    if grad.is_complex() and not dtype.is_complex:
        grad = grad.real
    return grad if grad.dtype == dtype else grad.to(dtype)


def summed(grad: Tensor, shape: torch.Size, where: str) -> Tensor:
    """Return a gradient in the shape of its argument, by summing the dimensions in which that was broadcast."""
    try:
        return grad.sum_to_size(shape)
    except RuntimeError:
        raise RuleError(
            f"{where} a gradient of shape {tuple(grad.shape)}; expected {tuple(shape)}, the shape of the argument."
        ) from None


def expand(tangent: Tensor, meta: Meta, where: str) -> Tensor:
    """Return a tangent in the shape and dtype of its output."""
    shape, dtype, _ = meta
    if tangent.shape != shape:
        try:
            tangent = tangent.expand(shape)
        except RuntimeError:
            raise RuleError(
                f"{where} a tangent of shape {tuple(tangent.shape)}; expected {tuple(shape)}, the shape of the output."
            ) from None
    return tangent if tangent.dtype == dtype else tangent.to(dtype)
