"""``native``: a function of a shared library, written in C, C++ or Fortran, as a differentiable function of tensors."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gradwright.errors import DefinitionError, did_you_mean
from gradwright.wrapping.external import external
from gradwright.wrapping.outputs import like
from gradwright.wrapping.routine import Routine
from gradwright.wrapping.signature import Parameter, Signature

RuleKind: TypeAlias = Literal["vjp", "jvp", "hvp"]
NativeRule: TypeAlias = Callable[..., Any] | tuple[Any, str] | None
"""A rule on arrays, or another function of the library (its name, or itself) and its signature."""

COTANGENT, TANGENT = "grad_", "tangent_"
TORCH_DTYPES = {"int": torch.int32, "i4": torch.int32, "i8": torch.int64, "f4": torch.float32, "f8": torch.float64}


def native(
    library: Any,
    symbol: str | None = None,
    signature: str | None = None,
    *,
    vjp: NativeRule = None,
    jvp: NativeRule = None,
    hvp: NativeRule = None,
    codes: Mapping[int, str] | None = None,
    out: Any = None,
    derivative: Any = None,
    **options: Any,
) -> Any:
    """Make a function of a shared library a differentiable function of tensors.

    The signature says what the function takes, in its order, and what it returns::

        gw.native("./libsolve.so", "solve", "n:int, a[n,n]:f8:F, b[n]:f8, x[n]:f8:out -> int")

    is ``int solve(int n, const double *a, const double *b, double *x)``. It becomes a function of ``a`` and ``b`` that
    returns ``x``: sizes are taken from the shapes, which must agree; memory for what is written is made; and an ``int``
    that is returned must be 0. Arrays are handed over where they lie, and copied only where their order or dtype is
    another one; several threads can be in the function at once. What can be said in a signature:

    ========================== ====================================================================================
    ``mu:f8``, ``*mu:f8``      a number: by value, by address. It is an argument that is no tensor, unless ``argnums``
                               names it, or a size, which is not asked for where an array tells it
    ``a[n,2*n]:f8``            an array with its sizes; ``a[]:f8`` has none
    ``int i4 i8 f4 f8``        the type; ``int`` is that of C
    ``C``, ``F``               the order in memory: the last index runs fastest (C), or the first
    ``in``, ``out``, ``inout`` what is done with it; of ``inout`` the function gets a copy, which is returned
    ``work``, ``status``       memory to work in; the address of a code that must be 0: ``*info:int:status``
    ``lda:int=n``              a value that is always passed
    ``-> int``, ``-> f8``      what is returned: a code that must be 0 (or in ``int(0, 1)``), or a result, called
                               ``result`` or as in ``-> y:f8``
    ========================== ====================================================================================

    A derivative is a rule on arrays, here or attached as to ``gw.external``, or another function of the library, given
    as its name and signature. In that signature ``grad_y`` is the cotangent of the output ``y`` and ``grad_x`` the
    gradient of the argument ``x``, to be written; in one for a JVP ``tangent_x`` and ``tangent_y`` are the tangents;
    arguments and outputs have their own names.

    A function that gets arrays of other sizes than it believes writes into the memory of others, which nobody can
    catch: compare signature and header twice. A function that crashes takes the process with it; behind
    ``workers=ProcessPoolExecutor()`` that is only a worker, and an error for the sample.

    Arguments:
        library: path or name of the shared library, a ``ctypes.CDLL``, or a function of one (without ``symbol``).
        symbol: the name of the function, as the linker knows it.
        signature: as above.
        vjp, jvp, hvp: rules, as for ``gw.external``, or ``(symbol, signature)``.
        codes: what the codes of errors mean, for messages: ``{2: "the matrix is singular"}``.
        out: what it returns, where the signature is not to say it.
        derivative: ``gw.fd(...)`` or ``gw.spsa(...)`` where there are no rules.
        **options: those of ``gw.external``. ``argnums`` is by default every array of floating numbers (where there is
            none, every floating number); ``dtype`` is float64 where all of them are f8, so that other dtypes are cast
            to it and back.

    Raises:
        DefinitionError: the library, the function or the signature cannot be used.

    Example:
        >>> import ctypes.util, gradwright as gw, torch
        >>> hypot = gw.native(
        ...     ctypes.util.find_library("m"),
        ...     "hypot",
        ...     "x:f8, y:f8 -> f8",
        ...     vjp=lambda g, x, y, out: {"x": g * x / out, "y": g * y / out},
        ... )
        >>> x, y = torch.tensor(3.0, requires_grad=True), torch.tensor(4.0)
        >>> torch.autograd.grad(hypot(x, y), x)
        (tensor(0.6000),)
    """
    if signature is None:
        raise DefinitionError(
            f"native: no signature was given with {library!r} and {symbol!r}; expected what the function takes and "
            "returns; write signature='n:int, x[n]:f8, y[n]:f8:out'."
        )
    routine = Routine(library, symbol, signature, codes, options.get("copy") is not False)
    declared = routine.signature
    routine.__module__ = _module(library, signature)
    if "argnums" not in options:
        floating = [p for p in declared.arguments if p.floating]
        options["argnums"] = [p.name for p in floating if p.passed == "array"] or [p.name for p in floating]
    chosen = _chosen(declared, options["argnums"])
    options.setdefault("releases_gil", True)
    moving = [p for p in (*declared.arguments, *declared.outputs) if p.floating]
    if {p.type for p in moving if p.passed == "array" or p.returned or p.name in chosen} == {"f8"}:
        options.setdefault("dtype", torch.float64)
    routine.__annotations__ = {p.name: _annotation(p, chosen) for p in declared.arguments}
    cast = options.get("dtype") is not None
    call = external(routine, out=out or _out(declared, chosen, cast), derivative=derivative, **options)
    kinds: dict[RuleKind, NativeRule] = {"vjp": vjp, "jvp": jvp, "hvp": hvp}
    for kind, rule in kinds.items():
        if isinstance(rule, str):
            raise DefinitionError(
                f"{routine.name}: {kind} is {rule!r}; expected a rule, or a function of the library with its "
                f"signature; write {kind}=({rule!r}, signature)."
            )
        if isinstance(rule, tuple):
            rule = _Compiled(kind, routine, _rule_of(routine, *rule, codes), chosen)
        if rule is not None:
            getattr(call, f"register_{kind}")(rule)
    return call


def _rule_of(routine: Routine, function: Any, signature: str, codes: Mapping[int, str] | None) -> Routine:
    """Return another function of the library, by its name, or a function of ctypes."""
    if isinstance(function, str):
        return Routine(routine.library, function, signature, codes)
    return Routine(function, None, signature, codes)


def _chosen(signature: Signature, argnums: Any) -> list[str]:
    """Return the names of the differentiable arguments; what is wrong in ``argnums``, ``external`` says."""
    names = [p.name for p in signature.arguments]
    listed = [argnums] if isinstance(argnums, (int, str)) else argnums
    found = [names[each] if isinstance(each, int) and -len(names) <= each < len(names) else each for each in listed]
    return [name for name in names if name in found]


def _annotation(p: Parameter, chosen: Sequence[str]) -> type:
    if p.passed == "array" or p.name in chosen:
        return Tensor
    return float if p.floating else int


def _module(library: Any, signature: str) -> str:
    """Return what stands for the module of the function, wherever its library lies: exported programs find it by that.

    Another signature is another function.
    """
    if isinstance(library, ctypes.CDLL):
        library = repr(library).split("'")[1]  # its path
    path = Path(library) if isinstance(library, (str, os.PathLike)) else Path("function")
    digest = hashlib.blake2b("".join(signature.split()).encode(), digest_size=4).hexdigest()
    return f"native_{path.name.partition('.')[0]}_{digest}"


def _out(signature: Signature, chosen: Sequence[str], cast: bool) -> Any:
    """Return what says what comes back: like the argument, which is the quickest to look at, or a function."""
    given = [p for p in signature.arguments if p.name in chosen]
    if cast and len(given) == 1 and len(signature.outputs) == 1:
        (model,), (made,) = given, signature.outputs
        same = [size.text for size in model.sizes] == [size.text for size in made.sizes]
        plain = all(size.name is not None for size in made.sizes) and (made.order == "C" or len(made.sizes) < 2)
        if same and plain and model.type == made.type and model.passed == made.passed == "array":
            return like(model.name)
    return _empties(signature, cast)


def _empties(signature: Signature, cast: bool) -> Callable[..., Any]:
    """Return the function that says by empty tensors what comes back."""

    def empties(**values: Any) -> Any:
        tensors = [value for value in values.values() if isinstance(value, Tensor)]
        floating = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
        known = signature.sizes(values)
        found = []
        for p in signature.outputs:
            dtype = TORCH_DTYPES[p.type]
            if cast and p.floating and floating:  # back to what was given
                dtype = floating[0]
                for each in floating[1:]:
                    dtype = torch.promote_types(dtype, each)
            shape = [size.value(known) for size in p.sizes]
            turned = p.order == "F" and len(shape) > 1
            empty = torch.empty(shape[::-1] if turned else shape, dtype=dtype, device=tensors[0].device)
            found.append(empty.permute(*reversed(range(len(shape)))) if turned else empty)
        return found[0] if len(found) == 1 else tuple(found)

    number = len(signature.outputs)
    empties.__annotations__ = {"return": Tensor if number == 1 else GenericAlias(tuple, (Tensor,) * number)}
    return empties


class _Compiled:
    """A rule that is a function of the library: what it asks for, it says by the names in its signature."""

    def __init__(self, kind: RuleKind, routine: Routine, rule: Routine, chosen: Sequence[str]) -> None:
        self.kind, self.rule, self.chosen = kind, rule, list(chosen)
        self.outputs = [p.name for p in routine.signature.outputs]
        self.arguments = [p.name for p in routine.signature.arguments]
        # A function that is linear and symmetric is its own rule, and rules have names of their own.
        self.__name__ = self.__qualname__ = f"{rule.name}_{kind}" if rule.name == routine.name else rule.name
        self.__doc__ = rule.__doc__
        made, goal = (COTANGENT, self.chosen) if kind != "jvp" else (TANGENT, self.outputs)
        self.made = [f"{made}{name}" for name in goal]
        given = {
            "vjp": {COTANGENT: self.outputs},
            "jvp": {TANGENT: self.chosen},
            "hvp": {COTANGENT: self.outputs, TANGENT: self.chosen},
        }[kind]
        self.given = [[f"{word}{name}" for name in names] for word, names in given.items()]
        self._check()
        own = [p.name for p in rule.signature.arguments if not p.name.startswith((COTANGENT, TANGENT))]
        several = kind != "vjp" and len(self.chosen) > 1  # of which some may not move
        asked = list(dict.fromkeys([name for name in own if name in self.arguments] + (self.chosen if several else [])))
        self.outs = any(name not in self.arguments for name in own) or (kind != "jvp" and len(self.outputs) > 1)
        asks = ["gw_" + word for word in ("g", "t")[: len(self.given)]] + asked + (["out"] if self.outs else [])
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in asks]
        self.__signature__ = inspect.Signature(parameters)

    def _check(self) -> None:
        """Refuse a signature with names that mean nothing, or that leaves out what is to be written."""
        known = [*self.arguments, *self.outputs, *(name for names in self.given for name in names)]
        for p in self.rule.signature.arguments:
            if p.name in self.made and not p.returned:
                raise DefinitionError(
                    f"{self.rule.name}: the signature of this {self.kind.upper()} takes {p.name!r}; expected it "
                    "to be written; declare it `out`: write `:out` after its type."
                )
            if p.name not in known:
                raise DefinitionError(
                    f"{self.rule.name}: the signature of this {self.kind.upper()} asks for {p.name!r}; expected one of "
                    f"{', '.join(known)}.{did_you_mean(p.name, known)}"
                )
        found = [p.name for p in self.rule.signature.outputs]
        if sorted(found) != sorted(self.made):
            raise DefinitionError(
                f"{self.rule.name}: the signature of this {self.kind.upper()} returns {', '.join(found)}; expected "
                f"{', '.join(self.made)}; declare each as `out`, or name in argnums what has a derivative."
            )

    def __call__(self, *values: Any) -> Any:
        names = list(self.__signature__.parameters)
        known = dict(zip(names[len(self.given) :], values[len(self.given) :]))
        outs = known.pop("out", ())
        known = {**dict(zip(self.outputs, outs if isinstance(outs, tuple) else (outs,))), **known}
        for names, given in zip(self.given, values):
            known.update(self._parts(names, given, known))
        found = self.rule.run(known)
        if self.kind == "jvp":
            returned = tuple(found[name] for name in self.made)
            return returned if len(returned) > 1 else returned[0]
        if len(self.made) == 1:
            return found[self.made[0]]
        return {name: found[made] for name, made in zip(self.chosen, self.made)}

    def _parts(self, names: Sequence[str], given: Any, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return cotangents or tangents by their names in the signature, zeros for those that are zero."""
        parts = list(given.values()) if isinstance(given, dict) else given if isinstance(given, tuple) else [given]
        own = [name.partition("_")[2] for name in names]
        return {n: np.zeros_like(known[of]) if part is None else part for n, of, part in zip(names, own, parts)}
