"""Targets become subjects with their declared samples; faults of the user's become problems, one each."""

import sys

import pytest
import torch

from gradwright.checking.discovery import discover
from tests.discovering import folder as folder
from tests.discovering import function, names, only_problem, write

pytestmark = pytest.mark.usefixtures("folder")


# ---------------------------------------------------------------- what is found


def test_a_file_gives_the_functions_defined_in_it_once():
    write("other.py", function("Elsewhere"))
    write(
        "ops.py",
        function("First"),
        function("Second"),
        """
        from other import Elsewhere
        Alias = First
        apply = Second.apply
        number = 3
        """,
    )
    result = discover(["ops.py"])
    assert names(result) == ["First", "Second"]
    assert not result.problems
    assert [f.subject.file for f in result.found] == ["ops.py", "ops.py"]
    assert result.found[0].subject.line == 4
    assert not any(f.named for f in result.found)


def test_nested_classes_are_found_by_their_qualified_name():
    write(
        "ops.py",
        """
        import torch
        class Loss:
            class Inner(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x): return x
            @staticmethod
            class Wrapped(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x): return x
        """,
    )
    assert names(discover(["ops.py"])) == ["Loss.Inner", "Loss.Wrapped"]
    for asked in ("Loss.Inner", "Inner"):
        result = discover([f"ops.py::{asked}"])
        assert names(result) == ["Loss.Inner"]
        assert result.found[0].named


def test_a_class_made_in_a_function_goes_by_the_name_it_is_given():
    write(
        "ops.py",
        """
        import torch
        def make():
            class Local(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x): return x
            return Local
        Made = make()
        """,
    )
    assert names(discover(["ops.py"])) == ["Made"]


def test_custom_ops_defined_there_are_found():
    write(
        "ops.py",
        """
        import torch
        from torch import Tensor

        @torch.library.custom_op("gradwright_discovery::twice", mutates_args=())
        def twice(x: Tensor) -> Tensor:
            return x * 2

        relu = torch.ops.aten.relu
        gradwright_samples = {"twice": torch.ones(2)}
        """,
    )
    result = discover(["ops.py"])
    assert names(result) == ["gradwright_discovery::twice"]
    assert len(result.found[0].samples) == 1
    assert names(discover(["ops.py::twice"])) == names(discover(["ops.py::gradwright_discovery::twice"])) != []


def test_programs_and_routines_are_found_where_they_were_made():
    source = """
    import gradwright as gw
    copied = gw.executable("cat", out=gw.like("x"), vjp=lambda g: g)
    """
    write("programs.py", source)
    result = discover(["programs.py"])
    assert names(result) == ["copied"]
    assert not result.problems


def test_main_blocks_do_not_run_and_the_arguments_are_not_gradwrights(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gradwright", "check", "--only", "x"])
    write(
        "ops.py",
        function(),
        """
        import sys
        assert sys.argv == ["ops.py"], sys.argv
        if __name__ == "__main__":
            raise SystemExit("ran as a script")
        """,
    )
    assert names(discover(["ops.py"])) == ["Double"]
    assert sys.argv[0] == "gradwright"


def test_the_working_directory_is_left_alone(folder):
    write("ops.py", "import os; os.chdir('/')", function("A"))
    write("more.py", function("B"))
    assert names(discover(["ops.py", "more.py"])) == ["A", "B"]


def test_a_file_imports_what_lies_beside_it():
    write("scripts/helper.py", "factor = 2")
    write("scripts/ops.py", "from helper import factor", function())
    result = discover(["scripts/ops.py"])
    assert names(result) == ["Double"]
    assert result.found[0].subject.file == "scripts/ops.py"


def test_files_and_helpers_of_the_same_name_do_not_clash():
    for place in ("a", "b"):
        write(f"{place}/helper.py", f"place = {place!r}")
        write(f"{place}/ops.py", "import helper", function(), "Double.place = helper.place")
    result = discover(["a/ops.py", "b/ops.py"])
    assert [f.subject.target.place for f in result.found] == ["a", "b"]
    assert [f.subject.file for f in result.found] == ["a/ops.py", "b/ops.py"]


def test_a_file_with_the_name_of_a_library_does_not_replace_it():
    write("random.py", function())
    write("torch.py", function("Mine").replace("import torch", "import sys; torch = sys.modules['torch']"))
    result = discover(["random.py", "torch.py"])
    assert names(result) == ["Double", "Mine"]
    assert sys.modules["torch"] is torch


def test_the_same_file_twice_is_one_subject():
    write("ops.py", function())
    assert names(discover(["ops.py", "./ops.py", "ops.py::Double", "."])) == ["Double"]


def test_a_file_that_another_one_imports_is_the_same_module():
    write("base.py", function("Base"))
    write("ops.py", "from base import Base", function())
    assert names(discover(["ops.py", "base.py"])) == ["Double", "Base"]


def test_a_file_in_a_package_may_import_relatively():
    write("pkg/__init__.py", "")
    write("pkg/sub/__init__.py", "")
    write("pkg/util.py", "factor = 2")
    write("pkg/sub/ops.py", "from ..util import factor", function())
    result = discover(["pkg/sub/ops.py"])
    assert names(result) == ["Double"]
    assert result.found[0].subject.target.__module__ == "pkg.sub.ops"


def test_packages_of_the_same_name_do_not_clash():
    for place in ("a", "b"):
        write(f"{place}/pkg/__init__.py", f"place = {place!r}")
        write(f"{place}/pkg/ops.py", "from . import place", function(), "Double.place = place")
    result = discover(["a/pkg/ops.py", "b/pkg/ops.py"])
    assert [f.subject.target.place for f in result.found] == ["a", "b"]


def test_a_package_with_the_name_of_a_library_in_use_is_refused():
    write("torch/__init__.py", "")
    write("torch/ops.py", function())
    assert "already in use" in only_problem(discover(["torch/ops.py"])).message


def test_a_package_directory_is_walked_without_its_tests():
    write("pkg/__init__.py", function("Top"))
    write("pkg/ops.py", function("Low"))
    write("pkg/deep/__init__.py", "")
    write("pkg/deep/more.py", "from ..ops import Low", function("Deep"))
    for test in ("pkg/test_ops.py", "pkg/ops_test.py", "pkg/conftest.py", "pkg/__main__.py", "pkg/tests/__init__.py"):
        write(test, "raise RuntimeError('imported')")
    for target in ("pkg", "./pkg"):
        result = discover([target])
        assert names(result) == ["Top", "Deep", "Low"]
        assert {f.subject.file for f in result.found} == {"pkg/__init__.py", "pkg/deep/more.py", "pkg/ops.py"}
        assert not result.problems
        assert len(result.notes) == 1
        assert "passed over 5" in result.notes[0]
        assert "pkg.conftest" in result.notes[0]


def test_a_plain_directory_gives_each_file():
    write("code/a.py", function("A"))
    write("code/inner/b.py", function("B"))
    write("code/pkg/__init__.py", "")
    write("code/pkg/c.py", "from . import __name__", function("C"))
    for skipped in (".hidden/d.py", "__pycache__/d.py", "build/d.py", "env/d.py"):
        write(f"code/{skipped}", "raise RuntimeError('imported')")
    write("code/env/pyvenv.cfg", "")
    result = discover(["code/"])
    assert names(result) == ["A", "B", "C"]
    assert not result.problems
    assert result.found[1].subject.file == "code/inner/b.py"


def test_tests_are_checked_when_they_are_named():
    write("test_ops.py", function())
    assert names(discover(["test_ops.py"])) == ["Double"]


def test_a_module_is_found_from_the_working_directory_and_shown_relative_to_it():
    write("pkg/__init__.py", "")
    write("pkg/ops.py", function())
    write("single.py", function("Single"))
    result = discover(["pkg.ops", "single"])
    assert [(f.subject.name, f.subject.file) for f in result.found] == [
        ("Double", "pkg/ops.py"),
        ("Single", "single.py"),
    ]


def test_an_installed_module_is_shown_without_the_place_of_installation(tmp_path, monkeypatch):
    write("env/lib/site-packages/published/__init__.py", "")
    write("env/lib/site-packages/published/ops.py", function())
    monkeypatch.syspath_prepend(tmp_path / "env/lib/site-packages")
    result = discover(["published"])
    assert [f.subject.file for f in result.found] == ["published/ops.py"]
    assert str(tmp_path) not in repr([f.subject.file for f in result.found])


def test_a_name_may_be_anything_that_can_be_checked():
    write("other.py", function("Elsewhere"))
    write(
        "ops.py",
        "from other import Elsewhere",
        """
        def plain(x):
            return x * 2
        number = 3
        """,
    )
    assert discover(["ops.py"]).found == []
    assert names(discover(["ops.py::plain", "ops.py::Elsewhere"])) == ["plain", "Elsewhere"]
    problem = only_problem(discover(["ops.py::number"]))
    assert "nothing called 'number'" in problem.message


# ---------------------------------------------------------------- declared samples


def test_declared_samples_of_both_kinds():
    write(
        "ops.py",
        function("A"),
        function("B"),
        """
        class Outer:
            class Inner(A):
                pass

        gradwright_samples = {"A": torch.ones(2), "Outer.Inner": [(torch.ones(3),), (torch.ones(4),)]}

        def samples_B():
            yield torch.ones(5)
            yield {"args": (torch.ones(6),), "surrogate": lambda x: x}

        def samples_Outer_Inner():
            return torch.ones(7)
        """,
    )
    found = {f.subject.name: f for f in discover(["ops.py"]).found}
    sizes = {name: [len(s.args[0]) for s in f.samples] for name, f in found.items()}
    assert sizes == {"A": [2], "B": [5, 6], "Outer.Inner": [3, 4, 7]}
    assert found["B"].samples[1].surrogate is not None
    assert all(s.provenance == "declared" for f in found.values() for s in f.samples)


def test_declared_samples_make_subjects_of_functions_and_modules():
    write(
        "ops.py",
        """
        import torch
        def gelu(x): return torch.nn.functional.gelu(x)
        class Holder:
            layer = torch.nn.Linear(2, 3)
        gradwright_samples = {"gelu": torch.ones(2), "Holder.layer": torch.ones(1, 2)}
        """,
    )
    result = discover(["ops.py"])
    assert [(f.subject.name, f.subject.kind) for f in result.found] == [
        ("gelu", "callable"),
        ("Holder.layer", "module"),
    ]
    assert all(f.samples for f in result.found)
    assert result.found[0].subject.file == "ops.py"


def test_an_object_may_be_the_key_and_an_alias_the_name():
    write(
        "ops.py",
        function("A"),
        function("B"),
        "Alias = B",
        "gradwright_samples = {A: torch.ones(2), 'Alias': torch.ones(3)}",
    )
    result = discover(["ops.py"])
    assert [(f.subject.name, len(f.samples)) for f in result.found] == [("A", 1), ("B", 1)]


def test_random_samples_are_the_same_in_every_run():
    write("ops.py", function(), "x = torch.randn(3)", "def samples_Double():\n    yield x\n    yield torch.randn(3)")
    state = torch.get_rng_state()
    runs = []
    for seed in (1, 1, 2):
        sys.modules.pop("ops", None)
        runs.append([s.args[0] for s in discover(["ops.py"], seed=seed).found[0].samples])
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1]))
    assert not torch.equal(runs[0][0], runs[2][0])
    assert not torch.equal(runs[0][1], runs[2][1])
    assert torch.equal(torch.get_rng_state(), state)


def test_a_declaration_that_names_nothing_is_a_problem():
    write("ops.py", function(), "gradwright_samples = {'Duoble': torch.ones(2)}")
    result = discover(["ops.py"])
    message = only_problem(result).message
    assert message.startswith("ops.py: gradwright_samples['Duoble']")
    assert "Did you mean 'Double'?" in message
    assert names(result) == ["Double"]
    write("more.py", function(), "def samples_Dubble():\n    return torch.ones(2)")
    assert "Did you mean 'Double'?" in only_problem(discover(["more.py"])).message


def test_an_ordinary_function_called_samples_is_left_alone():
    write("ops.py", function(), "def samples_per_second(rate):\n    return rate")
    result = discover(["ops.py"])
    assert not result.problems
    assert names(result) == ["Double"]


def test_samples_that_are_not_a_mapping_are_a_problem():
    write("ops.py", function(), "gradwright_samples = [torch.ones(2)]")
    message = only_problem(discover(["ops.py"])).message
    assert message.startswith("ops.py: gradwright_samples: is of type list; expected a dictionary")


@pytest.mark.parametrize(
    ("declaration", "said"),
    [
        ("gradwright_samples = {'Double': 3}", "is of type int"),
        ("gradwright_samples = {'Double': {'arg': ()}}", "Did you mean 'args'?"),
        ("def samples_Double():\n    raise KeyError('z')", "samples_Double: raised KeyError"),
        ("def samples_Double():\n    yield torch.ones(2)\n    raise KeyError('z')", "samples_Double: raised KeyError"),
        ("def samples_Double():\n    return []", "declares no sample"),
    ],
)
def test_a_bad_declaration_is_kept_with_its_subject(declaration, said):
    write("ops.py", function(), function("Other"), declaration, "def samples_Other():\n    return torch.ones(2)")
    result = discover(["ops.py"])
    found = {f.subject.name: f for f in result.found}
    assert said in str(found["Double"].sample_error)
    assert found["Other"].sample_error is None
    assert len(found["Other"].samples) == 1


# ---------------------------------------------------------------- samples for code elsewhere


@pytest.fixture
def library():
    write("lib/__init__.py", "")
    write("lib/a.py", function("Same"), function("OnlyA"))
    write(
        "lib/b.py",
        function("Same"),
        "class Outer:\n    class Nested(Same):\n        pass",
        "def plain(x):\n    return x",
    )
    return "lib"


def lengths(result):
    return {f"{f.source.module.__name__}:{f.subject.name}": [len(s.args[0]) for s in f.samples] for f in result.found}


def test_a_file_of_samples_for_somebody_elses_code(library):
    write(
        "mine.py",
        """
        import torch
        gradwright_samples = {
            "OnlyA": torch.ones(1), "lib.a:Same": torch.ones(2), "lib.b.Same": torch.ones(3), "Nested": torch.ones(4),
            "plain": torch.ones(5),
        }
        def samples_OnlyA():
            return torch.ones(6)
        """,
    )
    result = discover([library], samples_file="mine.py")
    assert not result.problems
    assert lengths(result) == {
        "lib.a:Same": [2], "lib.a:OnlyA": [1, 6], "lib.b:Same": [3], "lib.b:Outer.Nested": [4], "lib.b:plain": [5],
    }  # fmt: skip


def test_a_file_of_samples_replaces_what_the_code_declares():
    write("ops.py", function(), "gradwright_samples = {'Double': torch.ones(2)}")
    write("mine.py", "import torch", "gradwright_samples = {'Double': torch.ones(5)}")
    assert lengths(discover(["ops.py"], samples_file="mine.py")) == {"ops:Double": [5]}


def test_an_ambiguous_name_in_a_file_of_samples_is_a_problem(library):
    write("mine.py", "import torch", "gradwright_samples = {'Same': torch.ones(1)}")
    message = only_problem(discover([library], samples_file="mine.py")).message
    assert "lib.a:Same" in message
    assert "lib.b:Same" in message


def test_an_unknown_name_in_a_file_of_samples_is_a_problem(library):
    write("mine.py", "import torch", "gradwright_samples = {'OnlyB': torch.ones(1), 'lib.a:Sane': torch.ones(1)}")
    result = discover([library], samples_file="mine.py")
    assert [("OnlyA" in p.message, "Same" in p.message) for p in result.problems] == [(True, True)] * 2


def test_a_file_of_samples_may_say_more_than_is_asked(library):
    write(
        "mine.py",
        "import torch",
        "gradwright_samples = {'lib.a:OnlyA': torch.ones(1), 'lib.b:Outer.Nested': torch.ones(2)}",
    )
    result = discover(["lib.a::OnlyA"], samples_file="mine.py")
    assert not result.problems
    assert lengths(result) == {"lib.a:OnlyA": [1]}


@pytest.mark.parametrize(
    ("source", "said"), [(None, "is not a file"), ("x = (", "not valid Python"), ("1/0", "ZeroDivision")]
)
def test_a_file_of_samples_that_cannot_be_used(source, said):
    write("ops.py", function())
    if source is not None:
        write("mine.py", source)
    result = discover(["ops.py"], samples_file="mine.py")
    assert said in only_problem(result).message
    assert names(result) == ["Double"]


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nothere.py", "nothere.py: there is no such file or directory"),
        ("sub/nothere", "there is no such file or directory"),
        ("opps.py", "Did you mean 'ops.py'?"),
        ("no_such_module_at_all", "there is no module, file or directory of this name"),
        ("pkg.opps", "Did you mean 'pkg.ops'?"),
        ("pkg.ops.Low", "Did you mean 'pkg.ops::Low'?"),
        ("data.json", "not a Python file"),
        ("ops.py::", "not a target"),
        ("x" * 5000, "cannot be read"),
        ("::Double", "not a target"),
        ("ops.py::Duoble", "Did you mean 'Double'?"),
        ("pkg::Lwo", "Did you mean 'Low'?"),
        ("broken.py", "broken.py: is not valid Python: SyntaxError"),
        ("raises.py", "raises.py: raised ValueError: on purpose"),
        ("exits.py", "exits.py: called sys.exit"),
    ],
)
def test_one_clear_problem_and_the_other_targets_go_on(target, said):
    write("ops.py", function())
    write("pkg/__init__.py", "")
    write("pkg/ops.py", function("Low"))
    write("data.json", "{}")
    write("broken.py", "def f(:\n    pass\n")
    write("raises.py", "raise ValueError('on purpose')")
    write("exits.py", "import sys\nsys.exit(3)")
    result = discover([target, "ops.py"])
    assert said in only_problem(result).message
    assert names(result) == ["Double"]


def test_the_traceback_is_the_users_own():
    write("helper.py", "def fail():\n    raise ValueError('deep')\nfail()\n")
    write("ops.py", "import helper\n")
    shown = only_problem(discover(["ops.py"])).traceback
    lines = shown.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'ops.py", line 1, in <module>' in lines[1]
    assert "import helper" in lines[2]
    assert lines[-1] == "ValueError: deep"
    assert "gradwright" not in shown.replace(str(sys.path[0]), "")
    assert "importlib" not in shown


def test_the_cause_of_an_error_is_shown_too():
    write("ops.py", "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('later') from error\n")
    shown = only_problem(discover(["ops.py"])).traceback
    assert "KeyError: 'a'" in shown
    assert "direct cause" in shown
    assert "importlib" not in shown


def test_a_syntax_error_shows_the_line():
    write("ops.py", "x = 1\ny = = 2\n")
    shown = only_problem(discover(["ops.py"])).traceback
    assert 'ops.py", line 2' in shown
    assert "y = = 2" in shown
    assert not shown.startswith("Traceback")


def test_a_file_that_failed_can_be_mended_and_tried_again():
    write("ops.py", "raise ValueError")
    assert discover(["ops.py"]).problems
    write("ops.py", function() + "\n# mended, and longer than before\n")
    assert names(discover(["ops.py"])) == ["Double"]


def test_a_part_of_a_package_that_fails_does_not_hide_the_rest():
    write("pkg/__init__.py", "")
    write("pkg/a.py", "1/0")
    write("pkg/b.py", function())
    result = discover(["pkg"])
    assert "pkg/a.py: raised ZeroDivisionError" in only_problem(result).message
    assert names(result) == ["Double"]


def test_libraries_that_parts_of_a_package_need_are_told_once_each():
    write("pkg/__init__.py", "")
    for name in ("a", "b"):
        write(f"pkg/{name}.py", "import a_library_nobody_has")
    write("pkg/c.py", function())
    message = only_problem(discover(["pkg"])).message
    assert message.startswith("pkg: 2 modules (pkg.a, pkg.b) need 'a_library_nobody_has', which is not installed")


def test_the_name_of_a_missing_library_is_not_taken_for_the_target():
    write("pkg/__init__.py", "import a_library_nobody_has")
    problem = only_problem(discover(["pkg"]))
    assert "raised ModuleNotFoundError: No module named 'a_library_nobody_has'" in problem.message
    assert problem.traceback is not None


def test_a_directory_without_python_is_a_note_not_a_problem(folder):
    (folder / "empty").mkdir()
    result = discover(["empty"])
    assert not result.problems
    assert not result.found
    assert "contains no Python file" in result.notes[0]


def test_what_a_module_prints_while_it_is_imported_is_not_swallowed(capsys):
    write("ops.py", "print('hello from the module')", function())
    discover(["ops.py"])
    assert "hello from the module" in capsys.readouterr().out


def test_modules_are_passed_over_aloud():
    write("ops.py", function(), "from torch.nn import Linear, Module\nclass Layer(Module): pass\nlayer = Layer()\n")
    result = discover(["ops.py"])
    assert names(result) == ["Double"]
    how = "modules are checked in Python, by gradwright.check(module, *inputs)."
    assert result.notes == [f"ops.py: passed over a module (Layer); {how}"]
    assert only_problem(discover(["ops.py::Layer"])).message == f"ops.py::Layer: Layer is a class of modules; {how}"
    assert not discover(["ops.py::Double"]).notes
