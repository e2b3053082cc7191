"""How much memory there is, and how much a process has taken; known on Linux only."""

from __future__ import annotations

from pathlib import Path

SHARE = 0.8
"""The part of the available memory that the user's code may take unless ``--memory`` says otherwise."""


def allowance(gigabytes: float | None) -> int | None:
    """Return how many bytes the user's code may take; None when that cannot be watched here."""
    available = _kilobytes(Path("/proc/meminfo"), "MemAvailable")
    if available is None:
        return None
    return int(available * 1024 * SHARE) if gigabytes is None else int(gigabytes * 1e9)


def taken(pid: int) -> int:
    """Return the bytes of memory that a process has for itself (files it only reads do not count); 0 when unknown."""
    return 1024 * (_kilobytes(Path(f"/proc/{pid}/status"), "RssAnon") or 0)


def _kilobytes(file: Path, field: str) -> int | None:
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)
