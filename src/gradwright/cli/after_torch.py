"""Waits for torch: something is done when the program has imported it, and nothing before.

It needs nothing but what Python has loaded at its start anyway, so that waiting costs nothing.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing `typing` would cost every start of Python
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class AfterTorch:
    """A finder of modules that finds nothing itself; it calls ``begin`` once, when torch has been imported."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin

    def wait(self) -> None:
        """Begin to wait."""
        sys.meta_path.insert(0, self)

    def give_up(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find torch as the finders behind this one do, with a loader that tells when it is loaded.

        Programs also ask for the specification alone, to learn whether there is a torch; so the wait goes on.
        """
        if name != "torch" or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None

    def loaded(self) -> None:
        """Begin; torch is there."""
        if self in sys.meta_path:
            self.give_up()
            self._begin()


class _Loader:
    """Loads a module as its own loader does, and then tells."""

    def __init__(self, loader: Any, waiting: AfterTorch) -> None:
        self._loader = loader
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        # Whoever asks later finds the loader that Python chose.
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._waiting.loaded()
