"""Functions with a custom gradient in one line: ``define``, ``elementwise`` and ``surrogate``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from gradwright.authoring import trees
from gradwright.authoring.autocast import Policy
from gradwright.authoring.decorator import build, make_options, read_surrogate
from gradwright.authoring.definition import Definition, Derive, DoubleBackward, Options
from gradwright.authoring.derive import smooth
from gradwright.authoring.rules import Argument, Rule, read_arguments, read_rule
from gradwright.authoring.unedited import unedited
from gradwright.errors import DefinitionError, RuleError
from gradwright.typing import CustomGradient

P = ParamSpec("P")
R = TypeVar("R")


def define(
    function: Callable[P, R],
    /,
    *,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | Derive = "derive",
    fwd: Callable[..., Any] | None = None,
    name: str | None = None,
    double_backward: DoubleBackward = "auto",
    forward_mode: Derive = "derive",
    symbolic_zeros: bool = False,
    autocast: Policy = "replay",
    nondiff: tuple[str, ...] = (),
    op: str | None = None,
    fake: Callable[..., Any] | None = None,
    surrogate: Callable[..., Any] | None = None,
) -> CustomGradient[P, R]:
    """Give a function that you do not own a hand-written gradient.

    The function itself stays as it is; what is returned has its values and the gradient of the rules. Rules and options
    are those of :func:`~gradwright.custom_gradient`.

    Arguments:
        function: any function. One whose signature Python does not know, such as ``torch.log1p``, must have one
            argument, which takes its name from the rule.
        vjp, jvp, fwd, fake: rules; at least one of the first two.
        vmap: a rule for batching, or the option: ``"derive"`` or ``"none"``.
        name: what it is called, in messages and for pickling; by default like ``function``.

    Example:
        >>> import torch, gradwright as gw
        >>> log1pexp = gw.define(lambda x: torch.log1p(x.exp()), vjp=lambda g, x: g * torch.sigmoid(x), name="log1pexp")
        >>> torch.func.grad(log1pexp)(torch.tensor(100.0))
        tensor(1.)
    """
    rules = {"vjp": vjp, "jvp": jvp, "vmap": vmap if callable(vmap) else None, "fwd": fwd, "fake": fake}
    given = {kind: rule for kind, rule in rules.items() if rule is not None}
    title = name or _name_of(function)
    if vjp is None and jvp is None:
        raise DefinitionError(f"define: {title} has no gradient rule; expected one; write vjp=lambda g, ...: ....")
    arguments = _arguments(title, function, next(iter(given.values())), leading=1)
    options = make_options(
        title,
        {
            "double_backward": double_backward,
            "vmap": "derive" if callable(vmap) else vmap,
            "forward_mode": forward_mode,
            "symbolic_zeros": symbolic_zeros,
            "autocast": autocast,
            "nondiff": nondiff,
            "op": op,
        },
    )
    declared = read_surrogate(title, surrogate)
    decorated = build(Definition(title, function, arguments, options, surrogate=declared))
    for kind, rule in given.items():
        getattr(decorated, kind)(rule)
    decorated.__custom_gradient__.require_residuals()
    return _placed(decorated, title, arguments)  # type: ignore[no-any-return]


def elementwise(
    function: Callable[P, R],
    /,
    *,
    derivative: Callable[..., Any],
    name: str | None = None,
    double_backward: DoubleBackward = "auto",
) -> CustomGradient[P, R]:
    """Give an elementwise function a derivative: one expression, from which both modes follow.

    Reverse mode multiplies the cotangent with the derivative, forward mode the tangent. For complex arguments the
    function must be holomorphic.

    Arguments:
        function: works element by element; arguments are broadcast against each other.
        derivative: asks by name for arguments and ``out``, and returns the derivative of each element; for several
            arguments that can have a gradient, a tuple in their order or a dict by name (None for zero).
        name: what it is called, in messages and for pickling; by default like ``function``.
        double_backward: as for :func:`~gradwright.custom_gradient`.

    Example:
        >>> import torch, gradwright as gw
        >>> tanh = gw.elementwise(torch.tanh, derivative=lambda x, out: 1 - out * out)
        >>> torch.func.jvp(tanh, (torch.zeros(1),), (torch.ones(1),))[1]
        tensor([1.])
    """
    title = name or _name_of(function)
    if not callable(derivative):
        raise DefinitionError(
            f"elementwise: the derivative of {title} is {derivative!r}; expected a function of x and out."
        )
    arguments = _arguments(title, function, derivative, leading=0)
    asked = read_rule(title, "derivative", derivative, arguments)
    definition = Definition(title, function, arguments, Options(double_backward=double_backward))
    own = getattr(derivative, "__name__", "derivative")
    several, sole = len(definition.candidates) > 1, definition.names[definition.candidates[0]]

    def pull(g: Tensor, *values: Any) -> Any:
        parts = _partials(definition, derivative(*values), own)
        grads = {key: g * _conjugate(part) for key, part in parts.items() if part is not None}
        return grads if several else grads.get(sole)

    def push(t: Any, *values: Any) -> Any:
        parts = _partials(definition, derivative(*values), own)
        tangents = t if several else {sole: t}
        terms = [tangents[key] * part for key, part in parts.items() if part is not None and tangents[key] is not None]
        return functools.reduce(lambda a, b: a + b, terms) if terms else None

    pull.__name__ = push.__name__ = own
    decorated = build(definition, Rule(pull, "vjp", asked.asks), Rule(push, "jvp", asked.asks))
    return _placed(decorated, title, arguments)  # type: ignore[no-any-return]


def surrogate(function: Callable[P, R], /, *, through: Callable[P, R], name: str | None = None) -> Callable[P, R]:
    """Return a function with the values of one function and the gradient of another.

    It is made of plain operations, so that it works under every transform, also where PyTorch drops the rules of
    Functions: ``torch.func`` inside ``torch.compile``, and a model trained after ``torch.export``. Where ``through`` is
    infinite the result is nan.

    Arguments:
        function: gives the values; it need not be differentiable.
        through: takes the same arguments and returns tensors of the same shapes.
        name: what it is called, in messages and for pickling; by default like ``function``.

    Example:
        >>> import torch, gradwright as gw
        >>> sign = gw.surrogate(torch.sign, through=torch.tanh)
        >>> sign(torch.tensor([-0.5, 2.0])), torch.func.grad(sign)(torch.tensor(0.0))
        (tensor([-1.,  1.]), tensor(1.))
    """
    title = name or _name_of(function)
    for role, value in (("function", function), ("through", through)):
        if not callable(value):
            raise DefinitionError(f"surrogate: {role} is {value!r}; expected a function.")

    def replaced(*args: P.args, **kwargs: P.kwargs) -> R:
        values: list[Tensor] = []
        # The surrogate is to see the arguments as they were passed.
        result = unedited(lambda: function(*args, **kwargs), trees.tensors_in((args, kwargs)), own.edited_message)
        structure = trees.flatten(result, values)
        soft: list[Tensor] = []
        trees.flatten(through(*args, **kwargs), soft)
        if [t.shape for t in values] != [t.shape for t in soft]:
            raise RuleError(
                f"{title}: it returned tensors of the shapes {[tuple(t.shape) for t in values]}, but its surrogate "
                f"{[tuple(t.shape) for t in soft]}; expected the same; correct `through`."
            )
        # The difference is zero and carries the derivative. The usual `x + (f(x) - x).detach()` rounds f(x) away
        # where x is large.
        joined = [value.detach() + (s - s.detach()) if smooth(s) else value for value, s in zip(values, soft)]
        out: R = trees.rebuild(structure, iter(joined))
        return out

    functools.update_wrapper(replaced, function)
    arguments = next(filter(None, map(_readable, (function, through))), ())
    own = Definition(title, function, arguments, Options(), surrogate=through)
    vars(replaced)["__custom_gradient__"] = own
    placed: Callable[P, R] = _placed(replaced, title, arguments)
    if not arguments:  # PyTorch's own functions say nothing of theirs
        more = inspect.Parameter("more", inspect.Parameter.VAR_POSITIONAL)
        first = inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        vars(placed)["__signature__"] = inspect.Signature([first, more])
    return placed


def _readable(function: Callable[..., Any]) -> tuple[Argument, ...]:
    try:
        return read_arguments("", function)
    except DefinitionError:
        return ()


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _arguments(name: str, function: Callable[..., Any], rule: Any, *, leading: int) -> tuple[Argument, ...]:
    """Return the arguments of ``function``; where Python does not know them, the one that ``rule`` asks for."""
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        asked = list(inspect.signature(rule).parameters.values())[leading:]
        named = [p.name for p in asked if p.name not in ("out", "needs", "residuals")]
        if len(named) < 2:
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            return (Argument(named[0] if named else "x", "unknown", inspect.Parameter.empty, kind),)
    return read_arguments(name, function)


def _placed(function: Any, name: str, arguments: Sequence[Argument] = ()) -> Any:
    """Say what a function is called and where it is to be found for pickling: in the module that called gradwright."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    function.__module__ = frame.f_globals.get("__name__", __name__) if frame is not None else __name__
    function.__name__ = function.__qualname__ = name.rpartition(".")[2]
    if not inspect.isfunction(inspect.unwrap(function)):
        function.__doc__ = f"{name} of PyTorch, with a gradient of its own."  # its examples are about another function
        if arguments:
            parameters = [inspect.Parameter(a.name, a.passed, default=a.default) for a in arguments]
            function.__signature__ = inspect.Signature(parameters)
    return function


def _partials(definition: Definition, result: Any, rule: str) -> dict[str, Any]:
    names = [definition.names[i] for i in definition.candidates]
    if isinstance(result, dict):
        parts = {key: result.get(key) for key in names}
        if result.keys() <= parts.keys():
            return parts
    elif isinstance(result, tuple) and len(result) == len(names):
        return dict(zip(names, result))
    elif len(names) == 1 and not isinstance(result, tuple):
        return {names[0]: result}
    raise RuleError(
        f"{definition.name}: {rule!r} returned a {type(result).__name__}; expected the derivative for each of "
        f"{', '.join(names)}: a tuple in this order or a dict by name."
    )


def _conjugate(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.conj() if part.is_complex() else part
    return part.conjugate()
