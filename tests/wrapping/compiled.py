"""Shared libraries for the tests, made by the compiler of the system."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILERS = {".c": ("cc", "gcc", "clang"), ".cpp": ("c++", "g++", "clang++"), ".f90": ("gfortran",)}


def library(folder: Path, source: Path) -> Path:
    """Return the shared library made of a file; the test is skipped where there is no compiler for it."""
    names = COMPILERS[source.suffix]
    compiler = next((found for name in names if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip(f"no compiler for {source.suffix}: none of {', '.join(names)} is there")
    made = folder / f"lib{source.stem}.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(made), "-lm"], check=True)
    return made
