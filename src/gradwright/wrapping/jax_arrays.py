"""Tensors as JAX arrays and back, sharing their memory where both libraries can read it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gradwright.errors import ArgumentError, ExternalError, GradwrightError, describe_exception, missing_extra

_NARROW = {torch.int64: torch.int32, torch.uint64: torch.uint32}
_WIDE = (torch.float64, torch.complex128)


@functools.cache
def library() -> Any:
    """Return the module ``jax``.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        return importlib.import_module("jax")
    except ModuleNotFoundError:
        raise missing_extra("gw.from_jax", "jax") from None


class Border:
    """What is between the tensors of one function and the arrays of JAX."""

    def __init__(self, name: str, x64: bool) -> None:
        self.name, self.x64 = name, x64
        self.jax = library()

    @contextlib.contextmanager
    def crossed(self, tensors: Sequence[Tensor], what: str) -> Iterator[None]:
        """Run JAX in the precision that the tensors need, and say in our words what it raises.

        JAX makes 32 bits of 64 unless it is told not to, and knows that for each thread apart: so it is told here, in
        whatever thread the engine runs a backward, and the setting of the user's own JAX code stays as it is.
        """
        try:
            with self._precision(any(t.dtype.itemsize > 4 and t.dtype is not torch.complex64 for t in tensors)):
                yield
        except GradwrightError:
            raise
        except Exception as error:
            raise self._failed(error, tensors, what) from error

    def _precision(self, wide: bool) -> Any:
        enable = getattr(self.jax, "enable_x64", None)
        if enable is None:  # before JAX 0.8
            enable = importlib.import_module("jax.experimental").enable_x64
        return enable(wide and self.x64)

    def _failed(self, error: Exception, tensors: Sequence[Tensor], what: str) -> ExternalError:
        errors = self.jax.errors
        given = ", ".join(f"{_name(t.dtype)} {tuple(t.shape)}" for t in tensors)
        remedy = "expected a result; the traceback is above and in the attribute `traceback` of this error"
        if isinstance(error, errors.UnexpectedTracerError):
            remedy = (
                "it keeps an array of one call, in a global or an attribute, and uses it in another; expected a pure "
                "function; return that array instead, or take it as an argument"
            )
        elif isinstance(error, errors.TracerArrayConversionError):
            remedy = (
                "it hands an array to NumPy or other code, which JAX cannot look into; expected functions of "
                "jax.numpy; wrap code of NumPy with gw.external instead"
            )
        elif isinstance(error, _known_too_late(errors)):
            remedy = (
                "its course depends on the values of arrays, which JAX does not know while it compiles; expected "
                "jnp.where or jax.lax.cond; write these, or declare jit=False"
            )
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return ExternalError(
            f"{self.name}: {what} raised {describe_exception(error)}; it was called with {given}; {remedy}.",
            traceback=text,
        )

    # ---------------------------------------------------------------- there

    def to_jax(self, tensor: Tensor) -> Any:
        """Return a tensor as an array, in its memory where JAX can read that.

        JAX reads memory without gaps, in any order of the dimensions, that begins where it likes (a copy is made by
        JAX itself where it does not).
        """
        found = tensor.detach()
        if found.layout is not torch.strided:
            raise ArgumentError(
                f"{self.name}: got a tensor of layout {found.layout}; expected a dense one; write x.to_dense()."
            )
        if not self.x64:
            found = self._narrow(found)
        if found.is_complex() or found.is_neg():
            found = found.resolve_conj().resolve_neg()
        if found.device.type != "cpu" and self.jax.default_backend() == "cpu":
            found = found.cpu()
        return self.jax.dlpack.from_dlpack(found if _without_gaps(found) else found.contiguous())

    def _narrow(self, tensor: Tensor) -> Tensor:
        if tensor.dtype in _WIDE:
            raise ArgumentError(
                f"{self.name}: got a tensor of {_name(tensor.dtype)}, and x64=False is declared, so that JAX would "
                "drop half of its digits; expected 32 bits; pass x.float(), or leave x64 away."
            )
        narrow = _NARROW.get(tensor.dtype)
        if narrow is None:
            return tensor
        found = tensor.to(narrow)
        if not torch.equal(found.to(tensor.dtype), tensor):
            raise ArgumentError(
                f"{self.name}: got {_name(tensor.dtype)} values that 32 bits do not hold, and x64=False is declared; "
                "expected smaller ones; leave x64 away."
            )
        return found

    def shaped(self, tensor: Tensor) -> Any:
        """Return what stands for the array of a tensor where only shape and dtype count."""
        dtype = tensor.dtype if self.x64 else _NARROW.get(tensor.dtype, tensor.dtype)
        return self.jax.ShapeDtypeStruct(tuple(map(int, tensor.shape)), self.jax.numpy.dtype(_name(dtype)))

    # ---------------------------------------------------------------- and back

    def to_torch(self, array: Any, inputs: Sequence[Tensor], device: torch.device, *, copy: bool) -> Tensor:
        """Return an array as a tensor that nobody else can write into.

        JAX computes while Python goes on. This waits for it, so that no argument is edited while it is read.

        Raises:
            ExternalError: torch has no such dtype.
        """
        try:
            found = from_dlpack(array)
        except Exception as error:
            raise ExternalError(
                f"{self.name}: it returned an array of dtype {array.dtype}, which torch does not have "
                f"({describe_exception(error)}); expected numbers; write result.astype(jnp.float32)."
            ) from error
        found = found if found.device == device else found.to(device)
        if copy or any(found.data_ptr() == other.data_ptr() for other in inputs):
            found = found.clone()
        return found.contiguous()

    def empty(self, spec: Any, device: torch.device) -> Tensor:
        """Return an empty tensor for the shape and dtype of an array."""
        return torch.empty(spec.shape, dtype=getattr(torch, str(spec.dtype)), device=device)


def _known_too_late(errors: Any) -> tuple[type[Exception], ...]:
    """Return what JAX raises where values are needed that it does not know yet."""
    return errors.ConcretizationTypeError, errors.TracerIntegerConversionError, errors.NonConcreteBooleanIndexError


def _without_gaps(tensor: Tensor) -> bool:
    """Tell whether the elements lie side by side in memory, whichever dimension runs fastest."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n != 1):
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
