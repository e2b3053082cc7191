"""Published packages, installed from PyPI for the benchmarks that run them: pinned and without their dependencies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "packages"
"""A folder of their own, so that no second torch comes along."""


def install(name: str, requirements: Sequence[str]) -> None:
    """Put a package and what it needs into the folder, once."""
    done = HOME / ".installed" / name
    wanted = "\n".join(requirements)
    if done.is_file() and done.read_text(encoding="utf-8") == wanted:
        return
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps", "--upgrade"]
    subprocess.run([*command, "--target", str(HOME), *requirements], check=True)
    done.parent.mkdir(parents=True, exist_ok=True)
    done.write_text(wanted, encoding="utf-8")


def environment(*first: Path) -> dict[str, str]:
    """Return the environment of a process that imports them: these folders first, then the packages and gradwright."""
    folders = [*map(str, first), str(HOME), str(ROOT / "src")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
