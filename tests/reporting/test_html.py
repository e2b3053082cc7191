from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from gradwright.checking.report import Evidence, SampleNote, Stated, Support, Usage
from gradwright.checking.shown import Bar, Bars, Curves, HeatMap, Ladder, Line, Part, Source
from gradwright.reporting import svg, table
from gradwright.reporting.html import write_html
from gradwright.reporting.machine import document

VOID = {"meta", "link", "input"}
NASTY = "<script>alert('x')</script></script><!--&\"'"
NASTIER = [
    NASTY,
    '"><img src=x onerror=alert(1)>',
    "`<b onmouseover=alert(1)>`",
    "`unclosed <i>",
    "' onfocus=alert(1) x='",
    "javascript:alert(1)",
    "]]>--><svg/onload=alert(1)>",
    "\x00\x1b[31m\x7f\u202eevil\u2066\ud800",
    "naïve ∂ 名前 \U0001f600",
    "${alert(1)}\\u003cscript>",
]


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
    def write(entries, **options) -> Page:
        path = write_html(entries, tmp_path / "new" / "report.html", **options)
        assert path == tmp_path / "new" / "report.html"
        return Page(path.read_text(encoding="utf-8"))

    return write


def test_the_header_counts_and_names_the_environment(page, make):
    shown = page([make.broken(), make.report(), make.not_run()])
    assert shown.text("h1") == "1 failed, 1 could not be run"
    assert "3 subjects: 1 passed, 1 failed, 0 suspect, 1 could not be run" in shown.text("p")
    assert shown.text("dt").startswith("level seed torch time")
    assert "gradwright torch python platform processors command level seed allowed written" in shown.text("dt")
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
    monkeypatch.setattr(table, "summary_of", {"matches-differences": "First sentence."}.get)
    shown = page([make.broken(), make.report()])
    marks = [link for link in shown.all("a") if "aria-label" in link and "mark" in link["class"]]
    each = ["gradient-count: pass", "matches-differences: {}"]
    # One mark for each contract, then one for each question, which stand for them on a narrow screen.
    assert [link["aria-label"] for link in marks] == [m.format(v) for v in ("fail", "pass") for m in each * 2]
    assert marks[1]["title"].splitlines() == [
        "matches-differences: fail",
        "The gradient has the wrong sign.",
        "First sentence.",
    ]
    assert shown.all("button", title="First sentence.")


def test_the_rows_are_sorted_and_failing_cards_are_open(page, make):
    shown = page([make.report("Good"), make.report("Maybe", make.result(verdict="suspect")), make.broken("Bad")])
    cards = [card for card in shown.all("details") if card.get("class", "").startswith("card")]
    assert [(card["id"], "open" in card) for card in cards] == [("Bad", True), ("Maybe", True), ("Good", False)]
    assert cards[0]["data-status"] == "failed"
    assert "matches-differences fail" in cards[0]["data-words"]
    assert "open" in page([make.report("Good")]).all("details", id="Good")[0]


def test_a_subject_that_could_not_be_run(page, make):
    shown = page([make.not_run(traceback="Traceback\nRuntimeError: mine"), make.report()])
    assert "no inputs were found on which forward runs" in shown.text("td")
    assert "could not be run" in shown.text("span")
    assert "gradwright_samples = {'Opaque'" in shown.text("code")
    assert "RuntimeError: mine" in shown.text("pre")


def test_reasons_samples_and_notes_are_there(page, make):
    report = make.report("Exp", make.result("second-order", "skipped", message="first-order only"), notes=("guessed",))
    shown = page([report, make.report("Log", make.result(sensitivity=3e-9))])
    assert "first-order only" in shown.text("div")
    assert "x: float64 (4, 2), k=2" in shown.text("li")
    assert "guessed" in shown.text("li")
    assert "relative errors above 3e-09 would have been seen" in shown.text("small")


@pytest.mark.parametrize("nasty", NASTIER)
def test_everything_is_escaped_and_the_data_survive(page, make, nasty):
    finding = make.finding(message=nasty, hint=nasty, repro=nasty)
    line = Line(nasty, (1.0, 2.0))
    pictures = (
        Ladder(nasty, (0.1, 0.01), (1.0, 1.1), 1.0, 1e-3, 2.0, 0.01),
        HeatMap(nasty, (1, 2), ((1.0, 3.0),)),
        Curves(nasty, nasty, nasty, (1.0, 2.0), (line,)),
        Bars(nasty, nasty, (Bar(nasty, 1.0, 2.0),)),
    )
    source = (Source(nasty, ((1, nasty), (2, nasty)), (Part("backward", nasty, 2, 2),)),)
    evidence = Evidence((nasty,), (1.0,), (2.0,), (0.1,), nasty)
    broken = make.result(verdict="fail", findings=(finding,), message=nasty, pictures=pictures, evidence=(evidence,))
    support = (Support(nasty, "unsupported", nasty),)
    entries = [
        make.report(nasty, broken, source=source, rule=nasty, samples=(SampleNote("declared", nasty),)),
        make.report("Exp", make.result("vmap", "skipped", message=nasty, support=support), notes=(nasty,), file=nasty),
        make.not_run(nasty, reason=nasty, remedy=nasty, traceback=nasty),
    ]
    usage = [Usage(nasty, nasty, 1, 0, 0, nasty)]
    shown = page(entries, usage=usage, command=nasty)
    plain = page([make.report()])
    assert {tag for tag, _ in shown.tags} <= {
        *(tag for tag, _ in plain.tags),
        *(
            "svg",
            "g",
            "title",
            "path",
            "line",
            "rect",
            "circle",
            "text",
            "figure",
            "figcaption",
            "pre",
            "dl",
            "dt",
            "dd",
        ),
        *("code", "details", "small", "li"),
    }
    allowed = {attribute for _, attributes in plain.tags for attribute in attributes}
    found = {attribute for _, attributes in shown.tags for attribute in attributes} - allowed
    assert not [name for name in found if name.startswith("on") or name in ("src", "srcset", "style", "action")]
    assert all(link["href"].startswith("#") for link in shown.all("a"))
    assert len(shown.all("script")) == 2
    data = next(text for tag, text in shown.texts if tag == "script")
    assert json.loads(data) == json.loads(json.dumps(document(entries, nasty, usage)))
    if nasty.isprintable() and "`" not in nasty:
        assert nasty in shown.text("p")


def test_what_cannot_be_seen_is_spelled_out(page, make):
    shown = page([make.report("a\u202eb\x00c\ud800d")])
    assert shown.text("h2").startswith("Verdicts a\\u202eb\\x00c\\ud800d")


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


def test_of_several_samples_a_picture_shows_the_first(page, make):
    first, second = (Evidence(("w[0]",), (1.0,), (n,), (1e-9,), title="the same") for n in (2.0, 3.0))
    shown = page([make.broken(evidence=(first, second))])
    assert len(shown.all("figure")) == 1
    assert "2 ± 1e-09" in shown.text("td")


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


def test_what_to_look_at_first(page, make):
    shown = page([make.broken(), make.report(), make.not_run()])
    section = shown.all("section", id="first")
    assert section
    assert [link["href"] for link in shown.all("a", **{"class": "who"})] == ["#BadExp.matches-differences", "#Opaque"]
    assert "The gradient has the wrong sign." in shown.text("span")
    assert "declare samples, as its card shows" in shown.text("span")
    for entries in ([make.broken()], [make.report(), make.report("Log")], []):
        assert not page(entries).all("section", id="first")


def test_many_broken_subjects_are_counted_at_the_top(page, make):
    shown = page([make.broken(f"Bad{i}") for i in range(11)])
    assert len(shown.all("a", **{"class": "who"})) == 8
    assert "and 3 more" in shown.text("a")
    assert shown.all("a", href="#Bad8")


def test_columns_can_be_sorted(page, make):
    shown = page([make.broken(), make.report(), make.not_run()])
    heads = [head for head in shown.all("th") if "aria-sort" in head]
    columns = [int(button["data-column"]) for button in shown.all("button", **{"class": "sort"})]
    assert len(heads) == len(columns)
    assert sorted(columns) == list(range(len(columns)))
    assert [head["aria-sort"] for head in heads].count("ascending") == 1
    ranks = [cell["data-sort"] for cell in shown.all("td") if "data-sort" in cell]
    # Result, two contracts, two questions, samples and time; of what could not be run the result alone.
    broken, right = ["0", "5", "0", "5", "0", "declared", "0.123"], ["6", "5", "5", "5", "5", "declared", "0.123"]
    assert ranks == [*broken, "1", *right]


def test_the_support_of_all_subjects_is_one_table(page, make):
    rows = (Support("vmap", "unsupported", "there is no `vmap` rule"), Support("grad", "pass"))
    reports = [
        make.report("Exp", make.result("func-transforms", "unsupported", support=rows)),
        make.report("Log", make.result("func-transforms", support=(Support("grad", "pass"),))),
        make.report("Sin"),
    ]
    shown = page(reports)
    assert "1 of 2 subjects pass under every transform that was tried" in shown.text("span")
    cells = shown.all("a", **{"aria-label": "vmap: unsupported"})
    assert cells[0]["href"] == "#Exp.transforms"
    assert cells[0]["title"] == "vmap: unsupported\nthere is no `vmap` rule"
    assert not page([make.report()]).all("details", id="support")


def test_usage_names_what_was_not_used(page, make):
    rows = [
        Usage("Never", "models/ops.py", 3),
        Usage("Frozen", "models/ops.py", 9, calls=1204, note="inside `torch.no_grad`"),
        Usage("BadExp", "ops.py", 12, calls=5, backwards=5),
    ]
    shown = page([make.broken()], usage=rows)
    assert "1 never called, 1 called and never differentiated" in shown.text("span")
    assert "Defined, never called: 1 Called, never differentiated: 1 Used: 1" in shown.text("h3")
    assert "models/ops.py:3" in shown.text("td")
    assert "1,204" in shown.text("td")
    assert shown.all("a", href="#BadExp")
    assert not page([make.broken()]).all("details", id="usage")


def marked(shown, line):
    """Return what the link says that follows a line of a listing."""
    texts = [data for tag, data in shown.texts if tag in ("b", "a")]
    return texts[len(texts) - texts[::-1].index(line)]


def test_the_source_has_its_marks(page, make):
    lines = tuple((number, f"    line {number}") for number in (10, 11, 12, 13, 20, 21))
    parts = (Part("forward", "forward", 10, 11), Part("backward", "backward", 12, 21))
    source = (Source("ops.py", lines, parts),)
    shown = page([make.report("Bad", make.result(verdict="fail"), source=source)])
    assert shown.all("span", **{"class": "note fail"})
    text = " ".join(data for tag, data in shown.texts if tag in ("b", "code", "span", "a") and data.strip())
    assert re.search(r"12 line 12 .*matches-differences .* 13 line 13 ⋯ 20", text)
    assert "ops.py:10" in shown.text("figcaption")


def test_a_mark_is_at_the_line_that_a_finding_names(page, make):
    lines = tuple((number, f"line {number}") for number in range(10, 16))
    source = (Source("pack/ops.py", lines, (Part("backward", "backward", 12, 15),)),)
    finding = make.finding(message="backward raises ValueError at line 14 of ops.py.")
    shown = page([make.report("Bad", make.result(verdict="fail", findings=(finding,)), source=source)])
    assert marked(shown, "14") == "matches-differences"


@pytest.mark.parametrize(
    ("contract", "line"), [("modes-agree", "3"), ("inputs-untouched", "1"), ("vmap", "2"), ("second-order", "2")]
)
def test_a_mark_is_at_the_function_that_a_contract_is_about(page, make, contract, line):
    parts = (Part("forward", "forward", 1, 1), Part("backward", "backward", 2, 2), Part("jvp", "jvp", 3, 3))
    source = (Source("ops.py", ((1, "f"), (2, "b"), (3, "j")), parts),)
    shown = page([make.report("Bad", make.result(contract, "fail"), source=source)])
    assert marked(shown, line) == contract


def test_without_source_there_is_no_listing(page, make):
    assert not page([make.broken()]).all("details", **{"class": "source"})


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ("declared", "Intent: surrogate, declared: the marker in line 3."),
        ("guessed", "Intent: surrogate, guessed: it fits round."),
    ],
)
def test_the_intent_is_said_and_who_says_so(page, make, origin, said):
    evidence = "the marker in line 3" if origin == "declared" else "it fits round"
    shown = page([make.report(intent=Stated(("surrogate",), origin, evidence))])
    assert shown.all("p", **{"class": f"intent {origin}"})
    text = " ".join("".join(data for tag, data in shown.texts if tag in ("p", "b")).split())
    assert said in text


def test_what_the_baseline_knows_is_still_there_to_read(page, make):
    known = make.result(verdict="skipped", message="what was found is known", known=(make.finding(),))
    shown = page([make.report("Exp", make.result("gradient-count"), known)])
    assert "known: The gradient has the wrong sign." in shown.text("small")
    assert "passed, known findings" in shown.text("span")
