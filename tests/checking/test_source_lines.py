"""The lines of a definition, where Python's inspect finds those of another one, or none."""

from __future__ import annotations

import importlib.util
import linecache
from pathlib import Path
from types import ModuleType

from gradwright.checking.source_lines import SourceLines, source_lines
from gradwright.checking.sources import sources_of
from gradwright.checking.subject import as_subject

HEAD = "from torch.autograd import Function\n\n\n"
CLASS = """class A(Function):
    @staticmethod
    def forward(ctx, x):
        return x * {0}

    @staticmethod
    def backward(ctx, g):
        return g * {0}
"""


def module(path: Path, text: str) -> ModuleType:
    file = path / "lines_of.py"
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("lines_of", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_of_two_classes_of_one_name_the_one_that_is_meant(tmp_path: Path) -> None:
    made = module(tmp_path, f"{HEAD}{CLASS.format(2)}\n\nB = A\n\n\n{CLASS.format(3)}")
    assert [source_lines(each).first for each in (made.B, made.A)] == [4, 17]  # type: ignore[union-attr]
    subject = as_subject(made.A)
    assert (subject.file, subject.line) == (str(tmp_path / "lines_of.py"), 17)
    (source,) = sources_of(subject)
    assert (20, "        return x * 3") in source.lines


def test_a_class_begins_at_its_decorator_and_ends_with_its_body(tmp_path: Path) -> None:
    text = f"{HEAD}def same(c):\n    return c\n\n\n@same\n{CLASS.format(2)}\n\nafter = 1\n"
    found = source_lines(module(tmp_path, text).A)
    assert found is not None
    assert (found.first, found.lines[0], found.lines[-1]) == (8, "@same\n", "        return g * 2\n")


def test_a_class_of_a_notebook() -> None:
    text, file = HEAD + CLASS.format(2), "<ipython-input-7-0123456789ab>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, object] = {"__name__": "of_a_notebook"}
    exec(compile(text, file, "exec"), namespace)
    assert source_lines(namespace["A"]) == SourceLines(file, 4, tuple(CLASS.format(2).splitlines(keepends=True)))


def test_what_was_edited_or_never_written_has_no_lines(tmp_path: Path) -> None:
    made = module(tmp_path, HEAD + CLASS.format(2))
    (tmp_path / "lines_of.py").write_text("class\n", encoding="utf-8")
    assert source_lines(made.A) is None
    assert source_lines(type("A", (), {})) is None
    assert source_lines(3) is None
