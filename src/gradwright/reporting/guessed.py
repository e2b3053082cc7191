"""Rules of which nothing says that they are wrong on purpose, put together: many in one program look alike."""

from __future__ import annotations

from collections.abc import Sequence

from gradwright.checking.report import ContractResult, Report
from gradwright.reporting import summary
from gradwright.reporting.pen import Pen
from gradwright.typing import Intent

MANY = 3
"""From so many on they share a paragraph."""
LOOK_LIKE: dict[Intent, str] = {
    "surrogate": "straight-through or surrogate gradients",
    "scaled": "gradients that are scaled on purpose",
    "reversed": "gradient reversals",
    "side-loss": "losses that are added by their gradient alone",
}

Guessed = tuple[str, Report, ContractResult]


def alike(reports: Sequence[tuple[str, Report]], verbose: bool) -> dict[Intent, list[Guessed]]:
    """Return the suspicions that share a paragraph, by the intent that was guessed; none when all is to be shown."""
    found: dict[Intent, list[Guessed]] = {}
    for label, report in reports:
        for result in report.results:
            if result.guess is not None and result.verdict == "suspect":
                found.setdefault(result.guess.value[0], []).append((label, report, result))
    return {} if verbose else {word: rows for word, rows in found.items() if len(rows) >= MANY}


def write(shared: dict[Intent, list[Guessed]], pen: Pen) -> None:
    """Write one paragraph for each intent: who it seems to be meant by, with the evidence, and what to do."""
    for word, rows in shared.items():
        pen.blank()
        what = f"SUSPECT {len(rows)} subjects look like {LOOK_LIKE[word]}, and nothing declares it"
        pen.line(pen.mark("suspect"), " ", (what, "bold yellow"))
        lines = []
        for label, report, result in rows:
            place = (summary.location(report), "dim")
            lines.append((pen.text(label), pen.text(place), pen.text(result.guess.evidence if result.guess else "")))
        pen.grid(lines, indent=4)
        compared = ", or surrogate=, which it is then compared with" if word == "surrogate" else ""
        hint = (
            f"declare those that are, with `# gradwright: {word}` above the class (or intent={word!r}{compared}); mend"
        )
        pen.line(("What to do: ", "bold"), f"{hint} the others.", indent=2)
