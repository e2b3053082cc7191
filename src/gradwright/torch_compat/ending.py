"""The end of a program: when it comes, and what must not be done any more in a process that was forked then."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
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
    """Call ``action`` once, in the main thread, when the program and its threads are over and Python is not yet.

    ``atexit`` alone is too late: in some versions, no process can be started there. So it is called where Python waits
    for the threads of the program, behind that. To wait for them any earlier would be in vain: some end when they see
    that the main thread is over, and those of an executor when they are told so.
    """
    done: list[bool] = []
    wait = getattr(threading, "_shutdown", None)

    def once() -> None:
        if not done:
            done.append(True)
            action()

    def wait_and_end() -> None:
        try:
            wait()  # type: ignore[misc]
        except BaseException as error:  # Ctrl-C; Python shows it, without this frame
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise
        once()

    if wait is not None:
        threading._shutdown = wait_and_end  # type: ignore[attr-defined]
    atexit.register(once)


def stop_timers() -> None:
    """Stop what ends a program that hangs, or interrupts it: it is over, and what follows may take longer."""
    faulthandler.cancel_dump_traceback_later()
    for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"):
        timer = getattr(signal, name, None)
        if timer is not None:
            signal.setitimer(timer, 0)


@contextlib.contextmanager
def executors_open() -> Iterator[None]:
    """Let code in the block use executors as it did before the end of the program, when Python closes them all.

    torch.compile imports some the first time, which raises otherwise.
    """
    flags = [
        (sys.modules.get(module), name)
        for module, name in (
            ("threading", "_SHUTTING_DOWN"),
            ("concurrent.futures.thread", "_shutdown"),
            ("concurrent.futures.process", "_global_shutdown"),
        )
    ]
    closed = [(module, name) for module, name in flags if getattr(module, name, False) is True]
    for module, name in closed:
        setattr(module, name, False)
    try:
        yield
    finally:
        for module, name in closed:
            setattr(module, name, True)


def can_fork() -> bool:
    """Tell whether a forked process can compute gradients: not after a GPU was used, nor where there is no fork."""
    if sys.platform not in ("linux", "darwin"):
        return False
    if sys.is_finalizing() or (3, 12) <= sys.version_info < (3, 12, 2):  # which refuses from the end of the script on
        return False
    accelerators = [torch.cuda, getattr(torch, "xpu", None)]
    return not any(each is not None and each.is_initialized() for each in accelerators)


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
