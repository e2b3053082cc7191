"""Where the user's code was when its process crashed or hung, read from what Python's faulthandler wrote."""

from __future__ import annotations

import os
import re
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import gradwright

_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def place(trace: str) -> str | None:
    """Return for example ``ops.py:12, in backward``: the innermost frame of the user's code.

    Threads are looked at in the order in which they were written, the current one first.
    None when every frame belongs to Python, torch or gradwright.
    """
    for file, line, function in _FRAME.findall(trace):
        if not _is_foreign(file):
            return f"{_shown(Path(file))}:{line}, in {function}"
    return None


def _is_foreign(file: str) -> bool:
    """Tell whether a file is Python's, torch's or gradwright's."""
    torch = find_spec("torch")
    own = [str(Path(gradwright.__file__).parent), *((torch and torch.submodule_search_locations) or ())]
    if file.startswith(("<", *(folder + os.sep for folder in own))):
        return True
    standard = file.startswith((sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platstdlib") + os.sep))
    return standard and "site-packages" not in Path(file).parts


def _shown(file: Path) -> str:
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)
