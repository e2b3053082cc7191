"""What the benchmarks of ``gw.stable`` have in common: which entries are measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import gradwright.stable
from gradwright.authoring.catalogue import entries
from gradwright.authoring.exact import ExactEntry


def chosen(
    parser: argparse.ArgumentParser, names: list[str], fits: Callable[[ExactEntry], bool] = lambda entry: True
) -> list[ExactEntry]:
    """Return the entries of these names, with or without the package before them; all that fit where there is none."""
    known = [entry for entry in entries(gradwright.stable) if isinstance(entry, ExactEntry) and fits(entry)]
    wanted = {name.rpartition(".")[2] for name in names}
    unknown = wanted - {entry.name.rpartition(".")[2] for entry in known}
    if unknown:
        parser.error(f"there is nothing to measure in gw.stable that is called {', '.join(sorted(unknown))}")
    return [entry for entry in known if not wanted or entry.name.rpartition(".")[2] in wanted]
