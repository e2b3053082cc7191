"""The equations of a minimum, with and without equality constraints, and whether a point is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright.authoring import trees
from gradwright.errors import DefinitionError, UndefinedGradientError, kind_of
from gradwright.implicit.equations import Equation, Given, scalar, tensors_of
from gradwright.implicit.lifting import Lifted
from gradwright.implicit.packing import Shapes, pack

LOOKED_AT_UP_TO = 1000
"""For how many unknowns it is looked whether a point is a minimum: the Hessian is made whole for that."""


class Stationary(Equation):
    """The gradient of an objective is zero.

    With constraints ``e(z) = 0`` it is that of the Lagrangian ``f + nu . e``, and the constraints hold: the conditions
    of Karush, Kuhn and Tucker for equalities. The multipliers ``nu`` are unknowns too.
    """

    what = "objective"

    def __init__(self, user: str, objective: Any, constraints: Any = None) -> None:
        super().__init__(user, objective)
        self.constraints: Lifted | None = None
        if constraints is not None:
            if not callable(constraints):
                raise DefinitionError(
                    f"{self.name}: constraints is {kind_of(constraints)}; expected one function `e(z, *params)` of "
                    "which all elements are zero at the solution; inequalities are not differentiated: put those that "
                    "are active at the solution into e, or use a barrier in the objective."
                )
            self.constraints = Lifted(user, "constraints", constraints)

    @property
    def functions(self) -> tuple[Lifted, ...]:
        """The objective, and the constraints where there are any."""
        return (self.main,) if self.constraints is None else (self.main, self.constraints)

    def vector(self, unknown: trees.Structure, given: Given, z: Sequence[Tensor], rest: Sequence[Tensor]) -> Tensor:
        """Return the gradient of the Lagrangian by the unknowns, and the constraints."""
        free = self.visible(z)
        objective, constraints = self.parts(unknown, given, Shapes(self.name, free), rest)
        if constraints is None:
            slope: Tensor = torch.func.grad(objective)(pack(free))
            return slope
        multipliers = z[-1]

        def lagrangian(vector: Tensor) -> tuple[Tensor, Tensor]:
            held = constraints(vector)
            return objective(vector) + multipliers @ held, held

        slope, held = torch.func.grad(lagrangian, has_aux=True)(pack(free))
        return torch.cat([slope, held])

    def extended(
        self, unknown: trees.Structure, given: Given, z: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the unknowns and the multipliers, which balance the gradient of the objective best."""
        if self.constraints is None:
            return list(z)
        slope, jacobian = self._jacobian(unknown, given, z, rest)
        return [*z, torch.linalg.lstsq(jacobian.T, -slope.unsqueeze(1)).solution.squeeze(1)]

    def visible(self, z: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the unknowns without the multipliers."""
        return z if self.constraints is None else z[:-1]

    def refuse_other_points(
        self, unknown: trees.Structure, given: Given, z: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> None:
        """Refuse a saddle, a maximum and a flat place.

        Raises:
            UndefinedGradientError: the Hessian is not positive definite along the constraints.
        """
        free = self.visible(z)
        shapes = Shapes(self.name, free)
        if shapes.count > LOOKED_AT_UP_TO:
            return
        tail = [] if self.constraints is None else [z[-1]]

        def slope(point: Tensor) -> Tensor:
            return self.vector(unknown, given, [*shapes.unpack(point), *tail], rest)[: shapes.count]

        hessian = torch.func.jacrev(slope)(pack(free))
        if self.constraints is not None:
            basis = null_space(self._jacobian(unknown, given, free, rest)[1])
            hessian = basis.T @ hessian @ basis
        lowest, highest = _extremes(hessian)
        small = 4 * max(1, len(hessian)) * torch.finfo(hessian.dtype).eps * highest
        if lowest > small:
            return
        place = "a flat place" if lowest >= -small else "a maximum or saddle"
        along = "" if self.constraints is None else " along the constraints"
        raise UndefinedGradientError(
            f"{self.name}: the point that the solver returned is {place}, not a strict minimum{along} (the curvatures "
            f"go from {lowest:.3g} to {highest:.3g}), so that the solution has no derivative; expected a Hessian that "
            "is positive definite; start elsewhere, or add a term that makes the minimum unique (1e-6 * z.square())."
        )

    def parts(
        self, unknown: trees.Structure, given: Given, shapes: Shapes, rest: Sequence[Tensor]
    ) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor] | None]:
        """Return the objective and the constraints as functions of one vector."""
        arguments, weights = given.rebuild(rest)

        def objective(vector: Tensor) -> Tensor:
            point = trees.rebuild(unknown, iter(shapes.unpack(vector)))
            return scalar(self.name, self.what, self.main(weights[0], point, *arguments))

        def constraints(vector: Tensor) -> Tensor:
            assert self.constraints is not None
            point = shapes.unpack(vector)
            return self._held(self.constraints(weights[1], trees.rebuild(unknown, iter(point)), *arguments), point)

        return objective, None if self.constraints is None else constraints

    def _jacobian(
        self, unknown: trees.Structure, given: Given, z: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient of the objective and the Jacobian of the constraints."""
        objective, constraints = self.parts(unknown, given, Shapes(self.name, z), rest)
        assert constraints is not None
        vector = pack(z)
        return torch.func.grad(objective)(vector), torch.func.jacrev(constraints)(vector)

    def _held(self, value: Any, like: Sequence[Tensor]) -> Tensor:
        return pack(tensors_of(self.name, "constraints", value)).to(like[0].dtype.to_real())


def null_space(jacobian: Tensor) -> Tensor:
    """Return an orthonormal basis of the directions along which no constraint changes; the constraints are regular."""
    full = torch.linalg.qr(jacobian.T, mode="complete").Q
    return full[:, len(jacobian) :]  # type: ignore[no-any-return]


def _extremes(hessian: Tensor) -> tuple[float, float]:
    """Return the lowest curvature and the largest in size."""
    if not len(hessian):
        return 1.0, 1.0
    values = torch.linalg.eigvalsh((hessian + hessian.mT) / 2)
    return float(values[0]), float(values.abs().max())
