"""The work of ``gradwright init``: find subjects, find inputs for them, and write those as source."""

from __future__ import annotations

import argparse

from gradwright import torch_compat as torch_compat  # first: it says clearly when torch is missing
from gradwright.checking.discovery import discover
from gradwright.checking.drafting import draft, template
from gradwright.checking.found import Found
from gradwright.checking.settings import as_in
from gradwright.checking.synthesis import synthesise
from gradwright.cli.events import Began, Discovered, Done, Drafted, Finished, Running, Send, Start
from gradwright.cli.work import LOOKING, SECONDS_TO_LOOK, identity
from gradwright.errors import TargetError


def work(options: argparse.Namespace, send: Send, start: Start) -> None:
    """Do what the options say, and send what comes of it."""

    def before(what: str) -> None:
        if what in start.lost:
            raise TargetError(start.lost[what])
        send(Running(what))

    discovery = discover([options.file], seed=options.seed, before=before, examples=False)
    send(Discovered(tuple(map(identity, discovery.found)), tuple(discovery.problems), tuple(discovery.notes)))
    for index in range(start.subject, len(discovery.found)):
        found = discovery.found[index]
        send(Began(index, LOOKING, SECONDS_TO_LOOK))
        with as_in(found.source.module):
            entry = drafted(found, options.seed)
        send(Finished(index, entry, broken=False))
    send(Done())


def drafted(found: Found, seed: int) -> Drafted:
    """Write the samples of one subject: recorded ones if there are any, else guesses."""
    subject, samples = found.subject, found.samples
    place = (subject.name, subject.file, subject.line)
    if found.sample_error is not None or any(sample.provenance == "declared" for sample in samples):
        return Drafted(*place, "declared", f"# {subject.name} declares its own samples.")
    notes: tuple[str, ...] = ()
    if not samples:
        synthesis = synthesise(subject, seed)
        if synthesis.reason is not None:
            return Drafted(*place, "", template(subject, synthesis.reason).text, reason=synthesis.reason)
        # The first note tells how they were found, which is no news to a reader who may change them.
        samples, notes = list(synthesis.samples), synthesis.notes[1:]
    made = draft(subject, samples, notes, seed)
    return Drafted(*place, "" if made.reason else samples[0].provenance, made.text, made.imports, made.reason)
