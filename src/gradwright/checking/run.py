"""``check``: run every contract on every sample of a subject and put the verdicts together."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

from gradwright import torch_compat
from gradwright.checking.allowances import NONE, Allowances
from gradwright.checking.audit import audit
from gradwright.checking.case import Case
from gradwright.checking.cases import make_cases
from gradwright.checking.contracts import Contract, all_contracts
from gradwright.checking.defaults import current
from gradwright.checking.earlier import FORWARD, NOTHING, SHRINKING, Earlier
from gradwright.checking.gradcheck import UNPACKED, as_arguments, translate
from gradwright.checking.grading import as_consequence, as_declared, insist, merged, soften
from gradwright.checking.illustrate import drawn
from gradwright.checking.intent import declared, parse_intent, read_marker, stated
from gradwright.checking.limits import TimeLimitError, time_limit
from gradwright.checking.remarks import remarks
from gradwright.checking.report import (
    ContractResult,
    Finding,
    Outcome,
    Report,
    SampleNote,
)
from gradwright.checking.samples import Sample
from gradwright.checking.settings import neutral, preserved_settings
from gradwright.checking.shrink import Shrinker
from gradwright.checking.sources import sources_of
from gradwright.checking.subject import Subject, as_subject
from gradwright.errors import (
    OptionError,
    SampleError,
    describe_exception,
    required_and_skipped,
    unknown_choice,
    unknown_name,
)
from gradwright.typing import GUESSED, LEVELS, Intent, Level, TensorFunction

SECONDS_PER_CONTRACT: dict[Level, float] = {"quick": 10.0, "standard": 60.0, "full": 600.0}
"""A contract that takes longer on one sample is stopped and reported as unresolved."""

SECONDS_TO_BEGIN = 120.0
"""The first forward on a sample may take as long at any level: code that is compiled when it is first called is rare,
and slow."""


def check(
    subject: Any,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    surrogate: TensorFunction | None = None,
    reference: TensorFunction | None = None,
    domain: Any = None,
    intent: Intent | Sequence[Intent] | None = None,
    level: Level | None = None,
    only: Collection[str] | str | None = None,
    skip: Collection[str] | str | None = None,
    require: Collection[str] | str | None = None,
    seed: int | None = None,
    eps: float | None = None,
    atol: float = 0.0,
    rtol: float = 0.0,
    nondet_tol: float = 0.0,
    **gradcheck_flags: bool,
) -> Report:
    """Check a custom gradient against its whole contract.

    Arguments:
        subject: a ``torch.autograd.Function`` class in either style, its ``apply``, a custom op, an ``nn.Module``
            (its parameters become inputs by name), or any callable of tensors.
        inputs: the positional arguments, tensors of any shape and floating or complex dtype among them. Tensors with
            ``requires_grad=True`` are differentiated and the others are constants; when none has it, all floating-point
            and complex tensors are differentiated. As for gradcheck, they may also be given as one tuple.
        kwargs: keyword arguments.
        surrogate: the function whose derivative the rule uses instead of the true one, for straight-through and
            surrogate gradients; called with the same arguments, returns outputs of the same shapes.
        reference: a plain-PyTorch version of the subject, called in the same way; value and gradient must agree.
        domain: closed bounds ``(low, high)`` of all real inputs, or a dictionary from input names to such pairs; None
            for no bound. Inputs are varied to find weak places, but never beyond the domain.
        intent: what the rule means to be, where that is not the derivative of forward: one or several of ``surrogate``,
            ``scaled``, ``reversed``, ``side-loss``, ``forward-only``, ``first-order-only`` (or ``exact``); instead of a
            marker in the source.
        level: ``quick``, ``standard`` or ``full``: how much work may be done. Where this or one of the next four is
            None, ``@pytest.mark.gradwright`` decides for the calls of a test; otherwise it is ``standard``.
        only: ids of the contracts to examine, instead of all.
        skip: ids of contracts to leave out; none, where it is None.
        require: ids of contracts for which ``unsupported`` counts as a failure, at any level; none, where it is None.
        seed: seed of all random choices, a non-negative integer; another seed looks along other random directions. 0,
            where it is None.
        eps: step of a plain central difference that acquits an accused entry with which it agrees. This and the next
            three have gradcheck's names, and only ever allow more.
        atol: error of each derivative that is allowed beyond its error bar, whatever its size.
        rtol: the same as a fraction of the derivative.
        nondet_tol: how far two runs on the same inputs may differ.
        gradcheck_flags: other flags of ``torch.autograd.gradcheck``, for code that moves over: see *Coming from
            gradcheck* in the documentation.

    Returns:
        The report; ``bool(report)`` is true when nothing failed.

    Raises:
        SubjectTypeError: ``subject`` is nothing that can be checked.
        SampleError: the inputs do not fit the subject, or there is nothing to differentiate.
        ForwardError: forward raised on the inputs.
        OptionError: an option has an unknown value.

    Example:
        >>> import torch
        >>> import gradwright as gw
        >>> class Exp(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         out = torch.exp(x)
        ...         ctx.save_for_backward(out)
        ...         return out
        ...     @staticmethod
        ...     def backward(ctx, g):
        ...         (out,) = ctx.saved_tensors
        ...         return g * out
        >>> bool(gw.check(Exp, torch.randn(3, dtype=torch.float64)))
        True
    """
    for word, function in (("surrogate", surrogate), ("reference", reference)):
        if function is not None and not callable(function):
            raise OptionError(
                f"{word}: got an object of type {type(function).__name__}; expected a function that is called with the "
                "same arguments as forward; for a straight-through rule declare surrogate=lambda x: x."
            )
    usual = current()
    given = dict(kwargs) if kwargs is not None else {}
    meant = None if intent is None else parse_intent(intent, "intent", OptionError)
    sample = Sample(tuple(inputs), given, surrogate, reference, domain, intent=meant)
    allowances = Allowances(eps, atol, rtol, nondet_tol)
    moved = translate(gradcheck_flags, signature(check).parameters)
    target = as_subject(subject)
    with neutral(sample.elements):
        taken = as_arguments(target, sample)
    return check_subject(
        target,
        [taken],
        level=usual.level if level is None else level,
        only=usual.only if only is None else only,
        skip=[*_listed(usual.skip if skip is None else skip), *moved.skip],
        require=[*_listed(usual.require if require is None else require), *moved.require],
        seed=usual.seed if seed is None else seed,
        notes=[*moved.notes, *([UNPACKED] if taken is not sample else [])],
        allowances=allowances,
    )


def check_subject(
    subject: Subject,
    samples: Sequence[Sample],
    *,
    level: Level = "standard",
    only: Collection[str] | str = (),
    skip: Collection[str] | str = (),
    require: Collection[str] | str = (),
    seed: int = 0,
    notes: Sequence[str] = (),
    allowances: Allowances = NONE,
    seconds: float | None = None,
    observe: Callable[[str, float], None] = lambda what, seconds: None,
    deliver: Callable[[ContractResult], None] = lambda result: None,
    earlier: Earlier = NOTHING,
) -> Report:
    """Check a subject on several samples; see :func:`check` for the options and what is raised.

    Arguments:
        notes: remarks for the reader of the report.
        allowances: what counts as right beyond the error bars.
        seconds: what forward may take to begin with, and a contract on one sample; None for what the level allows.
        observe: called with :data:`FORWARD` before that is done, and with the id of each contract before it is
            examined on a sample; also told how many seconds that may take.
        deliver: called with the result of each contract, before it is known what else it may follow from.
        earlier: what other processes found out about the same subject on the same samples before they ended.
    """
    start = time.perf_counter()
    if level not in LEVELS:
        raise unknown_choice("level", level, LEVELS)
    chosen = choose_contracts(level, only, skip, require)
    required = _known_ids("require", require)
    if type(seed) is not int or seed < 0:  # a bool is no seed
        raise OptionError(f"seed: got {seed!r}; expected an integer that is not negative.")
    if subject.surrogate is not None:
        samples = [s if s.surrogate is not None else replace(s, surrogate=subject.surrogate) for s in samples]
    marker = read_marker(subject)
    if marker is not None and marker.words:
        samples = [s if s.intent is not None else replace(s, intent=marker.words) for s in samples]
    with neutral(subject.elements + max((sample.elements for sample in samples), default=0)):
        limit = SECONDS_PER_CONTRACT[level] if seconds is None else seconds
        begin = max(limit, SECONDS_TO_BEGIN) if seconds is None else seconds

        def made(sample: Sample) -> Case:
            observe(FORWARD, begin)
            with time_limit(begin):
                return Case(subject, sample, level, seed, allowances=allowances)

        cases, left_out = make_cases(subject, samples, made, begin)
        said = [*notes, *left_out, *filter(None, [allowances.describe()]), *remarks(subject, cases)]
        said += marker.problems if marker is not None else ()
        owners: list[tuple[Finding, Case]] = []
        results = []
        for contract in chosen:
            result = earlier.result(contract.id, contract.asks)
            if result is None:
                result = _examine_all(contract, cases, required, limit, observe, owners)
            deliver(_worded(result, subject))
            results.append(result)
        verdicts = {result.id: result.verdict for result in results}
        results = [as_consequence(result, verdicts) for result in results]
        if SHRINKING not in earlier.lost and any(result.verdict == "fail" for result in results):
            observe(SHRINKING, limit)
            shrinker = Shrinker(level)
            results = [_with_small_repros(shrinker, contract, r, owners) for contract, r in zip(chosen, results)]
    hung = {case.hung_under for case in cases}
    intent = stated(samples, marker, results)
    if intent is not None and intent.origin == "guessed":
        said.append(f"intent: {intent}")
    return Report(
        name=subject.name,
        kind=subject.kind,
        file=subject.file,
        line=subject.line,
        level=level,
        seed=seed,
        samples=tuple(SampleNote(case.sample.provenance, _describe(case)) for case in cases),
        results=tuple(_worded(result, subject) for result in results),
        notes=tuple(said),
        seconds=time.perf_counter() - start,
        torch_version=torch_compat.version(),
        allowances=allowances.granted(),
        ended=tuple(contract.id for contract in chosen if contract.id in {*earlier.lost, *hung}),
        rule=subject.rule,
        intent=intent,
        source=sources_of(subject),
    )


def choose_contracts(
    level: Level,
    only: Collection[str] | str = (),
    skip: Collection[str] | str = (),
    require: Collection[str] | str = (),
) -> list[Contract]:
    """Return the contracts to examine at a level; ``only`` and ``require`` name some whatever their level.

    Raises:
        OptionError: an id is unknown, or both required and skipped.
    """
    wanted, unwanted, required = _known_ids("only", only), _known_ids("skip", skip), _known_ids("require", require)
    for name in required & unwanted:
        raise required_and_skipped(name)
    return [
        contract
        for contract in all_contracts().values()
        if contract.id in required
        or (contract.id not in unwanted and (contract.id in wanted if wanted else contract.runs_at(level)))
    ]


def _listed(ids: Collection[str] | str) -> list[str]:
    return [ids] if isinstance(ids, str) else list(ids)


def _known_ids(option: str, ids: Collection[str] | str) -> set[str]:
    names = _listed(ids)
    for name in names:
        if name not in all_contracts():
            raise unknown_name(option, name, all_contracts(), "gradwright explain")
    return set(names)


def _examine_all(
    contract: Contract,
    cases: Sequence[Case],
    required: set[str],
    limit: float,
    observe: Callable[[str, float], None],
    owners: list[tuple[Finding, Case]],
) -> ContractResult:
    """Examine one contract on all cases; ``owners`` gets each finding with its case."""
    start = time.perf_counter()
    outcomes = []
    for case in cases:
        if case.sample.contracts is not None and contract.id not in case.sample.contracts:
            continue
        observe(contract.id, limit)
        outcome = _examine(contract, case, limit)
        if contract.id not in required and declared(case):
            outcome = as_declared(contract.id, outcome, declared(case), case.audit is None or audit(case).usable)
        outcomes.append(outcome)
        owners += [(finding, case) for finding in outcome.findings]
    if not outcomes:
        outcomes = [Outcome("skipped", "no sample is small enough for it")]
    if contract.id in required:
        outcomes = [insist(outcome) for outcome in outcomes]
    return merged(contract, outcomes, time.perf_counter() - start)


def _with_small_repros(
    shrinker: Shrinker, contract: Contract, result: ContractResult, owners: Sequence[tuple[Finding, Case]]
) -> ContractResult:
    if result.verdict != "fail":
        return result

    def small(finding: Finding) -> Finding:
        case = next((case for found, case in owners if found is finding), None)
        return finding if case is None else shrinker.shrink(contract, case, finding, result.seconds)

    return replace(result, findings=tuple(map(small, result.findings)))


def _examine(contract: Contract, case: Case, limit: float) -> Outcome:
    if case.hung_under is not None:
        return Outcome("unresolved", "not tried: backward did not return within the limit of an earlier contract")
    try:
        with time_limit(limit), preserved_settings():
            outcome = contract.examine(case)
        outcome = drawn(outcome, limit)
    except TimeLimitError:
        if case.audit is None:  # not a single backward has come back
            case.hung_under = contract.id
        return Outcome(
            "unresolved", f"stopped after {limit:g} s: it hangs, or a smaller sample or a higher level would finish"
        )
    except SampleError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the subject failed in a way the contract did not foresee: say so, check the rest
        return Outcome("unresolved", f"could not be examined: {describe_exception(error)}")
    if not contract.depends_on_meaning:
        return outcome
    if case.sample.provenance in GUESSED:
        return soften(outcome)
    return soften(outcome, case.sample.doubt) if case.sample.doubt else outcome


def _worded(result: ContractResult, subject: Subject) -> ContractResult:
    """Speak of the cotangent as the user of ``custom_gradient`` does."""
    if subject.kind != "custom gradient":
        return result
    own = subject.in_own_words
    findings = tuple(replace(f, message=own(f.message), hint=f.hint and own(f.hint)) for f in result.findings)
    support = tuple(replace(row, reason=own(row.reason)) for row in result.support)
    return replace(result, message=own(result.message), findings=findings, support=support)


def _describe(case: Case) -> str:
    label = f"{case.sample.name}: " if case.sample.name else ""
    return label + case.describe()
