"""``gradwright init`` writes a file that is read by ``gradwright check``, and harms nothing that is there."""

import json
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

from gradwright.checking.discovery import discover
from gradwright.checking.samples import Sample
from gradwright.cli import main
from gradwright.cli.drafts import drafted
from gradwright.watching.calls import Call, FunctionKey
from gradwright.watching.store import write_call
from tests.discovering import folder as folder
from tests.discovering import function, write

pytestmark = pytest.mark.usefixtures("folder")
FILE = "gradwright_examples.py"
SRC = Path(__file__).resolve().parents[1] / "src"

OPS = (
    function("Scale").replace("ctx, x)", "ctx, x, k)").replace("return g * 2", "return g * 2, None"),
    function("Double"),
    "class Outer:\n    class Inner(Double):\n        pass",
    function("Apply").replace("ctx, x)", "ctx, x, callback)"),
    function("Own", "examples = torch.ones(3)"),
)


@pytest.fixture
def run(capsys):
    """Run the command in this process; gives exit status, standard output and standard error."""

    def command(*arguments):
        status = main([*arguments, "--no-isolation"])
        return status, *capsys.readouterr()

    return command


def test_it_writes_a_file_that_check_uses(run):
    write("folder/ops.py", *OPS)
    status, out, err = run("init", "folder/ops.py")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"folder/{FILE}: written, with samples for 3 subjects (3 synthesised)",
        "left to you, as comments: Apply",
        "correct the samples there, then: gradwright check folder/ops.py",
    ]
    text = Path("folder", FILE).read_text()
    assert "\n\ndef samples_Outer_Inner():\n" in text
    assert "\n# def samples_Apply():\n#     x = ...\n#     callback = ...\n#     yield x, callback\n" in text
    assert "# Own declares its own samples." in text
    compile(text, FILE, "exec")
    status, out, err = run("check", "folder/ops.py", "--only", "gradient-count", "--verbose")
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    for name in ("Scale", "Double", "Outer.Inner", "Own"):
        assert "declared" in rows[name], name
    assert "note: samples from folder/gradwright_examples.py" in out
    assert "could not be run" in rows["Apply"]
    assert FILE not in err


def test_the_file_is_formatted_and_has_no_lint(run):
    write("ops.py", *OPS)
    write(
        "typed.py",
        "import enum\nclass Mode(enum.Enum):\n    SUM = 1\n",
        function("Typed").replace("ctx, x", "ctx, x, m: Mode"),
    )
    for name in ("ops.py", "typed.py"):
        assert run("init", name, "--force")[0] == 0
        for command in (["format", "--check"], ["check"]):
            ruff = subprocess.run(
                [sys.executable, "-m", "ruff", *command, "--isolated", FILE],
                capture_output=True,
                text=True,
                check=False,
            )
            if "No module named" in ruff.stderr:
                pytest.skip("ruff is not installed")
            assert ruff.returncode == 0, ruff.stdout + ruff.stderr
    assert "from typed import Mode\n" in Path(FILE).read_text()
    assert "    m = Mode.SUM\n" in Path(FILE).read_text()


def test_a_file_that_is_there_is_never_written_over_unasked(run):
    write("ops.py", "raise AssertionError('imported')")
    write(FILE, "mine = 1\n")
    status, out, err = run("init", "ops.py")
    assert (status, out) == (2, "")
    assert err.startswith(f"{FILE}: is there already, and may have been edited")
    assert Path(FILE).read_text() == "mine = 1\n"
    write("ops.py", function())
    assert run("init", "ops.py", "--force")[0] == 0
    assert "def samples_Double():" in Path(FILE).read_text()


def test_what_is_there_is_not_taken_for_declared_when_it_is_written_anew(run):
    write("ops.py", function())
    assert run("init", "ops.py")[0] == 0
    first = Path(FILE).read_text()
    assert run("init", "ops.py", "--force")[0] == 0
    assert Path(FILE).read_text() == first


def test_another_file_may_be_given(run):
    write("ops.py", function())
    status, out, _ = run("init", "ops.py", "--output", "mine.py", "--seed", "7")
    assert status == 0
    assert out.endswith("then: gradwright check ops.py --samples mine.py\n")
    assert "manual_seed(7)" in Path("mine.py").read_text()
    assert not Path(FILE).exists()
    status, out, _ = run("check", "ops.py", "--samples", "mine.py", "--only", "gradient-count")
    assert status == 0
    assert "declared" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], "missing.py: there is no such Python file"),
        (["."], ".: there is no such Python file"),
        (["ops.py", "--output", "ops.py", "--force"], "ops.py: is the file that the samples are for"),
        (["ops.py", "--output", "nowhere/mine.py"], "nowhere/mine.py: there is no directory nowhere"),
        (["ops.py", "--output", "."], ".: is a directory"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_run(run, arguments, said):
    write("ops.py", "raise AssertionError('imported')")
    status, out, err = run("init", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith(said)
    assert list(map(str, Path().iterdir())) == ["ops.py"]


@pytest.mark.parametrize("option", [["--seed", "-1"], ["--memory", "0"], ["--memory", "3"]])
def test_options_that_cannot_be_right(run, option):
    write("ops.py", function())
    assert run("init", "ops.py", *option)[0] == 2


def test_a_file_that_cannot_be_imported_is_a_problem_and_nothing_is_written(run):
    write("ops.py", "raise ValueError('not today')")
    status, out, err = run("init", "ops.py")
    assert (status, out) == (2, "")
    assert "ops.py: raised ValueError: not today" in err
    assert not Path(FILE).exists()


def test_nothing_to_write_samples_for(run):
    write("ops.py", "x = 1")
    status, out, err = run("init", "ops.py")
    assert (status, out) == (5, "")
    assert "there is nothing that needs samples; nothing was written" in err
    assert not Path(FILE).exists()


def test_the_users_code_runs_in_another_process():
    """What ends that process becomes a template."""
    write(
        "ops.py",
        function(),
        """
        import os
        class Ends(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                os._exit(3)
        """,
    )
    result = subprocess.run(
        [sys.executable, "-m", "gradwright", "init", "ops.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "samples for 1 subject (1 synthesised)\nleft to you, as comments: Ends\n" in result.stdout
    text = Path(FILE).read_text()
    assert "def samples_Double():" in text
    assert "\n# Ends: the process" in text
    assert "\n# def samples_Ends():" in text
    assert textwrap.dedent(text) == text


def test_the_help_needs_no_torch(capsys):
    assert main(["init", "--help"]) == 0
    out = capsys.readouterr().out
    assert "gradwright_examples.py beside FILE" in " ".join(out.split())


class Calls:
    """A store with one call of everything."""

    notes: tuple[str, ...] = ()

    def __init__(self, *samples):
        self.given = list(samples)

    def samples(self, subject, seed):
        return self.given, ["a note of the store"]


def test_recorded_samples_are_preferred_to_guesses():
    write("ops.py", function())
    (found,) = discover(["ops.py"]).found
    small = Sample((torch.tensor([0.5, 2.0]),), provenance="recorded")
    whole = Sample((torch.ones(9),), provenance="recorded", contracts=("released",))
    broken = Sample((None,), provenance="recorded", alternatives=(small,))
    for given in ((small,), (small, whole), (broken,)):
        draft = drafted(found, Calls(*given), 0)
        assert draft.provenance == "recorded"
        assert "    # recorded: what a program passed;" in draft.text
        assert "    # a note of the store\n" in draft.text
        assert draft.text.endswith("    x = torch.tensor([0.5, 2.0], dtype=torch.float32)\n    yield (x,)")
    unfit = Sample((torch.ones(2), torch.ones(2)), provenance="recorded")
    assert drafted(found, Calls(unfit), 0).provenance == "synthesised", "a call that does not run here is of no use"


@pytest.mark.parametrize("store", ["kept", ".gradwright"])
def test_what_is_recorded_in_a_store_is_written(run, store):
    write("ops.py", function())
    key = FunctionKey("ops", "Double", "Double", str(Path("ops.py").resolve()), 4)
    write_call(Path(store), key, Call((torch.tensor([1.5, 2.5]),), {}))
    status, out, err = run("init", "ops.py", *(["--store", store] if store == "kept" else []))
    assert (status, err) == (0, "")
    assert "(1 recorded)" in out
    text = Path(FILE).read_text()
    assert "torch.tensor([1.5, 2.5], dtype=torch.float32)" in text
    assert "gradwright_guessed" not in text
    assert "(1 synthesised)" in run("init", "ops.py", "--force", "--no-store")[1]
    assert run("init", "ops.py", "--force", "--store", "missing")[0] == 2
    assert run("init", "ops.py", "--force", "--store", store, "--no-store")[0] == 2


def test_the_intent_is_guessed_in_a_comment(run):
    write("ops.py", function("Round").replace("x * 2", "torch.round(x)").replace("g * 2", "g"), function())
    assert run("init", "ops.py")[0] == 0
    text = " ".join(line.strip("# ") for line in Path(FILE).read_text().splitlines())
    assert "intent: this looks like a straight-through or surrogate gradient (" in text
    assert "if it is, write `# gradwright: surrogate` above its definition." in text
    assert text.count("intent: ") == 1


WRONG = function("Wrong").replace("return g * 2", "return g * 3")


def test_guesses_that_nobody_has_confirmed_accuse_nobody(run):
    """As without the file; whoever takes the name out stands for the samples."""
    write("ops.py", WRONG)
    only = ("--only", "matches-differences", "--verbose")
    assert run("init", "ops.py")[0] == 0
    status, out, _ = run("check", "ops.py", *only)
    assert status == 0
    assert "1 suspect" in out
    said = " ".join(out.split())
    assert "The samples are guesses not yet confirmed: declare samples to get a verdict." in said
    assert "correct them, and take the name out of gradwright_guessed" in said
    text = Path(FILE).read_text()
    assert 'gradwright_guessed = ["Wrong"]\n' in text
    write(FILE, text.replace('"Wrong"', ""))
    forget(FILE)
    status, out, _ = run("check", "ops.py", *only)
    assert status == 1
    assert "Wrong failed: matches-differences" in out
    assert "gradwright_guessed" not in out


def forget(file):
    """Let a module that was imported from a file be imported anew."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")) == str(Path(file).resolve()):
            del sys.modules[name]


def test_many_guesses_are_listed_in_lines(run):
    write("ops.py", function("First"), *[function(f"Number{i}OfManyFunctions") for i in range(5)])
    assert run("init", "ops.py")[0] == 0
    text = Path(FILE).read_text()
    assert '\ngradwright_guessed = [\n    "First",\n    "Number0OfManyFunctions",\n' in text
    assert max(map(len, text.splitlines())) <= 88


HOSTILE = function("Hostile").replace("return x * 2", "raise RuntimeError('\\x00 \\x1b[31m \\udc80')")


@pytest.mark.parametrize("name", ["a\\N.py", "end\\.py", 'three""".py', "new\nline.py"])
def test_the_file_is_python_whatever_names_and_messages_hold(run, name):
    if os.name == "nt":
        pytest.skip("no such file names there")
    write(name, function(), HOSTILE)
    assert run("init", f"./{name}")[0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(Path(FILE).read_text(encoding="utf-8"), FILE, "exec")
    assert "declared x2" in " ".join(run("check", f"./{name}", "--level", "quick", "--only", "released")[1].split())


def test_every_subject_finds_its_samples_whatever_it_is_called(run):
    inner = textwrap.indent(textwrap.dedent(function("B")), "    ")
    odd = "def made(name):\n    kind = type(name, (Double,), {})\n    kind.__module__ = __name__\n    return kind\n"
    write(
        "ops.py",
        function(),
        function("A_B"),
        f"class A:\n{inner}",
        odd,
        "C = made('not a name')\nD = made('say \"\\\\')",
    )
    assert run("init", "ops.py")[0] == 0
    text = Path(FILE).read_text(encoding="utf-8")
    compile(text, FILE, "exec")
    assert "def samples_Double():" in text
    status, out, err = run("check", "ops.py", "--only", "released", "--json", "report.json")
    assert (status, err) == (0, ""), out
    subjects = json.loads(Path("report.json").read_text(encoding="utf-8"))["subjects"]
    assert len(subjects) == 5
    assert {sample["provenance"] for subject in subjects for sample in subject["samples"]} == {"declared"}
