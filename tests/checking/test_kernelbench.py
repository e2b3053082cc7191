"""Files that follow KernelBench's convention bring their inputs with them."""

import pytest
import torch

from gradwright.checking.discovery import discover
from gradwright.checking.run import check_subject
from tests.discovering import folder as folder
from tests.discovering import function, names, only_problem, write

pytestmark = pytest.mark.usefixtures("folder")

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features, scale=1.0):
        super().__init__()
        self.linear = nn.Linear(features, 3)
        self.scale = scale

    def forward(self, x):
        return torch.relu(self.linear(x)) * self.scale

def get_inputs():
    return [torch.rand({rows}, {features})]

def get_init_inputs():
    return {init}
"""


def model(rows=4, features=5, init="[5]"):
    return MODEL.format(rows=rows, features=features, init=init)


def only(result):
    assert not result.problems
    (found,) = result.found
    return found


@pytest.mark.parametrize(("init", "scale"), [("[5]", 1.0), ("[5, 2.0]", 2.0), ("[[5], {'scale': 2.0}]", 2.0)])
def test_the_model_is_made_and_called_as_the_benchmark_does(init, scale):
    write("bench.py", model(init=init))
    result = discover(["bench.py"])
    found = only(result)
    assert (found.subject.name, found.subject.kind, found.subject.file) == ("Model", "module", "bench.py")
    assert found.subject.target.scale == scale
    assert not found.subject.target.training
    assert [tuple(s.args[0].shape) for s in found.samples] == [(4, 5)]
    assert found.samples[0].provenance == "declared"
    assert found.notes == ["samples from get_inputs(), of Model(*get_init_inputs()) in eval mode"]
    assert not result.notes, "the model is not passed over"
    assert only(discover(["bench.py::Model"])).named


def test_it_is_checked():
    write("bench.py", model())
    found = only(discover(["bench.py"]))
    report = check_subject(found.subject, found.samples, level="quick", notes=found.notes)
    assert report.ok
    assert [note.provenance for note in report.samples] == ["declared"]


def test_a_function_that_takes_as_many_inputs_gets_them():
    write(
        "bench.py",
        model(),
        function(),
        "class Two(Double):\n    @staticmethod\n    def forward(ctx, x, y): return x",
        "class Shape(Double):\n    @staticmethod\n    def forward(ctx, x): return x.view(1, 7)",
    )
    found = {f.subject.name: f for f in discover(["bench.py"]).found}
    assert [tuple(s.args[0].shape) for s in found["Double"].samples] == [(4, 5)]
    assert found["Double"].notes == ["samples from get_inputs()"]
    assert found["Two"].samples == found["Shape"].samples == []
    assert found["Two"].notes == ["not taken for samples: get_inputs: gives the inputs (...); Two takes (x, y)."]
    assert "forward raised RuntimeError" in found["Shape"].notes[0]


def test_what_is_declared_otherwise_is_used_instead():
    write(
        "bench.py",
        model(),
        function(inside="examples = torch.ones(2)"),
        "def samples_Model():\n    return torch.ones(7, 5)",
    )
    found = {f.subject.name: f for f in discover(["bench.py"]).found}
    assert [tuple(s.args[0].shape) for s in found["Double"].samples] == [(2,)]
    assert [tuple(s.args[0].shape) for s in found["Model"].samples] == [(7, 5)]


def test_large_inputs_are_cut_where_forward_allows_it():
    write("bench.py", model(rows=16384))
    found = only(discover(["bench.py"]))
    (sample,) = found.samples
    assert tuple(sample.args[0].shape) == (256, 5)
    assert "only the leading part of large inputs is taken: float32 (16384, 5) -> float32 (256, 5)" in found.notes[0]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert torch.equal(sample.args[0], torch.rand(16384, 5)[:256])


def test_matrices_are_cut_together():
    write(
        "bench.py",
        """
        import torch
        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b): return a @ b
            @staticmethod
            def backward(ctx, g): return g, g
        def get_inputs():
            return [torch.rand(2048, 1024), torch.rand(1024, 512)]
        """,
    )
    a, b = only(discover(["bench.py"])).samples[0].args
    assert (a.shape, b.shape) == ((64, 32), (32, 16))


def test_what_cannot_be_cut_is_said():
    write("bench.py", model(rows=1, features=30_000, init="[30_000]"))
    found = only(discover(["bench.py"]))
    assert tuple(found.samples[0].args[0].shape) == (1, 30_000)
    assert "the inputs are large, and forward runs on no part of them" in found.notes[0]


def test_a_model_that_cannot_be_made_is_a_note_unless_it_is_asked_for():
    write("bench.py", model(init="['five']"), function())
    result = discover(["bench.py"])
    assert names(result) == ["Double"]
    assert not result.problems
    assert "passed over Model: Model(*get_init_inputs()): raised TypeError" in result.notes[0]
    assert (
        "passed over Model: Model(*get_init_inputs()): raised TypeError"
        in only_problem(discover(["bench.py::Model"])).message
    )


def test_inputs_that_cannot_be_made_are_the_error_of_the_model():
    write("bench.py", model().replace("[torch.rand(4, 5)]", "[torch.rand(4, '5')]"), function())
    found = {f.subject.name: f for f in discover(["bench.py"]).found}
    assert "get_inputs: raised TypeError" in str(found["Model"].sample_error)
    assert found["Double"].sample_error is None


@pytest.mark.parametrize(
    "source", ["def get_inputs(n):\n    raise AssertionError", "from random import seed as get_inputs"]
)
def test_a_function_of_that_name_may_be_another(source):
    write("bench.py", function(), source)
    found = only(discover(["bench.py"]))
    assert found.samples == []
    assert found.notes == []


def test_a_class_called_model_alone_is_passed_over_as_before():
    write("bench.py", model().partition("def get_inputs")[0])
    result = discover(["bench.py"])
    assert not result.found
    assert "passed over a module (Model)" in result.notes[0]
    assert "Model is a class of modules" in only_problem(discover(["bench.py::Model"])).message
