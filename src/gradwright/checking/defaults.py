"""What the options of ``check`` are where a call does not say: ``@pytest.mark.gradwright`` sets them for a test."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from gradwright.typing import Level


@dataclass(frozen=True, eq=False)
class Defaults:
    """A value for each option that may be set for a whole test; :func:`~gradwright.check` explains them."""

    level: Level = "standard"
    only: Collection[str] | str = ()
    skip: Collection[str] | str = ()
    require: Collection[str] | str = ()
    seed: int = 0


# Not a context variable: a test may call `check` in a thread or in an event loop that was started before it.
_set: list[Defaults] = [Defaults()]


def current() -> Defaults:
    """Return the defaults that hold now."""
    return _set[-1]


@contextmanager
def defaults(**options: Any) -> Iterator[None]:
    """Let other defaults hold within the block, in all threads; what is not named stays as it is."""
    new = replace(current(), **options)
    _set.append(new)
    try:
        yield
    finally:
        _set.remove(new)
