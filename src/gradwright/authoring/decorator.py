"""``custom_gradient``: rules attached to a plain function."""

from __future__ import annotations

import collections.abc
import functools
import typing
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright import torch_compat
from gradwright.authoring import classes, codegen, operator, plain, traced
from gradwright.authoring.autocast import Policy
from gradwright.authoring.captured import warn_of_captured
from gradwright.authoring.definition import Definition, Derive, DoubleBackward, Options
from gradwright.authoring.derive import smooth
from gradwright.authoring.operator import Operator
from gradwright.authoring.returned import ends_with_function
from gradwright.authoring.rules import Rule, RuleKind, read_annotations, read_arguments, read_rule
from gradwright.errors import DefinitionError, RuleError
from gradwright.typing import CustomGradient

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V", bound=Callable[..., Any])


@overload
def custom_gradient(function: Callable[P, R], /) -> CustomGradient[P, R]: ...


@overload
def custom_gradient(
    *,
    double_backward: DoubleBackward = ...,
    vmap: Derive = ...,
    forward_mode: Derive = ...,
    symbolic_zeros: bool = ...,
    autocast: Policy = ...,
    nondiff: tuple[str, ...] = ...,
    op: str | None = ...,
    surrogate: Callable[..., Any] | None = ...,
) -> Callable[[Callable[P, R]], CustomGradient[P, R]]: ...


def custom_gradient(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Give a function a hand-written gradient: a decorator, to which rules are attached.

    The decorated function keeps its signature, name, docstring, types and pickling. Rules are attached with ``.vjp``
    (reverse mode), ``.jvp`` (forward mode), ``.vmap`` (batching), ``.fwd`` (a forward that keeps residuals) and
    ``.fake`` (for ``op``: empty tensors like those that the function returns). A rule takes the cotangent ``g`` (or the
    tangent ``t``) and then asks by name for what it needs: any argument, ``out``, ``needs`` (which arguments need a
    gradient, by name) or ``residuals``. What is asked for is what is saved.

    One rule is enough: forward mode, reverse mode and batching are derived from it, and second derivatives are right
    or raise.

    Arguments:
        function: takes tensors, containers of tensors (dict, list, tuple, dataclass) and anything else. Annotate
            arguments that never have a gradient (``k: float``): a rule need not speak of them.
        double_backward: ``"auto"``: the rule is differentiated, which is right when it uses only arguments and ``out``;
            ``"once"``: a second derivative raises; ``"never"``: so does ``create_graph=True``. A function with
            ``.fwd`` is ``"once"``.
        vmap: ``"derive"``: function and rules are run under vmap; ``"none"``: only ``.vmap`` is used.
        forward_mode: ``"derive"``: from the VJP; ``"none"``: only ``.jvp`` is used.
        symbolic_zeros: cotangents of outputs that were not used are None instead of zeros.
        autocast: ``"replay"``: the backward runs as the forward did; ``"float32"``: under autocast, inputs are cast to
            float32 and autocast is off in both directions; ``"off"``: the same without the cast.
        nondiff: names of tensors that refuse to be differentiated.
        op: ``"namespace::name"``: where torch.compile and torch.export record the function, it is an operator of
            PyTorch of this name, kept whole. Its forward may be anything, and an exported program trains with the
            rule. Arguments and output must be annotated.
        surrogate: for a rule that is wrong on purpose, as a straight-through estimator is, the function whose
            derivative it uses: ``gw.check`` compares the two. It takes the same arguments.

    Raises:
        DefinitionError: the function or a rule cannot be used as it is written.

    Example:
        >>> import torch, gradwright as gw
        >>> @gw.custom_gradient
        ... def exp(x: torch.Tensor) -> torch.Tensor:
        ...     return torch.exp(x)
        >>> @exp.vjp
        ... def exp_vjp(g, out):
        ...     return g * out
        >>> x = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> torch.autograd.grad(exp(x).sum(), x)
        (tensor([1.0000, 2.7183]),)
        >>> torch.func.vmap(torch.func.hessian(exp))(x.detach())
        tensor([1.0000, 2.7183])
    """
    if function is None:
        return lambda function: _decorate(function, options=dict(options))
    if options:
        raise DefinitionError(
            "custom_gradient: got a function and options at once; expected `@gw.custom_gradient(...)` above the "
            "function; or write gw.define(function, vjp=..., ...)."
        )
    return _decorate(function, options=options)


def _decorate(function: Callable[..., Any], *, options: dict[str, Any]) -> Any:
    if isinstance(function, (staticmethod, classmethod)):
        kind = type(function).__name__
        raise DefinitionError(
            f"custom_gradient: got a {kind}; expected a function; write @{kind} above @gw.custom_gradient, not below."
        )
    if isinstance(function, type) or not callable(function):
        raise DefinitionError(
            f"custom_gradient: got {function!r}; expected a function; for a torch.autograd.Function class attach rules "
            "to a function that does what its forward does."
        )
    name = getattr(function, "__name__", type(function).__name__)
    if hasattr(function, "__custom_gradient__"):
        raise DefinitionError(f"{name}: it is decorated already; attach further rules with @{name}.vjp and the like.")
    arguments = read_arguments(name, function)
    surrogate = read_surrogate(name, options.pop("surrogate", None))
    return build(Definition(name, function, arguments, make_options(name, options), surrogate=surrogate))


def read_surrogate(name: str, surrogate: Any) -> Callable[..., Any] | None:
    """Return the surrogate, refusing what is none.

    Raises:
        DefinitionError: it is not a function.
    """
    if surrogate is not None and not callable(surrogate):
        raise DefinitionError(
            f"{name}: surrogate is {surrogate!r}; expected the function whose derivative the rule uses, with the "
            f"arguments of {name}; for a straight-through rule write surrogate=lambda x: x."
        )
    return surrogate  # type: ignore[no-any-return]


def make_options(name: str, options: dict[str, Any]) -> Options:
    """Return the options, refusing unknown names."""
    unknown = [option for option in options if option not in Options.__dataclass_fields__]
    if unknown:
        raise DefinitionError(
            f"{name}: custom_gradient has no option {unknown[0]!r}; expected "
            f"{', '.join(Options.__dataclass_fields__)}; correct the name."
        )
    return Options(**options)


def build(definition: Definition, *rules: Rule) -> Any:
    """Return the function that users call, with ``.vjp`` and the others to attach rules."""
    definition.options.check(definition.name, definition.arguments)
    if ends_with_function(definition.function) or _declares_function(definition):
        raise DefinitionError(definition.closure_message)
    if definition.options.op is not None:
        operator.check(definition, _declared_outputs(definition))
    dispatch = _Dispatch(definition)
    if rules:
        dispatch.add(*rules)
    definition.made = wrapper = functools.update_wrapper(dispatch.wrapper, definition.function)
    attributes = {kind: functools.partial(dispatch.attach, kind) for kind in ("vjp", "jvp", "vmap", "fwd", "fake")}
    wrapper.__dict__.update(attributes, __custom_gradient__=definition, __gradwright_add__=dispatch.add)
    return wrapper


class _Dispatch:
    """Sends each call to the class that is made for it, and makes the classes when rules are attached."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.wrapper, self.set_plain = codegen.make_wrapper(definition, self.general, self.compiling)
        self.flat = all(argument.kind != "tree" for argument in definition.arguments)
        self.reverse: type[Function] | None = None
        """For other calls without forward mode and transforms."""
        self.every: type[Function] | None = None
        """For all calls."""
        self.operator: Operator | None = None
        """For calls that are recorded, where there is one."""
        self.seen = False
        """True once a call has shown what the function returns."""
        self.looked = False
        """True once the function was searched for tensors that it uses without receiving them."""

    def attach(self, kind: RuleKind, rule: V) -> V:
        self.add(read_rule(self.definition.name, kind, rule, self.definition.arguments))
        return rule

    def add(self, *rules: Rule) -> None:
        self.definition.rules.update({rule.kind: rule for rule in rules})
        self._check_rules()
        self._make_classes()

    def _check_rules(self) -> None:
        definition = self.definition
        rules = definition.rules
        if "fake" in rules and definition.options.op is None:
            raise DefinitionError(
                f"{definition.name}: it has .fake, which is for operators; expected a name for it; write "
                f"@gw.custom_gradient(op='mylibrary::{definition.name}'), or leave .fake away."
            )
        if "fwd" in rules and "vmap" in rules and definition.foreign is None:
            raise DefinitionError(
                f"{definition.name}: it has both .fwd and .vmap, and a batched call would have no residuals; expected "
                "one of them; leave .vmap away (batching is derived) or let the VJP ask for arguments and out instead."
            )

    def _make_classes(self) -> None:
        """Make the classes anew, so that whatever was compiled with the old rules notices (a class is never edited)."""
        self.every = self.reverse = None
        self.seen = False
        self.set_plain(self.general)
        if "vjp" in self.definition.rules or "jvp" in self.definition.rules:
            self.reverse = classes.function_class(self.definition, forward_mode=False)
            if self.definition.options.op is not None:
                outputs = _declared_outputs(self.definition)
                assert not isinstance(outputs, str), "refused when the function was decorated"
                self.operator = Operator(self.definition, outputs)

    def _may_be_plain(self) -> bool:
        definition = self.definition
        options = definition.options
        usual = options.autocast == "replay" and not options.symbolic_zeros
        return self.flat and usual and "vjp" in definition.rules

    def compiling(self, *values: Any) -> Any:
        """Run a call that torch.compile traces."""
        if torch_compat.transforms_active() or torch_compat.forward_mode_on():
            instead = ", or use gw.surrogate if it is a surrogate"
            return traced.call_in_transform(self.definition.name, self.general, values, instead)
        self._require_rules()
        classes.check_values(self.definition, values)
        if self.operator is not None:
            if self.operator.replaced:
                return traced.call_foreign(self.operator.replaced_message, self.general, values)
            refused = self.operator.refused(values)
            if refused:
                return traced.call_foreign(refused, self.general, values)
            return self.operator.call(values)
        if self.definition.foreign is not None:
            return traced.call_foreign(self.definition.foreign.unrecorded, self.general, values)
        traced.warn_of_export(self.definition.name, self.definition.module)
        assert self.reverse is not None
        # Not the class for plain calls: its rule is in a closure, and of what closures of a Function with
        # `setup_context` hold, torch.compile does not notice changes (torch 2.13). Arguments it watches.
        return classes.run(self.definition, self._apply_recorded, values, forward_mode=False)[0]

    def _apply_recorded(self, call: Any, *leaves: Tensor) -> Any:
        """Apply the class in a call that torch.compile traces.

        Where nothing is differentiated, torch 2.13 calls the forward of a class, and by mistake with a context before
        the arguments when it takes any number of them: so it is called here.
        """
        assert self.reverse is not None
        if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves):
            return self.reverse.apply(call, *leaves)
        return classes.forward(call, *leaves)

    def general(self, *values: Any) -> Any:
        """Run a call of any kind."""
        # After torch.compile gave up on the wrapper once, it begins in here, or further in, where it cannot go on.
        if torch.compiler.is_dynamo_compiling():
            return self.compiling(*values)
        if torch_compat.compiler_watches():
            return torch_compat.call_unwatched(self.general, values)
        tracing = [v for v in values if not isinstance(v, Tensor) and hasattr(v, "__torch_function__")]
        if tracing:
            # A stand-in for a tensor, as torch.fx has them: it gets the function as one operation, rule included.
            positional, keyword = self.definition.arranged(values)
            return torch.overrides.handle_torch_function(self.wrapper, tracing, *positional, **keyword)
        self._require_rules()
        classes.check_values(self.definition, values)
        if not self.looked:
            self.looked = True
            warn_of_captured(self.definition, values)
        if torch_compat.transforms_active() or torch_compat.forward_mode_on():
            if self.every is None:
                self.every = classes.function_class(self.definition, forward_mode=True)
            return classes.run(self.definition, self.every.apply, values, forward_mode=True)[0]
        return self._without_transforms(values)[0] if self.seen else self._first(values)

    def _without_transforms(self, values: Sequence[Any]) -> tuple[Any, classes.Result | None]:
        assert self.reverse is not None
        apply = torch_compat.direct_apply(self.reverse)
        return classes.run(
            self.definition,
            lambda call, *leaves: apply(call, *map(torch_compat.unwrap_dead, leaves)),
            values,
            forward_mode=False,
        )

    def _first(self, values: Sequence[Any]) -> Any:
        """Run the first call, which shows what the function returns."""
        out, result = self._without_transforms(values)
        self.seen = True
        if self._may_be_plain() and result is not None and _smooth(out):
            self._call_plainly(result)
        return out

    def _call_plainly(self, result: classes.Result) -> None:
        """Let plain calls take the short way from now on, if what the first call returned allows it."""
        declared = _declared_outputs(self.definition)
        form: plain.Form | None
        if isinstance(declared, str) or "fwd" in self.definition.rules:
            form = plain.seen_form(self.definition, result)
            if form is None or declared not in ("unknown", form.outputs):
                return
        else:
            form = plain.Form(declared)  # what does not keep to the annotation is told so
        apply = torch_compat.direct_apply(plain.make_class(self.definition, form))
        if not form.keeps:
            self.set_plain(apply)
            return

        def without_residuals(*values: Any) -> Any:
            try:
                return apply(*values)[0]
            except plain.FormChangedError:
                self.set_plain(self.general)
                return self.general(*values)

        self.set_plain(without_residuals)

    def _require_rules(self) -> None:
        definition = self.definition
        if "vjp" not in definition.rules and "jvp" not in definition.rules:
            raise RuleError(
                f"{definition.name}: it has no gradient rule yet; expected one; write `@{definition.name}.vjp` above "
                f"`def {definition.name}_vjp(g, ...)`, or @{definition.name}.jvp."
            )
        definition.require_residuals()


def _declared_outputs(definition: Definition) -> operator.Outputs:
    """Return None for one tensor, the length for a tuple of tensors, or that it is unknown or something else."""
    annotation = read_annotations(definition.function).get("return", "unknown")
    if annotation in ("Tensor", "torch.Tensor"):
        return None
    if isinstance(annotation, str):
        return "unknown"
    if isinstance(annotation, type) and issubclass(annotation, Tensor):
        return None
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple and parts and all(part is Tensor for part in parts):
        return len(parts)
    return "other"


def _declares_function(definition: Definition) -> bool:
    """Tell whether the annotation of the result is a tuple with a function in it."""
    annotation = read_annotations(definition.function).get("return")
    parts = typing.get_args(annotation) if typing.get_origin(annotation) is tuple else ()
    return any(collections.abc.Callable in (part, typing.get_origin(part)) for part in parts)


def _smooth(out: Any) -> bool:
    tensors = out if isinstance(out, tuple) else (out,)
    return all(isinstance(t, Tensor) and smooth(t) for t in tensors)
