"""Host functions that workers import by name."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gradwright.wrapping.workers import pool_of


class Decorated:
    """What a decorator leaves under the name of a function."""

    def __init__(self, host: Callable[..., Any]) -> None:
        self.host = host

    def __call__(self, *args: Any) -> Any:
        raise AssertionError("a worker calls the function itself")


@Decorated
def decorated(x: float) -> float:
    return x + 1


class Space:
    @staticmethod
    def inner(x: float) -> float:
        return x + 2


def square(x: Any) -> Any:
    return x * x


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def where() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


class TwoArgumentsError(Exception):
    """Cannot be unpickled: the second argument is lost."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


def fail(x: int) -> int:
    if x % 2:
        raise TwoArgumentsError(x, "no such state")
    return x


def leave(x: int) -> int:
    if x == 3:
        sys.exit("enough")
    return x


def lock(x: int) -> Any:
    return threading.Lock() if x == 1 else x


def die(x: int, how: str, marks: str | None = None) -> int:
    """End the worker at 5; with ``marks``, a folder, only the first time."""
    if x != 5:
        return x
    if marks is not None:
        mark = Path(marks) / "died"
        if mark.exists():
            return x
        mark.touch()
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def die_with_array(x: np.ndarray[Any, Any], dies: bool) -> Any:
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return x + 1


def scale_in_place(x: np.ndarray[Any, Any]) -> Any:
    x *= 2
    return x


def describe(x: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return x.dtype.str, x.shape, x.flags.f_contiguous, x.flags.writeable, float(x.sum())


def surroundings() -> dict[str, Any]:
    return {
        "threads": {name: value for name, value in os.environ.items() if name.endswith("_THREADS")},
        "torch": "torch" in sys.modules,
        "main": getattr(sys.modules["__main__"], "__file__", None),
    }


def torch_state() -> tuple[bool, int]:
    import torch

    return torch.is_grad_enabled(), torch.get_num_threads()


def nested(x: int) -> tuple[list[int], set[int]]:
    pool = pool_of(2, name="nested", releases_gil=False)
    outcomes = pool.map(where_and, [(x,), (x + 1,)])
    return [outcome.value[0] for outcome in outcomes], {outcome.value[1] for outcome in outcomes} | {os.getpid()}


def where_and(x: int) -> tuple[int, int]:
    return x, os.getpid()


def with_program(folder: str) -> None:
    """Start a program that does not end, and wait for it."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(folder, str(program.pid)).touch()
    Path(folder, str(os.getpid())).touch()
    program.wait()


def meet(folder: str, number: int, count: int) -> tuple[int, int]:
    """Return where this runs once so many calls run at the same time."""
    Path(folder, str(number)).touch()
    deadline = time.monotonic() + 60
    while len(list(Path(folder).iterdir())) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return where()


class Unopenable:
    def __reduce__(self) -> Any:
        return fails_in_parent, (os.getpid(),)


def fails_in_parent(made_in: int) -> Any:
    if os.getpid() != made_in:
        raise ValueError("only where it was made")


def unopenable(x: int) -> Any:
    return Unopenable() if x == 1 else x


def type_of_process() -> str:
    return type(multiprocessing.current_process()).__name__


def in_daemon(writer: Any) -> None:
    pool = pool_of(2, name="f", releases_gil=False)
    writer.send([outcome.value[0] for outcome in pool.map(where, [(), ()])])


def pid() -> int:
    return os.getpid()


def pid_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def draw(x: int) -> bytes:
    return os.urandom(8)
