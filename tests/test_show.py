"""``gradwright show``: what it lists, and that what it plots is what a function returns."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradwright.stable
import gradwright.ste
from gradwright.authoring.catalogue import Entry, Example, SurrogateEntry, entries
from gradwright.cli import main, show

ENTRIES = [*entries(gradwright.stable), *entries(gradwright.ste)]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments: str) -> tuple[int, str, str]:
        status = main(["show", *arguments])
        return status, *capsys.readouterr()

    return command


def entry(function: Any, examples: Any, **declared: Any) -> SurrogateEntry:
    function.__doc__ = "Made up."
    fields = {"forward": "f", "gradient": {"x": "g"}, "surrogate": function, "paper": "none", **declared}
    return SurrogateEntry(name="ste.made_up", function=function, examples=examples, **fields)


def test_everything_is_listed_by_family(run: Run) -> None:
    status, out, err = run()
    assert (status, err) == (0, "")
    for known in ENTRIES:
        assert f"  {known.name} " in out
    assert "ste.rounding: Rounding whose gradient does not vanish." in out
    assert ":func:" not in out
    for package in ("ste", "stable"):
        listed = [line.split()[0] for line in run(package)[1].splitlines() if line.startswith("  ")]
        assert listed == [known.name for known in ENTRIES if known.name.startswith(f"{package}.")]


def test_a_family(run: Run) -> None:
    status, out, _ = run("rounding")
    assert status == 0
    assert "ste.floor" in out
    assert "ste.fake_quantize" not in out
    assert run("ste.rounding")[1] == out


@pytest.mark.parametrize("name", ["fake_quantize", "ste.fake_quantize", "gw.ste.fake_quantize"])
def test_one_entry_says_everything(run: Run, name: str) -> None:
    status, out, _ = run(name)
    assert status == 0
    for text in (
        "Quantise to evenly spaced codes and back",
        "out = (clip(round(x / s) + z, n, p) - z) s",
        "gradient of x           g where the mask passes, else 0",
        "gradient of zero_point",
        "at -1.125: 0 below, 1 at, 1 above; at 0.875: 1 below, 0",
        "refused, at least while parameters are learned",
        "arXiv 1712.05877",
        "values over x (0.25, low=-4, high=3)",
        "gradient of x as returned",
    ):
        assert text in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_true_gradient_says_how_true_and_where(run: Run) -> None:
    status, out, _ = run("stable.sigmoid")
    assert status == 0
    for text in ("every number; 0 and 1", "8.9e-16 in float64", "the true one", "gradient of x as returned"):
        assert text in out
    assert "in the cotangent" not in out


@pytest.mark.parametrize("known", ENTRIES, ids=lambda known: known.name)
def test_every_entry_is_shown_with_its_plots(run: Run, known: Entry) -> None:
    status, out, _ = run(known.name)
    assert status == 0
    assert "no plot: " in out or out.count("┤") + out.count("┼") == 22


def test_what_is_plotted_is_what_is_returned() -> None:
    """A rule that is wrong is shown as it is, not as it is declared."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return torch.where(ctx.saved_tensors[0] > 0.5, 7.0, g)

    def made_up(x: Tensor) -> Tensor:
        return Wrong.apply(x)

    up, down = torch.tensor(0.5).nextafter(torch.tensor(1.0)), torch.tensor(0.5).nextafter(torch.tensor(0.0))
    points = torch.stack([torch.tensor(-1.0), down, torch.tensor(0.5), up, torch.tensor(1.0)])
    text = show.described(entry(made_up, lambda dtype: [Example((points,))]))
    assert "at 0.5: 1 below, 1 at, 7 above" in text
    assert "         7 ┤" in text


def test_only_jumps_are_edges_and_each_is_told_once() -> None:
    def kink(x: Tensor) -> Tensor:
        return x.abs() + x**3

    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    steps = [zero]
    for _ in range(3):
        steps = [steps[0].nextafter(-one), *steps, steps[-1].nextafter(one)]
    smooth = torch.stack([one.nextafter(zero), one, one.nextafter(2 * one)])
    text = show.described(entry(kink, lambda dtype: [Example((torch.cat([torch.stack(steps), smooth]),))]))
    assert "at 0: -1 below, 0 at, 1 above (as" in " ".join(text.split())
    assert text.count(" below, ") == 1


def test_arguments_with_a_number_for_each_element_are_spread() -> None:
    def shifted(x: Tensor, offset: Tensor) -> Tensor:
        assert x.shape == offset.shape
        return x + offset

    text = show.described(entry(shifted, lambda dtype: [Example((torch.ones(3, 2), torch.full((3, 2), 0.5)))]))
    assert "values over x (0.5)" in text


def test_far_points_do_not_widen_a_plot() -> None:
    low, high = show._range(torch.tensor([-1e4, -2.0, -1.0, 1.0, 2.0, torch.inf, torch.nan]))
    assert (low, high) == (pytest.approx(-2.2), pytest.approx(2.2))
    assert show._range(torch.tensor([0.0, 0.0, 1.0]))[0] < 0


def test_an_example_that_fits_no_row_of_points_is_passed_over() -> None:
    def rows(x: Tensor, scale: Tensor) -> Tensor:
        return x * scale

    fitting = Example((torch.ones(3), torch.tensor(2.0)))
    text = show.described(entry(rows, lambda dtype: [Example((torch.ones(3, 2), torch.ones(3, 1))), fitting]))
    assert "values over x (2)" in text
    text = show.described(entry(rows, lambda dtype: [Example((torch.ones(3, 2), torch.ones(3, 1)))]))
    assert text.endswith("\nno plot: its output is no function of one number")

    def refuses(x: Tensor) -> Tensor:
        if x.dim() == 1:
            raise ValueError("only matrices")
        return x * 1

    text = show.described(entry(refuses, lambda dtype: [Example((torch.ones(3, 2),))]))
    assert text.endswith("\nno plot: its output is no function of one number")


@pytest.mark.parametrize("name", ["softmax", "cumprod", "eigh", "angle", "masked_mean"])
def test_what_is_not_elementwise_has_no_plot(run: Run, name: str) -> None:
    """Also where the output has the shape of the input: a row of points would be one argument."""
    status, out, err = run(name)
    assert (status, err) == (0, "")
    assert out.endswith("\nno plot: its output is no function of one number\n")


@pytest.mark.parametrize("name", ["torch.cdist", "cdist"])
def test_the_name_of_a_function_of_torch(run: Run, name: str) -> None:
    assert run(name) == run("stable.cdist")
    assert run(name)[0] == 0


@pytest.mark.parametrize(
    "name", ["stable.removable", "stable.find_switches", "stable.quotient", "ste.compare", "ste.Quantize"]
)
def test_what_is_no_entry_prints_its_docstring(run: Run, name: str) -> None:
    status, out, err = run(name)
    assert (status, err) == (0, "")
    package, _, last = name.partition(".")
    tool = getattr(getattr(gradwright, package), last)
    assert out.startswith(f"{name}(")
    assert not re.search(r"\w: |->| at 0x", out.splitlines()[0]), "neither annotations nor addresses"
    assert (tool.__doc__ or "").splitlines()[0].replace("``", "") in out
    assert "Arguments:" in out
    assert run(last) == run(f"gw.{name}") == (status, out, err)


def test_a_random_entry_says_so() -> None:
    text = show.described(entry(lambda x: x + torch.rand(()), lambda d: [Example((torch.ones(3),))], random="E = x"))
    assert "random            E = x" in text
    assert "values over x, one draw" in text
    assert "not measured: the values are random" in text


def test_an_unknown_name(run: Run) -> None:
    status, out, err = run("fake_quantise")
    assert (status, out) == (2, "")
    listed = "Expected a name that `gradwright show` lists.\n"
    assert err == f"show: got 'fake_quantise'. Did you mean 'fake_quantize'? {listed}"
    assert run("ste.fake_quantise")[2] == f"show: got 'ste.fake_quantise'. Did you mean 'ste.fake_quantize'? {listed}"


def test_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    assert main(["show", "round"]) == 0
    written.seek(0)
    text = written.read()
    assert r"L\xe9onard" in text
    assert "+--" in text


def test_it_writes_no_colour() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "gradwright", "show", "ceil"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    assert "\x1b" not in result.stdout
    assert "ste.ceil" in result.stdout


def test_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _, text, _ = run("bitnet_activations")
    described, _, _ = text.partition("values over x")
    assert max(map(len, described.splitlines())) <= 40
    assert "largest size" in text
