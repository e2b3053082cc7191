"""Running torch.compile for a check: quietly, from a clean state, and leaving one behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gradwright import torch_compat
from gradwright.checking.case import Case
from gradwright.checking.plain import plain_call
from gradwright.checking.transforms import Runner, quiet
from gradwright.errors import describe_exception


@contextmanager
def fresh_compiler() -> Iterator[None]:
    """Run with nothing compiled before, without warnings and log messages, and forget what was compiled after.

    What a compiler has recorded (recompilations, shapes it took for dynamic) would decide about the next case.
    """
    disabled = logging.root.manager.disable
    torch_compat.reset_compiler()
    try:
        with quiet(), torch_compat.untraced():
            logging.disable(logging.CRITICAL)
            yield
    finally:
        logging.disable(disabled)
        torch_compat.reset_compiler()


class Compiled:
    """The subject's call under torch.compile; what prepares its arguments stays outside of what is compiled."""

    def __init__(self, case: Case, *, backend: str, fullgraph: bool) -> None:
        call = plain_call(case)
        self._arguments = call.arguments
        self._compiled = torch.compile(call.run, backend=backend, fullgraph=fullgraph)

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """Run on the inputs of the case."""
        result: Sequence[Tensor] = self._compiled(*self._arguments(inputs))
        return result

    def on(self, case: Case) -> Runner:
        """Return the same compiled function for another case of the same subject."""
        arguments = plain_call(case).arguments

        def runner(*inputs: Tensor) -> Sequence[Tensor]:
            result: Sequence[Tensor] = self._compiled(*arguments(inputs))
            return result

        return runner


def broken_compiler(backend: str) -> str | None:
    """Return why torch.compile does not work here at all, even for a sine; None when it does."""

    def sine(x: Tensor) -> Tensor:
        return torch.sin(x)

    try:
        torch.compile(sine, backend=backend)(torch.ones(2))
    except Exception as error:
        return f"torch.compile does not work here: {describe_exception(error)}"
    return None


def first_line(error: BaseException) -> str:
    """Return what a compiler complains about, without its pages of advice."""
    return describe_exception(error)[:160]
