"""Reading how a foreign function is declared: its options, and which of its arguments have a derivative."""

from __future__ import annotations

import inspect
import re
import types
import uuid
from collections.abc import Callable, Collection, Sequence
from types import FunctionType
from typing import Any, Union, get_args, get_origin

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gradwright.authoring.rules import RESERVED, Argument, ArgumentKind, kind_of, read_arguments
from gradwright.errors import DefinitionError, OptionError, did_you_mean, unknown_choice
from gradwright.wrapping.arrays import DTYPES
from gradwright.wrapping.batches import VMAP_METHODS
from gradwright.wrapping.calculus import SecondOrder

_CHOICES: dict[str, tuple[Any, ...]] = {
    "order": ("K", "C", "F"),
    "copy": (None, True, False),
    "vmap_method": (*VMAP_METHODS, None),
    "second_order": get_args(SecondOrder),
    "max_order": (None, 1, 2),
}


def check_options(name: str, options: dict[str, Any]) -> None:
    """Refuse options with values that are not known.

    Raises:
        OptionError: an option has none of its choices, or two do not go together.
    """
    for option, known in _CHOICES.items():
        if not any(options[option] is each or (each is not None and options[option] == each) for each in known):
            raise unknown_choice(f"{name}: {option}", options[option], tuple(map(str, known)))
    if options["on_error"] not in ("raise", "nan") and not callable(options["on_error"]):
        raise unknown_choice(f"{name}: on_error", options["on_error"], ("'raise'", "'nan'", "a function"))
    size = options["cache"]
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise OptionError(f"{name}: cache is {size!r}; expected how many results are kept; write cache=16.")
    if not options["pure"] and (size or options["workers"] is not None):
        which = "cache" if size else "workers"
        raise OptionError(
            f"{name}: pure=False and {which} were declared, but it may only be run in order and as often as asked for; "
            "expected one of the two; drop one."
        )
    if options["vmap_method"] == "workers" and options["workers"] is None:
        raise OptionError(f"{name}: vmap_method='workers' without workers; expected some; write workers=4.")
    derivative = options["derivative"]
    if derivative is not None and not (hasattr(derivative, "vjp") and hasattr(derivative, "accuracy")):
        raise OptionError(f"{name}: derivative is {derivative!r}; expected gw.fd(...) or gw.spsa(...).")


def dtype_of(name: str, dtype: Any) -> torch.dtype | None:
    """Return the dtype that was named."""
    if dtype is None:
        return None
    found: Any = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not (found.is_floating_point or found.is_complex) or found not in DTYPES:
        known = [str(d).removeprefix("torch.") for d in DTYPES if d.is_floating_point]
        raise OptionError(f"{name}: dtype is {dtype!r}; expected one in which NumPy computes, {', '.join(known)}.")
    return found


def read_external(
    name: str, function: Callable[..., Any], argnums: Any
) -> tuple[tuple[Argument, ...], tuple[int, ...]]:
    """Return the arguments of a foreign function, and the positions of those that have a derivative.

    Raises:
        DefinitionError: its signature cannot be read, or ``argnums`` does not fit it.
    """
    known = _parameters(function)
    reserved = [word for word in RESERVED if word in (known or ())]
    if reserved and not isinstance(function, FunctionType):
        raise DefinitionError(
            f"{name}: its argument {reserved[0]!r} has a name that rules use for something else; expected a function "
            f"of your own; write one around it: `lambda x: {name}(x)`."
        )
    if known is None:
        read = _unsigned(name, function, argnums)
    else:
        read = list(read_arguments(name, function, tell=kind_or_array))
    names = [a.name for a in read]
    if argnums is None:
        chosen = {a.name for a in read if _may_move(a)}
        if not chosen:
            raise DefinitionError(
                f"{name}: none of its arguments ({', '.join(names)}) can have a derivative by their annotations and "
                "defaults; expected one that does; name it: argnums='x'."
            )
    else:
        listed = list(argnums) if isinstance(argnums, (list, tuple, set, frozenset)) else [argnums]
        chosen = {argument_named(name, names, each) for each in listed}
        if not chosen:
            raise DefinitionError(f"{name}: argnums is empty; expected the differentiable arguments: argnums=(0,).")
    found = []
    for a in read:
        tensor = a.name in chosen or a.kind in ("tensor", "optional")
        sort: Any = "static" if a.kind in ("static", "tree") else "unknown"
        if tensor:
            sort = "optional" if a.default is None else "tensor"
        found.append(Argument(a.name, sort, a.default, a.passed))
    return tuple(found), tuple(i for i, a in enumerate(found) if a.name in chosen)


def _may_move(a: Argument) -> bool:
    """Tell whether an argument can have a derivative, by its annotation or else by its default."""
    if a.kind in ("tensor", "optional"):
        return True
    if a.kind in ("static", "tree"):
        return False
    return a.default is inspect.Parameter.empty or isinstance(a.default, (np.ndarray, Tensor))


def kind_or_array(annotation: Any) -> ArgumentKind:
    """Return what an annotation says of an argument, where an array stands for a tensor."""
    return "tensor" if _is_array(annotation) else kind_of(annotation)


def _is_array(annotation: Any) -> bool:
    """Tell whether an annotation speaks of an array, or None: ``np.ndarray``, ``NDArray[...]``, ``ArrayLike``."""
    if isinstance(annotation, str):
        return any(word in annotation for word in ("ndarray", "NDArray", "ArrayLike"))
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = set(get_args(annotation)) - {type(None)}
        return parts >= set(get_args(ArrayLike)) or (bool(parts) and all(map(_is_array, parts)))
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, np.ndarray)


def _parameters(function: Callable[..., Any]) -> Collection[str] | None:
    """Return the names of the arguments, None where Python does not know them.

    Of a ufunc only the inputs are meant, and not what it takes besides (NumPy tells it of them since 2.4).
    """
    if isinstance(function, np.ufunc):
        return None
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _unsigned(name: str, function: Any, argnums: Any) -> list[Argument]:
    """Return the arguments of a function whose signature Python does not know, such as a ufunc."""
    number = getattr(function, "nin", None)
    if number is None and argnums is not None:
        listed = list(argnums) if isinstance(argnums, (list, tuple, set, frozenset)) else [argnums]
        number = max(listed) + 1 if listed and all(isinstance(each, int) for each in listed) else None
    if number is None:
        raise DefinitionError(
            f"{name}: Python does not know the signature of this function; expected named arguments; write a function "
            f"around it (`def {name}(x): ...`), or give the positions of its arguments: argnums=(0,)."
        )
    empty, passed = inspect.Parameter.empty, inspect.Parameter.POSITIONAL_ONLY
    return [Argument("x" if number == 1 else f"x{i}", "unknown", empty, passed) for i in range(number)]


def signature_of(arguments: Sequence[Argument]) -> inspect.Signature:
    """Return the signature by which users know a function, for one that takes any values."""
    return inspect.Signature([inspect.Parameter(a.name, a.passed, default=a.default) for a in arguments])


def operator_name(namespace: str, module: str, qualname: str) -> str:
    """Return the name of the operator for a function, the same in every process.

    Functions inside of functions share their qualified names, and which of them is declared first may be another one
    in another process. So their names are of this process only: an exported program that has one is refused where it
    is loaded elsewhere, and never runs another function of that name.
    """
    module, name = re.sub(r"\W", "_", module).strip("_"), re.sub(r"\W", "_", qualname)
    return f"{namespace}::{module}_{name}" + (f"_{uuid.uuid4().hex[:12]}" if "<" in qualname else "")


def argument_named(name: str, names: Sequence[str], which: Any) -> str:
    """Return the name of an argument that ``argnums`` names or counts.

    Raises:
        DefinitionError: there is no such argument.
    """
    if isinstance(which, str) and which in names:
        return which
    if isinstance(which, int) and not isinstance(which, bool) and -len(names) <= which < len(names):
        return names[which]
    raise DefinitionError(
        f"{name}: argnums names {which!r}; expected the name or position of an argument ({', '.join(names)}); correct "
        f"it.{did_you_mean(str(which), names)}"
    )
