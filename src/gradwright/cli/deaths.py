"""How a process ended, in words."""

from __future__ import annotations

import signal

_MEANINGS = {
    "SIGSEGV": "a crash in compiled code",
    "SIGBUS": "a crash in compiled code",
    "SIGILL": "a crash in compiled code",
    "SIGFPE": "a crash in compiled code",
    "SIGABRT": "compiled code gave up",
    "SIGKILL": "probably because memory ran out",
}


def by_itself(exit_code: int) -> str:
    """Say how a process ended whose exit code is given as ``subprocess`` and ``multiprocessing`` give it."""
    if exit_code >= 0:
        # On Windows a crash is a large status, and known by its hexadecimal form.
        return f"ended itself with exit status {exit_code if exit_code < 256 else hex(exit_code)}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    meaning = _MEANINGS.get(name)
    return f"was ended by {name}" + (f" ({meaning})" if meaning else "")


def too_slow(seconds: float) -> str:
    """Say that a process was stopped because it did not come back in time."""
    return f"did not come back within {seconds:g} s and was stopped"


def too_large(allowed: int) -> str:
    """Say that a process was stopped because of the memory it took."""
    return f"was stopped because it took more than {allowed / 1e9:.1f} GB of memory (`--memory` sets the limit)"
