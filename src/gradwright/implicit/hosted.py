"""Any solver of a linear system, differentiable: what it computes with is never looked at, only what it returns.

Derivatives are those of :mod:`~gradwright.implicit.systems`: the tangent is solved for by the solver itself, the
cotangent by the solver of the transposed system if there is one, else by the library. Every result is put into the
equation, and refused where it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring import trees
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.unedited import unedited
from gradwright.errors import ConvergenceError, RuleError, kind_of
from gradwright.implicit.options import SolveOptions
from gradwright.implicit.probes import spread
from gradwright.implicit.systems import System, alive, operator_solve


class HostedSystem(System):
    """A system with a solver of its own."""

    def __init__(
        self,
        matvec: Callable[..., Any],
        structure: trees.Structure,
        options: SolveOptions,
        name: str,
        solvers: tuple[Callable[..., Any], Callable[..., Any] | None],
        *,
        arrays: bool,
    ) -> None:
        """``solvers`` are that of the system and, perhaps, that of its conjugate transpose.

        They take ``b`` and the parameters but the first, the weights of a module; with ``arrays`` NumPy arrays.
        """
        super().__init__(matvec, structure, options, name)
        self.arrays = arrays
        # An operator that is its own conjugate transpose has the solver for both.
        self.solvers = (solvers[0], solvers[0] if options.assume_a == "pos" else solvers[1])

    @property
    def has_adjoint_solver(self) -> bool:
        """Tell whether the system with the conjugate transpose has a solver too."""
        return self.solvers[1] is not None

    def hosted(self, b: Tensor, leaves: Sequence[Tensor]) -> Tensor:
        """Return what the solver returns, once it was put into the equation."""
        solver = self.solvers[self.is_adjoint]
        assert solver is not None, "asked for only where there is one"
        called = getattr(solver, "__name__", self.name)
        if torch_compat.anywhere(torch.isnan(b)) is None:
            raise RuleError(
                f"{called}: a solver must be given values, which are hidden where a program is recorded and in the old "
                "vmap behind is_grads_batched=True; expected a call outside of torch.export and make_fx, and "
                "torch.func.vmap."
            )
        with torch.no_grad():
            _, *params = self.params([leaf.detach() for leaf in leaves])
            values = [b.detach(), *params]
            if self.arrays:
                values = [_as_array(value) for value in values]
            message = (
                f"{called}: it edited one of its arguments in place, so that what others keep of that tensor is wrong; "
                "expected a new tensor; compute on a copy, or say arrays=True to be given copies."
            )
            returned = unedited(lambda: solver(*values), [b, *leaves], message)
            x = _as_solution(called, returned, b)
            self._require_solution(called, x, b, leaves)
            return x

    def _require_solution(self, called: str, x: Tensor, b: Tensor, leaves: Sequence[Tensor]) -> None:
        # Relative to the size of the matrix too, as far as one product shows it: so good a solution of a system that
        # is ill-conditioned can be, and no better.
        probe = spread(b)
        growth = _norm(self.apply(probe, leaves)) / _norm(probe)
        size = growth * _norm(x) + _norm(b)
        residual = _norm(b - self.apply(x, leaves))
        allowed = torch.finfo(b.dtype).eps ** 0.5 if self.options.tol is None else self.options.tol
        if torch_compat.anywhere(torch.isfinite(b).all() & ~(residual <= allowed * size)):
            which = "the conjugate transpose of the operator" if self.is_adjoint else "the operator"
            raise ConvergenceError(
                f"{called}: what it returned is no solution: the residual of {which} {self.name!r} is "
                f"{(residual / size).item():.1e} of its size, above {allowed:.1e}; expected a solution of the same "
                "system as matvec describes; correct the solver or matvec, or let it iterate further; or raise tol."
            )


def _as_array(value: Any) -> Any:
    """Return a value with NumPy arrays in the place of tensors; copies, into which a solver may write."""
    leaves: list[Tensor] = []
    structure = trees.flatten(value, leaves)
    arrays = (leaf.detach().cpu().resolve_conj().resolve_neg().numpy().copy() for leaf in leaves)
    return trees.rebuild(structure, arrays)


def _as_solution(called: str, result: Any, b: Tensor) -> Tensor:
    """Return what a solver returned as a tensor of its own, like ``b``."""
    try:
        x = result if isinstance(result, Tensor) else torch.as_tensor(result)
    except (TypeError, ValueError, RuntimeError):
        raise RuleError(
            f"{called}: it returned {kind_of(result)}; expected the solution: a tensor, an array or a number."
        ) from None
    if x.shape != b.shape:
        raise RuleError(
            f"{called}: it returned the shape {tuple(x.shape)} for a b of the shape {tuple(b.shape)}; expected the "
            "same shape."
        )
    if x.is_complex() and not b.is_complex():
        raise RuleError(f"{called}: it returned {x.dtype} for a b of {b.dtype}; expected a real solution; cast b.")
    # A copy, since the solver may use its memory again in the next call.
    return x.detach().to(dtype=b.dtype, device=b.device, copy=True)


def _norm(x: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x)
    return found


@custom_gradient(autocast="off")
def hosted_solve(system: Any, b: Tensor, leaves: Any) -> Tensor:
    """Return the solution of a :class:`HostedSystem`."""
    found: Tensor = system.hosted(b, leaves)
    return found


@hosted_solve.vjp
def _hosted_vjp(g: Tensor, system: Any, leaves: Any, out: Tensor, needs: Any) -> Any:
    system.require_unchanged()
    g, out, leaves = *alive([g, out]), alive(leaves or [])
    if system.has_adjoint_solver:
        w = hosted_solve(system.adjoint, g, leaves)
    else:
        params, name = system.params(leaves), system.name
        w = operator_solve(system.matvec, g, params, transposed=True, options=system.options, name=name)
    return {"b": w, "leaves": system.pull(out, leaves, -w) if needs["leaves"] else None}


@hosted_solve.jvp
def _hosted_jvp(t: Any, system: Any, leaves: Any, out: Tensor) -> Any:
    b, moves = t["b"], t["leaves"]
    (out,), leaves = alive([out]), alive(leaves or [])
    if moves is not None:
        moved = system.push(out, leaves, moves)
        b = -moved if b is None else b - moved
    return None if b is None else hosted_solve(system, b, leaves)


@hosted_solve.vmap
def _hosted_vmap(info: Any, in_dims: Any, system: Any, b: Tensor, leaves: Any) -> Any:
    places = in_dims.leaves or [None] * len(leaves)
    found = [
        hosted_solve(system, _row(b, in_dims.b, i), [_row(leaf, place, i) for leaf, place in zip(leaves, places)])
        for i in range(info.batch_size)
    ]
    return torch.stack(found), 0


def _row(tensor: Tensor, place: int | None, i: int) -> Tensor:
    return tensor if place is None else tensor.select(place, i)
