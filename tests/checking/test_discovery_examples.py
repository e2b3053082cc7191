"""Samples that are declared by a class itself, or in a file beside what is checked."""

import pytest
import torch

from gradwright.checking.discovery import discover
from tests.discovering import folder as folder
from tests.discovering import function, names, only_problem, write

pytestmark = pytest.mark.usefixtures("folder")


def shapes(result):
    return {f.subject.name: [tuple(s.args[0].shape) for s in f.samples] for f in result.found}


def only(result):
    assert not result.problems
    (found,) = result.found
    return found


# ---------------------------------------------------------------- the class itself


@pytest.mark.parametrize(
    "declared",
    [
        "@staticmethod\ndef {name}():\n    yield torch.ones(3)\n    yield {{'args': (torch.ones(2),)}}",
        "@classmethod\ndef {name}(cls):\n    return [torch.ones(3), (torch.ones(2),)]",
        "def {name}():\n    return [torch.ones(3), torch.ones(2)]",
        "{name} = [torch.ones(3), torch.ones(2)]",
    ],
)
@pytest.mark.parametrize("name", ["examples", "gradwright_examples"])
def test_a_class_may_give_its_samples(declared, name):
    write("ops.py", function(inside=declared.format(name=name)))
    found = only(discover(["ops.py"]))
    assert [len(s.args[0]) for s in found.samples] == [3, 2]
    assert {s.provenance for s in found.samples} == {"declared"}
    assert found.notes == [f"samples from Double.{name}"]


def test_the_name_of_ours_wins_over_examples():
    write("ops.py", function(inside="examples = 'in the documentation'\ngradwright_examples = torch.ones(3)"))
    assert shapes(discover(["ops.py"])) == {"Double": [(3,)]}
    write("both.py", function(inside="examples = torch.ones(2)\ngradwright_examples = torch.ones(3)"))
    assert shapes(discover(["both.py"])) == {"Double": [(3,)]}


@pytest.mark.parametrize(
    "declared",
    [
        "examples = 'in the documentation'",
        "examples = None",
        "@staticmethod\ndef examples(n):\n    raise AssertionError('called')",
        "@property\ndef examples(self):\n    raise AssertionError('called')",
        "class examples:\n    pass",
    ],
)
def test_examples_that_are_clearly_something_else_are_left_alone(declared):
    write("ops.py", function(inside=declared))
    found = only(discover(["ops.py"]))
    assert (found.samples, found.notes, found.sample_error) == ([], [], None)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("examples = ['one', 'two']", "is of type str"),
        ("examples = (1, 2)", "forward takes (x)"),
        ("examples = (1,)", "there is no tensor in what it gives"),
        ("@staticmethod\ndef examples():\n    raise KeyError('z')", "Double.examples: raised KeyError"),
    ],
)
def test_examples_that_turn_out_to_be_no_samples_are_a_note(declared, said):
    write("ops.py", function(inside=declared))
    found = only(discover(["ops.py"]))
    assert (found.samples, found.sample_error) == ([], None)
    assert len(found.notes) == 1
    assert found.notes[0].startswith("not taken for samples: ")
    assert said in found.notes[0]


def test_what_is_meant_for_gradwright_must_be_samples():
    write("ops.py", function(inside="gradwright_examples = ['one']"))
    assert "is of type str" in str(only(discover(["ops.py"])).sample_error)


def test_examples_of_a_base_that_do_not_fit_are_a_note():
    write(
        "ops.py",
        function("Base", "gradwright_examples = torch.ones(3)"),
        "class Same(Base):\n    pass\n\nclass Other(Base):\n    @staticmethod\n    def forward(ctx, x, y): return x",
    )
    result = discover(["ops.py"])
    assert shapes(result) == {"Base": [(3,)], "Same": [(3,)], "Other": []}
    assert "forward takes (x, y)" in result.found[2].notes[0]


def test_a_function_with_a_custom_gradient_has_them_as_an_attribute():
    write(
        "ops.py",
        """
        import torch, gradwright as gw
        exp = gw.elementwise(torch.exp, derivative=lambda x, out: out)
        exp.examples = lambda: iter([torch.ones(3)])
        sin = gw.elementwise(torch.sin, derivative=lambda x, out: torch.cos(x))
        sin.examples = lambda: [torch.ones(2)]
        """,
    )
    result = discover(["ops.py"])
    assert shapes(result)["sin"] == [(2,)]
    assert result.found[1].notes == ["samples from sin.examples"]


def test_hooks_of_the_module_are_used_beside_examples():
    write("ops.py", function(inside="examples = torch.ones(3)"), "gradwright_samples = {'Double': torch.ones(2)}")
    assert shapes(discover(["ops.py"])) == {"Double": [(3,), (2,)]}


def test_random_examples_are_the_same_in_every_run():
    write("ops.py", function(inside="@staticmethod\ndef examples():\n    return torch.randn(3)"))
    first, second = (discover(["ops.py"], seed=4).found[0].samples[0].args[0] for _ in range(2))
    assert torch.equal(first, second)


# ---------------------------------------------------------------- the file beside it

EXAMPLES = "import torch\ngradwright_samples = {'Double': torch.ones(5)}\ndef samples_Triple(): yield torch.ones(6)"


def test_a_file_of_examples_beside_the_checked_file_is_read():
    write("folder/ops.py", function())
    write("folder/gradwright_examples.py", EXAMPLES.partition("def")[0])
    found = only(discover(["folder/ops.py"]))
    assert [len(s.args[0]) for s in found.samples] == [5]
    assert found.notes == ["samples from folder/gradwright_examples.py"]


def test_it_may_be_for_more_than_was_asked():
    write("ops.py", function())
    write("more.py", function("Triple"))
    write("gradwright_examples.py", EXAMPLES)
    assert shapes(discover(["ops.py"])) == {"Double": [(5,)]}
    assert not discover(["ops.py"]).problems
    result = discover(["."])
    assert shapes(result) == {"Triple": [(6,)], "Double": [(5,)]}
    assert not result.problems
    assert not result.notes, "it is no target, and not even worth a word"


def test_a_name_that_nothing_beside_it_has_is_a_mistake():
    write("ops.py", function())
    write("gradwright_examples.py", "import torch\ngradwright_samples = {'Duoble': torch.ones(2)}")
    message = only_problem(discover(["ops.py"])).message
    assert message.startswith("gradwright_examples.py: gradwright_samples['Duoble'] declares samples for Duoble")
    assert "Did you mean 'Double'?" in message


def test_it_may_import_what_it_is_for_and_name_it_by_itself():
    write("a/ops.py", function())
    write("b/ops.py", function())
    for letter, size in (("a", 3), ("b", 4)):
        write(
            f"{letter}/gradwright_examples.py",
            f"import torch\nfrom ops import Double\ngradwright_samples = {{Double: torch.ones({size})}}",
        )
    result = discover(["a/ops.py", "b/ops.py"])
    assert not result.problems
    assert [len(found.samples[0].args[0]) for found in result.found] == [3, 4]


def test_functions_and_modules_become_subjects_by_it():
    write("ops.py", "def plain(x):\n    return x * 2")
    write("gradwright_examples.py", "import torch\ndef samples_plain():\n    return torch.ones(2)")
    assert names(discover(["ops.py"])) == ["plain"]
    assert names(discover(["ops.py::plain"])) == ["plain"]


def test_a_package_may_have_one_for_all_of_it_and_one_beside_a_module():
    write("pack/__init__.py", "")
    write("pack/sub/__init__.py", "")
    write("pack/sub/ops.py", function(), function("Triple"))
    write("pack/gradwright_examples.py", "import torch\ngradwright_samples = {'Double': torch.ones(2)}")
    write(
        "pack/sub/gradwright_examples.py",
        "import torch\nfrom .ops import Triple\ndef samples_Triple(): return torch.ones(3)",
    )
    for target in ("pack", "pack/sub/ops.py", "pack.sub.ops", "pack/sub"):
        result = discover([target])
        assert not result.problems, target
        assert shapes(result) == {"Double": [(2,)], "Triple": [(3,)]}, target
    assert result.found[0].notes == ["samples from pack/gradwright_examples.py"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ValueError('not today')", "gradwright_examples.py: raised ValueError: not today"),
        ("def (", "gradwright_examples.py: is not valid Python"),
        ("gradwright_samples = 3", "gradwright_examples.py: gradwright_samples: is of type int"),
    ],
)
def test_a_broken_one_is_a_problem_and_the_rest_goes_on(source, said):
    write("ops.py", function())
    write("gradwright_examples.py", source)
    result = discover(["ops.py"])
    assert only_problem(result).message.startswith(said)
    assert names(result) == ["Double"]


def test_what_is_given_on_the_command_line_wins():
    write("ops.py", function(inside="examples = torch.ones(1)"), function("Triple"))
    write("gradwright_examples.py", EXAMPLES)
    write(
        "mine.py",
        "import torch\ngradwright_samples = {'Double': torch.ones(2)}\ndef samples_Double(): return torch.ones(3)",
    )
    result = discover(["ops.py"], samples_file="mine.py")
    assert shapes(result) == {"Double": [(2,), (3,)], "Triple": [(6,)]}
    assert result.found[0].notes == []


def test_what_has_no_file_has_none_beside_it():
    write("space/ops.py", function())
    write("gradwright_examples.py", "raise AssertionError('read')")
    for target in ("space", "sys"):
        assert not discover([target]).problems


def test_it_may_be_named_and_is_then_a_file_like_others():
    write("ops.py", "x = 1")
    write("gradwright_examples.py", function(), "def samples_Double():\n    return torch.ones(4)")
    found = only(discover(["gradwright_examples.py"]))
    assert [len(s.args[0]) for s in found.samples] == [4]
    assert found.notes == []


# ---------------------------------------------------------------- guesses


@pytest.mark.parametrize("names", ["['Outer.Inner']", "('Outer_Inner', 'Gone')"])
def test_samples_that_are_guesses_are_marked_as_such(names):
    write(
        "ops.py",
        function(),
        "class Outer:\n    class Inner(Double):\n        pass",
        f"gradwright_guessed = {names}",
        "gradwright_samples = {'Outer.Inner': torch.ones(1), 'Double': torch.ones(2)}",
        "def samples_Outer_Inner():\n    return torch.ones(3)",
    )
    double, inner = discover(["ops.py"]).found
    assert all(sample.doubt for sample in inner.samples)
    assert len(inner.samples) == 2
    assert [sample.doubt for sample in double.samples] == [None]
    assert "guesses not yet confirmed" in inner.notes[0]
    assert double.notes == []


def test_a_list_of_guesses_that_is_none_is_a_problem():
    write("ops.py", function(), "gradwright_guessed = 'Double'")
    assert "gradwright_guessed: is of type str" in only_problem(discover(["ops.py"])).message
