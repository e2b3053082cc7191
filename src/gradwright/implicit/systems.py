"""Linear systems whose matrix is known by what it does, ``A(params) x = b``, and their derivatives.

With ``x = A^-1 b``, the tangent solves ``A dx = db - dA x``; for a cotangent ``g`` of ``x``, that of ``b`` is
``w = A^-H g`` and that of the parameters is the one that ``-A(params) x`` has for ``w`` (Giles, Collected matrix
derivative results, 2008). Both are systems of the same kind, so that derivatives of any order follow. Of the matrix a
direct method needs one factorisation for all of them: it is made from constants and handed on as a constant, while
derivatives go by the parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring import autocast, trees
from gradwright.authoring.decorator import custom_gradient
from gradwright.authoring.derive import smooth
from gradwright.errors import ConvergenceError, RuleError, kind_of
from gradwright.implicit import dense, krylov
from gradwright.implicit.options import SolveOptions

DIRECT_AFTER_ALL = 5000
"""Up to how many unknowns the matrix is formed where ``method="auto"`` did not get there without: 200 MB in float64."""

Look: TypeAlias = Callable[[Tensor, Callable[[Tensor, bool], Tensor]], None]
"""Gets a solution and what solves the same system, or the transposed one, for other right sides."""


def operator_solve(
    matvec: Callable[..., Any],
    b: Tensor,
    params: Sequence[Any] = (),
    *,
    transposed: bool = False,
    options: SolveOptions = SolveOptions(),  # noqa: B008  # it cannot be changed
    name: str | None = None,
    watch: Callable[[], None] | None = None,
    look: Look | None = None,
) -> Tensor:
    """Return the solution ``x`` of ``matvec(x, *params) = b``, differentiable in ``b`` and ``params`` to any order.

    Arguments:
        matvec: a function of PyTorch operations that is linear in its first argument and returns the same shape.
        b: floating point or complex, of any shape.
        params: what else ``matvec`` takes: tensors, containers of tensors and constants.
        transposed: solve with the conjugate transpose of the operator instead.
        options: method, accuracy, and what happens where the operator is ill-conditioned.
        name: of the user's function, for messages; by default that of ``matvec``.
        watch: called before a derivative is computed; raises where the operator is another by then.
        look: called with the solution and a function ``solve(b, transposed)``, where the method is direct.

    Raises:
        SingularMatrixError: there is no unique solution; or the matrix is ill-conditioned, and that is to be an error.
        ConvergenceError: an iterative method did not get there.
        DomainError: the matrix has nan or infinite entries.
    """
    title = name or str(getattr(matvec, "__name__", type(matvec).__name__))
    options.check(title)
    refuse_export(title)
    if torch.compiler.is_dynamo_compiling():
        return torch_compat.call_untraced(  # type: ignore[no-any-return]
            _operator_solve,
            (matvec, b, params, transposed, options, title, watch, look),
            f"{title}: torch.compile cannot record a linear solve whose result is checked; leave fullgraph=True away, "
            "so that it is run between two graphs.",
        )
    return _operator_solve(matvec, b, params, transposed, options, title, watch, look)


def refuse_export(name: str) -> None:
    """Refuse to be recorded by ``torch.export``, which has nowhere else to go.

    Raises:
        RuleError: it records.
    """
    if torch_compat.is_exporting() and not torch.compiler.is_dynamo_compiling():
        raise RuleError(
            f"{name}: torch.export cannot record a linear solve whose result is checked; expected a matrix, whose "
            "solve is kept whole; write gw.implicit.linear_solve(A, b), or leave the solve out of what is exported."
        )


def _operator_solve(
    matvec: Callable[..., Any],
    b: Tensor,
    params: Sequence[Any],
    transposed: bool,
    options: SolveOptions,
    name: str,
    watch: Callable[[], None] | None,
    look: Look | None,
) -> Tensor:
    dense.require_wide(name, b)
    leaves: list[Tensor] = []
    structure = trees.flatten(tuple(params), leaves)
    system = System(matvec, structure, options, name)
    system.watch = watch
    if b.numel() == 0:
        return b.clone()
    factors: Sequence[Tensor] = ()
    if options.resolved(b.numel()) == "direct":
        matrix = system.matrix([leaf.detach() for leaf in leaves], b)
        factors = dense.factorised(name, matrix, options)
    x = _solve(system.adjoint if transposed else system, b, leaves, factors)
    if factors and look is not None:
        look(x, lambda b, transposed: dense.solved(factors, b.reshape(-1, 1), adjoint=transposed).reshape(b.shape))
    return x


def alive(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors that were saved, perhaps within a transform that has ended since, as that of a solve around."""
    return [torch_compat.unwrap_dead(tensor) for tensor in tensors]


class System:
    """An operator ``x -> matvec(x, *params)``, or its conjugate transpose, without the tensors in ``params``."""

    def __init__(
        self, matvec: Callable[..., Any], structure: trees.Structure, options: SolveOptions, name: str
    ) -> None:
        """``structure`` puts the tensors back into ``params``."""
        self.matvec, self.structure, self.options, self.name = matvec, structure, options, name
        self.is_adjoint = False
        self.watch: Callable[[], None] | None = None
        """Raises once the operator is another than when it was solved."""

    def require_unchanged(self) -> None:
        """Refuse to be differentiated where the operator is another by now."""
        if self.watch is not None:
            self.watch()

    @property
    def adjoint(self) -> System:
        """The conjugate transpose."""
        other = copy.copy(self)
        other.is_adjoint = not self.is_adjoint
        return other

    def params(self, leaves: Sequence[Tensor]) -> tuple[Any, ...]:
        """Return the arguments after ``x``, with the tensors ``leaves`` in them."""
        found: tuple[Any, ...] = trees.rebuild(self.structure, iter(leaves))
        return found

    def apply(self, x: Tensor, leaves: Sequence[Tensor]) -> Tensor:
        """Apply the operator; ``leaves`` are the tensors in ``params``. Autocast is off, for its digits."""
        params = self.params(leaves)
        with autocast.replay(None, x):
            if not self.is_adjoint:
                return self._checked(self.matvec(x, *params), x)
            # The adjoint of a linear map is its VJP, at any point.
            pull = torch.func.vjp(lambda x: self._checked(self.matvec(x, *params), x), torch.zeros_like(x))[1]
            found: Tensor = pull(x)[0]
            return found

    def _checked(self, out: Any, x: Tensor) -> Tensor:
        if not isinstance(out, Tensor):
            raise RuleError(
                f"{self.name}: it returned {kind_of(out)}; expected the product of the matrix with x: a tensor of the "
                f"shape {tuple(x.shape)}."
            )
        if out.shape != x.shape:
            raise RuleError(
                f"{self.name}: it returned a tensor of the shape {tuple(out.shape)} for an x of the shape "
                f"{tuple(x.shape)}; expected the same shape, since the matrix is square; correct the function or b."
            )
        if out.dtype != x.dtype:
            raise RuleError(
                f"{self.name}: it returned {out.dtype} for an x of {x.dtype}, which has the dtype of b; expected the "
                "same; cast b or the parameters."
            )
        return out

    def matrix(self, leaves: Sequence[Tensor], b: Tensor) -> Tensor:
        """Return the operator as a matrix, for unknowns of the shape of ``b``."""

        def column(unit: Tensor) -> Tensor:
            return self.apply(unit.reshape(b.shape), leaves).reshape(-1)

        with torch.no_grad():
            eye = torch.eye(b.numel(), dtype=b.dtype, device=b.device)
            try:
                found: Tensor = torch.func.vmap(column, out_dims=1)(eye)
            except (RuntimeError, NotImplementedError):  # a function whose course depends on values, for example
                found = torch.stack([column(unit) for unit in eye], 1)
            return found

    def solve(self, b: Tensor, leaves: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
        """Solve without a gradient; ``factors`` are those of the operator that is not transposed."""
        if factors:
            return dense.solved(factors, b.reshape(-1, 1), adjoint=self.is_adjoint).reshape(b.shape)
        transposed = self.adjoint
        try:
            return krylov.solved(
                self.name,
                lambda x: self.apply(x.reshape(b.shape), leaves).reshape(-1),
                lambda x: transposed.apply(x.reshape(b.shape), leaves).reshape(-1),
                b.reshape(-1),
                self.options,
            ).reshape(b.shape)
        except ConvergenceError:
            if self.options.method != "auto" or b.numel() > DIRECT_AFTER_ALL:
                raise
            own = dense.factorised(self.name, self.matrix(leaves, b), self.options)
            return dense.solved(own, b.reshape(-1, 1), adjoint=False).reshape(b.shape)

    def pull(self, x: Tensor, leaves: Sequence[Tensor], w: Tensor) -> list[Tensor | None]:
        """Return the gradient of each of ``leaves`` for the cotangent ``w`` of what the operator makes of ``x``."""
        places, moving = self._moving(x, leaves)
        grads: list[Tensor | None] = [None] * len(leaves)
        if places:
            pull = torch.func.vjp(moving, *(leaves[i] for i in places))[1]
            for place, grad in zip(places, pull(w)):
                grads[place] = grad
        return grads

    def push(self, x: Tensor, leaves: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Tensor:
        """Return how what the operator makes of ``x`` moves with ``leaves``.

        It is the transpose of :meth:`pull`, so that of ``matvec`` nothing but reverse mode is asked for.
        """
        places, moving = self._moving(x, leaves)
        given = [leaves[i] for i in places]

        def pulled(w: Tensor) -> tuple[Tensor, ...]:
            pull = torch.func.vjp(moving, *given)[1]
            return tuple(pull(w))

        transposed = torch.func.vjp(pulled, torch.zeros_like(x))[1]
        moves = (tangents[i] for i in places)
        found: Tensor = transposed(tuple(torch.zeros_like(g) if t is None else t for g, t in zip(given, moves)))[0]
        return found

    def _moving(self, x: Tensor, leaves: Sequence[Tensor]) -> tuple[list[int], Callable[..., Tensor]]:
        places = [i for i, leaf in enumerate(leaves) if smooth(leaf)]

        def moving(*given: Tensor) -> Tensor:
            filled = list(leaves)
            for place, tensor in zip(places, given):
                filled[place] = tensor
            return self.apply(x, filled)

        return places, moving


@custom_gradient(autocast="off")
def _solve(system: Any, b: Tensor, leaves: Any, factors: Any) -> Tensor:
    found: Tensor = system.solve(b, leaves, factors)
    return found


@_solve.vjp
def _solve_vjp(g: Tensor, system: Any, leaves: Any, factors: Any, out: Tensor, needs: Any) -> Any:
    system.require_unchanged()
    g, out, leaves, factors = *alive([g, out]), alive(leaves or []), alive(factors or [])
    w = _solve(system.adjoint, g, leaves, factors)
    return {"b": w, "leaves": system.pull(out, leaves, -w) if needs["leaves"] else None}


@_solve.jvp
def _solve_jvp(t: Any, system: Any, leaves: Any, factors: Any, out: Tensor) -> Any:
    b, moves = t["b"], t["leaves"]
    (out,), leaves, factors = alive([out]), alive(leaves or []), alive(factors or [])
    if moves is not None:
        moved = system.push(out, leaves, moves)
        b = -moved if b is None else b - moved
    return None if b is None else _solve(system, b, leaves, factors)
