"""A store keeps calls as they were, runs nothing that is in it, and says what it cannot use."""

from __future__ import annotations

import json
import math
import multiprocessing
import pickle
import sys
import warnings
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwright.checking.tensors import same_bits
from gradwright.errors import StoreError
from gradwright.watching.calls import Call, Elsewhere, FunctionKey
from gradwright.watching.capture import Budget, capture_call
from gradwright.watching.specs import TensorSpec, specify
from gradwright.watching.store import HEAD, Store, StoredFunction, read_store, write_call, write_usage

KEY = FunctionKey("ops", "Exp", "Exp", "/code/ops.py", 12)
Pair = namedtuple("Pair", ["first", "second"])


def kept(*args: Any, **kwargs: Any) -> Call:
    return capture_call(args, kwargs, Budget())


def only(store: Store) -> StoredFunction:
    assert not store.problems
    (function,) = store.functions
    return function


def through(root: Path, call: Call) -> Call:
    write_call(root, KEY, call)
    calls, reasons = only(read_store(root)).read()
    assert not reasons
    (read,) = calls
    return read


VALUES: list[Any] = [
    None, True, 2, 2.0, 10**30, math.inf, -math.inf, 1 + 2j, "é\n\udcff", [1, [2.5, (3,)]], (), {"a": (1,), 2: None},
    torch.float32, torch.device("cuda:1"), torch.Size([2, 3]), torch.channels_last, torch.sparse_coo, slice(None, 2),
]  # fmt: skip


def test_plain_values_come_back(tmp_path: Path) -> None:
    read = through(tmp_path / "s", kept(*VALUES, k=VALUES))
    assert list(read.args) == VALUES
    assert [type(value) for value in read.args] == [type(value) for value in VALUES]
    assert read.kwargs == {"k": VALUES}
    assert math.isnan(through(tmp_path / "n", kept(math.nan)).args[0])


def quantised() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.arange(4.0), 0.5, 3, torch.quint8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4),
        lambda: torch.randn(3, 4).t(),
        lambda: torch.ones(3, 1).expand(3, 4),
        lambda: torch.arange(8.0).unfold(0, 3, 1),
        lambda: torch.tensor(2.5),
        lambda: torch.empty(0, 3),
        lambda: torch.randn(3, dtype=torch.complex64).conj(),
        lambda: torch.complex(torch.ones(3), torch.ones(3)).conj().imag,
        lambda: torch.randn(3).bfloat16(),
        lambda: torch.randn(3).to(torch.float8_e4m3fn),
        lambda: torch.randn(3) > 0,
        lambda: torch.arange(3, dtype=torch.uint8),
        lambda: torch.eye(3).to_sparse(),
    ],
)
def test_tensors_come_back(tmp_path: Path, make: Callable[[], Tensor]) -> None:
    tensor = make()
    (read,) = through(tmp_path / "s", kept(tensor)).args
    assert same_bits(read, tensor)
    assert read.layout == tensor.layout
    if tensor.layout == torch.strided:
        assert read.stride() == tensor.stride()
    assert (read.is_conj(), read.is_neg()) == (tensor.is_conj(), tensor.is_neg())


def test_other_tensors_come_back(tmp_path: Path) -> None:
    call = kept(quantised(), torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = through(tmp_path / "s", call)
    assert torch.equal(read.args[0].dequantize(), quantised().dequantize())
    assert [t.requires_grad for t in read.args] == [False, True, True]
    shared = torch.ones(2)
    read = through(tmp_path / "t", kept(shared, [shared]))
    assert read.args[0] is read.args[1][0]


def test_all_of_a_call_comes_back(tmp_path: Path) -> None:
    spec = specify(torch.randn(5, 6).t().requires_grad_())
    state = torch.get_rng_state()
    x = torch.ones(3)
    read = through(tmp_path / "s", Call((spec, Elsewhere(x, "cuda:0")), {}, (None, x), state, "a note"))
    assert read.args[0] == spec
    assert isinstance(read.args[0], TensorSpec)
    assert isinstance(read.args[1], Elsewhere)
    assert (read.args[1].device, read.note) == ("cuda:0", "a note")
    assert read.cotangents is not None
    assert read.cotangents[0] is None
    assert torch.equal(read.cotangents[1], x)
    assert read.random_state is not None
    assert torch.equal(read.random_state, state)
    assert through(tmp_path / "t", Call((x,), {})).cotangents is None


@pytest.mark.parametrize("value", [object(), Pair(1, 2), len, torch.nn.Linear(2, 2), torch.Generator(), lambda: 0])
def test_what_is_an_object_is_not_usable_from_disk(tmp_path: Path, value: Any) -> None:
    write_call(tmp_path / "s", KEY, kept(torch.ones(2), [value]))
    calls, reasons = only(read_store(tmp_path / "s")).read()
    assert not calls
    assert "argument 2 could not be kept" in reasons[0]
    assert type(value).__qualname__ in reasons[0]
    assert "object of the program" in reasons[0]


def test_a_call_with_the_same_signature_takes_the_place_of_the_first(tmp_path: Path) -> None:
    root = tmp_path / "s"
    write_call(root, KEY, kept(torch.zeros(3), 2))
    write_call(root, KEY, kept(torch.ones(3), 2))
    write_call(root, KEY, kept(torch.ones(4), 2))
    calls, _ = only(read_store(root)).read()
    assert [call.args[0].tolist() for call in calls] == [[1.0] * 3, [1.0] * 4]
    assert len(list(root.glob("*.pt"))) == 2
    newest, _ = only(read_store(root)).read(most=1)
    assert newest[0].args[0].shape == (4,)


def test_functions_are_told_apart_by_their_place(tmp_path: Path) -> None:
    root = tmp_path / "ä ö" / "speicher"
    long = FunctionKey("módulo", "make.<locals>." * 50 + "Été", "Été" * 100, None, None)
    other = FunctionKey("__main__", "Exp", "Exp", "/code/train.py", 3)
    for key in (KEY, long, other):
        write_call(root, key, kept(torch.ones(2)))
        write_usage(root, key, 5, 3)
    read = read_store(root)
    assert {function.key for function in read.functions} == {KEY, long, other}
    assert all((f.calls, f.backwards, len(f.files)) == (5, 3, 1) for f in read.functions)
    assert (root / ".gitignore").read_text() == "*\n"


def refusal(path: Path) -> str:
    with pytest.raises(StoreError) as caught:
        read_store(path)
    return str(caught.value)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    assert "there is no such directory" in refusal(tmp_path / "nothing")
    assert "it has no store.json" in refusal(tmp_path)
    file = tmp_path / "file"
    file.write_text("x")
    assert "there is no such directory" in refusal(file)
    (tmp_path / HEAD).write_text("{")
    assert "damaged" in refusal(tmp_path)
    for text in ("[]", "3", '{"format": 1}', "null", "[" * 100_000):
        (tmp_path / HEAD).write_text(text)
        assert "damaged" in refusal(tmp_path)


def test_another_version_is_refused_also_for_writing(tmp_path: Path) -> None:
    (tmp_path / HEAD).write_text(json.dumps({"format": 2, "gradwright": "9.0"}))
    message = refusal(tmp_path)
    assert "written in format 2 by gradwright 9.0; expected format 1; record it again" in message
    with pytest.raises(StoreError, match="format 2"):
        write_call(tmp_path, KEY, kept(1))


def changed(text: str, **parts: Any) -> str:
    return json.dumps({**json.loads(text), **parts})


DAMAGE: dict[str, Callable[[str], str]] = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "no dictionary": lambda text: "[1]",
    "format": lambda text: changed(text, format=7),
    "nested": lambda text: '{"format": 1, "function":' + "[" * 100_000,
    "no function": lambda text: changed(text, function=None),
    "odd function": lambda text: changed(text, function={"module": 3, "qualname": [], "name": "x"}),
    "args": lambda text: changed(text, args=[1]),
    "unknown kind": lambda text: changed(text, args={"tuple": [{"code": "print()"}]}),
    "no such tensor": lambda text: changed(text, args={"tuple": [{"tensor": 99}]}),
    "negative sizes": lambda text: changed(text, args={"tuple": [{"size": ["a"]}]}),
    "no such dtype": lambda text: changed(text, args={"tuple": [{"dtype": "load"}]}),
    "odd specification": lambda text: changed(text, args={"tuple": [{"spec": {"shape": 3}}]}),
    "kwargs": lambda text: changed(text, kwargs={"tuple": []}),
    "cotangents": lambda text: changed(text, cotangents=3),
    "random state": lambda text: changed(text, random_state="x"),
    "no random state": lambda text: changed(text, random_state={"tensor": 0}),
    "missing tensors": lambda text: changed(text, tensors="gone.pt"),
    "tensors elsewhere": lambda text: changed(text, tensors="../other.pt"),
    "tensors of no name": lambda text: changed(text, tensors=None),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_calls_are_left_out_and_named(tmp_path: Path, damage: str) -> None:
    write_call(tmp_path, KEY, kept(torch.ones(2)))
    (file,) = (f for f in tmp_path.glob("*.json") if f.name != HEAD)
    write_call(tmp_path, KEY, kept(torch.ones(3)))
    file.write_text(DAMAGE[damage](file.read_text()))
    store = read_store(tmp_path)
    calls, reasons = [], list(store.problems)
    for function in store.functions:
        read, why = function.read()
        calls += read
        reasons += why
    assert [call.args[0].numel() for call in calls] == [3]
    assert len(reasons) == 1
    assert file.name in reasons[0]
    assert "left out: damaged" in reasons[0]


class Attack:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("content", ["cut", "code", "code in an archive", "number", "empty"])
def test_damaged_or_hostile_tensors_are_left_out_and_nothing_runs(tmp_path: Path, content: str) -> None:
    root, victim = tmp_path / "s", tmp_path / "victim"
    write_call(root, KEY, kept(torch.ones(2)))
    (file,) = root.glob("*.pt")
    if content == "cut":
        file.write_bytes(file.read_bytes()[:200])
    elif content == "code":
        file.write_bytes(pickle.dumps([Attack(victim)]))
    elif content == "code in an archive":
        torch.save([Attack(victim)], file)
    else:
        torch.save(3, file) if content == "number" else file.write_bytes(b"")
    calls, reasons = only(read_store(root)).read()
    assert not calls
    assert "left out" in reasons[0]
    assert not victim.exists()
    if content.startswith("code"):
        assert "hold code, which is never run" in reasons[0]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(StoreError, match="cannot be written"):
        write_call(file, KEY, kept(1))
    with pytest.raises(StoreError, match="cannot be written"):
        write_usage(file / "below", KEY, 1, 1)


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_call(tmp_path, KEY, kept(torch.zeros(2)))
    before = {file.name for file in tmp_path.iterdir()}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(StoreError, match="No space left"):
        write_call(tmp_path, KEY, kept(torch.ones(2)))
    assert {file.name for file in tmp_path.iterdir()} == before
    assert only(read_store(tmp_path)).read()[0][0].args[0].tolist() == [0, 0]


def write_many(root: Path, first: int) -> None:
    for n in range(20):
        write_call(root, KEY, kept(torch.full((n + 1,), float(first))))
        write_usage(root, KEY, n + 1, n)


@pytest.mark.skipif(sys.platform == "win32", reason="a process is forked")
def test_two_processes_write_at_the_same_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_many, args=(tmp_path / "s", first)) for first in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    function = only(read_store(tmp_path / "s"))
    calls, _ = function.read()
    assert sorted(call.args[0].numel() for call in calls) == list(range(1, 21))
    assert (function.calls, function.backwards) == (40, 38)
    assert not list((tmp_path / "s").glob("*.part"))
