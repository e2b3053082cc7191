"""``Function``: a base class in place of ``torch.autograd.Function``, for people who write classes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from gradwright import torch_compat
from gradwright.authoring import traced
from gradwright.authoring.adopt import adopted
from gradwright.errors import DefinitionError


class Function(torch.autograd.Function):
    """A drop-in base class: what ``gw.adopt`` gives to an old Function, through ``apply``.

    Changing the base of an existing class, in either style, is all that is needed. Keyword arguments, every transform
    of ``torch.func``, forward mode and batching work; second derivatives are right or raise; wrong gradients are
    reported with the names of the arguments of forward. A class with a ``jvp`` or ``vmap`` of its own is run by PyTorch
    as before. Inside ``torch.compile`` PyTorch takes the class as it is.

    Example:
        >>> import torch, gradwright as gw
        >>> class Exp(gw.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         out = x.exp()
        ...         ctx.save_for_backward(out)
        ...         return out
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         return g * ctx.saved_tensors[0]
        >>> torch.func.vmap(torch.func.hessian(Exp.apply))(torch.tensor([0.0, 1.0]))
        tensor([1.0000, 2.7183])
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Put a guard into the forward of a new class: the only part that torch.compile looks at everywhere."""
        super().__init_subclass__(**kwargs)
        forward = inspect.getattr_static(cls, "forward")
        written = forward is not inspect.getattr_static(torch.autograd.Function, "forward")
        if written and isinstance(forward, (staticmethod, classmethod)):
            unguarded = getattr(forward.__func__, "gw_unguarded", forward.__func__)
            guarded = type(forward)(_guarded(cls.__name__, unguarded))
            cls.forward = guarded  # type: ignore[method-assign, assignment]

    def __init__(self, *_: Any, **__: Any) -> None:
        """Refuse.

        Raises:
            DefinitionError: always; a Function has no instances.
        """
        name = type(self).__name__
        raise DefinitionError(
            f"{name}: a Function has no instances, but {name}(...) was called; expected its apply; write "
            f"{name}.apply(...)."
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run the Function; arguments may be named."""
        run = cls.__dict__.get("__gradwright_adopted__")
        if run is None:
            own_rules = cls.jvp is not torch.autograd.Function.jvp or cls.vmap is not torch.autograd.Function.vmap
            if own_rules:
                return super().apply(*args, **kwargs)  # type: ignore[no-untyped-call]
            run = adopted(cls, teach=True)
        return run(*args, **kwargs)


def _guarded(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward that refuses to be traced inside a transform, where torch.compile would drop the backward.

    PyTorch does not run an ``apply`` that was overridden there (torch 2.13), so this cannot be seen earlier.
    """

    @functools.wraps(forward)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() and (torch_compat.transforms_active() or torch_compat.forward_mode_on()):
            return traced.call_in_transform(name, functools.partial(forward, **kwargs), args)
        if torch.compiler.is_dynamo_compiling():
            traced.warn_of_export(name, forward.__module__)
        return forward(*args, **kwargs)

    vars(guarded)["gw_unguarded"] = forward
    return guarded
