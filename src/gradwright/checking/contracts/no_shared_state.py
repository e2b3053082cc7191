"""Calls do not disturb each other.

## What it checks
Two calls, interleaved: forward, forward on other values, backward of the first, backward of the second, and in the
other order; the gradients must equal those of calls by themselves. The bytes of earlier outputs and gradients must not
change in later calls. Gradients are accumulated twice into the same leaves, as training with several micro-batches
does, and must be twice one gradient. Backward is run in another thread than forward, as on a GPU. Where a number or
container that the code can reach changes from call to call (a counter, a cache), and at level ``full`` always, the same
call is repeated up to 1,500 times.

## Why it matters
State on the class, in a global or in a static buffer works while forward and backward alternate. It breaks as soon as
a layer is used twice, with gradient accumulation, pipelines or several threads.

## If it fails
Keep what backward needs on ``ctx``, which belongs to one call, and allocate outputs and gradients anew.

## References
pytorch/pytorch, "Extending PyTorch": ctx carries the state of one call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwright.checking import repro
from gradwright.checking.audit import functions_in_graph, random_cotangent
from gradwright.checking.captured import StateWatch
from gradwright.checking.case import Case
from gradwright.checking.compare import Attempt, attempt, first_change, gradient_mismatch, snapshot
from gradwright.checking.contracts import contract
from gradwright.checking.guards import without_gradients, without_numbers
from gradwright.checking.parts import Pass
from gradwright.checking.report import Finding, Outcome, Where
from gradwright.typing import Level

REPEATS = 1500
SECONDS: dict[Level, float] = {"quick": 0.1, "standard": 1.0, "full": 3.0}
"""Processor time that the repeated calls may take."""
STATE = (
    "keep what backward needs on ctx (ctx.save_for_backward for tensors), which belongs to one call; nothing on the "
    "class, in globals or in buffers that later calls reuse."
)
BUFFER = "allocate a new tensor at each call (or return a clone): the caller keeps what you returned."


@contract(
    asks="is it pure?",
    presupposes=("inputs-untouched", "cotangent-untouched", "linear-in-cotangent"),
)
def examine(case: Case) -> Outcome:
    """Interleave calls and look at earlier results."""
    watch = StateWatch(case.subject, tuple(functions_in_graph(case)))
    other = _other_inputs(case)
    finding = _outputs(case, other)
    if finding is not None:
        return Outcome("fail", finding.message, (finding,))
    obstacle = without_numbers(case) or without_gradients(case)
    if obstacle is not None:
        return obstacle
    v, w = random_cotangent(case, "v"), random_cotangent(case, "w")
    for check in (_interleaved, _gradients_kept):
        finding = check(case, other, v, w)
        if finding is not None:
            return Outcome("fail", finding.message, (finding,))
    finding = _accumulated(case, v) or _in_another_thread(case, v)
    repeats = 0
    if finding is None and (case.level == "full" or watch.changed()):
        finding, repeats = _repeated(case, v, [c.words for c in watch.changed()])
    if finding is not None:
        return Outcome("fail", finding.message, (finding,))
    repeated = f", {repeats} repeated calls" if repeats else ""
    return Outcome(
        "pass", f"two interleaved calls, earlier outputs and gradients, accumulation, another thread{repeated}"
    )


def _other_inputs(case: Case) -> dict[int, Tensor]:
    """Return other values for the inputs that forward accepts and that change its value, else the same ones."""
    here = case.value()
    for factor, shift in ((0.75, 0.0), (1.25, 0.0), (1.0, 0.25)):
        flats = {k: (factor * x + shift).to(x.dtype) for k, x in enumerate(case.base)}
        value = case.value(flats)
        if bool(value.isfinite().all()) and not torch.equal(value, here):
            return flats
    return {}


def _outputs(case: Case, other: dict[int, Tensor]) -> Finding | None:
    run = case.forward()
    watched = [(position, out) for position, out in enumerate(run.outputs) if out.layout == torch.strided]
    before = snapshot([out for _, out in watched])
    again = case.forward(other)
    for (position, out), old in zip(watched, before):
        change = first_change(out, old)
        if change is not None:
            message = (
                f"a later call of forward overwrites output {position} of an earlier call (a static buffer?): {change}."
            )
            body = [f"first = {repro.listed(case)}[0].detach()", "before = first.clone()"]
            body += [*_change_inputs(case), repro.call(case), 'print("before:", before)', 'print("now:   ", first)']
            del again
            return Finding("fail", message, BUFFER, Where(output=position), repro=repro.script(case, body))
    return None


def _pull(case: Case, run: Pass, v: Tensor) -> Attempt:
    def backward() -> list[Tensor | None]:
        with case.sandbox():
            return run.gradients(case.cotangents(v))

    return attempt(backward)


def _interleaved(case: Case, other: dict[int, Tensor], v: Tensor, w: Tensor) -> Finding | None:
    alone = [case.pull_all(v), case.pull_all(w, other)]
    for order in ((0, 1), (1, 0)):
        runs = [case.forward(), case.forward(other)]
        results: dict[int, Attempt] = {}
        for number in order:
            results[number] = _pull(case, runs[number], (v, w)[number])
        words = "the first" if order == (0, 1) else "the second"
        situation = f"forward, forward, then backward of {words} call first"
        for number, result in results.items():
            if result.error is not None:
                message = f"backward raises {result.complaint} in interleaved calls ({situation})."
                return Finding("fail", message, STATE, repro=_interleaved_script(case))
            wrong = gradient_mismatch(case, result.gradients, alone[number])
            if wrong is None:
                continue
            name = case.inputs[wrong.number].name
            message = (
                f"interleaved calls disturb each other ({situation}): the gradient of `{name}` of the "
                f"{('first', 'second')[number]} call is {wrong.words}; state is shared between calls."
            )
            where = Where(name, index=case.locate_input(wrong.number, wrong.position))
            script = _interleaved_script(case)
            return Finding("fail", message, STATE, where, wrong.got, wrong.want, wrong.allowed, script)
    return None


def _gradients_kept(case: Case, other: dict[int, Tensor], v: Tensor, w: Tensor) -> Finding | None:
    first, second = case.forward(), case.forward(other)
    gradients = _pull(case, first, v).gradients
    present = [(k, g) for k, g in enumerate(gradients) if g is not None and g.layout == torch.strided]
    before = snapshot([g for _, g in present])
    later = _pull(case, second, w).gradients
    for (k, gradient), old in zip(present, before):
        change = first_change(gradient, old)
        if change is not None:
            name = case.inputs[k].name
            message = f"a later backward overwrites the gradient of `{name}` that an earlier one returned: {change}."
            del later
            return Finding("fail", message, BUFFER, Where(name), repro=_interleaved_script(case))
    return None


def _accumulated(case: Case, v: Tensor) -> Finding | None:
    """Accumulate two equal gradients into leaves: what backward returned may be written to by then."""
    tensors = case.fresh_inputs()
    runs = [case.forward_on(tensors), case.forward_on(tensors)]
    once = case.pull_all(v)
    kept = [(f"output {p}", out) for p, out in enumerate(runs[0].outputs) if out.layout == torch.strided]
    try:
        _accumulate(case, runs[0], v)
        before = snapshot([t for _, t in kept])
        _accumulate(case, runs[1], v)
    except Exception:
        return None  # refused, which other contracts report
    wrong = gradient_mismatch(case, [t.grad for t in tensors], [2 * g for g in once])
    if wrong is not None:
        name = case.inputs[wrong.number].name
        message = (
            f"accumulating two equal gradients gives {wrong.words} for `{name}`: a returned gradient shares memory "
            "with another gradient or with a buffer, and is changed when the second one is added in place."
        )
        where = Where(name, index=case.locate_input(wrong.number, wrong.position))
        return Finding("fail", message, BUFFER, where, wrong.got, wrong.want, wrong.allowed, _accumulate_script(case))
    for (words, tensor), old in zip(kept, before):
        change = first_change(tensor, old)
        if change is not None:
            message = f"accumulating gradients overwrites {words}: {change}; a returned gradient shares its memory."
            return Finding("fail", message, BUFFER, repro=_accumulate_script(case))
    return None


def _in_another_thread(case: Case, v: Tensor) -> Finding | None:
    """Run backward where thread-local state of forward is not there."""
    run, want, results = case.forward(), case.pull_all(v), list[Attempt]()
    thread = threading.Thread(target=lambda: results.append(_pull(case, run, v)), daemon=True)
    thread.start()
    thread.join()
    if not results:
        return None  # stopped from outside
    hint = "keep what backward needs on ctx: thread-local state of forward is not there when the engine uses a thread."
    if results[0].error is not None:
        message = (
            f"backward raises {results[0].complaint} in another thread than forward, as the engine runs it on GPUs."
        )
        return Finding("fail", message, hint)
    wrong = gradient_mismatch(case, results[0].gradients, want)
    if wrong is None:
        return None
    name = case.inputs[wrong.number].name
    message = (
        f"the gradient of `{name}` is another one when backward runs in another thread than forward, as on GPUs: "
        f"{wrong.words}."
    )
    where = Where(name, index=case.locate_input(wrong.number, wrong.position))
    return Finding("fail", message, hint, where, wrong.got, wrong.want, wrong.allowed)


def _accumulate(case: Case, run: Pass, v: Tensor) -> None:
    with case.sandbox():
        # Only our own leaves: the .grad of those that the subject holds is not ours to touch.
        torch.autograd.backward(run.differentiable, case.cotangents(v), inputs=run.inputs)


def _repeated(case: Case, v: Tensor, changed: Sequence[str]) -> tuple[Finding | None, int]:
    """Repeat one call while time lasts; return what changed, and how many calls there were."""
    state = f"; it keeps state between calls ({', '.join(changed[:3])})" if changed else ""
    end = time.process_time() + SECONDS[case.level]
    first: Sequence[Tensor] = case.pull_all(v)
    for number in range(REPEATS):
        wrong = gradient_mismatch(case, case.pull_all(v), first)
        if wrong is not None:
            name = case.inputs[wrong.number].name
            message = f"the gradient of `{name}` changes at repeated call {number + 2}: {wrong.words}{state}."
            where = Where(name, index=case.locate_input(wrong.number, wrong.position))
            return Finding("fail", message, STATE, where, wrong.got, wrong.want, wrong.allowed), number + 2
        if time.process_time() > end:
            break
    return None, number + 2


def _change_inputs(case: Case) -> list[str]:
    names = [repro.variable(item.name) for item in case.inputs if case.arguments[item.argument].origin != "parameter"]
    return [f"{name} = (0.75 * {name}.detach()).requires_grad_()" for name in names]


def _interleaved_script(case: Case) -> str:
    x = repro.variable(case.inputs[0].name)
    body = [
        f"inputs, total = {x}, sum(t.sum() for t in {repro.listed(case)})",
        "alone = torch.autograd.grad(total, inputs)[0].clone()",
        f"out = {repro.call(case)}",
        f"total = sum(t.sum() for t in {repro.listed(case)})",
        *_change_inputs(case),
        f"out = {repro.call(case)}",
        "early = torch.autograd.grad(total, inputs)[0]",
        'print("alone:      ", alone)',
        'print("interleaved:", early.clone())',
        f"torch.autograd.grad(sum(t.sum() for t in {repro.listed(case)}), {x})",
        'print("later:      ", early)',
    ]
    return repro.script(case, body)


def _accumulate_script(case: Case) -> str:
    names = ", ".join(repro.variable(item.name) for item in case.inputs)
    body = [
        "for _ in range(2):",
        f"    out = {repro.call(case)}",
        f"    sum(t.sum() for t in {repro.listed(case)}).backward()",
        f"    print([t.grad for t in [{names}]])",
    ]
    return repro.script(case, body)
