"""What ``backward`` really returned, before the engine sums, expands and casts it.

The Function class is subclassed and its backward watched; the user's class is not touched.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.checking.case import Case
from gradwright.checking.differences import signed
from gradwright.checking.graph import graph_nodes
from gradwright.checking.intent import NOT_THE_DERIVATIVE, marked_intents
from gradwright.checking.limits import STOPS
from gradwright.errors import describe_exception


@dataclass
class Audit:
    """One backward of a case, watched."""

    called: bool = False
    returned: Any = None
    """The raw return value of the user's backward."""
    expected: int = 0
    """How many gradients the engine wants: one for each argument of forward."""
    user_error: BaseException | None = None
    """What the user's backward raised."""
    engine_error: Exception | None = None
    """What PyTorch raised when it took what backward returned."""
    first: list[Tensor | None] | None = None
    """The gradients that this backward gave to the inputs, to tell later whether the rule still gives them."""
    no_backward: bool = False
    no_graph: bool = False
    """True when no floating-point output requires grad, so that there is nothing to differentiate."""

    @property
    def gradients(self) -> tuple[Any, ...]:
        """The return value as a tuple, as the engine sees it."""
        return self.returned if isinstance(self.returned, tuple) else (self.returned,)

    @property
    def usable(self) -> bool:
        """True when backward runs to the end."""
        return not (self.user_error or self.engine_error or self.no_backward or self.no_graph)

    @property
    def obstacle(self) -> str:
        """Why no gradient can be had, for contracts that must be skipped."""
        if self.no_graph:
            return "no output requires grad"
        if self.no_backward:
            return "there is no backward"
        if self.user_error is not None:
            return f"backward raises {describe_exception(self.user_error)}"
        return f"PyTorch refuses what backward returns ({describe_exception(self.engine_error or Exception())})"


def audit(case: Case) -> Audit:
    """Run one watched backward of the case; the result is kept, so that all contracts share it."""
    if case.audit is None:
        case.audit = _watch(case)
    assert isinstance(case.audit, Audit)
    return case.audit


def _watch(case: Case) -> Audit:
    result = Audit()
    if case.detached:
        result.no_graph = True
        return result
    function = case.subject.function
    if function is not None and backward_name(function) is None:
        result.no_backward = True
        return result
    stand_in = _watched(function, result) if function is not None else None
    v = random_cotangent(case)
    try:
        run = case.forward(function=stand_in)
        with case.sandbox():
            result.first = [None if g is None else g.detach().clone() for g in run.gradients(case.cotangents(v))]
    except STOPS:
        raise
    except BaseException as error:
        if isinstance(error, NotImplementedError) and (function is None or _is_raised_by_hand(error)):
            result.no_backward = True
        elif result.user_error is None:
            # Without a Function class the user's part of backward cannot be told from the engine's.
            result.engine_error = error if isinstance(error, Exception) else RuntimeError(describe_exception(error))
    return result


def random_cotangent(case: Case, salt: str = "cotangent") -> torch.Tensor:
    """Draw a signed full-mantissa cotangent vector, entries bounded away from zero."""
    return signed(case.m, case.generator(salt))


def functions_in_graph(case: Case) -> list[type[Function]]:
    """Return the Function classes that a forward of the case went through, each once, in order of discovery."""
    found: list[type[Function]] = []
    if case.detached:
        return found
    for node in graph_nodes(case.forward().differentiable):
        function = torch_compat.node_function(node)
        if function is not None and function not in found:
            found.append(function)
    return found


def surrogates_in_graph(case: Case) -> list[str]:
    """Return the names of functions behind the outputs whose rules are declared not to be their derivatives."""
    found = []
    for function in functions_in_graph(case):
        known = getattr(function, "gw_definition", None)
        # What estimators are made of declares nothing; the estimators do, and are proved elsewhere.
        own = known is not None and (known.surrogate is not None or function.__module__.startswith("gradwright.ste."))
        if own or NOT_THE_DERIVATIVE.intersection(marked_intents(function)):
            found.append(function.__name__)
    return found


def side_losses_in_graph(case: Case) -> list[str]:
    """Return the names of Functions behind the outputs that declare to add a gradient whatever comes in."""
    return [function.__name__ for function in functions_in_graph(case) if "side-loss" in marked_intents(function)]


def user_location(error: BaseException) -> str:
    """Return ``line 12 of ops.py`` for the last frame of the user's own code, or an empty string."""
    here, torch_home = Path(__file__).parent.parent, Path(torch.__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if frame.filename.startswith("<") or here in path.parents or torch_home in path.parents:
            continue
        return f"line {frame.lineno} of {path.name}"
    return ""


def _is_raised_by_hand(error: BaseException) -> bool:
    """Tell whether a `raise` in the user's own code is where an error comes from, and not a kernel."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and (frames[-1].line or "").strip().startswith("raise")


def backward_name(function: type[Function]) -> str | None:
    """Return the name of the method that holds the rule, or None when there is none."""
    if function.vjp is not Function.vjp:
        return "vjp"
    return "backward" if function.backward is not Function.backward else None


def _watched(function: type[Function], result: Audit) -> type[Function]:
    name = backward_name(function)
    assert name is not None
    original = getattr(function, name)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        result.called = True
        result.expected = len(ctx.needs_input_grad)
        try:
            result.returned = original(ctx, *cotangents)
        except STOPS:
            raise
        except BaseException as error:
            result.user_error = error
            raise
        return result.returned

    return type(function.__name__, (function,), {name: staticmethod(backward)})
