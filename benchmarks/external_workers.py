"""What it costs to spread calls over two workers, beside the same by hand, in the same run.

64 calls that wait 10 ms take 320 ms on two workers at best. Threads, processes, an executor, joblib, a Dask client, Ray
tasks and Ray actors do them warm, through gradwright and by hand; the ways take turns, and the median of the rounds
counts, in wall time. So do very short calls, which are worth handing out only together, and calls with large arrays in
both directions, which processes get through a pipe or through shared memory. Dask, Ray and joblib are left out where
they are not installed.

    python benchmarks/external_workers.py                # everything
    python benchmarks/external_workers.py --quick        # that it runs: one round, threads and processes only
    python benchmarks/external_workers.py --write        # puts the table into docs/external.md
    python benchmarks/external_workers.py --json FILE    # writes rows of figures
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import logging
import multiprocessing
import operator
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

import numpy as np  # noqa: E402
from _pages import table_of, write_tables  # noqa: E402

from gradwright.wrapping.workers import pool_of  # noqa: E402

WORKERS = 2
Row = dict[str, Any]
Items = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Way:
    """One kind of workers."""

    name: str
    workers: Any
    by_hand: Callable[[Callable[..., Any], Items], list[Any]]
    goal: float
    """How many times the ideal 64 waiting calls may take."""
    releases_gil: bool = False


@dataclass(frozen=True)
class Load:
    """The calls of a batch."""

    name: str
    function: Callable[..., Any]
    items: Items
    ideal: float | None = None
    """Seconds."""
    clusters: bool = False
    """Whether Dask and Ray do it as well."""


def loads(quick: bool) -> list[Load]:
    waits = 8 if quick else 64
    small = [(np.ones(1 << 17) + i,) for i in range(waits)]
    large = [(np.ones(1 << 20) + i,) for i in range(8)]
    return [
        Load(f"{waits} calls of 10 ms", time.sleep, [(0.01,)] * waits, waits * 0.01 / WORKERS, clusters=True),
        Load("5,000 calls of 0.1 µs", operator.neg, [(i,) for i in range(100 if quick else 5000)]),
        Load(f"{waits} calls with 1 MiB each way", operator.neg, small),
        Load("8 calls with 8 MiB each way", operator.neg, large),
    ]


@contextlib.contextmanager
def ways(quick: bool) -> Iterator[list[Way]]:
    """Start every kind of workers, and end them afterwards."""
    with contextlib.ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(WORKERS))
        context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        processes = stack.enter_context(ProcessPoolExecutor(WORKERS, mp_context=context))
        found = [
            Way("threads", WORKERS, lambda f, items: list(threads.map(f, *zip(*items))), 1.1, releases_gil=True),
            Way("processes", WORKERS, lambda f, items: list(processes.map(f, *zip(*items))), 1.1),
            Way("an executor", processes, lambda f, items: list(processes.map(f, *zip(*items))), 1.1),
        ]
        if not quick:
            if importlib.util.find_spec("joblib"):
                found.append(joblib_way(stack))
            if importlib.util.find_spec("distributed"):
                found.append(dask_way(stack))
            if importlib.util.find_spec("ray"):
                found += ray_ways(stack)
        yield found


def joblib_way(stack: contextlib.ExitStack) -> Way:
    import joblib

    parallel = stack.enter_context(joblib.Parallel(n_jobs=WORKERS))
    return Way("joblib", parallel, lambda f, items: parallel(joblib.delayed(f)(*item) for item in items), 1.4)


def dask_way(stack: contextlib.ExitStack) -> Way:
    import distributed

    logging.getLogger("distributed").setLevel(logging.ERROR)
    cluster = stack.enter_context(distributed.LocalCluster(WORKERS, threads_per_worker=1, dashboard_address=None))
    client = stack.enter_context(distributed.Client(cluster))
    return Way("Dask", client, lambda f, items: client.gather(client.map(f, *zip(*items), pure=False)), 1.4)


def ray_ways(stack: contextlib.ExitStack) -> list[Way]:
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    stack.callback(ray.shutdown)

    @ray.remote
    def task(f: Callable[..., Any], *item: Any) -> Any:
        return f(*item)

    @ray.remote(num_cpus=0)
    class Actor:
        def run(self, f: Callable[..., Any], *item: Any) -> Any:
            return f(*item)

    actors = [Actor.remote() for _ in range(WORKERS)]

    def by_actors(f: Callable[..., Any], items: Items) -> list[Any]:
        return ray.get([actors[i % WORKERS].run.remote(f, *item) for i, item in enumerate(items)])  # type: ignore[no-any-return]

    def by_tasks(f: Callable[..., Any], items: Items) -> list[Any]:
        return ray.get([task.remote(f, *item) for item in items])  # type: ignore[no-any-return]

    return [Way("Ray tasks", "ray", by_tasks, 1.4), Way("Ray actors", actors, by_actors, 1.4)]


def measured(load: Load, used: Sequence[Way], rounds: int) -> dict[str, tuple[float, float]]:
    """Return the median seconds of each way, through gradwright and by hand; each runs untimed before."""
    runs: dict[tuple[str, int], Callable[[], object]] = {}
    for way in used:
        pool = pool_of(way.workers, name="benchmark", releases_gil=way.releases_gil)
        runs[way.name, 0] = lambda pool=pool: pool.map(load.function, load.items)  # type: ignore[misc]
        runs[way.name, 1] = lambda way=way: way.by_hand(load.function, load.items)  # type: ignore[misc]
    times: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    for turn in range(rounds + 1):
        for key, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:
                times[key].append(time.perf_counter() - start)
    return {way.name: (statistics.median(times[way.name, 0]), statistics.median(times[way.name, 1])) for way in used}


def rows_of(load: Load, used: Sequence[Way], found: dict[str, tuple[float, float]]) -> list[Row]:
    rows = []
    for way in used:
        ours, hand = (1e3 * each for each in found[way.name])
        name = f"{load.name}, {way.name}"
        row: Row = {"name": name, "value": ours, "unit": "ms", "against": f"by hand: {hand:.1f} ms"}
        rows.append({**row, "ratio": ours / hand, "goal": None, "met": None})
        if load.ideal is not None:
            ratio = ours / (1e3 * load.ideal)
            against, goal = f"ideal: {1e3 * load.ideal:.0f} ms", f"at most {way.goal:.2f} of it"
            rows.append({**row, "against": against, "ratio": ratio, "goal": goal, "met": ratio <= way.goal})
    return rows


def main() -> int:
    """Time everything and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one round, threads and processes only")
    parser.add_argument("--write", action="store_true", help="put the table into docs/external.md")
    parser.add_argument("--json", type=Path, help="write rows of figures to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    with ways(options.quick) as found:
        for load in loads(options.quick):
            used = found if load.clusters else found[:3]
            rows += rows_of(load, used, measured(load, used, 1 if options.quick else 9))
    for row in rows:
        goal = f"  goal {row['goal']}: {'met' if row['met'] else 'not met'}" if row["goal"] else ""
        print(f"{row['name']:<48} {row['value']:>8.1f} ms  {row['ratio']:.2f} of {row['against']}{goal}")
    if options.write:
        write_tables(ROOT / "docs" / "external.md", {"workers": table_of(rows)})
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
