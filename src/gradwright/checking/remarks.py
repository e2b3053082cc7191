"""Remarks: what the reader of a report should know and nobody is accused of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from gradwright.checking.approximate import TOO_ROUGH
from gradwright.checking.audit import functions_in_graph
from gradwright.checking.case import Case
from gradwright.checking.subject import Subject


def remarks(subject: Subject, cases: Sequence[Case]) -> Iterator[str]:
    """Give what is to be noticed about a subject and its samples, one sentence each."""
    if any(case.randomness == "seeded" for case in cases):
        yield (
            "the subject draws random numbers: it was checked with the same random state at every call; seed it "
            "(torch.manual_seed) where a value must be reproduced"
        )
    accuracy = max((case.accuracy for case in cases), default=0.0)
    if 0 < accuracy <= TOO_ROUGH:
        yield (
            f"a derivative is an approximation, with a relative error up to {accuracy:.1g} as it declares: errors up "
            "to that are not seen"
        )
    if isinstance(subject.target, torch.nn.Module):
        for owner in {type(module) for module in subject.target.modules()}:
            if "backward" in vars(owner) and not owner.__module__.startswith("torch."):
                yield f"`{owner.__name__}.backward` is never called by PyTorch, which differentiates `forward`"
    if not subject.hand_written and cases:
        found = [f.__name__ for f in functions_in_graph(cases[0])]
        if found:
            yield (
                f"the graph contains the Function{'s' if len(found) > 1 else ''} {', '.join(found)}; check the class "
                "itself to have the interface of its backward examined too"
            )
