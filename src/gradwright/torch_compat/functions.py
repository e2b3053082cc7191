"""Seeing every call of a Function, and every backward, at the place where PyTorch itself looks them up.

``Function.apply`` ends in ``super().apply``, and the engine asks a graph node for its ``apply``. Both are looked up
anew for each call, on the private bases of ``Function`` and of its graph nodes. So an attribute of those bases sees
every call, also those through an alias that was bound earlier, of subclasses with an ``apply`` of their own, nested,
in threads, and again in a checkpoint. It is a descriptor: where nothing is to be recorded it hands out what was there
before, and no frame of ours is in the way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch.autograd import Function

from gradwright.torch_compat.recording import unseen

Look: TypeAlias = Callable[[Any, Any, Any], Any]
"""Told of what a method is looked up, its class, and the method; returns that, or what is to be called instead.

Of a call there is no object, only the class; of a backward the object is the graph node, or None where only its class
is looked at.
"""


class _Lookup:
    """Stands for a method of a class of PyTorch's, and tells of each time it is looked up."""

    def __init__(self, original: Any, look: Look) -> None:
        self.original = original
        self.look = look

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self.look(instance, owner, self.original.__get__(instance, owner))


def watch_functions(called: Look, pulled: Look) -> Callable[[], None] | None:
    """Have every call and every backward of a Function told from now on.

    Arguments:
        called: told before each call.
        pulled: told before each backward, and before each forward-mode rule.

    Returns:
        what ends it; None where this version of PyTorch looks its methods up elsewhere, which a trial call tells.
    """
    undo: list[Callable[[], None]] = []
    lookups: list[tuple[_Lookup, Look]] = []
    seen: set[str] = set()

    def end() -> None:
        while undo:
            undo.pop()()

    def put(owner: Any, name: str, kind: str, look: Look) -> None:
        def trial(instance: Any, owner: Any, method: Any) -> Any:
            seen.add(kind)
            return method

        lookup = _Lookup(_inherited(owner, name), trial)
        lookups.append((lookup, look))
        undo.append(_put(owner, name, lookup))

    try:
        put(Function.__mro__[1], "apply", "call", called)
        node: Any = torch.autograd.function.BackwardCFunction
        for name in ("apply", "apply_boxed", "apply_jvp"):
            if hasattr(node, name):
                put(node, name, "backward", pulled)
        with torch.inference_mode(False), torch.enable_grad(), unseen():
            out: Any = _Trial.apply(torch.zeros(1, requires_grad=True))  # type: ignore[no-untyped-call]
            # A backward would start the engine, which on a machine with a GPU takes forks the right to one.
            out.grad_fn.apply(torch.ones(1))
    except Exception:  # a version that is built otherwise may fail in any way; the caller has another
        seen.clear()
    if seen != {"call", "backward"}:
        end()
        return None
    for lookup, look in lookups:
        lookup.look = look
    return end


def watch_apply(called: Look) -> Callable[[], None]:
    """Have calls through ``Function.apply`` told, by nothing but public names.

    Calls through an alias that was bound before are not seen, nor is any backward.
    """
    original: Any = vars(Function)["apply"]
    Function.apply = _Lookup(original, called)  # type: ignore[method-assign, assignment]

    def end() -> None:
        Function.apply = original  # type: ignore[method-assign]

    return end


def _put(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute of a class, and return what puts it back as it was."""
    own = vars(owner).get(name)
    setattr(owner, name, value)

    def undo() -> None:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    return undo


def _inherited(owner: type, name: str) -> Any:
    return next(vars(base)[name] for base in owner.__mro__ if name in vars(base))


class _Trial(Function):
    """Is called once, to see whether its call and its backward are told."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


function_of: Callable[[Any], type] = operator.attrgetter("_forward_cls")
"""Return the Function of a class of graph nodes."""


def generated_for(function: type) -> Any:
    """Return what a class that PyTorch made itself stands for: a Function under a transform, or an operator.

    None for all other classes.
    """
    if not str(function.__module__).startswith("torch."):
        return None
    forward: Any = getattr(function, "forward", None)
    cells = dict(zip(forward.__code__.co_freevars, forward.__closure__ or ())) if hasattr(forward, "__code__") else {}
    for name in ("autograd_function", "op"):
        if name in cells:
            return cells[name].cell_contents
    return None


def all_functions() -> Iterator[type[Function]]:
    """Give every Function class that is alive in this process."""
    left: list[Any] = Function.__subclasses__()
    seen: set[type] = set()
    while left:
        function = left.pop()
        if function not in seen:
            seen.add(function)
            left += function.__subclasses__()
            yield function
