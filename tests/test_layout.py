"""The layout is a promise: which folder may import which, what each module must have, and what an import may cost."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradwright
from gradwright.checking.contracts import Contract, all_contracts, summary_of

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
MAX_LINES = 400

BASE = {"errors", "typing", "torch_compat"}
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "typing": set(),
    "torch_compat": {"errors"},
    "authoring": BASE,
    "ste": BASE | {"authoring"},
    "stable": BASE | {"authoring"},
    "fused": BASE | {"authoring", "stable"},
    "wrapping": BASE | {"authoring"},
    "implicit": BASE | {"authoring", "wrapping"},
    "probing": BASE | {"authoring", "stable"},
    "checking": BASE,
    "watching": BASE | {"checking"},
    "reporting": BASE | {"checking"},
    "linting": set(),
    "cli": BASE | {"authoring", "ste", "stable", "fused", "probing", "checking", "watching", "reporting", "linting"},
    "_gradwright_pytest": BASE | {"checking", "watching", "reporting", "linting", "cli"},
    "__main__": {"cli"},
}
"""What each part may import besides itself; parts that do not exist yet are listed as they will be."""

EXCEPTIONS = {("gradwright.checking.report", "reporting")}
"""The methods of a report import its views when they are called, so that ``str(report)`` works."""

HEADINGS = ("What it checks", "Why it matters", "If it fails", "References")


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_text(encoding="utf-8"), str(path)) for name, path in MODULES.items()}


def part_of(module: str) -> str:
    """Return the part a module belongs to: ``checking`` for ``gradwright.checking.run``; the root is ``gradwright``."""
    head, _, rest = module.partition(".")
    return rest.split(".")[0] if rest else head


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Give line and dotted name of everything a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def imported_parts(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Give line and part of every import from the package itself."""
    for line, name in imports(tree):
        head = name.split(".")[0]
        if head == "_gradwright_pytest":
            yield line, head
        elif head == "gradwright" and name not in ("gradwright", "gradwright.__version__"):
            part = part_of(name)
            if part != part_of(module):
                yield line, part


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


def own_private_names() -> set[str]:
    """Return every private name that the package itself defines."""
    names: set[str] = set()
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
                names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return {name for name in names if private(name)}


def foreign_private_names(tree: ast.AST, own: set[str]) -> Iterator[tuple[int, str]]:
    """Give line and name of every private name that is used and belongs to another library."""
    for line, name in imports(tree):
        if name.split(".")[0] not in ("gradwright", "_gradwright_pytest") and any(map(private, name.split("."))):
            yield line, name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in own:
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            if node.func.id in ("getattr", "hasattr", "setattr") and private(str(name)) and name not in own:
                yield node.lineno, ast.unparse(node)


# --- arrows ---------------------------------------------------------------------------------------


def test_arrows_point_one_way() -> None:
    wrong = []
    for module, tree in TREES.items():
        part = part_of(module)
        if module == "gradwright":
            continue  # the root re-exports; test_import_is_light keeps it lazy
        assert part in ARROWS, f"{module}: `{part}` has no place in the table of this test; add what it may import"
        for line, target in imported_parts(module, tree):
            if target not in ARROWS[part] and (module, target) not in EXCEPTIONS:
                wrong.append(f"{MODULES[module].relative_to(ROOT)}:{line}: {part} must not import {target}")
    assert not wrong, "\n".join(wrong)


def test_report_imports_its_views_only_inside_methods() -> None:
    top = [name for node in TREES["gradwright.checking.report"].body for _, name in imports_at_top(node)]
    assert not [name for name in top if name.startswith("gradwright.reporting")]


def imports_at_top(node: ast.stmt) -> Iterator[tuple[int, str]]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from imports(ast.Module([node], []))


def test_linting_imports_no_torch() -> None:
    wrong = [
        f"{module}:{line}"
        for module, tree in TREES.items()
        if part_of(module) == "linting"
        for line, name in imports(tree)
        if name.split(".")[0] in ("torch", "numpy")
    ]
    assert not wrong


def test_private_names_of_torch_stay_in_torch_compat() -> None:
    own = own_private_names()
    wrong = [
        f"{MODULES[module].relative_to(ROOT)}:{line}: {name}"
        for module, tree in TREES.items()
        if part_of(module) != "torch_compat"
        for line, name in foreign_private_names(tree, own)
    ]
    assert not wrong, "private names of other libraries belong in torch_compat:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("import gradwright.cli", ["cli"]),
        ("from gradwright import torch_compat", ["torch_compat"]),
        ("def f():\n    from gradwright.reporting.html import page", ["reporting"]),
        ("if TYPE_CHECKING:\n    from gradwright.watching import watch", ["watching"]),
        ("from gradwright import __version__", []),
        ("from gradwright.checking.case import Case", []),
        ("from gradwright import check", ["check"]),
    ],
)
def test_the_reader_of_imports_sees_them_all(source: str, parts: list[str]) -> None:
    assert [part for _, part in imported_parts("gradwright.checking.x", ast.parse(source))] == parts


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from torch._C import x", 1),
        ("from torch.utils import _pytree", 1),
        ("import torch._dynamo", 1),
        ("torch._C.f()", 1),
        ("tensor._version", 1),
        ("getattr(node, '_saved_self')", 1),
        ("self._mine", 0),
        ("getattr(node, '_mine')", 0),
        ("torch.__version__", 0),
        ("for _ in x: pass", 0),
    ],
)
def test_the_reader_of_private_names_sees_them_all(source: str, count: int) -> None:
    assert len(list(foreign_private_names(ast.parse(source), {"_mine"}))) == count


# --- every module ---------------------------------------------------------------------------------


def test_every_module_has_a_docstring() -> None:
    assert not [module for module, tree in TREES.items() if not ast.get_docstring(tree)]


def test_no_module_is_too_long() -> None:
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert not {module: n for module, n in lengths.items() if n > MAX_LINES}


# --- contracts ------------------------------------------------------------------------------------

CONTRACTS = sorted(
    module for module in MODULES if module.startswith("gradwright.checking.contracts.") and module.count(".") == 3
)


def test_there_are_contracts_and_all_are_found() -> None:
    assert CONTRACTS
    assert {contract.examine.__module__ for contract in all_contracts().values()} == set(CONTRACTS)


@pytest.mark.parametrize("module", CONTRACTS)
def test_a_contract_module_is_complete(module: str) -> None:
    loaded = importlib.import_module(module)
    contracts = [value for value in vars(loaded).values() if isinstance(value, Contract)]
    assert contracts == [loaded.examine], "a contract module has exactly one contract, named `examine`"
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", loaded.examine.id)
    assert loaded.examine.id == module.rpartition(".")[2].replace("_", "-")
    headings = re.findall(r"^## (.+)$", inspect.cleandoc(loaded.__doc__ or ""), re.MULTILINE)
    assert tuple(headings) == HEADINGS
    summary = loaded.examine.summary
    assert summary.endswith("."), "the first line is a sentence"
    assert summary_of(loaded.examine.id) == summary


CATALOGUE = [
    m
    for m in MODULES
    if part_of(m) in ("ste", "stable", "fused")
    and re.search(r"(?m)^@(catalogued|cheaper|exact)\(", MODULES[m].read_text())
]


@pytest.mark.parametrize("module", CATALOGUE)
def test_a_family_of_the_catalogue_has_its_test_twin(module: str) -> None:
    twin = ROOT / "tests" / part_of(module) / f"test_{module.rpartition('.')[2]}.py"
    assert twin.is_file()


@pytest.mark.parametrize("module", CONTRACTS)
def test_a_contract_has_its_test_twin(module: str) -> None:
    twin = ROOT / "tests" / "checking" / "contracts" / f"test_{module.rpartition('.')[2]}.py"
    assert twin.is_file()
    assert re.search(r"^\s*def test_", twin.read_text(encoding="utf-8"), re.MULTILINE)


# --- the public face ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in gradwright.__all__ if name != "__version__"])
def test_a_public_name_is_explained(name: str) -> None:
    assert inspect.getdoc(getattr(gradwright, name))


def test_public_names_are_complete() -> None:
    assert gradwright.__all__ == sorted(gradwright.__all__)
    assert dir(gradwright) == sorted(gradwright.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        gradwright.no_such_name  # noqa: B018


def loaded_after(statement: str) -> set[str]:
    """Return which modules a fresh interpreter has after ``statement`` that it did not have before."""
    code = [
        "import sys, json",
        "before = set(sys.modules)",
        statement,
        "print(json.dumps(sorted(set(sys.modules) - before)))",
    ]
    result = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


def test_import_is_light() -> None:
    loaded = loaded_after("import gradwright")
    assert {name for name in loaded if name.startswith("gradwright")} == {"gradwright", "gradwright.errors"}
    assert not loaded & {"torch", "numpy", "rich", "argparse", "asyncio", "dataclasses"}


def test_the_compiler_is_not_imported() -> None:
    """It takes seconds."""
    loaded = loaded_after(
        "import gradwright\ngradwright.custom_gradient, gradwright.adopt, gradwright.Function\ngradwright.ste"
    )
    assert "torch._dynamo" not in loaded


def test_the_command_line_answers_without_torch() -> None:
    assert "torch" not in loaded_after("import gradwright.cli")


def test_the_pytest_plugin_costs_nothing_until_used() -> None:
    loaded = loaded_after("import pytest; before = set(sys.modules)\nimport _gradwright_pytest")
    assert not loaded & {"torch", "numpy", "rich", "gradwright"}


def test_the_version_has_one_source() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in text
    assert '[tool.hatch.version]\npath = "src/gradwright/__init__.py"' in text
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+|\.dev\d+)?", gradwright.__version__)


def test_the_changelog_is_kept() -> None:
    headings = re.findall(r"^## \[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in headings[1:])


def test_constraints_pin_torch_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert all("==" in line for line in pins)
