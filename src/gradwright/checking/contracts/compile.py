"""Compiled, the subject gives the values and gradients it gives in eager mode.

## What it checks
``torch.compile`` around the call (backend ``aot_eager``; at level ``full`` also ``inductor``), first with
``fullgraph=True`` and, where that is refused, without: value and gradient against eager mode at the sample, at other
values of the same shape (a number that was baked in shows there) and at another size (dynamic shapes). Double backward
through compiled code is compared where it runs; PyTorch itself refuses it for whole graphs, and the report says so.
Graph breaks are not failures, and are reported.

## Why it matters
What the compiler traces need not be what runs: Python side effects, global state, numbers read from tensors, and a rule
that takes another path while it is compiled give another gradient without an error.

## If it fails
Keep forward and backward to operations on their arguments and on what was saved; read no globals that change; do not
branch on ``torch.compiler.is_compiling()`` to other mathematics.

## References
pytorch/pytorch issues 183604, 184113, 180642 and 180284.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.compiling import Compiled, broken_compiler, first_line, fresh_compiler
from gradwright.checking.contracts import contract
from gradwright.checking.differences import signed
from gradwright.checking.guards import without_gradients
from gradwright.checking.judge import Tolerance
from gradwright.checking.replaced import replacement
from gradwright.checking.report import Outcome
from gradwright.checking.second import double_backward, weighted
from gradwright.checking.subject import Argument
from gradwright.checking.transforms import Result, compare, leaves, observe, spread
from gradwright.checking.trials import Trial, conclude, failed, refused
from gradwright.errors import ForwardError, SampleError

FACTOR = 1 - 2.0**-4
"""The second point is this multiple of the sample, so that signs, symmetries and most domains are kept."""
HINT = (
    "keep forward and backward to operations on their arguments and on saved tensors: no global state, no Python side "
    "effects, no numbers read from tensors, no other formula under torch.compiler.is_compiling()."
)


@contract(asks="does it compose?", level="standard", presupposes=("linear-in-cotangent",))
def examine(case: Case) -> Outcome:
    """Compile the subject and compare with eager mode."""
    case = case.exact
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    if torch_compat.compiler_is_off():
        return Outcome("skipped", "torch.compile is switched off (TORCHDYNAMO_DISABLE)")
    backends = ["aot_eager", "inductor"] if case.level == "full" else ["aot_eager"]
    with fresh_compiler():
        trials, notes = [], []
        for backend in backends:
            trial, note = _with_backend(case, backend)
            broken = broken_compiler(backend) if trial.verdict == "unsupported" else None
            trial = trial if broken is None else Trial(trial.transform, "skipped", broken)
            trials.append(trial)
            notes += [note] if note else []
    passed = "; ".join(["values and gradients as in eager mode", *dict.fromkeys(notes)])
    return conclude(case, trials, passed, Tolerance.for_epsilon(case.epsilon).relative)


def _with_backend(case: Case, backend: str) -> tuple[Trial, str]:
    name, note = f"compile ({backend})", ""
    runner = Compiled(case, backend=backend, fullgraph=True)
    v = random_cotangent(case, "compile")
    try:
        first = observe(case, v, runner)
    except Exception as error:
        note = f"not as a whole graph (fullgraph=True {first_line(error)})"
        torch_compat.reset_compiler()
        runner = Compiled(case, backend=backend, fullgraph=False)
        try:
            first = observe(case, v, runner)
        except Exception as again:
            return refused(name, again), ""
    trial = _compared(case, name, v, first, {}, "")
    if trial is not None:
        return trial, ""
    try:
        other = {k: x * FACTOR for k, x in enumerate(case.base)}
        if bool(case.value(other).isfinite().all()):
            trial = _compared(case, name, v, observe(case, v, runner, other), other, ", at other values of that shape")
        trial = trial or _other_size(case, name, runner) or _twice(case, name, runner)
    except Exception as error:
        return refused(name, error), ""
    return trial or Trial(name, "pass"), note


def _compared(
    case: Case, name: str, v: Tensor, got: Result, flats: dict[int, Tensor], where: str, want: Result | None = None
) -> Trial | None:
    want = want or observe(case, v, flats=flats)
    mismatch = compare(case, got, want, lambda: spread(case, v, flats))
    if mismatch is None:
        return None
    if "seeded" in (case.randomness, case.backward_randomness):
        return Trial(
            name, "unresolved", "it draws other random numbers when it is compiled, so nothing can be compared"
        )
    how = None if mismatch.input is None else replacement(case, v, got, flats)
    message = f"under {name}{where} {mismatch.describe()}{': ' + how if how else ''}."
    return failed(name, message, HINT, mismatch)


def _other_size(case: Case, name: str, runner: Compiled) -> Trial | None:
    """Call the compiled function on inputs twice as long, where the subject runs on such."""
    longer = _longer(case)
    if longer is None:
        return None
    v = random_cotangent(longer, "compile longer")
    got = observe(longer, v, runner.on(longer))
    return _compared(longer, name, v, got, {}, ", at another size")


def _longer(case: Case) -> Case | None:
    size = next((i.tensor.shape[0] for i in case.inputs if i.tensor.dim()), 0)
    if size < 2:
        return None

    def twice(argument: Argument) -> Argument:
        value = argument.value
        fits = isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == size
        if not fits or argument.origin in ("parameter", "buffer"):
            return argument
        longer = torch.cat([value.detach(), value.detach()]).requires_grad_(value.requires_grad)
        return Argument(argument.name, longer, argument.origin)

    try:
        made = case.on([twice(a) for a in case.arguments])
        return made if len(made.inputs) == len(case.inputs) and not made.detached else None
    except (SampleError, ForwardError):
        return None


def _twice(case: Case, name: str, runner: Compiled) -> Trial | None:
    """Compare double backward; None also when either side refuses it, as PyTorch does for whole graphs."""
    v, weights = random_cotangent(case, "compile"), [signed(n, case.generator("compile w")) for n in case.n]
    try:
        want = double_backward(case, v, weights)
        fresh = leaves(case)
        with case.sandbox():
            outputs = runner(*fresh)
            cotangents = [c.requires_grad_() for c in case.cotangents(v)]
            first = torch.autograd.grad(list(outputs), fresh, cotangents, create_graph=True, allow_unused=True)
            second = torch.autograd.grad(weighted(first, weights), fresh)
    except Exception:
        return None
    if want is None:
        return None
    nothing = torch.empty(0, dtype=torch.float64)
    got = Result(nothing, case.flatten_inputs(list(second)))
    mismatch = compare(case, got, Result(nothing, want[0]), lambda: spread(case, v))
    if mismatch is None or "seeded" in (case.randomness, case.backward_randomness):
        return None
    return failed(name, f"under {name}, differentiated twice, {mismatch.describe()}.", HINT, mismatch)
