import gc
import math
import signal
import sys
import threading
import time

import pytest

from gradwright.checking.limits import TimeLimitError, limits_are_effective, time_limit

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = signal.getsignal(signal.SIGALRM)
    yield
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_code_that_does_not_return_is_stopped():
    start = time.monotonic()
    with pytest.raises(TimeLimitError, match=r"took longer than 0\.05 s"), time_limit(0.05):
        spin(5)
    assert time.monotonic() - start < 2


def test_it_is_a_timeout_error():
    with pytest.raises(TimeLimitError), time_limit(0.02):
        spin(5)


def test_quick_code_is_left_alone():
    with time_limit(5):
        result = 2 + 2
    assert result == 4
    with time_limit(0.02):
        pass
    spin(0.05)  # no signal comes after the block


def test_the_inner_limit_can_end_first_and_the_outer_one_goes_on():
    with pytest.raises(TimeLimitError, match=r"0\.2 s"), time_limit(0.2):
        with pytest.raises(TimeLimitError, match=r"0\.02 s"), time_limit(0.02):
            spin(5)
        spin(5)


def test_the_outer_limit_ends_inside_a_longer_inner_one():
    with pytest.raises(TimeLimitError, match=r"0\.05 s"), time_limit(0.05), time_limit(10):
        spin(5)


def test_an_outer_limit_that_the_inner_block_swallowed_is_raised_again():
    def inner():
        try:
            with time_limit(10):
                spin(5)
        except TimeLimitError:
            pass

    with pytest.raises(TimeLimitError, match=r"0\.05 s"), time_limit(0.05):
        inner()
        spin(5)


def test_an_error_of_the_code_passes_through():
    with pytest.raises(KeyError), time_limit(1):
        raise KeyError("x")


def test_somebody_elses_handler_and_timer_are_put_back():
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeLimitError), time_limit(0.02):
            spin(5)
        assert seen == []
        spin(0.3)
        assert seen == [1]
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with time_limit(5):
            spin(0.1)  # the other timer ends meanwhile; it is delivered afterwards
        spin(0.05)
        assert seen == [1, 1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_infinite_limit_is_no_limit():
    with time_limit(math.inf):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_limit_of_nothing_is_still_a_limit():
    with pytest.raises(TimeLimitError), time_limit(0):
        spin(5)


def test_without_the_main_thread_there_is_no_limit():
    assert limits_are_effective()
    seen = []

    def work():
        seen.append(limits_are_effective())
        with time_limit(0.01):
            spin(0.05)
        seen.append("finished")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, "finished"]


def test_an_import_is_not_cut_off(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text(
        "import time\nend = time.monotonic() + 0.3\nwhile time.monotonic() < end: pass\nfinished = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TimeLimitError), time_limit(0.05):
        import slow_to_import  # noqa: F401

        spin(5)
    assert sys.modules.pop("slow_to_import").finished


def test_what_swallows_an_exception_is_not_stopped_but_what_comes_after_it() -> None:
    class Slow:
        def __del__(self) -> None:
            time.sleep(0.1)

    def collecting(phase: str, info: object) -> None:
        time.sleep(0.05)

    for swallows in ("finaliser", "collector"):
        gc.callbacks.append(collecting)
        try:
            with pytest.raises(TimeLimitError), time_limit(0.02):
                if swallows == "finaliser":
                    Slow()
                else:
                    gc.collect()
                time.sleep(60)
        finally:
            gc.callbacks.remove(collecting)


def test_a_limit_that_was_swallowed_is_raised_again():
    swallowed = []
    with pytest.raises(TimeLimitError), time_limit(0.02):
        try:
            spin(5)
        except BaseException:
            swallowed.append(1)
        spin(5)
    assert swallowed
