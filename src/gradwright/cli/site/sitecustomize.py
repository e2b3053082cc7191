"""Python imports this at its start in the processes of a program that ``gradwright watch`` started.

It imports nothing but the standard library until torch is imported, and has the ``sitecustomize`` run that would have
run without it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = False  # importing `typing` would cost every start of Python
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs a start-up 10 ms


class _AfterTorch:
    """A finder of modules that waits for torch, and begins to watch when that has been imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or path is not None:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


class _Loader:
    """Loads a module as its own loader does, and then begins to watch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        # Whoever asks later finds the loader that Python chose.
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _begin()


def _begin() -> None:
    folder = os.environ.get("GRADWRIGHT_WATCH")
    if not folder or not os.path.isdir(folder):  # noqa: PTH112
        return
    try:
        from gradwright.cli.watched import begin
    except BaseException as error:
        with open(os.path.join(folder, f"foreign-{os.getpid()}.txt"), "w") as file:  # noqa: PTH118, PTH123
            file.write(f"{sys.executable}: {type(error).__name__}: {error}")
    else:
        begin(folder)


def _run_the_other() -> None:
    """Run the ``sitecustomize`` that this one hides."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != FOLDER]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("GRADWRIGHT_WATCH"):
    sys.meta_path.insert(0, _AfterTorch())
_run_the_other()
