"""Samples: the inputs a subject is checked on, and the plain-Python hook by which a file declares them.

A file declares samples without importing gradwright, in either of two ways::

    gradwright_samples = {"Scale": (x, 2), "RoundSTE": {"args": (x,), "surrogate": lambda x: x}}

    def samples_Scale():
        yield x, 2
        yield {"args": (x,), "kwargs": {"k": 3}}

One sample is a tensor (the only argument), a tuple (the positional arguments), a dictionary with the keys of
:data:`KEYS`, or a :class:`Sample`. A list, a generator or a function of no arguments stands for several samples.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from gradwright.checking.domain import parse_domain
from gradwright.checking.intent import parse_intent
from gradwright.checking.limits import STOPS, TimeLimitError, time_limit
from gradwright.checking.tensors import tensors_in
from gradwright.errors import SampleError, describe_exception, did_you_mean
from gradwright.typing import Intent, Provenance, TensorFunction

KEYS = ("args", "kwargs", "surrogate", "reference", "domain", "name", "intent")
"""The keys of a sample that is written as a dictionary."""

MAPPING_NAME = "gradwright_samples"
GUESSED_NAME = "gradwright_guessed"
"""A list of the names whose declared samples are guesses that nobody has confirmed."""
FUNCTION_PREFIX = "samples_"
MAX_SECONDS = 60.0
"""A declaration that takes longer is stopped."""
MAX_SAMPLES = 100
"""More samples than this from one declaration is taken for an endless generator."""


@dataclass(frozen=True)
class Sample:
    """One set of inputs of a subject.

    Arguments:
        args: positional arguments, as they would be passed to ``apply``.
        kwargs: keyword arguments, by the parameter names of ``forward``.
        surrogate: the function whose derivative the rule declares to be using instead of the true one; it is called
            with the same arguments and returns outputs of the same shapes.
        reference: a plain-PyTorch version of the subject, called in the same way; value and gradient must agree.
        domain: bounds ``(low, high)`` of all real inputs, or a dictionary from input names to such pairs, None for no
            bound. The check varies inputs to find weak places; it never leaves the domain.
        name: a label for reports.
        provenance: where the sample came from.
        intent: what the rule means to be, one of :data:`~gradwright.typing.INTENTS` or a tuple of them; None when the
            marker in the source decides, or else a guess.
        cotangents: what a running program handed to backward for this call, one for each output, None where it handed
            none; None when that is not known.
        random_state: the state of torch's CPU generator at this call; None when that is not known.
        doubt: why a failure on it that depends on what the inputs mean is no more than a suspicion, although they were
            not guessed; half a sentence, None where it is more.
        alternatives: other samples in the place of this one, to be tried in turn when forward raises on it.
        contracts: ids of the contracts that are examined on it; None for all.

    Tensors are differentiated if they are floating-point or complex. When some tensors of a sample have
    ``requires_grad=True``, exactly those are differentiated and the others are constants.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    surrogate: TensorFunction | None = None
    reference: TensorFunction | None = None
    domain: Any = None
    name: str | None = None
    provenance: Provenance = "declared"
    intent: Intent | tuple[Intent, ...] | None = None
    cotangents: tuple[torch.Tensor | None, ...] | None = None
    random_state: torch.Tensor | None = None
    doubt: str | None = None
    alternatives: tuple[Sample, ...] = ()
    contracts: tuple[str, ...] | None = None

    @property
    def elements(self) -> int:
        """The number of elements of all tensors in it."""
        return sum(t.numel() for t in tensors_in([self.args, dict(self.kwargs)]))


def declared_samples(declaration: Any, owner: str) -> list[Sample]:
    """Turn what a file declares for one subject into samples.

    Arguments:
        declaration: the value in ``gradwright_samples`` or the ``samples_<Name>`` function.
        owner: how to call the declaration in messages, for example ``samples_MyExp``.

    Raises:
        SampleError: the declaration is not understood, raises, is empty, or does not end.
    """
    samples: list[Sample] = []
    for item in _items(declaration, owner):
        samples.append(_one(item, f"{owner}: sample {len(samples) + 1}"))
        if len(samples) > MAX_SAMPLES:
            raise SampleError(f"{owner}: gave more than {MAX_SAMPLES} samples; expected a finite number; stop earlier.")
    if not samples:
        raise SampleError(f"{owner}: declares no sample; expected at least one; yield or return a tuple of arguments.")
    return samples


def _items(declaration: Any, owner: str) -> Iterator[Any]:
    if isinstance(declaration, Callable) and not isinstance(declaration, torch.Tensor):  # type: ignore[arg-type]
        declaration = call_hook(declaration, owner)
    if isinstance(declaration, list) or inspect.isgenerator(declaration):
        iterator = iter(declaration)
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                return
            except STOPS:
                raise
            except BaseException as error:
                raise SampleError(
                    f"{owner}: raised {describe_exception(error)}; expected samples; mend the declaration."
                ) from error
            yield item
    else:
        yield declaration


def call_hook(function: Callable[[], Any], owner: str, expected: str = "samples") -> Any:
    """Call a function of the user's that takes no arguments, in limited time.

    Raises:
        SampleError: it raised, or did not return; the message says what was expected of it.
    """
    try:
        with time_limit(MAX_SECONDS):
            return function()
    except TimeLimitError:
        raise SampleError(
            f"{owner}: did not return within {MAX_SECONDS:g} s; expected {expected}; build smaller ones."
        ) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SampleError(
            f"{owner}: raised {describe_exception(error)}; expected {expected}; mend the declaration."
        ) from error


def _one(item: Any, owner: str) -> Sample:
    if isinstance(item, Sample):
        return item
    if isinstance(item, torch.Tensor):
        return Sample(args=(item,))
    if isinstance(item, tuple):
        return Sample(args=item)
    if isinstance(item, Mapping):
        return _from_mapping(item, owner)
    raise SampleError(
        f"{owner} is of type {type(item).__name__}; expected a tensor, a tuple of arguments, or a dictionary with the "
        f"keys {', '.join(KEYS)}; for a single argument that is not a tensor write a tuple: (value,)."
    )


def _from_mapping(item: Mapping[str, Any], owner: str) -> Sample:
    for key in item:
        if key not in KEYS:
            raise SampleError(
                f"{owner} has the unknown key {key!r}; expected {', '.join(KEYS)}.{did_you_mean(str(key), KEYS)}"
            )
    args = item.get("args", ())
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, (tuple, list)):
        raise SampleError(
            f"{owner}: `args` is of type {type(args).__name__}; expected a tuple; write {{'args': (value,)}}."
        )
    kwargs = item.get("kwargs", {})
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise SampleError(f"{owner}: `kwargs` must be a dictionary with parameter names as keys.")
    for word, example in (
        ("surrogate", "for a straight-through rule write lambda x: x"),
        ("reference", "for example torch.exp"),
    ):
        function = item.get(word)
        if function is not None and not callable(function):
            raise SampleError(
                f"{owner}: `{word}` is of type {type(function).__name__}; expected a function that is called with the "
                f"same arguments as forward; {example}."
            )
    parse_domain(item.get("domain"), f"{owner}: `domain`")
    intent = item.get("intent")
    name = item.get("name")
    return Sample(
        args=tuple(args),
        kwargs=dict(kwargs),
        surrogate=item.get("surrogate"),
        reference=item.get("reference"),
        domain=item.get("domain"),
        name=None if name is None else str(name),
        intent=None if intent is None else parse_intent(intent, f"{owner}: `intent`", SampleError),
    )


def describe_value(value: Any) -> str:
    """Describe one argument in a few words: ``float64 (3, 4)`` for a tensor, else a short ``repr``."""
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
        if value.layout != torch.strided:
            text += f" {str(value.layout).removeprefix('torch.')}"
        elif not value.is_contiguous():
            text += f" strides {value.stride()}"
        return text
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return f"[{', '.join(describe_value(item) for item in value)}]"
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else text[:37] + "..."


__all__ = ["FUNCTION_PREFIX", "KEYS", "MAPPING_NAME", "Sample", "call_hook", "declared_samples", "describe_value"]
