"""How wide a report is written."""

import io
import os

import pytest

from gradwright.cli.consoles import NARROWEST, WHEN_PIPED, report_console


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("said", "piped", "width"),
    [
        (None, True, WHEN_PIPED),
        ("70", True, 70),
        ("70", False, 70),
        ("0", True, WHEN_PIPED),
        ("0", False, 83),
        ("wide", True, WHEN_PIPED),
        ("wide", False, 83),
        ("-3", True, WHEN_PIPED),
        ("1", True, NARROWEST),
    ],
)
@pytest.mark.parametrize("stderr", [False, True])
def test_a_report_is_as_wide_as_can_be_written_in(monkeypatch, said, piped, width, stderr):
    monkeypatch.delenv("COLUMNS", raising=False)
    if said is not None:
        monkeypatch.setenv("COLUMNS", said)
    monkeypatch.setattr("sys.stderr" if stderr else "sys.stdout", io.StringIO() if piped else Screen())
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((83, 24)))
    assert report_console(stderr=stderr).width == width


def test_a_terminal_is_asked_for_its_width(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout", Screen())
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((83, 24)))
    assert report_console().width == 83
