"""``from_jax``: a JAX function as a differentiable function of tensors."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import GenericAlias
from typing import Any, get_args, get_origin

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gradwright.authoring import trees
from gradwright.authoring.decorator import build
from gradwright.authoring.definition import Definition, Options
from gradwright.authoring.foreign import Foreign
from gradwright.authoring.operator import is_recordable
from gradwright.authoring.rules import Argument, ArgumentKind, Rule, read_annotations, read_arguments
from gradwright.authoring.rules import kind_of as kind_of_annotation
from gradwright.errors import ArgumentError, DefinitionError, OptionError, kind_of
from gradwright.wrapping.declarations import argument_named, operator_name, signature_of
from gradwright.wrapping.jax_arrays import Border
from gradwright.wrapping.jax_maps import Map, Origin, signature, unwatched

_COMPILED = 256
"""For how many different constants compiled code is kept."""
_RECORDED = (int, float, bool, str)


def from_jax(
    function: Callable[..., Any] | None = None,
    /,
    *,
    argnums: int | str | Sequence[int | str] | None = None,
    x64: bool = True,
    out: Any = None,
    jit: bool = True,
    op: str | None = None,
) -> Any:
    """Make a JAX function a differentiable function of tensors: a decorator, and a function of a function.

    It gets JAX arrays for tensors, wherever they are in its arguments (lists, tuples, dicts), and returns arrays in
    such containers. Both directions share memory. Everything that is not a tensor is a constant, which is compiled in:
    what changes from call to call should be a tensor.

    Its derivatives are those of JAX, of any order and in any mode: ``torch.autograd``, ``torch.func``, forward mode and
    ``vmap`` (by ``jax.vmap``), nested in any way. Nothing but the arguments is kept for the backward, which runs the
    function again, as under ``torch.utils.checkpoint``. Under ``torch.compile`` and ``torch.export`` it is an operator,
    if it is known what it returns and its arguments are tensors and annotated constants.

    Arguments:
        function: of arrays and constants.
        argnums: positions or names of the arguments that have a derivative; by default all tensors of floating dtype.
        x64: 64 bits where an argument has them, whatever JAX's own setting is. False: as JAX by default; float64 is
            then refused, and int64 handed over as int32.
        out: what it returns, where it has no such annotation: ``Tensor``, or ``tuple[Tensor, Tensor]``; needed for
            ``torch.compile(fullgraph=True)`` and export.
        jit: compile it, once for each shape. False: for a function whose course depends on the values of arrays.
        op: ``"namespace::name"`` of its operator in compiled and exported code; by default made of module and name.

    Raises:
        DefinitionError: the function cannot be used as it is.
        MissingDependencyError: JAX is not installed.

    Example:
        >>> import jax.numpy as jnp, torch, gradwright as gw
        >>> @gw.from_jax
        ... def energy(params, x):
        ...     return jnp.sum(jnp.tanh(params["w"] * x) ** 2)
        >>> w = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
        >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64)
        >>> torch.autograd.grad(energy({"w": w}, x), w)
        (tensor([0.7269, 0.2724], dtype=torch.float64),)
        >>> torch.func.hessian(energy, argnums=1)({"w": w.detach()}, x).diagonal()
        tensor([ 0.1413, -0.2527], dtype=torch.float64)
    """
    options = {"argnums": argnums, "x64": x64, "out": out, "jit": jit, "op": op}
    if function is None:
        return lambda function: _FromJax(function, **options).call
    return _FromJax(function, **options).call


class _FromJax:
    """One JAX function, and the maps that it was compiled to."""

    def __init__(self, function: Any, *, argnums: Any, x64: bool, out: Any, jit: bool, op: Any) -> None:
        name = str(getattr(function, "__name__", type(function).__name__))
        self.name = name if name.isidentifier() else "function"
        if not callable(function) or isinstance(function, type):
            raise DefinitionError(
                f"from_jax: got {function!r}; expected a function of JAX arrays; write `@gw.from_jax` above its "
                "definition."
            )
        if hasattr(function, "__custom_gradient__"):
            raise DefinitionError(f"{name}: it takes tensors already; expected a function of JAX arrays.")
        for option, value in (("x64", x64), ("jit", jit)):
            if not isinstance(value, bool):
                raise OptionError(f"{self.name}: {option} is {value!r}; expected True or False.")
        self.function, self.jit = function, jit
        self.border = Border(self.name, x64)
        self.tree = self.border.jax.tree_util
        self.annotations = read_annotations(function)
        self.arguments = self._read()
        self.maps: OrderedDict[Any, Map] = OrderedDict()
        module = str(getattr(function, "__module__", None) or __name__)
        qualname = str(getattr(function, "__qualname__", self.name))
        returns = self._returns(out)
        reason = self._unrecorded(returns)
        chosen = None if reason else op or operator_name("gradwright_jax", module, qualname)
        self.origin = Origin(self.border, jit, Foreign(function, reason), module, qualname, chosen)

        def forward(*values: Any, **keyword: Any) -> Any:
            given = self._taken((*values, *keyword.values()))
            outs, tree = given.map.run(given.tensors)
            return self.tree.tree_unflatten(tree, outs)

        forward.__name__, forward.__qualname__, forward.__module__ = self.name, qualname, module
        forward.__doc__ = function.__doc__
        forward.__signature__ = signature_of(self.arguments)  # type: ignore[attr-defined]
        static = {a.name: self._constant(a) for a in self.arguments if a.kind == "static"}
        forward.__annotations__ = {key: value for key, value in static.items() if value is not None}
        if returns is not None:
            forward.__annotations__["return"] = returns
        options_ = Options(op=chosen, vmap="none", nondiff=self._still(argnums))
        self.definition = Definition(self.name, forward, self.arguments, options_, foreign=self.origin.foreign)
        self.call = build(self.definition, *self._rules())
        for kind in ("vjp", "jvp", "vmap", "fwd", "fake"):
            del self.call.__dict__[kind]  # they are JAX's
        self.call.__dict__.update(host=function)

    # ---------------------------------------------------------------- reading what was declared

    def _read(self) -> tuple[Argument, ...]:
        """Return the arguments: what is no constant by its annotation is looked at in each call.

        An argument by keyword with a number or a text as default is a constant.
        """
        found = []
        for a in read_arguments(self.name, self.function, tell=_kind):
            by_default = a.name not in self.annotations and a.keyword_only and type(a.default) in _RECORDED
            found.append(Argument(a.name, "static" if by_default else a.kind, a.default, a.passed))
        return tuple(found)

    def _constant(self, a: Argument) -> Any:
        """Return the type of a constant, None where it has none."""
        return self.annotations.get(a.name, type(a.default) if type(a.default) in _RECORDED else None)

    def _returns(self, out: Any) -> Any:
        """Return the annotation that says what comes out, None where nothing says it."""
        said = self.annotations.get("return") if out is None else out
        parts = get_args(said) if get_origin(said) is tuple else (said,)
        if parts and all(map(_is_array, parts)):
            return GenericAlias(tuple, (Tensor,) * len(parts)) if get_origin(said) is tuple else Tensor
        if out is not None:
            raise OptionError(
                f"{self.name}: out is {out!r}; expected what it returns: torch.Tensor for one array, "
                "tuple[torch.Tensor, torch.Tensor] for a tuple of two."
            )
        return None

    def _still(self, argnums: Any) -> tuple[str, ...]:
        """Return the names of the arguments that refuse a gradient."""
        if argnums is None:
            return ()
        listed = [argnums] if isinstance(argnums, (int, str)) else list(argnums)
        names = [a.name for a in self.arguments]
        chosen = {argument_named(self.name, names, each) for each in listed}
        return tuple(a.name for a in self.arguments if a.kind != "static" and a.name not in chosen)

    def _unrecorded(self, returns: Any) -> str:
        """Say why compiled code cannot keep it; empty where it can."""
        end = "leave fullgraph=True away, or call it outside of what is compiled or exported"
        if not self.jit:
            return f"{self.name}: it is declared with jit=False, so that nothing tells what it returns; {end}."
        if returns is None:
            return (
                f"{self.name}: torch.compile and torch.export must know how many arrays it returns; expected a "
                f"declaration; write `-> jax.Array` or out=torch.Tensor, or {end}."
            )
        for a in self.arguments:
            if a.kind == "static" and not is_recordable(self._constant(a)):
                return (
                    f"{self.name}: torch.compile and torch.export must know the type of the constant {a.name!r}; "
                    f"expected an annotation with int, float, bool, str or a tuple of numbers; or {end}."
                )
        return ""

    # ---------------------------------------------------------------- taking calls apart

    def _taken(self, values: Sequence[Any]) -> _Given:
        """Return the tensors in the values of all arguments, and the map that takes them."""
        leaves, tree = self.tree.tree_flatten(list(values))
        tensors: list[Tensor] = []
        places: list[int] = []
        constants: list[Any] = []
        for i, leaf in enumerate(leaves):
            found = _tensor_of(leaf)
            if found is not None:
                tensors.append(found)
                places.append(i)
            else:
                constants.append((i, type(leaf), leaf))
        self._require_seen(values, leaves)
        key = (tree, tuple(constants))
        try:
            known = self.maps.get(key)
        except TypeError:
            odd = next(leaf for _, _, leaf in constants if not _hashable(leaf))
            raise ArgumentError(
                f"{self.name}: got {kind_of(odd)}, which is neither a container that JAX takes apart nor a constant "
                "that can be compared; expected tensors, lists, tuples, dicts and constants; register it with JAX "
                "(jax.tree_util.register_dataclass), or pass its parts."
            ) from None
        if known is None:
            known = self._map(tree, {i: leaf for i, _, leaf in constants}, len(tensors), key)
            self.maps[key] = known
            if len(self.maps) > _COMPILED:
                self.maps.popitem(last=False)
        return _Given(known, tensors, places, tree)

    def _map(self, tree: Any, constants: Mapping[int, Any], inputs: int, key: Any) -> Map:
        total = tree.num_leaves

        def flat(*arrays: Any) -> Any:
            left = iter(arrays)
            leaves = [constants[i] if i in constants else next(left) for i in range(total)]
            positional, keyword = self.definition.arranged(self.tree.tree_unflatten(tree, leaves))
            return self.function(*positional, **keyword)

        digest = hashlib.blake2b(repr(key).encode(), digest_size=6).hexdigest()
        return Map(self.origin, flat, inputs, None, f"_{digest}")

    def _require_seen(self, values: Sequence[Any], leaves: Iterable[Any]) -> None:
        """Refuse tensors in containers that JAX takes apart and we do not, or the other way round."""
        ours = {id(tensor) for value in values for tensor in trees.tensors_in(value)}
        theirs = {id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        if ours != theirs:
            raise ArgumentError(
                f"{self.name}: a tensor is in a container of a kind that only {'JAX' if theirs - ours else 'torch'} "
                "takes apart, so that it would get no gradient; expected lists, tuples and dicts, or dataclasses that "
                "are registered with jax.tree_util.register_dataclass."
            )

    # ---------------------------------------------------------------- rules

    def _rules(self) -> list[Rule]:
        names = tuple(a.name for a in self.arguments)
        rules = [
            Rule(unwatched(self._vjp), "vjp", (*names, "needs")),
            Rule(unwatched(self._jvp), "jvp", names),
            Rule(unwatched(self._vmap), "vmap", names),
        ]
        if self.origin.op is not None:
            rules.append(Rule(self._fake, "fake", names))
        return rules

    def _vjp(self, g: Any, *values: Any) -> dict[str, Any]:
        *values, needs = values  # type: ignore[assignment]
        given = self._taken(values)
        cotangents = self._tree(given).flatten_up_to(g)
        needed = given.of_leaves(needs[a.name] for a in self.arguments)
        grads = given.map.pulled(given.tensors, cotangents, needed)
        return dict(zip((a.name for a in self.arguments), given.put_back(grads)))

    def _jvp(self, t: Any, *values: Any) -> Any:
        given = self._taken(values)
        only = len(self.definition.candidates) == 1
        names = [a.name for a in self.arguments]
        by_name = {names[self.definition.candidates[0]]: t} if only else t
        tree = self._tree(given)
        found = given.map.pushed(given.tensors, given.of_parts([by_name.get(n) for n in names]), tree.num_leaves)
        return None if found is None else self.tree.tree_unflatten(tree, found)

    def _vmap(self, info: Any, in_dims: Any, *values: Any) -> Any:
        given = self._taken(values)
        dims = given.of_parts(list(in_dims))
        bare = [t if d is None else t.new_empty(t.shape[:d] + t.shape[d + 1 :]) for t, d in zip(given.tensors, dims)]
        tree = self._tree(given, bare)
        return self.tree.tree_unflatten(tree, given.map.spread(given.tensors, dims, tree.num_leaves)), 0

    def _fake(self, *values: Any) -> Any:
        given = self._taken(values)
        outs, tree = given.map.shaped(given.tensors)
        return self.tree.tree_unflatten(tree, outs)

    def _tree(self, given: _Given, tensors: Sequence[Tensor] | None = None) -> Any:
        """Return how the output of a call is built."""
        tensors = given.tensors if tensors is None else tensors
        known = given.map.trees.get(signature(tensors))
        if known is None:
            given.map.shaped(tensors)
            known = given.map.trees[signature(tensors)]
        return known


class _Given:
    """The values of one call: the tensors in them, and where these are."""

    def __init__(self, map_: Map, tensors: list[Tensor], places: list[int], tree: Any) -> None:
        self.map, self.tensors, self.places, self.tree = map_, tensors, places, tree

    def of_leaves(self, flags: Iterable[Any]) -> list[Any]:
        """Return what was said of each argument for each of the tensors."""
        spread = [flag for part, flag in zip(self.tree.children(), flags) for _ in range(part.num_leaves)]
        return [spread[i] for i in self.places]

    def of_parts(self, parts: Sequence[Any]) -> list[Any]:
        """Return what containers built like the arguments, or None, have for each of the tensors."""
        leaves: list[Any] = []
        for built, part in zip(self.tree.children(), parts):
            leaves += [None] * built.num_leaves if part is None else built.flatten_up_to(part)
        return [leaves[i] for i in self.places]

    def put_back(self, found: Sequence[Any]) -> list[Any]:
        """Return values for the tensors in containers built like the arguments."""
        leaves = [None] * self.tree.num_leaves
        for i, each in zip(self.places, found):
            leaves[i] = each
        return list(self.tree.unflatten(leaves))


def _tensor_of(leaf: Any) -> Tensor | None:
    """Return a tensor or an array as a tensor, None for a constant."""
    if isinstance(leaf, Tensor):
        return leaf
    if hasattr(leaf, "__dlpack__") and hasattr(leaf, "shape"):
        return torch.tensor(leaf) if type(leaf).__module__ == "numpy" else from_dlpack(leaf)
    return None


def _kind(annotation: Any) -> ArgumentKind:
    """Return ``static`` for a constant and else ``unknown``: arrays may come in containers, and containers alone."""
    return "static" if kind_of_annotation(annotation) == "static" and not _is_array(annotation) else "unknown"


def _is_array(annotation: Any) -> bool:
    """Tell whether an annotation speaks of one array, of torch, JAX or NumPy."""
    plain = get_origin(annotation) or annotation
    name = plain if isinstance(plain, str) else getattr(plain, "__name__", "")
    return name.rpartition(".")[2] in ("Tensor", "Array", "ndarray")


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
