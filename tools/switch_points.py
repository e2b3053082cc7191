"""Write ``src/gradwright/stable/switch_points.py``: where functions change from a series to their closed form.

    python tools/switch_points.py            # measures and writes

The places depend on how well the closed forms are computed: another build of PyTorch may give neighbouring ones.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
TARGET = ROOT / "src" / "gradwright" / "stable" / "switch_points.py"

import torch  # noqa: E402

HEAD = '''"""Where functions change from a series to their closed form; made by ``tools/switch_points.py``."""

from __future__ import annotations

import torch

from gradwright.stable.singularity import Switch, Switches

SWITCHES: dict[str, Switches] = {
'''


def main() -> None:
    """Measure and write."""
    forms = importlib.import_module("gradwright.stable.closed_forms").FORMS
    find = importlib.import_module("gradwright.stable.singularity").find_switches
    lines = [HEAD]
    for name, form in forms.items():
        lines.append(f'    "{name}": {{\n')
        for dtype in (torch.float64, torch.float32):
            found = find(form.closed, form.coefficient, dtype, name=name, at=form.at, radius=form.radius)
            switches = ", ".join(f"Switch({switch.distance:.6g}, {switch.terms})" for switch in found)
            lines.append(f"        {dtype}: ({switches}),\n")
        lines.append("    },\n")
        print(f"{name}: measured")
    TARGET.write_text("".join([*lines, "}\n"]), encoding="utf-8")


if __name__ == "__main__":
    main()
