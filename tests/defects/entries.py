"""What an entry of the list of defects is, and the helper that most of them are made with."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.subjects import x

DOUBLE = torch.float64


@dataclass(frozen=True)
class Fresh:
    """A subject that keeps state, made anew for every check."""

    make: Callable[[], Any]


@dataclass(frozen=True)
class Defect:
    """One mistake: a subject that makes it, the same without it, and what a checker should say."""

    name: str
    """The mistake in words."""
    broken: Any
    twin: Any
    """The same subject done right, which must pass; None where a right one cannot exist."""
    inputs: Callable[[], tuple[Any, ...]]
    expect: tuple[str, ...]
    """Ids of contracts; any of them counts as having found it."""
    words: str | None = None
    """A regular expression that what is said of it must match; None where no particular diagnosis is due."""
    number: int | None = None
    """Its number among the classes that the detection table counts."""
    case: str | None = None
    """The label of the reported case it reproduces."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    surrogate: Callable[..., Any] | None = None
    reference: Callable[..., Any] | None = None
    require: tuple[str, ...] = ()
    """Contracts for which a refusal counts as having found it."""
    note: str | None = None
    """A regular expression for a remark, or a word in passing, on what is to be noticed rather than accused."""
    raises: str | None = None
    """A regular expression for the error by which the check itself refuses the subject."""
    twin_inputs: Callable[[], tuple[Any, ...]] | None = None
    level: str = "standard"
    control: bool = False
    """True for what looks like a mistake and is none: nothing may be said of it."""
    group: str = ""
    """The module it stands in."""

    def subject(self, which: str) -> Any:
        """Return the ``broken`` subject or its ``twin``."""
        subject = getattr(self, which)
        return subject.make() if isinstance(subject, Fresh) else subject

    def arguments(self, which: str = "broken") -> tuple[Any, ...]:
        """Return fresh inputs."""
        make = self.twin_inputs if which == "twin" and self.twin_inputs is not None else self.inputs
        return make()

    def options(self) -> dict[str, Any]:
        """Return the options of ``check`` that the entry needs."""
        chosen: dict[str, Any] = {"level": self.level}
        for name in ("surrogate", "reference"):
            if getattr(self, name) is not None:
                chosen[name] = getattr(self, name)
        if self.kwargs:
            chosen["kwargs"] = dict(self.kwargs)
        return chosen


def rule(
    value: Callable[..., Any],
    vjp: Callable[..., Any],
    *,
    name: str = "Rule",
    once: bool = False,
    jvp: Callable[..., Any] | None = None,
) -> type[Function]:
    """Make a Function that saves its tensors; ``vjp`` gets the cotangents, then the inputs, and returns the gradients.

    With ``jvp``, which gets the inputs and then their tangents, the Function is in the two-part style and derives a
    batching rule.
    """
    parameters = list(inspect.signature(value).parameters.values())

    def save(ctx: Any, inputs: tuple[Any, ...]) -> None:
        ctx.save_for_backward(*(a for a in inputs if isinstance(a, Tensor)))
        if jvp is not None:
            ctx.save_for_forward(*(a for a in inputs if isinstance(a, Tensor)))
        ctx.others = [None if isinstance(a, Tensor) else a for a in inputs]
        ctx.is_tensor = [isinstance(a, Tensor) for a in inputs]

    def saved(ctx: Any) -> list[Any]:
        tensors = iter(ctx.saved_tensors)
        return [next(tensors) if tensor else other for tensor, other in zip(ctx.is_tensor, ctx.others)]

    def forward(ctx: Any, *inputs: Any) -> Any:
        save(ctx, inputs)
        return value(*inputs)

    def backward(ctx: Any, *g: Any) -> Any:
        return vjp(*g, *saved(ctx))

    def forward_mode(ctx: Any, *t: Any) -> Any:
        return jvp(*saved(ctx), *t) if jvp is not None else None

    methods: dict[str, Any] = {"backward": once_differentiable(backward) if once else backward}
    if jvp is None:
        context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        forward.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
        methods["forward"] = forward
    else:
        methods |= {
            "forward": value,
            "setup_context": lambda ctx, inputs, output: save(ctx, inputs),
            "jvp": forward_mode,
        }
    members: dict[str, Any] = {key: staticmethod(method) for key, method in methods.items()}
    if jvp is not None:
        members["generate_vmap_rule"] = True
    return type(name, (Function,), members)


def t(*values: float) -> Tensor:
    """Return a float64 vector."""
    return torch.tensor(values, dtype=DOUBLE)


def positive(*shape: int, seed: int = 0) -> Tensor:
    """Return float64 random values between 0.5 and 1.5."""
    return 0.5 + torch.rand(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def z(*shape: int, seed: int = 0) -> Tensor:
    """Return complex random values."""
    return torch.randn(*shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))


@cache
def all_defects() -> tuple[Defect, ...]:
    """Return every entry of every module of this folder that has a list called ``DEFECTS``."""
    from dataclasses import replace

    import tests.defects as package

    found = []
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        if info.name.startswith("test_") or info.name == "entries":
            continue
        module = importlib.import_module(f"tests.defects.{info.name}")
        found += [replace(entry, group=info.name.replace("_", " ")) for entry in module.DEFECTS]
    return tuple(found)


__all__ = ["DOUBLE", "Defect", "Fresh", "all_defects", "positive", "rule", "t", "x", "z"]
