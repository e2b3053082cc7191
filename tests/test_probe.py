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

from gradwright.cli import main
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


def test_a_section(run: Run) -> None:
    status, out, err = run("indexing")
    assert (status, err) == (0, "")
    assert out.isascii()
    assert "\x1b" not in out
    assert "Writes by index, sequences and missing second derivatives (indexing): 12 of 12 not right" in out
    assert "Singular points" not in out
    (own,) = [section for section in sections() if section.name == "indexing"]
    assert sorted(rows(out)) == sorted(probe.id for probe in own.probes)
    line = next(line for line in out.splitlines() if line.startswith("165 "))
    assert re.split(r"  +", line.strip())[:7] == [
        "165",
        "zeros.scatter(0, [0, 0], src), by src",
        "f64",
        "[1, 1]",
        "[0, 1]",
        "wrong 1.0e+00",
        "right",
    ]
    assert rows(out)[:4] == ["172", "165", "166", "169"] or set(rows(out)[:4]) == {"165", "166", "169", "172"}
    assert rows(out)[4] == "179", "what is detached comes after what is wrong, and before what raises"
    assert re.search(rf"\ntorch {re.escape(torch.__version__)}, gradwright \S+, \d+\.\d s\n$", out)
    assert "12 probes: 4 wrong, 1 detached, 7 not implemented" in out


def test_names_choose_rows_sections_and_functions(run: Run) -> None:
    assert rows(run("165", "m1")[1]) == ["165", "M1"]
    softplus = rows(run("softplus")[1])
    assert {"66", "67", "R11"} <= set(softplus)
    assert rows(run("gw.stable.softplus")[1]) == rows(run("stable.softplus")[1]) == softplus
    assert rows(run("gradwright.stable.softplus", "66")[1]) == softplus


def test_an_unknown_name(run: Run) -> None:
    status, out, err = run("165", "softpluss")
    assert (status, out) == (2, "")
    assert err == ("probe: got 'softpluss'. Did you mean 'softplus'? Expected a name that `gradwright probe` lists.\n")


def test_only_what_is_wrong(run: Run) -> None:
    status, out, _ = run("softplus", "--wrong")
    assert status == 0
    assert "66" in rows(out)
    assert not [row for row in rows(out) if row.startswith("R")]
    assert "not right" in out
    assert "What torch has right" not in out
    assert re.search(r"\n\d+ probes: .* 3 right\n", out), "the counts are of all"


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


def test_a_narrow_terminal_shows_everything(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("165")
    assert max(map(len, out.splitlines())) <= 80
    for column in ("row", "case", "verdict", "forward"):
        assert column in out


def test_verdicts_are_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "160")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
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
