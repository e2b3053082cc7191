"""The progress bar: one step a subject, on a terminal only, and only for work that takes a while."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Show: TypeAlias = Callable[[int, str], None]
"""Says how many subjects are done, and what is being done now."""

SECONDS_BEFORE = 5.0
"""Work that is over by then shows no bar."""


def bar_is_shown() -> bool:
    """Tell whether there is a terminal on which somebody would see a bar, and nothing is piped.

    A service for continuous integration may offer a terminal, but keeps what is written on it as a log.
    """
    somebody_looks = not os.environ.get("CI") and os.environ.get("TERM") != "dumb"
    return somebody_looks and sys.stdout.isatty() and sys.stderr.isatty()


@contextmanager
def progress(total: int) -> Iterator[Show]:
    """Show a bar for ``total`` subjects inside the block after some seconds, and nothing of it afterwards."""
    if total == 0 or not bar_is_shown():
        yield lambda done, text: None
        return
    bar = _LateBar(total)
    try:
        yield bar.show
    finally:
        bar.close()


class _LateBar:
    """A bar that appears by itself after a while, whatever is going on then."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.latest = (0, "")
        self.bar: tuple[Progress, TaskID] | None = None
        self.over = False
        self.lock = threading.Lock()
        self.timer = threading.Timer(SECONDS_BEFORE, self._appear)
        self.timer.daemon = True
        with contextlib.suppress(RuntimeError):  # at its end Python may refuse threads; then there is no bar
            self.timer.start()

    def show(self, done: int, text: str) -> None:
        with self.lock:
            self.latest = (done, text)
            self._update()

    def close(self) -> None:
        self.timer.cancel()
        with self.lock:
            self.over = True
            if self.bar is not None:
                self.bar[0].stop()

    def _appear(self) -> None:
        from rich.console import Console  # here, so that the work begins while rich is imported
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
        with self.lock:
            if self.over:
                return
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bar = bar, bar.add_task("", total=self.total)
            bar.start()
            self._update()

    def _update(self) -> None:
        if self.bar is not None:
            bar, task = self.bar
            done, text = self.latest
            bar.update(task, completed=done, description=text)
