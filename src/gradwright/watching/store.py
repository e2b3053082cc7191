"""A store: the calls of custom gradients in a program, on disk, for a later check.

It is a directory. Each call is one JSON file, with its tensors in a file beside it that is written by ``torch.save``
and read with ``weights_only=True``: reading a store executes nothing that is in it. Files have names of their own and
come into being at once, so that several processes can write to one store.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import gradwright
from gradwright.errors import StoreError, describe_exception
from gradwright.watching.calls import Call, FunctionKey
from gradwright.watching.encoding import Encoder, decode
from gradwright.watching.files import put, put_json
from gradwright.watching.samples import unkept

FORMAT = 1
HEAD = "store.json"
FOLDER = ".gradwright"
"""Where ``gradwright check`` looks for a store by itself."""
NOT_READ = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    RuntimeError,
    EOFError,
    RecursionError,
)
"""What reading a damaged file may raise, beside ``pickle.UnpicklingError``."""


@dataclass
class StoredFunction:
    """A function with calls in a store, or with the counts of its calls only."""

    key: FunctionKey
    calls: int = 0
    backwards: int = 0
    files: list[Path] = field(default_factory=list)
    """One for each call that is kept, the newest last."""

    def read(self, most: int | None = None) -> tuple[list[Call], list[str]]:
        """Return its calls (the newest, where there are more than ``most``), and why others cannot be used."""
        calls: list[Call] = []
        reasons: list[str] = []
        for file in self.files[::-1]:
            if len(calls) == most:
                break
            try:
                call = _call(_document(file), file)
            except (*NOT_READ, pickle.UnpicklingError) as error:
                reasons.append(_damaged(file, error))
                continue
            lost = unkept(call)
            if lost is None:
                calls.insert(0, call)
            else:
                reasons.append(f"{file.name}: {lost}")
        return calls, reasons


@dataclass
class Store:
    """What a store holds."""

    path: Path
    functions: list[StoredFunction]
    problems: list[str]
    """Files that could not be read."""


def write_call(root: Path, function: FunctionKey, call: Call) -> None:
    """Write one call into a store, which is made if there is none; it takes the place of one with the same signature.

    Raises:
        StoreError: it cannot be written.
    """
    encoder = Encoder()
    name, given = _named(function, call, encoder)
    rest = {"cotangents": encoder.encode(call.cotangents), "random_state": encoder.encode(call.random_state)}
    tensors = f"{name}-{uuid.uuid4().hex[:12]}.pt"
    document = {"format": FORMAT, "function": vars(function), **given, **rest, "note": call.note, "tensors": tensors}
    with _writing(root):
        _head(root)
        before = root / f"{name}.json"
        old = _tensors_of(before)
        put(root / tensors, lambda file: torch.save(encoder.tensors, file))
        put_json(before, document)
        if old is not None:
            old.unlink(missing_ok=True)


def drop_call(root: Path, function: FunctionKey, call: Call) -> None:
    """Take a call out of a store that it was written into."""
    name, _ = _named(function, call, Encoder())
    for file in root.glob(f"{name}*"):
        file.unlink(missing_ok=True)


def _named(function: FunctionKey, call: Call, encoder: Encoder) -> tuple[str, dict[str, Any]]:
    """Return the stem of a call's files, and what was given as it is written."""
    given = {"args": encoder.encode(call.args), "kwargs": encoder.encode(call.kwargs)}
    signature = json.dumps([*_identity(function), given], sort_keys=True)
    return f"{_stem(function)}-{_digest(signature)}", given


def write_usage(root: Path, function: FunctionKey, calls: int, backwards: int) -> None:
    """Write how often this process has called a function, and differentiated it.

    Raises:
        StoreError: it cannot be written.
    """
    document = {"format": FORMAT, "function": vars(function), "calls": calls, "backwards": backwards}
    with _writing(root):
        _head(root)
        put_json(root / f"{_stem(function)}-usage-{os.getpid()}.json", document)


def read_store(path: Path) -> Store:
    """Read a store; the tensors of a function are read when they are asked for.

    Raises:
        StoreError: it is no store, or one of another version, or damaged where it says so.
    """
    _refuse_other(path)
    functions: dict[tuple[str, str, str | None], StoredFunction] = {}
    problems: list[str] = []
    files = [file for file in path.glob("*.json") if file.name != HEAD]
    for file in sorted(files, key=lambda file: (_age(file), file.name)):
        try:
            document = _document(file)
            key = _key(document["function"])
            stored = functions.setdefault((key.module, key.qualname, key.file), StoredFunction(key))
            if "calls" in document:
                stored.calls += int(document["calls"])
                stored.backwards += int(document["backwards"])
            else:
                stored.files.append(file)
        except NOT_READ as error:
            problems.append(_damaged(file, error))
    return Store(path, list(functions.values()), problems)


def _refuse_other(path: Path) -> None:
    if not path.is_dir():
        raise StoreError(
            f"{path}: there is no such directory; expected a store; write one with "
            f"`gradwright watch --store {path} ...`."
        )
    head = path / HEAD
    if not head.is_file():
        raise StoreError(
            f"{path}: this is no store, for it has no {HEAD}; expected a directory that "
            "`gradwright watch --store` wrote."
        )
    try:
        told = json.loads(head.read_text(encoding="utf-8"))
        version, writer = told["format"], str(told["gradwright"])
    except NOT_READ as error:
        raise StoreError(f"{head}: damaged ({describe_exception(error)}); expected a store; record it again.") from None
    if version != FORMAT:
        raise StoreError(
            f"{path}: written in format {version} by gradwright {writer}; expected format {FORMAT}; record it "
            "again, or read it with that version."
        )


def _age(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.stat().st_mtime_ns
    return 0


def _document(file: Path) -> dict[str, Any]:
    document = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"it is not in format {FORMAT}")
    return document


def _key(told: dict[str, Any]) -> FunctionKey:
    key = FunctionKey(**told)
    if not all(isinstance(text, str) for text in (key.module, key.qualname, key.name, key.file or "")):
        raise ValueError("the names of the function are not text")
    return key


def _call(document: dict[str, Any], file: Path) -> Call:
    name = document["tensors"]
    if Path(name).name != name:
        raise ValueError(f"its tensors are said to be elsewhere: {name!r:.80}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantised tensors, and odd files, which are refused
        tensors = torch.load(file.parent / name, map_location="cpu", weights_only=True)
    if not isinstance(tensors, list) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise ValueError(f"{name} does not hold tensors")
    args, kwargs, cotangents, state = (
        decode(document[part], tensors) for part in ("args", "kwargs", "cotangents", "random_state")
    )
    right = isinstance(args, tuple) and isinstance(kwargs, dict) and isinstance(cotangents, (tuple, type(None)))
    if not right or not isinstance(state, (torch.Tensor, type(None))):
        raise ValueError("its parts are not those of a call")
    if state is not None:
        torch.Generator().set_state(state)  # refuses what is none
    return Call(args, kwargs, cotangents, state, str(document["note"]))


def _damaged(file: Path, error: BaseException) -> str:
    if isinstance(error, pickle.UnpicklingError):
        return f"{file.name}: left out: its tensors are damaged, or hold code, which is never run"
    return f"{file.name}: left out: damaged or incomplete ({describe_exception(error)})"


def _identity(function: FunctionKey) -> tuple[str, str, str | None]:
    return function.module, function.qualname, function.file


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _stem(function: FunctionKey) -> str:
    """Begin a file name: readable, of any qualified name, and different for different functions."""
    readable = re.sub(r"[^A-Za-z0-9_]+", "_", function.name)[:40]
    return f"{readable}-{_digest(json.dumps(_identity(function)))}"


def _tensors_of(file: Path) -> Path | None:
    with contextlib.suppress(*NOT_READ):
        name = str(_document(file)["tensors"])
        return file.parent / name if Path(name).name == name and name.endswith(".pt") else None
    return None


@contextlib.contextmanager
def _writing(root: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, pickle.PicklingError) as error:
        raise StoreError(
            f"{root}: cannot be written ({describe_exception(error)}); expected a directory open to you, on a disk "
            "with room; name another one."
        ) from error


def _head(root: Path) -> None:
    """Make the directory a store, if it is not one yet, and keep it out of version control: data may be private."""
    if (root / HEAD).is_file():
        _refuse_other(root)
        return
    root.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError), (root / ".gitignore").open("x", encoding="utf-8") as ignored:
        ignored.write("*\n")
    put_json(root / HEAD, {"format": FORMAT, "gradwright": gradwright.__version__, "torch": torch.__version__})
