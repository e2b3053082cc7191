"""The peak of one candidate as the operating system sees it: the largest resident set of a process of its own.

``python benchmarks/_fused_resident.py NUMBER`` prints the MiB of candidate NUMBER of the chief scenario; Linux only.
PyTorch's allocator is asked in the benchmark itself: this tells whether something passes it by.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
LEAVING = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""How glibc is told to give back what is freed at once."""


def resident_peak(number: int, quick: bool, threads: int) -> float | None:
    """Return the MiB that a candidate of the chief scenario takes in a process of its own; None where nobody tells."""
    if not RESET.exists():
        return None
    command = [sys.executable, __file__, str(number), str(int(quick)), str(threads)]
    done = subprocess.run(command, env={**os.environ, **LEAVING}, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def _read(name: str) -> float:
    found = re.search(rf"{name}:\s*(\d+) kB", STATUS.read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1]) / 1024


def main(number: int, quick: bool, threads: int) -> None:
    """Run one candidate twice, and print by how much the resident set grew in the second run."""
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    import _fused_anchors
    import torch
    from _fused_heads import HEADS
    from _fused_measure import Step, with_compiled

    torch.set_num_threads(threads)
    if not quick:
        _fused_anchors.install()
    scenario = HEADS["head"]["head"](quick)
    if not quick:
        scenario = with_compiled(scenario)
    step = Step(scenario.candidates[number], scenario.args, [torch.ones(())])
    step()  # what is made once is there, buffers of the matrix product included
    gc.collect()
    RESET.write_text("5", encoding="utf-8")
    before = _read("VmRSS")
    held = step()
    print(_read("VmHWM") - before)
    del held


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1", int(sys.argv[3]))
