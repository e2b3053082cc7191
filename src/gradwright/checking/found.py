"""A subject that was found, and the samples declared for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from gradwright.checking import kernelbench, trees
from gradwright.checking.declarations import Declaration
from gradwright.checking.randomness import fixed_random_state
from gradwright.checking.samples import GUESSED_NAME, Sample, declared_samples
from gradwright.checking.settings import as_in
from gradwright.checking.subject import Subject
from gradwright.checking.targets import Source
from gradwright.errors import SampleError, TargetError

UNCONFIRMED = f"the samples are guesses not yet confirmed: correct them, and take the name out of {GUESSED_NAME}"


@dataclass
class Found:
    """A subject, the samples declared for it, and what is wrong with them."""

    subject: Subject
    source: Source
    names: set[str]
    """Every name by which it can be asked for."""
    named: bool = False
    """True when it was asked for by ``::Name``."""
    samples: list[Sample] = field(default_factory=list)
    """Empty when none are declared; inputs are then guessed."""
    sample_error: SampleError | TargetError | None = None
    declarations: list[Declaration] = field(default_factory=list)
    convention: kernelbench.Convention | None = None
    """Where its file follows KernelBench's: used when nothing is declared otherwise."""
    notes: list[str] = field(default_factory=list)
    """Where the samples are from, if not from the module itself, and what was not taken for samples."""


def read_samples(found: Found, seed: int, before: Callable[[str], None]) -> None:
    """Run the declarations of a subject, and keep the samples that they give or what is wrong with them."""
    for declaration in found.declarations:
        try:
            before(f"{found.source.shown}: {declaration.owner}")
            with as_in(found.source.module), fixed_random_state(seed):
                samples = declared_samples(declaration.value, declaration.owner)
                if declaration.doubtful:
                    _refuse_misfits(found.subject, samples, declaration.owner)
        except (SampleError, TargetError) as error:
            if declaration.doubtful:
                found.notes.append(f"not taken for samples: {error}")
                continue
            found.sample_error = error
            return
        if declaration.unconfirmed:
            samples = [replace(sample, doubt="The samples are guesses not yet confirmed") for sample in samples]
            found.notes.append(UNCONFIRMED)
        found.samples += samples
        if declaration.note:
            found.notes.append(declaration.note)
    if found.convention is not None and not found.samples:
        _read_convention(found, found.convention, seed, before)


def _refuse_misfits(subject: Subject, samples: Sequence[Sample], owner: str) -> None:
    for sample in samples:
        subject.bind(sample)
        if not any(isinstance(leaf, Tensor) for leaf in trees.flatten([sample.args, dict(sample.kwargs)])[0]):
            raise SampleError(f"{owner}: there is no tensor in what it gives.")


def _read_convention(
    found: Found, convention: kernelbench.Convention, seed: int, before: Callable[[str], None]
) -> None:
    try:
        before(f"{found.source.shown}: {kernelbench.INPUTS} for {found.subject.name}")
        with as_in(found.source.module), fixed_random_state(seed):
            sample, note = convention.sample(found.subject, seed)
    except (SampleError, TargetError) as error:
        if found.subject.kind == "module":
            found.sample_error = error
        else:  # it is for the module of that file, and may not be for this
            found.notes.append(f"not taken for samples: {error}")
        return
    found.samples.append(sample)
    found.notes.append(note)
