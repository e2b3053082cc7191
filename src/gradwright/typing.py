"""Type aliases that are part of the public interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

Level: TypeAlias = Literal["quick", "standard", "full"]
"""How much work a check may do."""

Verdict: TypeAlias = Literal["pass", "fail", "suspect", "unsupported", "unresolved", "skipped"]
"""What a contract concluded; the words are explained in the documentation under *Verdicts*."""

Provenance: TypeAlias = Literal["declared", "recorded", "typed", "synthesised"]
"""Where a sample came from."""

GUESSED: tuple[Provenance, ...] = ("typed", "synthesised")
"""Provenances under which a failure may be the fault of the inputs."""

TensorFunction: TypeAlias = Callable[..., Any]
"""A callable that takes tensors (and other values) and returns a tensor or a container of tensors."""

LEVELS: tuple[Level, ...] = ("quick", "standard", "full")
VERDICTS: tuple[Verdict, ...] = ("fail", "suspect", "unresolved", "unsupported", "skipped", "pass")
"""All verdicts, gravest first."""
