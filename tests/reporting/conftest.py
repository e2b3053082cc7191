"""Reports built by hand: what a view shows must not depend on what a contract computes today."""

from __future__ import annotations

from typing import Any

import pytest

from gradwright.checking.report import ContractResult, Evidence, Finding, NotChecked, Report, SampleNote, Where
from gradwright.typing import Verdict

QUESTION_OF = {
    "gradient-count": "is the interface kept?",
    "matches-differences": "is the gradient right?",
    "second-order": "is the gradient right?",
    "inputs-untouched": "is it pure?",
}


class Make:
    """Builds findings, results, reports and subjects that could not be run; every field can be given."""

    script = "import torch\n\nx = torch.tensor([0.5], dtype=torch.float64)\nprint(Exp.apply(x))  # [1]"

    def finding(self, **fields: Any) -> Finding:
        """A wrong sign at x[3, 1]."""
        defaults: dict[str, Any] = {
            "verdict": "fail",
            "message": "The gradient has the wrong sign.",
            "hint": "Return `g * out`, not `-g * out`.",
            "where": Where("x", 0, (3, 1), (3, 1)),
            "analytic": -1.6487212707,
            "numeric": 1.6487212707,
            "error_bar": 3e-11,
            "repro": self.script,
        }
        return Finding(**{**defaults, **fields})

    def result(self, name: str = "matches-differences", verdict: Verdict = "pass", **fields: Any) -> ContractResult:
        """One contract; a failing one has one finding unless others are given."""
        defaults: dict[str, Any] = {"message": "", "question": QUESTION_OF.get(name, "does it compose?")}
        if verdict in ("fail", "suspect"):
            defaults["findings"] = (self.finding(verdict=verdict),)
        return ContractResult(id=name, verdict=verdict, **{**defaults, **fields})

    def report(self, name: str = "Exp", *results: ContractResult, **fields: Any) -> Report:
        """One subject; it passes two contracts unless other results are given."""
        defaults: dict[str, Any] = {
            "kind": "Function",
            "file": "ops.py",
            "line": 12,
            "level": "standard",
            "seed": 7,
            "samples": (SampleNote("declared", "x: float64 (4, 2), k=2"),),
            "results": results or (self.result("gradient-count"), self.result(sensitivity=3e-9)),
            "seconds": 0.123,
            "torch_version": "2.13.0",
        }
        return Report(name=name, **{**defaults, **fields})

    def broken(self, name: str = "BadExp", **fields: Any) -> Report:
        """One subject that fails ``matches-differences`` at x[3, 1]."""
        return self.report(name, self.result("gradient-count"), self.result(verdict="fail", **fields))

    def not_run(self, name: str = "Opaque", **fields: Any) -> NotChecked:
        """A subject for which no inputs were found."""
        defaults: dict[str, Any] = {
            "file": "ops.py",
            "line": 40,
            "reason": "no inputs were found on which forward runs",
            "remedy": "gradwright_samples = {'Opaque': (torch.randn(3, dtype=torch.float64),)}",
        }
        return NotChecked(name=name, **{**defaults, **fields})

    def evidence(self, n: int = 5) -> Evidence:
        """``n`` pairs on the identity, except the last, which has the wrong sign."""
        numeric = tuple(0.5 + i for i in range(n))
        analytic = (*numeric[:-1], -numeric[-1])
        return Evidence(tuple(f"x[{i}]" for i in range(n)), analytic, numeric, (1e-9,) * n)


@pytest.fixture
def make() -> Make:
    """Return the factory."""
    return Make()
