"""The console that a report is written on."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WHEN_PIPED = 100
"""rich takes 80 columns when it does not write to a terminal, which is too narrow for the table."""
NARROWEST = 20


def report_console(*, stderr: bool = False, when_piped: int = WHEN_PIPED) -> Console:
    """Return a console as wide as ``COLUMNS`` says, where that says anything that can be written in."""
    from rich.console import Console

    said = os.environ.get("COLUMNS")
    width = None
    if said is not None and said.isdecimal() and int(said) > 0:
        width = max(int(said), NARROWEST)
    elif not (sys.stderr if stderr else sys.stdout).isatty():
        width = when_piped
    elif said is not None:  # 0 is what some shells in containers export: rich would write nothing at all
        width = shutil.get_terminal_size().columns
    return Console(stderr=stderr, highlight=False, width=width)
