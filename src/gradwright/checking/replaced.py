"""Whether a gradient that differs from the rule's is the derivative of forward's own operations.

Transforms that trace forward may keep its operations and lose the rule that was attached to them. What they give then
is not noise: it is the derivative that autograd makes up itself, and saying so tells the user what happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.case import Case
from gradwright.checking.differences import FIRST_STEP, differentiate_sum, element_steps, signed
from gradwright.checking.judge import Tolerance, largest_entry
from gradwright.checking.tensors import tensors_in
from gradwright.checking.transforms import Result, leaves


def replacement(case: Case, v: Tensor, got: Result, flats: Mapping[int, Tensor] | None = None) -> str | None:
    """Return in words what took the place of the rule, or None when that cannot be told.

    Arguments:
        v: the cotangent.
        got: what the transform gave, known to differ from the rule.
        flats: other values of some inputs.
    """
    zero = all(float(g.abs().sum()) == 0.0 for g in got.gradients)
    if not got.connected:
        return "the result is cut off from its inputs: there is no gradient at all"
    own = _of_body(case, v, flats)
    same = _agree(case, got.gradients, own) if own is not None else _follows_differences(case, v, got, flats)
    if same:
        said = "the rule was dropped and replaced by autograd's own derivative of the operations in forward"
        return said + (", which is zero" if zero else "")
    return "the gradient is silently zero" if zero else None


class _Context:
    """Takes the place of ctx where forward is called by itself; whatever it is told is forgotten."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad

    def save_for_backward(self, *tensors: Any) -> None:
        """Forget."""

    def save_for_forward(self, *tensors: Any) -> None:
        """Forget."""

    def mark_dirty(self, *tensors: Any) -> None:
        """Forget."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Forget."""

    def set_materialize_grads(self, value: bool) -> None:
        """Forget."""


def _of_body(case: Case, v: Tensor, flats: Mapping[int, Tensor] | None) -> list[Tensor] | None:
    """Return the gradients that autograd gives for forward called outside of apply; None when it cannot."""
    function = case.subject.function
    if function is None:
        return None
    fresh = leaves(case, flats)
    try:
        values = [a.value for a in case.rebuild([t.clone() for t in fresh] if case.in_place else fresh)]
        with case.sandbox():
            if torch_compat.has_setup_context(function):
                result = function.forward(*values)
            else:
                result = function.forward(_Context(tuple(isinstance(x, Tensor) for x in values)), *values)
            outputs = [tensors_in(result)[o.position] for o in case.outputs]
            pairs = [(out, c) for out, c in zip(outputs, case.cotangents(v)) if out.requires_grad]
            if not pairs:
                return case.flatten_inputs([None] * len(fresh))
            got: Any = torch.autograd.grad([o for o, _ in pairs], fresh, [c for _, c in pairs], allow_unused=True)
    except Exception:  # the user's forward may want more of its ctx than there is
        return None
    return case.flatten_inputs([None if g is None else g.detach() for g in got])


def _agree(case: Case, a: list[Tensor], b: list[Tensor]) -> bool:
    tolerance, largest = Tolerance.for_epsilon(case.epsilon), largest_entry(*a, *b)
    return all(
        bool((((x - y).abs() <= 10 * tolerance.at(x, y, largest)) | (x.isnan() & y.isnan())).all())
        for x, y in zip(a, b)
    )


def _follows_differences(case: Case, v: Tensor, got: Result, flats: Mapping[int, Tensor] | None) -> bool:
    """Tell whether the gradient is the true derivative, along one random direction for each input."""
    at = {k: (flats or {}).get(k, x) for k, x in enumerate(case.base)}
    for k, x in at.items():
        if not case.n[k]:
            continue
        u = signed(case.n[k], case.generator(f"replaced {k}")) * (element_steps(x) / FIRST_STEP)

        def terms(flat: Tensor, k: int = k) -> Tensor:
            return v * case.value({**at, k: flat})

        estimate = differentiate_sum(terms, x, u, case.epsilon)
        products = got.gradients[k] * u
        allowed = float(estimate.bar) + 1e-8 * float(products.abs().sum())
        if not abs(float(products.sum()) - float(estimate.value)) <= allowed:
            return False
    return True
