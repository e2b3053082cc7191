"""The maps of a foreign function as functions with a custom gradient.

Each of the maps of :mod:`~gradwright.wrapping.calculus`, and the function itself, is one: it runs foreign code on bare
numbers, and its rules call the other maps. So every order, mode and transform comes out right, or ends in a message,
and no rule ever runs foreign code on what only stands for numbers.

Under ``vmap`` a map calls itself with the batch as one more leading dimension of every tensor (of size 1 where a tensor
is not batched), and a number that says how many of them there are.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.decorator import build
from gradwright.authoring.definition import Definition, Options
from gradwright.authoring.foreign import Foreign
from gradwright.authoring.rules import Argument, Rule
from gradwright.authoring.seal import may_be_differentiated
from gradwright.errors import RuleError
from gradwright.wrapping.marshal import MapName, Marshal
from gradwright.wrapping.samples import Samples

GIVEN: dict[MapName, tuple[str, ...]] = {
    "batch": (),
    "pull": ("g",),
    "push": ("t",),
    "curve": ("g", "t"),
    "bend": ("t", "u"),
}
"""What a map is given besides the arguments of the function: cotangents, one an output, or tangents, one a place."""
BACK: dict[MapName, str] = {"batch": "outs", "pull": "places", "push": "outs", "curve": "places", "bend": "outs"}
"""What a map returns one tensor for."""
_BY_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD


@dataclass
class Given:
    """The arguments of one map in one call, by what they are."""

    batch: int
    g: list[Any]
    t: list[Any]
    u: list[Any]
    args: list[Any]
    outs: list[Any]
    kept: Any
    needed: tuple[bool, ...]


@dataclass
class Leaves:
    """The maps of one function, made when they are first needed."""

    marshal: Marshal
    arguments: tuple[Argument, ...]
    annotations: Mapping[str, Any]
    foreign: Foreign
    module: str
    qualname: str
    op: str | None
    made: dict[MapName, Callable[..., Any]] = field(default_factory=dict)
    on_tensors: Callable[[Sequence[Any]], Any] | None = None
    """The function as the user calls it, where its rules are on tensors and these maps have no derivative."""

    def forget(self) -> None:
        """Make the maps anew, since the rules of the function changed."""
        self.made.clear()

    # ---------------------------------------------------------------- calling them

    def call(
        self,
        kind: MapName,
        args: Sequence[Any],
        *,
        batch: int = 0,
        g: Sequence[Any] = (),
        t: Sequence[Any] = (),
        u: Sequence[Any] = (),
        outs: Sequence[Any] | None = None,
        kept: Tensor | None = None,
        needed: Sequence[bool] | None = None,
    ) -> list[Any]:
        """Run one of the maps; a tangent that is None is zero."""
        if kind not in self.made:
            self.made[kind] = self._make(kind)
        given = {"g": list(g), "t": self._filled(t, args), "u": self._filled(u, args)}
        values = [each for word in GIVEN[kind] for each in given[word]]
        values += [*args, *(outs or [None] * self._outs(kind)), kept]
        flags = tuple(needed) if needed is not None else (True,) * len(self.places)
        if any(map(torch_compat.is_legacy_batch, values)):
            # What `is_grads_batched=True` hands out knows no rule for batches; its numbers are taken out and put back.
            bare = [
                torch_compat.legacy_batch_first(v) if torch_compat.is_legacy_batch(v) else led(v, None) for v in values
            ]
            return [torch_compat.legacy_batched(each) for each in listed(self.made[kind](batch + 1, *bare, flags))]
        return listed(self.made[kind](batch, *values, flags))

    def recorded(self, op: str | None, values: Sequence[Any]) -> Any:
        """Run a call on what only stands for numbers, which foreign code cannot do, as the operator of this name.

        Raises:
            RuleError: there is none.
        """
        if op is None:
            raise RuleError(self.foreign.unrecorded)
        return torch_compat.operator_named(op)(*values, "")

    @property
    def places(self) -> tuple[int, ...]:
        """The positions of the arguments that have a derivative."""
        return self.marshal.calculus.places

    @property
    def _number(self) -> int:
        return self.marshal.outputs

    @staticmethod
    def _may_miss(argument: Argument) -> bool:
        """Tell whether an argument may be no tensor: by a default of None, or of an array."""
        return argument.kind != "tensor" or argument.default is not inspect.Parameter.empty

    def _outs(self, kind: MapName) -> int:
        """Return how many outputs a map is given; the function itself, whose first call shows how many, gets none."""
        return 0 if kind == "batch" else self._number

    def _filled(self, tangents: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Return tangents with zeros for None, and None for an argument that is not there."""
        pairs = [(tangent, args[place]) for tangent, place in zip(tangents, self.places)]
        return [None if not isinstance(x, Tensor) else torch.zeros_like(x) if t is None else t for t, x in pairs]

    # ---------------------------------------------------------------- making them

    def _make(self, kind: MapName) -> Callable[..., Any]:
        arguments = [Argument("gw_batch", "static", inspect.Parameter.empty, _BY_KEYWORD)]
        for word in GIVEN[kind]:
            # an output of whole numbers has no cotangent, and an argument that is not there no tangent
            sorts: list[Any] = ["optional" if self._may_miss(self.arguments[p]) else "tensor" for p in self.places]
            sorts = ["optional"] * self._number if word == "g" else sorts
            empty = inspect.Parameter.empty
            arguments += [Argument(f"gw{word}_{i}", sort, empty, _BY_KEYWORD) for i, sort in enumerate(sorts)]
        for a in self.arguments:
            given: Any = "unknown" if a.kind == "tensor" and self._may_miss(a) else a.kind  # an array as default
            arguments.append(Argument(a.name, given, inspect.Parameter.empty, _BY_KEYWORD))
        extra = [*(f"gwout_{i}" for i in range(self._outs(kind))), "gwkept"]
        arguments += [Argument(name, "optional", inspect.Parameter.empty, _BY_KEYWORD) for name in extra]
        arguments.append(Argument("gwneeded", "static", inspect.Parameter.empty, _BY_KEYWORD))
        names = tuple(argument.name for argument in arguments)

        def forward(*values: Any) -> Any:
            if torch_compat.without_numbers(values):
                return self.recorded(None if self.op is None else f"{self.op}_{kind}", values)
            return packed(self.marshal.run(kind, self._given(kind, values)))

        def fake(*values: Any) -> Any:
            return packed(self.marshal.fake(BACK[kind], self._given(kind, values)))

        name = f"{self.marshal.calculus.name}_{kind}"
        forward.__name__, forward.__module__ = name, self.module
        forward.__qualname__ = f"{self.qualname}_{kind}"
        back = self._number if BACK[kind] == "outs" else len(self.places)
        returned = Tensor if back == 1 else types.GenericAlias(tuple, (Tensor,) * back)
        forward.__annotations__ = {**self.annotations, "gw_batch": int, "gwneeded": tuple[bool, ...]}
        if kind != "batch" or self.marshal.declared is not None:  # else the first call shows it
            forward.__annotations__["return"] = returned
        nondiff = tuple(a.name for i, a in enumerate(self.arguments) if i not in self.places and a.kind != "static")
        options = Options(op=None if self.op is None else f"{self.op}_{kind}", vmap="none", nondiff=nondiff)
        definition = Definition(name, forward, tuple(arguments), options, foreign=self.foreign)
        with_out = self._with_out(kind)
        rules = [
            Rule(self._vjp(kind, names), "vjp", (*names, "out", "needs") if with_out else (*names, "needs")),
            Rule(self._jvp(kind, names), "jvp", names),
            Rule(self._vmap(kind), "vmap", names),
        ]
        if self.op is not None:
            rules.append(Rule(fake, "fake", names))
        for rule in rules:
            rule.function.__name__ = f"{name}_{rule.kind}"
        made: Callable[..., Any] = build(definition, *rules)
        return made

    def _with_out(self, kind: MapName) -> bool:
        """Tell whether a map keeps what it returned: the rule asks for it, and would compute it again."""
        return kind == "batch" and self.marshal.calculus.wants_out

    def _given(self, kind: MapName, values: Sequence[Any]) -> Given:
        left = iter(values)
        batch = next(left)
        found: dict[str, list[Any]] = {"g": [], "t": [], "u": []}
        for word in GIVEN[kind]:
            found[word] = [next(left) for _ in range(self._number if word == "g" else len(self.places))]
        args = [next(left) for _ in self.arguments]
        outs = [next(left) for _ in range(self._outs(kind))]
        return Given(batch, found["g"], found["t"], found["u"], args, outs, next(left), next(left))

    # ---------------------------------------------------------------- their rules

    def _vjp(self, kind: MapName, names: Sequence[str]) -> Callable[..., Any]:
        places = [self.arguments[i].name for i in self.places]
        with_out = self._with_out(kind)

        def rule(c: Any, *values: Any) -> dict[str, Any]:
            *values, needs = values  # type: ignore[assignment]
            out = None
            if with_out:
                *values, out = values  # type: ignore[assignment]
            at = self._given(kind, values)
            if out is not None:
                at.outs = listed(out)
            asked = {word: any(needs[n] for n in names if n.startswith(f"gw{word}_")) for word in ("g", "t", "u")}
            moved = [needs[name] for name in places]
            found: dict[str, Any] = {}
            for word, gradient in self._backward(kind, at, listed(c), asked, moved).items():
                if word != "g":
                    gradient = present(gradient, at.args, self.places)
                own = places if word == "args" else [f"gw{word}_{i}" for i in range(len(gradient))]
                found.update(zip(own, gradient))
            return found

        return rule

    def _backward(
        self, kind: MapName, at: Given, c: list[Any], asked: Mapping[str, bool], moved: Sequence[bool]
    ) -> dict[str, list[Any]]:
        """Return the gradients of what a map was given, for the cotangents ``c`` of what it returned."""
        by_args = any(moved)
        if kind == "batch" and by_args and self.on_tensors is not None:
            chosen = [place for place, needed in zip(self.places, moved) if needed]
            gradients = iter(Samples(self.on_tensors, chosen).pull(at.args, at.batch, c))
            return {"args": [next(gradients) if needed else None for needed in moved]}
        if kind in ("curve", "bend") and by_args:
            raise RuleError(self.marshal.calculus.third_message)
        ways: dict[MapName, dict[str, tuple[bool, MapName, dict[str, Any]]]] = {
            "batch": {"args": (by_args, "pull", {"g": c, "needed": moved, "outs": at.outs})},
            "pull": {"g": (asked["g"], "push", {"t": c}), "args": (by_args, "curve", {"g": at.g, "t": c})},
            "push": {"t": (asked["t"], "pull", {"g": c}), "args": (by_args, "curve", {"g": c, "t": at.t})},
            "curve": {
                "g": (asked["g"], "bend", {"t": at.t, "u": c}),
                "t": (asked["t"], "curve", {"g": at.g, "t": c}),
            },
            "bend": {
                "t": (asked["t"], "curve", {"g": c, "t": at.u}),
                "u": (asked["u"], "curve", {"g": c, "t": at.t}),
            },
        }
        return {
            word: self.call(way, at.args, batch=at.batch, **given)
            for word, (wanted, way, given) in ways[kind].items()
            if wanted
        }

    def _jvp(self, kind: MapName, names: Sequence[str]) -> Callable[..., Any]:
        def rule(t: Mapping[str, Any], *values: Any) -> Any:
            at = self._given(kind, values)
            moving = self._given(kind, [t.get(name) for name in names])
            along = [moving.args[place] for place in self.places]
            terms = list(self._forward(kind, at, moving, along))
            total = terms[0]
            for term in terms[1:]:
                total = [a + b for a, b in zip(total, term)]
            return packed(total)

        return rule

    def _forward(self, kind: MapName, at: Given, moving: Given, along: list[Any]) -> Any:
        """Give the terms of the tangents of what a map returned: one for each of what it was given that moves."""
        args, batch = at.args, at.batch
        g = [zero_like(a) if a is not None and b is None else b for a, b in zip(at.g, moving.g)]
        moves = {word: any(part is not None for part in getattr(moving, word)) for word in ("g", "t", "u")}
        if moves["g"]:  # a map is linear in what it is given
            yield self.call(kind, args, g=g, t=at.t, u=at.u, batch=batch)
        if moves["t"]:
            yield self.call(kind, args, g=at.g, t=moving.t, u=at.u, batch=batch)
        if moves["u"]:
            yield self.call(kind, args, g=at.g, t=at.t, u=moving.u, batch=batch)
        if all(part is None for part in along):
            return
        if kind == "batch" and self.on_tensors is not None:
            pairs = [(place, t) for place, t in zip(self.places, along) if t is not None]
            yield Samples(self.on_tensors, [place for place, _ in pairs]).push(args, batch, [t for _, t in pairs])
        elif kind == "batch":
            yield self.call("push", args, t=along, batch=batch)
        elif kind == "pull":
            yield self.call("curve", args, g=at.g, t=along, batch=batch)
        elif kind == "push":
            yield self.call("bend", args, t=at.t, u=along, batch=batch)
        else:
            raise RuleError(self.marshal.calculus.third_message)

    def _vmap(self, kind: MapName) -> Callable[..., Any]:
        def rule(info: Any, in_dims: Any, batch: int, *values: Any) -> Any:
            self.marshal.require_batches()
            dims = list(in_dims)[1:]
            # What was kept belongs to the point of the derivative. It stays where that is the same for all samples.
            given = self._given(kind, [batch, *values])
            shared = all(dim is None for value, dim in zip(values, dims) if any(value is a for a in given.args))
            moved = [
                (value if shared else None) if value is given.kept else led(value, dim)
                for value, dim in zip(values, dims)
            ]
            found = listed(self.made[kind](batch + 1, *moved))
            size = info.batch_size
            return packed([out.expand(size, *out.shape[1:]) for out in found]), 0

        return rule


def present(gradients: Sequence[Any], args: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Return gradients for the places, None for an argument that is not there."""
    return [gradient if isinstance(args[place], Tensor) else None for gradient, place in zip(gradients, places)]


def led(value: Any, dim: Any, what: str = "") -> Any:
    """Return a tensor with its batch as first dimension, of size 1 where it has none.

    Raises:
        RuleError: tensors inside of something else are batched, whose samples foreign code would get all at once.
    """
    if not isinstance(value, Tensor):
        if any(isinstance(each, int) for each in torch_compat.flatten(dim)[0]):
            raise RuleError(
                f"{what} holds tensors that are batched by vmap, but only arguments are taken apart into samples; "
                "expected an argument for each; pass them one by one."
            )
        return value
    return value.unsqueeze(0) if dim is None else value.movedim(dim, 0)


def packed(tensors: Sequence[Any]) -> Any:
    """Return one tensor as it is and several as a tuple: an operator of PyTorch has no tuple of one."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def listed(returned: Any) -> list[Any]:
    """Undo :func:`packed`."""
    return list(returned) if isinstance(returned, tuple) else [returned]


def zero_like(value: Any) -> Any:
    """Return zeros like a tensor."""
    return torch.zeros_like(value)


def runs_at_once(tensors: Sequence[Any]) -> bool:
    """Tell whether foreign code may run right here: there are numbers, and nobody can differentiate what comes out."""
    if may_be_differentiated() or torch_compat.transforms_active() or torch_compat.without_numbers(tensors):
        return False
    return not any(torch_compat.may_be_batched(tensor) for tensor in tensors if tensor is not None)
