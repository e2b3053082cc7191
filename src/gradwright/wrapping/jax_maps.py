"""A JAX function as a function of tensors, and its derivatives as further ones.

The VJP, the JVP and the batched form of a JAX function are JAX functions themselves. So the rules of one are calls of
others, which are made when they are first asked for: there is no last order, and every mode and transform may be
nested in every other.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.decorator import build
from gradwright.authoring.definition import Definition, Options
from gradwright.authoring.foreign import Foreign
from gradwright.authoring.rules import Argument, Rule
from gradwright.wrapping.jax_arrays import Border
from gradwright.wrapping.leaves import listed, packed, runs_at_once


@dataclass(frozen=True)
class Origin:
    """What all maps of one function have from it."""

    border: Border
    jit: bool
    foreign: Foreign
    module: str
    qualname: str
    op: str | None


class Map:
    """A JAX function of arrays alone as a function of tensors.

    Arguments:
        origin: where it comes from.
        function: from arrays to any containers of arrays.
        inputs: how many arrays it takes.
        outputs: how many it returns.
        suffix: what tells it from the other maps of its origin.
    """

    def __init__(
        self, origin: Origin, function: Callable[..., Any], inputs: int, outputs: int | None, suffix: str
    ) -> None:
        self.origin, self.function, self.inputs, self.outputs, self.suffix = origin, function, inputs, outputs, suffix
        self.jax = origin.border.jax
        self.compiled = self.jax.jit(function) if origin.jit else function
        self.further: dict[str, Map] = {}
        self.trees: dict[Any, Any] = {}
        """How what it returns is built, by the shapes and dtypes of what it got."""
        self._shaped: dict[Any, list[Any]] = {}
        self._torch: Callable[..., Any] | None = None

    # ---------------------------------------------------------------- running it

    def call(self, *tensors: Tensor) -> list[Tensor]:
        """Run it on tensors of any kind."""
        if runs_at_once(tensors):
            return self.run(tensors)[0]
        if any(map(torch_compat.is_legacy_batch, tensors)):
            # What `is_grads_batched=True` hands out knows no rule for batches; its numbers are taken out and put back.
            batched = [torch_compat.is_legacy_batch(t) for t in tensors]
            bare = [torch_compat.legacy_batch_first(t) if b else t for t, b in zip(tensors, batched)]
            return [torch_compat.legacy_batched(t) for t in self.batched(batched).call(*bare)]
        if self._torch is None:
            self._torch = self._made()
        return listed(self._torch(*tensors))

    def run(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Any]:
        """Run it on tensors with numbers; return its outputs, and how they belong together."""
        border, jax = self.origin.border, self.jax
        device = tensors[0].device if tensors else torch.device("cpu")
        with border.crossed(tensors, self._what):
            arrays = [border.to_jax(t) for t in tensors]
            returned, tree = jax.tree_util.tree_flatten(self.compiled(*arrays))
            if not self.origin.jit:  # numbers, as Python has them
                returned = [jax.numpy.asarray(out) for out in returned]
            # Compiled code returns memory of its own, all other code whatever it has.
            found = [border.to_torch(out, tensors, device, copy=not self.origin.jit) for out in returned]
        self.trees[signature(tensors)] = tree
        return found, tree

    def shaped(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Any]:
        """Return empty tensors like its outputs, and how they belong together."""
        key = signature(tensors)
        if key not in self._shaped:
            with self.origin.border.crossed(tensors, self._what):
                specs = self.jax.eval_shape(self.function, *map(self.origin.border.shaped, tensors))
            self._shaped[key], self.trees[key] = self.jax.tree_util.tree_flatten(specs)
        device = tensors[0].device if tensors else torch.device("cpu")
        return [self.origin.border.empty(spec, device) for spec in self._shaped[key]], self.trees[key]

    @property
    def _what(self) -> str:
        return "its derivative" if "_vjp_" in self.suffix or "_jvp_" in self.suffix else "it"

    # ---------------------------------------------------------------- further maps

    def pull(self, moving: Sequence[int], outs: Sequence[int]) -> Map:
        """Return the map from cotangents of some outputs, and the inputs, to gradients of some inputs."""
        jax, function = self.jax, self.function
        conj = jax.numpy.conj  # torch's gradient of a complex number is the conjugate of JAX's

        def pulled(*arrays: Any) -> Any:
            g, args = arrays[: len(outs)], arrays[len(outs) :]

            def moved(*those: Any) -> Any:
                leaves = jax.tree_util.tree_leaves(function(*_replaced(args, moving, those)))
                return [jax.numpy.asarray(leaves[j]) for j in outs]

            values, back = jax.vjp(moved, *[args[i] for i in moving])
            cotangents = [conj(c).astype(value.dtype) for c, value in zip(g, values)]
            return [conj(grad) for grad in back(cotangents)]

        suffix = f"_vjp_{'_'.join(map(str, moving))}_of_{'_'.join(map(str, outs))}"
        return self._further(suffix, pulled, len(outs) + self.inputs, len(moving))

    def push(self, moving: Sequence[int], outputs: int) -> Map:
        """Return the map from tangents of some inputs, and the inputs, to tangents of all outputs.

        An output of whole numbers has a tangent of zeros.
        """
        jax, function = self.jax, self.function

        def pushed(*arrays: Any) -> Any:
            t, args = arrays[: len(moving)], arrays[len(moving) :]

            def moved(*those: Any) -> Any:
                leaves = jax.tree_util.tree_leaves(function(*_replaced(args, moving, those)))
                return [jax.numpy.asarray(leaf) for leaf in leaves]

            primals = [args[i] for i in moving]
            tangents = [a.astype(primal.dtype) for a, primal in zip(t, primals)]
            outs, found = jax.jvp(moved, primals, tangents)
            still = jax.dtypes.float0
            return [jax.numpy.zeros_like(out) if t.dtype == still else t for out, t in zip(outs, found)]

        return self._further(f"_jvp_{'_'.join(map(str, moving))}", pushed, len(moving) + self.inputs, outputs)

    def batched(self, batched: Sequence[bool], outputs: int | None = None) -> Map:
        """Return the map for a batch, which is the first dimension of some inputs and of all outputs."""
        whole = self.jax.vmap(self.function, in_axes=tuple(0 if b else None for b in batched))
        suffix = f"_vmap_{''.join('01'[b] for b in batched)}"
        return self._further(suffix, whole, self.inputs, outputs or self.outputs)

    def _further(self, suffix: str, function: Callable[..., Any], inputs: int, outputs: int | None) -> Map:
        key = f"{suffix}/{outputs}"
        if key not in self.further:
            self.further[key] = Map(self.origin, function, inputs, outputs, self.suffix + suffix)
        return self.further[key]

    # ---------------------------------------------------------------- its rules

    def pulled(self, tensors: Sequence[Tensor], g: Sequence[Any], needed: Sequence[bool]) -> list[Tensor | None]:
        """Return the gradients that are needed, for the cotangents of those outputs that have one."""
        moving = [i for i, need in enumerate(needed) if need and _moves(tensors[i])]
        outs = [j for j, cotangent in enumerate(g) if cotangent is not None]
        if not moving or not outs:
            return [None] * len(tensors)
        grads = self.pull(moving, outs).call(*[g[j] for j in outs], *tensors)
        found: list[Tensor | None] = [None] * len(tensors)
        for i, grad in zip(moving, grads):
            found[i] = grad
        return found

    def pushed(self, tensors: Sequence[Tensor], t: Sequence[Any], outputs: int) -> list[Tensor] | None:
        """Return the tangents of all outputs, for the tangents of those inputs that have one."""
        moving = [i for i, tangent in enumerate(t) if tangent is not None and _moves(tensors[i])]
        if not moving:
            return None
        return self.push(moving, outputs).call(*[t[i] for i in moving], *tensors)

    def spread(self, tensors: Sequence[Tensor], dims: Sequence[int | None], outputs: int) -> list[Tensor]:
        """Return the outputs for a batch, which is their first dimension."""
        led = [t if dim is None else t.movedim(dim, 0) for t, dim in zip(tensors, dims)]
        return self.batched([dim is not None for dim in dims], outputs).call(*led)

    # ---------------------------------------------------------------- as a function with a custom gradient

    def _made(self) -> Callable[..., Any]:
        origin, passed = self.origin, inspect.Parameter.POSITIONAL_OR_KEYWORD
        outputs = self.outputs
        assert outputs is not None, "only the first map does not know, and it is not called here"
        names = tuple(f"x{i}" for i in range(self.inputs))
        arguments = tuple(Argument(name, "tensor", inspect.Parameter.empty, passed) for name in names)

        def forward(*tensors: Tensor) -> Any:
            return packed(self.run(tensors)[0])

        def fake(*tensors: Tensor) -> Any:
            return packed(self.shaped(tensors)[0])

        def vjp(g: Any, *values: Any) -> dict[str, Any]:
            *tensors, needs = values
            return dict(zip(names, self.pulled(tensors, listed(g), [needs[name] for name in names])))

        def jvp(t: Any, *tensors: Tensor) -> Any:
            given = [t.get(name) for name in names] if isinstance(t, Mapping) else [t]
            found = self.pushed(tensors, given, outputs)
            return found if found is None else packed(found)

        def vmap(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
            return packed(self.spread(tensors, list(in_dims), outputs)), 0

        forward.__name__, forward.__module__ = f"{origin.border.name}{self.suffix}", origin.module
        forward.__qualname__ = f"{origin.qualname}{self.suffix}"
        returned = Tensor if outputs == 1 else GenericAlias(tuple, (Tensor,) * outputs)
        forward.__annotations__ = {**dict.fromkeys(names, Tensor), "return": returned}
        options = Options(op=None if origin.op is None else origin.op + self.suffix, vmap="none")
        definition = Definition(forward.__name__, forward, arguments, options, foreign=origin.foreign)
        rules = [
            Rule(unwatched(vjp), "vjp", (*names, "needs")),
            Rule(unwatched(jvp), "jvp", names),
            Rule(unwatched(vmap), "vmap", names),
        ]
        if options.op is not None:
            rules.append(Rule(fake, "fake", names))
        made: Callable[..., Any] = build(definition, *rules)
        return made


def unwatched(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule that torch.compile does not look into when it is around: it cannot follow JAX."""

    @functools.wraps(rule)
    def alone(*values: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return torch_compat.call_untraced(rule, values, f"{rule.__name__}: JAX cannot be compiled by torch.")
        return torch_compat.call_unwatched(rule, values) if torch_compat.compiler_watches() else rule(*values)

    return alone


def signature(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return the shapes and dtypes of tensors."""
    return tuple([(tuple(map(int, t.shape)), t.dtype) for t in tensors])


def _replaced(args: Sequence[Any], places: Sequence[int], those: Sequence[Any]) -> list[Any]:
    found = list(args)
    for i, each in zip(places, those):
        found[i] = each
    return found


def _moves(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
