"""Warnings that point at the user's line: what is between it and the warning is of gradwright or of PyTorch."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator
from types import FrameType


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the innermost line that is neither of gradwright nor of PyTorch."""
    level = 3  # 2 is ours; where nobody else is on the stack, as in a thread of autograd, the location stays empty
    for frame in _outside(inspect.currentframe()):
        if not _module(frame).startswith(("gradwright.", "torch.")):
            break
        level += 1
    warnings.warn(message, category, stacklevel=level)


def public_name(name: str, module: str) -> str:
    """Return what users call a function of gradwright's own that is running, as far as that can be told."""
    package = module.split(".")[1]
    public = vars(sys.modules[f"gradwright.{package}"])
    found = None
    for frame in _outside(inspect.currentframe()):
        inside = _module(frame).startswith(f"gradwright.{package}.")
        value = public.get(frame.f_code.co_name) if inside else None
        if getattr(value, "__module__", None) == _module(frame):
            found = frame.f_code.co_name  # the outermost, which the user called
    if found is None and getattr(public.get(name), "__module__", None) == module:
        found = name
    return f"gw.{package}.{found}" if found else f"a function of gw.{package}"


def _outside(frame: FrameType | None) -> Iterator[FrameType]:
    """Give the frames around the caller of a function that is running, from the innermost."""
    frame = frame and frame.f_back and frame.f_back.f_back
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
