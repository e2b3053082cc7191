"""A compiled function as a function of arrays: what is handed over is looked at, and passed without copies.

It is what a worker process gets of ``gw.native``; nothing here needs torch.
"""

from __future__ import annotations

import ctypes
import inspect
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradwright.errors import ArgumentError, DefinitionError, kind_of
from gradwright.wrapping.signature import Parameter, Signature, parse

C_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "i4": ctypes.c_int32,
    "i8": ctypes.c_int64,
    "f4": ctypes.c_float,
    "f8": ctypes.c_double,
}
DTYPES = {name: np.dtype(each) for name, each in C_TYPES.items()}
LIMITS: dict[str, tuple[Any, Any]] = {
    name: (np.iinfo(each).min, np.iinfo(each).max) if each.kind == "i" else (-np.inf, float(np.finfo(each).max))
    for name, each in DTYPES.items()
}
"""The least and the largest number that a type holds."""
_FUNCTION = ctypes.CFUNCTYPE(None).__bases__[0]
"""What functions of ctypes are."""


class Routine:
    """A function of a library, called on arrays and numbers.

    Arguments:
        library: the path or name of a shared library, a ``ctypes.CDLL``, or a function of one.
        symbol: the name of the function in it; None where the function itself is given.
        signature: what it takes and returns.
        codes: what the whole numbers that tell of errors mean.
        copies: False: an array that would have to be copied is an error.

    Raises:
        DefinitionError: there is no such library or no such function, or the signature cannot be understood.
    """

    def __init__(
        self, library: Any, symbol: str | None, signature: str, codes: Mapping[int, str] | None, copies: bool = True
    ) -> None:
        self.name = symbol or str(getattr(library, "__name__", "function"))
        if isinstance(library, os.PathLike) or (isinstance(library, str) and os.sep in library):
            library = str(Path(library).absolute())  # also for a process in another folder
        self.given = library, symbol, signature, codes, copies
        self.signature: Signature = parse(self.name, signature)
        self.codes, self.copies = dict(codes or {}), copies
        self.library, function = _found(self.name, library, symbol)
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        result = self.signature.result
        types = [C_TYPES[p.type] if p.passed == "value" else ctypes.c_void_p for p in self.signature.parameters]
        # An object of our own, since whoever handed over theirs may call it in another way. It releases the GIL.
        self.called = ctypes.CFUNCTYPE(None if result is None else C_TYPES[result.type], *types)(address)
        self.__name__ = self.__qualname__ = self.name
        self.__doc__ = f"Call ``{self.name}({signature})``."
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(p.name, kind) for p in self.signature.arguments])

    def __reduce__(self) -> Any:
        """Load the library again in another process."""
        if not isinstance(self.given[0], str):
            raise ArgumentError(
                f"{self.name}: it is to be sent to another process, but its library is {kind_of(self.given[0])}, which "
                "is of this one; expected the path of the library; give gw.native that, or use threads."
            )
        return Routine, self.given

    def __call__(self, *values: Any) -> Any:
        """Call it with its arguments in order; return its outputs, as a tuple where there are several."""
        found = self.run(dict(zip(self.__signature__.parameters, values)))
        return found.popitem()[1] if len(found) == 1 else tuple(found.values())

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Call it with its arguments by name; return its outputs by name.

        Raises:
            ArgumentError: an argument is not what the signature says.
            RuntimeError: the function tells of an error.
        """
        signature = self.signature
        arrays = {p.name: self._array(p, values[p.name]) for p in signature.arguments if p.passed == "array"}
        known = signature.sizes({**values, **arrays})
        passed, kept, written = [], [], {}
        for p in signature.parameters:
            if p.passed == "value":
                passed.append(self._number(p, known[p.name]))
                continue
            if p.passed == "array":
                array = self._memory(p, arrays.get(p.name), known)
            elif p.given:
                array = np.array(self._number(p, known[p.name]), DTYPES[p.type])
            else:
                array = np.zeros((), DTYPES[p.type])
            passed.append(array.ctypes.data)
            if p.returned or p.intent == "status":
                written[p.name] = array
            kept.append(array)  # its memory is used until the function returns
        returned = self.called(*passed)
        for p in signature.parameters:
            if p.intent == "status":
                self._refuse(p, int(written.pop(p.name)))
        result = signature.result
        if result is not None and result.intent == "status":
            self._refuse(result, returned)
        elif result is not None:
            return {result.name: np.asarray(returned, DTYPES[result.type]), **written}
        return written

    # ---------------------------------------------------------------- what is handed over

    def _array(self, p: Parameter, value: Any) -> Any:
        """Return an argument as an array of the type and order of the signature."""
        array = value if type(value) is np.ndarray else np.asarray(value)
        if array.ndim != len(p.sizes):
            raise ArgumentError(
                f"{self.name}: {p.name!r} has {array.ndim} dimensions, of sizes {array.shape}; expected "
                f"{len(p.sizes)}: {p.text}; pass it in that shape."
            )
        wanted = DTYPES[p.type]
        if array.dtype != wanted:
            array = self._cast(p, array, wanted)
        flags = array.flags
        if not flags.aligned or not (flags.f_contiguous if p.order == "F" else flags.c_contiguous):
            where = f"in the order {p.order}" if flags.aligned else "where its type may"
            self._copied(p, f"does not lie in memory {where}")
            array = np.array(array, order="F" if p.order == "F" else "C")
        return array

    def _cast(self, p: Parameter, array: Any, wanted: Any) -> Any:
        kinds = array.dtype.kind, wanted.kind
        if kinds == ("f", "f") and np.can_cast(array.dtype, wanted):
            self._copied(p, f"is {array.dtype}, and declared {p.type}")
            return array.astype(wanted)
        if kinds in (("i", "i"), ("u", "i")):
            limits = np.iinfo(wanted)
            outside = array[(array < limits.min) | (array > limits.max)]
            if outside.size:
                raise ArgumentError(
                    f"{self.name}: {p.name!r} has the value {outside.flat[0]}, which {p.type} does not hold; expected "
                    f"values from {limits.min} to {limits.max}; declare {p.name!r} as i8, if the function takes that."
                )
            self._copied(p, f"is {array.dtype}, and declared {p.type}")
            return array.astype(wanted)
        raise ArgumentError(
            f"{self.name}: {p.name!r} is {array.dtype}; expected {wanted} ({p.type}); write {p.name}.to(torch.{wanted})"
            f"{f', or declare dtype={wanted.name!r} to have it cast there and back' if kinds == ('f', 'f') else ''}."
        )

    def _copied(self, p: Parameter, why: str) -> None:
        """Refuse a copy where none may be made."""
        if not self.copies:
            raise ArgumentError(
                f"{self.name}: {p.name!r} {why}, with copy=False; expected one that can be handed over as it is; pass "
                "it so, or leave copy away."
            )

    def _memory(self, p: Parameter, array: Any, known: Mapping[str, Any]) -> Any:
        """Return what the function gets for an array: the argument itself, a copy of it, or new memory."""
        shape = tuple([size.value(known) for size in p.sizes])
        if p.given:
            if array.shape != shape:
                raise ArgumentError(
                    f"{self.name}: {p.name!r} has the shape {array.shape}; expected {shape}, since it is declared "
                    f"{p.text} and {_told(p, known)}; pass arrays whose sizes agree."
                )
            return array if p.intent == "in" else np.array(array, order=p.order)  # type: ignore[call-overload]
        if any(size < 0 for size in shape):
            raise ArgumentError(
                f"{self.name}: {p.name!r} would have the shape {shape}, since it is declared {p.text} and "
                f"{_told(p, known)}; expected no negative sizes."
            )
        # What a function leaves as it was must not be what happened to be in memory.
        return np.zeros(shape, DTYPES[p.type], order=p.order)  # type: ignore[call-overload]

    def _number(self, p: Parameter, value: Any) -> Any:
        """Return a number that the type of the signature holds."""
        if type(value) is not int and type(value) is not float:
            value = self._item(p, value)
        least, most = LIMITS[p.type]
        if p.floating:
            fits = abs(value) <= most or value != value or abs(value) == math.inf
        elif type(value) is not int:
            raise self._not_a_number(p, kind_of(value))
        else:
            fits = least <= value <= most
        if not fits:
            raise ArgumentError(
                f"{self.name}: {p.name!r} is {value}, which {p.type} does not hold; expected at most {most}; declare "
                f"it as {'f8' if p.floating else 'i8'}, if the function takes that, or pass less."
            )
        return value

    def _item(self, p: Parameter, value: Any) -> Any:
        """Return the number that an array without dimensions, or one of NumPy's numbers, is."""
        found = np.asarray(value)
        if found.shape != () or found.dtype.kind not in "iuf":
            raise self._not_a_number(p, f"an array of shape {found.shape}" if found.shape else kind_of(value))
        return found.item()

    def _not_a_number(self, p: Parameter, what: str) -> ArgumentError:
        wanted = "a number" if p.floating else "a whole number"
        return ArgumentError(f"{self.name}: {p.name!r} is {what}; expected {wanted} ({p.type}); pass one.")

    def _refuse(self, p: Parameter, code: int) -> None:
        """Refuse a code that tells of an error."""
        if code not in p.codes:
            meaning = f", {self.codes[code]}" if code in self.codes else ""
            raise RuntimeError(
                f"{self.name} returned the code {code}{meaning} (expected {' or '.join(map(str, p.codes))})"
            )


def _told(p: Parameter, known: Mapping[str, Any]) -> str:
    """Say what the names in the sizes of an array are."""
    names = dict.fromkeys(name for size in p.sizes for name in size.names)
    return ", ".join(f"{name} is {known[name]}" for name in names) or "these are its sizes"


def _found(name: str, library: Any, symbol: str | None) -> tuple[Any, Any]:
    """Return the library and the function in it; it stays loaded."""
    if isinstance(library, ctypes.PyDLL):
        raise DefinitionError(
            f"{name}: the library is a ctypes.PyDLL, whose functions hold the GIL; expected a ctypes.CDLL; load it so."
        )
    if isinstance(library, str):
        path = library
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            near = "./" if os.sep not in path and Path(path).exists() else ""
            raise DefinitionError(
                f"{name}: the library {path!r} cannot be loaded ({error}); expected a shared library for this machine, "
                f"compiled with -shared -fPIC; {f'write {near}{path}' if near else 'correct the path'}."
            ) from error
    if isinstance(library, ctypes.CDLL):
        if not isinstance(symbol, str):
            raise DefinitionError(f"{name}: symbol is {symbol!r}; expected the name of a function in the library.")
        try:
            function = getattr(library, symbol)
        except AttributeError:
            raise DefinitionError(
                f"{name}: the library has no function {symbol!r}; expected the name that the linker sees; in C++ "
                'declare it extern "C", and in Fortran bind(C), or write the name as it is listed by `nm -D`.'
            ) from None
    elif isinstance(library, _FUNCTION):
        if symbol is not None:
            raise DefinitionError(
                f"{name}: the symbol {symbol!r} was given with a function of ctypes; expected a library to look it up "
                "in; give the path of the library or a ctypes.CDLL."
            )
        function = library
    else:
        raise DefinitionError(
            f"{name}: the library is {kind_of(library)}; expected the path of a shared library, a ctypes.CDLL, or a "
            "function of one."
        )
    return library, function
