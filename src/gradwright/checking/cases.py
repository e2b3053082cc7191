"""The cases of a subject: one for each sample on which its forward runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradwright.checking.case import Case
from gradwright.checking.limits import TimeLimitError
from gradwright.checking.samples import Sample
from gradwright.checking.subject import Subject
from gradwright.errors import ForwardError, SampleError


def make_cases(
    subject: Subject, samples: Sequence[Sample], make: Callable[[Sample], Case], limit: float
) -> tuple[list[Case], list[str]]:
    """Return a case for each sample, and a note for each recorded call that is left out.

    A call that ran in the program need not run here: it may have needed its device, its other processes, or its very
    sizes. It is left out if another one runs.

    Arguments:
        subject: what is checked.
        samples: its samples.
        make: makes one case.
        limit: how many seconds that may take.

    Raises:
        SampleError: a sample does not fit the subject or has nothing to differentiate.
        ForwardError: forward raised, or did not return.
    """
    cases: list[Case] = []
    refused: list[ForwardError | SampleError] = []
    for sample in samples:
        try:
            cases.append(_first(subject, (sample, *sample.alternatives), make, limit))
        except (ForwardError, SampleError) as error:
            if sample.provenance != "recorded":
                raise
            refused.append(error)
    if refused and not cases:
        raise refused[0]
    return cases, [f"a recorded call was left out: {error}" for error in refused]


def _first(subject: Subject, samples: Sequence[Sample], make: Callable[[Sample], Case], limit: float) -> Case:
    """Return the case of the first of several samples on which forward runs."""
    first: ForwardError | None = None
    for sample in samples:
        try:
            return make(sample)
        except ForwardError as error:
            first = first or error
        except TimeLimitError:
            first = first or ForwardError(
                f"{subject.name}: forward did not return within {limit:g} s; expected it to run a few times in that; "
                "make the sample smaller, or mend forward."
            )
    assert first is not None
    raise first from first.__cause__
