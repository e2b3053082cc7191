"""Minima: solutions of ``min f(z, *params)``, with and without equality constraints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from gradwright.errors import unknown_choice
from gradwright.implicit import solvers
from gradwright.implicit.calling import Settings, Solve
from gradwright.implicit.kkt import Stationary
from gradwright.implicit.modules import solve_of
from gradwright.implicit.natives import Native
from gradwright.implicit.options import Method, SolveOptions
from gradwright.implicit.packing import Shapes, pack
from gradwright.implicit.plan import Task
from gradwright.implicit.status import Status

DENSE_UP_TO = 200
"""Up to how many unknowns the default solver uses the Hessian."""


def argmin(
    objective: Callable[..., Any],
    /,
    *,
    constraints: Callable[..., Any] | None = None,
    has_aux: bool = False,
    arrays: bool = False,
    tol_residual: float | None = None,
    linear: Method | SolveOptions = "auto",
    method: str = "auto",
    tol: float | None = None,
    max_steps: int = 200,
) -> Solve:
    """Find the ``z`` that minimises ``objective(z, *params)``, as a differentiable function of the parameters.

    It is called, and decorates other solvers, as :func:`root` does: SciPy's ``minimize``, a training loop, anything.
    For the cotangent ``v`` of ``z`` and the Hessian ``H`` of the objective::

        H w = v,    gradient of the parameters = -(d/dparams grad_z f)^T w

    With constraints the same holds for the conditions of Karush, Kuhn and Tucker (Fiacco, 1983), whose multipliers are
    found from ``z``. The point must be a strict minimum: up to 1,000 unknowns that is looked at, and saddles and flat
    places raise where the result is differentiated.

    If only the *value* of the minimum is wanted, as a function of the parameters, no system needs to be solved: its
    gradient is that of ``objective(z.detach(), *params)`` (envelope theorem).

    Arguments:
        objective: a function of PyTorch operations that returns one real number; of a module the parameters get
            gradients, and what is returned is a module, which registers it as ``objective`` (and ``constraints``).
        constraints: a function ``e(z, *params)`` that is zero where the constraints hold. They must be independent of
            each other. Inequalities are not differentiated: give those that are active at the solution.
        has_aux, arrays, tol_residual, linear, tol, max_steps: as for :func:`root`.
        method: of the default solver: ``"newton"``, ``"lbfgs"`` (without constraints), or ``"auto"``: the second beyond
            200 unknowns.

    Example:
        >>> import torch, gradwright as gw
        >>> solve = gw.implicit.argmin(lambda z, t: (z - t).square().sum() + z.square().sum())
        >>> t = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> z = solve(torch.zeros(2), t)
        >>> z, torch.autograd.grad(z.sum(), t)  # doctest: +ELLIPSIS
        (tensor([0.5000, 1.0000], grad_fn=<...>), (tensor([0.5000, 0.5000]),))
    """
    if method not in ("auto", "newton", "lbfgs"):
        raise unknown_choice("argmin: method", method, ("auto", "newton", "lbfgs"))
    own = {"tol": tol, "max_steps": max_steps}
    options = {
        "constraints": constraints,
        "has_aux": has_aux,
        "arrays": arrays,
        "tol_residual": tol_residual,
        "linear": linear,
        "method": method,
        **own,
    }
    equation = Stationary("argmin", objective, constraints)

    settings = Settings.of(equation, has_aux, arrays, tol_residual, linear, own)
    return solve_of(equation, settings, _Minimise(equation, method, own), (argmin, (objective,), options))


class _Minimise(Native):
    """The default solvers."""

    def __init__(self, equation: Stationary, method: str, options: dict[str, Any]) -> None:
        self.equation, self.method, self.options = equation, method, options

    def one(self, task: Task, start: Sequence[Tensor], rest: Sequence[Tensor]) -> tuple[list[Tensor], Status]:
        """Solve one problem."""
        shapes = Shapes(self.equation.name, start)
        objective, constraints = self.equation.parts(task.start, task.given, shapes, rest)
        z, method = pack(start).clone(), self.method
        if constraints is None and (method == "lbfgs" or (method == "auto" and len(z) > DENSE_UP_TO)):
            found, status = solvers.quasi_newton(objective, z, **self.options)
        else:
            found, status = solvers.descend(objective, constraints, z, **self.options)
        return shapes.unpack(found), status
