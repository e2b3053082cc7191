from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from gradwright.checking.report import Evidence, Support
from gradwright.reporting import html, svg
from gradwright.reporting.html import write_html
from gradwright.reporting.machine import document

VOID = {"meta", "link", "input"}
NASTY = "<script>alert('x')</script></script><!--&\"'"


class Page(HTMLParser):
    """Reads a page, refuses tags that do not match, and keeps elements, texts and identifiers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag, **attributes):
        return [found for name, found in self.tags if name == tag and attributes.items() <= found.items()]

    def text(self, tag=None):
        return " ".join(data for name, data in self.texts if tag in (None, name) and name not in ("style", "script"))


@pytest.fixture
def page(tmp_path):
    def write(entries) -> Page:
        path = write_html(entries, tmp_path / "new" / "report.html")
        assert path == tmp_path / "new" / "report.html"
        return Page(path.read_text(encoding="utf-8"))

    return write


def test_the_header_counts_and_names_the_environment(page, make):
    shown = page([make.broken(), make.report(), make.not_run()])
    assert shown.text("h1") == "1 failed, 1 could not be run"
    assert "3 subjects: 1 passed, 1 failed, 0 suspect, 1 could not be run" in shown.text("p")
    assert shown.text("dt").startswith("gradwright torch python seed level")
    assert "2.13.0" in shown.text("dd")


def test_a_finding_has_everything_that_is_needed(page, make):
    shown = page([make.broken()])
    assert shown.all("section", id="BadExp.matches-differences", **{"class": "finding fail"})
    assert "output 0[3, 1] with respect to x[3, 1]" in shown.text("small")
    assert "The gradient has the wrong sign." in shown.text("p")
    assert "-1.6487212707" in shown.text("dd")
    assert "1.6487212707 ± 3e-11" in shown.text("dd")
    assert "g * out" in shown.text("code")
    assert make.script in shown.text("code")
    assert shown.all("button", **{"class": "copy"})
    assert "analytic -1.6487212707, numeric 1.6487212707 plus or minus 3e-11" in str(shown.all("svg"))


def test_every_link_leads_somewhere_and_every_identifier_is_unique(page, make):
    twice = make.broken(findings=(make.finding(), make.finding()))
    refused = make.report("Other", make.result("vmap", "unsupported", message="refuses"), make.result())
    shown = page([twice, make.broken(), make.report("f<g>"), make.report("f(g)"), refused, make.not_run()])
    identifiers = [attributes["id"] for _, attributes in shown.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    targets = {link["href"][1:] for link in shown.all("a")}
    assert targets <= set(identifiers)
    assert {"BadExp", "BadExp-2", "f-g", "f-g-2", "Other.vmap", "BadExp.matches-differences.2"} <= targets


def test_the_table_has_a_mark_for_each_contract_with_its_purpose(page, make, monkeypatch):
    monkeypatch.setattr(html, "summary_of", {"matches-differences": "First sentence."}.get)
    shown = page([make.broken(), make.report()])
    marks = [link for link in shown.all("a") if "aria-label" in link and "mark" in link["class"]]
    assert [link["aria-label"] for link in marks] == [
        "gradient-count: pass",
        "matches-differences: fail",
        "gradient-count: pass",
        "matches-differences: pass",
    ]
    assert marks[1]["title"].splitlines() == [
        "matches-differences: fail",
        "The gradient has the wrong sign.",
        "First sentence.",
    ]
    assert shown.all("span", title="First sentence.")


def test_the_rows_are_sorted_and_failing_cards_are_open(page, make):
    shown = page([make.report("Good"), make.report("Maybe", make.result(verdict="suspect")), make.broken("Bad")])
    cards = [card for card in shown.all("details") if card.get("class", "").startswith("card")]
    assert [(card["id"], "open" in card) for card in cards] == [("Bad", True), ("Maybe", True), ("Good", False)]
    assert cards[0]["data-status"] == "failed"
    assert "matches-differences fail" in cards[0]["data-words"]
    assert "open" in page([make.report("Good")]).all("details", id="Good")[0]


def test_a_subject_that_could_not_be_run(page, make):
    shown = page([make.not_run(traceback="Traceback\nRuntimeError: mine"), make.report()])
    assert "could not be run: no inputs were found on which forward runs" in shown.text("td")
    assert "gradwright_samples = {'Opaque'" in shown.text("code")
    assert "RuntimeError: mine" in shown.text("pre")


def test_reasons_samples_and_notes_are_there(page, make):
    report = make.report("Exp", make.result("second-order", "skipped", message="first-order only"), notes=("guessed",))
    shown = page([report, make.report("Log", make.result(sensitivity=3e-9))])
    assert "first-order only" in shown.text("div")
    assert "x: float64 (4, 2), k=2" in shown.text("li")
    assert "guessed" in shown.text("li")
    assert "relative errors above 3e-09 would have been seen" in shown.text("small")


def test_everything_is_escaped_and_the_data_survive(page, make):
    finding = make.finding(message=NASTY, hint=NASTY, repro=NASTY)
    entries = [
        make.broken(NASTY, findings=(finding,), message=NASTY),
        make.report("Exp", make.result("vmap", "skipped", message=NASTY), notes=(NASTY,), file=NASTY),
        make.not_run(NASTY, reason=NASTY, remedy=NASTY, traceback=NASTY),
    ]
    shown = page(entries)
    assert len(shown.all("script")) == 2
    data = next(text for tag, text in shown.texts if tag == "script")
    assert json.loads(data) == json.loads(json.dumps(document(entries, "check")))


def test_the_page_needs_nothing_else(page, make, tmp_path):
    page([make.broken(evidence=(make.evidence(),)), make.report()])
    text = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"https?://|src=|@import|url\(", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text


def test_evidence_becomes_a_scatter_plot_with_the_wrong_points_marked(page, make):
    shown = page([make.broken(evidence=(make.evidence(5),))])
    assert shown.all("svg", **{"class": "scatter", "aria-label": "1 of 5 points lie outside their error bar"})
    assert len(shown.all("circle", **{"class": "right"})) == 4
    assert len(shown.all("path", **{"class": "wrong"})) == 1
    assert "x[4]: analytic -4.5, numeric 4.5 ± 1e-09" in shown.text("title")
    assert "1 of 5 elements shown differ by more than their error bar." in shown.text("p")
    assert "x[4]" in shown.text("td")


def test_a_passing_contract_keeps_its_picture(page, make):
    right = Evidence(("x[0]", "x[1]"), (1.0, 2.0), (1.0, 2.0), (1e-9, 1e-9))
    shown = page([make.report("Exp", make.result(evidence=(right,)))])
    assert "All 2 elements shown agree within their error bars." in shown.text("p")


def test_a_picture_says_what_it_is_of_and_a_finding_shows_what_is_wrong_only(page, make):
    right = Evidence(("x[0]", "x[1]"), (1.0, 2.0), (1.0, 2.0), (1e-9, 1e-9), title="the output with respect to `x`")
    wrong = Evidence(("w[0]",), (1.0,), (2.0,), (1e-9,), title="the output with respect to `w`")
    shown = page([make.broken(evidence=(right, wrong))])
    assert len(shown.all("figure")) == 1
    said = " ".join(text for tag, text in shown.texts if tag in ("p", "code"))
    assert "Gradient of the output with respect to w : 1 of 1 elements shown differ" in " ".join(said.split())
    assert "agree within" not in said
    passing = page([make.report("Exp", make.result(evidence=(right,)))])
    said = " ".join(text for tag, text in passing.texts if tag in ("p", "code"))
    assert "Gradient of the output with respect to x : all 2 elements shown agree" in " ".join(said.split())


def test_many_points_are_thinned_but_never_the_wrong_ones():
    n = 1000
    numeric = tuple(float(i) for i in range(n))
    analytic = tuple(-value if i % 100 == 7 else value for i, value in enumerate(numeric))
    picture = svg.scatter(Evidence(tuple(map(str, range(n))), analytic, numeric, (1e-9,) * n))
    assert picture.count('class="wrong"') == 10
    assert 100 <= picture.count('class="right"') <= svg.MAX_POINTS


@pytest.mark.parametrize(
    ("analytic", "numeric", "bar"),
    [(0.0, 0.0, 0.0), (1.0, 1.0, None), (-1e280, 1e280, 1.0), (1e-320, 0.0, None), (5.0, 5.0 + 1e-15, 1e-16)],
)
def test_awkward_numbers_can_be_drawn(analytic, numeric, bar):
    for picture in (
        svg.interval(analytic, numeric, bar),
        svg.scatter(Evidence(("x", "y"), (analytic, 1.0), (numeric, float("nan")), (bar or 0.0, float("inf")))),
    ):
        assert picture.startswith("<svg")
        assert not re.search(r'="(nan|-?inf)', picture)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, 1 + 2j, None])
def test_values_that_cannot_be_drawn_are_written(page, make, value):
    shown = page([make.broken(findings=(make.finding(analytic=value),))])
    assert shown.all("svg") == []
    assert "1.6487212707 ± 3e-11" in shown.text("dd")


def test_nothing_at_all(page):
    assert page([]).text("h1") == "nothing checked"


def test_the_table_of_transforms(page, make):
    rows = (Support("vmap", "unsupported", "there is no `vmap` rule"), Support("grad", "pass"))
    shown = page([make.report("Exp", make.result("func-transforms", "unsupported", support=rows))])
    assert "Transforms" in shown.text("h3")
    assert "there is no" in shown.text("td")
    assert "Transforms" not in page([make.report()]).text("h3")
