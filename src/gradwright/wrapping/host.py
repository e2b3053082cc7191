"""One foreign function: calling it, reading what it returns, and saying what went wrong in it."""

from __future__ import annotations

import enum
import hashlib
import time
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from gradwright.errors import ArgumentError, ExternalError, NondeterministicWarning, describe_exception, kind_of
from gradwright.wrapping.arrays import arranged, described, locked, own, owned
from gradwright.wrapping.kept import Kept

OnError: TypeAlias = Literal["raise", "nan"] | Callable[[Exception, tuple[int, ...], tuple[Any, ...]], Any]
Index: TypeAlias = tuple[int, ...] | None

_AGAIN = 0.05
"""A first call that took less than this many seconds is made twice, to see whether both return the same."""
_ALIKE = 1e-6
"""Two results that differ by less, relative to the largest value, differ by the order of a parallel sum."""


@dataclass
class Host:
    """A foreign function with the names of its arguments and how it is called."""

    name: str
    function: Callable[..., Any]
    names: tuple[str, ...]
    by_keyword: tuple[str, ...] = ()
    moving: frozenset[str] = frozenset()
    """The arguments that have a derivative."""
    on_error: OnError = "raise"
    pure: bool = True
    writes: bool = False
    """Whether it gets arrays of its own, to write into."""
    calls: int = 0
    """How often it was called."""
    memory: Memory | None = None
    number: int | None = -1
    """The length of the tuple that it returned, None for one output, -1 before the first call."""
    declared: int | None = None
    """The same as it is declared."""
    order: str = "K"
    """Of the elements of what it and its rules are given, in memory."""

    @property
    def many(self) -> bool:
        """Whether it returns a tuple; before the first call, whether that is declared."""
        return (self.declared if self.number == -1 else self.number) is not None

    def packed(self, outs: Sequence[Any]) -> Any:
        """Return something for each output in the form in which it returns these: bare, or as a tuple."""
        return tuple(outs) if self.many else outs[0]

    def run(self, values: Sequence[Any], index: Index = None) -> tuple[tuple[Any, ...], Any]:
        """Call it on arrays and constants.

        Returns:
            its outputs, as a tuple of arrays of its own; and what it kept.

        Raises:
            ExternalError: it raised, or returned something that cannot be used.
        """
        if self.memory is not None:
            known = self.memory.find(values)
            if known is not None:
                return known
        first = self.calls == 0
        before = [np.array(value) if _ours(value) else None for value in values] if first else []
        start = time.perf_counter()
        outs, residuals = self.read([self.called(values, index)], values)
        if first and self.pure:
            self._look(values, before, outs, time.perf_counter() - start)
        if self.memory is not None:
            self.memory.keep(values, outs, residuals)
        return outs, residuals

    def called(self, values: Sequence[Any], index: Index = None) -> Any:
        """Call it and return what it returns.

        Raises:
            ExternalError: it raised; the original is the cause.
        """
        self.calls += 1
        try:
            return self._call(values)
        except Exception as error:
            return self.rescued(error, values, index)

    def rescued(self, error: Exception, values: Sequence[Any], index: Index = None) -> Any:
        """Call it once more where it raised since it may not write into its arguments.

        Some compiled code asks for memory that it may write into, whether it does or not. Of copies it may.

        Raises:
            ArgumentError: it says that by itself.
            ExternalError: it raised something else, or raises again.
        """
        if isinstance(error, ArgumentError) and str(error).startswith(f"{self.name}: "):
            raise error  # a function of gradwright's own has looked at its arguments, and says which is wrong
        if self.writes or not _wants_to_write(error):
            raise self.failed(error, values, index) from error
        self.writes = True
        try:
            return self._call(values)
        except Exception as again:
            raise self.failed(again, values, index) from again

    def trying(self, call: Callable[[], Any]) -> Any:
        """Call a rule, once more where it raised since it may not write into its arguments; then it gets copies."""
        try:
            return call()
        except Exception as error:
            if self.writes or not _wants_to_write(error):
                raise
            self.writes = True
            return call()

    def given(self, values: Sequence[Any]) -> list[Any]:
        """Return arguments as foreign code gets them: arrays that are not the user's are read-only, or its own."""
        return [self.handed(value, name in self.moving) for name, value in zip(self.names, values)]

    def given_by_name(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a rule may ask for as it gets it."""
        return {name: self.handed(value, name in self.moving or name == "out") for name, value in values.items()}

    def handed(self, value: Any, computed: bool = True) -> Any:
        """Return an array, or several in a tuple or dict, as foreign code gets it.

        What was computed here is locked. A constant is passed as the user gave it, and a tensor's array is locked.
        """
        if not computed and (not isinstance(value, np.ndarray) or value.flags.writeable):
            return value
        if self.order != "K":  # a sample of a batch, or a point of a difference, lies otherwise than the whole
            value = arranged(value, self.order)
        return own(value) if self.writes else locked(value)

    def _call(self, values: Sequence[Any]) -> Any:
        return self.apply(self.function, self.given(values))

    def apply(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Call a function of the same arguments, those that are known only by keyword by theirs."""
        if not self.by_keyword:
            return function(*values)
        by_name = dict(zip(self.names, values))
        keyword = {name: by_name.pop(name) for name in self.by_keyword}
        return function(*by_name.values(), **keyword)

    def read(self, box: list[Any], values: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """Take apart what it returned, which is in a box, so that nobody has a reference to it."""
        residuals = None
        if type(box[0]) is Kept:
            kept = box.pop()
            residuals = kept.residuals
            box.append(kept.result)
            del kept
        returned = owned(box, f"{self.name}: it returned")
        many = type(returned) is tuple
        if type(returned) is dict or (many and any(part is None for part in returned)):
            raise ExternalError(
                f"{self.name}: it returned {kind_of(returned)}{' with None in it' if many else ''}; expected an array "
                "or a number, or a tuple of them; return np.asarray(...)."
            )
        number = len(returned) if many else None
        if number != self.number:
            if self.number != -1:
                raise ExternalError(
                    f"{self.name}: it returned {counted(number)}, and {counted(self.number)} before; expected the same "
                    "number of outputs in every call; return the same tuple always."
                )
            self.number = number
        return (returned if many else (returned,)), residuals

    def failed(self, error: BaseException, values: Sequence[Any], index: Index = None) -> ExternalError:
        """Return the error that says what was raised, in which call."""
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return self.said(describe_exception(error), text, values, index, above=True)

    def said(
        self, what: str, text: str, values: Sequence[Any], index: Index = None, above: bool = False
    ) -> ExternalError:
        """Return the error for something that was raised: above in the traceback, or in another process."""
        given = ", ".join(f"{name}={described(value)}" for name, value in zip(self.names, values))
        sample = "" if index is None else f" at sample {index[0] if len(index) == 1 else index} of the batch"
        where = "above and in" if above else "in"
        # one call has no other samples, and whoever declared on_error knows it
        instead = index is not None and self.on_error == "raise"
        advice = "; on_error='nan' fills the results of failing samples with nan" if instead else ""
        error = ExternalError(
            f"{self.name}: it raised {what}{sample}; it was called with {given}; expected a result; the traceback is "
            f"{where} the attribute `traceback` of this error{advice}.",
            index=index,
            traceback=text,
        )
        if not above and text and hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"In the worker:\n{text}")
        return error

    def _look(self, values: Sequence[Any], before: Sequence[Any], outs: Sequence[Any], seconds: float) -> None:
        """Look at the first call: whether it left its arguments alone, and returns the same again."""
        for name, value, old in zip(self.names, values, before):
            if old is not None and not np.array_equal(value, old, equal_nan=_has_nan(value)):
                raise ExternalError(
                    f"{self.name}: it wrote into its argument {name!r}, whose memory is that of a tensor; expected it "
                    "to be left alone; declare copy=True, so that it gets arrays of its own."
                )
        if seconds > _AGAIN:
            return
        self.calls += 1
        again, _ = self.read([self._call(values)], values)
        for one, other in zip(outs, again):
            if one.shape != other.shape or not _alike(one, other):
                warnings.warn(
                    f"{self.name}: two calls with the same arguments returned different results, so that its "
                    "derivative is of neither; fix the seed inside of it, or declare pure=False if that is meant "
                    "(it is then never called more often than asked for).",
                    NondeterministicWarning,
                    stacklevel=2,
                )
                return


class Memory:
    """The last results, found by the arguments."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.found = 0
        self._kept: OrderedDict[Any, tuple[tuple[Any, ...], Any]] = OrderedDict()

    def find(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], Any] | None:
        """Return copies of the outputs and what was kept, or None."""
        key = _key(values)
        entry = None if key is None else self._kept.get(key)
        if entry is None:
            return None
        self.found += 1
        self._kept.move_to_end(key)
        return tuple([np.array(out) for out in entry[0]]), entry[1]

    def keep(self, values: Sequence[Any], outs: Sequence[Any], residuals: Any) -> None:
        """Keep copies of the outputs, and forget the oldest."""
        key = _key(values)
        if key is None:
            return
        self._kept[key] = tuple([np.array(out) for out in outs]), residuals
        if len(self._kept) > self.size:
            self._kept.popitem(last=False)


def _key(values: Sequence[Any]) -> Any:
    """Return what tells arguments apart, None where they cannot be told apart."""
    parts: list[Any] = []
    for value in values:
        if isinstance(value, np.ndarray):
            digest = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).digest()
            parts.append((value.dtype.str, value.shape, digest))
        elif (constant := _constant_key(value)) is not None:
            parts.append(constant)
        else:
            return None
    return tuple(parts)


def _constant_key(value: Any) -> Any:
    """Return what tells a constant apart from others, None where its value may change behind the same object."""
    if isinstance(value, tuple):
        parts = [_constant_key(part) for part in value]
        return None if None in parts else (type(value), *parts)
    if value is None or isinstance(value, (int, str, bytes, enum.Enum)):
        return type(value), value
    if isinstance(value, (float, complex, np.generic)):
        return type(value), repr(value)  # 0.0 and -0.0 are equal, and nan is not
    return None


def _ours(value: Any) -> bool:
    """Tell whether an argument is an array in the memory of a tensor; into one of the user's own may be written."""
    return isinstance(value, np.ndarray) and not value.flags.writeable


def _wants_to_write(error: Exception) -> bool:
    return isinstance(error, (ValueError, TypeError, BufferError)) and any(
        word in str(error).lower() for word in ("read-only", "readonly", "writeable", "writable")
    )


def _has_nan(array: Any) -> bool:
    return array.dtype.kind in "fc"


def _alike(one: Any, other: Any) -> bool:
    if not _has_nan(one):
        return bool(np.array_equal(one, other))
    finite = np.isfinite(one)
    scale = np.abs(one[finite]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        close = (one == other) | (np.isnan(one) & np.isnan(other)) | (np.abs(one - other) <= _ALIKE * scale)
    return bool(close.all())


def counted(number: int | None) -> str:
    """Say how many outputs there are."""
    return "one output" if number is None else f"a tuple of {number}"
