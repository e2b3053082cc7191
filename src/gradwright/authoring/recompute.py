"""Watching a forward that is run again with gradients on: which of its tensors carry their whole derivative?

An old Function may save a tensor that is neither input nor output. A second derivative that goes through it is right
only if it is computed again from the inputs by operations that autograd follows. Whatever autograd cannot follow (a
``detach``, ``no_grad``, NumPy, ``item``, a kernel of another library) is noticed here and named.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradwright import torch_compat
from gradwright.authoring.derive import smooth

FILLED = frozenset(
    ["zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"]
)
"""Operations whose result has one value everywhere."""

CONSTANT = FILLED | frozenset(("new_tensor", "rand_like", "randn_like"))
"""Operations whose result does not depend on the values of the tensor they are given."""

ESCAPES = frozenset(["item", "tolist", "numpy", "__array__", "__float__", "__complex__", "data_ptr", "__dlpack__"])
"""Operations that hand the values of a tensor to something other than PyTorch."""

CUTS = frozenset(("detach", "detach_", "data"))

OVERWRITES = frozenset(("copy_", "fill_", "zero_", "__setitem__"))

LIKE = frozenset(("type_as", "to", "expand_as", "view_as", "reshape_as"))
"""Operations that use the second tensor for its shape or dtype only."""

UNSEEN = "fills a tensor in a way that autograd cannot follow"

MOVING, STILL = "moving", "still"
"""States of a tensor: autograd knows its derivative; it is constant. Any other is the reason why neither holds."""


class Watch(TorchFunctionMode):
    """Follows the floating tensors of a computation that starts at ``inputs``."""

    def __init__(self, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> None:
        super().__init__()
        self.states: dict[int, tuple[str, bool, Tensor]] = {}
        """By identity: the state, whether the tensor had a graph then, and the tensor, so that it lives."""
        self.filled: dict[int, Tensor] = {}
        """Tensors that were made with one value everywhere and not written to since, as far as PyTorch knows."""
        self.escaped: str | None = None
        self.recording = True
        for tensor in constants:
            self._note(tensor, STILL)
        for tensor in inputs:
            self._note(tensor, MOVING)

    def __enter__(self) -> Any:
        """Remember whether graphs are recorded: where only tangents travel, ``no_grad`` stops nothing."""
        self.recording = torch.is_grad_enabled()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def state(self, tensor: Tensor) -> str:
        """Return the state of a tensor at the end."""
        if not smooth(tensor):
            return STILL
        state = self._state(tensor)
        return self.escaped if self.escaped is not None and state != MOVING else state

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and note what comes out."""
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        if name not in OVERWRITES and name not in ESCAPES and not name.endswith("_"):
            result = func(*args, **(kwargs or {}))
            results = _smooth_in(result)
            if results:
                given = _smooth_in((args, kwargs))
                if name in LIKE and args:
                    given = [t for t in given if t is args[0]]  # the other tells the shape or the dtype
                self._note_results(name, given, [self._state(t) for t in given], results)
            return result
        given = _smooth_in((args, kwargs))
        if name in OVERWRITES and _whole(name, args):
            given = [t for t in given if t is not args[0]]
        states = [self._state(t) for t in given]  # as they are before it is run
        result = func(*args, **(kwargs or {}))
        if name not in ESCAPES:
            self._note_results(name, given, states, _smooth_in(args[0] if name in OVERWRITES else result))
        elif any(state != STILL for state in states):
            self.escaped = f"uses {name.strip('_')}() on a value that depends on the inputs"
        return result

    def _note_results(
        self, name: str, given: Sequence[Tensor], states: Sequence[str], results: Sequence[Tensor]
    ) -> None:
        for tensor in results:
            self._note(tensor, self._after(name, given, states, tensor))
            self.filled.pop(id(tensor), None)
            if name in FILLED:
                self.filled[id(tensor)] = tensor

    def _after(self, name: str, given: Sequence[Tensor], states: Sequence[str], result: Tensor) -> str:
        broken = next((state for state in states if state not in (MOVING, STILL)), None)
        if name in CONSTANT:
            return STILL
        if name.startswith(("empty", "new_empty")):
            return UNSEEN
        if broken is not None:
            return broken
        if self.escaped is not None:
            # A number that was read out may be back among the arguments, so nothing is known to be whole.
            return self.escaped
        if MOVING not in states:
            return STILL
        if name in CUTS:
            return f"uses {name.strip('_')}"
        if self.recording and not torch.is_grad_enabled():
            return "computes it under no_grad"
        if any(torch_compat.in_graph(t) for t in given) and not torch_compat.in_graph(result):
            if name in ("grad", "backward"):
                return "differentiates in itself without a graph for more"
            return f"uses {name}, which has no derivative"
        return MOVING

    def _state(self, tensor: Tensor) -> str:
        noted = self.states.get(id(tensor))
        if noted is None:
            return MOVING if torch_compat.tracked(tensor) else "computes it with something that is not PyTorch"
        state, graph, _ = noted
        if not graph and state != MOVING and torch_compat.tracked(tensor):
            return MOVING  # what a Function returns has no graph inside of it and has one afterwards
        return UNSEEN if id(tensor) in self.filled and not _one_value(tensor) else state

    def _note(self, tensor: Tensor, state: str) -> None:
        self.states[id(tensor)] = (state, torch_compat.tracked(tensor), tensor)


def _smooth_in(value: Any) -> list[Tensor]:
    """Return the tensors that can have a derivative, in plain containers and those that PyTorch returns."""
    if isinstance(value, Tensor):
        return [value] if smooth(value) else []
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in _smooth_in(part)]
    return [tensor for part in value.values() for tensor in _smooth_in(part)] if isinstance(value, dict) else []


def _one_value(tensor: Tensor) -> bool:
    """Tell whether a tensor has one value everywhere; a kernel of another library may have written to it."""
    values = torch.func.debug_unwrap(tensor, recurse=True).detach()
    try:
        return bool((values == values.flatten()[:1]).all())
    except (RuntimeError, NotImplementedError):
        return True  # a tensor without values: nobody wrote any


def _whole(name: str, args: Sequence[Any]) -> bool:
    """Tell whether an operation overwrites all of its first argument; where it fills a part, the rest may follow."""
    return name != "__setitem__" or bool(args[1] is Ellipsis or args[1] == slice(None))


@contextmanager
def watching(
    inputs: Sequence[Tensor], function: Callable[..., Any], constants: Sequence[Tensor] = ()
) -> Iterator[Watch]:
    """Run a computation again with gradients on, leaving the state of random numbers as it is."""
    watch = Watch(inputs, [*constants_of(function), *constants])
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), _saved_as_copies(), warnings.catch_warnings(), watch:
        warnings.simplefilter("ignore")  # the first run has shown them
        yield watch


@contextmanager
def _saved_as_copies() -> Iterator[None]:
    """Let a forward edit in place what autograd has saved of it, as it may where nothing is recorded."""
    with ExitStack() as stack:
        with suppress(RuntimeError):  # transforms take no hooks
            stack.enter_context(
                torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor)
            )
        yield


def constants_of(function: Any) -> list[Tensor]:
    """Return the tensors that a function finds in its module and its closure."""
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    scope = getattr(function, "__globals__", {})
    values = [scope.get(name) for name in code.co_names]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    return [value for value in values if isinstance(value, Tensor) and not value.requires_grad]


def same_values(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors hold the same values, also inside transforms; False where they cannot be looked at."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    tolerance = 1e-6 if one.dtype in (torch.float64, torch.complex128) else 1e-3
    with torch.no_grad():
        a, b = one.detach(), other.detach()
        # `isclose` in the operations that vmap has batching rules for.
        near = ((a == b) | ((a - b).abs() <= tolerance * b.abs()) | ((a != a) & (b != b))).all()
    try:
        return bool(torch.func.debug_unwrap(near, recurse=True).all())
    except (RuntimeError, NotImplementedError):
        return False
