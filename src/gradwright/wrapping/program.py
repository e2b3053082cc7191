"""A program as a function of arrays: each call in a directory of its own, of which nothing is left."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gradwright.errors import ArgumentError, describe_exception
from gradwright.wrapping.formats import Format, one_or_more
from gradwright.wrapping.groups import Ended, Group

PLACE = re.compile(r"\{\{|\}\}|\{(\w+)\}")
"""A place in a command: ``{name}``; braces are doubled."""
FIXED = ("in", "out", "dir")
_TAIL, _SHORT = 20, 150
"""How many lines of what a program complained of are told, and how many characters in the first line."""


class ProgramError(RuntimeError):
    """A program failed; it may be run again."""


@dataclass(frozen=True)
class Settings:
    """How a program is run."""

    timeout: float | None
    codes: tuple[int, ...] | None
    """Those that are no failure; None for all."""
    retries: int
    keep_failed: Path | bool
    env: Mapping[str, str | None] | None
    cwd: Path | None


@dataclass(eq=False)
class Program:
    """One program as a function of arrays and constants.

    Arguments:
        name: for messages and directories.
        words: the command.
        arguments: their names.
        write: a format, or the user's function.
        read: a format, or the user's function.
        settings: how it is run.
        gradients: the names of the arguments that it may return gradients of; what it returns by these is taken so.
    """

    name: str
    words: tuple[str, ...]
    arguments: tuple[inspect.Parameter, ...]
    write: Format | Callable[..., Any]
    read: Format | Callable[[Path], Any]
    settings: Settings
    gradients: tuple[str, ...] = ()
    running: set[Group] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.__name__ = self.__qualname__ = self.name
        self.__signature__ = inspect.Signature(list(self.arguments))
        self.__annotations__ = {p.name: p.annotation for p in self.arguments if p.annotation is not p.empty}
        self.names = tuple(p.name for p in self.arguments)
        self.places = places_in(self.words)

    def __reduce__(self) -> Any:
        """Leave what runs here behind."""
        return Program, (self.name, self.words, self.arguments, self.write, self.read, self.settings, self.gradients)

    def __call__(self, *values: Any, **keyword: Any) -> Any:
        """Run it; return what was read.

        Raises:
            ProgramError: it failed as often as it was tried.
        """
        given = {**dict(zip(self.names, values)), **keyword}
        left = self.settings.retries
        while True:
            try:
                return self._attempt(given, tries=self.settings.retries - left + 1)
            except ProgramError:
                if left == 0:
                    raise
                left -= 1

    def stop(self) -> None:
        """End what runs in other threads, since nobody waits for it any more."""
        for group in list(self.running):
            group.stop()

    # ---------------------------------------------------------------- one attempt

    def _attempt(self, given: Mapping[str, Any], tries: int) -> Any:
        parent = self.settings.keep_failed if isinstance(self.settings.keep_failed, Path) else None
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=parent)).absolute()
        kept = False
        try:
            words, stdin = self._handed_over(directory, given)
            self._require_success(self._run(directory, words, stdin))
            return self._taken(directory)
        except ProgramError as error:
            kept = self.settings.keep_failed is not False
            raise self._told(error, directory, kept, tries) from error.__cause__
        finally:
            if not kept:
                shutil.rmtree(directory, ignore_errors=True)

    def _run(self, directory: Path, words: Sequence[str], stdin: Path | None) -> Ended:
        env = dict(os.environ)
        for key, value in (self.settings.env or {}).items():
            if value is None:
                env.pop(key, None)
            else:
                env[key] = value
        cwd = self.settings.cwd or directory
        with (
            Path(os.devnull if stdin is None else stdin).open("rb") as given,
            (directory / "stdout.txt").open("wb") as out,
            (directory / "stderr.txt").open("wb") as err,
        ):
            group = Group(words, cwd=cwd, env=env, stdin=given, stdout=out, stderr=err)
            self.running.add(group)
            try:
                return group.run(self.settings.timeout)
            except OSError as error:
                raise ProgramError(f"could not be started ({describe_exception(error)})") from error
            finally:
                self.running.discard(group)

    def _handed_over(self, directory: Path, given: Mapping[str, Any]) -> tuple[list[str], Path | None]:
        """Write the arguments; return the command with all in its place, and the file that it reads as its input."""
        write = self.write
        suffix = f".{write.name}" if isinstance(write, Format) else ""
        back = f".{self.read.name}" if isinstance(self.read, Format) else ""
        texts = {"in": str(directory / f"in{suffix}"), "out": str(directory / f"out{back}"), "dir": str(directory)}
        if not isinstance(write, Format):
            write(directory, **given)
            return [self._filled(word, {**texts, **given}) for word in self.words], None
        rest = {name: value for name, value in given.items() if name not in self.places}
        for name in self.places:
            if name in given and isinstance(given[name], np.ndarray):
                texts[name] = str(directory / f"{name}{suffix}")
                self._written(Path(texts[name]), {name: given[name]})
            elif name in given:
                texts[name] = str(given[name])
        words = [self._filled(word, texts) for word in self.words]
        if not rest:
            return words, None
        file = Path(texts["in"])
        self._written(file, rest)
        return words, None if "in" in self.places else file

    def _written(self, file: Path, values: Mapping[str, Any]) -> None:
        assert isinstance(self.write, Format)
        try:
            file.write_bytes(self.write.dump(values))
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"{self.name}: its arguments cannot be written as {self.write.name} ({error}); expected others; write "
                "them by a function of your own: write=f(directory, **arguments)."
            ) from error

    def _filled(self, word: str, texts: Mapping[str, Any]) -> str:
        def put(match: re.Match[str]) -> str:
            return match[0][0] if match[1] is None else str(texts[match[1]])

        return PLACE.sub(put, word)

    def _require_success(self, ended: Ended) -> None:
        """Refuse a program that did not end as it should."""
        codes = self.settings.codes
        if ended == "timeout":
            raise ProgramError(f"did not end within {self.settings.timeout:g} seconds, and was ended")
        if ended == "stopped":
            raise RuntimeError("it was ended, since nobody waits for it any more")
        if codes is not None and ended not in codes:
            how = f"was ended by {_signal_name(-ended)}" if ended < 0 else f"ended with exit code {ended}"
            raise ProgramError(f"{how}; expected {', '.join(map(str, codes))}")

    def _taken(self, directory: Path) -> Any:
        try:
            if not isinstance(self.read, Format):
                return self.read(directory)
            file = directory / (f"out.{self.read.name}" if "out" in self.places else "stdout.txt")
            found = self.read.load(file.read_bytes())
            if not isinstance(found, dict) or (found and set(found) <= set(self.gradients)):
                return found
            return one_or_more(list(found.values()))
        except Exception as error:
            raise ProgramError(f"left no output that can be read ({describe_exception(error)})") from error

    def _told(self, error: ProgramError, directory: Path, kept: bool, tries: int) -> ProgramError:
        """Return the error with what the program complained of, most of it below the first line."""
        said = [f"`{Path(self.words[0]).name}` {error}"]
        if tries > 1:
            said.append(f"it was tried {tries} times")
        if kept:
            said.append(f"its directory was kept: {directory}")
        lines = _tail(directory / "stderr.txt")
        if lines:
            said.append(f"it complained: {lines[-1].strip()[:_SHORT]}")
        return ProgramError("\n".join(["; ".join(said), *lines]))


def places_in(words: Sequence[str]) -> tuple[str, ...]:
    """Return the names in the places of a command, in order."""
    found = [match[1] for word in words for match in PLACE.finditer(word) if match[1] is not None]
    return tuple(dict.fromkeys(found))


def _tail(file: Path) -> list[str]:
    text = file.read_text(errors="replace") if file.exists() else ""
    return text.strip().splitlines()[-_TAIL:]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
