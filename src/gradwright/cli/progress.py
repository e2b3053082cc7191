"""The progress bar: one step a subject, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


class Bar:
    """What the work tells the bar; without a bar it tells nobody."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total) if progress is not None else None
        self._begun = -1

    def subject(self, name: str) -> Callable[[str], None]:
        """Begin the next subject; the result is called with what is being done to it."""
        self._begun += 1
        self._update(name)
        return lambda what: self._update(f"{name}: {what}")

    def _update(self, text: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._begun, description=text)


@contextmanager
def progress(total: int) -> Iterator[Bar]:
    """Show a bar for ``total`` subjects inside the block, and nothing of it afterwards; none when output is piped."""
    if total == 0 or not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield Bar(None, total)
        return
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield Bar(shown, total)
