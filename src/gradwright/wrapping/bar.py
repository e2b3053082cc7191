"""The progress bar of a long batch: on a terminal only, and only once it has taken a while."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.5
"""Seconds that a batch may take without one."""


class Bar:
    """Says on standard error how many calls are done.

    Arguments:
        text: what is being done; None for no bar.
        total: the number of calls.
    """

    def __init__(self, text: str | None, total: int) -> None:
        self._text = text if sys.stderr is not None and sys.stderr.isatty() else None
        self._total = total
        self._since = time.monotonic()
        self._shown: Progress | None = None

    def patience(self) -> float | None:
        """Return after how many seconds the bar wants to be asked again, None for whenever something is done."""
        if self._text is None or self._shown is not None:
            return None
        return max(self._since + PATIENCE - time.monotonic(), 0.0)

    def show(self, done: int) -> None:
        """Say how many calls are done, if it is time to."""
        if self._text is None:
            return
        if self._shown is None:
            if self.patience() or done >= self._total:
                return
            self._shown = _started(self._text, self._total)
        self._shown.update(self._shown.task_ids[0], completed=done)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._shown is not None:
            self._shown.stop()


def _started(text: str, total: int) -> Progress:
    from rich.console import Console  # here, because short batches need none of it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(text, total=total)
    bar.start()
    return bar
