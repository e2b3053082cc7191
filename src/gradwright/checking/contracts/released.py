"""What a call used is freed when its results are dropped.

## What it checks
Weak references to the inputs, outputs, saved tensors and graph nodes of a call, and of a call with backward: all must
be gone as soon as the last reference of the caller is, by reference counting, without a run of the garbage collector.
A call is repeated, so that a leak is told from a cache: what grows with each call leaks; what keeps only the last call,
or the same constant each time, is named and passes. Intermediate results must be gone after backward while the output
is still alive, and so must whatever else the operations of a call made once the call is over.

## Why it matters
A reference cycle keeps the memory of a whole graph until the garbage collector happens to run, which on a GPU is often
too late; a list that grows runs out of memory after hours.

## If it fails
Save tensors with ``ctx.save_for_backward``, which avoids cycles; keep neither ``ctx`` nor its tensors elsewhere.

## References
pytorch/pytorch issues 25340, 5569 and 153005.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType
from typing import Any

from torch import Tensor

from gradwright import torch_compat
from gradwright.checking import repro, trees
from gradwright.checking.audit import audit, functions_in_graph, random_cotangent
from gradwright.checking.captured import captured_by
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.graph import graph_nodes
from gradwright.checking.parts import Pass
from gradwright.checking.report import Finding, Outcome

CALLS = 3
MAX_NODES = 200
HINT = (
    "save tensors with ctx.save_for_backward instead of keeping them, ctx or a closure over them anywhere else; what "
    "must be kept between calls is kept detached and once."
)


@dataclass(frozen=True)
class Watched:
    """One object of one call, by a weak reference."""

    words: str
    reference: weakref.ref[Any]
    address: int
    """Where a tensor's memory is; the same in each call for a constant. 0 for a node."""

    @property
    def alive(self) -> bool:
        """True while somebody holds the object."""
        return self.reference() is not None


@contract(asks="is it pure?", presupposes=("saved-through-hooks",))
def examine(case: Case) -> Outcome:
    """Drop the results of calls and look at what is still there."""
    usable = audit(case).usable
    stages = ["forward", *(["backward"] if usable else [])]
    for backward in (False, True)[: len(stages)]:
        with _without_collector():
            calls = [_call(case, backward) for _ in range(CALLS)]
            alive = [[w for w in call if w.alive] for call in calls]
        outcome = _judge(case, calls, alive, "backward" if backward else "forward")
        if outcome is not None:
            return outcome
    if usable:
        kept = _kept_after_backward(case)
        kept = kept or _results_kept(case)
        if kept is not None:
            return kept
    return Outcome("pass", f"inputs, outputs, saved tensors and graph freed at once after {' and '.join(stages)}")


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep the garbage collector from running by itself: whatever it would free is the question."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _call(case: Case, backward: bool) -> list[Watched]:
    """Run a call and return weak references only."""
    run = case.forward()
    watched = _watch(case, run)
    if backward:
        with case.sandbox():
            run.gradients(case.cotangents(random_cotangent(case)))
    return watched


def _watch(case: Case, run: Pass) -> list[Watched]:
    found = [_of(f"the input `{item.name}`", tensor) for item, tensor in zip(case.inputs, run.inputs)]
    found += [_of(f"output {position}", out) for position, out in enumerate(run.outputs)]
    for number, node in enumerate(graph_nodes(run.differentiable)):
        function = torch_compat.node_function(node)
        if number >= MAX_NODES:
            break
        if function is None:
            continue
        found.append(Watched(f"the ctx of {function.__name__}", weakref.ref(node), 0))
        for k, saved in enumerate(node.saved_tensors):
            if isinstance(saved, Tensor):
                found.append(_of(f"saved_tensors[{k}] of {function.__name__}", saved))
    return found


def _of(words: str, tensor: Tensor) -> Watched:
    address = tensor.data_ptr() if tensor.numel() and not tensor.is_sparse else 0
    return Watched(words, weakref.ref(tensor), address)


def _judge(case: Case, calls: list[list[Watched]], alive: list[list[Watched]], stage: str) -> Outcome | None:
    """Tell growth from a cache; None when everything is gone."""
    if not any(alive):
        return None
    constants = _constants(alive)
    growing = [w for w in alive[0] if id(w.reference()) not in constants and w.alive]
    if not growing:
        kept = sorted({w.words for call in alive for w in call})
        holder = _holder(case, [w for call in alive for w in call])
        return Outcome("pass", f"{', '.join(kept)} stays alive after {stage}, the same or the last one only{holder}")
    holder = _holder(case, growing)
    own = case.subject.hand_written
    collected = _collect(growing)
    names = ", ".join(dict.fromkeys(w.words for w in growing))
    if collected and not own:
        return Outcome("pass", f"{names} is freed by the garbage collector only, by a cycle in plain code{holder}")
    if collected:
        message = f"a reference cycle keeps {names} alive after {stage} until the garbage collector runs{holder}."
    else:
        message = f"{names} stays alive after {stage} of every call, which runs out of memory in time{holder}."
    body = [
        "import gc, weakref",
        "gc.disable()",
        f"watch = weakref.ref({repro.listed(case)}[0])",
        "del out",
        'print("freed:", watch() is None)',
    ]
    finding = Finding("fail", message, HINT, repro=repro.script(case, body))
    return Outcome("fail", message, (finding,))


def _constants(alive: list[list[Watched]]) -> set[int]:
    """Return the identities of objects that were seen in every call: kept on purpose, once."""
    identities = [{id(w.reference()) for w in call if w.alive} for call in alive]
    return set.intersection(*identities)


def _collect(growing: list[Watched]) -> bool:
    gc.collect()
    return not any(w.alive for w in growing)


def _holder(case: Case, alive: list[Watched]) -> str:
    """Say who holds some objects, as far as it can be found: an attribute of ctx, a global, a closure."""
    targets = [target for target in (w.reference() for w in alive) if target is not None]
    known = {id(target) for target in targets}
    for node in targets:
        for attribute, value in () if isinstance(node, Tensor) else list(vars(node).items()):
            cells = [_content(cell) for cell in getattr(value, "__closure__", None) or ()]
            attributes = vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, Tensor) else ()
            parts = (value, *trees.flatten(value)[0], *cells, *attributes)
            if any(id(part) in known for part in parts):
                return f" (held by ctx.{attribute})"
    addresses = {w.address for w in alive if w.alive and w.address}
    functions = tuple(functions_in_graph(case))
    for c in captured_by(case.subject, functions):
        if id(c.value) in known or (isinstance(c.value, Tensor) and _address(c.value) in addresses):
            return f" (held by {c.words})"
    return ""


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.numel() and not tensor.is_sparse else 0


def _kept_after_backward(case: Case) -> Outcome | None:
    """Look for saved intermediates that outlive a backward while the output is still alive."""
    if not case.subject.hand_written:
        return None
    # Two calls live at the same time, so that equal addresses mean one tensor: a constant that is kept on purpose.
    first, second = ((run, _saved_intermediates(case, run)) for run in (case.forward(), case.forward()))
    nodes = [w for w in _watch(case, first[0]) if w.words.startswith("the ctx")]
    alive = []
    for run, saved in (first, second):
        with case.sandbox():
            run.gradients(case.cotangents(random_cotangent(case)))
        alive.append([w for w in saved if w.alive])
    again = {w.address for w in alive[1]}
    kept = [w for w in alive[0] if w.address not in again]
    if not kept:
        return None
    message = (
        f"{kept[0].words} stays alive after backward while the output lives{_holder(case, [*kept, *nodes])}; PyTorch "
        "has let go of it."
    )
    return Outcome("fail", message, (Finding("fail", message, HINT),))


def _results_kept(case: Case) -> Outcome | None:
    """Look for results of operations within forward and backward that every call leaves behind."""
    if case.subject.kind not in ("Function", "custom op"):
        return None
    made: list[list[Watched]] = []

    def look(operation: Any, result: Any) -> None:
        if isinstance(result, Tensor):
            made[-1].append(Watched(f"a result of {operation}", weakref.ref(result), 0))

    try:
        for _ in range(CALLS):
            made.append([])
            with torch_compat.watch_operations(look):
                _call(case, backward=True)
    except Exception:
        return None  # not under a recorder
    if not all(any(w.alive for w in call) for call in made):
        return None
    gc.collect()  # it takes a tenth of a second in a process that has loaded much
    alive = [[w for w in call if w.alive] for call in made]
    constants = _constants(alive)
    growing = [[w for w in call if id(w.reference()) not in constants] for call in alive]
    if not all(growing):
        return None  # what only the first call or the last one leaves is a cache
    message = (
        f"each call leaves {len(growing[0])} more of the tensors alive that it computes, which runs out of memory in "
        f"time{_holder(case, growing[0])}: {growing[0][0].words}."
    )
    return Outcome("fail", message, (Finding("fail", message, HINT),))


def _saved_intermediates(case: Case, run: Pass) -> list[Watched]:
    """Return the saved tensors that are neither arguments nor outputs nor views of them."""
    own = {_storage(t) for t in (*run.inputs, *run.outputs, *_arguments(run))}
    saved = [w for w in _watch(case, run) if w.words.startswith("saved")]
    return [w for w in saved if w.alive and _storage(w.reference()) not in own]


def _arguments(run: Pass) -> list[Tensor]:
    leaves = [leaf for a in run.arguments for leaf in trees.flatten(a.value)[0]]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _storage(tensor: Any) -> int:
    if not isinstance(tensor, Tensor) or tensor.is_sparse or not tensor.numel():
        return 0
    return int(tensor.untyped_storage().data_ptr())
