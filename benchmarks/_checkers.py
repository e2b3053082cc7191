"""The checkers that ``detection.py`` compares: gradwright, PyTorch's own, one random direction."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

import gradwright as gw
from gradwright.checking.contracts import all_contracts
from tests.controls.entries import Control, all_controls
from tests.defects.entries import Defect, all_defects

Row = dict[str, Any]
Verdict = tuple[bool, bool, str, dict[str, str]]
"""Passed, crashed, what was said, verdicts of the contracts."""


# -------------------------------------------------------------------- gradwright


REMARKS = "\n-- remarks --\n"
"""What stands between accusations and remarks in what a checker says."""
COMPILING = ("compile", "compile-with-func", "export")
"""Contracts that take seconds each: run on the defects that they are meant to find."""


def gradwright(level: str) -> Callable[..., Verdict]:
    """Return gradwright at a level as a checker."""

    def run(subject: Any, inputs: tuple[Any, ...], options: dict[str, Any], seed: int) -> Verdict:
        known = inspect.signature(gw.check).parameters
        chosen = {key: value for key, value in options.items() if key in known and key != "level"}
        chosen["skip"] = options.get("skip", COMPILING)
        chosen["require"] = [i for i in options.get("require", ()) if i in all_contracts()]
        try:
            report = gw.check(subject, *inputs, level=level, seed=seed, **chosen)
        except gw.GradwrightError as error:
            return False, False, f"refused: {error}", {}
        bad = [r for r in report.results if r.verdict in ("fail", "suspect")]
        lines = [f"{r.id}: {r.message}" for r in bad]
        lines += [f"{f.message} {f.hint or ''} {f.where or ''}" for r in bad for f in r.findings]
        remarks = [*report.notes, *(r.message for r in report.results if r.verdict == "pass")]
        return (
            not bad,
            False,
            "\n".join(lines) + REMARKS + "\n".join(remarks),
            {r.id: r.verdict for r in report.results},
        )

    return run


# -------------------------------------------------------------------- PyTorch


def torch_checker(check: Callable[..., bool], largest: int, **flags: Any) -> Callable[..., Verdict]:
    """Return one of PyTorch's checkers with some flags; with more than ``largest`` elements it takes minutes."""

    def run(subject: Any, inputs: tuple[Any, ...], options: dict[str, Any], seed: int) -> Verdict:
        function, tensors = _prepared(subject, inputs, options)
        if sum(t.numel() for t in tensors if isinstance(t, Tensor)) > largest:
            return True, False, "too large: not run", {}
        chosen = dict(flags)
        if flags.get("check_forward_ad"):
            has_jvp = _has_jvp(subject)
            chosen |= {"check_forward_ad": has_jvp, "check_batched_forward_grad": has_jvp}
        try:
            check(function, tensors, **chosen)
        except GradcheckError as error:
            return False, False, str(error), {}
        except Exception as error:
            return False, True, f"{type(error).__name__}: {error}", {}
        return True, False, "", {}

    return run


def _has_jvp(subject: Any) -> bool:
    return inspect.isclass(subject) and issubclass(subject, Function) and "jvp" in vars(subject)


def _prepared(subject: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """Return the subject as a plain function, and inputs of which all floating-point tensors are leaves."""
    call = subject.apply if inspect.isclass(subject) and issubclass(subject, Function) else subject
    kwargs = options.get("kwargs", {})
    chosen = any(isinstance(i, Tensor) and i.requires_grad for i in inputs)

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad or not chosen)

    return (lambda *args: call(*args, **kwargs)), tuple(leaf(value) for value in inputs)


# -------------------------------------------------------------------- one direction

STEP = 1e-4
TOLERANCE = {
    torch.float64: 1e-5,
    torch.float32: 2e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 1e-1,
    torch.complex128: 1e-5,
    torch.complex64: 2e-3,
}


def one_direction(subject: Any, inputs: tuple[Any, ...], options: dict[str, Any], seed: int) -> Verdict:
    """Compare ``<v, J u>`` with central differences along one Gaussian direction u, for one Gaussian cotangent v."""
    function, tensors = _prepared(subject, inputs, options)
    generator = torch.Generator().manual_seed(seed)
    try:
        passed = _along_one(function, tensors, generator)
    except Exception as error:
        return False, True, f"{type(error).__name__}: {error}", {}
    return passed, False, "" if passed else "VJP differs from differences", {}


def _along_one(function: Any, inputs: tuple[Any, ...], generator: torch.Generator) -> bool:
    places = [i for i, value in enumerate(inputs) if isinstance(value, Tensor) and value.requires_grad]
    u = {i: torch.randn(inputs[i].shape, dtype=inputs[i].dtype, generator=generator) for i in places}
    at_x = _outputs(function(*inputs))
    v = [torch.randn(out.shape, dtype=out.dtype, generator=generator) for out in at_x]
    live = [(out, c) for out, c in zip(at_x, v) if out.requires_grad]
    leaves = [inputs[i] for i in places]
    grads = torch.autograd.grad([o for o, _ in live], leaves, [c for _, c in live], allow_unused=True)
    analytic = sum(_inner(g, u[i]) for g, i in zip(grads, places) if g is not None)

    def shifted(sign: float) -> list[Tensor]:
        moved = [
            (value.detach() + sign * STEP * u[i]) if i in u else value.clone() if isinstance(value, Tensor) else value
            for i, value in enumerate(inputs)
        ]
        with torch.no_grad():
            return _outputs(function(*moved))

    numeric = sum(_inner(c, (p - m) / (2 * STEP)) for c, p, m in zip(v, shifted(1.0), shifted(-1.0)))
    tolerance = max(TOLERANCE.get(inputs[i].dtype, 1e-5) for i in places)
    return abs(analytic - numeric) <= tolerance * (1 + abs(numeric))


def _outputs(result: Any) -> list[Tensor]:
    items = result if isinstance(result, (tuple, list)) else [result]
    return [t for t in items if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())]


def _inner(a: Tensor, b: Tensor) -> float:
    a = a.to_dense() if a.is_sparse else a
    return float((a.conj() * b).real.sum()) if a.is_complex() or b.is_complex() else float((a * b).sum())


ALL_FLAGS = {
    "check_batched_grad": True,
    "check_grad_dtypes": True,
    "check_forward_ad": True,
    "check_batched_forward_grad": True,
}
CHECKERS: dict[str, Callable[..., Verdict]] = {
    "gradwright quick": gradwright("quick"),
    "gradwright standard": gradwright("standard"),
    "gradwright full": gradwright("full"),
    "gradcheck slow": torch_checker(gradcheck, 2000),
    "gradcheck fast": torch_checker(gradcheck, 10**6, fast_mode=True),
    "gradcheck all flags": torch_checker(gradcheck, 500, **ALL_FLAGS),
    "gradgradcheck": torch_checker(gradgradcheck, 300),
    "one direction": one_direction,
}
QUICK_CHECKERS = ("gradwright quick", "gradcheck slow")


# -------------------------------------------------------------------- jobs


@cache
def _prepare_process() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def _checked(name: str, subject: Any, inputs: tuple[Any, ...], options: dict[str, Any], seed: int) -> Verdict:
    _prepare_process()
    torch.manual_seed(seed)
    try:
        return CHECKERS[name](subject, inputs, options, seed)
    except Exception as error:  # a checker that fails by itself must not end the benchmark
        return False, True, f"{type(error).__name__}: {error}", {}


def check_defect(job: tuple[int, str, int]) -> Row:
    """Run one checker on one defect and its twin."""
    number, name, seed = job
    entry = all_defects()[number]
    about = {*entry.expect, *entry.require}
    options = {**entry.options(), "require": entry.require, "skip": [i for i in COMPILING if i not in about]}
    passed, crashed, said, verdicts = _checked(name, entry.subject("broken"), entry.arguments("broken"), options, seed)
    right = True
    if not passed and entry.twin is not None:
        plain = {key: value for key, value in options.items() if key != "require"}
        right = _checked(name, entry.subject("twin"), entry.arguments("twin"), plain, seed)[0]
    said, _, remarks = said.partition(REMARKS)
    noticed = entry.note is not None and re.search(entry.note, remarks) is not None
    found = (noticed or not passed) and right
    named = found and entry.words is not None and re.search(entry.words, said) is not None
    return {
        "defect": _label(entry),
        "group": entry.group.removesuffix(" more"),
        "checker": name,
        "seed": seed,
        "found": found,
        "crashed": found and crashed,
        "named": bool(named),
        "due": entry.words is not None,
        "said": said if right else f"the twin is accused too; {said}",
        "verdicts": verdicts,
    }


def check_control(job: tuple[int, str, int]) -> Row:
    """Run one checker on one right subject; a negative number is an entry of the defects that is none."""
    number, name, seed = job
    if number < 0:
        entry: Defect | Control = all_defects()[-1 - number]
        assert isinstance(entry, Defect)
        subject, inputs, options = entry.subject("broken"), entry.arguments(), entry.options()
    else:
        entry = all_controls()[number]
        subject, inputs = entry.make()
        options = dict(entry.options)
    passed, crashed, said, verdicts = _checked(name, subject, inputs, options, seed)
    return {
        "control": f"{entry.group}: {entry.name}",
        "group": entry.group if number >= 0 else "only look wrong",
        "checker": name,
        "seed": seed,
        "accused": not passed,
        "crashed": crashed,
        "said": said,
        "verdicts": verdicts,
    }


def _label(entry: Defect) -> str:
    tag = f"{entry.number} " if entry.number is not None else f"{entry.case} " if entry.case else ""
    return f"{entry.group}: {tag}{entry.name}"
