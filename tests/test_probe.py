"""``gradwright probe``: what it prints, what a name chooses, and the page that is made of it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gradwright.stable
from gradwright.authoring.catalogue import Entry, entries
from gradwright.cli import main
from gradwright.cli.probe import chosen
from gradwright.errors import OptionError
from gradwright.probing.run import sections

ROOT = Path(__file__).resolve().parents[1]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("COLUMNS", raising=False)

    def command(*arguments: str) -> tuple[int, str, str]:
        status = main(["probe", *arguments])
        return status, *capsys.readouterr()

    return command


def rows(out: str) -> list[str]:
    """Return the rows that are shown, by their numbers and letters."""
    return [match[1] for line in out.splitlines() if (match := re.match(r"([A-Z]?\d+)  +\S", line))]


def words(out: str) -> str:
    """Return an output without the ends of its lines."""
    return " ".join(out.split())


def test_a_section(run: Run) -> None:
    status, out, err = run("indexing")
    assert (status, err) == (0, "")
    assert out.isascii()
    assert "\x1b" not in out
    assert "Writes by index, sequences and missing second derivatives (indexing): 12 of 12 not right" in out
    assert "Singular points" not in out
    (own,) = [section for section in sections() if section.name == "indexing"]
    assert sorted(rows(out)) == sorted(probe.id for probe in own.probes)
    at = next(number for number, line in enumerate(out.splitlines()) if line.startswith("165 "))
    first, second = out.splitlines()[at : at + 2]
    assert re.split(r"  +", first.strip()) == ["165", "wrong 1.0e+00", "zeros.scatter(0, [0, 0], src), by src"]
    says = ["torch says [1, 1] (f64)", "right is [0, 1]", "forward right", "gw.stable.scatter: right"]
    assert re.split(r"  +", second.strip()) == says
    assert "torch raises (f64)" in out
    assert rows(out)[:4] == ["172", "165", "166", "169"] or set(rows(out)[:4]) == {"165", "166", "169", "172"}
    assert rows(out)[4] == "179", "what is detached comes after what is wrong, and before what raises"
    assert re.search(rf"\ntorch {re.escape(torch.__version__)}, gradwright \S+, \d+\.\d s\n$", out)
    assert "12 probes: 4 wrong, 1 detached, 7 not implemented" in out


def test_names_choose_rows_sections_and_functions(run: Run) -> None:
    assert rows(run("165", "m1")[1]) == ["165", "M1"]
    softplus = rows(run("stable.softplus")[1])
    assert {"66", "67", "R11"} <= set(softplus)
    assert "T19" not in softplus, "it calls softplus, and gw.stable.softplus is not what is right there"
    assert rows(run("gw.stable.softplus")[1]) == softplus
    assert rows(run("gradwright.stable.softplus", "66")[1]) == softplus
    assert set(rows(run("softplus")[1])) == {*softplus, "T19"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch.acos", {"14", "16", "P11"}),
        ("torch.cdist", {"174", "175", "M13", "P4"}),
        ("torch.linalg.eigh", {"149", "M6"}),
        ("eigh", {"149", "M6"}),
        ("pow", {"R6"}),
        ("lgamma", {"133", "F24"}),
        ("F.ctc_loss", {"172", "173"}),
        ("scaled_dot_product_attention", {"177", "M15", "R9"}),
        ("torch.nn.functional.gelu", {"69"}),
        ("special.erfcx", {"84"}),
        ("linalg.sqrtm", {"164"}),
        ("std", {"9", "R2"}),
    ],
)
def test_a_function_of_torch_chooses_the_rows_that_call_it(name: str, expected: set[str]) -> None:
    found, notes = chosen(sections(), [name])
    assert expected <= {probe.id for _, probe in found}
    assert not notes
    last = name.rpartition(".")[2]
    for _, probe in found:
        assert re.search(rf"\b{last}\b", probe.case) or last == probe.remedy


def test_a_word_of_a_row_that_is_no_call_chooses_nothing() -> None:
    """A row "by the mean" says nothing about torch.mean; torch.polar has the name of another function."""
    for name in ("mean", "torch.mean", "torch.x", "torch.softplu"):
        with pytest.raises(OptionError, match="no row calls it"):
            chosen(sections(), [name])
    probes, notes = chosen(sections(), ["torch.polar"])
    assert (probes, notes) == ([], ["torch.polar: no row calls it; gradwright show stable.polar"])


def test_a_stable_function_without_a_row(run: Run) -> None:
    told = "gw.stable.masked_mean: no row of its own; gradwright show stable.masked_mean\n"
    for name in ("masked_mean", "stable.masked_mean", "gw.stable.masked_mean"):
        assert run(name) == (0, told, "")
    status, out, _ = run("masked_mean", "165")
    assert status == 0
    assert out.startswith(told)
    assert rows(out) == ["165"]
    status, out, err = run("masked_mean", "165", "--json", "-")
    assert (status, err) == (0, told)
    assert [row["id"] for row in json.loads(out)["probes"]] == ["165"]
    assert run("masking")[0] == 2, "a module of the package is no function"


@pytest.mark.parametrize("known", entries(gradwright.stable), ids=lambda known: known.name)
def test_every_stable_function_is_known(known: Entry) -> None:
    probes, notes = chosen(sections(), [known.name])
    assert bool(probes) != bool(notes)


def test_the_list_of_sections(run: Run) -> None:
    status, out, err = run("--list")
    assert (status, err) == (0, "")
    assert [line.split()[:3] for line in out.splitlines()] == [
        [section.name, str(len(section.probes)), "rows"] for section in sections()
    ]
    assert "Singular points and scale" in out
    status, out, err = run("--list", "165")
    assert (status, out) == (2, "")
    assert "--list: runs nothing; expected no name and no other option" in err


def test_an_unknown_name(run: Run) -> None:
    status, out, err = run("165", "softpluss")
    assert (status, out) == (2, "")
    about, _, *listed = err.splitlines()
    assert about == (
        "probe: 'softpluss' is no row, section or function of gw.stable, and no row calls it: not looked at."
    )
    assert "\n".join([*listed, ""]) == run("--list")[1]


def test_only_what_is_wrong(run: Run) -> None:
    status, out, _ = run("softplus", "--wrong")
    assert status == 0
    assert "66" in rows(out)
    assert not [row for row in rows(out) if row.startswith("R")]
    assert "not right" in out
    assert "What torch has right" not in out
    assert re.search(r"^\d+ probes: .* 3 right\n", out), "the counts are of all"


def test_the_counts_and_the_legend_come_first(run: Run) -> None:
    _, out, _ = run("165", "R1")
    counts = "2 probes: 1 wrong, 1 right"
    assert out.startswith(counts)
    for word in ("[value]", "[2nd]", "forward", "gw.stable.NAME"):
        assert word in out.partition("(indexing)")[0]
    assert out.splitlines()[-2] == counts, "once more, where the first lines have left the screen"
    assert run("165")[1].count("1 probe: 1 wrong") == 1


def test_right_but_for_forward_mode(run: Run) -> None:
    _, out, _ = run("R4", "R1", "M6", "--wrong")
    assert "(right): 0 of 2 not right, 1 more only in forward mode" in words(out)
    assert re.search(r"^R4  right; no forward mode  pdist", out, re.MULTILINE)
    assert re.search(r"^M6  right; forward wrong \S+  V2", out, re.MULTILINE)
    assert "R1" not in rows(out)


def test_json(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "probes.json"
    status, out, err = run("165", "109", "--json", str(path))
    assert (status, err) == (0, "")
    assert rows(out) == ["109", "165"]
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert (whole["schema"], whole["command"], whole["torch"]) == (1, "probe", torch.__version__)
    assert [row["id"] for row in whole["probes"]] == ["109", "165"]
    assert whole["probes"][1]["torch"]["got"] == [1, 1]
    assert whole["probes"][1]["wanted"] == [0, 1]
    assert whole["probes"][1]["forward"]["verdict"] == "right"
    status, out, _ = run("165", "--json", "-")
    assert status == 0
    assert json.loads(out)["probes"][0]["id"] == "165"


def test_a_file_that_cannot_be_written(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, out, err = run("165", "--json", "no/such/file.json")
    assert (status, out) == (2, "")
    assert "--json: no/such/file.json cannot be written: there is no directory no/such" in err

    def full(*_: object, **__: object) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full)
    status, out, err = run("165", "--json", str(tmp_path / "probes.json"))
    assert status == 2
    assert rows(out) == ["165"], "the table is not lost"
    assert "cannot be written: OSError: no space left; give another file." in err


@pytest.mark.parametrize("columns", ["", "100", "80"])
def test_no_row_is_broken_within_what_it_tells(run: Run, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = run("linear-algebra", "T29")
    assert max(map(len, out.splitlines())) <= int(columns or 120)
    for piece in (
        "gw.stable.one_minus_cos_over_x2: right",
        "gw.stable.orthogonal_factor: right",
        "right is [..., 0.3829, 0.4742, 0.1405]",
    ):
        assert piece in out


def test_verdicts_are_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "160")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("gradwright.cli.progress.SECONDS_BEFORE", 0.0)
    screen, errors = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", errors)
    assert main(["probe", "165", "R1"]) == 0
    assert "\x1b[1;31mwrong 1.0e+00" in screen.getvalue()
    assert "\x1b[32mright" in screen.getvalue()
    assert "2/2" in errors.getvalue(), "the bar"


def test_without_torch_there_is_a_clear_message() -> None:
    program = "import sys; sys.modules['torch'] = None; from gradwright.cli import main; sys.exit(main(['probe']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("gradwright: PyTorch is not installed;")


# ------------------------------------------------------------------ the page

PAGE = (ROOT / "docs" / "torch-gradients.md").read_text(encoding="utf-8")


def test_the_page_is_of_the_torch_that_is_pinned() -> None:
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned
    assert f"\ntorch {pinned[1]}.\n" in PAGE, "run benchmarks/torch_probes.py --write"


def test_the_page_has_every_row() -> None:
    for section in sections():
        assert f"## {section.title}\n" in PAGE
        for probe in section.probes:
            assert f"\n| {probe.id} | `{probe.case}" in PAGE, "run benchmarks/torch_probes.py --write"


def test_the_rows_of_the_page_have_as_many_cells_as_its_heads() -> None:
    _, _, table = PAGE.partition("<!-- probes -->")
    lengths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
    assert lengths == {9}


def test_the_commands_of_the_page_work(run: Run) -> None:
    commands = re.findall(r"^gradwright probe (\S.*?)  ", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert run(*command.split())[0] == 0
