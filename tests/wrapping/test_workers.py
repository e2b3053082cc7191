"""Workers of this machine: order, errors, crashes, and nothing that is left behind."""

from __future__ import annotations

import concurrent.futures
import importlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradwright.errors import MissingDependencyError, OptionError
from gradwright.wrapping import bar, lanes, parcels, processes, shipping
from gradwright.wrapping.remote import Done, Failed
from gradwright.wrapping.workers import Pool, own_lanes, pool_of
from tests.wrapping import hosts

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path("/dev/shm")
SQUARES = [Done(x * x) for x in range(10)]
NUMBERS = [(x,) for x in range(10)]


@pytest.fixture(scope="module")
def processes_pool() -> Iterator[Pool]:
    with pool_of(2, name="f", releases_gil=False) as pool:
        yield pool


@pytest.fixture(scope="module")
def threads_pool() -> Iterator[Pool]:
    with pool_of(2, name="f", releases_gil=True) as pool:
        yield pool


@pytest.fixture(params=["threads", "processes"])
def pool(request: pytest.FixtureRequest, processes_pool: Pool, threads_pool: Pool) -> Pool:
    return threads_pool if request.param == "threads" else processes_pool


@pytest.fixture
def nothing_shared() -> Iterator[None]:
    """The test leaves no shared memory behind."""
    yield
    assert not left_behind()


def left_behind() -> list[Path]:
    """Return the shared memory that stays; what other tests use at this moment goes."""
    stays, until = segments(), time.monotonic() + 20
    while stays and time.monotonic() < until:
        time.sleep(0.02)
        stays = [each for each in stays if each.exists()]
    return stays


def segments() -> list[Path]:
    return list(SHARED.glob("gw_*")) if SHARED.is_dir() else []


def values(outcomes: list[Any]) -> list[Any]:
    assert all(isinstance(outcome, Done) for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes]


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and was not asked for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def script(text: str, **options: Any) -> subprocess.Popen[str]:
    """Start a script with the package of this checkout."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        **options,
    )


# --- results --------------------------------------------------------------------------------------


def test_results_are_in_the_order_of_the_items(pool: Pool) -> None:
    seconds = [0.05, 0.0, 0.02, 0.0, 0.01, 0.0]
    assert values(pool.map(hosts.nap, [(each,) for each in seconds])) == seconds


def meeting(pool: Pool, folder: Path) -> set[tuple[int, int]]:
    """Return both workers."""
    folder.mkdir()
    return set(values(pool.map(hosts.meet, [(str(folder), number, 2) for number in range(2)])))


def test_two_work_at_the_same_time(pool: Pool, tmp_path: Path) -> None:
    assert len(meeting(pool, tmp_path / "one")) == 2


def test_threads_stay_and_processes_do_not(threads_pool: Pool, processes_pool: Pool) -> None:
    assert {pid for pid, _ in values(threads_pool.map(hosts.where, [()] * 4))} == {os.getpid()}
    assert os.getpid() not in {pid for pid, _ in values(processes_pool.map(hosts.where, [()] * 4))}


def test_no_items_start_nothing() -> None:
    pool = pool_of(3, name="f", releases_gil=False)
    assert pool.map(hosts.square, []) == []
    assert processes_of(3) == []


def test_workers_are_kept_between_batches_and_shared(processes_pool: Pool, tmp_path: Path) -> None:
    again = pool_of(2, name="g", releases_gil=False)
    assert meeting(processes_pool, tmp_path / "one") == meeting(again, tmp_path / "other")


def test_small_calls_go_together(monkeypatch: pytest.MonkeyPatch, pool: Pool) -> None:
    sizes = []
    submit = type(pool._lanes).submit

    def counted(self: Any, task: Any) -> Any:
        sizes.append(len(task.items))
        return submit(self, task)

    monkeypatch.setattr(type(pool._lanes), "submit", counted)
    assert values(pool.map(hosts.square, [(x,) for x in range(5000)])) == [x * x for x in range(5000)]
    assert len(sizes) < 1000
    sizes.clear()
    pool.map(hosts.nap, [(0.006,)] * 20)
    assert sizes == [1] * 20
    sizes.clear()
    pool.map(np.shape, [(np.ones(1 << 18),)] * 60)
    assert max(sizes) == 2  # however short the calls are, their arrays are not all on their way at once


# --- functions ------------------------------------------------------------------------------------


def test_the_name_of_a_decorated_function_stands_for_the_function_itself(processes_pool: Pool) -> None:
    host = hosts.decorated.host
    assert shipping.token_of(host) == shipping.Named("tests.wrapping.hosts", "decorated", is_host=True)
    assert values(processes_pool.map(host, [(1,), (2,)])) == [2, 3]


@pytest.mark.parametrize("function", [hosts.square, hosts.Space.inner, np.linalg.norm], ids=lambda each: each.__name__)
def test_a_function_of_a_module_travels_by_name(function: Callable[..., Any]) -> None:
    token = shipping.token_of(function)
    assert isinstance(token, shipping.Named)
    assert shipping.load(token) is function


@pytest.mark.parametrize(
    "function", [np.exp, abs, "x".join, np.poly1d([1, 0])], ids=["ufunc", "abs", "bound", "object"]
)
def test_other_callables_travel_as_they_are_pickled(processes_pool: Pool, function: Callable[..., Any]) -> None:
    item = ("a", "b") if function == "x".join else 2.0
    assert values(processes_pool.map(function, [(item,)])) == [function(item)]


def test_lambdas_and_closures_travel_by_value(processes_pool: Pool) -> None:
    pytest.importorskip("cloudpickle")
    factor = 3
    assert values(processes_pool.map(lambda x: factor * x, [(1,), (2,)])) == [3, 6]


@pytest.mark.parametrize("name", ["lambda", "main"])
def test_without_cloudpickle_a_lambda_is_named(
    monkeypatch: pytest.MonkeyPatch, processes_pool: Pool, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "typed", hosts.square, raising=False)
    exec("def typed(x): return x", vars(main))
    function = main.typed if name == "main" else lambda x: x
    what = "typed" if name == "main" else r"test_without_cloudpickle_a_lambda_is_named\.<locals>\.<lambda>"
    with pytest.raises(MissingDependencyError, match=rf"workers: {what} cannot be imported by .*`pip install cloud"):
        processes_pool.map(function, [(1,)])


def test_what_cannot_be_sent_is_named(processes_pool: Pool) -> None:
    lock = threading.Lock()
    with pytest.raises(
        OptionError, match=r"<lambda> cannot be sent to another process \(TypeError: cannot pickle '_th"
    ):
        processes_pool.map(lambda x: lock, [(1,)])
    with pytest.raises(
        OptionError, match=r"workers: argument 1 of sample 2, a lock, cannot be sent to another process"
    ):
        processes_pool.map(max, [(1, 2), (1, 2), (1, lock)])
    assert processes_pool.map(hosts.square, NUMBERS) == SQUARES


def test_a_function_that_cannot_be_imported_there_fails_with_the_name(processes_pool: Pool) -> None:
    token = shipping.Named("no_such_module", "f", is_host=False)
    carrier = shipping.Carrier(hosts.square, token)
    task = lanes.Task(carrier, [(1,)], 0)
    own = processes_pool._lanes
    handle = own.submit(task)
    own.wait([handle], None)
    (outcome,) = own.fetch(handle).outcomes
    assert outcome.type_name == "ModuleNotFoundError"
    assert "no_such_module" in outcome.message


# --- arrays ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_shared")
@pytest.mark.parametrize("n", [3, parcels.LARGE // 8 - 1, parcels.LARGE // 8, 300_000])
def test_arrays_arrive_and_come_back(pool: Pool, n: int) -> None:
    xs = [np.arange(n, dtype=float) + i for i in range(5)]
    for x, got in zip(xs, values(pool.map(hosts.square, [(x,) for x in xs]))):
        np.testing.assert_array_equal(got, x * x)
        got += 1  # it is the caller's


@pytest.mark.usefixtures("nothing_shared")
@pytest.mark.parametrize("n", [4, 400])
def test_arrays_keep_what_they_are(pool: Pool, n: int) -> None:
    base = np.arange(n * n, dtype=float).reshape(n, n)
    frozen = base.copy()
    frozen.flags.writeable = False
    items = [(x,) for x in (base, np.asfortranarray(base), frozen, base.astype(np.float32), base[::2, ::-1])]
    got = values(pool.map(hosts.describe, items))
    for (x,), described in zip(items, got):
        assert described == (x.dtype.str, x.shape, x.flags.f_contiguous, x.flags.writeable, float(x.sum()))


@pytest.mark.usefixtures("nothing_shared")
def test_what_a_process_writes_into_its_argument_stays_there(processes_pool: Pool) -> None:
    x = np.ones(200_000)
    (got,) = values(processes_pool.map(hosts.scale_in_place, [(x,)]))
    assert got[0] == 2
    assert x[0] == 1


@pytest.mark.usefixtures("nothing_shared")
def test_without_room_in_shared_memory_arrays_go_through_the_pipe(
    monkeypatch: pytest.MonkeyPatch, processes_pool: Pool
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    x = np.ones(300_000)
    assert isinstance(parcels.post(parcels.Parcel.of(x), parcels.fresh_name()), parcels.Parcel)
    np.testing.assert_array_equal(values(processes_pool.map(hosts.square, [(x,)]))[0], x)


@pytest.mark.usefixtures("nothing_shared")
def test_shared_memory_is_used_for_large_arrays_only() -> None:
    small, large = np.ones(parcels.LARGE // 8 - 1), np.ones(parcels.LARGE // 8)
    name = parcels.fresh_name()
    assert isinstance(parcels.post(parcels.Parcel.of([small, small]), name), parcels.Parcel)
    sent = parcels.post(parcels.Parcel.of([small, large, large]), name)
    assert isinstance(sent, parcels.Posted)
    assert len(sent.data) < 2 * small.nbytes
    assert name in [each.name for each in segments()]
    got = parcels.receive(sent).open()
    parcels.discard(name)
    parcels.discard(name)
    np.testing.assert_array_equal(got[2], large)


# --- errors ---------------------------------------------------------------------------------------


def test_an_error_is_text(pool: Pool) -> None:
    """An exception with two constructor arguments cannot be unpickled, which would break the pool."""
    outcomes = pool.map(hosts.fail, [(x,) for x in range(4)])
    assert outcomes[::2] == [Done(0), Done(2)]
    for x, outcome in zip((1, 3), outcomes[1::2]):
        assert isinstance(outcome, Failed)
        assert (outcome.type_name, outcome.message) == ("TwoArgumentsError", f"{x}: no such state")
        assert not outcome.crashed
        assert "in fail" in outcome.traceback
        assert "raise TwoArgumentsError" in outcome.traceback
        assert "remote.py" not in outcome.traceback


def test_a_function_that_leaves_does_not_end_the_worker(pool: Pool) -> None:
    outcomes = pool.map(hosts.leave, [(x,) for x in range(5)])
    assert [type(each).__name__ for each in outcomes] == ["Done", "Done", "Done", "Failed", "Done"]
    assert (outcomes[3].type_name, outcomes[3].message) == ("SystemExit", "enough")


def test_a_result_that_cannot_be_sent_is_the_fault_of_its_call(processes_pool: Pool) -> None:
    outcomes = processes_pool.map(hosts.lock, [(x,) for x in range(3)])
    assert outcomes[::2] == [Done(0), Done(2)]
    assert outcomes[1].type_name == "TypeError"
    assert "cannot pickle '_thread.lock'" in outcomes[1].message


def test_a_result_that_cannot_be_opened_is_the_fault_of_its_call(processes_pool: Pool) -> None:
    outcomes = processes_pool.map(hosts.unopenable, [(x,) for x in range(3)])
    assert outcomes[::2] == [Done(0), Done(2)]
    assert outcomes[1].message == "only where it was made"


# --- crashes --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_shared")
@pytest.mark.parametrize(("how", "text"), [("exit", "with exit status 7"), ("kill", "by SIGKILL")])
def test_the_call_that_ends_its_worker_is_found(processes_pool: Pool, how: str, text: str) -> None:
    outcomes = processes_pool.map(hosts.die, [(x, how) for x in range(10)])
    assert [outcome for x, outcome in enumerate(outcomes) if x != 5] == [Done(x) for x in range(10) if x != 5]
    died = outcomes[5]
    assert isinstance(died, Failed)
    assert died.crashed
    assert died.message == f"its worker ended {text} while it ran, as another one had before"
    assert processes_pool.map(hosts.square, NUMBERS) == SQUARES


@pytest.mark.usefixtures("nothing_shared")
def test_a_call_whose_worker_ends_once_is_done_again(processes_pool: Pool, tmp_path: Path) -> None:
    assert values(processes_pool.map(hosts.die, [(x, "kill", str(tmp_path)) for x in range(10)])) == list(range(10))
    assert (tmp_path / "died").exists()


@pytest.mark.usefixtures("nothing_shared")
def test_a_worker_may_end_while_another_one_is_started(monkeypatch: pytest.MonkeyPatch, processes_pool: Pool) -> None:
    submit, calls = concurrent.futures.ProcessPoolExecutor.submit, []

    def closed_once(self: Any, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise OSError("handle is closed")
        return submit(self, *args)

    monkeypatch.setattr(concurrent.futures.ProcessPoolExecutor, "submit", closed_once)
    assert processes_pool.map(hosts.square, NUMBERS) == SQUARES
    assert len(calls) > 2


@pytest.mark.usefixtures("nothing_shared")
def test_a_crash_leaves_no_shared_memory(processes_pool: Pool) -> None:
    x = np.ones(300_000)
    outcomes = processes_pool.map(hosts.die_with_array, [(x + i, i == 2) for i in range(6)])
    assert [getattr(outcome, "crashed", False) for outcome in outcomes] == [False, False, True, False, False, False]
    np.testing.assert_array_equal(outcomes[5].value, x + 6)


def test_workers_that_ended_between_batches_are_replaced(processes_pool: Pool) -> None:
    for pid, _ in values(processes_pool.map(hosts.where, [()] * 4)):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    with pytest.raises(concurrent.futures.BrokenExecutor):
        while time.monotonic() < deadline:
            processes_pool._lanes._executor.submit(abs, 1)
            time.sleep(0.01)  # the thread that looks after the processes needs its turn to see that they are gone
    assert processes_pool.map(hosts.square, NUMBERS) == SQUARES


# --- what a worker is like ------------------------------------------------------------------------


def test_a_process_starts_afresh_with_one_thread_for_each_library(processes_pool: Pool) -> None:
    (state,) = values(processes_pool.map(hosts.surroundings, [()]))
    assert len(state["threads"]) >= 7
    assert set(state["threads"].values()) == {"1"}
    assert state["main"] is None
    assert values(processes_pool.map(hosts.type_of_process, [()])) == ["Worker"]
    assert not issubclass(processes.Worker, multiprocessing.get_context("fork").Process)


@pytest.mark.slow
def test_torch_is_not_imported_unless_the_function_does() -> None:
    with pool_of(1, name="f", releases_gil=False) as pool:
        pool.close()
        (state,) = values(pool.map(hosts.surroundings, [()]))
        assert not state["torch"]
        assert values(pool.map(hosts.torch_state, [()] * 2)) == [(True, 1), (False, 1)]


def test_threads_do_not_build_graphs(threads_pool: Pool) -> None:
    assert torch.is_grad_enabled()
    assert {enabled for enabled, _ in values(threads_pool.map(hosts.torch_state, [()] * 4))} == {False}


def test_a_pool_inside_a_worker_starts_nothing(pool: Pool) -> None:
    for x, (found, pids) in enumerate(values(pool.map(hosts.nested, [(x,) for x in range(3)]))):
        assert found == [x, x + 1]
        assert len(pids) == 1


def test_a_daemonic_process_does_the_calls_itself() -> None:
    context = multiprocessing.get_context("forkserver")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=hosts.in_daemon, args=(writer,), daemon=True)
    process.start()
    writer.close()
    assert reader.recv() == [process.pid] * 2
    process.join()


def test_a_forked_process_starts_workers_of_its_own() -> None:
    process = script(
        """
        import os
        from gradwright.wrapping.workers import pool_of
        pool = pool_of(2, name="f", releases_gil=True)
        pool.map(abs, [(-1,)] * 4)
        if (child := os.fork()) == 0:
            print([each.value for each in pool.map(abs, [(-1,), (-2,)])], flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    out, err = process.communicate(timeout=60)
    assert out == "[1, 2]\n", err


# --- the end --------------------------------------------------------------------------------------


def processes_of(count: int) -> list[int]:
    own = own_lanes(processes.ProcessLanes, count)
    return [process.pid for process in own._context.started]


def test_closing_ends_the_processes_and_a_later_call_starts_others() -> None:
    with pool_of(1, name="f", releases_gil=False) as pool:
        ((first, _),) = values(pool.map(hosts.where, [()]))
        pool.close()
        assert gone(first)
        ((second, _),) = values(pool.map(hosts.where, [()]))
        assert second != first
    assert gone(second)


def test_processes_end_when_nobody_has_the_pool_any_more() -> None:
    pool = pool_of(4, name="f", releases_gil=False)
    ((pid, _),) = values(pool.map(hosts.where, [()]))
    del pool
    assert gone(pid)


def test_nothing_is_said_at_the_end_of_a_program() -> None:
    """The tracker of shared memory complains about what is left, and about what was given back twice."""
    process = script(
        """
        import numpy as np
        from gradwright.wrapping.workers import pool_of
        from tests.wrapping import hosts
        x = np.ones(300_000)
        found = pool_of(2, name="f", releases_gil=False).map(hosts.die_with_array, [(x, i == 2) for i in range(5)])
        print([type(each).__name__ for each in found])
        """
    )
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("['Done', 'Done', 'Failed', 'Done', 'Done']\n", "")
    assert not left_behind()


def test_an_interrupt_in_threads_ends_the_wait() -> None:
    process = script(
        """
        import os, signal, threading
        from gradwright.wrapping.workers import pool_of
        pool, event = pool_of(2, name="f", releases_gil=True), threading.Event()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            pool.map(event.wait, [()] * 20)
        except KeyboardInterrupt:
            print([each.value for each in pool.map(abs, [(-1,), (-2,)])])
            event.set()
        """
    )
    assert process.communicate(timeout=60) == ("[1, 2]\n", "")


def test_threads_of_the_program_take_turns(threads_pool: Pool) -> None:
    event, began = threading.Event(), threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        first = executor.submit(threads_pool.map, lambda: began.set() or event.wait(), [()])
        began.wait()
        taken = threads_pool._lanes.lock.locked()
        event.set()
        assert taken
        assert values(first.result()) == [True]
    assert not threads_pool._lanes.lock.locked()


def test_an_interrupt_ends_the_wait_and_the_programs_that_calls_have_started(tmp_path: Path) -> None:
    process = script(
        f"""
        from gradwright.wrapping.workers import pool_of
        from tests.wrapping import hosts
        pool = pool_of(2, name="f", releases_gil=False)
        try:
            pool.map(hosts.with_program, [({str(tmp_path)!r},)] * 2)
        except KeyboardInterrupt:
            print([each.value for each in pool.map(abs, [(-1,), (-2,)])])
        """
    )
    pids = started(tmp_path, 4)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("[1, 2]\n", "")
    assert all(gone(pid) for pid in pids)


def test_processes_end_with_the_parent(tmp_path: Path) -> None:
    process = script(
        f"""
        from gradwright.wrapping.workers import pool_of
        from tests.wrapping import hosts
        pool_of(2, name="f", releases_gil=False).map(hosts.with_program, [({str(tmp_path)!r},)] * 2)
        """
    )
    pids = started(tmp_path, 4)
    process.kill()
    process.communicate(timeout=60)
    assert all(gone(pid) for pid in pids)


def started(folder: Path, count: int) -> list[int]:
    deadline = time.monotonic() + 60
    while len(found := [int(each.name) for each in folder.iterdir()]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_script_needs_no_guard_and_is_not_run_again(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    path = tmp_path / "unguarded.py"
    path.write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            from gradwright.wrapping.workers import pool_of

            print("run")

            @dataclass
            class State:
                x: int

            def step(state):
                return State(state.x + 1)

            found = pool_of(2, name="step", releases_gil=False).map(step, [(State(1),), (State(2),)])
            print([each.value for each in found] == [State(2), State(3)])
            """
        )
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run([sys.executable, path], capture_output=True, text=True, env=env, check=False, timeout=60)
    assert (result.stdout, result.stderr) == ("run\nTrue\n", "")


# --- workers of the user's ------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [map, lambda f, xs: reversed([f(x) for x in xs])], ids=["map", "unordered"])
def test_a_callable_like_map(workers: Any) -> None:
    factor = 2
    pool = pool_of(workers, name="f", releases_gil=False)
    assert values(pool.map(lambda x: factor * x, NUMBERS)) == [2 * x for x in range(10)]
    assert pool.map(hosts.fail, [(1,)])[0].type_name == "TwoArgumentsError"


@pytest.mark.parametrize(
    ("workers", "text"),
    [(lambda f, xs: [7 for x in xs], "turned a result into 7"), (lambda f, xs: [], "returned nothing for sample 0")],
)
def test_a_callable_unlike_map(workers: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        pool_of(workers, name="f", releases_gil=False).map(hosts.square, NUMBERS)


@pytest.fixture(scope="module")
def forkserver() -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    context = multiprocessing.get_context("forkserver")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        yield executor


def test_an_executor(forkserver: concurrent.futures.ProcessPoolExecutor) -> None:
    with pool_of(forkserver, name="f", releases_gil=False) as pool:
        assert pool.map(hosts.square, NUMBERS) == SQUARES
        x = np.ones((600, 400), order="F")
        assert values(pool.map(hosts.describe, [(x,)])) == [("<f8", (600, 400), True, True, 240_000.0)]
        assert pool.map(hosts.fail, [(1,)])[0].type_name == "TwoArgumentsError"
        assert pool.map(hosts.lock, [(1,)])[0].type_name == "TypeError"
    assert forkserver.submit(abs, -1).result() == 1  # it is the user's to close


def test_an_executor_as_map(forkserver: concurrent.futures.ProcessPoolExecutor) -> None:
    pool = pool_of(forkserver.map, name="f", releases_gil=False)
    assert pool.map(hosts.square, NUMBERS) == SQUARES


def test_a_thread_pool_of_the_users() -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        pool = pool_of(executor, name="f", releases_gil=False)
        assert pool.map(lambda x: x * x, NUMBERS) == SQUARES
        assert values(pool.map(hosts.torch_state, [()]))[0][0] is False
        assert executor.submit(torch.is_grad_enabled).result()  # their threads stay as they are


def test_a_broken_executor_is_reported() -> None:
    context = multiprocessing.get_context("forkserver")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        outcomes = pool_of(executor, name="f", releases_gil=False).map(hosts.die, [(x, "kill") for x in range(7)])
    assert outcomes[5].crashed
    assert "the executor says:" in outcomes[5].message
    assert "where an int is given new processes are started" in outcomes[5].message


@pytest.mark.parametrize("given", ["executor", "map"])
def test_processes_that_were_forked_with_torch_loaded_are_refused(given: str) -> None:
    """A large torch operation never ends in such a process."""
    process = script(
        f"""
        import concurrent.futures, multiprocessing, torch, warnings
        from gradwright.wrapping.workers import pool_of
        from tests.wrapping import hosts
        warnings.simplefilter("ignore")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
            workers = executor if {given!r} == "executor" else executor.map
            try:
                print(pool_of(workers, name="f", releases_gil=False).map(hosts.square, [(1,)]))
            except Exception as error:
                print(type(error).__name__, error)
        """
    )
    out, err = process.communicate(timeout=60)
    assert out.startswith("OptionError workers: got processes that were forked from this one after it had imported t")
    assert "get_context('forkserver')" in out
    assert err == ""


def test_processes_that_were_forked_before_are_used() -> None:
    process = script(
        """
        import concurrent.futures, multiprocessing
        from gradwright.wrapping.workers import pool_of
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
            executor.submit(abs, 1).result()
            import torch
            print(pool_of(executor, name="f", releases_gil=False).map(abs, [(-1,)]))
        """
    )
    assert process.communicate(timeout=60) == ("[Done(value=1)]\n", "")


# --- validation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        (0, r"simulate: workers: got 0; expected at least 1; this machine has \d+ processors"),
        (-1, "got -1; expected at least 1"),
        (True, "got True; expected a number of workers, a callable like `map`"),
        (2.0, "got a float; expected a number"),
        (None, "got None; expected"),
        ("dask", "got 'dask'; expected"),
        ([], "got a list; expected"),
        ([1, 2], "got a list; expected"),
        (concurrent.futures.ThreadPoolExecutor, "got the class ThreadPoolExecutor; expected"),
    ],
)
def test_what_are_no_workers(workers: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        pool_of(workers, name="simulate", releases_gil=False)


def test_ray_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"simulate: `workers='ray'` .*`pip install 'gradwright\[ray\]'"):
        pool_of("ray", name="simulate", releases_gil=False)


def test_what_a_worker_imports_is_light() -> None:
    code = "import sys, gradwright.wrapping.processes; print({'torch', 'numpy', 'rich'} & set(sys.modules))"
    assert script(code).communicate(timeout=60) == ("set()\n", "")


# --- the progress bar -----------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    def begin() -> Terminal:
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)  # in the test, because pytest sets it again after the fixtures
        monkeypatch.setenv("TERM", "xterm")
        return stream

    return begin


def test_a_long_batch_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, terminal: Any, threads_pool: Pool) -> None:
    monkeypatch.setattr(bar, "PATIENCE", 0.1)
    shown = terminal()
    threads_pool.map(hosts.nap, [(0.1,)] * 6, progress="simulate")
    assert "simulate" in shown.getvalue()
    assert "/6" in shown.getvalue()


def test_one_call_that_is_long_shows_it_too(monkeypatch: pytest.MonkeyPatch, terminal: Any, threads_pool: Pool) -> None:
    monkeypatch.setattr(bar, "PATIENCE", 0.1)
    shown = terminal()
    threads_pool.map(hosts.nap, [(0.4,)], progress="simulate")
    assert "0/1" in shown.getvalue()


def test_a_short_batch_and_one_without_a_text_show_nothing(
    monkeypatch: pytest.MonkeyPatch, terminal: Any, threads_pool: Pool
) -> None:
    shown = terminal()
    threads_pool.map(hosts.nap, [(0.0,)] * 6, progress="simulate")
    monkeypatch.setattr(bar, "PATIENCE", 0.0)
    threads_pool.map(hosts.nap, [(0.01,)] * 6)
    assert shown.getvalue() == ""


def test_nothing_is_shown_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], threads_pool: Pool
) -> None:
    monkeypatch.setattr(bar, "PATIENCE", 0.0)
    threads_pool.map(hosts.nap, [(0.05,)] * 6, progress="simulate")
    assert capfd.readouterr().err == ""


def test_joblib() -> None:
    joblib = pytest.importorskip("joblib")
    with joblib.Parallel(n_jobs=2, backend="threading") as parallel:
        pool = pool_of(parallel, name="f", releases_gil=False)
        assert pool.map(hosts.square, NUMBERS) == SQUARES
        assert pool.map(hosts.fail, [(1,)])[0].type_name == "TwoArgumentsError"


@pytest.mark.slow
def test_joblib_processes() -> None:
    joblib = pytest.importorskip("joblib")
    factor = 2
    with joblib.Parallel(n_jobs=2) as parallel:
        pool = pool_of(parallel, name="f", releases_gil=False)
        assert values(pool.map(lambda x: factor * x, NUMBERS)) == [2 * x for x in range(10)]
        x = np.ones(300_000)
        np.testing.assert_array_equal(values(pool.map(hosts.scale_in_place, [(x,)]))[0], 2 * x)
        outcomes = pool.map(hosts.die, [(x, "kill") for x in range(8)])
        assert [getattr(each, "crashed", False) for each in outcomes] == [x == 5 for x in range(8)]
    importlib.import_module("joblib.externals.loky").get_reusable_executor().shutdown(kill_workers=True)
