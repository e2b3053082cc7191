"""Other libraries, to compare with: installed into a folder of their own, without a second torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

BUILD = Path(__file__).resolve().parents[1] / "build"


def install(folder: str, requirements: Mapping[str, str]) -> None:
    """Install packages into a folder of ``build`` once, and put it on the path.

    Arguments:
        folder: its name.
        requirements: what pip installs, by the name of the package that it brings.
    """
    home = BUILD / folder
    if not all((home / name).is_dir() for name in requirements):
        command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--target", str(home), *requirements.values()], check=True)
    if str(home) not in sys.path:
        sys.path.append(str(home))
