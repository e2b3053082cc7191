"""One foreign function put together: what users call, its rules, and how they are attached."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring.decorator import build
from gradwright.authoring.definition import Definition, Options
from gradwright.authoring.foreign import Foreign
from gradwright.authoring.operator import is_recordable
from gradwright.authoring.rules import Rule, RuleKind, read_annotations, read_rule
from gradwright.errors import DefinitionError, RuleError
from gradwright.wrapping import shortcut
from gradwright.wrapping.batches import result_of
from gradwright.wrapping.calculus import Calculus
from gradwright.wrapping.declarations import check_options, dtype_of, operator_name, read_external, signature_of
from gradwright.wrapping.host import Host, Memory
from gradwright.wrapping.leaves import Leaves, led, listed, present, runs_at_once
from gradwright.wrapping.marshal import Marshal, residuals_of, ticket_for
from gradwright.wrapping.outputs import Declared
from gradwright.wrapping.place import Point


class ForeignFunction:
    """One foreign function: what it is called through, and where rules are attached."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        name = str(getattr(function, "__name__", type(function).__name__))
        self.name = name if name.isidentifier() else "function"
        if isinstance(function, (type, Tensor)) or not callable(function):
            raise DefinitionError(
                f"external: got {function!r}; expected a function of arrays; write `@gw.external` above its definition."
            )
        if hasattr(function, "__custom_gradient__"):
            raise DefinitionError(
                f"{name}: it is differentiable already; expected a function of arrays; use it as it is."
            )
        check_options(self.name, options)
        self.function, self.options = function, options
        self.annotations = read_annotations(function)
        self.arguments, self.places = read_external(self.name, function, options["argnums"])
        self.tensor_rules: dict[RuleKind, Rule] = {}
        """Rules on tensors, in the place of those on arrays."""
        names = tuple(a.name for a in self.arguments)
        declared = None if options["out"] is None else Declared(self.name, options["out"], names)
        self.host = Host(
            self.name,
            function,
            names,
            by_keyword=tuple(a.name for a in self.arguments if a.keyword_only),
            moving=frozenset(names[place] for place in self.places),
            on_error=options["on_error"],
            pure=options["pure"],
            writes=options["copy"] is True,
            memory=Memory(options["cache"]) if options["cache"] else None,
            declared=None if declared is None else declared.number,
            order=options["order"],
        )
        approximation = options["derivative"]
        if hasattr(approximation, "of"):  # what it learns of this function is not used for another
            approximation = approximation.of(self.name, names)
        order = options["max_order"] or 2
        self.calculus = Calculus(self.host, self.places, options["second_order"], order, approximation)
        types = options["device_types"]
        self.marshal = Marshal(
            self.calculus,
            declared,
            dtype_of(self.name, options["dtype"]),
            options["copy"],
            (types,) if isinstance(types, str) else None if types is None else tuple(types),
            options["vmap_method"],
            pool=self._pool if options["workers"] is not None else None,
        )
        self.running: Any = None
        self.module = str(getattr(function, "__module__", None) or __name__)
        self.qualname = str(getattr(function, "__qualname__", self.name))
        self.workers = options["workers"]
        if self.workers is None:
            self.workers = getattr(options["derivative"], "workers", None)
        if self.workers is not None:
            self.calculus.evaluate = self._evaluate
            if not isinstance(self.workers, str) or self.workers != "ray":  # which need not be imported yet
                self._pool()  # starts nothing, but refuses what are no workers
        self._build()

    # ---------------------------------------------------------------- the function that users call

    def _build(self) -> None:
        static = {a.name: self.annotations.get(a.name) for a in self.arguments if a.kind == "static"}
        tensors = {a.name: Tensor for a in self.arguments if a.kind == "tensor"}
        self.types = {k: v for k, v in {**static, **tensors}.items() if v is not None}
        reason = self._unrecorded()
        op = None if reason else self.options["op"] or operator_name("gradwright_external", self.module, self.qualname)
        approximation = self.calculus.approximation
        foreign = Foreign(self.function, reason, approximation)
        self.leaves = Leaves(self.marshal, self.arguments, self.types, foreign, self.module, self.qualname, op)

        forward = self._forward()
        forward.__name__, forward.__qualname__, forward.__module__ = self.name, self.qualname, self.module
        forward.__doc__ = self.function.__doc__
        forward.__signature__ = signature_of(self.arguments)  # type: ignore[attr-defined]
        forward.__annotations__ = dict(self.types)
        number = None if self.marshal.declared is None else self.marshal.declared.number
        if self.marshal.declared is not None:
            forward.__annotations__["return"] = (
                Tensor if number is None else types.GenericAlias(tuple, (Tensor,) * number)
            )
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

    def _forward(self) -> Callable[..., Any]:
        def forward(*values: Any, **keyword: Any) -> Any:
            self._refuse_checkpoint()
            values = (*values, *keyword.values())
            if torch_compat.without_numbers(values):
                return self.leaves.recorded(self.definition.options.op, values)
            if any(map(torch_compat.is_legacy_batch, values)):  # a rule on tensors called it with its cotangents
                outs = tuple(self.leaves.call("batch", values))
            else:
                outs, _ = self.marshal.one(values)
            return self.host.packed(outs)

        if self.options["pure"] and shortcut.is_short(self.marshal):
            places = [i for i, a in enumerate(self.arguments) if a.kind == "tensor"]
            return shortcut.forward_of(self.marshal, places, len(self.arguments), forward)
        return forward

    def _rules(self) -> list[Rule]:
        names = tuple(a.name for a in self.arguments)
        vjp = self.calculus.rules.get("vjp")
        keeps = vjp is not None and "residuals" in vjp.asks
        extra = ("out",) * self.calculus.wants_out + ("residuals",) * keeps
        rules = [Rule(self._vmap, "vmap", names), *self.tensor_rules.values()]
        if not self.tensor_rules:
            rules.append(self._vjp_rule(extra))
            rules.append(Rule(self._named("jvp", self._jvp), "jvp", names))
        if "residuals" in extra:
            rules.append(Rule(self._keeping, "fwd", names))
        if self.definition.options.op is not None:
            rules.append(Rule(self._fake, "fake", names))
        return rules

    def _vjp_rule(self, extra: tuple[str, ...]) -> Rule:
        names = tuple(a.name for a in self.arguments)
        long_way, own = self._vjp(extra), self.calculus.rules.get("vjp")
        short = own is not None and not own.by_keyword and not {"needs", "residuals"} & set(own.asks)
        if short and shortcut.is_short(self.marshal):
            assert own is not None
            pull = shortcut.pull_of(self.marshal, self.arguments, own, extra, long_way)
            needs = ("needs",) if len(self.places) > 1 else ()
            return Rule(self._named("vjp", pull), "vjp", (*names, *extra, *needs))
        return Rule(self._named("vjp", long_way), "vjp", (*names, *extra, "needs"))

    def _named(self, kind: RuleKind, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Return a rule that is known by the name and place of the user's own, where there is one."""
        own = self.calculus.rules.get(kind) or self.calculus.rules.get("jacobian")
        if inspect.ismethod(rule):
            rule = functools.partial(rule)
        if own is not None:
            functools.update_wrapper(rule, own.function)
        else:
            rule.__name__ = f"{self.name}_{kind}"
        return rule

    def _keeping(self, *values: Any) -> tuple[Any, Tensor]:
        self._refuse_checkpoint()
        if torch_compat.without_numbers(values):
            found = listed(self.leaves.recorded(self.definition.options.op, values))[: self.marshal.outputs]
            return self.host.packed(found), ticket_for(None)
        outs, residuals = self.marshal.one(values)
        return self.host.packed(outs), ticket_for(residuals)

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
            return dict(zip(names, present(gradients, args, self.places)))

        return rule

    def _pull(
        self, args: Sequence[Any], g: Sequence[Any], outs: Any, residuals: Any, needed: Sequence[bool]
    ) -> list[Tensor | None]:
        """Return gradients where foreign code may run right here."""
        marshal = self.marshal
        known = None if outs is None else [marshal.array(out, "out", may_copy=True) for out in outs]
        at = Point(self.host, marshal.args(args), known, residuals)
        found = self.calculus.pull(at, [marshal.array(c, "g", may_copy=True) for c in g], needed)
        return [
            None if grad is None else marshal.gradient(grad, args[place]) for grad, place in zip(found, self.places)
        ]

    def _jvp(self, t: Any, *args: Any) -> Any:
        names = [self.host.names[place] for place in self.places]
        candidates = self.definition.candidates
        given = [t] if len(candidates) == 1 else [t.get(name) for name in names]
        found = self.leaves.call("push", args, t=given)
        return self.host.packed(found)

    def _vmap(self, info: Any, in_dims: Any, *args: Any) -> Any:
        self.marshal.require_batches()
        tensors = [value for value in args if isinstance(value, Tensor)]
        if self.tensor_rules and info.batch_size and any(map(torch_compat.tracked, tensors)):
            return self._rows(info.batch_size, in_dims, args), 0
        moved = [led(v, dim, f"{self.name}: {n!r}") for v, dim, n in zip(args, in_dims, self.host.names)]
        found = self.leaves.call("batch", moved, batch=1)
        outs = [out.expand(info.batch_size, *out.shape[1:]) for out in found]
        return self.host.packed(outs), 0

    def _rows(self, size: int, in_dims: Any, args: Sequence[Any]) -> Any:
        """Return what it returns for a batch, by a call for each sample: rules on tensors are for one."""
        rows = []
        for i in range(size):
            values = [v if dim is None else v.select(dim, i) for v, dim in zip(args, in_dims)]
            keyword = {a.name: value for a, value in zip(self.arguments, values) if a.keyword_only}
            rows.append(self.call(*values[: len(values) - len(keyword)], **keyword))
        return tuple([torch.stack(parts) for parts in zip(*rows)]) if self.host.many else torch.stack(rows)

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
        self.leaves.on_tensors = self._called
        self.leaves.forget()
        self._replace_rules()
        return rule

    def _called(self, values: Sequence[Any]) -> Any:
        positional, keyword = self.definition.arranged(values)
        return self.call(*positional, **keyword)

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
        if function is not None:
            self.marshal.batched["batch"] = function
        words: tuple[tuple[str, RuleKind, Any], ...] = (("pull", "vjp", vjp), ("push", "jvp", jvp))
        for word, kind, each in words:
            if each is None:
                continue
            rule = read_rule(self.name, kind, each, self.arguments)
            if {"out", "residuals"} & set(rule.asks):
                raise DefinitionError(
                    f"{self.name}.register_vmap: its {kind} asks for {', '.join(rule.asks)}; expected names of "
                    "arguments, since nothing else is kept of a batch; compute it from them."
                )
            self.marshal.batched[word] = rule
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
            self.running = pool_of(self.workers, name=self.name, releases_gil=gil)
        return self.running

    def _evaluate(self, points: Sequence[Sequence[Any]]) -> list[Any]:
        """Run the function at many points in the pool."""
        outcomes = self._pool().map(self.function, [tuple(point) for point in points], progress=self.name)
        self.host.calls += len(points)
        pairs = zip(outcomes, points)
        return [result_of(self.calculus, "batch", outcome, Point(self.host, at), None) for outcome, at in pairs]

    def close(self) -> None:
        """End the workers that were started for it; the next batch starts them again."""
        if self.running is not None:
            self.running.close()
            self.running = None
