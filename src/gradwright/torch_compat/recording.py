"""torch.compile, torch.export and ``make_fx``: whether they are recording, and how to be left alone by them."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

compiler_watches: Callable[[], bool]
"""Tell whether torch.compile looks at each function that is called; without the probe: never."""
try:
    _frame_callback = importlib.import_module("torch._C._dynamo.eval_frame").get_eval_frame_callback

    def compiler_watches() -> bool:
        """Tell whether torch.compile looks at each function that is called, to compile it on its own."""
        return callable(_frame_callback())

except (ImportError, AttributeError):  # pragma: no cover - depends on the torch version

    def compiler_watches() -> bool:
        """Tell whether torch.compile looks at each function that is called; not known in this version."""
        return False


modes: Callable[[], int]
"""Tell how many modes look at every operation; without the probe: perhaps one."""
try:
    from torch._C import _len_torch_dispatch_stack as modes
except ImportError:  # pragma: no cover - depends on the torch version

    def modes() -> int:
        """Tell how many modes look at every operation; not known in this version, so perhaps one."""
        return 1


def is_recording() -> bool:
    """Tell whether operations are being recorded, by torch.compile, export or make_fx, so that values are not known."""
    if torch.compiler.is_compiling():
        return True
    recorder = sys.modules.get("torch.fx.experimental.proxy_tensor")  # if it was not imported, it does not record
    return recorder is not None and recorder.get_proxy_mode() is not None


def without_numbers(values: Sequence[Any]) -> bool:
    """Tell whether something runs on what only stands for numbers: it is recorded, on the meta device, or fake."""
    if is_recording():
        return True
    fake = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", ())
    return any(isinstance(value, torch.Tensor) and (value.is_meta or isinstance(value, fake)) for value in values)


def anywhere(flags: torch.Tensor) -> bool | None:
    """Tell whether something is true of any element, looking through transforms; None where there are no values."""
    if is_recording():
        return None
    try:
        return bool(torch.func.debug_unwrap(flags, recurse=True).any())
    except (RuntimeError, NotImplementedError):
        return None  # tensors without values: on the meta device, fake ones; in a vmap of the old kind


def is_exporting() -> bool:
    """Tell whether ``torch.export`` is recording; before torch 2.7 that cannot be told."""
    tell = getattr(torch.compiler, "is_exporting", None)
    return tell is not None and bool(tell())


def compiled_code() -> list[CodeType]:
    """Return the code of the functions that torch.compile took over in this process, as far as it tells."""
    tracker = getattr(sys.modules.get("torch._dynamo.convert_frame"), "input_codes", None)
    codes = [reference() for reference in getattr(tracker, "seen", ())]
    return [code for code in codes if code is not None]


def never_from_disk(token: str) -> None:
    """Have what is compiled from now on in this process looked up on disk by this token, too (from torch 2.7)."""
    try:
        config: Any = importlib.import_module("torch.compiler.config")
    except ImportError:  # pragma: no cover - depends on the torch version
        return
    tag = getattr(config, "cache_key_tag", None)
    if tag is not None and token not in tag:
        config.cache_key_tag = tag + token


def call_untraced(function: Callable[..., Any], arguments: Sequence[Any], message: str) -> Any:
    """Stop tracing, and call ``function`` as if nothing were compiled.

    With ``fullgraph=True`` torch.compile raises and shows ``message``.
    """
    import torch._dynamo as dynamo  # here, because importing it takes seconds; while tracing it is there already

    dynamo.graph_break(msg=message)
    return dynamo.disable(function)(*arguments)


def run_by_compiler(function: F) -> F:
    """Mark a function that torch.compile runs while it traces, instead of tracing it; its result is a constant.

    It is ``torch.compiler.assume_constant_result`` without importing the compiler, which takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def call_unwatched(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Call ``function`` so that torch.compile leaves it and all that it calls alone."""
    import torch._dynamo as dynamo  # here, because importing it takes seconds; if it watches it is there already

    return dynamo.disable(function)(*arguments)


@contextmanager
def untraced() -> Iterator[None]:
    """Run without torch's structured trace of what it compiles.

    The trace ignores ``logging.disable`` and is written for every handler that the logger has. pytest gives one to each
    logger that does not propagate, so that a failing test would show hundreds of empty lines of it (pytest 9.2).
    """
    logger = logging.getLogger("torch.__trace")
    handlers, logger.handlers = logger.handlers, []
    try:
        yield
    finally:
        logger.handlers = handlers


def reset_compiler() -> None:
    """Forget everything torch.compile has compiled and recorded in this process."""
    torch.compiler.reset()


def compiler_is_off() -> bool:
    """Tell whether ``TORCHDYNAMO_DISABLE`` or its option makes torch.compile return functions as they are."""
    import torch._dynamo as dynamo  # here, because importing it takes seconds

    return bool(dynamo.config.disable)


function_modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
"""Tell how many modes look at every function of torch that is called; without the probe: perhaps one."""


def unseen() -> AbstractContextManager[Any]:
    """Return a context in which the modes and classes that take part in every operation do not see what is done."""
    disabled: Callable[[], AbstractContextManager[Any]] = getattr(torch._C, "DisableTorchFunction", nullcontext)
    return _without_modes(disabled()) if modes() else disabled()


@contextmanager
def _without_modes(outer: AbstractContextManager[Any]) -> Iterator[None]:
    from torch.utils import _python_dispatch

    with outer, getattr(_python_dispatch, "_disable_current_modes", nullcontext)():
        yield
