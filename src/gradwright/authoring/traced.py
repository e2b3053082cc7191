"""What happens to a rule where PyTorch records a program instead of running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradwright import torch_compat
from gradwright.authoring import warned
from gradwright.errors import RuleError, RuleNotExportedWarning


def call_in_transform(name: str, function: Callable[..., Any], values: Sequence[Any], instead: str = "") -> Any:
    """Call a function outside of torch.compile, or raise with ``fullgraph=True``, since its rule would be dropped.

    To be called while a transform of ``torch.func`` or a level of forward mode is open inside of compiled code.
    """
    return torch_compat.call_untraced(
        function,
        values,
        f"{name}: a transform of torch.func (grad, vjp, jvp, vmap, ...) or a level of forward mode around it inside "
        "torch.compile would drop its gradient rule without a word (pytorch/pytorch#193279); compile inside the "
        f"transform instead, or leave fullgraph=True away{instead}.",
    )


def call_foreign(message: str, function: Callable[..., Any], values: Sequence[Any]) -> Any:
    """Call a function outside of torch.compile, or raise ``message`` where there is no outside.

    Raises:
        RuleError: torch.export is recording.
    """
    if not torch.compiler.is_dynamo_compiling():  # torch.export, which has nowhere else to go
        raise RuleError(message)
    return torch_compat.call_untraced(function, values, message)


def warn_of_export(name: str, module: str) -> None:
    """Warn that ``torch.export`` drops the rule of a function of ``module``, where it can be told that it runs."""
    if torch_compat.is_exporting():
        _warn(name, module)


# With strict=True Dynamo would trace it, and cannot follow a warning; so it runs it instead.
@torch_compat.run_by_compiler
def _warn(name: str, module: str) -> None:
    ours = module.startswith("gradwright.")
    # What users did not write they cannot declare otherwise.
    remedy = "" if ours else f", or declare the function with op='mylibrary::{name}', which is kept whole"
    warned.warn(
        f"{warned.public_name(name, module) if ours else name}: torch.export keeps its values but not its gradient "
        "rule: an exported module that is trained would use the derivative of its operations instead; export for "
        f"inference only{remedy}.",
        RuleNotExportedWarning,
    )
