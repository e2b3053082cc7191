"""The graph that autograd recorded behind some tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor


def graph_nodes(outputs: Sequence[Tensor]) -> Iterator[Any]:
    """Give every node of the autograd graph behind some tensors, each once."""
    seen: set[Any] = set()
    pending: list[Any] = [out.grad_fn for out in outputs]
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            pending += [following for following, _ in node.next_functions]
