"""Tensors that the user's functions use without receiving them: no gradient would arrive there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring import trees
from gradwright.authoring.captured import captured_names
from gradwright.errors import RuleError
from gradwright.implicit.equations import Equation, Given
from gradwright.implicit.lifting import Lifted


def refuse_captured_around(
    equation: Equation, unknown: trees.Structure, given: Given, z: Sequence[Tensor], rest: Sequence[Tensor]
) -> None:
    """Refuse tensors that a transform around the call is at; inside of it PyTorch takes them for constants.

    Raises:
        RuleError: there is one.
    """
    point = [torch_compat.bare_sample(t) for t in z]
    fixed = [torch_compat.bare_sample(t) for t in rest]
    value_of_constants(equation, unknown, given, equation.extended(unknown, given, point, fixed), fixed)


def value_of_constants(
    equation: Equation, unknown: trees.Structure, given: Given, z: Sequence[Tensor], rest: Sequence[Tensor]
) -> Tensor:
    """Return the value of the equation for tensors without gradient; it has none either, unless it uses others.

    Raises:
        RuleError: it does.
    """
    with torch.enable_grad(), torch_compat.forward_mode_enabled():
        value = equation.vector(unknown, given, z, rest)
    if torch_compat.moves(value):
        raise captured_error(equation)
    return value.detach()


def captured_error(equation: Equation) -> RuleError:
    """Build the error for a tensor that is not passed."""
    return RuleError(
        f"{equation.name}: it uses a tensor that requires grad, or that a transform is at, without receiving it as an "
        f"argument{named(*equation.functions)}, so that no gradient would arrive there; expected everything that is "
        f"trained among the arguments; call solve(z0, theta) and write `def {equation.main.name}(z, theta)`, give the "
        "module itself (or a method of it) in place of a function that uses it, or use `.detach()` on what is a "
        "constant."
    )


def named(*functions: Lifted) -> str:
    """Return the names of what functions use without receiving it, in brackets, as far as they are seen."""
    with torch_compat.forward_mode_enabled():
        found = {f"`{name}`": None for each in functions for name in captured_names(each.function, torch_compat.moves)}
    return f" ({', '.join(found)})" if found else ""
