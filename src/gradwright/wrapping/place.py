"""Where a derivative is taken: the arguments, and what is known there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradwright.wrapping.host import Host


@dataclass
class Point:
    """Where a derivative is taken."""

    host: Host
    values: Sequence[Any]
    """All arguments: arrays and constants."""
    _outs: Sequence[Any] | None = None
    _residuals: Any = None
    _ran: bool = False

    @property
    def outs(self) -> Sequence[Any]:
        """The outputs; computed again where they were not kept."""
        if self._outs is None:
            self._run()
        assert self._outs is not None
        return self._outs

    @property
    def residuals(self) -> Any:
        """What the function kept; computed again where it is gone."""
        if self._residuals is None and not self._ran:
            self._run()
        return self._residuals

    def _run(self) -> None:
        self._outs, self._residuals = self.host.run(self.values)
        for out in self._outs:
            out.flags.writeable = False  # several calls of rules may get it
        self._ran = True
