"""``linear_solve``: a linear system as a differentiable function, with a solver of the library or any other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, overload

import torch
from torch import Tensor, nn

from gradwright import torch_compat
from gradwright.authoring import trees
from gradwright.errors import ArgumentError, DefinitionError, kind_of
from gradwright.implicit.calling import Declared
from gradwright.implicit.captured import named
from gradwright.implicit.hosted import HostedSystem, hosted_solve
from gradwright.implicit.lifting import Lifted
from gradwright.implicit.matrix import matrix_solve
from gradwright.implicit.modules import Around, reference, referred, state_of
from gradwright.implicit.options import Assumed, IllConditioned, Method, SolveOptions
from gradwright.implicit.probes import refuse_captured, require_linear
from gradwright.implicit.systems import System, operator_solve, refuse_export

Function: TypeAlias = Callable[..., Any]


@overload
def linear_solve(
    A: Tensor,
    b: Tensor,
    /,
    *,
    method: Method = ...,
    assume_a: Assumed = ...,
    tol: float | None = ...,
    max_steps: int | None = ...,
    restart: int = ...,
    on_ill_conditioned: IllConditioned = ...,
    ill_conditioned: float | None = ...,
) -> Tensor: ...


@overload
def linear_solve(
    matvec: Function,
    /,
    *,
    method: Method = ...,
    assume_a: Assumed = ...,
    tol: float | None = ...,
    max_steps: int | None = ...,
    restart: int = ...,
    on_ill_conditioned: IllConditioned = ...,
    ill_conditioned: float | None = ...,
    direct_up_to: int = ...,
    transpose_solver: Function | None = ...,
    arrays: bool = ...,
) -> LinearSolve: ...


def linear_solve(
    A: Tensor | Function,
    b: Tensor | None = None,
    /,
    *,
    transpose_solver: Function | None = None,
    arrays: bool = False,
    **options: Any,
) -> Any:
    """Solve linear systems with right derivatives of every order, from one factorisation.

    There are three forms. With a matrix, ``linear_solve(A, b)`` is ``torch.linalg.solve``. With a function that applies
    the matrix, ``solve = linear_solve(matvec)`` is called as ``solve(b, *params)`` and solves
    ``matvec(x, *params) = b``. And ``@linear_solve(matvec)`` above a function ``solver(b, *params)`` makes that solver
    differentiable, whatever it does: only ``matvec`` is differentiated.

    A result is returned only if it is a solution: a singular matrix and a solver that does not converge are errors, and
    for an ill-conditioned matrix there is a warning with its condition number.

    Arguments:
        A: square matrices of floating point or complex dtype, of shape ``(..., n, n)``; or a function of PyTorch
            operations that is linear in its first argument, which has the shape of ``b``, and returns that shape. The
            parameters of a module, or of the owner of a method, get gradients too. For a module what is returned is a
            module, which registers it as ``matvec``.
        b: of shape ``(n,)``, ``(..., n, k)``, or that of ``A`` without its last dimension.
        method: ``"direct"``, ``"gmres"``, ``"cg"`` (with ``assume_a="pos"``) or ``"auto"``: direct for a matrix and up
            to ``direct_up_to`` unknowns (1,000), iterative beyond. Or a function ``(matvec, rmatvec, b) -> x`` of flat
            vectors. A solver that was decorated is used instead, and the method for what it cannot do.
        assume_a: ``"pos"`` where the matrix is Hermitian and positive definite; of a tensor ``A`` the Hermitian part
            is used then.
        tol: how large the residual may be: of an iterative method relative to ``b``, by default ``eps ** (2 / 3)``; of
            a decorated solver relative to the size of the matrix, of the solution and of ``b``, ``eps ** 0.5``.
        max_steps, restart: of iterative methods.
        on_ill_conditioned: ``"warn"``, ``"raise"`` or ``"ignore"`` where the condition number is above
            ``ill_conditioned`` (by default ``eps ** (-2 / 3)``); only direct methods estimate it.
        transpose_solver: called as ``transpose_solver(g, *params)``, it solves with the conjugate transpose; without
            one the library does.
        arrays: a decorated solver takes NumPy arrays, copies in which it may write, in the place of tensors.

    Returns:
        a tensor like ``b``; for a function a :class:`LinearSolve`. It works under ``torch.func``, forward mode and
        ``vmap``, which calls a decorated solver for each sample. ``torch.compile`` keeps ``linear_solve(A, b)`` in its
        graph and breaks it for the other forms.

    Raises:
        SingularMatrixError: there is no unique solution; or the matrix is ill-conditioned, and that is to be an error.
        ConvergenceError: an iterative method, or a decorated solver, did not solve the system.
        DomainError: the matrix has nan or infinite entries.
        ArgumentError: the shapes do not fit.

    Example:
        >>> import torch, gradwright as gw
        >>> A = torch.tensor([[2.0, 1.0], [0.0, 4.0]], requires_grad=True)
        >>> x = gw.implicit.linear_solve(A, torch.tensor([3.0, 4.0]))
        >>> x.detach(), torch.autograd.grad(x.sum(), A)
        (tensor([1., 1.]), (tensor([[-0.5000, -0.5000],
                [-0.1250, -0.1250]]),))
        >>> def scaled(x, d):
        ...     return d * x
        >>> @gw.implicit.linear_solve(scaled, arrays=True)
        ... def solver(b, d):
        ...     return b / d
        >>> torch.func.grad(lambda d: solver(torch.ones(2), d).sum())(torch.tensor([1.0, 2.0]))
        tensor([-1.0000, -0.2500])
    """
    chosen = _options(options)
    if isinstance(A, Tensor):
        if arrays or transpose_solver is not None:
            given = "arrays" if arrays else "transpose_solver"
            raise DefinitionError(
                f"linear_solve: {given} is for a solver that is decorated; expected a matrix and b alone; drop it."
            )
        chosen.check("linear_solve")
        return matrix_solve(A, b, chosen)
    if not callable(A):
        raise ArgumentError(
            f"linear_solve: got {kind_of(A)}; expected a matrix, or a function that applies one: matvec(x, *params)."
        )
    if b is not None:
        raise DefinitionError(
            "linear_solve: got a function and b at once; expected `linear_solve(matvec)(b, *params)`; move b."
        )
    kind = LinearSolveModule if isinstance(A, nn.Module) else LinearSolve
    return kind(A, chosen, transpose_solver=transpose_solver, arrays=arrays)


def _options(given: dict[str, Any]) -> SolveOptions:
    known = SolveOptions.__dataclass_fields__
    unknown = [option for option in given if option not in known]
    if unknown:
        raise DefinitionError(
            f"linear_solve: it has no option {unknown[0]!r}; expected {', '.join(known)}, transpose_solver or arrays; "
            "correct the name."
        )
    return SolveOptions(**given)


class LinearSolve:
    """A linear system as a differentiable function of its right side and its parameters.

    ``solve(b, *params)`` solves; ``solve(solver)`` returns the same with a solver of your own.
    """

    __name__: str
    __qualname__: str

    def __init__(
        self,
        matvec: Function,
        options: SolveOptions,
        *,
        solver: Function | None = None,
        transpose_solver: Function | None = None,
        arrays: bool = False,
    ) -> None:
        self.matvec, self.options = matvec, options
        lifted = Lifted("linear_solve", "matvec", matvec)
        self.lifted = lifted if solver is None else lifted.solved_by(solver)
        self.solver, self.transpose_solver, self.arrays = solver, transpose_solver, arrays
        self.looked = False
        """True once a call has shown that ``matvec`` is linear."""
        named = solver or matvec
        if not isinstance(named, nn.Module):  # of a module all its attributes would be copied
            functools.update_wrapper(self, named)
        self.__qualname__ = getattr(named, "__qualname__", type(named).__name__)
        self.__name__ = getattr(named, "__name__", type(named).__name__)
        options.check(self.__name__)
        if transpose_solver is not None and not callable(transpose_solver):
            raise DefinitionError(
                f"{self.__name__}: transpose_solver is {kind_of(transpose_solver)}; expected a function of g and the "
                "parameters."
            )

    def __call__(self, *args: Any) -> Any:
        """Solve for ``b``, which comes first, or decorate a solver."""
        if len(args) == 1 and callable(args[0]) and not isinstance(args[0], Tensor):
            if self.solver is not None:
                raise DefinitionError(f"{self.__name__}: it has a solver already; expected b and the parameters.")
            own, arrays = self.transpose_solver, self.arrays
            return type(self)(self.matvec, self.options, solver=args[0], transpose_solver=own, arrays=arrays)
        refuse_export(self.__name__)
        b, *params = args or (None,)
        if not isinstance(b, Tensor) or not (b.is_floating_point() or b.is_complex()):
            what = f"a tensor of {b.dtype}" if isinstance(b, Tensor) else kind_of(b)
            raise ArgumentError(
                f"{self.__name__}: b is {what}; expected a tensor of floating point or complex numbers first, then the "
                "parameters."
            )
        if torch.compiler.is_dynamo_compiling():
            return torch_compat.call_untraced(
                self._solve,
                (b, *params),
                f"{self.__name__}: torch.compile cannot record a linear solve whose result is checked; leave "
                "fullgraph=True away, so that it is run between two graphs.",
            )
        return self._solve(b, *params)

    def _solve(self, b: Tensor, *params: Any) -> Tensor:
        leaves: list[Tensor] = []
        params = (self.lifted.weights(), *params)
        structure = trees.flatten(params, leaves)
        name = self.lifted.name
        watch = None
        if b.numel():
            called = name if self.solver is None else f"{self.__name__}: {name}"
            system = System(self._product, structure, self.options, called)
            watch = refuse_captured(system, b, leaves, lambda: named(self.lifted))
            self.looked = self.looked or require_linear(system, b, leaves)
        if self.solver is None:
            return operator_solve(self._product, b, params, options=self.options, name=name, watch=watch)
        solvers = (self.solver, self.transpose_solver)
        hosted = HostedSystem(self._product, structure, self.options, name, solvers, arrays=self.arrays)
        hosted.watch = watch
        return hosted_solve(hosted, b, leaves)

    def _product(self, x: Tensor, weights: Mapping[str, Tensor], *params: Any) -> Any:
        return self.lifted(weights, x, *params)

    def __reduce__(self) -> Any:
        """Pickle a decorated solver by its name, as functions are, and anything else by its parts."""
        if self.solver is not None:
            return self.__qualname__
        return LinearSolve, (self.matvec, self.options)

    def __repr__(self) -> str:
        return f"<linear solve {self.__name__}>"


class LinearSolveModule(Around, LinearSolve):
    """A :class:`LinearSolve` that registers the user's module, as ``matvec``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Around.__init__(self)
        LinearSolve.__init__(self, *args, **kwargs)
        self.register((self.lifted,))

    def forward(self, *args: Any) -> Any:
        """Solve, or decorate a solver."""
        self.require_same()
        return LinearSolve.__call__(self, *args)

    @property
    def __custom_gradient__(self) -> Declared:
        """What a check is to know."""
        return Declared(self.solver or self.matvec, None)

    def _get_name(self) -> str:
        return LinearSolve.__repr__(self).strip("<>")

    def __reduce__(self) -> Any:
        """Keep the state of a module beside the parts, also where the decorator gave it a name."""
        parts = (
            self.matvec,
            self.options,
            self.transpose_solver,
            self.arrays,
            self.solver and reference(self, self.solver),
        )
        return _module_again, parts, state_of(self, ("options", "lifted", "solver", "transpose_solver", "arrays"))


def _module_again(matvec: Any, options: SolveOptions, transpose_solver: Any, arrays: bool, solver: Any) -> Any:
    return LinearSolveModule(matvec, options, solver=referred(solver), transpose_solver=transpose_solver, arrays=arrays)
