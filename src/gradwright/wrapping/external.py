"""``external``: a function of arrays, which autograd cannot see, as a differentiable function of tensors."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.decorator import build
from gradwright.authoring.definition import Definition, Foreign, Options
from gradwright.authoring.operator import is_recordable
from gradwright.authoring.rules import Argument, Rule, RuleKind, kind_of, read_annotations, read_arguments, read_rule
from gradwright.errors import DefinitionError, OptionError, RuleError, did_you_mean, unknown_choice
from gradwright.wrapping.arrays import DTYPES, np
from gradwright.wrapping.batches import VMAP_METHODS
from gradwright.wrapping.calculus import Calculus, Point, SecondOrder
from gradwright.wrapping.host import Host, Memory
from gradwright.wrapping.leaves import Leaves, led, runs_at_once
from gradwright.wrapping.marshal import Marshal, residuals_of
from gradwright.wrapping.outputs import Declared

_LOCAL = itertools.count(1)
"""Functions inside of functions share their qualified names."""
_CHOICES: dict[str, tuple[Any, ...]] = {
    "order": ("K", "C", "F"),
    "copy": (None, True, False),
    "vmap_method": (*VMAP_METHODS, None),
    "second_order": get_args(SecondOrder),
    "max_order": (None, 1, 2),
}


def external(
    function: Callable[..., Any] | None = None,
    /,
    *,
    argnums: int | str | Sequence[int | str] | None = None,
    out: Any = None,
    derivative: Any = None,
    dtype: torch.dtype | str | None = None,
    order: str = "K",
    copy: bool | None = None,
    device_types: str | Sequence[str] | None = None,
    vmap_method: str | None = "sequential",
    workers: Any = None,
    on_error: Any = "raise",
    max_order: int | None = None,
    second_order: SecondOrder = "error",
    cache: int = 0,
    pure: bool = True,
    releases_gil: bool = False,
    op: str | None = None,
) -> Any:
    """Make a function of arrays a differentiable function of tensors: a decorator, and a function of a function.

    The function may be anything that Python can call: NumPy, SciPy, a compiled extension, a simulator. It gets an array
    for every tensor and everything else as it is, and returns an array or a number, or a tuple of them. Its derivative
    is attached as rules on arrays, which ask by name for what they need, as those of ``gw.custom_gradient`` do:

    - ``register_vjp``: ``rule(g, ...)`` returns J^T g for each differentiable argument (a dict by name, or a tuple);
    - ``register_jvp``: ``rule(t, ...)`` returns J t;
    - ``register_jacobian``: ``rule(...)`` returns J, of the shape of the output and then that of the argument;
    - ``register_hvp``: ``rule(g, t, ...)`` returns the gradient of ``<g, J t>``, for second derivatives;
    - ``register_vmap``: the function for a whole batch.

    One of the first three is enough, or ``derivative=gw.fd()``. Under ``torch.func``, forward mode, ``vmap``,
    ``torch.compile`` and ``torch.export`` the derivative is the same, or an error says what is missing.

    Arguments:
        function: of arrays and constants.
        argnums: positions or names of the differentiable arguments; by default all that are not annotated as constants
            (``int``, ``str``, ...) and have no constant as default.
        out: what it returns: ``gw.like(0)``, ``gw.spec(shape, dtype)``, a tuple of these, or a function of the same
            arguments that returns empty tensors. It is needed for ``torch.compile(fullgraph=True)`` and export, and
            every result is compared with it.
        derivative: ``gw.fd(...)`` or ``gw.spsa(...)`` where there are no rules.
        dtype: in which it computes: floating arguments are cast to it, results and gradients back. None: as they come
            (bfloat16, which NumPy does not have, as float32).
        order: memory order of its arguments: ``"C"``, ``"F"``, or ``"K"`` for as they are.
        copy: None: arguments share memory with the tensors, read-only, where they can; True: it gets copies, to write
            into; False: an argument that had to be copied is an error.
        device_types: of the tensors that are accepted; None: any, through the memory of the CPU.
        vmap_method: under ``vmap``: ``"sequential"``, one call a sample; ``"broadcast_all"``, one call, with the batch
            as leading dimension of every array, which rules then get as well; ``"expand_dims"``, the same with size 1
            where an argument is not batched; ``"workers"``, as ``workers`` says; None: refused.
        workers: runs the samples of a batch, and the points of ``gw.fd``, in parallel: a number of processes (of
            threads with ``releases_gil``), an executor, a ``joblib.Parallel``, a Dask client or a Ray actor pool.
        on_error: for a sample that raises: ``"raise"``, ``"nan"`` for its result, or ``f(error, index, inputs)`` that
            returns what takes its place.
        max_order: how many derivatives are promised: 1 refuses a second even where there is a rule for it.
        second_order: ``"differences"`` takes second derivatives as differences of first ones, where there is no rule.
        cache: how many results are kept, found by the values of the arguments.
        pure: False for a function that returns something else each time or has effects: it is never called more often
            than asked for, always in order, and refuses to be compiled or checkpointed.
        releases_gil: whether several threads of it run at once.
        op: ``"namespace::name"`` of its operator in compiled and exported code; by default made of module and name.

    Raises:
        DefinitionError: the function or a declaration cannot be used as it is.
        OptionError: an option has a value that is not known.

    Example:
        >>> import numpy as np, torch, gradwright as gw
        >>> @gw.external(out=gw.like("x"))
        ... def softplus(x):
        ...     return np.logaddexp(x, 0.0)
        >>> @softplus.register_vjp
        ... def softplus_vjp(g, x):
        ...     return g / (1 + np.exp(-x))
        >>> x = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
        >>> torch.autograd.grad(softplus(x).sum(), x)
        (tensor([0.5000, 0.7311], dtype=torch.float64),)
        >>> torch.func.jacfwd(softplus)(x.detach()).diagonal()
        tensor([0.5000, 0.7311], dtype=torch.float64)
    """
    options = dict(locals())
    options.pop("function")
    if function is None:
        return lambda function: _External(function, **options).call
    return _External(function, **options).call


class _External:
    """One foreign function: what it is called through, and where rules are attached."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        name = str(getattr(function, "__name__", type(function).__name__))
        self.name = name if name.isidentifier() else "function"
        if not callable(function) or isinstance(function, type) or isinstance(function, Tensor):
            raise DefinitionError(
                f"external: got {function!r}; expected a function of arrays; write `@gw.external` above its definition."
            )
        if hasattr(function, "__custom_gradient__"):
            raise DefinitionError(
                f"{name}: it is differentiable already; expected a function of arrays; use it as it is."
            )
        _check(self.name, options)
        self.function, self.options = function, options
        self.annotations = read_annotations(function)
        self.arguments, self.places = read_external(self.name, function, options["argnums"])
        self.tensor_rules: dict[RuleKind, Rule] = {}
        """Rules on tensors, in the place of those on arrays."""
        names = tuple(a.name for a in self.arguments)
        memory = Memory(options["cache"]) if options["cache"] else None
        keyword = tuple(a.name for a in self.arguments if a.keyword_only)
        writes = options["copy"] is True
        self.host = Host(self.name, function, names, keyword, options["on_error"], options["pure"], writes, 0, memory)
        self.calculus = Calculus(
            self.host, self.places, options["second_order"], options["max_order"] or 2, options["derivative"]
        )
        declared = None if options["out"] is None else Declared(self.name, options["out"], names)
        types = options["device_types"]
        self.marshal = Marshal(
            self.calculus,
            declared,
            _dtype(self.name, options["dtype"]),
            options["order"],
            options["copy"],
            (types,) if isinstance(types, str) else None if types is None else tuple(types),
            options["vmap_method"],
            pool=self._pool if options["workers"] is not None else None,
        )
        self.running: Any = None
        self.module = str(getattr(function, "__module__", None) or __name__)
        self.qualname = str(getattr(function, "__qualname__", self.name))
        if options["workers"] is not None:
            self.calculus.evaluate = self._evaluate
        self._build()

    # ---------------------------------------------------------------- the function that users call

    def _build(self) -> None:
        static = {a.name: self.annotations.get(a.name) for a in self.arguments if a.kind == "static"}
        tensors = {a.name: Tensor for a in self.arguments if a.kind == "tensor"}
        self.types = {k: v for k, v in {**static, **tensors}.items() if v is not None}
        reason = self._unrecorded()
        op = None if reason else self.options["op"] or self._operator()
        approximation = self.options["derivative"]
        accuracy = 0.0 if approximation is None else float(approximation.accuracy)
        foreign = Foreign(self.function, reason, accuracy)
        self.leaves = Leaves(self.marshal, self.arguments, self.types, foreign, self.module, self.qualname, op)

        def forward(*values: Any) -> Any:
            self._refuse_checkpoint()
            outs, _ = self.marshal.one(values)
            return outs[0] if self.host.number is None else outs

        forward.__name__, forward.__qualname__, forward.__module__ = self.name, self.qualname, self.module
        forward.__doc__ = self.function.__doc__
        forward.__annotations__ = dict(self.types)
        number = None if self.marshal.declared is None else self.marshal.declared.number
        if self.marshal.declared is not None:
            forward.__annotations__["return"] = Tensor if number is None else tuple[(Tensor,) * int(number)]
        self.forward = forward
        still = [a for i, a in enumerate(self.arguments) if i not in self.places and a.kind != "static"]
        options = Options(op=op, vmap="none", nondiff=tuple(a.name for a in still))
        self.definition = Definition(self.name, forward, self.arguments, options, foreign=foreign)
        self.call = build(self.definition, *self._rules())
        kinds: tuple[RuleKind, ...] = ("vjp", "jvp", "jacobian", "hvp")
        on_tensors: tuple[RuleKind, ...] = ("vjp", "jvp")
        self.call.__dict__.update(
            {kind: functools.partial(self._attach, kind) for kind in on_tensors},
        )
        for kind in ("vmap", "fwd", "fake"):
            del self.call.__dict__[kind]  # they are made of what was declared
        self.call.__dict__.update(
            {f"register_{kind}": functools.partial(self._register, kind) for kind in kinds},
            register_vmap=self._register_vmap,
            host=self.function,
            external=self,
            close=self.close,
        )

    def _rules(self) -> list[Rule]:
        names = tuple(a.name for a in self.arguments)
        vjp = self.calculus.rules.get("vjp")
        asks = set() if vjp is None else set(vjp.asks)
        extra = tuple(word for word in ("out", "residuals") if word in asks)
        rules = [Rule(self._vmap, "vmap", names), *self.tensor_rules.values()]
        if not self.tensor_rules:
            rules.append(Rule(self._named("vjp", self._vjp(extra)), "vjp", (*names, *extra, "needs")))
            rules.append(Rule(self._named("jvp", self._jvp), "jvp", names))
        if "residuals" in extra:
            rules.append(Rule(self._keeping, "fwd", names))
        if self.definition.options.op is not None:
            rules.append(Rule(self._fake, "fake", names))
        return rules

    def _named(self, kind: RuleKind, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Return a rule that is known by the name and place of the user's own, where there is one."""
        own = self.calculus.rules.get(kind) or self.calculus.rules.get("jacobian")

        def named(*values: Any) -> Any:
            return rule(*values)

        if own is not None:
            functools.update_wrapper(named, own.function)
        else:
            named.__name__ = f"{self.name}_{kind}"
        return named

    def _keeping(self, *values: Any) -> tuple[Any, Tensor]:
        self._refuse_checkpoint()
        outs, residuals = self.marshal.one(values)
        ticket = torch.empty(0, dtype=torch.uint8)
        ticket.residuals = residuals  # type: ignore[attr-defined]
        return (outs[0] if self.host.number is None else outs), ticket

    def _fake(self, *values: Any) -> Any:
        assert self.marshal.declared is not None
        outs = self.marshal.declared.empty(dict(zip(self.host.names, values)))
        return outs[0] if self.marshal.declared.number is None else outs

    def _vjp(self, extra: Sequence[str]) -> Callable[..., Any]:
        number = len(self.arguments)
        names = [self.host.names[place] for place in self.places]

        def rule(g: Any, *values: Any) -> dict[str, Any]:
            args, needs = values[:number], values[-1]
            more = dict(zip(extra, values[number:]))
            cotangents = list(g) if isinstance(g, tuple) else [g]
            needed = [needs[name] for name in names]
            outs = more.get("out")
            outs = list(outs) if isinstance(outs, tuple) else None if outs is None else [outs]
            ticket = more.get("residuals")
            if runs_at_once(cotangents):
                gradients = self._pull(args, cotangents, outs, residuals_of(ticket), needed)
            else:
                gradients = self.leaves.call("pull", args, g=cotangents, outs=outs, kept=ticket, needed=needed)
            return dict(zip(names, gradients))

        return rule

    def _pull(
        self, args: Sequence[Any], g: Sequence[Any], outs: Any, residuals: Any, needed: Sequence[bool]
    ) -> list[Tensor | None]:
        """Return gradients where foreign code may run right here."""
        marshal = self.marshal
        known = None if outs is None else [marshal.array(out, "out") for out in outs]
        at = Point(self.host, marshal.args(args), known, residuals)
        found = self.calculus.pull(at, [marshal.array(c, "g") for c in g], needed)
        return [
            None if grad is None else marshal.gradient(grad, args[place]) for grad, place in zip(found, self.places)
        ]

    def _jvp(self, t: Any, *args: Any) -> Any:
        names = [self.host.names[place] for place in self.places]
        candidates = self.definition.candidates
        given = [t] if len(candidates) == 1 else [t.get(name) for name in names]
        found = self.leaves.call("push", args, t=given)
        return found[0] if self.host.number is None else tuple(found)

    def _vmap(self, info: Any, in_dims: Any, *args: Any) -> Any:
        self.marshal.require_batches()
        found = self.leaves.call("batch", [led(v, dim) for v, dim in zip(args, in_dims)], batch=1)
        outs = [out.expand(info.batch_size, *out.shape[1:]) for out in found]
        return (outs[0] if self._single() else tuple(outs)), 0

    def _single(self) -> bool:
        """Tell whether it returns one output, and no tuple."""
        declared = self.marshal.declared
        return (self.host.number in (None, -1)) if declared is None else declared.number is None

    # ---------------------------------------------------------------- rules

    def _register(self, kind: RuleKind, rule: Any) -> Any:
        if not callable(rule):
            raise DefinitionError(
                f"{self.name}.register_{kind}: got {rule!r}; expected a function; write `@{self.name}.register_{kind}` "
                "above its definition."
            )
        arguments = self.arguments
        self.calculus.rules[kind] = read_rule(self.name, kind, rule, arguments)
        self.leaves.forget()
        self._replace_rules()
        return rule

    def _attach(self, kind: RuleKind, rule: Any) -> Any:
        """Attach a rule on tensors, which may call further functions and be differentiated again."""
        self.tensor_rules[kind] = read_rule(self.name, kind, rule, self.arguments)
        self._replace_rules()
        return rule

    def _replace_rules(self) -> None:
        self.definition.rules.clear()
        self.call.__gradwright_add__(*self._rules())

    def _register_vmap(self, function: Any = None, *, vjp: Any = None, jvp: Any = None) -> Any:
        """Attach the function for batches, and its derivatives for batches."""
        if function is None and vjp is None and jvp is None:
            raise DefinitionError(
                f"{self.name}.register_vmap: got nothing; expected a function of the same arguments, whose arrays have "
                "the batch as first dimension; write it above its definition."
            )
        given = {"batch": function, "pull": vjp, "push": jvp}
        self.marshal.batched.update({key: each for key, each in given.items() if each is not None})
        return function

    # ---------------------------------------------------------------- compile, export, checkpoint

    def _unrecorded(self) -> str:
        """Say why compiled code cannot keep it; empty where it can."""
        end = "leave fullgraph=True away, or call it outside of what is compiled or exported"
        if not self.options["pure"]:
            return (
                f"{self.name}: it is declared with pure=False, and compiled code may call it more or less often; {end}."
            )
        if self.marshal.declared is None:
            return (
                f"{self.name}: torch.compile and torch.export cannot know what it returns; expected a declaration; "
                f"write out=gw.like(0) or out=gw.spec(shape, dtype), or {end}."
            )
        for argument in self.arguments:
            known = argument.kind in ("tensor", "optional") or is_recordable(self.annotations.get(argument.name))
            constant = argument.kind == "tensor" and argument.default is not inspect.Parameter.empty
            if not known or constant:
                return (
                    f"{self.name}: torch.compile and torch.export must know the type of the argument "
                    f"{argument.name!r}; expected an annotation with int, float, bool, str or a tuple of numbers, or "
                    f"its name in argnums; or {end}."
                )
        return ""

    def _operator(self) -> str:
        module = re.sub(r"\W", "_", self.module)
        name = re.sub(r"\W", "_", self.qualname)
        if "<" in self.qualname:
            name = f"{name}_{next(_LOCAL)}"
        return f"gradwright_external::{module}_{name}"

    def _refuse_checkpoint(self) -> None:
        if not self.options["pure"] and torch_compat.checkpointing():
            raise RuleError(
                f"{self.name}: it is declared with pure=False, and torch.utils.checkpoint would run it a second time "
                "in the backward; expected a call outside of the checkpoint; move it out."
            )

    # ---------------------------------------------------------------- workers

    def _pool(self) -> Any:
        if self.running is None:
            from gradwright.wrapping.workers import pool_of  # here, because only this needs it

            gil = self.options["releases_gil"]
            self.running = pool_of(self.options["workers"], name=self.name, releases_gil=gil)
        return self.running

    def _evaluate(self, points: Sequence[Sequence[Any]]) -> list[Any]:
        """Run the function at many points in the pool."""
        outcomes = self._pool().map(self.function, [tuple(point) for point in points], progress=self.name)
        self.host.calls += len(points)
        found = []
        for outcome, point in zip(outcomes, points):
            if not hasattr(outcome, "value"):
                raise self.host.said(f"{outcome.type}: {outcome.message}", outcome.traceback, point)
            found.append(self.host.read(outcome.value, point)[0])
        return found

    def close(self) -> None:
        """End the workers that were started for it; the next batch starts them again."""
        if self.running is not None:
            self.running.close()
            self.running = None


# -------------------------------------------------------------------- reading what was declared


def _check(name: str, options: dict[str, Any]) -> None:
    for option, known in _CHOICES.items():
        if not any(options[option] is each or (each is not None and options[option] == each) for each in known):
            raise unknown_choice(f"{name}: {option}", options[option], tuple(map(str, known)))
    if options["on_error"] not in ("raise", "nan") and not callable(options["on_error"]):
        raise unknown_choice(f"{name}: on_error", options["on_error"], ("'raise'", "'nan'", "a function"))
    size = options["cache"]
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise OptionError(f"{name}: cache is {size!r}; expected how many results are kept; write cache=16.")
    if not options["pure"] and (size or options["workers"] is not None):
        which = "cache" if size else "workers"
        raise OptionError(
            f"{name}: pure=False and {which} were declared, but it may only be run in order and as often as asked for; "
            "expected one of the two; drop one."
        )
    if options["vmap_method"] == "workers" and options["workers"] is None:
        raise OptionError(f"{name}: vmap_method='workers' without workers; expected some; write workers=4.")
    derivative = options["derivative"]
    if derivative is not None and not (hasattr(derivative, "vjp") and hasattr(derivative, "accuracy")):
        raise OptionError(f"{name}: derivative is {derivative!r}; expected gw.fd(...) or gw.spsa(...).")


def _dtype(name: str, dtype: Any) -> torch.dtype | None:
    """Return the dtype that was named."""
    found = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
    floating = isinstance(found, torch.dtype) and (found.is_floating_point or found.is_complex) and found in DTYPES
    if found is not None and not floating:
        known = [str(d).removeprefix("torch.") for d in DTYPES if d.is_floating_point]
        raise OptionError(f"{name}: dtype is {dtype!r}; expected one in which NumPy computes, {', '.join(known)}.")
    return found  # type: ignore[no-any-return]


def read_external(
    name: str, function: Callable[..., Any], argnums: Any
) -> tuple[tuple[Argument, ...], tuple[int, ...]]:
    """Return the arguments of a foreign function, and the positions of those that have a derivative.

    Raises:
        DefinitionError: its signature cannot be read, or ``argnums`` does not fit it.
    """
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        read = _unsigned(name, function, argnums)
    else:
        read = read_arguments(name, function)
    annotations = read_annotations(function)
    names = [a.name for a in read]
    if argnums is None:
        chosen = {a.name for a in read if _may_move(a, annotations.get(a.name))}
        if not chosen:
            raise DefinitionError(
                f"{name}: none of its arguments ({', '.join(names)}) can have a derivative by their annotations and "
                "defaults; expected one that does; name it: argnums='x'."
            )
    else:
        listed = [argnums] if isinstance(argnums, (int, str)) else list(argnums)
        chosen = {_argument(name, names, each) for each in listed}
        if not chosen:
            raise DefinitionError(f"{name}: argnums is empty; expected the differentiable arguments: argnums=(0,).")
    found = []
    for a in read:
        annotation = annotations.get(a.name)
        kind = kind_of(annotation)
        tensor = a.name in chosen or kind in ("tensor", "optional") or _is_array(annotation)
        sort: Any = "static" if kind in ("static", "tree") else "unknown"
        if tensor:
            sort = "optional" if a.default is None else "tensor"
        found.append(Argument(a.name, sort, a.default, a.passed))
    return tuple(found), tuple(i for i, a in enumerate(found) if a.name in chosen)


def _may_move(a: Argument, annotation: Any) -> bool:
    """Tell whether an argument can have a derivative, by its annotation or else by its default."""
    if a.kind in ("tensor", "optional") or _is_array(annotation):
        return True
    if a.kind in ("static", "tree"):
        return False
    return a.default is inspect.Parameter.empty or isinstance(a.default, (np.ndarray, Tensor))


def _is_array(annotation: Any) -> bool:
    """Tell whether an annotation speaks of an array: ``np.ndarray``, ``NDArray[np.float64]``, ``ArrayLike``."""
    origin = get_origin(annotation) or annotation
    if isinstance(origin, type):
        return issubclass(origin, np.ndarray)
    return "ndarray" in str(annotation) or "NDArray" in str(annotation) or "ArrayLike" in str(annotation)


def _unsigned(name: str, function: Any, argnums: Any) -> list[Argument]:
    """Return the arguments of a function whose signature Python does not know, such as a ufunc."""
    number = getattr(function, "nin", None)
    if number is None and argnums is not None:
        listed = [argnums] if isinstance(argnums, int) else list(argnums)
        number = max(listed) + 1 if listed and all(isinstance(each, int) for each in listed) else None
    if number is None:
        raise DefinitionError(
            f"{name}: Python does not know the signature of this function; expected named arguments; write a function "
            f"around it (`def {name}(x): ...`), or give the positions of its arguments: argnums=(0,)."
        )
    empty, passed = inspect.Parameter.empty, inspect.Parameter.POSITIONAL_ONLY
    return [Argument("x" if number == 1 else f"x{i}", "unknown", empty, passed) for i in range(number)]


def _argument(name: str, names: Sequence[str], which: Any) -> str:
    if isinstance(which, str) and which in names:
        return which
    if isinstance(which, int) and not isinstance(which, bool) and -len(names) <= which < len(names):
        return names[which]
    raise DefinitionError(
        f"{name}: argnums names {which!r}; expected the name or position of an argument ({', '.join(names)}); correct "
        f"it.{did_you_mean(str(which), names)}"
    )
