"""Write ``src/gradwright/stable/erfcx_series.py``: polynomials for erfcx and its derivatives, by mpmath.

On ``u >= 0``, ``(-1) ** n erfcx^(n)(u) (1 + u) ** (n + 1)`` is smooth, positive and bounded, also at infinity. It is
interpolated at the Chebyshev points of ``t = (u - C) / (u + C)`` and written in powers of ``t``: the coefficients fall
faster than the powers of a Chebyshev polynomial grow, so that nothing cancels.

    python tools/erfcx_series.py
"""

from __future__ import annotations

from pathlib import Path

import mpmath
from mpmath import mp

TARGET = Path(__file__).resolve().parents[1] / "src" / "gradwright" / "stable" / "erfcx_series.py"
C = 3
ORDERS = 4
NODES = 64
BARS = {"float64": 2.0**-57, "float32": 2.0**-28}
"""What may be left out, relative to the smallest value."""

HEAD = '''"""Polynomials for erfcx and its derivatives on ``u >= 0``; made by ``tools/erfcx_series.py``.

``(-1) ** n erfcx^(n)(u) (1 + u) ** (n + 1)`` is the polynomial number ``n`` in ``t = (u - CENTRE) / (u + CENTRE)``.
"""

from __future__ import annotations

import torch

'''


def derivatives(u: mpmath.mpf) -> list[mpmath.mpf]:
    """Return erfcx and its derivatives: ``f_n = 2 u f_(n-1) + 2 (n - 1) f_(n-2)``, with digits for what cancels."""
    with mp.workdps(60 + int(2 * ORDERS * mp.log10(u + 2))):
        found = [mp.exp(u * u) * mp.erfc(u)]
        found.append(2 * u * found[0] - 2 / mp.sqrt(mp.pi))
        for n in range(2, ORDERS):
            found.append(2 * u * found[-1] + 2 * (n - 1) * found[-2])
    return found


def main() -> None:
    """Fit and write."""
    mp.dps = 50
    nodes = [mp.cos(mp.pi * (j + mp.mpf(1) / 2) / NODES) for j in range(NODES)]
    places = [C * (1 + t) / (1 - t) for t in nodes]
    rows = [derivatives(u) for u in places]
    tables: dict[str, list[list[mpmath.mpf]]] = {name: [] for name in BARS}
    for n in range(ORDERS):
        values = [(-1) ** n * row[n] * (1 + u) ** (n + 1) for u, row in zip(places, rows)]
        series = [
            (1 if k == 0 else 2)
            * mp.fsum(v * mp.cos(k * mp.pi * (j + mp.mpf(1) / 2) / NODES) for j, v in enumerate(values))
            / NODES
            for k in range(NODES)
        ]
        for name, bar in BARS.items():
            count = next(k for k in range(NODES) if mp.fsum(map(abs, series[k:])) < bar * min(values))
            powers = in_powers(series[:count])
            tables[name].append(powers)
            size = mp.fsum(map(abs, powers)) / min(values)
            print(f"derivative {n}, {name}: {count} terms, their sizes {float(size):.1f} times the smallest value")
    lines = [HEAD, f"CENTRE = {C}.0\nSERIES: dict[torch.dtype, tuple[tuple[float, ...], ...]] = {{\n"]
    for name, table in tables.items():
        lines.append(f"    torch.{name}: (\n")
        for powers in table:
            lines += ["        (\n", *(f"            {float(number)!r},\n" for number in powers), "        ),\n"]
        lines.append("    ),\n")
    lines.append("}\n")
    TARGET.write_text("".join(lines), encoding="utf-8")


def in_powers(series: list[mpmath.mpf]) -> list[mpmath.mpf]:
    """Return the coefficients of the powers of ``t`` of a Chebyshev series, the constant first."""
    before, now = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]
    total = [mp.mpf(0)] * len(series)
    for number in series:
        for k, c in enumerate(before):
            total[k] += number * c
        after = [mp.mpf(0), *(2 * c for c in now)]
        for k, c in enumerate(before):
            after[k] -= c
        before, now = now, after
    return total


if __name__ == "__main__":
    main()
