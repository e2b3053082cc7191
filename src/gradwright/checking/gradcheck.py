"""Moving over from ``torch.autograd.gradcheck``: its flags and its call shape, in the terms of a check.

Whatever gradcheck's callers write either means here what it means there, or is refused with what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from gradwright.checking import trees
from gradwright.checking.case import Case
from gradwright.checking.samples import Sample
from gradwright.checking.subject import Subject
from gradwright.errors import ForwardError, OptionError, SampleError, did_you_mean

ALWAYS = "it is examined whenever that is possible, and the report says so"
UNPACKED = "the one tuple that was given was taken for the arguments, as gradcheck takes it"


@dataclass(frozen=True)
class Flag:
    """A flag of gradcheck's, and what it means here."""

    when_true: str
    """What a note says; empty for nothing."""
    when_false: str
    contract: str | None = None
    """Skipped when the flag is False."""
    require: bool = False
    """The contract is required when the flag is True."""
    refused: bool | None = None
    """The value that is refused; its text says what to write instead."""


FLAGS: dict[str, Flag] = {
    "check_undefined_grad": Flag("", "undefined-cotangents was left out", "undefined-cotangents"),
    "check_grad_dtypes": Flag("", "gradient-shape-and-dtype was left out", "gradient-shape-and-dtype"),
    "check_batched_grad": Flag(f"check_batched_grad belongs to the contract vmap: {ALWAYS}", ""),
    "check_batched_forward_grad": Flag(
        f"check_batched_forward_grad belongs to the contract func-transforms (jacfwd): {ALWAYS}", ""
    ),
    "check_forward_ad": Flag("modes-agree is required", "modes-agree was left out", "modes-agree", require=True),
    "check_backward_ad": Flag(
        "",
        "backward is always examined; for forward mode alone write only=('modes-agree', 'nested-forward')",
        refused=False,
    ),
    "raise_exception": Flag("a check returns its report; write `assert check(...)`, which shows it", "", refused=True),
    "fast_mode": Flag("fast_mode means nothing here: level='quick' does less work, not weaker work", ""),
    "masked": Flag(
        "gradients of masked sparse inputs are not examined; check a function of the values instead", "", refused=True
    ),
}
"""Flags of gradcheck's that are not allowances."""


@dataclass(frozen=True)
class Translated:
    """What flags of gradcheck's amount to."""

    skip: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def translate(flags: Mapping[str, object], options: Iterable[str] = ()) -> Translated:
    """Turn gradcheck's flags into options of a check.

    Arguments:
        flags: what was given, by name.
        options: names of the check's own options, to suggest one for a name that is misspelt.

    Raises:
        OptionError: a flag is unknown, is not a bool, or asks for what a check does not do.
    """
    skip: list[str] = []
    require: list[str] = []
    notes: list[str] = []
    for name, value in flags.items():
        if name == "inputs":
            raise OptionError(
                "inputs: pass them by position: check(function, x) or, as gradcheck, check(function, (x,))."
            )
        if name not in FLAGS:
            raise OptionError(
                f"{name}: unknown option; expected an option of check, or one of gradcheck's "
                f"({', '.join(FLAGS)}).{did_you_mean(name, [*options, *FLAGS])}"
            )
        if not isinstance(value, bool):
            raise OptionError(f"{name}: got {value!r}; expected True or False, as gradcheck takes it.")
        flag = FLAGS[name]
        text = flag.when_true if value else flag.when_false
        if value is flag.refused:
            raise OptionError(f"{name}: got {value}, which a check does not do; {text}.")
        if flag.contract is not None and not value:
            skip.append(flag.contract)
        if flag.contract is not None and flag.require and value:
            require.append(flag.contract)
        if text:
            notes.append(text)
    return Translated(tuple(skip), tuple(require), tuple(notes))


def as_arguments(subject: Subject, sample: Sample) -> Sample:
    """Return the sample as it was given, or as gradcheck takes it: with the one tuple that it consists of unpacked.

    For a Function a tuple of tensors cannot be an argument that is differentiated, as autograd does not look into it.
    Any other subject is called with what was given first; only when it refuses that, the tuple is unpacked.

    Raises:
        SampleError: the sample fits in neither way.
        ForwardError: forward raised either way.
    """
    unpacked = _unpacked(sample)
    if unpacked is None:
        return sample
    if subject.kind == "Function":
        return unpacked if _fits(subject, unpacked) else sample
    try:
        Case(subject, sample)
    except (SampleError, ForwardError) as refused:
        try:
            Case(subject, unpacked)
        except (SampleError, ForwardError) as error:
            text = f"{refused} Taken for the arguments, as gradcheck takes a tuple: {error}"
            raise type(refused)(text) from refused.__cause__
        return unpacked
    return sample


def _fits(subject: Subject, sample: Sample) -> bool:
    try:
        subject.bind(sample)
    except SampleError:
        return False
    return True


def _unpacked(sample: Sample) -> Sample | None:
    """Return the sample with the one tuple that it consists of unpacked; None when it is no such sample."""
    if len(sample.args) != 1 or sample.kwargs or not isinstance(sample.args[0], (tuple, list)):
        return None
    leaves, _ = trees.flatten(sample.args[0])
    if not any(isinstance(leaf, Tensor) for leaf in leaves):
        return None
    return replace(sample, args=tuple(sample.args[0]))
