"""Type aliases that are part of the public interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, runtime_checkable

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
V = TypeVar("V", bound=Callable[..., Any])

Level: TypeAlias = Literal["quick", "standard", "full"]
"""How much work a check may do."""

Verdict: TypeAlias = Literal["pass", "fail", "suspect", "unsupported", "unresolved", "skipped"]
"""What a contract concluded; the words are explained in the documentation under *Verdicts*."""

Provenance: TypeAlias = Literal["declared", "recorded", "typed", "synthesised"]
"""Where a sample came from."""

Intent: TypeAlias = Literal["exact", "surrogate", "scaled", "reversed", "side-loss", "forward-only", "first-order-only"]
"""What a rule means to be; the words are explained in the documentation under *Intent*."""

INTENTS: tuple[Intent, ...] = (
    "exact",
    "surrogate",
    "scaled",
    "reversed",
    "side-loss",
    "forward-only",
    "first-order-only",
)

GUESSED: tuple[Provenance, ...] = ("typed", "synthesised")
"""Provenances under which a failure may be the fault of the inputs."""

TensorFunction: TypeAlias = Callable[..., Any]
"""A callable that takes tensors (and other values) and returns a tensor or a container of tensors."""


@runtime_checkable
class CustomGradient(Protocol[P, R_co]):
    """A function with a hand-written gradient: it is called as it was written, and rules are attached to it."""

    __name__: str
    __custom_gradient__: Any
    """What is known of it: ``surrogate`` is the function whose derivative it uses on purpose, or None;
    ``accuracy`` is the relative error that its gradient may have by the way it is computed;
    ``declared_linear`` is False where its rule is meant not to be linear in the cotangent; ``source`` is what the user
    wrote, ``gradient`` the user's function that computes the gradient, or None, and ``cotangent`` its name of that."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function."""
        ...

    def vjp(self, rule: V, /) -> V:
        """Attach the reverse-mode rule, ``rule(g, ...)``."""
        ...

    def jvp(self, rule: V, /) -> V:
        """Attach the forward-mode rule, ``rule(t, ...)``."""
        ...

    def vmap(self, rule: V, /) -> V:
        """Attach the batching rule, ``rule(info, in_dims, ...)``."""
        ...

    def fwd(self, rule: V, /) -> V:
        """Attach a forward that keeps something for the backward, ``rule(...) -> (out, residuals)``."""
        ...

    def fake(self, rule: V, /) -> V:
        """Attach what tells the shapes of the output where there are no numbers, ``rule(...)``; for ``op=``."""
        ...


def has_custom_gradient(value: Any) -> bool:
    """Tell whether a value is a function with a hand-written gradient, as the decorators of gradwright make them."""
    return callable(value) and getattr(value, "__custom_gradient__", None) is not None


LEVELS: tuple[Level, ...] = ("quick", "standard", "full")
VERDICTS: tuple[Verdict, ...] = ("fail", "suspect", "unresolved", "unsupported", "skipped", "pass")
"""All verdicts, gravest first."""
