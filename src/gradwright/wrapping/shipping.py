"""Functions on their way to another process: by the name that they are imported by, else by value.

The name of a decorated function belongs to the object that :func:`gradwright.external` made. The function itself is
its attribute ``host``.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradwright.errors import MissingDependencyError, OptionError, describe_exception
from gradwright.wrapping.parcels import dumps, has_cloudpickle


@dataclass(frozen=True)
class Named:
    """A function that the receiver imports."""

    module: str
    name: str
    is_host: bool
    """Whether the name is that of an object which has the function as ``host``."""


@dataclass(frozen=True)
class Pickled:
    """A function by value."""

    data: bytes


class Carrier:
    """A function that is turned into something to send when it is sent, and stays itself where it is.

    Arguments:
        function: the function, in the process that has it.
        token: what was sent, in another one.
    """

    def __init__(self, function: Callable[..., Any] | None, token: Named | Pickled | None = None) -> None:
        self.function = function
        self.token = token

    @property
    def is_far(self) -> bool:
        """Whether this is another process than the one that the function comes from."""
        return self.function is None

    def get(self) -> Callable[..., Any]:
        """Return the function."""
        if self.function is not None:
            return self.function
        assert self.token is not None
        return load(self.token)

    def pack(self) -> Named | Pickled:
        """Return what can be sent of the function, which is found out once."""
        if self.token is None:
            assert self.function is not None
            self.token = token_of(self.function)
        return self.token

    def __reduce__(self) -> tuple[Any, ...]:
        return Carrier, (None, self.pack())


def token_of(function: Callable[..., Any]) -> Named | Pickled:
    """Return what can be sent of a function.

    Raises:
        MissingDependencyError: it has no name to import it by, and cloudpickle is not installed.
        OptionError: it cannot be sent.
    """
    named = _named(function)
    if named is not None:
        return named
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    try:
        data = dumps(function)
    except Exception as error:
        if not has_cloudpickle():
            raise _cannot_be_imported(name) from error
        raise OptionError(
            f"workers: {name} cannot be sent to another process ({describe_exception(error)}); expected a function "
            "that can be pickled; define it in a module, or use threads with `releases_gil=True`."
        ) from error
    if b"__main__" in data and not has_cloudpickle():
        raise _cannot_be_imported(name)
    return Pickled(data)


@functools.lru_cache(maxsize=32)
def load(token: Named | Pickled) -> Callable[..., Any]:
    """Return the function that was sent; the same one while it is sent again, so that it may keep what it made."""
    if isinstance(token, Pickled):
        return pickle.loads(token.data)  # type: ignore[no-any-return]
    found = _look_up(importlib.import_module(token.module), token.name)
    return found.host if token.is_host else found  # type: ignore[no-any-return]


def _named(function: Callable[..., Any]) -> Named | None:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or module not in sys.modules:
        return None
    try:
        found = _look_up(sys.modules[module], name)
    except AttributeError:
        return None  # a lambda, or defined inside a function
    if found is function:
        return Named(module, name, is_host=False)
    if getattr(found, "host", None) is function:
        return Named(module, name, is_host=True)
    return None


def _look_up(module: Any, name: str) -> Any:
    return functools.reduce(getattr, name.split("."), module)


def _cannot_be_imported(name: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"workers: {name} cannot be imported by another process, because it is a lambda, is defined inside a function "
        "or belongs to `__main__`; expected a function of a module, or the package cloudpickle, which sends any; "
        "move it to a module, or install it with `pip install cloudpickle`."
    )
