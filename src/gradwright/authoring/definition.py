"""What is known of one function with a custom gradient, and how its rules are run.

A :class:`Definition` holds the function, its arguments, the options and the rules. :meth:`Definition.pull` and
:meth:`Definition.push` give derivatives on tensors that were taken out of containers, by the user's rule or by one that
is derived from it. The Function classes in :mod:`~gradwright.authoring.classes` call nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring import autocast, trees
from gradwright.authoring.derive import Meta, NotLinearError, differentiable, transpose, zeros
from gradwright.authoring.foreign import Foreign
from gradwright.authoring.returns import collect, expand, fit
from gradwright.authoring.rules import Argument, Rule, RuleKind
from gradwright.authoring.seal import may_be_differentiated, seal
from gradwright.authoring.unedited import unedited
from gradwright.errors import DefinitionError, RuleError, did_you_mean, unknown_choice

T = TypeVar("T")
DoubleBackward: TypeAlias = Literal["auto", "once", "never"]
Derive: TypeAlias = Literal["derive", "none"]

_MADE_IN = ("gradwright.authoring.", "gradwright.wrapping.")
"""Where the rules are that gradwright makes for users."""

_REMEMBERED = 64
"""For how many constants it is remembered that a rule is linear: they may be others in each call."""


@dataclass(frozen=True)
class Options:
    """The options of ``custom_gradient``."""

    double_backward: DoubleBackward = "auto"
    vmap: Derive = "derive"
    forward_mode: Derive = "derive"
    symbolic_zeros: bool = False
    autocast: autocast.Policy = "replay"
    nondiff: Sequence[str] = ()
    op: str | None = None

    def check(self, name: str, arguments: Sequence[Argument]) -> None:
        """Refuse values that are not known.

        Raises:
            OptionError: an option has none of its choices.
            DefinitionError: ``nondiff`` names something that is no argument, or that never has a gradient anyway.
        """
        choices: dict[str, tuple[str, ...]] = {
            "double_backward": ("auto", "once", "never"),
            "vmap": ("derive", "none"),
            "forward_mode": ("derive", "none"),
            "autocast": ("replay", "float32", "off"),
        }
        for option, known in choices.items():
            if getattr(self, option) not in known:
                raise unknown_choice(f"{name}: {option}", getattr(self, option), known)
        if not isinstance(self.symbolic_zeros, bool):
            raise unknown_choice(f"{name}: symbolic_zeros", self.symbolic_zeros, ("True", "False"))
        if isinstance(self.nondiff, str):
            raise DefinitionError(
                f"{name}: nondiff is a string; expected a tuple of names; write nondiff=({self.nondiff!r},)."
            )
        kinds = {argument.name: argument.kind for argument in arguments}
        for entry in self.nondiff:
            if entry not in kinds:
                raise DefinitionError(
                    f"{name}: nondiff names {entry!r}; expected one of {', '.join(kinds)}; correct the name."
                    f"{did_you_mean(entry, kinds)}"
                )
            if kinds[entry] == "static":
                raise DefinitionError(
                    f"{name}: nondiff names {entry!r}, whose annotation already says that it is no tensor; nondiff is "
                    "for tensors that must refuse a gradient; leave it away."
                )


@dataclass
class State:
    """What a rule can be given: what was read of one call, and how it was built."""

    structures: Sequence[trees.Structure]
    """One for each argument."""
    metas: Sequence[Meta]
    """One for each tensor among the arguments."""
    out_structure: trees.Structure
    out_metas: Sequence[Meta]
    values: dict[str, Any]
    """The arguments that some rule asks for, ``out`` and ``residuals``, by name."""
    read: Sequence[Any]
    """The tensors in ``values``."""


@dataclass(eq=False)
class Definition:
    """A function with a custom gradient."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    options: Options
    rules: dict[RuleKind, Rule] = field(default_factory=dict)
    surrogate: Callable[..., Any] | None = None
    """The function whose derivative is used on purpose instead of the true one."""
    declared_linear: bool = True
    """False where the rule is meant not to be linear in its cotangent, as one that clips it."""
    linear: set[tuple[Any, ...]] = field(default_factory=set)
    """With which constants the rule that another was derived from was seen to be linear."""
    adopted: type[torch.autograd.Function] | None = None
    """The class, where it was adopted; the rules are then its own."""
    foreign: Foreign | None = None
    """For a function that only calls code which autograd cannot see."""
    made: Any = field(default=None, repr=False, compare=False)
    """What users call, once it is made."""

    @property
    def source(self) -> Any:
        """What the user wrote: a function or a class."""
        return self.adopted or (self.function if self.foreign is None else self.foreign.source)

    @property
    def accuracy(self) -> float:
        """The relative error that the gradient may have by the way it is computed."""
        return 0.0 if self.foreign is None else self.foreign.accuracy

    @property
    def gradient(self) -> Callable[..., Any] | None:
        """The function of the user's that computes the gradient; None where gradwright does it."""
        if self.adopted is not None:
            return self.adopted.backward
        rule = self.rules.get("vjp") or self.rules.get("jvp")
        written = None if rule is None else inspect.unwrap(rule.function)
        return None if str(getattr(written, "__module__", "")).startswith(_MADE_IN) else written

    @property
    def cotangent(self) -> str:
        """What the user calls the cotangent; empty where that is not known, or there are several."""
        if self.gradient is None or ("vjp" not in self.rules and self.adopted is None):
            return ""
        names = list(inspect.signature(self.gradient).parameters.values())
        leading = names[:1] if self.adopted is None else names[1:]
        plain = len(leading) == 1 and leading[0].kind is not inspect.Parameter.VAR_POSITIONAL
        return leading[0].name if plain else ""

    @property
    def module(self) -> str:
        """Where the function is defined; a method of a built-in class does not say."""
        return str(getattr(self.function, "__module__", None) or __name__)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments, in order."""
        return tuple(argument.name for argument in self.arguments)

    @property
    def candidates(self) -> tuple[int, ...]:
        """The positions of the arguments that can have a gradient."""
        return tuple(i for i, argument in enumerate(self.arguments) if argument.kind != "static")

    @property
    def double_backward(self) -> DoubleBackward:
        """The option; what ``.fwd`` keeps has no derivative that anybody knows, so with it ``auto`` means ``once``."""
        keeps = "fwd" in self.rules and self.foreign is None
        return "once" if keeps and self.options.double_backward == "auto" else self.options.double_backward

    def asks(self, *, forward_mode: bool) -> frozenset[str]:
        """Return everything that must be saved for a call."""
        wanted: set[str] = set()
        main = self.rules.get("vjp") or self.rules.get("jvp")
        if main is not None:
            wanted |= set(main.asks)
        if forward_mode and "jvp" in self.rules:
            wanted |= set(self.rules["jvp"].asks)
        return frozenset(wanted)

    def run_on(self, leaves: Sequence[Tensor], values: Mapping[str, Any]) -> tuple[Any, Any]:
        """Run the forward on ``values``, which hold ``leaves``, and return output and residuals.

        Raises:
            RuleError: it edited an argument.
        """
        return unedited(lambda: self.run(values), leaves, self.edited_message)

    def run(self, values: Mapping[str, Any]) -> tuple[Any, Any]:
        """Run the forward and return output and residuals."""
        rule = self.rules.get("fwd")
        if rule is None:
            positional, keyword = self.arranged([values[name] for name in self.names])
            return self.function(*positional, **keyword), None
        result = rule.call((), values)
        if not isinstance(result, tuple) or len(result) != 2:
            raise RuleError(
                f"{self.name}: the rule {rule.function.__name__!r} returned a {type(result).__name__}; expected the "
                "output and the residuals; write `return out, residuals`."
            )
        return result

    def require_residuals(self) -> None:
        """Refuse rules that ask for residuals which nothing keeps.

        Raises:
            DefinitionError: there is no ``.fwd``.
        """
        for rule in self.rules.values():
            if "residuals" in rule.asks and "fwd" not in self.rules:
                raise DefinitionError(
                    f"{self.name}: the rule {rule.function.__name__!r} asks for residuals, but nothing keeps any; "
                    f"expected a forward that does; write `@{self.name}.fwd` above a function that returns "
                    "(out, residuals)."
                )

    def arranged(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the values of all arguments as they are passed: by position, and by keyword."""
        positional = [value for a, value in zip(self.arguments, values) if not a.keyword_only]
        return positional, {a.name: value for a, value in zip(self.arguments, values) if a.keyword_only}

    def nondiff_message(self, position: int) -> str:
        """Say that an argument in ``nondiff`` was asked for a gradient."""
        if self.foreign is not None:
            return (
                f"{self.name}: a gradient of {self.names[position]!r} is needed, but it is not among the arguments "
                "that have a derivative; expected a constant; pass it detached, or name it in argnums and give its "
                "gradient."
            )
        return (
            f"{self.name}: a gradient of {self.names[position]!r} is needed, but it is declared in nondiff; expected a "
            "constant; pass it detached, or take it out of nondiff and let the rule return its gradient."
        )

    @property
    def edited_message(self) -> str:
        """Say that an argument is not to be edited."""
        return (
            f"{self.name}: it edited one of its arguments in place, so that what others keep of that tensor is wrong; "
            "expected a new tensor; compute on a copy (`x = x.clone()`)."
        )

    @property
    def closure_message(self) -> str:
        """Say that a gradient is not returned beside the value."""
        return (
            f"{self.name}: it returns a tuple with a function in it, as custom gradients of TensorFlow do; expected "
            "the output alone; attach the gradient as a rule, which asks by name for what it needs: "
            f"`@{self.name}.vjp` above `def {self.name}_vjp(g, out): ...`."
        )

    @property
    def once_message(self) -> str:
        """Say that only first derivatives are right."""
        why = "keeps residuals in .fwd" if "fwd" in self.rules else f"is declared {self.double_backward!r}"
        return (
            f"{self.name}: its gradient was differentiated again, but the function {why}, so that only first "
            "derivatives are right; expected one differentiation; write the rule in terms of arguments and out, with "
            "double_backward='auto', to allow more."
        )

    @property
    def never_message(self) -> str | None:
        """Say that ``create_graph=True`` is refused; None where it is not."""
        if self.double_backward != "never":
            return None
        return (
            f"{self.name}: its gradient was asked for with create_graph=True; the function is declared with "
            "double_backward='never'; leave create_graph away, or declare 'once' or 'auto'."
        )

    # ---------------------------------------------------------------- reverse mode

    def pull(self, state: State, g: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
        """Return the gradient of each tensor among the arguments, for the cotangents ``g`` of the outputs."""
        policy = self.double_backward
        if policy == "auto" or not may_be_differentiated():
            return self._pull(state, g, needed)
        never = self.never_message
        if never is not None and torch.is_grad_enabled() and not torch_compat.transforms_active():
            raise RuleError(never)
        with torch.no_grad():
            grads = self._pull(state, g, needed)
        return seal(self.once_message, grads, [*g, *state.read])

    def _pull(self, state: State, g: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
        if "vjp" in self.rules:
            return self._vjp(state, g, needed)
        return self._transposed(
            state,
            "jvp",
            lambda tangents: self._jvp(state, [t if n else None for t, n in zip(tangents, needed)]),
            state.metas,
            g,
        )

    def _vjp(self, state: State, g: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
        rule = self.rules["vjp"]
        if not self.options.symbolic_zeros:
            g = [zeros(m) if t is None and differentiable(m) else t for t, m in zip(g, state.out_metas)]
        cotangent = trees.rebuild(state.out_structure, iter(g), statics=False)
        values = state.values
        if "needs" in rule.asks:
            values = {**values, "needs": self._by_argument(state.structures, needed)}
        result = rule.call((cotangent,), values)
        grads = collect(self.name, rule.function.__name__, self.names, self.candidates, result, state.structures)
        return [
            fit(grad, meta, self._grad_message(state.structures, i)) if need and grad is not None else None
            for i, (grad, meta, need) in enumerate(zip(grads, state.metas, needed))
        ]

    # ---------------------------------------------------------------- forward mode

    def push(self, state: State, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the tangent of each tensor of the output."""
        found = self._push(state, tangents)
        if self.double_backward == "auto":
            return found
        return seal(self.once_message, found, [*tangents, *state.read])

    def _push(self, state: State, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        if "jvp" in self.rules:
            return self._jvp(state, tangents)
        if self.options.forward_mode == "none":
            raise RuleError(
                f"{self.name}: forward mode was asked for, but the function is declared with forward_mode='none'; give "
                f"it a rule with @{self.name}.jvp, or use reverse mode."
            )
        moving = [tangent is not None for tangent in tangents]
        return self._transposed(state, "vjp", lambda g: self._vjp(state, g, moving), state.out_metas, tangents)

    def _jvp(self, state: State, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        rule = self.rules["jvp"]
        by_name = {}
        left = iter(tangents)
        for name, structure in zip(self.names, state.structures):
            own = [next(left) for _ in range(trees.count(structure))]
            still = all(tangent is None for tangent in own)
            by_name[name] = None if still else trees.rebuild(structure, iter(own), statics=False)
        given = by_name[self.names[self.candidates[0]]] if len(self.candidates) == 1 else by_name
        result = rule.call((given,), state.values)
        found: list[Tensor | None] = []
        where = f"{self.name}: the rule {rule.function.__name__!r} returned"
        if not isinstance(result, Tensor) and result is not None and isinstance(result, (int, float)) and result == 0:
            result = None
        trees.match(state.out_structure, result, where, found)
        return [
            None if t is None or not differentiable(m) else expand(t, m, where) for t, m in zip(found, state.out_metas)
        ]

    # ---------------------------------------------------------------- both

    def _transposed(
        self, state: State, given: RuleKind, linear: Any, metas: Sequence[Meta], values: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        constants = tuple(value for structure in state.structures for value in trees.statics_in(structure))
        try:
            verify = not torch_compat.is_recording() and not self._seen_linear(constants)
            found, seen = transpose(linear, metas, values, verify=verify)
        except NotLinearError:
            rule, other = self.rules[given].function.__name__, "jvp" if given == "vjp" else "vjp"
            what = "cotangent" if given == "vjp" else "tangent"
            raise RuleError(
                f"{self.name}: the rule {rule!r} is not linear in its {what}, so it is no derivative and nothing can "
                f"be derived from it; expected a linear rule; give the other one with @{self.name}.{other}."
            ) from None
        # Other objects might be changed, and would be kept alive.
        if seen and all(isinstance(value, trees.PLAIN) for value in constants):
            if len(self.linear) >= _REMEMBERED:
                self.linear.clear()
            self.linear.add(constants)
        return found

    def _seen_linear(self, constants: tuple[Any, ...]) -> bool:
        try:
            return constants in self.linear
        except TypeError:  # a list, for example
            return False

    def _by_argument(self, structures: Sequence[trees.Structure], flags: Sequence[bool]) -> dict[str, bool]:
        left = iter(flags)
        found = {}
        for name, structure in zip(self.names, structures):
            own = [next(left) for _ in range(trees.count(structure))]  # all of them, before `any` stops at the first
            found[name] = any(own)
        return found

    def _grad_message(self, structures: Sequence[trees.Structure], leaf: int) -> str:
        owners = [name for name, structure in zip(self.names, structures) for _ in range(trees.count(structure))]
        rule = self.rules["vjp"].function.__name__
        return f"{self.name}: the rule {rule!r} returned for {owners[leaf]!r}"
