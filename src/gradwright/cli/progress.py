"""The progress bar: one step a subject, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Show: TypeAlias = Callable[[int, str], None]
"""Says how many subjects are done, and what is being done now."""


def bar_is_shown() -> bool:
    """Tell whether there is a terminal to show a bar on, and nothing is piped."""
    return sys.stdout.isatty() and sys.stderr.isatty()


@contextmanager
def progress(total: int) -> Iterator[Show]:
    """Show a bar for ``total`` subjects inside the block, and nothing of it afterwards; none when output is piped."""
    if total == 0 or not bar_is_shown():
        yield lambda done, text: None
        return
    from rich.console import Console  # here, so that the work begins while rich is imported
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, text: bar.update(task, completed=done, description=text)
