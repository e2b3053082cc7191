"""The page on samples: every rung of the ladder, as it stands there, gives what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradwright.checking.discovery import Discovery, discover
from gradwright.checking.synthesis import synthesise
from gradwright.cli import main
from tests.discovering import folder as folder

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "samples.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """Write the files that the page shows."""
    for name, source in re.findall(r'^```python title="(\S+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL):
        (folder / name).write_text(source, encoding="utf-8")


def found(target: str) -> Discovery:
    result = discover([target])
    assert not result.problems
    return result


def test_the_class_itself() -> None:
    (scale,) = found("scale.py").found
    assert [sample.args[1] for sample in scale.samples] == [2, -3]
    assert scale.notes == ["samples from Scale.examples"]


def test_a_file_beside_it() -> None:
    (cube,) = found("cube.py").found
    assert [tuple(sample.args[0].shape) for sample in cube.samples] == [(3, 4)]
    assert cube.notes == ["samples from gradwright_examples.py"]


def test_what_init_writes(folder: Path) -> None:
    (folder / "gradwright_examples.py").unlink()
    assert main(["init", "cube.py", "--no-isolation"]) == 0
    body = (folder / "gradwright_examples.py").read_text(encoding="utf-8").partition("import torch\n\n\n")[2]
    assert body in PAGE


def test_kernelbench() -> None:
    square, model = found("bench.py").found
    for each in (square, model):
        assert [tuple(sample.args[0].shape) for sample in each.samples] == [(128, 32)]
        assert "float32 (16384, 32) -> float32 (128, 32)" in each.notes[0]
    assert "here to `(128, 32)`" in PAGE


def test_annotations() -> None:
    pytest.importorskip("jaxtyping")
    (product,) = found("product.py").found
    samples = synthesise(product.subject).samples
    assert [[tuple(x.shape) for x in sample.args] for sample in samples] == [
        [(2, 3, 4), (4, 2)],
        [(2, 5), (5, 3)],
    ]
    assert {sample.provenance for sample in samples} == {"typed"}


@pytest.mark.parametrize(
    ("target", "inputs", "note"),
    [
        ("scale.py", "declared: x: float64 (3, 4), k=2", "samples from Scale.examples"),
        ("cube.py", "declared: x: float64 (3, 4)", "samples from gradwright_examples.py"),
        ("bench.py::Square", "declared: x: float32 (128, 32)", "samples from get_inputs(); only the leading part"),
        ("product.py", "typed: x: float64 (2, 3, 4), w: float64 (4, 2)", "no inputs are declared: these were found"),
        ("cube_alone/cube.py", "synthesised: x: float64 (3, 4)", "no inputs are declared: these were found"),
    ],
)
def test_every_row_says_where_its_inputs_are_from(
    folder: Path, capsys: pytest.CaptureFixture[str], target: str, inputs: str, note: str
) -> None:
    if target == "product.py":
        pytest.importorskip("jaxtyping")
    (folder / "cube_alone").mkdir()
    (folder / "cube_alone" / "cube.py").write_text((folder / "cube.py").read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["check", target, "--only", "gradient-count", "--verbose", "--no-isolation"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f" {inputs} " in out
    assert f"note: {note}" in out
