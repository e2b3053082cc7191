"""Scenarios of the entries of ``gw.fused``: the ordinary call that each declares, beside what it replaces."""

from __future__ import annotations

import torch
from _calls import differentiated
from _fused_measure import Candidate, Quantity, Scenario, Target

import gradwright as gw
from gradwright.authoring.catalogue import entries
from gradwright.authoring.cheaper import CheaperEntry


def entries_by_name() -> dict[str, CheaperEntry]:
    """Return every entry, by its name without the package."""
    known = [entry for entry in entries(gw.fused) if isinstance(entry, CheaperEntry)]
    return {entry.name.rpartition(".")[2]: entry for entry in known}


def scenario_of(entry: CheaperEntry, quick: bool) -> Scenario:
    """Return the ordinary call of an entry and its goals; the first example in float32 where it is to be small."""
    replaced, ordinary = entry.replaces, entry.ordinary
    assert replaced is not None
    assert ordinary is not None
    torch.manual_seed(0)
    if quick:
        example = entry.examples(torch.float32)[0]
        args, options = differentiated(example.args), dict(example.kwargs)
    else:
        args, options = differentiated(ordinary()), dict(entry.options)
    theirs, ours = "what it replaces", f"`gw.{entry.name}`"
    goals: dict[Quantity, float | None] = {
        "time": entry.goal.time,
        "peak": entry.goal.peak,
        "kept": entry.goal.kept,
    }
    shapes = ", ".join(" x ".join(map(str, x.shape)) for x in args if isinstance(x, torch.Tensor))
    return Scenario(
        f"`{entry.name.rpartition('.')[2]}`, {shapes}",
        args,
        [
            Candidate(theirs, lambda *args: replaced(*args, **options)),
            Candidate(ours, lambda *args: entry.function(*args, **options)),
        ],
        [Target(ours, theirs, quantity, most) for quantity, most in goals.items() if most is not None],
    )
