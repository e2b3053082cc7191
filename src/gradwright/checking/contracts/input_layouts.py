"""Value and gradient do not depend on how the inputs lie in memory.

## What it checks
The inputs with the same values transposed, permuted, with other numbers (NaN) between their elements, as a slice of a
larger tensor, at an offset, expanded (stride 0), in channels-last format, and lazily conjugated or negated. Values and
gradients must be those for contiguous inputs. A forward that refuses a layout with an exception is ``unsupported``; a
backward that raises although forward ran is a failure.

## Why it matters
Users pass slices and transposes. Code that hands the memory to NumPy, C++ or Triton without looking at strides then
computes on the wrong numbers in silence, in forward or, with saved tensors, only in backward.

## If it fails
Begin forward with ``x = x.contiguous()`` and save that, use ``reshape`` in the place of ``view``, or pass the strides
on.

## References
Dao-AILab/flash-attention issue 355; pytorch/pytorch issue 194719.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from gradwright.checking import repro, ulp
from gradwright.checking.audit import random_cotangent, user_location
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients
from gradwright.checking.layouts import LAYOUTS, constant_rows
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.variants import Place, Slot, is_hand_written, slots, try_vary, vary
from gradwright.errors import ForwardError, GradwrightError, describe_exception
from gradwright.typing import Verdict

HINT = (
    "begin forward with `x = x.contiguous()` and save that (or use `reshape` in the place of `view`, and pass strides "
    "on to foreign code)."
)


class _Reference:
    """Value and gradient for contiguous inputs, and how far they scatter: computed when first needed."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.v = random_cotangent(case, "input layouts")
        self.value = case.value()
        self.gradients = case.pull_all(self.v)

    @cached_property
    def moved(self) -> ulp.Moved:
        return ulp.scatter(self.case, self.v)


@contract(asks="any layout, any shape?", level="standard", presupposes=("inputs-untouched",))
def examine(case: Case) -> Outcome:
    """Compare value and gradient for each layout of the inputs with those for contiguous ones."""
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    if case.randomness != "none" or case.backward_randomness != "none":
        return Outcome("skipped", "it draws random numbers, and which element gets which may depend on the layout")
    tensors = [s for s in slots(case) if not s.state and s.tensor.layout == torch.strided]
    seen = 0
    refused: list[str] = []
    lazily: list[str] = []
    for words, lazy, code, like, changed in _relaid(case, tensors):
        base = _plain(case, tensors, like)
        if base is None:
            continue
        try:
            variant = vary(case, changed)
        except GradwrightError as error:
            cause = error.__cause__ if isinstance(error, ForwardError) and error.__cause__ else error
            (lazily if lazy else refused).append(f"{words} ({describe_exception(cause)})")
            continue
        try:
            reference = _Reference(base)
        except Exception:
            continue  # constant rows may make a matrix singular: that is no matter of layout
        try:
            finding = _compare(variant, reference, words)
        except Exception as error:
            if lazy:
                lazily.append(f"{words} ({describe_exception(error)})")
                continue
            finding = _raises(variant, words, error)
        if finding is not None:
            verdict: Verdict = "fail" if is_hand_written(case) else "suspect"
            finding = replace(finding, verdict=verdict, repro=_script(case, tensors, code))
            return Outcome(verdict, finding.message, (finding,))
        seen += 1
    return _summary(case, seen, refused, lazily)


def _summary(case: Case, seen: int, refused: list[str], lazily: list[str]) -> Outcome:
    if refused and not seen:
        return Outcome("unsupported", f"inputs must be contiguous: one that is {refused[0]} is refused")
    message = f"the same value and gradient for {seen} layouts of the inputs"
    if refused:
        return Outcome("unsupported", f"{message}; refused: {'; '.join(refused)}")
    if lazily:
        message += f"; one that is {'; '.join(lazily)} is refused aloud"
    return Outcome("pass", message, sensitivity=max(ulp.SAME_SUM, 64 * case.epsilon))


def _relaid(
    case: Case, tensors: list[Slot]
) -> Iterator[tuple[str, bool, str, Mapping[Place, Tensor], Mapping[Place, Tensor]]]:
    """Give for each layout: words, whether it is lazy, code, plain values to compare with, and the tensors."""
    if any(not slot.tensor.is_contiguous() for slot in tensors):
        yield "laid out as given", False, "t", {}, {}
    for layout in LAYOUTS:
        made = {slot.place: layout.make(slot.tensor.detach()) for slot in tensors}
        changed = {place: t for place, t in made.items() if t is not None}
        if changed:
            yield layout.name, layout.lazy, layout.code, {}, changed
    rows = {slot.place: constant_rows(slot.tensor.detach()) for slot in tensors if slot.number is not None}
    expanded = {place: t for place, t in rows.items() if t is not None}
    if expanded and not case.in_place:  # memory that overlaps cannot be written
        yield "expanded (stride 0) along the first dimension", False, "t[:1].expand(t.shape)", expanded, expanded


def _plain(case: Case, tensors: list[Slot], values: Mapping[Place, Tensor]) -> Case | None:
    """Return the case with contiguous tensors of the given values; None where forward has none that are finite."""
    changed = {slot.place: values.get(slot.place, slot.tensor).detach().clone() for slot in tensors}
    changed = {place: t.resolve_conj().resolve_neg().contiguous() for place, t in changed.items()}
    if not values and all(slot.tensor.is_contiguous() for slot in tensors):
        return case
    return try_vary(case, changed)


def _compare(variant: Case, reference: _Reference, words: str) -> Finding | None:
    base = reference.case
    if [o.shape for o in variant.outputs] != [o.shape for o in base.outputs]:
        message = (
            f"an input that is {words} changes the shapes of the outputs from {[tuple(o.shape) for o in base.outputs]} "
            f"to {[tuple(o.shape) for o in variant.outputs]}."
        )
        return Finding("fail", message, HINT)
    value = variant.value()
    bad = ulp.misread(base, value, reference.value, lambda: reference.moved.value)
    if bool(bad.any()):
        j = ulp.worst(value, reference.value, bad)
        output, index = base.locate_output(j)
        message = (
            f"forward gives other values when an input is {words}: {int(bad.sum())} of {len(bad)} differ from those "
            "for the same inputs in contiguous memory, so forward reads that memory without its strides."
        )
        where = Where(output=base.outputs[output].position, output_index=index)
        got, want = float(value[j]), float(reference.value[j])
        return Finding("fail", message, HINT, where, got, want)
    for k, (now, then) in enumerate(zip(variant.pull_all(reference.v), reference.gradients)):
        bad = ulp.misread(base, now, then, lambda k=k: reference.moved.gradients[k], base.allowances.of(then))  # type: ignore[misc]
        if bool(bad.any()):
            i = ulp.worst(now, then, bad)
            name = base.inputs[k].name
            message = (
                f"the gradient of `{name}` is another one when an input is {words}, although forward gives the same "
                f"values: {int(bad.sum())} of {len(bad)} elements differ, so backward reads what was saved without its "
                "strides."
            )
            where = Where(input=name, index=base.locate_input(k, i))
            return Finding("fail", message, HINT, where, float(now[i]), float(then[i]))
    return None


def _raises(variant: Case, words: str, error: Exception) -> Finding:
    place = user_location(error)
    message = (
        f"backward raises when an input is {words}, although forward runs: {describe_exception(error)}"
        f"{f' at {place}' if place else ''}."
    )
    return Finding("fail", message, HINT)


def _script(case: Case, tensors: list[Slot], code: str) -> str:
    names = [repro.variable(slot.name) for slot in tensors if "[" not in slot.name]
    body = [f"plain, relaid = {repro.gradient_of_sum(case)}, lambda t: {code}"]
    body += [f"{name} = relaid({name}.detach()).requires_grad_({name}.requires_grad)" for name in names]
    body += [f"again = {repro.call(case)}", 'print("contiguous:", out, plain)']
    body += ["out = again", f'print("relaid:    ", out, {repro.gradient_of_sum(case)})']
    return repro.script(case, body)
