"""The equations that solutions satisfy, as functions from lists of tensors to one vector.

Everything in :mod:`gradwright.implicit` is one theorem: where ``F(z, theta) = 0`` and ``dF/dz`` is invertible, ``z``
moves with ``theta`` by ``dz = -(dF/dz)^-1 (dF/dtheta) dtheta`` (implicit function theorem). A root gives its own ``F``;
a fixed point has ``F = z - f(z, theta)``; a minimum has the gradient of the objective, and with constraints that of the
Lagrangian beside the constraints themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from gradwright.authoring import trees
from gradwright.errors import RuleError, kind_of
from gradwright.implicit.lifting import Lifted
from gradwright.implicit.packing import Shapes, pack


class Given:
    """How the parameters of one call are built: the user's arguments, then the parameters of modules."""

    def __init__(self, structure: trees.Structure, names: Sequence[tuple[str, ...]]) -> None:
        self.structure = structure
        self.names = names
        """Of the parameters of each function."""

    def rebuild(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], list[dict[str, Tensor]]]:
        """Return the user's arguments and the parameters of each function."""
        left = iter(tensors)
        arguments = trees.rebuild(self.structure, left)
        return arguments, [{name: next(left) for name in names} for names in self.names]


class Equation:
    """``F(z, *params) = 0``, as ``root`` is given it."""

    what = "residual"

    def __init__(self, user: str, function: Any) -> None:
        self.user = user
        self.main = Lifted(user, self.what, function)

    @property
    def functions(self) -> tuple[Lifted, ...]:
        """The user's functions."""
        return (self.main,)

    @property
    def name(self) -> str:
        """What the equation is called in messages."""
        return self.main.title

    def solved_by(self, solver: Callable[..., Any]) -> Equation:
        """Return the same equation under a decorated solver, which messages name."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Lifted):
                setattr(other, name, value.solved_by(solver))
        return other

    def vector(self, unknown: trees.Structure, given: Given, z: Sequence[Tensor], rest: Sequence[Tensor]) -> Tensor:
        """Return ``F``, one number for each unknown."""
        arguments, weights = given.rebuild(rest)
        value = self.main(weights[0], trees.rebuild(unknown, iter(z)), *arguments)
        return self.packed(value, z)

    def packed(self, value: Any, like: Sequence[Tensor]) -> Tensor:
        """Return what the user's function returned in one vector as long as that of the unknowns.

        Raises:
            RuleError: it returned no tensors, or another number of elements.
        """
        found = tensors_of(self.name, self.what, value)
        expected = Shapes(self.name, like).count
        vector = pack(found)
        if len(vector) != expected:
            raise RuleError(
                f"{self.name}: the {self.what} has {len(vector)} elements (shape {_shapes(found)}) for {expected} "
                f"unknowns (shape {_shapes(like)}); expected as many equations as unknowns; give the unknown, which is "
                "the first argument, the shape of the solution."
            )
        return vector.to(like[0].dtype.to_real())

    def extended(
        self, unknown: trees.Structure, given: Given, z: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the unknowns that the solver does not return, besides those that it does."""
        return list(z)

    def visible(self, z: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the unknowns that the solver returns; undoes :meth:`extended`."""
        return z

    def refuse_other_points(
        self, unknown: trees.Structure, given: Given, z: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> None:
        """Refuse a point at which the equation holds without being what was looked for."""


class FixedPoint(Equation):
    """``z = f(z, *params)``."""

    what = "function"

    def vector(self, unknown: trees.Structure, given: Given, z: Sequence[Tensor], rest: Sequence[Tensor]) -> Tensor:
        """Return ``z - f``."""
        return pack(z) - super().vector(unknown, given, z, rest)


def tensors_of(name: str, what: str, value: Any) -> list[Tensor]:
    """Return the tensors in what a user's function returned.

    Raises:
        RuleError: there are none.
    """
    found = trees.tensors_in(value)
    if not found:
        raise RuleError(
            f"{name}: the {what} returned {kind_of(value)}; expected a tensor or a container of tensors, computed with "
            "PyTorch; a function of NumPy arrays is made one by gw.external."
        )
    return found


def scalar(name: str, what: str, value: Any) -> Tensor:
    """Return the one number that an objective returned.

    Raises:
        RuleError: it is something else.
    """
    found = tensors_of(name, what, value)
    if len(found) > 1 or found[0].numel() != 1 or found[0].is_complex():
        raise RuleError(
            f"{name}: the {what} returned {_shapes(found)}; expected one real number; return the sum, or use "
            "torch.func.vmap for one problem per sample."
        )
    return found[0].reshape(())


def _shapes(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(tuple(t.shape)) for t in tensors)
