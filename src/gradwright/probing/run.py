"""Finds the probes and runs them: reverse mode, forward mode, and the function of ``gw.stable`` that is to be right."""

from __future__ import annotations

import importlib
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwright import stable
from gradwright.errors import describe_exception
from gradwright.probing import rows
from gradwright.probing.judge import Kind, Outcome, judge
from gradwright.probing.row import Probe
from gradwright.probing.truth import wanted

NO_DERIVATIVE = re.compile(r"not implemented|not differentiable|not supported|unsupported|derivative", re.IGNORECASE)
"""How torch says that it has no derivative."""


@dataclass(frozen=True)
class Section:
    """One module of probes."""

    name: str
    title: str
    probes: tuple[Probe, ...]


@dataclass(frozen=True)
class Result:
    """What became of one probe."""

    probe: Probe
    section: str
    wanted: tuple[float, ...]
    torch: Outcome
    forward: Outcome | None
    """Of forward mode on the same call; only for first derivatives."""
    stable: Outcome | None
    """Of the function of ``gw.stable``, in the worse of the two modes; None where there is none."""

    @property
    def ok(self) -> bool:
        """Whether torch is right in both modes."""
        return self.torch.kind == "right" and (self.forward is None or self.forward.kind == "right")

    @property
    def remedy(self) -> str:
        """Say whether the function of ``gw.stable`` is right; nothing where the table names none."""
        if self.probe.remedy is None:
            return ""
        return "not built yet" if self.stable is None else str(self.stable)


def sections() -> list[Section]:
    """Return all probes; a module of ``probing/rows`` is a section, and needs nothing but to be there."""
    found = []
    for info in pkgutil.iter_modules(rows.__path__):
        module = importlib.import_module(f"{rows.__name__}.{info.name}")
        title = (module.__doc__ or "").strip().splitlines()[0].rstrip(".")
        found.append(Section(info.name.replace("_", "-"), title, tuple(module.PROBES)))
    # In the order of their numbers; those with letters come last, by name.
    numbered = [section for section in found if section.probes[0].id.isdigit()]
    lettered = [section for section in found if not section.probes[0].id.isdigit()]
    return [*sorted(numbered, key=lambda section: int(section.probes[0].id)), *lettered]


def run(probes: Sequence[tuple[str, Probe]]) -> Iterator[Result]:
    """Run probes, each given with the name of its section; no exception comes out of one."""
    for section, probe in probes:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # a warning is no verdict, also where warnings are errors
            yield run_one(probe, section)


def run_one(probe: Probe, section: str = "") -> Result:
    """Run one probe."""
    truth = wanted(probe, probe.inputs())
    remedied = None
    function = stable_function(probe.remedy) if probe.remedy else None
    if function is not None:
        call = function if probe.remedied is None else partial(probe.remedied, function)
        modes = [reverse(probe, call, truth), forward(probe, call, truth)]
        remedied = next((outcome for outcome in modes if outcome is not None and outcome.kind != "right"), modes[0])
    return Result(
        probe,
        section,
        tuple(float(number) for number in truth),
        reverse(probe, probe.call, truth),
        forward(probe, probe.call, truth),
        remedied,
    )


def stable_function(name: str) -> Callable[..., Any] | None:
    """Return a function of ``gw.stable``, or None where it is not built yet."""
    found: Callable[..., Any] | None = getattr(stable, name, None)
    return found


def reverse(probe: Probe, call: Callable[..., Tensor], truth: Sequence[Any]) -> Outcome:
    """Return the verdict on values, gradient or second derivative in reverse mode."""
    leaves = [tensor.requires_grad_(probe.of != "value") for tensor in probe.inputs()]
    torch.manual_seed(0)
    try:
        out = call(*leaves)
        for derivative in range(0 if probe.of == "value" else 1 if probe.of == "gradient" else 2):
            if not out.requires_grad:
                return Outcome("detached")
            again = probe.of == "second derivative" and derivative == 0
            grads = torch.autograd.grad(out.sum(), leaves, create_graph=again, materialize_grads=True)
            out = torch.cat([grad.reshape(-1) for grad in grads])
            if again:
                out = out @ torch.arange(1, len(out) + 1, dtype=out.dtype)
        return _judge(out.detach(), truth, probe)
    except Exception as error:
        return Outcome(_kind(error, probe), message=describe_exception(error))


def forward(probe: Probe, call: Callable[..., Tensor], truth: Sequence[Any]) -> Outcome | None:
    """Return the verdict on the gradient in forward mode; None where another quantity is asked for."""
    if probe.of != "gradient":
        return None

    def total(*inputs: Tensor) -> Tensor:
        return call(*inputs).sum()

    inputs = probe.inputs()
    torch.manual_seed(0)
    try:
        grads = torch.func.jacfwd(total, argnums=tuple(range(len(inputs))))(*inputs)
        out = torch.cat([grad.reshape(-1) for grad in grads])
        return _judge(out, truth, probe)
    except Exception as error:
        return Outcome(_kind(error, probe), message=describe_exception(error))


def _judge(out: Tensor, truth: Sequence[Any], probe: Probe) -> Outcome:
    numbers = torch.finfo(probe.dtype)
    return judge(out.double().reshape(-1).tolist(), truth, probe.allowed, numbers.tiny * numbers.eps)


def _kind(error: Exception, probe: Probe) -> Kind:
    """Tell a function that torch lacks, and a derivative that it lacks, from any other exception."""
    if isinstance(error, AttributeError) or (isinstance(error, NotImplementedError) and probe.of == "value"):
        return "missing"
    if isinstance(error, NotImplementedError) or NO_DERIVATIVE.search(str(error)):
        return "not implemented"
    return "raises"
