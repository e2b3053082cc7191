"""The gradient does not depend on how the incoming gradient lies in memory.

## What it checks
The same incoming gradient is handed over contiguous, transposed, permuted, with other numbers (NaN) between its
elements, as a slice of a larger tensor, at an offset, expanded (stride 0), in channels-last format, and lazily
conjugated or negated; then through the graph, as ``out.sum()``, ``out.mT`` and ``torch.cat`` make it; on a recorded
call also as the program sent it. Every gradient must be the same, and backward must not raise.

## Why it matters
Tests feed contiguous incoming gradients; ``out.sum()`` sends one of stride 0, ``torch.cat`` a slice of a larger one. A
backward that calls ``view(-1)`` or asserts contiguity then crashes in training, and one that hands the memory to NumPy,
C++ or Triton without looking at strides gives a wrong gradient in silence.

## If it fails
Begin backward with ``g = g.contiguous()``, use ``reshape`` in the place of ``view``, or pass the strides on.

## References
Dao-AILab/flash-attention issue 355; pytorch/pytorch issue 194719; NVIDIA/flownet2-pytorch issue 39.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gradwright.checking import repro, ulp
from gradwright.checking.audit import random_cotangent, user_location
from gradwright.checking.case import Case
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients
from gradwright.checking.layouts import LAYOUTS, constant_rows
from gradwright.checking.parts import Pass
from gradwright.checking.recorded_cotangents import recorded_cotangents
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.checking.tensors import copy_of
from gradwright.checking.variants import is_hand_written
from gradwright.errors import describe_exception
from gradwright.typing import Verdict

HINT = (
    "begin backward with `grad_output = grad_output.contiguous()` (or use `reshape` in the place of `view`, and pass "
    "strides on to foreign code)."
)


@dataclass(frozen=True)
class Delivery:
    """One way in which an incoming gradient arrives."""

    words: str
    """As in ``grad_output is ...``."""
    code: str
    """Expression of ``t``, or an empty string when it is delivered by the graph."""
    lazy: bool
    want: Tensor
    """The cotangent as a joint vector, to compare with."""
    gradients: Callable[[Pass], list[Tensor | None]]


class _Same:
    """The gradient for contiguous cotangents, and how far it scatters: computed when first needed."""

    def __init__(self, case: Case, v: Tensor) -> None:
        self.case, self.v = case, v
        self.gradients = case.pull_all(v)

    @cached_property
    def moved(self) -> list[Tensor]:
        return ulp.scatter(self.case, self.v).gradients


@contract(asks="any layout, any shape?", presupposes=("cotangent-untouched",))
def examine(case: Case) -> Outcome:
    """Compare the gradient for each layout of the cotangents with that for contiguous ones."""
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    if any(out.layout != torch.strided for out in case.forward().differentiable):
        return Outcome("skipped", "the outputs are sparse, and so are their cotangents")
    known: list[_Same] = []
    seen, refused, findings = 0, [], []
    for delivery in _deliveries(case):
        same = next((s for s in known if torch.equal(s.v, delivery.want)), None)
        if same is None:
            same = _Same(case, delivery.want)
            known.append(same)
        try:
            run = case.forward()
            with case.sandbox():
                got = case.flatten_inputs(delivery.gradients(run))
        except Exception as error:
            if "single memory location" in str(error):
                continue  # it writes to grad_output: see cotangent-untouched
            if delivery.lazy or isinstance(error, NotImplementedError):  # some dtypes have no sum, for example
                refused.append(delivery.words)
                continue
            findings.append(_raises(case, delivery, error))
            continue
        seen += 1
        finding = _compare(case, delivery, got, same)
        if finding is not None:
            findings.append(finding)
    if findings:
        verdict: Verdict = "fail" if is_hand_written(case) else "suspect"
        return Outcome(verdict, findings[0].message, (replace(findings[0], verdict=verdict),))
    message = f"the same gradient for {seen} layouts of the incoming gradient"
    if refused:
        message += f"; one that is {' or '.join(refused)} is refused aloud"
    return Outcome("pass", message, sensitivity=max(ulp.SAME_SUM, 64 * case.epsilon))


def _deliveries(case: Case) -> Iterator[Delivery]:
    v = random_cotangent(case, "layouts")
    plain = case.cotangents(v)
    for layout in LAYOUTS:
        made = [layout.make(c) for c in plain]
        if any(c is not None for c in made):
            relaid = [c if m is None else m for c, m in zip(plain, made)]
            words = f"{layout.name}, as {layout.origin} sends it"
            yield Delivery(words, layout.code, layout.lazy, v, _sent(relaid))
    ones = [torch.ones((), dtype=o.dtype).expand(o.shape) for o in case.outputs]
    yield Delivery(
        "expanded (stride 0), as out.sum() sends it",
        "torch.ones((), dtype=t.dtype).expand(t.shape)",
        False,
        case.flatten_outputs(ones),
        _sent(ones),
    )
    rows = [constant_rows(c) for c in plain]
    if any(c is not None for c in rows):
        relaid = [c if r is None else r for c, r in zip(plain, rows)]
        code = "t[:1].clone().expand(t.shape)"
        words = "expanded along its first dimension, as out.sum(0) sends it"
        yield Delivery(words, code, False, case.flatten_outputs(relaid), _sent(relaid))
    yield Delivery("what out.sum() sends", "", False, case.flatten_outputs(ones), _through(_sums))
    yield from _recorded(case)
    if any(o.shape.numel() > 1 and len(o.shape) > 1 for o in case.outputs):
        yield Delivery("what out.mT sends", "", False, v, _through(_weighted(plain, _turned)))
    if any(len(o.shape) > 0 for o in case.outputs):
        yield Delivery("what torch.cat sends", "", False, v, _through(_weighted(plain, _joined)))


def _recorded(case: Case) -> Iterator[Delivery]:
    """Deliver what the program sent, where it was not in contiguous memory."""
    given = recorded_cotangents(case) or []
    odd = [g for g in given if g is not None and not (g.is_contiguous() and not g.is_conj() and not g.is_neg())]
    if not odd:
        return
    filled = [torch.zeros(o.shape, dtype=o.dtype) if g is None else g for g, o in zip(given, case.outputs)]
    shape, strides = tuple(odd[0].shape), odd[0].stride()
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
    memory = f"torch.randn({span}, dtype=t.dtype).as_strided({shape}, {strides})"
    yield Delivery(
        f"laid out as the program sent it (strides {strides})",
        f"{memory} if t.shape == {shape} else t",
        odd[0].is_conj() or odd[0].is_neg(),
        case.flatten_outputs(filled),
        lambda run: run.gradients([copy_of(g) for g in filled]),
    )


def _sent(cotangents: list[Tensor]) -> Callable[[Pass], list[Tensor | None]]:
    return lambda run: run.gradients(cotangents)


def _through(loss: Callable[[list[Tensor]], Tensor]) -> Callable[[Pass], list[Tensor | None]]:
    return lambda run: list(torch.autograd.grad(loss(run.differentiable), run.inputs, allow_unused=True))


def _real(total: Tensor) -> Tensor:
    return (total.real if total.is_complex() else total).to(torch.float64)


def _sums(outputs: list[Tensor]) -> Tensor:
    return torch.stack([_real(out.sum()) for out in outputs]).sum()


def _weighted(cotangents: list[Tensor], change: Callable[[Tensor], Tensor]) -> Callable[[list[Tensor]], Tensor]:
    """Return a loss whose gradient by the outputs is ``cotangents``, by way of an operation that changes layouts."""

    def loss(outputs: list[Tensor]) -> Tensor:
        return torch.stack([_real((change(o) * change(c).conj()).sum()) for o, c in zip(outputs, cotangents)]).sum()

    return loss


def _turned(t: Tensor) -> Tensor:
    return t.mT.contiguous() if t.ndim > 1 else t


def _joined(t: Tensor) -> Tensor:
    return torch.cat([t, t.detach()], dim=-1) if t.ndim else t


def _raises(case: Case, delivery: Delivery, error: Exception) -> Finding:
    place = user_location(error)
    message = (
        f"backward raises when grad_output is {delivery.words}: {describe_exception(error)}"
        f"{f' at {place}' if place else ''}."
    )
    return Finding("fail", message, HINT, repro=_script(case, delivery))


def _compare(case: Case, delivery: Delivery, got: list[Tensor], same: _Same) -> Finding | None:
    for k, (now, then) in enumerate(zip(got, same.gradients)):
        bad = ulp.misread(case, now, then, lambda k=k: same.moved[k], case.allowances.of(then))  # type: ignore[misc]
        if bool(bad.any()):
            i = ulp.worst(now, then, bad)
            name = case.inputs[k].name
            message = (
                f"the gradient of `{name}` is another one when grad_output is {delivery.words}: {int(bad.sum())} of "
                f"{len(bad)} elements differ from those for the same values in contiguous memory, so backward reads "
                "that memory without its strides."
            )
            where = Where(input=name, index=case.locate_input(k, i))
            return Finding("fail", message, HINT, where, float(now[i]), float(then[i]), repro=_script(case, delivery))
    return None


def _script(case: Case, delivery: Delivery) -> str:
    names = f"[{', '.join(repro.variable(item.name) for item in case.inputs)}]"
    outputs = repro.listed(case)
    if not delivery.code:
        return repro.script(case, [f"sum(t.sum() for t in {outputs}).backward()", f"print([t.grad for t in {names}])"])
    body = [
        f"outs, ins = {outputs}, {names}",
        "torch.manual_seed(0)",
        "plain = [torch.randn_like(t, memory_format=torch.contiguous_format) for t in outs]",
        f"relaid = [{delivery.code} for t in plain]",
        "same = [t.contiguous() for t in relaid]",
        'print("contiguous:", torch.autograd.grad(outs, ins, same, retain_graph=True, allow_unused=True))',
        'print("relaid:    ", torch.autograd.grad(outs, ins, relaid, allow_unused=True))',
    ]
    return repro.script(case, body)
