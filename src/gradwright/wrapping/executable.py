"""``executable``: a program that reads and writes files as a differentiable function of tensors."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from gradwright.errors import DefinitionError, OptionError, did_you_mean, kind_of, unknown_choice
from gradwright.wrapping.external import external
from gradwright.wrapping.formats import FORMATS, Format
from gradwright.wrapping.program import FIXED, Program, Settings, places_in

Command: TypeAlias = str | Sequence[str]
CommandRule: TypeAlias = Callable[..., Any] | Command | None
"""A rule on arrays, or the command of another program."""

_BY_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD


def executable(
    command: Command,
    *,
    write: str | Callable[..., Any] = "npy",
    read: str | Callable[[Path], Any] = "npy",
    arguments: Sequence[str] | None = None,
    timeout: float | None = None,
    check: bool = True,
    allowed_return_codes: Sequence[int] = (0,),
    retries: int = 0,
    keep_failed: bool | str | os.PathLike[str] = False,
    env: Mapping[str, str | None] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    vjp: CommandRule = None,
    jvp: CommandRule = None,
    hvp: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """Make a program a differentiable function of tensors.

    Each call runs it in a directory of its own, which is removed afterwards: files in the command need absolute paths,
    or ``cwd``. Places in the command are filled in:

    ========== ======================================================================================================
    ``{x}``    the argument ``x``: the file that it was written to; the value itself where it is no tensor
    ``{in}``   a file with all arguments that have no place of their own; without it, they come on standard input
    ``{out}``  the file that the program is to write; without it, its standard output is read
    ``{dir}``  the directory
    ========== ======================================================================================================

    Formats: ``"npy"`` (one array after another in one file), ``"npz"``, ``"json"`` (a dict by name) and ``"txt"`` (one
    array of up to two dimensions; a text with one line is read as a vector, with one number as a number). For anything
    else, ``write(directory, x, ...)`` writes the arguments, and its signature names them; ``read(directory)`` returns
    an array or a tuple of arrays. What the program printed is in ``stdout.txt`` and ``stderr.txt`` in the directory.

    A program that runs too long is ended with everything that it started, and so is what it leaves running, also when
    the call is interrupted. Several of them run at once with ``workers=4``: threads, which only wait.

    Arguments:
        command: words, or a text that is split as a shell would, without being run by one.
        write: a format or a function.
        read: a format or a function.
        arguments: the names of the arguments, with a format; by default those with a place, or else ``x``.
        timeout: in seconds.
        check: False: any exit code will do.
        allowed_return_codes: exit codes that are no failure.
        retries: how often it is run again after it failed: exit code, timeout, output that cannot be read.
        keep_failed: True: the directory of a failed call stays, and the error names it; a path: and is made in there.
        env: variables of the environment that are added, or taken out where they are None.
        cwd: where it is run instead, for a program that needs what is there.
        vjp, jvp: rules on arrays, or the command of another program, with the same formats: it gets ``g`` (the
            cotangent) or ``t`` (the tangent; of several arguments ``t_x``, ``t_y``) before the arguments, and returns
            gradients in the order of these, or by their names (``"npz"``, ``"json"``).
        hvp: a rule on arrays.
        **options: those of ``gw.external``, such as ``out``, ``derivative=gw.fd()``, ``argnums``, ``workers``,
            ``on_error``, ``cache``. ``dtype`` is float64 by default: other dtypes are cast to it and back.

    Raises:
        DefinitionError: the command or a declaration cannot be used.
        OptionError: an option has a value that is not known.

    Example:
        >>> import sys, torch, gradwright as gw
        >>> code = "import sys, numpy as np; a, b = sys.argv[1:]; np.save(b, np.load(a) ** 3)"
        >>> cube = gw.executable([sys.executable, "-c", code, "{in}", "{out}"], out=gw.like("x"), derivative=gw.fd())
        >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
        >>> cube(x)
        tensor([1., 8.], dtype=torch.float64, grad_fn=<...Backward...>)
        >>> torch.autograd.grad(cube(x).sum(), x)[0].round(decimals=6)
        tensor([ 3., 12.], dtype=torch.float64)
    """
    words = _words(command, cwd)
    name = re.sub(r"\W", "_", Path(words[0]).stem)
    name = name if name.isidentifier() else "program"
    settings = Settings(
        _seconds(name, timeout),
        _codes(name, allowed_return_codes) if _flag(name, "check", check) else None,
        _count(name, retries),
        _kept(name, keep_failed),
        env,
        None if cwd is None else Path(cwd).absolute(),
    )
    written, taken = _format(name, "write", write), _format(name, "read", read)
    parameters = _parameters(name, words, written, arguments)
    program = Program(name, words, parameters, written, taken, settings)
    program.__module__ = _module(words, program.names)
    options.setdefault("releases_gil", True)
    options.setdefault("dtype", torch.float64)
    call = external(program, **options)
    for kind, word, rule in (("vjp", "g", vjp), ("jvp", "t", jvp), ("hvp", "", hvp)):
        if rule is not None:
            moving = [program.names[place] for place in call.external.places]
            found = rule if callable(rule) else _rule(program, kind, word, _words(rule, cwd), moving)
            getattr(call, f"register_{kind}")(found)
    return call


# -------------------------------------------------------------------- the command and its arguments


def _words(command: Any, cwd: Any) -> tuple[str, ...]:
    """Return the words of a command, with the path of the program."""
    try:
        words = shlex.split(command) if isinstance(command, str) else [os.fspath(word) for word in command]
    except (TypeError, ValueError) as error:
        raise DefinitionError(f"executable: command is {command!r} ({error}); expected a text or words.") from None
    if not words:
        raise DefinitionError("executable: command is empty; expected a program; write 'solver {in} {out}'.")
    first = words[0]
    path = Path(cwd or ".", first).absolute() if os.sep in first else None
    found = shutil.which(first if path is None else path)
    if found is None:
        raise DefinitionError(
            f"executable: there is no program {str(path or first)!r} that can be run; expected one in PATH, or its "
            "path; correct the command, or make the file executable."
        )
    return str(found), *words[1:]


def _parameters(
    name: str, words: Sequence[str], write: Format | Callable[..., Any], arguments: Any
) -> tuple[inspect.Parameter, ...]:
    """Return the arguments, and refuse places in the command for something else."""
    places = [place for place in places_in(words) if place not in FIXED]
    if not isinstance(write, Format):
        if arguments is not None:
            raise DefinitionError(f"{name}: write and arguments were given; expected one; the function names them.")
        found = list(inspect.signature(write).parameters.values())[1:]
    else:
        names = tuple(places) or ("x",) if arguments is None else arguments
        if isinstance(names, str) or not all(isinstance(n, str) and n.isidentifier() for n in names) or not names:
            raise DefinitionError(f"{name}: arguments is {arguments!r}; expected names; write arguments=('x', 'y').")
        found = [inspect.Parameter(each, _BY_KEYWORD) for each in names]
    known = [p.name for p in found]
    for each in known:
        if each in FIXED:
            raise DefinitionError(f"{name}: an argument is called {each!r}, which is a place of its own; rename it.")
    for place in places:
        if place not in known:
            raise DefinitionError(
                f"{name}: the command has a place {{{place}}}; expected {', '.join([*known, *FIXED])}; correct the "
                f"name, or double the braces: {{{{{place}}}}}.{did_you_mean(place, [*known, *FIXED])}"
            )
    return tuple(found)


def _rule(program: Program, kind: str, word: str, words: tuple[str, ...], moving: Sequence[str]) -> Callable[..., Any]:
    """Return the program that computes a derivative."""
    if not isinstance(program.write, Format):
        raise DefinitionError(
            f"{program.name}: {kind} is a command, and the arguments are written by a function, which does not know of "
            f"{word!r}; expected a rule on arrays, which may call adjoint.host({word}, x) of another gw.executable."
        )
    name = f"{program.name}_{kind}"
    places = [place for place in places_in(words) if place not in FIXED]
    several = kind == "jvp" and len(moving) > 1
    given = [f"{word}_{each}" for each in moving] if several else [word]
    extra = (*(inspect.Parameter(each, _BY_KEYWORD) for each in given), *program.arguments)
    asked = tuple(p for p in extra if p.name in places or p.name in given) if places else extra
    for place in places:
        if place not in (*given, *program.names):
            known = ", ".join([*given, *program.names, *FIXED])
            raise DefinitionError(f"{name}: the command has a place {{{place}}}; expected {known}.")
    gradients = program.names if kind == "vjp" else ()
    rule = Program(name, words, asked, program.write, program.read, program.settings, gradients)
    return _of_tangents(rule, program, moving) if several else rule


def _of_tangents(rule: Program, program: Program, moving: Sequence[str]) -> Callable[..., Any]:
    """Return a rule that hands over the tangent of each argument under a name of its own, zeros for None."""

    def of_tangents(t: Mapping[str, Any], *values: Any) -> Any:
        by_name = dict(zip(program.names, values))
        for each in moving:
            by_name[f"t_{each}"] = np.zeros_like(by_name[each]) if t[each] is None else t[each]
        return rule(*(by_name[each] for each in rule.names))

    of_tangents.__name__ = rule.name
    leading = inspect.Parameter("t", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    of_tangents.__signature__ = inspect.Signature([leading, *program.arguments])  # type: ignore[attr-defined]
    return of_tangents


def _module(words: Sequence[str], names: Sequence[str]) -> str:
    """Return what stands for the module of the function: the same in every process, another for another command."""
    digest = hashlib.blake2b(repr((words, names)).encode(), digest_size=4).hexdigest()
    return f"executable_{digest}"


# -------------------------------------------------------------------- options


def _format(name: str, option: str, value: Any) -> Any:
    if callable(value):
        return value
    if value not in FORMATS:
        raise unknown_choice(f"{name}: {option}", value, (*FORMATS, "a function"))
    return FORMATS[value]


def _seconds(name: str, timeout: Any) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise OptionError(f"{name}: timeout is {timeout!r}; expected seconds; write timeout=60.")
    return float(timeout)


def _codes(name: str, codes: Any) -> tuple[int, ...]:
    listed = codes if isinstance(codes, Sequence) and not isinstance(codes, str) else ()
    if not listed or not all(isinstance(code, int) for code in listed):
        raise OptionError(
            f"{name}: allowed_return_codes is {codes!r}; expected exit codes; write allowed_return_codes=(0, 2), or "
            "check=False for all."
        )
    return tuple(listed)


def _count(name: str, retries: Any) -> int:
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise OptionError(f"{name}: retries is {retries!r}; expected how often it is run again; write retries=1.")
    return retries


def _flag(name: str, option: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{name}: {option} is {kind_of(value)}; expected True or False.")
    return value


def _kept(name: str, keep_failed: Any) -> Path | bool:
    if isinstance(keep_failed, bool):
        return keep_failed
    if not isinstance(keep_failed, (str, os.PathLike)):
        raise OptionError(f"{name}: keep_failed is {keep_failed!r}; expected True, False or a directory.")
    return Path(keep_failed).absolute()
