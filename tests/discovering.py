"""Files of a user's for tests of discovery: written into an empty working directory, and forgotten afterwards."""

import sys
import textwrap
from pathlib import Path

import pytest

FUNCTION = """
import torch

class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory; whatever is imported from it is forgotten afterwards."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - set(before):
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(path, *sources):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(textwrap.dedent(source) for source in sources), encoding="utf-8")
    return str(path)


def function(name="Double", inside=""):
    """Return the source of a Function that is right, with more in its body."""
    return FUNCTION.format(name=name) + textwrap.indent(textwrap.dedent(inside), "    ")


def names(discovery):
    return [found.subject.name for found in discovery.found]


def only_problem(discovery):
    assert len(discovery.problems) == 1, discovery.problems
    return discovery.problems[0]
