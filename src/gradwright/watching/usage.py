"""How often a program used each Function, for a store."""

from __future__ import annotations

from pathlib import Path

from gradwright.watching.recorder import Recorder
from gradwright.watching.store import write_usage
from gradwright.watching.targets import function_key


def write_usages(root: Path, recorder: Recorder) -> None:
    """Write how often this process has used everything of which a call was kept.

    Raises:
        StoreError: it cannot be written.
    """
    for watched in recorder.used():
        if watched.kept:
            key = function_key(watched.target, watched.kept[0].subject)
            write_usage(root, key, watched.calls, watched.backwards)
