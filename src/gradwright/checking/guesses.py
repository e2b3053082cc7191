"""Guessing what a parameter of ``forward`` may be: from its annotation, its default and its name.

Each guess is a :class:`Candidate`: how unlikely it is, how to make the value, and how to write it in a line of Python
that a user can edit. :mod:`synthesis` tries them in order.
"""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.axes import ArrayType, array_type
from gradwright.checking.subject import Parameter, Subject

Role: TypeAlias = Literal["tensor", "index", "index like x", "index of rows", "mask", "tensors", "value", "omitted"]
"""``tensor``: floating-point, of a shape of its own. ``index``: whole numbers, one for each row of the first tensor;
``index like x``: one for each element; ``index of rows``: one for each vector along the last dimension. ``mask``: True
or False for each element. ``tensors``: a list of two. ``value``: not a tensor."""

TENSOR_ROLES = frozenset({"tensor", "tensors"})


@dataclass(frozen=True)
class Candidate:
    """One guess at what a parameter may be."""

    cost: float
    role: Role
    value: Any = None
    from_annotation: bool = False
    array: ArrayType | None = None
    """What an annotation says of the axes and the dtype."""

    @property
    def has_shape(self) -> bool:
        """True when a plan has a shape for it: floating-point tensors, and what has axes of its own."""
        return self.role in TENSOR_ROLES or self.array is not None

    def dearer(self, cost: float) -> Candidate:
        """Return the same guess as a less likely one."""
        return replace(self, cost=self.cost + cost)


TENSOR = Candidate(0, "tensor")
INDICES = (Candidate(0, "index"), Candidate(0.8, "index like x"), Candidate(1.6, "index of rows"))


def candidates(subject: Subject, parameter: Parameter) -> list[Candidate]:
    """Return the guesses for one parameter, the likeliest first; empty when nothing sensible can be guessed."""
    if is_callable_by_name(parameter.name) and parameter.annotation is inspect.Parameter.empty:
        return []
    annotation = _annotation(subject, parameter)
    typed = None if annotation is inspect.Parameter.empty else from_annotation(annotation, parameter.name)
    if typed is not None and not typed:
        return []
    guesses = [] if typed is None else [replace(guess, from_annotation=True) for guess in typed]
    # Annotations are sometimes wrong (a number that is used as a tensor): what the name says comes after them.
    guesses += [guess.dearer(2.0 if guesses else 0.0) for guess in from_name(parameter.name)]
    return _cheapest_of_each(guesses)


def is_unguessable(subject: Subject, parameter: Parameter) -> bool:
    """Tell whether a required parameter is a function or an object, which nobody can guess."""
    return parameter.required and not candidates(subject, parameter)


def is_callable_by_name(name: str) -> bool:
    """Tell whether a parameter of this name is usually a function or a module."""
    return _words(name)[-1] in _CALLABLES


def from_annotation(annotation: Any, name: str) -> list[Candidate] | None:
    """Return the guesses an annotation allows; None when it says nothing, empty when it names an unguessable type."""
    annotation = _unwrapped(annotation)
    if isinstance(annotation, str):
        return _from_text(annotation, name)
    array = array_type(annotation)
    if array is not None:
        return [_of_array(array)]
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return _values(inside)
    if origin in (typing.Union, types.UnionType):
        return _first_known([from_annotation(option, name) for option in inside])
    if origin in (list, tuple, Sequence, Iterable) and inside:
        return _from_sequence(origin, [a for a in inside if a is not ...])
    if annotation in (None, type(None)):
        return _values([None], 3.0)
    if annotation in (Any, object, inspect.Parameter.empty) or not isinstance(annotation, type):
        return [] if origin is Callable or annotation is Callable else None
    if issubclass(annotation, enum.Enum):
        return _values(annotation)
    for kind, make in _BY_TYPE:
        if issubclass(annotation, kind):
            return make(name)
    return []


def _unwrapped(annotation: Any) -> Any:
    """Return what stands behind a NewType, an alias made by ``type``, metadata, or axes that cannot be read."""
    while not isinstance(annotation, str):
        if typing.get_origin(annotation) is typing.Annotated:
            behind = typing.get_args(annotation)[0]
        elif array_type(annotation) is None and hasattr(annotation, "dim_str"):
            behind = annotation.array_type
        elif isinstance(annotation, type):
            break
        else:
            behind = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
        if behind is None:
            break
        annotation = behind
    return annotation


def from_name(name: str) -> list[Candidate]:
    """Return every guess, ordered by what the name of the parameter suggests."""
    order = _order_by_name(name)
    makers: dict[str, Callable[[str], list[Candidate]]] = {
        "tensor": lambda _: [TENSOR],
        "index": lambda _: list(INDICES),
        "mask": lambda _: [Candidate(0, "mask")],
        "float": _floats,
        "int": _ints,
        "bool": lambda _: _values([True, False]),
        "str": lambda n: _values(_STRINGS.get(_words(n)[-1], ())),
        "shape": lambda _: _values([(3, 4), (4,)]),
        "none": lambda _: _values([None]),
    }
    guesses = []
    for place, kind in enumerate(order):
        guesses += [guess.dearer(place * 1.2) for guess in makers[kind](name)]
    return guesses


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_INTEGERS = _set(
    "dim dims axis k n num nums count counts iter iters steps step bits order degree topk groups stride padding"
    " dilation kernel rank world chunks chunk heads head hidden block blocks level repeats times depth radius neighbors"
)
_FLOATS = _set(
    "eps epsilon alpha beta gamma delta slope scale scaling threshold thresh thr temperature temp tau lr lambda lam"
    " lambd lamb lmbda coeff coef coefficient decay momentum p prob probability rate sigma std mean var variance"
    " tolerance tol margin factor gain strength min max low high lower upper lo hi clip bound limit width ratio"
    " constant const value vth cutoff power exponent slack penalty reg offset shift zero"
)
_INDEX = _set(
    "idx idxs index indexes indices ind inds target targets label labels ids segment segments segs lengths perm"
    " permutation assignment assignments cluster clusters edges"
)
_MASKS = _set("mask masks keep")
_BOOLEANS = _set(
    "training train inplace causal keepdim keepdims is use return has signed normalize normalise symmetric hard flag"
    " deterministic verbose ensure with"
)
_STRINGS = {
    "reduction": ("mean", "sum", "none"),
    "reduce": ("sum", "mean"),
    "device": ("cpu",),
    "mode": ("mean", "sum", "same", "nearest", "constant"),
}
_SHAPES = _set("shape size sizes")
_CALLABLES = _set("fn fns func funcs function functions callback callbacks callable forward module net network")
_ABSENT = _set("group stream handle config cfg")

_LIKELY = ("tensor", "float", "int", "index", "mask", "bool", "none")


def _order_by_name(name: str) -> tuple[str, ...]:
    words = _words(name)
    table = (
        (_STRINGS, ("str", "int", "float", "tensor")),
        (_SHAPES, ("shape", "int", "tensor")),
        (_MASKS, ("mask", "tensor", "index", "none")),
        (_INDEX, ("index", "tensor", "int", "float")),
        (_INTEGERS, ("int", "float", "tensor", "bool", "index")),
        (_FLOATS, ("float", "tensor", "int", "bool", "none")),
        (_BOOLEANS, ("bool", "int", "float", "tensor")),
        (_ABSENT, ("none", "tensor", "int", "float")),
    )
    # The last word says what it is (input_scale is a scale), the first how many or whether (num_bits, use_bias).
    for word in (words[-1], words[0]):
        for names, order in table:
            if word in names:
                return order
    return _LIKELY


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()) or [name]


def _ints(name: str) -> list[Candidate]:
    word = _words(name)[-1]
    if word in ("dim", "dims", "axis"):
        return _values([-1, 0, 1])
    if word == "padding":
        return _values([0, 1])
    return _values([8, 4, 2] if word == "bits" else [2, 1, 3, 0])


def _floats(name: str) -> list[Candidate]:
    # No round numbers where a kink is likely, and both sides of 1 for exponents.
    word = _words(name)[-1]
    if word in ("eps", "epsilon"):
        return _values([1e-3, 0.1])
    if word in ("min", "low", "lower", "lo"):
        return _values([-0.7, 0.3])
    if word in ("max", "high", "upper", "hi"):
        return _values([0.7, 1.7])
    return _values([0.7, 1.7])


def _values(options: Iterable[Any], start: float = 0.0) -> list[Candidate]:
    return [Candidate(start + 0.8 * place, "value", value) for place, value in enumerate(options)]


_BY_TYPE: tuple[tuple[type, Callable[[str], list[Candidate]]], ...] = (
    (Tensor, lambda name: sorted([*_tensor_order(name)], key=lambda c: c.cost)),
    (bool, lambda _: _values([True, False])),
    (int, _ints),
    (float, _floats),
    (complex, lambda _: _values([0.7 + 0.3j])),
    (str, lambda name: _values(_STRINGS.get(_words(name)[-1], ()))),
    (torch.dtype, lambda _: _values([torch.float64, torch.float32])),
    (torch.device, lambda _: _values([torch.device("cpu")])),
    (torch.Size, lambda _: _values([(3, 4), (4,)])),
    (tuple, lambda name: _values([(3, 4), (4,)] if _words(name)[-1] in _SHAPES else [(2, 1)])),
    (list, lambda _: _values([[2, 1]])),
)


def _tensor_order(name: str) -> list[Candidate]:
    """Return the kinds of tensor an annotation ``Tensor`` may mean: the name tells indices and masks."""
    kinds: dict[str, list[Candidate]] = {"tensor": [TENSOR], "index": list(INDICES), "mask": [Candidate(0, "mask")]}
    order = [kind for kind in _order_by_name(name) if kind in kinds] or ["tensor"]
    order += [kind for kind in kinds if kind not in order]
    return [guess.dearer(1.2 * place) for place, kind in enumerate(order) for guess in kinds[kind]]


def _of_array(array: ArrayType) -> Candidate:
    roles: dict[str, Role] = {"integer": "index", "bool": "mask"}
    return Candidate(0, roles.get(array.family, "tensor"), array=array)


def _from_sequence(origin: Any, inside: list[Any]) -> list[Candidate] | None:
    arrays = set(map(array_type, inside))
    array = arrays.pop() if len(arrays) == 1 else None
    if inside[0] is Tensor or (array is not None and _of_array(array).role == "tensor"):
        return [Candidate(0, "tensors", tuple if origin is tuple else list, array=array)]
    if inside[0] in (int, float, bool):
        make = tuple if origin is tuple else list
        length = len(inside) if len(inside) > 1 else 2
        return _values([make([inside[0](v) for v in (2, 1, 3, 1)[:length]])])
    return []


_TEXTS = (
    (r"\b(list|tuple|sequence)\[[\w.]*tensor", list[Tensor]),
    (r"\b(list|tuple|sequence)\[int", list[int]),
    (r"\bcallable|\bmodule\b", Callable),
    (r"\b\w*tensor\b", Tensor),
    (r"\bbool\b", bool),
    (r"\bint\b|\bsymint\b", int),
    (r"\bfloat\b|\bnumber\b|\bscalar\b", float),
    (r"\bstr\b", str),
    (r"\bdtype\b|\bscalartype\b", torch.dtype),
    (r"\bdevice\b", torch.device),
)


def _from_text(text: str, name: str) -> list[Candidate] | None:
    """Read an annotation that could not be evaluated, or a type of an operator's schema."""
    array = array_type(text)
    if array is not None:
        return [_of_array(array)]
    literal = re.search(r"Literal\[([^\]]*)\]", text)
    if literal:
        return _values(re.findall(r"['\"]([^'\"]*)['\"]", literal[1]))
    for pattern, kind in _TEXTS:
        if re.search(pattern, text.lower()):
            return from_annotation(kind, name)
    return None


def _annotation(subject: Subject, parameter: Parameter) -> Any:
    if subject.kind != "custom op":
        return parameter.annotation
    types_by_name = {a.name: str(a.type) for a in torch_compat.operator_schema(subject.target).arguments}
    return types_by_name.get(parameter.name, inspect.Parameter.empty)


def _first_known(options: list[list[Candidate] | None]) -> list[Candidate] | None:
    """Join what the members of a union allow, in their order."""
    known = [option for option in options if option]
    if not known:
        return [] if any(option == [] for option in options) else None
    return [guess.dearer(1.0 * place) for place, option in enumerate(known) for guess in option]


def _cheapest_of_each(guesses: list[Candidate]) -> list[Candidate]:
    kept: dict[str, Candidate] = {}
    for guess in sorted(guesses, key=lambda guess: guess.cost):
        kept.setdefault(f"{guess.role} {guess.value!r} {guess.array!r}", guess)
    return list(kept.values())
