"""Every error gradwright raises, and the functions that build each message.

One base class, :class:`GradwrightError`. Each kind also derives from the built-in exception that fits, so that code
which already catches ``TypeError`` or ``ValueError`` keeps working. Messages read ``name: what happened; what was
expected; what to do`` and speak of the user's function and argument names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class GradwrightError(Exception):
    """Base class of all errors raised by gradwright."""


class MissingDependencyError(GradwrightError, ImportError):
    """A library that is needed for what was asked is not installed."""


class NondeterministicWarning(UserWarning):
    """A foreign function returned different results for the same arguments."""


class RuleNotExportedWarning(UserWarning):
    """An exported program has the values of a function and not its gradient rule."""


class IllConditionedWarning(UserWarning):
    """A linear system is so ill-conditioned that few digits of its solution, or of a gradient, can be right."""


class SubjectTypeError(GradwrightError, TypeError):
    """The thing handed to ``check`` is not something that can be checked."""


class SampleError(GradwrightError, ValueError):
    """The inputs of a subject do not fit the subject."""


class StoreError(GradwrightError, ValueError):
    """A store of recorded samples cannot be read or written."""


class OptionError(GradwrightError, ValueError):
    """An option has a value that is not one of the known ones."""


class ExternalError(GradwrightError, RuntimeError):
    """Foreign code behind ``gw.external`` raised, or returned something that cannot be used.

    The original is the ``__cause__`` where it was raised in this process; ``traceback`` is its text everywhere.
    """

    def __init__(self, message: str, *, index: tuple[int, ...] | None = None, traceback: str = "") -> None:
        super().__init__(message)
        self.index = index
        """Which sample of a batch it was, None for a call without a batch."""
        self.traceback = traceback
        """Where it was raised, as text; empty where nothing was raised."""


class ForwardError(GradwrightError, RuntimeError):
    """The subject's own forward raised on the inputs it was given (the original is the ``__cause__``)."""


class TargetError(GradwrightError, LookupError):
    """A path, module or name on the command line could not be turned into subjects."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for a known name that contains it, else the closest one, or an empty string."""
    names = list(known)
    containing = sorted((each for each in names if len(name) > 3 and name in each), key=len)
    close = containing[:1] or difflib.get_close_matches(name, names, n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def unknown_choice(option: str, value: object, known: Sequence[str]) -> OptionError:
    """Build the error for an option value outside its list of choices."""
    return OptionError(f"{option}: got {value!r}; expected one of {', '.join(known)}.{did_you_mean(str(value), known)}")


def unknown_name(option: str, name: str, known: Iterable[str], command: str) -> OptionError:
    """Build the error for a name that is none of many; ``command`` lists them."""
    guess = did_you_mean(name, known)
    return OptionError(f"{option}: got {name!r}.{guess} Expected a name that `{command}` lists.")


def required_and_skipped(name: str, prefix: str = "") -> OptionError:
    """Build the error for a contract that is to be both required and left out; ``prefix`` is that of the options."""
    return OptionError(f"{prefix}require: {name} is left out by {prefix}skip; expected one of the two; drop one.")


def missing_torch() -> MissingDependencyError:
    """Build the error for a Python without PyTorch."""
    return MissingDependencyError(
        "gradwright: PyTorch is not installed; gradwright works with the torch you have and never installs one by "
        "itself; install it with `pip install torch` (or `pip install 'gradwright[torch]'`)."
    )


def missing_extra(what: str, library: str, extra: str | None = None) -> MissingDependencyError:
    """Build the error for an optional library that is not installed; ``extra`` is its name among gradwright's."""
    wanted = f"'gradwright[{extra or library}]'"
    return MissingDependencyError(
        f"{what}: it needs {library}, which is not installed; install it with `pip install {library}` (or "
        f"`pip install {wanted}`)."
    )


def kind_of(value: object) -> str:
    """Return what a value is, as messages say it.

    Example:
        >>> kind_of(2), kind_of([2]), kind_of(None)
        ('an int', 'a list', 'None')
    """
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def describe_exception(error: BaseException) -> str:
    """Return ``TypeName: first line`` of an exception, made one readable line; after a colon, with the next one."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else ""
    if text.endswith(":") and len(lines) > 1:
        text = f"{text} {lines[1].strip()}".rstrip()
    if len(text) > 300:
        text = text[:297] + "..."
    elif text.endswith(".") and not text.endswith(".."):
        text = text[:-1]  # it becomes a part of a sentence
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class DefinitionError(GradwrightError, TypeError):
    """A custom gradient is declared in a way that cannot work."""


class RuleError(GradwrightError, RuntimeError):
    """A rule cannot be used as asked, or returned something other than what it should."""


class ArgumentError(GradwrightError, TypeError):
    """A function with a custom gradient was called with a value of a kind that it was not declared for."""


class UndefinedGradientError(GradwrightError, ArithmeticError):
    """A derivative was asked for that does not exist, as that of one eigenvector of two with the same eigenvalue."""


class DomainError(GradwrightError, ValueError):
    """A function is not defined for the values that it was given."""


class SingularMatrixError(GradwrightError, ArithmeticError):
    """A linear system has no unique solution, so that there is nothing to return and no gradient."""


class ConvergenceError(GradwrightError, ArithmeticError):
    """A solver ended where its equation does not hold, so that the result and its gradient would be wrong."""
