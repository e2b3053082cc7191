"""What ``jvp`` really returned and did to its tangents, before PyTorch took over. The user's class is not touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gradwright.checking.case import Case
from gradwright.checking.forward_mode import push


@dataclass
class Raw:
    """One call of jvp, watched."""

    before: list[Tensor] = field(default_factory=list)
    """The tangents of the differentiable inputs, as they were handed over."""
    after: list[Tensor] = field(default_factory=list)
    """The same, after jvp."""
    returned: tuple[Any, ...] = ()
    outputs: list[Tensor] = field(default_factory=list)
    """Output tensors, one for each returned tangent."""


def raw_tangents(case: Case, directions: Sequence[Tensor]) -> Raw:
    """Push a direction through the Function and record what its jvp did."""
    function = case.subject.function
    assert function is not None
    raw, original = Raw(), function.jvp

    def jvp(ctx: Any, *tangents: Any) -> Any:
        watched = [tangents[item.argument] for item in case.inputs if item.argument < len(tangents)]
        watched = [t for t in watched if isinstance(t, Tensor)]
        raw.before = [t.clone() for t in watched]
        result = original(ctx, *tangents)
        raw.after = [t.clone() for t in watched]
        raw.returned = result if isinstance(result, tuple) else (result,)
        return result

    pushed = push(case, directions, function=type(function.__name__, (function,), {"jvp": staticmethod(jvp)}))
    if case.n_outputs == len(pushed.primals):
        raw.outputs = pushed.primals
    return raw
