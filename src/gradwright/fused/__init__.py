"""The usual gradient for less memory and time: gradients that are formed, chunked or read from the output.

``gw.fused.softplus(x)``, say, keeps its output alone. Every function is listed by ``gradwright show fused``, and is
proved beside what it replaces; ``docs/fused.md`` says what each costs.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from gradwright.errors import did_you_mean as _did_you_mean
from gradwright.fused.entmax import entmax as entmax
from gradwright.fused.entmax import entmax15 as entmax15
from gradwright.fused.entmax import sparsemax as sparsemax
from gradwright.fused.outputs import softplus as softplus

if not _TYPE_CHECKING:  # so that type checkers still tell what there is

    def __getattr__(name: str) -> object:
        guess = "" if name.startswith("_") else _did_you_mean(name, [each for each in globals() if each[0] != "_"])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{guess}", name=name)
