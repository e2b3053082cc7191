"""How many bytes a call keeps for its backward, as the inputs grow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.case import Case
from gradwright.checking.graph import graph_nodes
from gradwright.checking.kept import kept_on
from gradwright.checking.shown import Curves, Line

MAX_SIZES = 4
"""Dimensions whose growth is drawn."""
MAX_NODES = 200


def saved_bytes(case: Case) -> int | None:
    """Return the bytes that a call keeps alive for backward, each piece of memory once; None when it does not run.

    Inputs and outputs that are saved count too: they stay alive as long.
    """
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> None:
        if tensor.layout == torch.strided and not tensor.is_meta and tensor.numel():
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()

    def pack(tensor: Tensor) -> Tensor:
        count(tensor)
        return tensor

    def unpack(tensor: Any) -> Any:
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            run = case.forward()
    except Exception:  # whatever forward raises under hooks is for `saved-through-hooks` to tell
        return None
    for number, node in enumerate(graph_nodes(run.differentiable)):
        if number >= MAX_NODES:
            break
        function = torch_compat.node_function(node)
        # The decorators' own Functions save everything, and their ctx leads to far too much to look through.
        if function is not None and not hasattr(function, "gw_definition"):
            for found in kept_on(node):
                count(found.tensor)
    return sum(kept.values())


class Memory:
    """Collects what calls of several sizes keep, and draws it.

    Arguments:
        case: the sample itself.
    """

    def __init__(self, case: Case) -> None:
        self._here = saved_bytes(case)
        self._seen: dict[int, dict[int, int]] = {}

    def add(self, old: int, new: int, case: Case) -> None:
        """Take note of what the sample keeps with another size in the place of ``old``."""
        kept = saved_bytes(case)
        if kept is not None and old and new:
            self._seen.setdefault(old, {})[new] = kept

    def drawn(self) -> tuple[Curves, ...]:
        """Return the picture, if at least three sizes are known and anything is kept at all."""
        grown = [{**seen, **({} if self._here is None else {old: self._here})} for old, seen in self._seen.items()]
        known = [(old, sizes) for old, sizes in zip(self._seen, grown) if len(sizes) > 2 and any(sizes.values())]
        if not known:
            return ()
        places = sorted({size for _, sizes in known for size in sizes})
        lines = tuple(
            Line(f"dimension of size {old}", tuple(float(sizes.get(place, "nan")) for place in places))
            for old, sizes in known[:MAX_SIZES]
        )
        at = tuple(map(float, places))
        return (
            Curves("Bytes kept for backward as a dimension grows.", "size of the dimension", "bytes", at, lines, True),
        )
