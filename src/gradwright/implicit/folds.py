"""Where a solution is so near a fold, for how exactly it is known, that the digits of its gradient are in doubt.

The condition number does not show that: that of one unknown is 1 wherever the derivative of the equation is not exactly
zero, and for ``r^2 = 0`` at a computed ``r`` of 1e-12 it is not. What shows it is that ``A = dF/dz`` is another matrix
a little further. How much further the solution may be, the equation tells: a step of Newton's method. What is asked
for, ``w = A^-T v`` or ``A^-1 b``, would be off by ``A^-T (A' - A)^T w`` there, to first order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring import warned
from gradwright.errors import IllConditionedWarning, SingularMatrixError
from gradwright.implicit.options import SolveOptions

DOUBT = 0.05
"""Relative error of a gradient from which on it is told.

With SciPy's solvers and their default tolerances it is at most 0.003 for well-conditioned problems (``test_folds``).
"""

Solve = Callable[[Tensor, bool], Tensor]
"""Solves with the derivative of the equation, or, where told so, with its transpose."""


def look_for_fold(
    name: str,
    function: Callable[[Tensor], Tensor],
    z: Tensor,
    w: Tensor,
    solve: Solve,
    *,
    transposed: bool,
    options: SolveOptions,
) -> None:
    """Warn where ``w``, which was solved for at ``z``, is another where the equation holds better.

    It takes the equation twice, with a product of its derivative each time, and two solves. Of a batch the worst
    counts, of a batch of cotangents alone the first. How the parameters enter the equation is not looked at: that
    changes as little as the solution.

    Raises:
        SingularMatrixError: it is, and that is to be an error.
    """
    if options.on_ill_conditioned == "ignore" or torch_compat.anywhere(torch.isnan(w)) is None:
        return
    z, w = z.detach(), w.detach()
    if torch.func.debug_unwrap(z, recurse=True).numel() == z.numel():
        # Many cotangents of one solution, as in a Jacobian, would each cost as much again: the first stands for all.
        w = torch_compat.bare_sample(w)

    def product(pull: Callable[..., tuple[Tensor]]) -> Tensor:
        pushed = pull if transposed else torch.func.vjp(lambda c: pull(c)[0], torch.zeros_like(w))[1]
        found: Tensor = pushed(w)[0]
        return found

    with torch.no_grad():
        value, here = torch.func.vjp(function, z)[:2]
        if not torch_compat.anywhere(value != 0):  # the solution is exact, or hidden
            return
        try:
            there = torch.func.vjp(function, z - solve(value, False))[1]
        except Exception:  # the user's function refuses what is beside the solution: nothing is known of it
            return
        change = solve(product(there) - product(here), transposed).abs().amax() / w.abs().amax()
        error = torch.func.debug_unwrap(change, recurse=True).nan_to_num(0.0).max().item()
    if error <= DOUBT:
        return
    message = (
        f"{name}: the gradient may be off by {min(error, 1.0):.0%} of its size, since the solution is too near a point "
        "where it has no derivative (a fold) for how exactly it is known: one more step of Newton's method would "
        "change the gradient so much; let the solver iterate more exactly, compute in a wider dtype, keep away from "
        "there, or say linear=SolveOptions(on_ill_conditioned='ignore')."
    )
    if options.on_ill_conditioned == "raise":
        raise SingularMatrixError(message)
    warned.warn(message, IllConditionedWarning)
