"""The end of a program: when it comes, and what must not be done any more in a process that was forked then."""

from __future__ import annotations

import atexit
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

_COLLECTIVES = (
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "_allgather_base",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)


def at_end(action: Callable[[], None]) -> None:
    """Call ``action`` once, in the main thread, when the program is over and Python is not yet.

    ``atexit`` alone is too late: from Python 3.12 on, no process can be started there. Python calls what
    ``concurrent.futures`` registers earlier, while processes can be started. Threads of the program that still run are
    waited for, as Python does next anyway.
    """
    done: list[bool] = []

    def once() -> None:
        if not done:
            done.append(True)
            for thread in threading.enumerate():
                own = thread in (threading.current_thread(), threading.main_thread())
                if not (thread.daemon or own):
                    thread.join()
            action()

    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(once)
    atexit.register(once)


def can_fork() -> bool:
    """Tell whether a forked process can compute gradients: not after a GPU was used, nor where there is no fork."""
    if sys.platform not in ("linux", "darwin"):
        return False
    if sys.version_info >= (3, 12) and sys.is_finalizing():
        return False
    accelerators = [torch.cuda, getattr(torch, "xpu", None)]
    return not any(each is not None and each.is_initialized() for each in accelerators)


def go_on() -> None:
    """Let a process that was forked from a program that is over register what is to be done at its own end.

    Otherwise `import concurrent.futures.process` raises, which torch.compile does the first time.
    """
    if hasattr(threading, "_SHUTTING_DOWN"):
        threading._SHUTTING_DOWN = False


def refuse_collectives(error: Callable[[str], BaseException]) -> None:
    """Make every operation raise that other processes of a distributed program would have to take part in.

    For a process that was forked from such a program: what it sent would get among what the program sends.
    """
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return
    try:
        group: Any = importlib.import_module("torch._C._distributed_c10d").ProcessGroup
    except (ImportError, AttributeError):  # pragma: no cover - PyTorch without distributed
        return
    for name in _COLLECTIVES:
        if hasattr(group, name):
            setattr(group, name, _refusing(name.strip("_"), error))


def _refusing(name: str, error: Callable[[str], BaseException]) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise error(name)

    return refuse
