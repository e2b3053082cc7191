"""The plain-Python hook for samples: every form it takes, and a clear word for every form it does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwright.checking.samples import Sample, declared_samples, describe_value
from gradwright.errors import SampleError

X = torch.ones(2)


def identity(x: Any) -> Any:
    return x


def generator() -> Any:
    yield X
    yield X, 3


@pytest.mark.parametrize(
    ("declaration", "args"),
    [
        (X, [(X,)]),
        ((X, 2), [(X, 2)]),
        ([X, (X, 2)], [(X,), (X, 2)]),
        ({"args": (X, 2)}, [(X, 2)]),
        ({"args": X}, [(X,)]),
        ({"kwargs": {"x": X}}, [()]),
        (lambda: (X, 2), [(X, 2)]),
        (lambda: [X, X], [(X,), (X,)]),
        (generator, [(X,), (X, 3)]),
        (Sample((X,)), [(X,)]),
    ],
)
def test_forms(declaration: Any, args: list[tuple[Any, ...]]) -> None:
    assert [sample.args for sample in declared_samples(declaration, "samples_F")] == args


def test_dictionary_carries_keywords_surrogate_and_name() -> None:
    (sample,) = declared_samples({"args": (X,), "kwargs": {"k": 2}, "surrogate": identity, "name": "edge"}, "samples_F")
    assert (sample.kwargs, sample.surrogate, sample.name) == ({"k": 2}, identity, "edge")


def broken() -> Any:
    raise KeyError("missing")


def broken_generator() -> Any:
    yield X
    raise KeyError("missing")


def endless() -> Any:
    while True:
        yield X


def exiting() -> Any:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("declaration", "text"),
    [
        (exiting, "samples_F: raised SystemExit"),
        (3, "samples_F: sample 1 is of type int"),
        ({"arg": (X,)}, "unknown key 'arg'.*Did you mean 'args'"),
        ({"args": 3}, "`args` is of type int"),
        ({"args": (X,), "kwargs": [1]}, "`kwargs` must be a dictionary"),
        ({"args": (X,), "surrogate": 3}, "`surrogate` is of type int"),
        ([], "declares no sample"),
        (broken, "samples_F: raised KeyError"),
        (broken_generator, "samples_F: raised KeyError"),
        (endless, "more than 100 samples"),
    ],
)
def test_what_is_not_understood_is_said(declaration: Any, text: str) -> None:
    with pytest.raises(SampleError, match=text):
        declared_samples(declaration, "samples_F")


def test_values_are_described_in_a_few_words() -> None:
    assert describe_value(torch.zeros(2, 3, dtype=torch.float64)) == "float64 (2, 3)"
    assert "strides (1, 2)" in describe_value(torch.zeros(3, 2).t())
    assert describe_value(2) == "2"
    assert len(describe_value("a" * 100)) <= 40


def test_a_declaration_that_does_not_return_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradwright.checking import samples

    def forever() -> Any:
        while True:
            pass

    monkeypatch.setattr(samples, "MAX_SECONDS", 0.05)
    with pytest.raises(SampleError, match="did not return within"):
        declared_samples(forever, "samples_F")
