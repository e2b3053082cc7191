"""Files of examples: a ``gradwright_examples.py`` beside a checked file, or at the root of its package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwright.checking.importing import package_of
from gradwright.checking.targets import EXAMPLES_STEM, Source, is_passed_over

FILE_NAME = f"{EXAMPLES_STEM}.py"


@dataclass(frozen=True)
class ExamplesFile:
    """A file that declares samples for what lies beside it, or in the package below it."""

    path: Path
    shown: str
    sources: tuple[Source, ...]
    """The modules that were looked at among those."""
    all_examined: bool
    """True when there are no others: a name that is unknown then is a mistake."""


def examples_files(sources: Sequence[Source]) -> list[ExamplesFile]:
    """Return the files of examples for some modules, each once, in the order of the modules."""
    files = {}
    for source in sources:
        file = getattr(source.module, "__file__", None)
        if file is not None:  # as a namespace package has it, or a built-in module has none
            files[source] = Path(file).resolve()
    folders: dict[Path, Path] = {}
    """The folder of each file of examples, and how it is shown."""
    for source, file in files.items():
        shown = Path(source.shown)
        for folder, way in ((file.parent, shown.parent), *_root(file, shown)):
            if (folder / FILE_NAME).is_file() and folder / FILE_NAME not in files.values():
                folders.setdefault(folder, way)
    found = []
    for folder, way in folders.items():
        candidates = set(_files_of(folder))
        near = tuple(source for source, file in files.items() if file in candidates)
        rest = candidates - set(files.values())
        found.append(ExamplesFile(folder / FILE_NAME, str(way / FILE_NAME), near, not rest))
    return found


def _root(file: Path, shown: Path) -> Iterator[tuple[Path, Path]]:
    """Give the directory of the package that a file is in, and how it is shown."""
    directory, name = package_of(file)
    if name is not None:
        root = directory / name.partition(".")[0]
        above = len(file.relative_to(root).parts) - 1
        way = shown.parent
        for _ in range(above):
            way = way.parent
        yield root, way


def _files_of(folder: Path) -> Iterator[Path]:
    """Give the files that a file of examples in a folder is for: all below it in a package, else those beside it."""
    below = folder.rglob("*.py") if (folder / "__init__.py").is_file() else folder.glob("*.py")
    for file in below:
        if file.name != FILE_NAME and not is_passed_over(file.stem):
            yield file.resolve()
