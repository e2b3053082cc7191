"""Intent: what a rule means to be, as it is declared by a marker in the source or with a sample.

Most rules mean to be the derivative of their forward, and are judged by that. Those that mean something else say so in
a comment on the line of the class or function, right above it (or its decorators), or in the body of the class before
its first method::

    # gradwright: surrogate
    class RoundSTE(torch.autograd.Function): ...

Several words are separated by commas. A Function inherits the marker of its nearest base that has one. What is declared
with a sample, or as ``gw.check(..., intent=...)``, is used instead of the marker.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import re
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradwright import torch_compat
from gradwright.checking.report import ContractResult, Stated
from gradwright.checking.source_lines import source_lines
from gradwright.errors import GradwrightError, did_you_mean
from gradwright.typing import INTENTS, Intent, has_custom_gradient

if TYPE_CHECKING:
    from gradwright.checking.case import Case
    from gradwright.checking.samples import Sample
    from gradwright.checking.subject import Subject

NOT_THE_DERIVATIVE: frozenset[Intent] = frozenset({"surrogate", "scaled", "reversed", "side-loss"})
"""Intents of rules that are not the derivative of forward on purpose."""

MEANINGS: dict[Intent, str] = {
    "exact": "the derivative of forward; nothing is guessed",
    "surrogate": "another function's derivative: what compares with differences of forward is skipped",
    "scaled": "the derivative times a constant, which is measured for each input",
    "reversed": "the derivative times a negative constant, which is measured for each input",
    "side-loss": "the derivative, and something that is added whatever comes in",
    "forward-only": "not there: it is missing, raises or gives None; a gradient that does come is checked",
    "first-order-only": "the derivative, but not to be differentiated again: a second derivative may raise",
}
"""What each intent says of a rule."""

_MARKER = re.compile(r"(?:^|\s)#+\s*gradwright:([^#]*)", re.IGNORECASE)
"""A marker may follow another comment in its line, as `noqa` does, and be followed by one."""


@dataclass(frozen=True)
class Marker:
    """What a marker in the source says."""

    words: tuple[Intent, ...]
    line: int
    problems: tuple[str, ...] = ()
    """What of it is not understood, for the reader of the report."""


def declared(case: Case) -> frozenset[Intent]:
    """Return the intents that hold for a case by declaration."""
    return frozenset(words_of(case.sample))


def words_of(sample: Sample) -> tuple[Intent, ...]:
    """Return the intents that a sample declares."""
    intent = sample.intent
    return () if intent is None else (intent,) if isinstance(intent, str) else intent


def deviates(case: Case) -> bool:
    """Tell whether the rule is declared not to be the derivative of forward."""
    return case.sample.surrogate is not None or bool(declared(case) & NOT_THE_DERIVATIVE)


def parse_intent(value: Any, owner: str, kind: type[GradwrightError]) -> tuple[Intent, ...]:
    """Return the words of an intent that is written as text (with commas between several) or as a sequence of words.

    Arguments:
        owner: how to call it in messages.
        kind: the error to raise.
    """
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise kind(f"{owner}: is of type {type(value).__name__}; expected one or several of {', '.join(INTENTS)}.")
    words, problems = _known([text.strip() for text in texts], owner)
    if problems:
        raise kind(problems[0])
    return words


def read_marker(subject: Subject) -> Marker | None:
    """Return the marker of a subject's own definition, or of the nearest base class that has one."""
    return next(filter(None, map(marker_of, _definitions(subject))), None)


def marked_intents(function: type) -> tuple[Intent, ...]:
    """Return what the marker of a class says, or that of its nearest base class that has one."""
    marker = next(filter(None, map(marker_of, _bases(function))), None)
    return () if marker is None else marker.words


def marker_of(definition: Any) -> Marker | None:
    """Return the marker of one class or function; None when it has none or its source cannot be read."""
    comments = [(line, match[1]) for line, text in _comments(definition) if (match := _MARKER.search(text))]
    if not comments:
        return None
    line = comments[0][0]
    texts = [text.strip().lower() for _, listed in comments for text in listed.split(",")]
    words, problems = _known(texts, f"the marker `# gradwright:` in line {line}")
    return Marker(words, line, tuple(problems))


def stated(samples: Sequence[Sample], marker: Marker | None, results: Sequence[ContractResult]) -> Stated | None:
    """Return what is declared of a subject, or else what was guessed, and by what."""
    words = dict.fromkeys(word for sample in samples for word in words_of(sample))
    if words:
        here = (
            f"the marker in line {marker.line}" if marker is not None and marker.words == tuple(words) else "the sample"
        )
        return Stated(tuple(words), "declared", here)
    if any(sample.surrogate is not None for sample in samples):
        return Stated(("surrogate",), "declared", "surrogate=")
    return next((result.guess for result in results if result.guess is not None), None)


def _known(texts: Sequence[str], owner: str) -> tuple[tuple[Intent, ...], list[str]]:
    """Return the words that are known and do not contradict each other, and what is wrong with the others."""
    words: list[Intent] = [word for word in INTENTS if word in texts]
    problems = [
        f"{owner}: got {text!r}; expected one or several of {', '.join(INTENTS)}, with commas between them."
        f"{did_you_mean(text, INTENTS)}"
        for text in texts
        if text not in INTENTS
    ]
    if not texts:
        problems.append(f"{owner}: is empty; expected one or several of {', '.join(INTENTS)}.")
    others = NOT_THE_DERIVATIVE.intersection(words)
    if "exact" in words and others:
        problems.append(f"{owner}: exact and {', '.join(sorted(others))} exclude each other; keep one of them.")
        words = []
    return tuple(words), problems


def _definitions(subject: Subject) -> Iterator[Any]:
    """Give the classes and functions whose markers count for a subject, its own first."""
    target = subject.target
    if subject.kind == "custom op":
        target = torch_compat.operator_source(target)
    while isinstance(target, functools.partial):
        target = target.func
    if has_custom_gradient(target):
        target = target.__custom_gradient__.source
    if not isinstance(target, type) and subject.kind == "module":
        target = type(target)
    if isinstance(target, type):
        yield from _bases(target)
    elif target is not None:
        yield inspect.unwrap(target)


def _bases(target: type) -> Iterator[type]:
    yield from (base for base in target.__mro__ if not base.__module__.startswith(("torch.", "builtins")))


def _comments(definition: Any) -> Iterator[tuple[int, str]]:
    """Give line and text of the comments at the head of a definition: above it, on its line, and before its methods."""
    found = source_lines(definition)
    if found is None:
        return
    above = linecache.getlines(found.file)[: found.first - 1]
    indent = found.lines[0][: len(found.lines[0]) - len(found.lines[0].lstrip())]
    number = len(above)
    while number and above[number - 1].startswith(f"{indent}#"):
        number -= 1
    if any(_MARKER.search(text) for text in above[number:]):  # the lines may end a text
        yield from ((token.start[0], token.string) for token in _tokens(above) if _is_comment_after(token, number))
    yield from ((found.first + row - 1, text) for row, text in _head(found.lines))


def _is_comment_after(token: tokenize.TokenInfo, number: int) -> bool:
    return token.type == tokenize.COMMENT and token.start[0] > number


def _tokens(lines: Sequence[str]) -> Iterator[tokenize.TokenInfo]:
    """Give the tokens of lines, as far as they can be told."""
    with suppress(tokenize.TokenError, SyntaxError):
        yield from tokenize.generate_tokens(iter(lines).__next__)


def _head(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Give the comments of a definition up to the end of its first line, or of a class up to its first method."""
    begins, header, is_class = True, True, False
    decorated = False
    for token in _tokens(lines):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
        elif token.type == tokenize.NEWLINE:
            if header and not decorated:
                if not is_class:
                    return
                header = False
            begins, decorated = True, False
        elif begins and token.type in (tokenize.NAME, tokenize.OP):
            if not header and token.string in ("def", "async", "class", "@"):
                return
            begins, decorated = False, header and token.string == "@"
            is_class = is_class or (header and token.string == "class")
