"""The short way of a plain call: as little around the foreign function as one would write by hand.

It is taken for what most calls are: tensors on the CPU that NumPy can read as they are, one output, nothing declared
that changes values on their way. Whatever is unusual, also in what comes back, takes the long way through
:mod:`~gradwright.wrapping.marshal`, which says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwright.authoring.rules import Argument, Rule
from gradwright.torch_compat import forward_mode_on, modes
from gradwright.wrapping.arrays import DTYPES, LONE, READABLE
from gradwright.wrapping.marshal import Marshal
from gradwright.wrapping.outputs import Like
from gradwright.wrapping.place import Point

ndarray, from_numpy, is_grad_enabled = np.ndarray, torch.from_numpy, torch.is_grad_enabled


def is_short(marshal: Marshal) -> bool:
    """Tell whether nothing is declared that changes values on their way, and outputs are known at a glance."""
    host, declared = marshal.calculus.host, marshal.declared
    simple = declared is None or (isinstance(declared.out, Like) and declared.out.dtype is None)
    plain = host.order == "K" and marshal.copy is None and marshal.device_types is None
    return simple and plain and host.memory is None and not host.by_keyword


def dtype_of(marshal: Marshal) -> Any:
    """Return the dtype that the function computes in, None for any; values of another one go the long way."""
    return None if marshal.dtype is None else np.dtype(DTYPES[marshal.dtype])


def handover_of(wanted: Any, every: bool) -> Callable[[Any], Any]:
    """Return what makes an argument an array that lies in the memory of a tensor and is read-only.

    ``every`` says that there are no arguments but tensors; constants are passed as they are, and stay as they are.
    """

    def locked(tensor: Any) -> Any:
        array = tensor.detach().numpy()
        if wanted is not None and array.dtype is not wanted and array.dtype.kind in "fc":
            raise TypeError
        array.setflags(write=False)
        return array

    return locked if every else lambda value: locked(value) if isinstance(value, Tensor) else value


def forward_of(marshal: Marshal, places: Sequence[int], number: int, general: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function on tensors; ``places`` are the positions of those among its ``number`` arguments.

    ``general`` takes the calls that are unusual.
    """
    host, declared = marshal.calculus.host, marshal.declared
    function = host.function
    model = None if declared is None else host.names.index(declared.place_of(declared.out))
    wanted = dtype_of(marshal)
    hand_over = handover_of(wanted, len(places) == number)

    def forward(*values: Any) -> Any:
        # The first call, or several outputs; it writes into its arguments; perhaps something records.
        if host.number is not None or host.writes or modes():
            return general(*values)
        try:
            arrays = [*map(hand_over, values)]
        except (TypeError, RuntimeError, AttributeError):  # the last: an array as default, in the place of a tensor
            return general(*values)
        host.calls += 1
        try:
            out = function(*arrays)
        except Exception as error:
            out = host.rescued(error, arrays)
        if type(out) is ndarray and getrefcount(out) <= LONE and out.base is None and out.dtype in READABLE:
            flags, like = out.flags, None if model is None else arrays[model]
            if model is None:
                if out.dtype.kind == "f" and flags.writeable and (wanted is None or out.dtype is wanted):
                    return from_numpy(out)
            elif type(like) is ndarray and out.shape == like.shape and out.dtype is like.dtype and flags.carray:
                return from_numpy(out)
        box = [out]
        del out
        outs, _ = host.read(box, arrays)
        return marshal.results(outs, values, ())[0]

    return forward


def pull_of(
    marshal: Marshal, arguments: Sequence[Argument], rule: Rule, extra: Sequence[str], long_way: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the VJP on tensors of a function with the user's ``rule`` on arrays, which may ask for ``extra`` too."""
    every = all(a.kind == "tensor" for a in arguments)
    bare = sum(a.kind != "static" for a in arguments) == 1  # no other argument can have a gradient
    calculus = marshal.calculus
    host, places = calculus.host, calculus.places
    names = (*host.names, *extra)
    asked = None if rule.asks == names else [names.index(name) for name in rule.asks]
    function = rule.function
    own = [host.names[place] for place in places]
    number, place = len(host.names), places[0]
    sole: Any = {own[0]: True} if len(places) == 1 else None
    """What is needed; of several it is asked for."""
    wanted = dtype_of(marshal)
    hand_over = handover_of(wanted, every)

    def pull(g: Any, *values: Any) -> Any:
        needs = sole
        if needs is None:
            *values, needs = values  # type: ignore[assignment]
        # What is inside of a transform has no memory of its own, and is refused below.
        if host.writes or is_grad_enabled() or modes() or forward_mode_on():
            return long_way(g, *values, needs)
        try:
            arrays = [*map(hand_over, values)]
            cotangent = g.numpy()
        except (TypeError, RuntimeError, AttributeError):
            return long_way(g, *values, needs)
        if wanted is not None and cotangent.dtype is not wanted:
            return long_way(g, *values, needs)
        cotangent.setflags(write=False)
        try:
            returned = function(cotangent, *(arrays if asked is None else [arrays[i] for i in asked]))
        except Exception:
            return long_way(g, *values, needs)
        if bare and type(returned) is ndarray and getrefcount(returned) <= LONE:
            if is_plain(returned, arrays[place]):
                return from_numpy(returned)
        elif type(returned) is dict:
            found = all_plain(returned, {name: arrays[place] for name, place in zip(own, places)})
            if found is not None:
                return found
        box = [returned]
        del returned
        at = Point(host, arrays[:number], [arrays[number]] if extra else None)
        parts = calculus.done("pull", box, at)
        gradients = [None if x is None else marshal.gradient(x, values[i]) for x, i in zip(parts, places)]
        return dict(zip(own, gradients))

    return pull


def all_plain(returned: dict[str, Any], likes: dict[str, Any]) -> dict[str, Tensor] | None:
    """Return gradients as tensors, None where one is unusual."""
    found = {}
    for name in returned:
        part, like = returned[name], likes.get(name)
        if part is None:
            continue
        alone = type(part) is ndarray and getrefcount(part) <= LONE + 1
        if not alone or type(like) is not ndarray or not is_plain(part, like):
            return None
        found[name] = from_numpy(part)
    return found


def is_plain(part: Any, like: Any) -> bool:
    """Tell whether an array is all that reaches its memory, and built like another, so that torch may have it."""
    return part.base is None and part.flags.writeable and part.dtype is like.dtype and part.shape == like.shape
