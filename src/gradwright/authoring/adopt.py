"""``adopt``: an existing ``torch.autograd.Function`` that works under every transform, unchanged."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.authoring import traced, trees, warned
from gradwright.authoring.adopted_call import Call, Old, Result
from gradwright.authoring.adopted_classes import function_class
from gradwright.authoring.definition import Definition, Options
from gradwright.authoring.derive import smooth
from gradwright.authoring.direct import direct_class, given
from gradwright.authoring.recording import Context
from gradwright.errors import DefinitionError, RuleError
from gradwright.torch_compat import unwrap_dead


def adopt(function: type[Function], /) -> Adopted:
    """Return a callable in place of ``function.apply`` that works under every transform.

    The old forward is run with a ``ctx`` that writes down what is done with it, so that batching, forward mode,
    ``torch.func`` and keyword arguments work. What transforms cannot follow (NumPy, ``item``, branches on values, masks
    that choose) is run one element of the batch at a time: right, but no faster than a loop. What forward kept that is
    neither input nor output is computed again for a second derivative; where autograd cannot follow that, or the
    backward cuts its own graph, the second derivative raises instead of being wrong.

    Arguments:
        function: a Function in the combined style, ``forward(ctx, ...)``, or with ``setup_context``; without ``jvp``
            and ``vmap``, which would be ignored.

    Returns:
        a callable with the arguments of forward, by position or by name. Adopting the same class again gives the same
        callable; it is pickled as long as the class is.

    Raises:
        DefinitionError: ``function`` cannot be adopted.

    Example:
        >>> import torch, gradwright as gw
        >>> class Square(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         return 2 * g * ctx.saved_tensors[0]
        >>> square = gw.adopt(Square)
        >>> torch.func.vmap(torch.func.hessian(square))(torch.tensor([1.0, 3.0]))
        tensor([2., 2.])
    """
    return adopted(function, teach=False)


def adopted(function: type[Function], *, teach: bool) -> Adopted:
    """Adopt a class, once; ``teach`` warns once of what works but should be done otherwise."""
    _refuse(function)
    found = vars(function).get("__gradwright_adopted__")
    if found is None:
        found = Adopted(function, teach=teach)
        function.__gradwright_adopted__ = found  # type: ignore[attr-defined]
    assert isinstance(found, Adopted)
    return found


class Adopted:
    """A Function that was adopted; it is called as ``apply`` was, and its arguments may be named."""

    def __init__(self, function: type[Function], *, teach: bool = False) -> None:
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.function = function
        """The class."""
        self._teach = teach
        self._warned = False
        self.__custom_gradient__ = Definition(function.__name__, self, (), Options(), adopted=function, made=self)
        self._read_class()

    def _read_class(self) -> None:
        function = self.function
        self._methods = (function.forward, function.backward, function.setup_context, function.vjp)
        self.old, self.signature, self._defaults = _read(function)
        self.old.teach = self._teach
        self.__signature__ = self.signature
        self._complete = len(self.signature.parameters) if self._defaults else 0
        direct: Any = direct_class(self.old, function.__module__)
        direct.gw_definition, direct.gw_values = self.__custom_gradient__, given
        self._direct = torch_compat.direct_apply(direct)
        self._every = function_class(function.__name__, function.__module__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the Function."""
        if kwargs or len(args) < self._complete:
            args = self._positional(args, kwargs)
        if torch.compiler.is_compiling():
            return self._compiling(args)
        return self._run(args)

    def _run(self, args: Sequence[Any]) -> Any:
        function = self.function
        if self._methods != (function.forward, function.backward, function.setup_context, function.vjp):
            # PyTorch reads a class at every call, so that what a notebook or a mock replaces is used.
            self._read_class()
        if torch_compat.transforms_active() or torch_compat.forward_mode_on():
            return self._taken_apart(args, True)
        if self.old.edits:
            return self._taken_apart(args, False)
        given, need = [], False
        for value in args:
            if isinstance(value, Tensor):
                need = need or value.requires_grad
                value = unwrap_dead(value)
            elif type(value) not in trees.PLAIN and trees.count(trees.flatten(value, [])):
                return self._taken_apart(args, False)
            given.append(value)
        if not need or not torch.is_grad_enabled():
            return self._forward(args, [isinstance(value, Tensor) and value.requires_grad for value in args])
        outputs = self._direct(*given)
        return self._put_together(outputs) if type(outputs) is tuple and type(outputs[-1]) is Result else outputs

    def _taken_apart(self, args: Sequence[Any], everywhere: bool) -> Any:
        """Run the Function with the tensors in its arguments one by one."""
        leaves: list[Tensor] = []
        structures: list[trees.Structure] = []
        needs: list[bool] = []
        for value in args:
            if isinstance(value, Tensor):
                leaves.append(value)
                structures.append(trees.LEAF)
                needs.append(_may_need(value, everywhere))
                continue
            needs.append(False)
            before = len(leaves)
            structures.append(trees.flatten(value, leaves))
            if not self._warned and any(leaf.requires_grad for leaf in leaves[before:]):
                self._warn(len(needs) - 1)
        if not everywhere and not self.old.edits and not (torch.is_grad_enabled() and _any_needs(leaves)):
            return self._forward(args, needs)
        call = Call(self.old, tuple(structures), tuple(needs), everywhere)
        if everywhere:
            return self._put_together(self._every.apply(call, *leaves), leaves)
        return self._put_together(self._direct(call, *map(unwrap_dead, leaves)), leaves)

    def _put_together(self, outputs: Sequence[Any], leaves: Sequence[Tensor] = ()) -> Any:
        result = outputs[-1]
        outs = list(outputs[: result.number])
        for place in result.still:
            outs[place] = outs[place].detach()
        for source, place in result.dirty:
            outs[place] = self._written(leaves[source], outs[place])
        return trees.rebuild(result.structure, iter(outs))

    def _written(self, leaf: Tensor, value: Tensor) -> Tensor:
        """Write over an input that forward changed in place, and return it."""
        try:
            return leaf.copy_(value)
        except RuntimeError as error:
            if "ZeroTensor" not in str(error):
                raise
            raise RuleError(
                f"{self.__name__}: its forward edits an input in place, whose derivative under a batched forward mode "
                "around another (jacfwd, hessian) is a zero that PyTorch cannot edit (torch 2.13); expected a "
                "forward that leaves its inputs alone; let it return a new tensor."
            ) from error

    def _forward(self, args: Sequence[Any], needs: Sequence[bool]) -> Any:
        """Run the forward alone, where nothing can be differentiated."""
        with torch.no_grad():
            return self.old.forward(Context(needs), *args)

    def __reduce__(self) -> Any:
        """Pickle as the class that was adopted."""
        return adopt, (self.function,)

    def __repr__(self) -> str:
        """Say what was adopted."""
        return f"<{self.__module__}.{self.__qualname__}, adopted by gradwright>"

    def _positional(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.__name__}() {error}") from None
        given = list(bound.arguments)
        bound.apply_defaults()
        if not self._defaults:
            # Arguments after the last one that was given are left to the defaults of forward itself.
            names = list(bound.arguments)
            for name in names[names.index(given[-1]) + 1 :]:
                del bound.arguments[name]
        return bound.args

    def _compiling(self, args: Sequence[Any]) -> Any:
        if torch_compat.transforms_active() or torch_compat.forward_mode_on():
            return traced.call_in_transform(self.__name__, self._run, (args,))
        traced.warn_of_export(self.__name__, self.__module__)
        # torch.compile takes the class apart itself, whatever its apply is; other recorders run what they see.
        return self.function.apply(*args) if torch.compiler.is_dynamo_compiling() else self._run(args)

    def _warn(self, position: int) -> None:
        self._warned = True
        warned.warn(
            f"{self.__name__}: {self.old.argument(position)!r} is a container with tensors that require a gradient; as "
            "with PyTorch's apply they get one only if backward returns the same structure for it; pass the tensors as "
            "arguments of their own."
        )


def _any_needs(leaves: Sequence[Tensor]) -> bool:
    return any(leaf.requires_grad for leaf in leaves)


def _may_need(leaf: Tensor, everywhere: bool) -> bool:
    if not everywhere:
        return leaf.requires_grad
    return smooth(leaf) and torch_compat.tracked(leaf)


def _read(function: type[Function]) -> tuple[Old, inspect.Signature, bool]:
    two_parts = torch_compat.has_setup_context(function)
    forward: Any = function.forward
    unguarded = getattr(forward, "gw_unguarded", None)
    if unguarded is not None:  # the guard of gw.Function is for torch.compile only
        forward = types.MethodType(unguarded, function) if inspect.ismethod(forward) else unguarded
    parameters = list(inspect.signature(forward).parameters.values())
    if two_parts:
        setup: Any = function.setup_context

        def combined(ctx: Any, *args: Any) -> Any:
            out = forward(*args)
            setup(ctx, args, out)
            return out

        run: Callable[..., Any] = combined
    else:
        run = forward
        if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
            parameters = parameters[1:]
    signature = inspect.Signature([p for p in parameters if p.kind is not p.KEYWORD_ONLY])
    backward: Any = function.vjp if function.backward is Function.backward else function.backward
    once = False
    while hasattr(backward, "__wrapped__") and _is_once(backward):
        backward, once = backward.__wrapped__, True
    sources = [forward, function.setup_context] if two_parts else [forward]
    edits = any("mark_dirty" in _names_in(source) for source in sources)
    names = tuple(p.name for p in parameters)
    casts = getattr(forward, "__code__", None) is _CASTS
    constants = tuple(value for source in sources for value in _constants_in(source))
    old = Old(function.__name__, names, run, inspect.unwrap(forward), backward, once, edits, casts, constants)
    return old, signature, two_parts and any(p.default is not p.empty for p in parameters)


def _is_once(backward: Any) -> bool:
    return getattr(backward, "__code__", None) is _ONCE


def _once_code() -> Any:
    return torch.autograd.function.once_differentiable(lambda ctx: None).__code__


_ONCE = _once_code()
"""The code of what ``once_differentiable`` makes."""

_CASTS: Any = torch.amp.custom_fwd(lambda ctx: None, device_type="cpu").__code__
"""The code of what ``custom_fwd`` makes."""


def _names_in(function: Any) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return () if code is None else code.co_names


def _constants_in(function: Any) -> tuple[Any, ...]:
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return () if code is None else code.co_consts


def _refuse(function: Any) -> None:
    if not (isinstance(function, type) and issubclass(function, Function)):
        kind = function.__name__ if isinstance(function, type) else type(function).__name__
        raise DefinitionError(
            f"adopt: got {kind}; expected a subclass of torch.autograd.Function; pass the class itself, not its apply "
            "or an instance."
        )
    name = function.__name__
    if function.forward is Function.forward or _backward_is_missing(function):
        part = "forward" if function.forward is Function.forward else "backward"
        raise DefinitionError(f"{name}: it has no {part}; expected a Function with forward and backward; write one.")
    for rule, there in (("jvp", function.jvp is not Function.jvp), ("vmap", function.vmap is not Function.vmap)):
        if there:
            raise DefinitionError(
                f"{name}: it has a {rule} of its own, which adoption would ignore, since it derives that from "
                f"backward; expected a Function without; use it as it is, or write it with gw.custom_gradient, "
                f"under .{rule}."
            )


def _backward_is_missing(function: type[Function]) -> bool:
    return function.backward is Function.backward and function.vjp is Function.vjp
