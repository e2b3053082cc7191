"""What is returned where the user's function is a module: a module too, so that its parameters are found and trained.

A method of a module does not make one: ``self.solve = root(self.residual)`` would put the module into itself. There the
parameters are those of the module anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from gradwright import torch_compat
from gradwright.errors import DefinitionError, RuleError
from gradwright.implicit.calling import Remake, Settings, Solve, found_under, made_again
from gradwright.implicit.equations import Equation
from gradwright.implicit.lifting import Lifted, Method
from gradwright.implicit.natives import Native

A = TypeVar("A", bound="Around")


def solve_of(equation: Equation, settings: Settings, native: Native, remake: Remake) -> Solve:
    """Return what the user calls: a module where one of the user's functions is one."""
    modules = any(isinstance(function.function, nn.Module) for function in equation.functions)
    return (SolveModule if modules else Solve)(equation, settings, native, remake)


class Around(nn.Module):
    """A module that registers the user's modules, each under what it is: ``residual``, ``function``, ..."""

    def __init__(self) -> None:
        super().__init__()
        self._around: tuple[Lifted, ...] = ()

    def register(self, functions: Iterable[Lifted]) -> None:
        """Register those of the user's functions that are modules."""
        self._around = tuple(function for function in functions if isinstance(function.function, nn.Module))
        for function in self._around:
            self.add_module(function.what, function.function)

    def require_same(self) -> None:
        """Refuse a call where a module was replaced, of which the equation would know nothing.

        Raises:
            RuleError: one was.
        """
        for function in self._around:
            if getattr(self, function.what, None) is not function.function:
                raise RuleError(
                    f"{function.title}: its module {function.what!r} was replaced by another after the solve was made, "
                    f"which uses the first; expected the same; make the solve anew, with the other as the "
                    f"{function.what}, or replace what is in the module."
                )

    def _refuse_itself(self) -> None:
        for function in self._around:
            if any(part is self for part in function.function.modules()):
                raise DefinitionError(
                    f"{function.title}: it is kept in the module that is its {function.what}, so that the module is "
                    f"within itself; expected a method there; write gw.implicit.{function.user}(self.forward), which "
                    "is a function and no module."
                )

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse_itself()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def train(self: A, mode: bool = True) -> A:
        """Set the mode of all modules."""
        self._refuse_itself()
        return super().train(mode)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the parameters and buffers by name."""
        self._refuse_itself()
        return super().state_dict(*args, **kwargs)


class SolveModule(Around, Solve):
    """A :class:`Solve` that registers the user's modules."""

    def __init__(
        self,
        equation: Equation,
        settings: Settings,
        native: Native,
        remake: Remake,
        solver: Callable[..., Any] | None = None,
    ) -> None:
        Around.__init__(self)
        Solve.__init__(self, equation, settings, native, remake, solver)
        self.register(self._equation.functions)

    def forward(self, *args: Any) -> Any:
        """Solve, or decorate a solver."""
        self.require_same()
        return Solve.__call__(self, *args)

    @property
    def __surrogate__(self) -> Callable[..., Any] | None:
        """What a surrogate is the derivative of, as a function of the parameters too, by name."""
        if self.__custom_gradient__.surrogate is None:
            return None
        method = Method(self, self._iterated)
        places = torch_compat.module_places(method)

        def iterated(*args: Any, **weights: Any) -> Any:
            named = {f"owner.{name}": weight for name, weight in weights.items()}
            return torch_compat.call_module(method, places, named, args)

        return iterated

    def _get_name(self) -> str:
        return Solve.__repr__(self).strip("<>")

    def __reduce__(self) -> Any:
        """Keep the state of a module beside what the solve is made of, also where the decorator gave it a name."""
        made, args, options = self._remake
        solver = None if self._solver is None else reference(self, self._solver)
        anew = ("_equation", "_settings", "_native", "_remake", "_solver", "_core")
        return _module_again, (made, args, options, solver), state_of(self, anew)


def _module_again(made: Any, args: Any, options: dict[str, Any], solver: Any) -> Any:
    return made_again(made, args, options, referred(solver))


def state_of(module: Around, made: Collection[str]) -> dict[str, Any]:
    """Return the attributes of a module for pickle and copies, without those that are ``made`` anew."""
    made = {*made, "_around", "__wrapped__"}
    return {name: value for name, value in module.__dict__.items() if name not in made}


@dataclass(frozen=True)
class _Named:
    """The function that was decorated to what a Python module has under this name."""

    module: str
    name: str


def reference(decorated: Any, solver: Callable[..., Any]) -> Callable[..., Any] | _Named:
    """Return what stands for a decorated solver in a pickle, which looks for functions by their names."""
    place = _Named(decorated.__module__, decorated.__qualname__)
    there = found_under(place.module, place.name)
    return place if getattr(there, "__wrapped__", None) is solver else solver


def referred(solver: Any) -> Any:
    """Undo :func:`reference`."""
    return found_under(solver.module, solver.name).__wrapped__ if isinstance(solver, _Named) else solver
