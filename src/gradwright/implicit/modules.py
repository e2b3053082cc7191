"""What is returned where the user's function is a module: a module too, so that its parameters are found and trained.

A method of a module does not make one: ``self.solve = root(self.residual)`` would put the module into itself. There the
parameters are those of the module anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch import nn

from gradwright import torch_compat
from gradwright.implicit.calling import Remake, Settings, Solve, found_under, made_again
from gradwright.implicit.equations import Equation
from gradwright.implicit.lifting import Method
from gradwright.implicit.natives import Native


def solve_of(equation: Equation, settings: Settings, native: Native, remake: Remake) -> Solve:
    """Return what the user calls: a module where one of the user's functions is one."""
    modules = any(isinstance(function.function, nn.Module) for function in equation.functions)
    return (SolveModule if modules else Solve)(equation, settings, native, remake)


class SolveModule(nn.Module, Solve):
    """A :class:`Solve` that registers the user's modules, each under what it is: ``residual``, ``function``, ..."""

    def __init__(
        self,
        equation: Equation,
        settings: Settings,
        native: Native,
        remake: Remake,
        solver: Callable[..., Any] | None = None,
    ) -> None:
        nn.Module.__init__(self)
        Solve.__init__(self, equation, settings, native, remake, solver)
        for function in equation.functions:
            if isinstance(function.function, nn.Module):
                self.add_module(function.what, function.function)

    def forward(self, *args: Any) -> Any:
        """Solve, or decorate a solver."""
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
        parts = (made, args, options, self._solver and reference(self, self._solver))
        return (
            _module_again,
            parts,
            state_of(self, ("_equation", "_settings", "_native", "_remake", "_solver", "_core")),
        )


def _module_again(made: Any, args: Any, options: dict[str, Any], solver: Any) -> Any:
    return made_again(made, args, options, referred(solver))


def state_of(module: nn.Module, made: Collection[str]) -> dict[str, Any]:
    """Return the attributes of a module for pickle and copies, without those that are ``made`` anew."""
    return {name: value for name, value in module.__dict__.items() if name not in made and name != "__wrapped__"}


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
