"""The folder through which the processes of a watched program and the command that watches it speak to each other.

Every process writes files of its own, so that nothing is lost when one of them is killed: that it began, the calls it
kept (a store), and in the end what came of checking them. No process waits for another.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "GRADWRIGHT_WATCH"
"""The environment variable that names the folder."""


@dataclass(frozen=True)
class Process:
    """A process that imported torch."""

    pid: int
    command: str
    outcome: Any
    """What came of it; None when it ended before that was known."""
    failure: str | None
    """What went wrong in gradwright itself, with its traceback."""

    @property
    def lost(self) -> bool:
        """True when it ended, and nothing tells why nothing came of it."""
        return self.outcome is None and self.failure is None


class Run:
    """One run of a watched program."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # ------------------------------------------------------------------ the command

    def prepare(self, options: argparse.Namespace) -> None:
        """Write down what the processes have to know."""
        (self.path / "claims").mkdir(parents=True)
        (self.path / "options.json").write_text(json.dumps(vars(options)), encoding="utf-8")

    def processes(self) -> Iterator[Process]:
        """Give every process that imported torch, in the order in which they did."""
        files = sorted(self.path.glob("began-*.json"), key=lambda file: file.stat().st_mtime_ns)
        for file in files:
            pid = int(file.stem.rpartition("-")[2])
            told = json.loads(file.read_text(encoding="utf-8"))
            failure = self.path / f"failure-{pid}.txt"
            yield Process(
                pid,
                str(told["command"]),
                self._outcome(pid),
                failure.read_text(encoding="utf-8") if failure.is_file() else None,
            )

    def foreign(self) -> Iterator[str]:
        """Give the interpreters in which gradwright could not be imported, each with the reason."""
        for file in sorted(self.path.glob("foreign-*.txt")):
            yield file.read_text(encoding="utf-8")

    def _outcome(self, pid: int) -> Any:
        try:
            # Written by a process of this very run into a folder that only this user can write to.
            return pickle.loads((self.path / f"outcome-{pid}.pickle").read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            return None

    # ------------------------------------------------------------------ the processes

    def options(self) -> argparse.Namespace:
        """Read the options of the command."""
        return argparse.Namespace(**json.loads((self.path / "options.json").read_text(encoding="utf-8")))

    def began(self, command: str | None = None) -> None:
        """Tell that this process is watched, and how it is called."""
        if command is None:
            command = " ".join(getattr(sys, "orig_argv", sys.argv)[:6])
        self._write(f"began-{os.getpid()}.json", json.dumps({"command": command}).encode())

    def calls(self, options: argparse.Namespace) -> Path:
        """Return the store to which the processes write the calls that they keep."""
        return self.path / "calls" if options.store is None else Path(options.store)

    def claim(self, name: str) -> bool:
        """Tell whether this process shall check a subject; true for the first one that asks."""
        file = self.path / "claims" / hashlib.sha256(name.encode()).hexdigest()[:32]
        try:
            file.touch(exist_ok=False)
        except FileExistsError:
            return file.read_text(encoding="utf-8") == str(os.getpid())
        file.write_text(str(os.getpid()), encoding="utf-8")
        return True

    def leave(self, outcome: Any, pid: int | None = None) -> None:
        """Tell what came of checking what a process used: this one, unless it works for another."""
        self._write(f"outcome-{pid or os.getpid()}.pickle", pickle.dumps(outcome))

    def failed(self, words: str, pid: int | None = None) -> None:
        """Tell what went wrong in gradwright itself in a process: this one, unless it works for another."""
        self._write(f"failure-{pid or os.getpid()}.txt", words.encode())

    def _write(self, name: str, content: bytes) -> None:
        """Write a file so that it is there as a whole, or not."""
        part = self.path / f"{name}.part"
        part.write_bytes(content)
        part.replace(self.path / name)
