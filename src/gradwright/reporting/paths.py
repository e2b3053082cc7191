"""Files as other programs know them: by their place in a project, from whatever folder the command is run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PROJECT = (".git", "pyproject.toml", "setup.cfg", "setup.py")
"""What a folder holds that is the root of a project."""
INSTALLED = ("site-packages", "dist-packages")


def in_project(file: str) -> str:
    """Return the path of a file below the root of its project, with slashes; its bare name where there is no root.

    It is the same in every checkout and from every working directory.
    """
    path = Path(os.path.normpath(Path(file).absolute()))
    for folder in path.parents:
        if folder.name in INSTALLED or any(_exists(folder / mark) for mark in PROJECT):
            return path.relative_to(folder).as_posix()
    return path.name


def below(file: str, folder: Path) -> str | None:
    """Return the path of a file below a folder, with slashes; None where it is not below it."""
    with contextlib.suppress(ValueError):
        return Path(os.path.normpath(Path(file).absolute())).relative_to(folder).as_posix()
    with contextlib.suppress(ValueError, OSError):  # reached by a link, or else no name that a file can have
        return Path(file).resolve().relative_to(folder.resolve()).as_posix()
    return None


def repository() -> Path:
    """Return the root of the repository that the working directory is in, else the working directory."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (ValueError, OSError):  # no name that a file can have, or a folder that is closed to us
        return False
