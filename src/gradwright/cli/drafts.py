"""The work of ``gradwright init``: find subjects, find inputs for them, and write those as source."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from gradwright import torch_compat as torch_compat  # first: it says clearly when torch is missing
from gradwright.checking.discovery import discover
from gradwright.checking.drafting import draft, template
from gradwright.checking.found import Found
from gradwright.checking.intent_guess import LOOKS
from gradwright.checking.portions import why_it_fails
from gradwright.checking.run import check_subject
from gradwright.checking.samples import Sample
from gradwright.checking.settings import as_in
from gradwright.checking.subject import Subject
from gradwright.checking.synthesis import synthesise
from gradwright.cli.events import Began, Discovered, Done, Drafted, Finished, Send, Start
from gradwright.cli.recorded import Recorded
from gradwright.cli.work import LOOKING, SECONDS_TO_LOOK, announced, identity


def work(options: argparse.Namespace, send: Send, start: Start) -> None:
    """Do what the options say, and send what comes of it."""
    recorded = Recorded(options)
    discovery = discover([options.file], seed=options.seed, before=announced(send, start), examples=False)
    notes = (*discovery.notes, *recorded.notes)
    send(Discovered(tuple(map(identity, discovery.found)), tuple(discovery.problems), notes))
    for index in range(start.subject, len(discovery.found)):
        found = discovery.found[index]
        send(Began(index, LOOKING, SECONDS_TO_LOOK))
        with as_in(found.source.module):
            entry = drafted(found, recorded, options.seed)
        send(Finished(index, entry, broken=False))
    send(Done())


def drafted(found: Found, recorded: Recorded, seed: int) -> Drafted:
    """Write the samples of one subject: recorded ones if there are any that run, else guesses."""
    subject = found.subject
    place = (subject.name, subject.file, subject.line)
    if found.sample_error is not None or found.samples:
        return Drafted(*place, "declared", f"# {subject.name} declares its own samples.")
    samples, notes = _recorded(subject, recorded, seed)
    if not samples:
        synthesis = synthesise(subject, seed)
        if synthesis.reason is not None:
            return Drafted(*place, "", template(subject, synthesis.reason).text, reason=synthesis.reason)
        # The first note tells how they were found, which is no news to a reader who may change them.
        samples, notes = list(synthesis.samples), [*notes, *synthesis.notes[1:]]
    made = draft(subject, samples, [*notes, *_intent(subject, samples, seed)], seed)
    return Drafted(*place, "" if made.reason else samples[0].provenance, made.text, made.imports, made.reason)


def _recorded(subject: Subject, recorded: Recorded, seed: int) -> tuple[list[Sample], list[str]]:
    """Return the recorded samples on which forward runs here, those of large ones that were made smaller."""
    samples, notes = recorded.samples(subject, seed)
    chosen = []
    for sample in samples:
        if sample.contracts is None:  # else it is a large one, which a smaller one stands beside
            fit = (each for each in (sample, *sample.alternatives) if why_it_fails(subject, each, seed) is None)
            chosen += [each for each in (next(fit, None),) if each is not None]
    return chosen, notes


def _intent(subject: Subject, samples: Sequence[Sample], seed: int) -> Iterator[str]:
    """Give a comment on what the rule seems to mean to be, if it is not the derivative."""
    try:
        report = check_subject(subject, samples, level="quick", only=("matches-differences",), seed=seed)
    except Exception:  # the command that checks tells what is wrong
        return
    if report.intent is not None and report.intent.origin == "guessed":
        word = report.intent.value[0]
        yield (
            f"intent: this looks like {LOOKS[word]} ({report.intent.evidence}); if it is, write `# gradwright: {word}`"
            " above its definition."
        )
