"""KernelBench's convention: a module-level ``get_inputs()``, ``get_init_inputs()``, and a class ``Model``.

Files of that benchmark, and the many that follow it, make a module by ``Model(*get_init_inputs())`` and call it with
``get_inputs()``. The same inputs serve a hand-written gradient in the file if it takes as many and runs on them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from gradwright.checking.portions import made_smaller, why_it_fails
from gradwright.checking.samples import Sample, call_hook
from gradwright.checking.subject import Subject
from gradwright.errors import SampleError

INPUTS = "get_inputs"
INIT_INPUTS = "get_init_inputs"
CLASSES = ("Model", "ModelNew")
"""What is measured, and what is written to replace it."""


@dataclass(frozen=True)
class Convention:
    """What a file that follows the convention has."""

    inputs: Callable[[], Any]
    init_inputs: Callable[[], Any] | None
    classes: Mapping[str, type[nn.Module]]

    def model(self, name: str) -> nn.Module:
        """Make one of the modules, in eval mode: dropout is random, and statistics are state.

        Raises:
            SampleError: that raised.
        """
        given = () if self.init_inputs is None else call_hook(self.init_inputs, INIT_INPUTS, "arguments")
        args, kwargs = _arguments(given, INIT_INPUTS)
        if len(args) == 2 and isinstance(args[0], (list, tuple)) and isinstance(args[1], Mapping):
            args, kwargs = tuple(args[0]), dict(args[1])  # as ParityBench writes them
        module: nn.Module = call_hook(
            lambda: self.classes[name](*args, **kwargs), f"{name}(*{INIT_INPUTS}())", "a module"
        )
        return module.eval()

    def sample(self, subject: Subject, seed: int) -> tuple[Sample, str]:
        """Return what ``get_inputs()`` gives as a sample of a subject, and what is to be said of it.

        Raises:
            SampleError: it does not fit the subject, or that raised.
        """
        args, kwargs = _arguments(call_hook(self.inputs, INPUTS, "inputs"), INPUTS)
        sample = Sample(args, kwargs)
        if subject.kind != "module":
            self._refuse_misfit(subject, sample)
        sample, cut = made_smaller(subject, sample, seed)
        reason = None if subject.kind == "module" else why_it_fails(subject, sample, seed)
        if reason is not None:
            raise SampleError(f"{INPUTS}: {reason}; expected inputs of {subject.name}.")
        said = f"samples from {INPUTS}()"
        if subject.kind == "module":
            said += f", of {subject.name}(*{INIT_INPUTS}()) in eval mode" if self.init_inputs else " in eval mode"
        return sample, f"{said}; {cut}" if cut else said

    def _refuse_misfit(self, subject: Subject, sample: Sample) -> None:
        takes = [p for p in subject.parameters or () if p.kind != "keyword"]
        if sample.kwargs or len(takes) != len(sample.args) or any(p.kind == "variadic" for p in takes):
            given = ", ".join(["..."] * len(sample.args) + [f"{name}=..." for name in sample.kwargs])
            raise SampleError(f"{INPUTS}: gives the inputs ({given}); {subject.name} takes {subject.signature}.")


def convention(module: ModuleType) -> Convention | None:
    """Return what a module has of the convention; None when it does not follow it."""
    inputs = _hook(module, INPUTS)
    if inputs is None:
        return None
    classes = {name: vars(module).get(name) for name in CLASSES}
    own = {
        name: value
        for name, value in classes.items()
        if isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == module.__name__
    }
    return Convention(inputs, _hook(module, INIT_INPUTS), own)


def _hook(module: ModuleType, name: str) -> Callable[[], Any] | None:
    value = vars(module).get(name)
    if not isinstance(value, FunctionType) or value.__module__ != module.__name__:
        return None
    needs = [p for p in inspect.signature(value).parameters.values() if p.default is p.empty]
    return None if needs else value


def _arguments(given: Any, owner: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, torch.Tensor):
        return (given,), {}
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        return (), dict(given)
    if isinstance(given, (list, tuple)):
        return tuple(given), {}
    raise SampleError(f"{owner}: gave an object of type {type(given).__name__}; expected a list of arguments.")
