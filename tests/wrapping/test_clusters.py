"""Workers of Ray and Dask, on clusters that are started here."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gradwright.errors import OptionError
from gradwright.wrapping.remote import Done, Failed
from gradwright.wrapping.workers import Pool, pool_of
from tests.wrapping import hosts
from tests.wrapping.test_workers import gone, values

NUMBERS = [(x,) for x in range(10)]


def check_everything(pool: Pool) -> None:
    """Check what holds for every kind of workers."""
    assert values(pool.map(hosts.square, NUMBERS)) == [x * x for x in range(10)]
    factor = 3
    assert values(pool.map(lambda x: factor * x, NUMBERS)) == [3 * x for x in range(10)]
    assert values(pool.map(hosts.decorated.host, [(1,)])) == [2]
    assert len(set(values(pool.map(hosts.draw, [(0,)] * 4)))) == 4
    outcomes = pool.map(hosts.fail, [(x,) for x in range(2)])
    assert outcomes[0] == Done(0)
    assert isinstance(outcomes[1], Failed)
    assert (outcomes[1].type_name, outcomes[1].message) == ("TwoArgumentsError", "1: no such state")
    assert "in fail" in outcomes[1].traceback
    assert pool.map(hosts.lock, [(1,)])[0].type_name == "TypeError"
    assert {found[0] for found, _ in values(pool.map(hosts.nested, [(4,)]))} == {4}
    check_arrays(pool)


def check_arrays(pool: Pool) -> None:
    for n in (3, 300_000):
        shared = np.arange(n, dtype=float)
        frozen = shared.copy()
        frozen.flags.writeable = False
        got = values(pool.map(hosts.describe, [(shared,), (shared,), (frozen,)]))
        assert [described[3] for described in got] == [True, True, False]
        assert {described[4] for described in got} == {shared.sum()}
        for found in values(pool.map(hosts.scale_in_place, [(shared,), (shared,)])):
            np.testing.assert_array_equal(found, 2 * shared)
        assert shared[1] == 1


def check_crash(pool: Pool) -> None:
    outcomes = pool.map(hosts.die, [(x, "exit") for x in range(10)])
    assert [each for x, each in enumerate(outcomes) if x != 5] == [Done(x) for x in range(10) if x != 5]
    assert isinstance(outcomes[5], Failed)
    assert outcomes[5].crashed


# --- Dask -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
            distributed.Client(cluster) as client,
        ):
            pids = list(client.run(hosts.pid).values())
            yield client
    assert all(gone(pid) for pid in pids)


def test_dask(client: Any) -> None:
    with pool_of(client, name="f", releases_gil=False) as pool:
        check_everything(pool)
    assert client.submit(abs, -1).result() == 1  # it is the user's to close


@pytest.mark.slow
def test_dask_crash(client: Any) -> None:
    pool = pool_of(client, name="f", releases_gil=False)
    check_crash(pool)
    x = np.ones(300_000)
    outcomes = pool.map(hosts.die_with_array, [(x, i == 2) for i in range(4)])
    assert [getattr(each, "crashed", False) for each in outcomes] == [False, False, True, False]


def test_dask_sends_an_array_that_calls_share_once(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    scatter = client.scatter
    monkeypatch.setattr(client, "scatter", lambda *args, **options: sent.append(args) or scatter(*args, **options))
    shared, own = np.ones(300_000), [np.full(300_000, i) for i in range(4)]
    pool = pool_of(client, name="f", releases_gil=False)
    assert [got[0] for got in values(pool.map(np.add, [(shared, each) for each in own]))] == [1, 2, 3, 4]
    assert len(sent) == 5


def test_dask_does_the_same_call_again(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []  # while a result is kept, Dask takes an equal call for the same
    submit = client.submit
    monkeypatch.setattr(client, "submit", lambda *args, **options: kept.append(submit(*args, **options)) or kept[-1])
    pool = pool_of(client, name="f", releases_gil=False)
    assert pool.map(hosts.draw, [(0,)]) != pool.map(hosts.draw, [(0,)])


def test_an_asynchronous_client_is_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(client), "asynchronous", True)
    with pytest.raises(OptionError, match="got a Client; expected a Dask client with `asynchronous=False`; make one"):
        pool_of(client, name="f", releases_gil=False)


# --- Ray ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
        pids = ray.get([ray.remote(hosts.pid).remote() for _ in range(4)])
        yield ray
        ray.shutdown()
    assert all(gone(pid) for pid in pids)


def actors(ray: Any, count: int, **options: Any) -> list[Any]:
    class Anything:
        pass

    kind = ray.remote(**{"num_cpus": 0, **options})(Anything)
    made = [kind.remote() for _ in range(count)]
    ray.get([actor.__ray_ready__.remote() for actor in made])
    return made


def test_ray_tasks(ray: Any) -> None:
    with pool_of("ray", name="f", releases_gil=False) as pool:
        check_everything(pool)
    assert ray.is_initialized()


def test_ray_tasks_crash(ray: Any) -> None:
    check_crash(pool_of("ray", name="f", releases_gil=False))


def test_ray_puts_an_array_that_calls_share_once(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put, sent = ray.put, []
    monkeypatch.setattr(ray, "put", lambda array: sent.append(array) or put(array))
    shared, own = np.ones(300_000), [np.full(300_000, i) for i in range(4)]
    pool = pool_of("ray", name="f", releases_gil=False)
    assert [got[0] for got in values(pool.map(np.add, [(shared, each) for each in own]))] == [1, 2, 3, 4]
    assert len(sent) == 5


def test_ray_actors(ray: Any) -> None:
    made = actors(ray, 2)
    pool = pool_of(made, name="f", releases_gil=False)
    check_everything(pool)
    assert len(set(values(pool.map(hosts.pid_after, [(0.05,)] * 6)))) == 2


def test_a_ray_actor_pool(ray: Any) -> None:
    from ray.util import ActorPool

    made = actors(ray, 2)
    given = ActorPool(made)
    pool = pool_of(given, name="f", releases_gil=False)
    check_everything(pool)
    assert given.has_free()
    given.pop_idle(), given.pop_idle()
    with pytest.raises(OptionError, match="f: got workers without a Ray actor that is alive and idle"):
        pool.map(hosts.square, NUMBERS)


@pytest.mark.slow
def test_ray_actors_that_start_again_survive_a_crash(ray: Any) -> None:
    check_crash(pool_of(actors(ray, 2, max_restarts=-1), name="f", releases_gil=False))


def test_ray_actors_that_do_not_start_again_are_left_out(ray: Any) -> None:
    pool = pool_of(actors(ray, 3), name="f", releases_gil=False)
    check_crash(pool)
    assert len(set(values(pool.map(hosts.pid_after, [(0.02,)] * 4)))) == 1
    assert pool.map(hosts.die, [(5, "exit")])[0].crashed
    with pytest.raises(OptionError, match="a Ray actor that is alive and idle; expected at least one"):
        pool.map(hosts.square, NUMBERS)


def test_ray_without_a_cluster(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(OptionError, match=r"simulate: got workers='ray' where no Ray cluster is running; .*`ray\.init"):
        pool_of("ray", name="simulate", releases_gil=False).map(hosts.square, NUMBERS)
