"""The function that users call: it takes arguments apart, and speaks with solvers in tensors or arrays."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from gradwright import torch_compat
from gradwright.authoring import trees
from gradwright.errors import ArgumentError, DefinitionError, OptionError, RuleError, kind_of
from gradwright.implicit.captured import captured_error, refuse_captured_around
from gradwright.implicit.core import make
from gradwright.implicit.equations import Equation, Given
from gradwright.implicit.natives import Native
from gradwright.implicit.options import Method, SolveOptions
from gradwright.implicit.plan import Backward, Plan, Task

Remake: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""What ``root`` or its like was called with."""


@dataclass(frozen=True)
class Settings:
    """What the user chose."""

    has_aux: bool
    arrays: bool
    tol_residual: float | None
    linear: SolveOptions
    backward: Backward = "exact"
    steps: int = 0

    @classmethod
    def of(
        cls,
        equation: Equation,
        has_aux: bool,
        arrays: bool,
        tol_residual: float | None,
        linear: Method | SolveOptions,
        numbers: dict[str, Any],
    ) -> Settings:
        """Return the settings, refusing what is none; ``numbers`` are options of the default solver.

        Raises:
            OptionError: an option has a value that it cannot have.
        """
        for option, value in (("tol_residual", tol_residual), ("tol", numbers["tol"])):
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
                raise OptionError(f"{equation.name}: {option} is {value!r}; expected a number above 0.")
        steps = numbers["max_steps"]
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise OptionError(f"{equation.name}: max_steps is {steps!r}; expected a whole number from 1 on.")
        options = linear if isinstance(linear, SolveOptions) else SolveOptions(method=linear)
        options.check(equation.name)
        return cls(has_aux, arrays, tol_residual, options)


@dataclass(frozen=True)
class Declared:
    """What a check asks of a function with a custom gradient."""

    source: Any
    """What the user wrote."""
    surrogate: Callable[..., Any] | None
    """The function whose derivative is used on purpose."""
    gradient: None = None
    cotangent: str = ""
    declared_linear: bool = True
    accuracy: float = 0.0
    """The derivative is that of the solution; how near the solver comes to it shows in its noise."""


class Solve:
    """A solver whose result can be differentiated, as :func:`root` and its like return it.

    Call it as ``solve(z0, *params)``. Before it is called so, it is also a decorator for any other solver.
    """

    __qualname__: str

    def __init__(
        self,
        equation: Equation,
        settings: Settings,
        native: Native,
        remake: Remake,
        solver: Callable[..., Any] | None = None,
    ) -> None:
        equation = equation if solver is None else equation.solved_by(solver)
        self._equation, self._settings, self._native, self._remake = equation, settings, native, remake
        self._solver = solver
        own = solver is None
        plan = Plan(
            equation,
            self._run_native if own else self._run_users,
            native.many if own and native.together else None,
            settings.linear,
            settings.tol_residual,
            settings.backward,
            settings.steps,
        )
        self._core = make(plan)
        if solver is None:
            self.__name__ = equation.main.name
        else:
            functools.update_wrapper(self, solver)

    @property
    def __custom_gradient__(self) -> Declared:
        """What a check is to know."""
        source = self._solver or self._equation.main.function
        return Declared(source, None if self._settings.backward == "exact" else self._iterated)

    def _iterated(self, z0: Any, *params: Any) -> Any:
        """Return what a surrogate is the derivative of: iterations from a fixed point that is a constant."""
        solved = self(z0, *params)
        z = solved[0] if self._settings.has_aux else solved
        leaves: list[Tensor] = []
        structure = trees.flatten(z, leaves)
        z = trees.rebuild(structure, iter([leaf.detach() for leaf in leaves]))
        for _ in range(self._settings.steps + 1):
            z = self._equation.main.function(z, *params)
        return z

    def __repr__(self) -> str:
        """Name the equation, and the solver where it is the user's."""
        main = self._equation.main
        return f"<{main.made} by {main.solver}>" if main.solver else f"<{main.made}>"

    def __reduce__(self) -> Any:
        """Pickle by name where the decorator put this object, else by what it is made of."""
        if self._solver is not None and found_under(self.__module__, getattr(self, "__qualname__", "")) is self:
            return self.__qualname__
        made, args, options = self._remake
        return made_again, (made, args, options, self._solver)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Be a method, where a solver that is one was decorated."""
        if instance is None:
            return self
        raise DefinitionError(
            f"{self._equation.name}: it decorates a method; expected a function `solver(z0, *params)`; make the solve "
            "in __init__ (`self.solve = gw.implicit.root(self.residual)`), or decorate a function in the method."
        )

    def __call__(self, *args: Any) -> Any:
        """Solve, from ``z0``, for the given parameters; or, given one function, decorate that."""
        if self._solver is None and len(args) == 1 and _is_solver(args[0]):
            return type(self)(self._equation, self._settings, self._native, self._remake, args[0])
        if not args:
            raise ArgumentError(f"{self._equation.name}: it was called without arguments; expected solve(z0, *params).")
        message = (
            f"{self._equation.name}: a solver is run and not traced, so torch.compile leaves the graph here; leave "
            "fullgraph=True away, or compile what is around the solve."
        )
        if torch.compiler.is_dynamo_compiling():
            return torch_compat.call_untraced(self._solved, args, message)
        if torch_compat.compiler_watches():
            return torch_compat.call_unwatched(self._solved, args)
        return self._solved(*args)

    def _solved(self, z0: Any, *params: Any) -> Any:
        equation = self._equation
        if torch_compat.is_recording():
            raise RuleError(
                f"{equation.name}: its solver cannot be recorded, as torch.export and make_fx would; expected a call "
                "with numbers; export what is before and after it."
            )
        for where, value in [("the first argument", z0), *[(f"parameter {i}", p) for i, p in enumerate(params)]]:
            self._refuse_hidden(where, value)
        start: list[Tensor] = []
        first = trees.flatten(z0, start)
        rest: list[Tensor] = []
        structure = trees.flatten(params, rest)
        weights = [function.weights() for function in equation.functions]
        rest += [tensor for named in weights for tensor in named.values()]
        if torch_compat.any_autocast():
            # With 8 bits an equation holds to 1 %, and its solution is as far off: it is solved in single precision.
            start, rest = _widened(start), _widened(rest)
        task = Task(first, Given(structure, [tuple(named) for named in weights]), len(start))
        around = torch_compat.transforms_active() or torch_compat.forward_mode_on()
        if around and start:
            refuse_captured_around(equation, first, task.given, start, rest)
        try:
            out = self._core(task, start, rest)
        except RuntimeError as error:
            if not around or "being vmapped" not in str(error):
                raise
            raise captured_error(equation) from error
        if around and not start:
            refuse_captured_around(equation, task.record.structure, task.given, equation.visible(out), rest)
        solution = trees.rebuild(task.record.structure, iter(out))
        return (solution, task.record.aux) if self._settings.has_aux else solution

    def _refuse_hidden(self, where: str, value: Any) -> None:
        parts = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(part, nn.Module) for part in parts) or trees.hidden_in(value):
            raise ArgumentError(
                f"{self._equation.name}: {where} is {kind_of(value)}, whose tensors would get no gradient; expected "
                "tensors and containers of them (dicts, lists, tuples, dataclasses); pass the parameters of a module "
                "as `dict(module.named_parameters())` with torch.func.functional_call, or give the module itself in "
                f"place of the {self._equation.what}."
            )

    def _run_native(self, task: Task, start: Sequence[Tensor], rest: Sequence[Tensor]) -> list[Tensor]:
        if not start:
            raise ArgumentError(
                f"{self._equation.name}: the first argument holds no tensor; expected the initial guess, which has the "
                "shape and dtype of the solution; write torch.zeros(...), or torch.tensor(0.0) for one number."
            )
        task.record.structure = task.start
        found, task.record.aux = self._native.one(task, start, rest)
        return found

    def _run_users(self, task: Task, start: Sequence[Tensor], rest: Sequence[Tensor]) -> list[Tensor]:
        assert self._solver is not None
        kinds = [*start, *[t for t in rest if t.is_floating_point()]]
        z0 = trees.rebuild(task.start, (self._handed(t.clone()) for t in start))
        params, _ = task.given.rebuild([self._handed(t) for t in rest])
        try:
            found = self._solver(z0, *params)
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            raise RuleError(
                f"{self._equation.name}: the solver differentiates, but solvers run with "
                "gradients off; expected `with torch.enable_grad():` around that part; what it does is not recorded "
                "for the gradient of the solution in any case."
            ) from error
        if self._settings.has_aux:
            if not isinstance(found, tuple) or len(found) != 2:
                raise RuleError(
                    f"{self._equation.name}: the solver returned {kind_of(found)}, but has_aux=True was said; expected "
                    "the solution and something else; write `return z, aux`."
                )
            found, task.record.aux = found
        return self._read(task, found, start, kinds[0] if kinds else None)

    def _handed(self, tensor: Tensor) -> Any:
        """Return what the solver gets for a tensor."""
        if not self._settings.arrays:
            return tensor
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.float()  # NumPy has no such numbers
        return tensor.cpu().clone().resolve_conj().resolve_neg().numpy()

    def _read(self, task: Task, found: Any, start: Sequence[Tensor], like: Tensor | None) -> list[Tensor]:
        """Return the tensors of the solution that a solver returned, as a tensor, an array, a number or a container."""
        dtype, device = (torch.get_default_dtype(), None) if like is None else (like.dtype, like.device)
        solution = self._as_tensors(found, dtype, device)
        tensors: list[Tensor] = []
        structure = trees.flatten(solution, tensors)
        name = self._equation.name
        if not start:
            task.record.structure = structure
            return tensors
        matched: list[Any] = []
        trees.match(task.start, solution, f"{name}: the solver returned", matched)
        for one, other in zip(start, matched):
            if other is None or one.shape != other.shape:
                shape = None if other is None else tuple(other.shape)
                raise RuleError(
                    f"{name}: the solver returned a solution of shape {shape} where the first argument has "
                    f"{tuple(one.shape)}; expected the same; give the first argument the shape of the solution."
                )
        task.record.structure = task.start
        return [other.to(dtype=one.dtype, device=one.device) for one, other in zip(start, matched)]

    def _as_tensors(self, value: Any, dtype: torch.dtype, device: torch.device | None) -> Any:
        leaves, structure = torch_compat.flatten(value)
        try:
            found = [_tensor(leaf, dtype, device) for leaf in leaves]
        except (TypeError, ValueError, RuntimeError):
            hint = "; return its `.x`" if hasattr(value, "x") else ""
            aux = "" if self._settings.has_aux else ", or say has_aux=True to return something else besides"
            raise RuleError(
                f"{self._equation.name}: the solver returned {kind_of(value)}, which is no solution; expected a "
                f"tensor, an array, a number or a container of them, like the first argument{hint}{aux}."
            ) from None
        return torch_compat.unflatten(found, structure)


def found_under(module: str, name: str) -> Any:
    """Return what a Python module has under a name, or None."""
    return getattr(importlib.import_module(module), name, None)


def made_again(made: Any, args: Sequence[Any], options: dict[str, Any], solver: Any) -> Any:
    """Return a solve, from what ``root`` or its like was called with, and what it decorates."""
    solve = made(*args, **options)
    return solve if solver is None else solve(solver)


def _widened(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.float() if t.is_floating_point() and t.dtype.itemsize < 4 else t for t in tensors]


def _is_solver(value: Any) -> bool:
    return callable(value) and not isinstance(value, (Tensor, nn.Module))


def _tensor(value: Any, dtype: torch.dtype, device: torch.device | None) -> Tensor:
    """Return a tensor, an array or a number as a tensor of its own."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "__array__"):
        import numpy as np

        value = np.array(value, order="C")  # it may be read-only, or run backwards in memory
    elif not isinstance(value, (int, float, complex)):
        raise TypeError
    return torch.tensor(value, dtype=dtype, device=device)
