"""From tensors to foreign code and back: what is handed over, for one sample or a batch, and what comes of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.errors import ArgumentError, ExternalError, RuleError
from gradwright.wrapping.arrays import DTYPES, array_of, owned, tensor_of
from gradwright.wrapping.batches import Batch, VmapMethod, each, stacked
from gradwright.wrapping.calculus import Calculus
from gradwright.wrapping.host import counted
from gradwright.wrapping.jacobians import contract
from gradwright.wrapping.outputs import Declared
from gradwright.wrapping.place import Point

MapName: TypeAlias = Literal["batch", "pull", "push", "curve", "bend"]
RULE_OF: dict[str, Any] = {"pull": "vjp", "push": "jvp", "curve": "hvp"}


@dataclass
class Marshal:
    """One foreign function, its derivative, and how values travel to them."""

    calculus: Calculus
    declared: Declared | None
    dtype: torch.dtype | None
    copy: bool | None
    device_types: tuple[str, ...] | None
    vmap_method: VmapMethod
    batched: dict[str, Any] = field(default_factory=dict)
    """For whole batches, by the name of the map: the function itself, and rules."""
    pool: Callable[[], Any] | None = None

    @property
    def name(self) -> str:
        """The user's name for the function."""
        return self.calculus.name

    @property
    def outputs(self) -> int:
        """How many outputs there are: as declared, or as the first call showed."""
        number = self.calculus.host.number if self.declared is None else self.declared.number
        return 1 if number is None or number == -1 else number

    # ---------------------------------------------------------------- handing over

    def array(self, value: Any, name: str, *, may_copy: bool = False) -> Any:
        """Return a tensor as the array that foreign code gets, and anything else as it is.

        Raises:
            ArgumentError: the tensor cannot be handed over.
        """
        if not isinstance(value, Tensor):
            return value
        value = torch_compat.unwrap_dead(value)  # saved within a transform that has ended since
        if self.device_types is not None and value.device.type not in self.device_types:
            raise ArgumentError(
                f"{self.name}: {name!r} is on {value.device}; expected a tensor on {' or '.join(self.device_types)}; "
                f"write {name}.to({self.device_types[0]!r}), or leave device_types away to have it copied."
            )
        floating = value.is_floating_point() or value.is_complex()
        dtype = None
        if floating and self.dtype is not None:
            dtype = self.dtype.to_complex() if value.is_complex() and not self.dtype.is_complex else self.dtype
        try:
            return array_of(value, dtype, self.calculus.host.order, may_copy=may_copy or self.copy is not False)
        except ExternalError as error:
            raise ArgumentError(f"{self.name}: {name!r} is {error}") from None

    def args(self, values: Sequence[Any]) -> list[Any]:
        """Return all arguments as foreign code gets them."""
        return [self.array(value, name) for value, name in zip(values, self.calculus.host.names)]

    def one(self, values: Sequence[Any]) -> tuple[tuple[Tensor, ...], Any]:
        """Run the function on the tensors of one sample; return its outputs and what it kept."""
        outs, residuals = self.calculus.host.run(self.args(values))
        return self.results(outs, values, ()), residuals

    # ---------------------------------------------------------------- taking back

    def results(self, outs: Sequence[Any], values: Sequence[Any], batch: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Return outputs as tensors, after a look whether they are what was declared.

        Raises:
            ExternalError: they are not, or they have no derivative although one is wanted.
        """
        tensors = [value for value in values if isinstance(value, Tensor)]
        device = tensors[0].device
        if self.declared is None:
            usual = self._usual(tensors)
            found = [tensor_of(out, usual if out.dtype.kind == "f" else None, device) for out in outs]
            if torch.is_grad_enabled() is False and all(out.dtype.kind in "iub" for out in outs):
                self._refuse_whole(outs, values)
            return tuple(found)
        expected = self.declared.empty(dict(zip(self.calculus.host.names, _cores(values, len(batch)))), batch)
        returned, declared = self.calculus.host.number, self.declared.number
        if len(expected) != len(outs) or returned not in (declared, -1):
            raise ExternalError(
                f"{self.name}: it returned {counted(returned)}; out declares {counted(declared)}; expected the same "
                "number; return what is declared, or correct out (what a function returns is read from its annotation, "
                "`-> tuple[Tensor, Tensor]`)."
            )
        return tuple([self._as_declared(out, like, i) for i, (out, like) in enumerate(zip(outs, expected))])

    def gradient(self, grad: Any, primal: Tensor) -> Tensor:
        """Return a gradient as a tensor like the argument that it is for."""
        if grad.dtype.kind == "c" and not primal.is_complex():
            grad = np.real(grad)
        # What differences return for several arguments lies in one memory.
        own = grad if grad.base is None and grad.flags.owndata else np.array(grad)
        return tensor_of(own, primal.dtype, primal.device)

    def _as_declared(self, out: Any, like: Tensor, i: int) -> Tensor:
        which = "" if self.outputs == 1 else f" as output {i}"
        if out.shape != tuple(like.shape):
            raise ExternalError(
                f"{self.name}: it returned {out.dtype} {out.shape}{which}; out declares {_short(like.dtype)} "
                f"{tuple(like.shape)}; expected the declared shape; correct out, or reshape the result."
            )
        # a number says nothing of its dtype
        lossless = self.dtype is not None or out.ndim == 0 or like.dtype not in DTYPES
        lossless = lossless or out.dtype == np.dtype(DTYPES[like.dtype])
        real = out.dtype.kind == "c" and not like.dtype.is_complex
        if real or (not lossless and not (out.dtype.kind in "iub" and like.dtype.is_floating_point)):
            remedy = f"declare dtype=torch.{out.dtype} to have it computed in that and cast back"
            raise ExternalError(
                f"{self.name}: it returned {out.dtype} {out.shape}{which}; out declares {_short(like.dtype)}; expected "
                f"the declared dtype; {'return its real part' if real else remedy}, or correct out."
            )
        tensor = tensor_of(out, like.dtype, like.device)
        return tensor if tensor.stride() == like.stride() else torch.empty_like(like).copy_(tensor)

    def _usual(self, tensors: Sequence[Tensor]) -> torch.dtype | None:
        """Return the dtype that results are cast back to, None where they are left as they are."""
        floating = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
        if not floating or (self.dtype is None and all(dtype in DTYPES for dtype in floating)):
            return None
        return functools.reduce(torch.promote_types, floating)

    def _refuse_whole(self, outs: Sequence[Any], values: Sequence[Any]) -> None:
        places = self.calculus.places
        if self.calculus.order and any(isinstance(values[i], Tensor) and values[i].requires_grad for i in places):
            raise ExternalError(
                f"{self.name}: it returned {', '.join(str(out.dtype) for out in outs)}, which has no derivative, for "
                "an argument that requires grad; expected floating numbers; return np.asarray(result, dtype=float), or "
                "declare out=gw.spec(shape, dtype) with the dtype that is meant, or pass the argument detached."
            )

    # ---------------------------------------------------------------- the maps

    def run(self, kind: MapName, given: Any) -> tuple[Tensor, ...]:
        """Run one map on tensors, for a batch or one sample."""
        args = self.args(given.args)
        word = {"g": given.g, "t": given.t, "u": given.u}
        leading = {key: [self.array(part, key, may_copy=True) for part in parts] for key, parts in word.items()}
        outs = [None if out is None else self.array(out, "out", may_copy=True) for out in given.outs]
        constants = frozenset(i for i, value in enumerate(given.args) if not isinstance(value, Tensor))
        known = None if not outs or any(out is None for out in outs) else outs
        kept = residuals_of(given.kept)
        if given.batch == 0:
            found = self._single(kind, Point(self.calculus.host, args, known, kept), leading, given.needed)
        else:
            found = self._batch(kind, Batch(given.batch, args, leading, known, constants), kept, given.needed)
        return self._tensors(kind, found, given)

    def _single(self, kind: MapName, at: Point, leading: dict[str, list[Any]], needed: Sequence[bool]) -> Sequence[Any]:
        calculus = self.calculus
        if kind == "batch":
            return calculus.host.run(at.values)[0]
        if kind == "pull":
            return calculus.pull(at, leading["g"], needed)
        if kind == "push":
            return calculus.push(at, leading["t"])
        if kind == "curve":
            return calculus.curve(at, leading["g"], leading["t"])
        return calculus.bend(at, leading["t"], leading["u"])

    def _batch(self, kind: MapName, batch: Batch, kept: Any, needed: Sequence[bool]) -> Sequence[Any]:
        if kind in self.batched:
            return self._by_rule(kind, batch, needed)
        direct = kind == "batch" or RULE_OF.get(kind) in self.calculus.rules
        if self.vmap_method in ("expand_dims", "broadcast_all") and direct:
            whole = batch if self.vmap_method == "expand_dims" and kind == "batch" else batch.broadcast()
            at = Point(self.calculus.host, whole.args, whole.outs)
            return self._checked(kind, self._single(kind, at, whole.leading, needed), batch)
        by_jacobian = "jacobian" in self.calculus.rules and "vjp" not in self.calculus.rules
        if batch.shared and batch.size and kind == "pull" and by_jacobian:
            first = batch.sample(next(iter(batch.indices())))
            rows = self.calculus.jacobian(Point(self.calculus.host, first.args, first.outs))
            shapes = [np.shape(first.args[place]) for place in self.calculus.places]
            parts = [contract(rows, batch.sample(i).leading["g"], shapes) for i in batch.indices()]
            return stacked(parts, batch, self.name)
        common: Point | None = None
        if batch.shared and batch.size:
            first = batch.sample(next(iter(batch.indices())))
            common = Point(self.calculus.host, first.args, first.outs, kept)

        def run(index: tuple[int, ...]) -> Sequence[Any]:
            sample = batch.sample(index)
            point = Point(self.calculus.host, sample.args, sample.outs) if common is None else common
            if kind == "batch":
                return self.calculus.host.run(sample.args, index)[0]
            return self._single(kind, point, sample.leading, needed)

        pool = self.pool() if self.pool is not None and not batch.shared else None
        return each(self.calculus, kind, batch, run, pool, needed, self._empties)

    def _by_rule(self, kind: MapName, batch: Batch, needed: Sequence[bool]) -> Sequence[Any]:
        """Run the user's rule for whole batches, which sees one leading dimension."""
        flat = batch.flattened()
        host = self.calculus.host
        what = f"{self.name}: its rule for batches returned"
        rule = self.batched[kind]
        if kind == "batch":
            box = [self._ran(lambda: host.apply(rule, host.given(flat.args)), flat)]
            found = list(host.read(box, flat.args)[0])
        else:
            values = {**dict(zip(host.names, flat.args)), "needs": self.calculus.needs(needed)}
            calculus = self.calculus
            given = calculus.cotangent(flat.leading["g"]) if kind == "pull" else calculus.tangent(flat.leading["t"])
            box = [self._ran(lambda: rule.call([host.handed(given)], host.given_by_name(values)), flat)]
            returned = owned(box, what)
            if isinstance(returned, dict):
                returned = tuple(returned.get(host.names[place]) for place in self.calculus.places)
            found = list(returned) if isinstance(returned, tuple) else [returned]
            number = len(self.calculus.places) if kind == "pull" else self.outputs
            if len(found) != number:
                raise ExternalError(f"{what} {len(found)} arrays; expected {number}, in a tuple or by name.")
        for part in found:
            if part is not None and (part.ndim == 0 or part.shape[0] != batch.size):
                raise ExternalError(
                    f"{what} an array of shape {part.shape} for a batch of {batch.size}; expected the batch as the "
                    "first dimension."
                )
        return [None if part is None else part.reshape(*batch.shape, *part.shape[1:]) for part in found]

    def _ran(self, call: Callable[[], Any], batch: Batch) -> Any:
        host = self.calculus.host
        try:
            return host.trying(call)
        except Exception as error:
            raise host.failed(error, batch.args) from error

    def _checked(self, kind: MapName, found: Sequence[Any], batch: Batch) -> Sequence[Any]:
        """Refuse results of a call for a whole batch that do not begin with it."""
        lead = batch.shape
        for part in found:
            if part is not None and part.shape[: len(lead)] != lead:
                raise ExternalError(
                    f"{self.name}: it was called with a batch of {lead} before the other dimensions, as "
                    f"vmap_method={self.vmap_method!r} declares, and returned {part.dtype} {part.shape}; expected the "
                    "same sizes first; let it treat leading dimensions apart, or declare vmap_method='sequential'."
                )
        return found

    def _tensors(self, kind: MapName, found: Sequence[Any], given: Any) -> tuple[Tensor, ...]:
        lead = _lead([*given.args, *given.g, *given.t, *given.u], given.batch)
        if kind == "batch":
            return self.results(found, given.args, lead)
        device = next(value.device for value in given.args if isinstance(value, Tensor))
        if kind in ("pull", "curve"):
            like: list[tuple[Any, Any]] = [(p.dtype, (*lead, *p.shape[given.batch :])) for p in self._primals(given)]
        elif self.declared is not None:
            like = [(o.dtype, tuple(o.shape)) for o in self.fake("outs", given)]
        else:
            usual = self._usual([value for value in given.args if isinstance(value, Tensor)])
            like = [(usual, None) for _ in found]
        tensors = []
        for part, (dtype, shape) in zip(found, like):
            if part is None:
                tensors.append(torch.zeros(shape, dtype=dtype, device=device))
                continue
            part = np.real(part) if dtype is not None and not dtype.is_complex and part.dtype.kind == "c" else part
            tensors.append(tensor_of(np.asarray(part, order="C"), dtype, device))
        return tuple(tensors)

    # ---------------------------------------------------------------- without numbers

    def fake(self, what: str, given: Any) -> tuple[Tensor, ...]:
        """Return empty tensors like what a map returns."""
        lead = _lead([*given.args, *given.g, *given.t, *given.u], given.batch)
        if what == "places":
            return tuple([p.new_empty((*lead, *p.shape[given.batch :])) for p in self._primals(given)])
        assert self.declared is not None, "an operator has its outputs declared"
        return self.declared.empty(dict(zip(self.calculus.host.names, _cores(given.args, given.batch))), lead)

    def _primals(self, given: Any) -> list[Tensor]:
        """Return the arguments that have a derivative, a number for one that is not there."""
        first = next(value for value in given.args if isinstance(value, Tensor))
        found = [given.args[place] for place in self.calculus.places]
        return [v if isinstance(v, Tensor) else first.new_empty((1,) * given.batch) for v in found]

    def _empties(self, kind: MapName, batch: Batch) -> list[Any] | None:
        """Return the shape of each result of one sample, None where it is not known."""
        if kind in ("pull", "curve"):
            return [np.shape(batch.args[place])[batch.depth :] for place in self.calculus.places]
        if self.declared is None:
            return None
        one = [a if i in batch.constants else torch.empty(a.shape[batch.depth :]) for i, a in enumerate(batch.args)]
        return [tuple(out.shape) for out in self.declared.empty(dict(zip(self.calculus.host.names, one)))]

    def require_batches(self) -> None:
        """Refuse ``vmap`` where that was declared.

        Raises:
            RuleError: ``vmap_method=None``.
        """
        if self.vmap_method is None and "batch" not in self.batched:
            raise RuleError(
                f"{self.name}: it was called under vmap, but is declared with vmap_method=None; expected a way to run "
                "a batch; declare vmap_method='sequential', 'broadcast_all' or 'expand_dims', or write "
                f"`@{self.name}.register_vmap`."
            )


def ticket_for(residuals: Any) -> Tensor:
    """Return an empty tensor that has what a function kept for its derivative as an attribute.

    PyTorch frees it with the other saved tensors once the backward has run; an object on the ctx would stay.
    """
    ticket = torch.empty(0, dtype=torch.uint8)  # of a dtype without derivative, so that PyTorch saves it as it is
    ticket.residuals = residuals  # type: ignore[attr-defined]
    return ticket


def residuals_of(ticket: Any) -> Any:
    """Return what a ticket was given for, None where there is no ticket or it went through something that lost it."""
    if not isinstance(ticket, Tensor):
        return None
    return getattr(torch.func.debug_unwrap(ticket, recurse=True), "residuals", None)


def _lead(values: Sequence[Any], batch: int) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*(value.shape[:batch] for value in values if isinstance(value, Tensor))))


def _cores(values: Sequence[Any], batch: int) -> list[Any]:
    """Return empty tensors like the arguments of one sample."""
    if not batch:
        return list(values)
    return [v.new_empty(v.shape[batch:]) if isinstance(v, Tensor) else v for v in values]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
