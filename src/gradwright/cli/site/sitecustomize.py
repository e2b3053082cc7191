"""Python imports this at its start in the processes of a program that ``gradwright watch`` started.

It imports nothing but the standard library until torch is imported, and has the ``sitecustomize`` run that would have
run without it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs a start-up 10 ms


def _begin() -> None:
    folder = os.environ.get("GRADWRIGHT_WATCH")
    if not folder or not os.path.isdir(folder):  # noqa: PTH112
        return
    try:
        from gradwright.cli.watched import begin
    except BaseException as error:
        with open(os.path.join(folder, f"foreign-{os.getpid()}.txt"), "w") as file:  # noqa: PTH118, PTH123
            file.write(f"{sys.executable}: {type(error).__name__}: {error}")
    else:
        begin(folder)


def _run_the_other() -> None:
    """Run the ``sitecustomize`` that this one hides."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != FOLDER]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _wait_for_torch() -> None:
    """Begin once torch is imported. The file is loaded by its place, since importing gradwright would not be free."""
    place = os.path.join(os.path.dirname(FOLDER), "after_torch.py")  # noqa: PTH118, PTH120
    spec = importlib.util.spec_from_file_location("gradwright_after_torch", place)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.AfterTorch(_begin).wait()


if os.environ.get("GRADWRIGHT_WATCH"):
    _wait_for_torch()
_run_the_other()
