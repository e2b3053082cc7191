"""The user's function with the parameters of a module behind it as arguments, so that gradients arrive there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from gradwright import torch_compat
from gradwright.errors import DefinitionError, RuleError, kind_of

_OUT_OF_REACH = ("Can't call numpy() on Tensor", "Cannot access data pointer of Tensor that doesn't have storage")
"""What PyTorch says of a tensor that is given to NumPy, while autograd or a transform of ``torch.func`` is at it."""


class Method(nn.Module):
    """A method of a module as a module, so that it can be called with other parameters."""

    def __init__(self, owner: nn.Module, method: Callable[..., Any]) -> None:
        super().__init__()
        self.owner = owner
        self.method = method

    def forward(self, *args: Any) -> Any:
        """Call the method."""
        return self.method(*args)


class Lifted:
    """A function that may be a module, or a method of one.

    Raises:
        DefinitionError: it is no function.
    """

    def __init__(self, user: str, what: str, function: Any) -> None:
        if not callable(function) or (isinstance(function, type)):
            raise DefinitionError(
                f"{user}: got {kind_of(function)} as the {what}; expected a function of the unknown and the "
                f"parameters; write gw.implicit.{user}({what}), where `def {what}(z, *params)` returns tensors."
            )
        self.user, self.what, self.function = user, what, function
        self.solver = ""
        """The name of the solver that is decorated, if one is."""
        owner = getattr(function, "__self__", None)
        self.owner: Any = function if isinstance(function, nn.Module) else owner
        """The module of the user's."""
        self.module: nn.Module | None = None
        if isinstance(function, nn.Module):
            self.module = function
        elif isinstance(owner, nn.Module):
            self.module = Method(owner, function)

    @property
    def name(self) -> str:
        """What the function is called in messages."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def made(self) -> str:
        """What was made of the function, as it was written."""
        return f"gw.implicit.{self.user}({self.name})"

    @property
    def title(self) -> str:
        """What that is called in messages: a solver that is decorated comes first."""
        return f"{self.solver}: {self.made}" if self.solver else self.made

    def solved_by(self, solver: Callable[..., Any]) -> Lifted:
        """Return the same for a solver that is decorated."""
        other = copy.copy(self)
        other.solver = str(getattr(solver, "__name__", type(solver).__name__))
        return other

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters of the module, by name; none where there is no module."""
        if self.module is None:
            return {}
        with torch_compat.module_lock(self.owner):
            return dict(self.module.named_parameters())

    def __call__(self, weights: Mapping[str, Tensor], *args: Any) -> Any:
        """Call the function, with these parameters in the module.

        Raises:
            RuleError: it hands a tensor that is differentiated to NumPy.
        """
        try:
            if self.module is None:
                return self.function(*args)
            # without the lock another thread would find, and put back, what is in the module for now
            with torch_compat.module_lock(self.owner):
                places = torch_compat.module_places(self.module)
                return torch_compat.call_module(self.module, places, weights, args)
        except RuntimeError as error:
            if not str(error).startswith(_OUT_OF_REACH):
                raise
            raise RuleError(
                f"{self.title}: the {self.what} hands a tensor to NumPy, where its derivative "
                "ends; expected functions of PyTorch, since only the solver gets arrays; write torch.cos for np.cos, "
                "or make it a function of tensors with gw.external."
            ) from error
