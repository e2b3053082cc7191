"""The calls of a watched program, from a store, as the samples of what is checked."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from gradwright.checking.samples import Sample
from gradwright.checking.subject import Subject
from gradwright.errors import SampleError, StoreError
from gradwright.watching.calls import FunctionKey
from gradwright.watching.samples import as_samples
from gradwright.watching.store import FOLDER, StoredFunction, read_store
from gradwright.watching.targets import key_of

MOST_CALLS = 4
"""So many calls of one function are used, the newest ones: a store that is written again and again grows."""


class Recorded:
    """What a store holds; nothing, when there is none."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.notes: list[str] = []
        """What the reader should know of the store."""
        self._functions: list[StoredFunction] = []
        asked = options.store is not None
        if options.no_store or not (asked or Path(FOLDER).is_dir()):
            return
        try:
            store = read_store(Path(options.store if asked else FOLDER))
        except StoreError as error:
            if asked:
                raise
            self.notes.append(f"recorded calls are not used: {error}")
            return
        self._functions = store.functions
        self.notes += [f"{store.path}: {problem}" for problem in store.problems]

    def samples(self, subject: Subject, seed: int) -> tuple[list[Sample], list[str]]:
        """Return the samples of a subject, and why calls of it cannot be used."""
        samples: list[Sample] = []
        notes: list[str] = []
        for function in self._of(subject):
            calls, reasons = function.read(MOST_CALLS - len(samples))
            for call in calls:
                try:
                    samples += as_samples(call, seed)
                except SampleError as error:
                    reasons.append(str(error))
            notes += [f"a recorded call is not used: {reason}" for reason in reasons]
        return samples, notes

    def _of(self, subject: Subject) -> Iterator[StoredFunction]:
        key = key_of(subject.target)
        if key is not None:
            yield from (stored for stored in self._functions if _is_same(stored.key, key, subject.file))


def _is_same(stored: FunctionKey, key: tuple[str, str], file: str | None) -> bool:
    """Tell whether it is the same function: its module has another name when it is run or imported otherwise."""
    module, qualname = key
    if stored.qualname != qualname:
        return False
    if stored.file is not None and file is not None and Path(stored.file).resolve() == Path(file).resolve():
        return True
    return stored.module == module != "__main__"
