"""The text of a declaration of samples, made from samples that were recorded or guessed, to be edited by a person."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradwright.checking import trees
from gradwright.checking.portions import why_it_fails
from gradwright.checking.samples import FUNCTION_PREFIX, Sample, declared_samples
from gradwright.checking.subject import Parameter, Subject
from gradwright.checking.writing import FEW, WIDTH, Group, Prefixed, Text, UnwritableError, Writer, statement, variable
from gradwright.errors import SampleError
from gradwright.typing import GUESSED

MOST_NUMBERS = 256
"""Elements of a tensor that is written number by number where forward does not run on others."""
COMMENTS = {
    "recorded": "recorded: what a program passed; large tensors are drawn anew in the same range.",
    "typed": "typed: a guess after the annotations; correct shapes and ranges that mean something else.",
    "synthesised": "synthesised: a guess that runs; correct what the arguments are not.",
}


@dataclass(frozen=True)
class Draft:
    """The source of a declaration, and what it has to import."""

    text: str
    imports: tuple[tuple[str, str], ...] = ()
    """Modules and names in them."""
    reason: str = ""
    """Why it is only a template; empty for a declaration that is complete."""


def draft(subject: Subject, samples: Sequence[Sample], notes: Iterable[str], seed: int) -> Draft:
    """Write a function that declares some samples, on which forward runs as it does on those.

    Arguments:
        subject: what they are for.
        samples: recorded or guessed ones.
        notes: what is to be said of them in a comment.
        seed: of the numbers that the function draws.
    """
    guessed = all(sample.provenance in GUESSED for sample in samples)
    fit = [why_it_fails(subject, sample, seed) is None for sample in samples]
    reason = ""
    for writer in (Writer(drawn=guessed), Writer(most=FEW), Writer(most=MOST_NUMBERS)):
        try:
            text = _function(subject, samples, notes, writer, seed)
            if _still_fit(subject, text, writer, fit, seed):
                return Draft(text, tuple(sorted(writer.imports)))
            reason = "forward does not run on inputs that are merely like those it was seen to run on"
        except UnwritableError as error:
            reason = f"one of the arguments is {error}, which cannot be written"
        except SampleError as error:
            reason = str(error)
    return template(subject, f"{subject.name}: {reason}; build the arguments here.")


def template(subject: Subject, reason: str) -> Draft:
    """Write a commented function that names the parameters and leaves their values to be filled in."""
    parameters = [p for p in subject.parameters or (Parameter("x"),) if p.required] or [Parameter("x")]
    names: list[str] = []
    lines = [f"def {_function_name(subject)}():"]
    for parameter in parameters:
        names.append(variable(parameter.name, names))
        lines.append(f"    {names[-1]} = ...{_kind(parameter)}")
    lines += _yielded(names, {p.name: name for p, name in zip(parameters, names) if p.kind == "keyword"}, "")
    commented = [*_wrapped(reason, 0), "#", *(f"# {line}" for line in lines)]
    return Draft("\n".join(commented), reason=reason)


def _function_name(subject: Subject) -> str:
    return FUNCTION_PREFIX + re.sub(r"\W+", "_", subject.name)


def _kind(parameter: Parameter) -> str:
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return f"  # {' '.join(text.split())}"


def _function(subject: Subject, samples: Sequence[Sample], notes: Iterable[str], writer: Writer, seed: int) -> str:
    lines = [f"def {_function_name(subject)}():"]
    for comment in (*dict.fromkeys(COMMENTS[s.provenance] for s in samples if s.provenance in COMMENTS), *notes):
        lines += _wrapped(comment, 4)
    body: list[str] = []
    for number, sample in enumerate(samples):
        body += [""] * bool(number) + _sample(subject, sample, writer)
    if writer.uses_generator:
        lines.append(f"    generator = torch.Generator().manual_seed({seed})")
    return "\n".join([*lines, *body])


def _sample(subject: Subject, sample: Sample, writer: Writer) -> list[str]:
    leaves, _ = trees.flatten([sample.args, dict(sample.kwargs)])
    floating = [t for t in leaves if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())]
    some = {t.requires_grad for t in floating} == {True, False}
    lines: list[str] = []
    names: list[str] = []

    def assign(name: str, value: Any) -> str:
        names.append(variable(name, names))
        lines.extend(statement(f"{names[-1]} = ", writer.value(value)))
        if some and isinstance(value, Tensor) and value.requires_grad:
            lines.append(f"    {names[-1]}.requires_grad_()")  # only these are differentiated
        return names[-1]

    args = [assign(subject.position_name(i), value) for i, value in enumerate(sample.args)]
    kwargs = {name: assign(name, value) for name, value in sample.kwargs.items()}
    return lines + _yielded(args, kwargs, sample.name or "")


def _yielded(args: Sequence[str], kwargs: dict[str, str], name: str) -> list[str]:
    """Give the line that yields the arguments, in the shortest form that says all."""
    args = [each for each in args if each not in kwargs.values()]
    if not kwargs and not name:
        flat = f"    yield {', '.join(args)}"
        return [flat] if len(args) > 1 and len(flat) <= WIDTH else statement("yield ", Group("(", tuple(args), ")"))
    entries: list[Text] = [Prefixed('"args": ', Group("(", tuple(args), ")"))]
    if kwargs:
        pairs = tuple(Prefixed(f'"{key}": ', value) for key, value in kwargs.items())
        entries.append(Prefixed('"kwargs": ', Group("{", pairs, "}")))
    if name:
        entries.append(Prefixed('"name": ', Writer().value(name)))
    return statement("yield ", Group("{", tuple(entries), "}"))


def _wrapped(text: str, indent: int) -> list[str]:
    """Return a comment in lines that are not too long."""
    before = " " * indent + "# "
    return textwrap.wrap(
        text, WIDTH, initial_indent=before, subsequent_indent=before, break_long_words=False, break_on_hyphens=False
    )


def _still_fit(subject: Subject, text: str, writer: Writer, fit: Sequence[bool], seed: int) -> bool:
    """Tell whether forward runs on what a text declares, wherever it ran on what that was made from."""
    scope: dict[str, Any] = {}
    exec("import torch\n" + "".join(f"from {module} import {name}\n" for module, name in writer.imports) + text, scope)
    made = declared_samples(scope[_function_name(subject)], subject.name)
    return all(why_it_fails(subject, sample, seed) is None for sample, ran in zip(made, fit) if ran)
