"""The HTML report in a real browser: it loads quietly, filters, sorts, obeys the keyboard, and fits a telephone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwright.checking.report import Support, Usage
from gradwright.checking.shown import Bar, Bars, Curves, HeatMap, Ladder, Line, Part, Source
from gradwright.reporting.html import write_html
from tests.reporting.browser import browser as started
from tests.reporting.browser import missing
from tests.reporting.conftest import Make

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"browser: {missing()}")

ENTER, ESCAPE, UP, DOWN, LEFT, RIGHT = "\ue007", "\ue00c", "\ue013", "\ue015", "\ue012", "\ue014"
HOSTILE = '"><img src=x onerror="window.broken=1"></script><script>window.broken=1</script>'
LONG = "a_name_without_any_place_to_break_" * 12
ROWS = "#overview tbody tr:not([hidden]) th"


@pytest.fixture(scope="session")
def browser():
    with started() as running:
        yield running


def entries():
    make = Make()
    lines = (Line("used by backward", (0.0, 1.0, 2.0)), Line("true, by differences", (0.5, 1.0, 1.5)))
    pictures = (
        Ladder("x[0]", (0.1, 0.01, 0.001), (1.1, 1.001, 1.00001), 1.0, 1e-9, -1.0, 0.01),
        HeatMap("the output with respect to `x`", (48, 48), ((1.0,) * 48,) * 47 + ((1e4,) * 48,)),
        Curves("Derivative.", "x", "slope", (0.0, 1.0, 2.0), lines),
        Bars("Error.", "relative error", (Bar("float32 value", 1e-8, 1e-6),)),
    )
    code = tuple((number, f"    {'x' * number * 6}  # {HOSTILE}") for number in range(10, 40))
    source = (Source("ops.py", code, (Part("backward", "backward", 30, 39),)),)
    support = (Support("vmap", "unsupported", LONG), Support("grad", "pass"))
    bad = make.result(verdict="fail", evidence=(make.evidence(40),), pictures=pictures)
    return [
        make.report("Zeta", make.result("gradient-count"), bad, source=source, seconds=0.5),
        make.report(LONG, make.result("gradient-count", "fail", message=LONG), make.result(), file=LONG, seconds=12.0),
        make.report(HOSTILE, make.result("vmap", "suspect", support=support), notes=(HOSTILE,), seconds=2.0),
        make.not_run("Opaque", reason=f"no inputs were found {LONG}"),
        make.report("Alpha", make.result("gradient-count"), make.result(sensitivity=3e-9), source=source, seconds=0.1),
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    usage = [Usage(LONG, LONG, 3), Usage("Frozen", "ops.py", 9, calls=7, note=HOSTILE)]
    return write_html(entries(), tmp_path_factory.mktemp("page") / "report.html", usage=usage, command="watch")


@pytest.fixture
def shown(browser, page):
    browser.resize(1280)
    browser.open(page)
    return browser


def test_it_loads_quietly_and_asks_the_network_for_nothing(browser, page):
    browser.complaints()
    browser.requests()
    browser.open(page)
    browser.run("for (const d of document.querySelectorAll('details')) d.open = true")
    assert browser.complaints() == []
    own = ("about:", "chrome:", "chrome-untrusted:", "data:")  # the page that a new window shows among them
    requests = [url for url in browser.requests() if not url.startswith(own)]
    assert requests == [page.as_uri()]
    assert browser.run("return [window.broken, document.images.length, document.scripts.length]") == [None, 0, 2]


def test_the_filter_narrows_table_and_cards(shown):
    shown.press("/")
    shown.press(*"alpha")
    assert shown.texts(ROWS) == ["Alpha"]
    assert shown.texts(".card h2") == ["Alpha"]
    assert shown.find("#shown").text == "1 of 5 shown"
    shown.press(*"zzz")
    assert shown.find("#nothing").is_displayed()
    shown.press(ESCAPE)
    assert len(shown.texts(ROWS)) == 5
    shown.find(".chip.suspect").click()
    assert shown.texts(ROWS) == [HOSTILE]
    assert shown.find(".chip.suspect").get_attribute("aria-pressed") == "true"


def test_heads_sort_by_pointer_and_by_keyboard(shown):
    def head(name):
        (found,) = [th for th in shown.driver.find_elements("css selector", "#overview th") if th.text.startswith(name)]
        return found

    assert head("result").get_attribute("aria-sort") == "ascending"
    head("time").find_element("css selector", "button").click()
    assert [name[:6] for name in shown.texts(ROWS)] == ["Alpha", "Zeta", HOSTILE[:6], LONG[:6], "Opaque"]
    assert (head("time").get_attribute("aria-sort"), head("result").get_attribute("aria-sort")) == ("ascending", "none")
    assert [name[:5] for name in shown.texts(".card h2")][:2] == ["Alpha", "Zeta"]
    shown.press(ENTER)
    assert head("time").get_attribute("aria-sort") == "descending"
    # What could not be run took no time, and comes last either way.
    assert [name[:6] for name in shown.texts(ROWS)] == [LONG[:6], HOSTILE[:6], "Zeta", "Alpha", "Opaque"]
    head("matches-differences").find_element("css selector", "button").click()
    assert shown.texts(ROWS)[0] == "Zeta"


def test_a_table_is_one_stop_of_the_tab_key_and_arrows_move_within_it(shown):
    stops = "return document.querySelectorAll('#overview table [tabindex=\"0\"]').length"
    assert shown.run(stops) == 1
    shown.run("document.querySelector('#overview tbody a').focus()")
    shown.press(RIGHT)
    assert shown.run("return document.activeElement.getAttribute('aria-label')") == "gradient-count: pass"
    assert shown.find("#tip").is_displayed()
    shown.press(RIGHT, DOWN)
    assert shown.run("return document.activeElement.getAttribute('aria-label')") == "matches-differences: pass"
    assert shown.run(stops) == 1
    shown.press(UP, LEFT, LEFT)
    assert shown.run("return document.activeElement.textContent") == "Zeta"


def test_permalinks_open_what_they_lead_to(shown, page):
    assert not shown.run("return document.getElementById('Alpha').open")
    shown.run("document.querySelector('#overview a[href=\"#Alpha\"]').click()")
    shown.until("return document.getElementById('Alpha').open")
    shown.open(page, "#Alpha.matches-differences")
    shown.until("return document.getElementById('Alpha').open")
    top = shown.run("return document.getElementById('Alpha.matches-differences').getBoundingClientRect().top")
    assert -1 <= top < 900
    shown.run("document.querySelector('.note a').click()")
    assert shown.run("return location.hash") == "#Zeta.matches-differences"


@pytest.mark.parametrize("width", [1280, 420, 320])
def test_nothing_sticks_out_of_the_page(shown, width):
    shown.resize(width)
    shown.run("for (const d of document.querySelectorAll('details')) d.open = true")
    widest = shown.run(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth, innerWidth]"
    )
    assert widest[0] <= widest[1] <= widest[2] == width


def test_on_a_narrow_screen_questions_stand_for_contracts(shown):
    assert shown.texts("#overview thead .contract")
    assert not shown.texts("#overview thead .group")
    shown.resize(420)
    assert not shown.texts("#overview thead .contract")
    assert shown.texts("#overview thead .group") == ["interface", "gradient", "composes"]


def test_it_is_dark_where_dark_is_preferred(shown):
    def lightness():
        red, green, blue = shown.run(
            "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
        )
        return (red + green + blue) / 765

    shown.prefer("light")
    assert lightness() > 0.9
    shown.prefer("dark")
    assert lightness() < 0.1
    shown.prefer("light")


def test_a_page_of_many_subjects_loads(browser, tmp_path):
    make = Make()
    many = [entry for number in range(20) for entry in (make.broken(f"Bad{number}"), make.report(f"Good{number}"))]
    browser.open(write_html(many, tmp_path / "many.html"))
    assert len(browser.texts(ROWS)) == 40
