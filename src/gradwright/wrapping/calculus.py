"""What can be computed of the derivative of a foreign function, on arrays, from the rules that there are.

With J the Jacobian, g a cotangent, t and u tangents, and f'' the second derivative, there are four maps::

    pull   J^T g              push   J t
    curve  (f''·g) t          bend   f''[t, u]

Each is linear in g, t and u, and the derivative of one by these is another: what is missing is only the third order.
A VJP gives ``pull``, a JVP ``push``, a Jacobian both; each of the two follows from the other by unit vectors, one call
an element. ``curve``, the gradient of ``<g, J t>``, is a rule of its own, or a difference of ``pull``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from gradwright.authoring.rules import Rule, RuleKind
from gradwright.errors import ExternalError, GradwrightError, RuleError, kind_of
from gradwright.wrapping.arrays import owned
from gradwright.wrapping.host import Host
from gradwright.wrapping.jacobians import contract, product
from gradwright.wrapping.place import Point

Arrays: TypeAlias = list[Any]
SecondOrder: TypeAlias = Literal["error", "differences"]

UNIT_VECTORS = 1000
"""Up to how many calls of one rule make up for another."""
_STEP = float(np.finfo(np.float64).eps) ** (1 / 3)


class Approximation(Protocol):
    """A way to compute derivatives from values alone, as ``gw.fd`` makes it."""

    accuracy: float

    def vjp(
        self, evaluate: Any, values: Sequence[Any], places: Sequence[int], outs: Any, cotangents: Sequence[Any]
    ) -> Arrays:
        """Return one gradient for each place."""
        ...

    def jvp(
        self, evaluate: Any, values: Sequence[Any], places: Sequence[int], outs: Any, tangents: Sequence[Any]
    ) -> Sequence[Any]:
        """Return one tangent for each output."""
        ...


@dataclass
class Calculus:
    """The derivative of one foreign function."""

    host: Host
    places: tuple[int, ...]
    """The positions of the arguments that have a derivative."""
    second_order: SecondOrder = "error"
    max_order: int = 2
    approximation: Approximation | None = None
    rules: dict[RuleKind, Rule] = field(default_factory=dict)
    evaluate: Callable[[Sequence[Sequence[Any]]], list[Any]] | None = None
    """Runs the function at many points; None: one after the other."""

    @property
    def name(self) -> str:
        """The user's name for the function."""
        return self.host.name

    @property
    def order(self) -> int:
        """How many derivatives there are."""
        first = self.approximation is not None or any(kind in self.rules for kind in ("vjp", "jvp", "jacobian"))
        second = "hvp" in self.rules or self.second_order == "differences"
        return 0 if not first else min(1 + second, self.max_order)

    @property
    def wants_out(self) -> bool:
        """Whether the VJP rule asks for the output, or it must tell which samples of a batch have failed."""
        rule = self.rules.get("vjp")
        return self.host.on_error == "nan" or (rule is not None and "out" in rule.asks)

    # ---------------------------------------------------------------- first order

    def pull(self, at: Point, g: Sequence[Any], needed: Sequence[bool]) -> Arrays:
        """Return the gradient for each place, None where it is zero or not needed."""
        if "vjp" in self.rules:
            found = self._by_place("vjp", self._called("vjp", (self.cotangent(g),), at, needs=self.needs(needed)), at)
        elif "jacobian" in self.rules:
            found = contract(self.jacobian(at), g, self._shapes(at))
        elif self.approximation is not None:
            found = self._approximated("vjp", at, g)
        elif "jvp" in self.rules:
            found = self._by_columns(at, g, needed)
        else:
            raise self.missing()
        return [grad if need else None for grad, need in zip(found, needed)]

    def job(
        self, kind: str, at: Point, g: Sequence[Any], t: Sequence[Any], needed: Sequence[bool]
    ) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """Return a call that a worker can do for ``pull`` or ``push``, None where it takes several."""
        word: RuleKind = "vjp" if kind == "pull" else "jvp"
        rule = self.rules.get(word)
        if rule is None or rule.by_keyword or "residuals" in rule.asks or kind not in ("pull", "push"):
            return None
        values = {**dict(zip(self.host.names, at.values)), "needs": self.needs(needed)}
        if "out" in rule.asks:
            values["out"] = self._out(at)
        given = self.cotangent(g) if kind == "pull" else self.tangent(t)
        asked = self.host.given_by_name(values)
        return rule.function, (self.host.handed(given), *(asked[name] for name in rule.asks))

    def done(self, kind: str, box: list[Any], at: Point) -> Arrays:
        """Return what comes of the result of a :meth:`job`, which is in a box."""
        word: RuleKind = "vjp" if kind == "pull" else "jvp"
        returned = owned(box, f"{self.name}: the rule {self._rule(word)!r} returned")
        return self._by_place(word, returned, at) if kind == "pull" else self._tangents(returned, at)

    def cotangent(self, g: Sequence[Any]) -> Any:
        """Return cotangents as rules get them."""
        return self.host.packed(g)

    def tangent(self, t: Sequence[Any]) -> Any:
        """Return tangents as rules get them."""
        return t[0] if len(self.places) == 1 else {self.host.names[i]: part for i, part in zip(self.places, t)}

    def _out(self, at: Point) -> Any:
        return self.host.packed(at.outs)

    def needs(self, needed: Sequence[bool]) -> dict[str, bool]:
        """Return which arguments need a gradient, as rules get it."""
        needs = dict.fromkeys(self.host.names, False)
        needs.update({self.host.names[place]: need for place, need in zip(self.places, needed)})
        return needs

    def push(self, at: Point, t: Sequence[Any]) -> Arrays:
        """Return the tangent of each output for the tangents of the places, None for those that do not move."""
        if "jvp" in self.rules:
            return self._tangents(self._called("jvp", (self.tangent(t),), at), at)
        if "jacobian" in self.rules:
            return [product(row, t, out) for row, out in zip(self.jacobian(at), at.outs)]
        if self.approximation is not None:
            return self._approximated("jvp", at, t)
        if "vjp" in self.rules:
            return self._by_rows(at, lambda g: self.pull(at, g, [tangent is not None for tangent in t]), t)
        raise self.missing()

    def jacobian(self, at: Point) -> list[Arrays]:
        """Return what the rule for it returns: for each output the Jacobian by each place.

        Raises:
            ExternalError: one has another shape than that of the output and then that of the argument.
        """
        returned = self._called("jacobian", (), at)
        rows = returned if self.host.many and isinstance(returned, tuple) else (returned,)
        if len(rows) != len(at.outs):
            raise ExternalError(
                f"{self.name}: the rule {self._rule('jacobian')!r} returned {kind_of(returned)}; expected a tuple with "
                f"the Jacobian of each of {len(at.outs)} outputs."
            )
        shapes = self._shapes(at)
        found = []
        for out, row in zip(at.outs, rows):
            parts = self._split("jacobian", row)
            for i, (part, shape) in enumerate(zip(parts, shapes)):
                if part is not None and np.iscomplexobj(at.values[self.places[i]]) and not np.iscomplexobj(out):
                    raise ExternalError(
                        f"{self.name}: the rule {self._rule('jacobian')!r} returned the Jacobian of real numbers by "
                        f"{self.host.names[self.places[i]]!r}, which is complex, so that they have no complex "
                        "derivative; expected a complex output for it; write register_vjp or register_jvp instead."
                    )
                parts[i] = None if part is None else self._checked("jacobian", part, (*out.shape, *shape), i)
            found.append(parts)
        return found

    def missing(self) -> RuleError:
        """Return the error for a derivative that nothing gives."""
        return RuleError(
            f"{self.name}: a derivative was asked for, but it has none; expected a rule or a way to do without; write "
            f"`@{self.name}.register_vjp` above `def {self.name}_vjp(g, ...)`, or register_jvp or register_jacobian, "
            "or declare derivative=gw.fd() for differences of its values."
        )

    # ---------------------------------------------------------------- second order

    def curve(self, at: Point, g: Sequence[Any], t: Sequence[Any]) -> Arrays:
        """Return the gradient of ``<g, J t>`` for each place."""
        if self.order < 2:
            raise RuleError(self.second_message)
        if "hvp" in self.rules:
            return self._by_place("hvp", self._called("hvp", (self.cotangent(g), self.tangent(t)), at), at)
        return self._difference(at, t, lambda point: self.pull(point, g, [True] * len(self.places)))

    def bend(self, at: Point, t: Sequence[Any], u: Sequence[Any]) -> Arrays:
        """Return the second derivative of each output along two tangents."""
        if self.order < 2:
            raise RuleError(self.second_message)
        return self._by_rows(at, lambda g: self.curve(at, g, t), u)

    @property
    def second_message(self) -> str:
        """Say that there is no second derivative, and what gives one."""
        if self.max_order < 2:
            return (
                f"{self.name}: its derivative was differentiated again, but it is declared with max_order=1; expected "
                "one differentiation; declare max_order=2."
            )
        return (
            f"{self.name}: its derivative was differentiated again, but it has first derivatives only; expected one "
            f"differentiation; write `@{self.name}.register_hvp` above `def {self.name}_hvp(g, t, ...)`, which returns "
            "the gradient of <g, J t>, or declare second_order='differences', or let the rule call further functions "
            f"of gw.external: `@{self.name}.vjp` takes a rule on tensors."
        )

    @property
    def third_message(self) -> str:
        """Say that there is no third derivative."""
        return (
            f"{self.name}: it was differentiated three times, but it has derivatives up to the second; expected two "
            f"differentiations; give it a rule on tensors with @{self.name}.vjp, which may be differentiated again."
        )

    # ---------------------------------------------------------------- pieces

    def _called(self, kind: RuleKind, leading: Sequence[Any], at: Point, **more: Any) -> Any:
        rule = self.rules[kind]
        values = {**dict(zip(self.host.names, at.values)), **more}
        if "out" in rule.asks:
            values["out"] = self._out(at)
        kept = {"residuals": at.residuals} if "residuals" in rule.asks else {}  # these are the user's own

        def call() -> Any:
            given = self.host.given_by_name(values)
            return rule.call([self.host.handed(each) for each in leading], {**given, **kept})

        try:
            box = [self.host.trying(call)]
            what = f"{self.name}: the rule {self._rule(kind)!r} returned"
            if kind == "jacobian" and self.host.many and type(box[0]) is tuple:
                return tuple([owned([row], what) for row in box[0]])  # each of them may be by place again
            return owned(box, what)
        except GradwrightError:
            raise
        except Exception as error:
            failed = self.host.failed(error, at.values)
            message = str(failed).replace(": it raised", f": its rule {self._rule(kind)!r} raised", 1)
            raise ExternalError(message, traceback=failed.traceback) from error

    def _rule(self, kind: RuleKind) -> str:
        return str(getattr(self.rules[kind].function, "__name__", "rule"))

    def _shapes(self, at: Point) -> list[tuple[int, ...]]:
        return [np.shape(at.values[place]) for place in self.places]

    def _split(self, kind: RuleKind, returned: Any) -> Arrays:
        """Return what a rule returned for each place."""
        names = [self.host.names[place] for place in self.places]
        if isinstance(returned, dict):
            unknown = [name for name in returned if name not in names]
            if unknown:
                raise ExternalError(
                    f"{self.name}: the rule {self._rule(kind)!r} returned something for {unknown[0]!r}; expected "
                    f"{', '.join(names)}, which have a derivative; leave it away, or name it in argnums."
                )
            return [returned.get(name) for name in names]
        parts = list(returned) if isinstance(returned, tuple) else [returned]
        if len(parts) != len(names):
            raise ExternalError(
                f"{self.name}: the rule {self._rule(kind)!r} returned {len(parts)} values; expected {len(names)}, for "
                f"{', '.join(names)}; return a dict by name: {{{names[0]!r}: ...}}."
            )
        return parts

    def _by_place(self, kind: RuleKind, returned: Any, at: Point) -> Arrays:
        found = self._split(kind, returned)
        for i, shape in enumerate(self._shapes(at)):
            if found[i] is not None:
                found[i] = self._checked(kind, found[i], shape, i)
        return found

    def _checked(self, kind: RuleKind, value: Any, shape: tuple[int, ...], i: int) -> Any:
        name = self.host.names[self.places[i]]
        if value.shape != shape or value.dtype.kind not in "fciub":
            wanted = (
                "that of the output and then that of the argument" if kind == "jacobian" else "that of the argument"
            )
            raise ExternalError(
                f"{self.name}: the rule {self._rule(kind)!r} returned {value.dtype} {value.shape} for {name!r}; "
                f"expected the shape {shape}, {wanted}; sum over the axes that were broadcast, or reshape it."
            )
        return value

    def _tangents(self, returned: Any, at: Point) -> Arrays:
        many = self.host.many
        parts = list(returned) if many and isinstance(returned, tuple) else [returned]
        outs = at.outs
        if len(parts) != len(outs):
            raise ExternalError(
                f"{self.name}: the rule {self._rule('jvp')!r} returned {kind_of(returned)}; expected a tuple with a "
                f"tangent for each of {len(outs)} outputs."
            )
        found: Arrays = []
        for part, out in zip(parts, outs):
            array = np.zeros_like(out) if part is None else part
            if array.shape != out.shape:
                raise ExternalError(
                    f"{self.name}: the rule {self._rule('jvp')!r} returned {array.dtype} {array.shape}; expected the "
                    f"shape of the output, {out.shape}."
                )
            found.append(array)
        return found

    def _approximated(self, direction: Literal["vjp", "jvp"], at: Point, given: Sequence[Any]) -> Arrays:
        assert self.approximation is not None
        evaluate = self.evaluate or (lambda points: [self.host.run(point)[0] for point in points])
        way = getattr(self.approximation, direction)
        return list(way(evaluate, list(at.values), self.places, at.outs, list(given)))

    def _by_columns(self, at: Point, g: Sequence[Any], needed: Sequence[bool]) -> Arrays:
        """Return gradients from the JVP: one call for each element of the arguments."""
        shapes = self._shapes(at)
        self._limit(sum(int(np.prod(s)) for s, need in zip(shapes, needed) if need), "arguments", "VJP", "register_vjp")
        found: Arrays = []
        for i, (shape, need) in enumerate(zip(shapes, needed)):
            if not need:
                found.append(None)
                continue
            grad = np.zeros(shape, dtype=np.result_type(at.values[self.places[i]], 1.0))
            found.append(grad)
            for index in np.ndindex(*shape):
                for unit in _units(grad):
                    t: Arrays = [None] * len(shapes)
                    t[i] = np.zeros_like(grad)
                    t[i][index] = unit
                    grad[index] += unit * sum(_inner(one, c) for one, c in zip(self.push(at, t), g) if c is not None)
        return found

    def _by_rows(self, at: Point, pull: Callable[[Arrays], Arrays], t: Sequence[Any]) -> Arrays:
        """Return tangents of outputs from a map that gives gradients: one call for each element of the outputs."""
        self._limit(sum(out.size for out in at.outs if out.dtype.kind in "fc"), "outputs", "JVP", "register_jvp")
        found: Arrays = []
        for i, out in enumerate(at.outs):
            tangent = np.zeros_like(out)
            found.append(tangent)
            for index in np.ndindex(*out.shape) if out.dtype.kind in "fc" else ():
                for unit in _units(out):
                    g: Arrays = [np.zeros_like(o) if o.dtype.kind in "fc" else None for o in at.outs]
                    g[i][index] = unit
                    pairs = [(a, b) for a, b in zip(pull(g), t) if a is not None and b is not None]
                    tangent[index] += unit * sum(_inner(a, b) for a, b in pairs)
        return found

    def _limit(self, number: int, what: str, rule: str, remedy: str) -> None:
        if number > UNIT_VECTORS:
            raise RuleError(
                f"{self.name}: it has no rule for the {rule}, and its {what} have {number} elements; expected at most "
                f"{UNIT_VECTORS} to do without, which takes a call for each; write `@{self.name}.{remedy}`."
            )

    def _difference(self, at: Point, t: Sequence[Any], function: Callable[[Point], Arrays]) -> Arrays:
        """Return the central difference of gradients along tangents."""
        size = max([float(np.abs(part).max(initial=0.0)) for part in t if part is not None], default=0.0)
        values = [at.values[place] for place in self.places]
        if size == 0.0:
            return [np.zeros_like(value) for value in values]
        scale = max([1.0, *(float(np.abs(value).max(initial=0.0)) for value in values)])
        single = any(np.asarray(value).dtype.itemsize <= 4 for value in values)
        step = scale * (float(np.finfo(np.float32).eps) ** (1 / 3) if single else _STEP) / size
        sides = []
        for sign in (1.0, -1.0):
            moved = list(at.values)
            for place, part in zip(self.places, t):
                if part is not None:
                    moved[place] = (moved[place] + sign * step * part).astype(moved[place].dtype)
            sides.append(function(Point(self.host, moved)))
        return [None if a is None or b is None else (a - b) / (2 * step) for a, b in zip(*sides)]


def _units(array: Any) -> tuple[complex, ...]:
    """Return the directions in which one element moves: a complex one has two, as if it were two real ones."""
    return (1, 1j) if array.dtype.kind == "c" else (1,)


def _inner(a: Any, b: Any) -> Any:
    """Return the product of two arrays by which gradients are meant, with complex numbers as pairs of real ones."""
    return np.vdot(a, b).real
