"""``op="namespace::name"``: the function as an operator of PyTorch, for code that PyTorch records.

torch.compile looks into a function and torch.export keeps its operations and not its rule. An operator is kept whole by
both: a forward that cannot be traced works under ``fullgraph=True``, and an exported program trains with the rule.
Outside of recorded code the function goes its usual way, which is faster and knows every transform.
"""

from __future__ import annotations

import re
import typing
import uuid
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.authoring import autocast, classes, trees
from gradwright.authoring.classes import Call, Result
from gradwright.authoring.definition import Definition
from gradwright.authoring.derive import Meta
from gradwright.authoring.rules import read_annotations
from gradwright.errors import DefinitionError, GradwrightError, RuleError, describe_exception, kind_of

Outputs: TypeAlias = int | Literal["unknown", "other"] | None
"""The length of the tuple of tensors that a function is annotated to return, None for one tensor."""
NAME = re.compile(r"(?!aten::|prim::|prims::)[A-Za-z_]\w*::(?!__)[A-Za-z_]\w*")
"""Compiled code calls operators from inside a class, where Python renames what begins with two underscores."""
BY_KIND = {"tensor": "Tensor", "optional": "Tensor?"}
BY_TYPE: dict[type, str] = {
    int: "SymInt",
    float: "float",
    bool: "bool",
    str: "str",
    torch.dtype: "ScalarType",
    torch.device: "Device",
    torch.Size: "SymInt[]",
}
OWN = "str gw_recorded"
"""The last argument of every operator: autocast where it was recorded, and which rules these were."""


_TAKEN: dict[str, tuple[str, str]] = {}
"""Which function each operator belongs to, and the token of the rules that it was registered with last."""


def check(definition: Definition, outputs: Outputs) -> None:
    """Refuse a function that cannot be an operator; ``outputs`` is what its annotation says that it returns.

    Raises:
        DefinitionError: ``op`` is no ``"namespace::name"``, the namespace is PyTorch's own, another function has the
            name, or an argument or the output is of a type that operators do not know.
    """
    op, name = definition.options.op, definition.name
    if not isinstance(op, str) or NAME.fullmatch(op) is None:
        raise DefinitionError(
            f"{name}: op is {op!r}; expected 'namespace::name' in a namespace of your own; write "
            f"op='mylibrary::{name if name.isidentifier() else 'name'}'."
        )
    own = _full_name(definition)
    other, _ = _TAKEN.get(op, (own, ""))
    if other != own:
        raise DefinitionError(
            f"{name}: op={op!r} is the operator of {other} already, which would be replaced in every exported "
            "program; expected another name; rename one of them."
        )
    if isinstance(outputs, str):
        raise DefinitionError(
            f"{name}: with op={op!r} the annotation of what it returns is needed; expected Tensor or "
            "tuple[Tensor, Tensor]; write `-> Tensor`."
        )
    _schema(definition, outputs, keeps=False)


def _full_name(definition: Definition) -> str:
    function = definition.function
    return f"{definition.module}.{getattr(function, '__qualname__', definition.name)}"


class Operator:
    """One function as a registered operator. A new one is made for new rules, so that compiled code notices."""

    def __init__(self, definition: Definition, outputs: int | None) -> None:
        """Register it; ``outputs`` is the length of the tuple that the function returns, None for one tensor."""
        self.definition = definition
        self.outputs = outputs
        annotations = read_annotations(definition.function)
        self.unknown = [i for i, argument in enumerate(definition.arguments) if argument.kind == "unknown"]
        """Arguments that an operator knows as tensors, and that may be something else in other calls."""
        self.tuples = [_is_tuple(annotations.get(name)) for name in definition.names]
        # Of foreign code anything may be kept, and it can be computed again.
        self.keeps = "residuals" in definition.asks(forward_mode=False) and definition.foreign is None
        # Unlike the code, the rules are no part of what PyTorch looks compiled graphs up by, on disk (torch 2.13).
        self.token = uuid.uuid4().hex
        self.residuals: tuple[trees.Structure, tuple[tuple[str, int], ...]] | None = None
        """How what ``.fwd`` keeps is built, the same in every call."""
        self.compared = "fake" not in definition.rules
        name = str(definition.options.op)
        schema = _schema(definition, outputs, keeps=self.keeps)
        op = torch.library.custom_op(name, self._kernel, mutates_args=(), schema=schema)
        _TAKEN[name] = _full_name(definition), self.token
        op.register_fake(self._fake)
        op.register_autograd(self._backward, setup_context=self._setup_context)
        self.overload = torch_compat.operator_overload(op)

    # ---------------------------------------------------------------- what recorded code calls

    def refused(self, values: Sequence[Any]) -> str:
        """Say why these values cannot be given to the operator; empty where they can."""
        for i in self.unknown:
            argument = self.definition.arguments[i]
            if not isinstance(values[i], Tensor) and not (values[i] is None is argument.default):
                return (
                    f"{self.definition.name}: compiled code knows its argument {argument.name!r} as a tensor, and got "
                    f"{kind_of(values[i])}; expected a tensor; pass one, or leave fullgraph=True away, or call it "
                    "outside of what is compiled or exported; a constant needs an annotation (int, float, ...)."
                )
        return ""

    def call(self, values: Sequence[Any]) -> Any:
        """Run the function as an operator."""
        state = autocast.state_of(values)
        recorded = "" if torch_compat.is_exporting() else self.token
        if state is not None and state[1]:
            recorded += f"/{state[0]}/{str(state[2]).removeprefix('torch.')}"
        returned = self.overload(*values, recorded)
        outs = [returned] if isinstance(returned, Tensor) else returned
        return outs[0] if self.outputs is None else tuple(outs[: self.outputs])

    # ---------------------------------------------------------------- what PyTorch calls

    def _kernel(self, *values: Any) -> Any:
        *values, recorded = values  # type: ignore[assignment]
        # Code that was compiled with an earlier definition finds the operator by its name.
        if recorded.partition("/")[0] not in ("", self.token):
            raise RuleError(self.replaced_message)
        given = self._given(values)
        leaves = [value for value in given if isinstance(value, Tensor)]
        self._refuse_forward_mode()
        definition = self.definition
        with autocast.replay(_recorded_autocast(recorded)):
            context, cast, _ = autocast.enter(definition.options.autocast, leaves)
            left = iter(cast)
            by_name = {n: next(left) if isinstance(v, Tensor) else v for n, v in zip(definition.names, given)}
            with context:
                out, residuals = definition.run_on(leaves, by_name)
        outs = self._outs(out)
        if not self.compared and not torch_compat.is_recording():
            self.compared = True
            self._compare(outs, given)
        return self._packed(outs, residuals, leaves)

    def _fake(self, *values: Any) -> Any:
        """Run on tensors without numbers, to tell what is returned."""
        *values, recorded = values  # type: ignore[assignment]
        if not recorded.partition("/")[0] and not torch_compat.is_exporting():
            # An exported program says nothing of the rules that it is compiled with.
            torch_compat.never_from_disk(self.token)
        given = self._given(values)
        leaves = [value for value in given if isinstance(value, Tensor)]
        if "fake" in self.definition.rules:
            return self._packed(*self._said(given), leaves)
        try:
            return self._kernel(*values, recorded)
        except GradwrightError:
            raise
        except Exception as error:
            name = self.definition.name
            raise RuleError(
                f"{name}: PyTorch cannot run its forward on tensors that have a shape and no numbers "
                f"({describe_exception(error)}); expected a function that says what is returned; write `@{name}.fake` "
                f"above `def {name}_fake(...)`, which asks for arguments and returns empty tensors."
            ) from error

    def _setup_context(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        *values, recorded = inputs
        definition = self.definition
        given = self._given(values)
        leaves: list[Tensor] = []
        structures = tuple([trees.flatten(value, leaves) for value in given])
        owners = tuple([i for i, value in enumerate(given) if isinstance(value, Tensor)])
        call = Call(definition, definition.asks(forward_mode=False), False, structures, owners)
        number = 1 if self.outputs is None else self.outputs
        outs = [output] if isinstance(output, Tensor) else list(output[:number])
        form, sources = self.residuals if self.residuals is not None else (trees.NOTHING, ())
        structure = trees.flatten(outs[0] if self.outputs is None else tuple(outs), [])
        with autocast.replay(_recorded_autocast(recorded)):
            _, _, state = autocast.enter(definition.options.autocast, leaves)
        result = Result(structure, number, form, sources, state)
        hidden = list(output[-1]) if self.keeps else []
        classes.keep(ctx, call, leaves, [*outs, *hidden], result, [ctx.needs_input_grad[i] for i in owners])

    def _backward(self, ctx: Any, *grads: Any) -> Any:
        found: list[Any] = [None] * (len(self.definition.arguments) + 1)
        needed = [ctx.needs_input_grad[i] for i in ctx.call.owners]
        try:
            gradients = classes.gradients(ctx, grads, needed)
        except GradwrightError:
            raise
        except Exception as error:
            if not torch_compat.is_recording():
                raise
            raise RuleError(self._unrecorded_message(error)) from error
        for i, gradient in zip(ctx.call.owners, gradients):
            found[i] = gradient
        return tuple(found)

    def _unrecorded_message(self, error: Exception) -> str:
        """Say that the rule, unlike the forward, is recorded operation by operation."""
        definition = self.definition
        rule = definition.rules.get("vjp") or definition.rules["jvp"]
        return (
            f"{definition.name}: its rule {rule.function.__name__!r} failed where PyTorch records it, on tensors that "
            f"have a shape and no numbers ({describe_exception(error)}); expected PyTorch operations; put what NumPy "
            "or another library computes into a function with an op= of its own, and call that in the rule."
        )

    # ---------------------------------------------------------------- pieces

    @property
    def replaced(self) -> bool:
        """True when another function has the operator of this name now."""
        return _TAKEN[str(self.definition.options.op)][1] != self.token

    @property
    def replaced_message(self) -> str:
        """Say that code which was recorded with one definition would run another one."""
        name = self.definition.name
        return (
            f"{name}: its operator {self.definition.options.op} was defined anew, by another {name} with this op, so "
            "that code which was compiled with one of them would use the gradient of the other; expected one function "
            "for each operator; give each an op name of its own, or compile the newest anew."
        )

    def _given(self, values: Sequence[Any]) -> list[Any]:
        """Return the values as the function expects them: an operator knows lists, no tuples."""
        return [tuple(value) if is_tuple else value for value, is_tuple in zip(values, self.tuples)]

    def _outs(self, out: Any) -> list[Tensor]:
        outs = [out] if self.outputs is None else out
        number = 1 if self.outputs is None else self.outputs
        if not isinstance(outs, (list, tuple)) or len(outs) != number or not all(isinstance(t, Tensor) for t in outs):
            expected = "a tensor" if self.outputs is None else f"a tuple of {number} tensors"
            raise RuleError(
                f"{self.definition.name}: it returned a {type(out).__name__}; its annotation says {expected}; correct "
                "the annotation, by which its operator was registered."
            )
        return list(outs)

    def _packed(self, outs: Sequence[Tensor], residuals: Any, leaves: Sequence[Tensor]) -> Any:
        """Return what the operator returns: its outputs, and a list of what else was kept. None shares its memory."""
        hidden: list[Tensor] = []
        if self.keeps:
            kept: list[Tensor] = []
            structure = trees.flatten(residuals, kept)
            sources = []
            for tensor in kept:
                source = classes.place("argument", tensor, leaves) or classes.place("output", tensor, outs)
                if source is None:
                    source = ("own", len(hidden))
                    hidden.append(tensor)
                sources.append(source)
            self._remember(structure, tuple(sources))
        memories: list[Tensor] = list(leaves)
        alone = []
        for tensor in (*outs, *hidden):
            if any(torch_compat.share_memory(tensor, other) for other in memories):
                tensor = tensor.clone()
            memories.append(tensor)
            alone.append(tensor)
        outs, hidden = alone[: len(outs)], alone[len(outs) :]
        if self.keeps:
            return (*outs, hidden)
        return outs[0] if self.outputs is None else tuple(outs)

    def _remember(self, structure: trees.Structure, sources: tuple[tuple[str, int], ...]) -> None:
        simple = isinstance(structure, trees.Leaf) or (
            isinstance(structure, trees.Node)
            and structure.make in (tuple, list)
            and all(isinstance(child, trees.Leaf) for child in structure.children)
        )
        if not simple or self.residuals not in (None, (structure, sources)):
            name = self.definition.name
            raise RuleError(
                f"{name}: with op={self.definition.options.op!r} its .fwd keeps a tensor or a tuple of tensors, the "
                "same in every call; got another structure; keep the rest by computing it in the rule."
            )
        self.residuals = structure, sources

    def _said(self, given: Sequence[Any]) -> tuple[list[Tensor], Any]:
        """Return what the ``fake`` rule says."""
        rule = self.definition.rules["fake"]
        said = rule.call((), dict(zip(self.definition.names, given)))
        if not self.keeps:
            return self._outs(said), None
        if not isinstance(said, tuple) or len(said) != 2:
            raise RuleError(
                f"{self.definition.name}: the rule {rule.function.__name__!r} returned a {type(said).__name__}; "
                "expected the output and the residuals, as .fwd returns them; write `return out, residuals`."
            )
        return self._outs(said[0]), said[1]

    def _compare(self, outs: Sequence[Tensor], given: Sequence[Any]) -> None:
        """Compare an output with what the ``fake`` rule says of it: compiled code would read memory wrongly."""
        try:
            said, _ = self._said(given)
        except RuntimeError:
            if any(isinstance(value, Tensor) and value.is_meta for value in given):
                raise
            return  # it asks for a size that only the data tell, which it can while PyTorch records
        for i, (out, expected) in enumerate(zip(outs, said)):
            got, told = _described(out), _described(expected)
            if got != told:
                which = "" if self.outputs is None else f" of output {i}"
                raise RuleError(
                    f"{self.definition.name}: the rule {self.definition.rules['fake'].function.__name__!r} says "
                    f"{told}{which}; the function returned {got}; correct the rule, or compiled code reads memory "
                    "wrongly."
                )

    def _refuse_forward_mode(self) -> None:
        """Refuse to run in forward mode, for which operators have no rule: the tangent would be dropped.

        Under ``torch.func`` the tangents cannot be seen from here, so that an open level of it has to do.
        """
        if torch_compat.forward_mode_on():
            name = self.definition.name
            raise RuleError(
                f"{name}: forward mode was asked of its operator {self.definition.options.op}, which has reverse mode "
                f"only and would drop the tangent; expected a call of {name} itself; call it outside of exported or "
                "compiled code."
            )


def _schema(definition: Definition, outputs: int | None, *, keeps: bool) -> str:
    """Return the schema of the operator: the arguments by position, without defaults."""
    annotations = read_annotations(definition.function)
    declared = []
    for argument in definition.arguments:
        kind = BY_KIND.get(argument.kind) or _static_type(annotations.get(argument.name))
        if argument.kind == "unknown" and definition.foreign is not None:
            kind = "Tensor?" if argument.default is None else "Tensor"
        if kind is None or argument.name == "self":
            raise DefinitionError(
                f"{definition.name}: with op={definition.options.op!r} the argument {argument.name!r} must have a type "
                "that operators know; expected an annotation with Tensor, Tensor | None, int, float, bool, str, "
                "torch.dtype, torch.device or a tuple of numbers of any length; annotate it, or leave op away."
            )
        declared.append(f"{kind} {argument.name}")
    returned = ["Tensor"] * (1 if outputs is None else outputs) + ["Tensor[]"] * keeps
    return f"({', '.join([*declared, OWN])}) -> ({', '.join(returned)})"


def is_recordable(annotation: Any) -> bool:
    """Tell whether operators know constants of an annotated type."""
    return _static_type(annotation) is not None


def _static_type(annotation: Any) -> str | None:
    """Return what schemas call the type of a value that is no tensor, or None."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and not inner:
        return BY_TYPE.get(annotation)
    if origin is typing.Annotated:
        return _static_type(inner[0])
    if origin is Literal:
        kinds = {type(value) for value in inner}
        return BY_TYPE.get(kinds.pop()) if len(kinds) == 1 else None
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis and inner[0] in (int, float, bool):
        return f"{BY_TYPE[inner[0]]}[]"
    if len(inner) == 2 and type(None) in inner:
        part = _static_type(inner[0] if inner[1] is type(None) else inner[1])
        return None if part is None else f"{part}?"
    return None


def _is_tuple(annotation: Any) -> bool:
    parts = (annotation, *typing.get_args(annotation))
    return any(part is torch.Size or typing.get_origin(part) is tuple for part in parts)


def _recorded_autocast(recorded: str) -> autocast.State | None:
    parts = recorded.split("/")
    return (parts[1], True, getattr(torch, parts[2])) if len(parts) > 1 else None


def _described(tensor: Tensor) -> str:
    meta: Meta = (tensor.shape, tensor.dtype, tensor.device)
    return f"{str(meta[1]).removeprefix('torch.')} {tuple(meta[0])} on {meta[2]}"
