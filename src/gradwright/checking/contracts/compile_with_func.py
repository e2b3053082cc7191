"""torch.compile around torch.func keeps the rule.

## What it checks
``torch.compile`` (backend ``aot_eager``) of a function that calls ``torch.func.grad``, ``vjp``, ``jvp`` or ``vmap`` of
the subject, by value. For ``vmap`` the compiled result is differentiated. Where eager torch.func refuses the subject
and the compiled one gives another gradient, the verdict is ``unsupported``. A rule that is dropped but equals the
derivative autograd makes up itself cannot be told from one that is kept, and does no harm: it passes.

## Why it matters
While it traces torch.func, PyTorch 2.13 replaces the backward and jvp of an ``autograd.Function`` by the derivative of
the operations in forward, without an error. A straight-through estimator then trains with zero gradients. The rule is
not at fault, but its user gets another derivative.

## If it fails
Keep torch.func out of the compiled function: compile the function that is differentiated, not the one that
differentiates. Or write a straight-through rule in plain operations, which every transform keeps:
``f(x).detach() + (s - s.detach())`` with the surrogate ``s``.

## References
pytorch/pytorch issues 193279, 192985 and 129845.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.audit import random_cotangent
from gradwright.checking.case import Case
from gradwright.checking.compiling import broken_compiler, fresh_compiler
from gradwright.checking.contracts import contract
from gradwright.checking.differences import signed
from gradwright.checking.guards import without_gradients
from gradwright.checking.judge import Tolerance
from gradwright.checking.plain import plain_call
from gradwright.checking.replaced import replacement
from gradwright.checking.report import Outcome
from gradwright.checking.tensors import from_flat, join, to_flat
from gradwright.checking.transforms import Result, compare, inner_product, leaves, observe, spread
from gradwright.checking.trials import Trial, conclude, failed, refusal, refused

Tensors = tuple[Tensor, ...]
Transform = Callable[[Sequence[Tensor]], Result]

NOTHING = torch.empty(0, dtype=torch.float64)
ISSUES = {"vmap": "pytorch/pytorch#129845", "jvp": "pytorch/pytorch#192985"}
HINT = (
    "keep torch.func out of the compiled function (compile the function that is differentiated, not the one that "
    "differentiates), or write a straight-through rule in plain operations, as gw.surrogate does."
)


@contract(asks="does it compose?", level="full", presupposes=("linear-in-cotangent", "func-transforms", "compile"))
def examine(case: Case) -> Outcome:
    """Compile torch.func transforms of the subject and compare with eager autograd."""
    case = case.exact
    obstacle = without_gradients(case)
    if obstacle is not None:
        return obstacle
    if torch_compat.compiler_is_off():
        return Outcome("skipped", "torch.compile is switched off (TORCHDYNAMO_DISABLE)")
    probe = _Probe(case)
    trials = []
    for name in ("vjp", "grad", "jvp", "vmap"):
        with fresh_compiler():
            trial = _try(probe, name)
            broken = broken_compiler("aot_eager") if trial.verdict == "unsupported" else None
            trials.append(trial if broken is None else Trial(trial.transform, "skipped", broken))
    return conclude(case, trials, "as eager autograd gives", Tolerance.for_epsilon(case.epsilon).relative)


def _try(probe: _Probe, name: str) -> Trial:
    label, case = f"compile of {name}", probe.case
    transform: Callable[..., Result] = getattr(probe, name)
    try:
        eager: Result | None = transform(compiled=False)
        said = ""
    except Exception as error:
        eager, said = None, refusal(error)
    try:
        got = transform(compiled=True)
    except Exception as error:
        return Trial(label, "unsupported", said) if said else refused(label, error)
    want, scatter = probe.reference(name)
    if name == "jvp" and eager is not None:
        want = eager  # which agrees with backward only where the rules do; that is for modes-agree to judge
    mismatch = compare(case, got, want, scatter)
    if mismatch is None:
        return Trial(label, "pass")
    if "seeded" in (case.randomness, case.backward_randomness):
        return Trial(label, "unresolved", "it draws other random numbers when it is compiled")
    how = replacement(case, probe.v, got) if got.gradients else "the rule was dropped"
    issue = ISSUES.get(name, "pytorch/pytorch#193279")
    noun = "the projected tangent" if name == "jvp" else "the value"
    if eager is None:
        words = f"{said}; inside torch.compile torch.func does not even refuse it: {how or 'it gives another gradient'}"
        return Trial(label, "unsupported", f"{words} ({issue})")
    message = f"torch.compile around torch.func.{name}: {mismatch.describe(value=noun)}"
    if how:
        message += f": {how}, without an error ({issue})"
    return failed(label, f"{message}. The rule itself is not at fault.", HINT, mismatch)


class _Probe:
    """The transforms of one case, each in eager mode or compiled."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.call = plain_call(case)
        self.v, self.w = random_cotangent(case, "compile v"), random_cotangent(case, "compile w")
        self.u = [signed(n, case.generator(f"compile u {k}")) for k, n in enumerate(case.n)]

    def reference(self, name: str) -> tuple[Result, Callable[[], Result]]:
        """Return what eager autograd gives for a transform, and its scatter."""
        case, v = self.case, self.v
        want = observe(case, v)
        if name == "jvp":
            # <v, J u> = <B(v), u>, so that backward is the reference for a subject without a jvp rule too.
            first = join([torch.dot(g, u).reshape(1) for g, u in zip(want.gradients, self.u)]).sum()
            return self._projected(first), lambda: self._projected(self._spread_of_projection())
        if name == "vmap":
            other = observe(case, self.w)
            gradients = [a + b for a, b in zip(want.gradients, other.gradients)]

            def scatter() -> Result:
                one, two = spread(case, v), spread(case, self.w)
                return Result(NOTHING, [a + b for a, b in zip(one.gradients, two.gradients)])

            return Result(NOTHING, gradients), scatter
        return Result(NOTHING, want.gradients), lambda: Result(NOTHING, spread(case, v).gradients)

    def _spread_of_projection(self) -> Tensor:
        moved = spread(self.case, self.v)
        return torch.stack([(g * u.abs()).sum() for g, u in zip(moved.gradients, self.u)]).sum()

    def _projected(self, number: Tensor) -> Result:
        value = torch.zeros(self.case.m, dtype=torch.float64)
        value[0] = number
        return Result(value, [])

    def _function(self, others: Sequence[Tensor]) -> Callable[..., Tensors]:
        run, places, in_place = self.call.run, self.call.places, self.case.in_place

        def function(*inputs: Tensor) -> Tensors:
            tensors = list(others)
            for place, tensor in zip(places, inputs):
                tensors[place] = tensor.clone() if in_place else tensor
            return run(*tensors)

        return function

    def _prepared(self) -> tuple[list[Tensor], list[Tensor], Tensors]:
        inputs = [leaf.detach() for leaf in leaves(self.case)]
        return inputs, self.call.arguments(inputs), tuple(self.case.cotangents(self.v))

    def _run(self, function: Callable[..., Tensors], inputs: Sequence[Tensor], compiled: bool) -> Tensors:
        ready = torch.compile(function, backend="aot_eager") if compiled else function
        with self.case.sandbox():
            result: Tensors = ready(*inputs)
        return result

    def vjp(self, *, compiled: bool) -> Result:
        """B(v) by torch.func.vjp."""
        inputs, others, cotangents = self._prepared()
        function = self._function(others)

        def pulled(*xs: Tensor) -> Tensors:
            pull = torch.func.vjp(function, *xs)[1]
            return tuple(pull(cotangents))

        got = self._run(pulled, inputs, compiled)
        return Result(NOTHING, self.case.flatten_inputs([g.detach() for g in got]))

    def grad(self, *, compiled: bool) -> Result:
        """The gradient of <v, f> by torch.func.grad."""
        inputs, others, cotangents = self._prepared()
        function = self._function(others)

        def scalar(*xs: Tensor) -> Tensor:
            return inner_product(function(*xs), cotangents)

        got = self._run(torch.func.grad(scalar, tuple(range(len(inputs)))), inputs, compiled)
        return Result(NOTHING, self.case.flatten_inputs([g.detach() for g in got]))

    def jvp(self, *, compiled: bool) -> Result:
        """<v, J u> by torch.func.jvp."""
        inputs, others, _ = self._prepared()
        function = self._function(others)
        tangents = tuple(from_flat(u, item.tensor) for u, item in zip(self.u, self.case.inputs))

        def pushed(*xs: Tensor) -> Tensors:
            return tuple(torch.func.jvp(function, xs, tangents)[1])

        got = [t.detach() for t in self._run(pushed, inputs, compiled)]
        return self._projected(torch.dot(self.case.flatten_outputs(got), self.v))

    def vmap(self, *, compiled: bool) -> Result:
        """The gradients of two equal examples with the cotangents v and w, added up."""
        inputs, others, cotangents = self._prepared()
        batched = [torch.stack([x, x]).requires_grad_() for x in inputs]
        outputs = self._run(torch.func.vmap(self._function(others), randomness="same"), batched, compiled)
        stacked = [torch.stack([a, b]) for a, b in zip(cotangents, self.case.cotangents(self.w))]
        pairs = [(out, c) for out, c in zip(outputs, stacked) if out.requires_grad]
        if not pairs:
            return Result(NOTHING, self.case.flatten_inputs([None] * len(inputs)), connected=False)
        with self.case.sandbox():
            got = torch.autograd.grad([o for o, _ in pairs], batched, [c for _, c in pairs], allow_unused=True)
        filled = [torch.zeros_like(x) if g is None else g for g, x in zip(list[Tensor | None](got), batched)]
        return Result(NOTHING, [to_flat(g.sum(0)).to(torch.float64) for g in filled])
