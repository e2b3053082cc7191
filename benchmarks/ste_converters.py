"""Which settings of ``gw.ste`` give what PyTorch's operators, Brevitas, torchao, LSQ and PACT give, and how closely.

Each row runs both on the points where rules decide (ties, codes, bounds, their neighbours, far outside) and on random
numbers, and compares values and gradients bit for bit. A row that is less close than it claims makes the exit status 1.

    python benchmarks/ste_converters.py            # everything, with Brevitas and torchao (installed into build/)
    python benchmarks/ste_converters.py --quick    # PyTorch alone, as the tests do
    python benchmarks/ste_converters.py --write    # puts the table into docs/ste-converting.md
    python benchmarks/ste_converters.py --json FILE
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import _ste_anchors  # noqa: E402
import torch  # noqa: E402
from _pages import write_tables  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import gradwright as gw  # noqa: E402
from tests.converters import (  # noqa: E402
    BITS,
    BOTH,
    CLAIMS,
    EXACT,
    GROUP,
    HIGH,
    LOW,
    Claim,
    Row,
    clamp_edges,
    compositions,
    measured,
    operators,
    quantised,
)

PAGE = ROOT / "docs" / "ste-converting.md"


class Given(nn.Module):
    """A scaling of Brevitas that is what it is told to be."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Return the scale."""
        return self.scale


def brevitas() -> list[Row]:
    """Return the rows of Brevitas."""
    from brevitas.core.function_wrapper import TensorClampSte
    from brevitas.core.quant.binary import BinaryQuant, ClampedBinaryQuant
    from brevitas.core.quant.ternary import TernaryQuant
    from brevitas.core.scaling import ParameterScaling

    integers = _ste_anchors.brevitas_quantizer(BITS)
    passing = _ste_anchors.brevitas_quantizer(BITS, clamp=TensorClampSte())
    scaling, threshold = ParameterScaling(1.0), 0.5

    def learned_scale(x: Tensor, bound: Tensor) -> Tensor:
        return integers(x, torch.func.functional_call(scaling, {"value": bound}, (x,)) / -LOW)

    def dead_zone(x: Tensor, scale: Tensor) -> Tensor:
        return (x.abs() > threshold * scale) * gw.ste.sign(x) * scale

    order = (
        "Autograd multiplies the gradient of `x` by the step and divides it again, and sums that of the step in two "
        "parts, `g * q` and `g * x / s`. gradwright returns `g` itself and sums `g * (q - x / s)`."
    )
    by_rounding: dict[str, Claim] = {"value": "same", "x": "last bits", "scale": "last bits"}
    return [
        Row(
            "Brevitas `IntQuant`, `RoundSte`, `TensorClamp`",
            "fake_quantize(x, s, low=n, high=p)",
            integers,
            quantised,
            by_rounding,
            why=order,
        ),
        Row(
            "Brevitas `IntQuant`, with a zero point or without",
            "(clamp(round(x / s + z), n, p) - z) * s",
            integers,
            lambda x, s, z: (gw.ste.clamp(gw.ste.round(x / s + z), LOW, HIGH) - z) * s,
            {**EXACT, "zero_point": "same"},
            BOTH,
        ),
        Row(
            "Brevitas `IntQuant` with a zero point",
            "fake_quantize(x, s, z, low=n, high=p)",
            integers,
            quantised,
            {"value": "differs", "x": "differs", "scale": "differs", "zero_point": "differs"},
            BOTH,
            why="Brevitas adds the zero point before it rounds, so that on ties with an odd zero point, and next to "
            "ties, the code is the other one; PyTorch, torchao and `fake_quantize` round first. Elsewhere only last "
            "bits differ.",
        ),
        Row(
            "Brevitas `IntQuant` with `TensorClampSte`",
            "fake_quantize(x, s, low=n, high=p, mask='none')",
            passing,
            functools.partial(quantised, mask="none"),
            by_rounding,
            why="As for `TensorClamp`: the same terms, rounded in other places. Note that the gradient of the step "
            "grows with the clipped part of `x` without bound.",
        ),
        Row(
            "Brevitas `IntQuant` with `TensorClampSte`",
            "(clamp(round(x / s + z), n, p, mask='none') - z) * s",
            passing,
            lambda x, s, z: (gw.ste.clamp(gw.ste.round(x / s + z), LOW, HIGH, mask="none") - z) * s,
            {**EXACT, "zero_point": "same"},
            BOTH,
        ),
        Row(
            "Brevitas `ParameterScaling`",
            "fake_quantize(x, abs(a) / 2**(k - 1), low=n, high=p)",
            learned_scale,
            lambda x, bound: quantised(x, gw.ste.abs(bound) / -LOW),
            {"value": "same", "x": "last bits", "bound": "last bits"},
            ("bound",),
            why="As for `IntQuant`, whose step this is. `gw.ste.abs` has the slope 1 at zero, as theirs.",
        ),
        Row(
            "Brevitas `BinaryQuant`",
            "sign(x) * s",
            lambda x, s: BinaryQuant(Given(s))(x)[0],
            lambda x, s: gw.ste.sign(x) * s,
            EXACT,
        ),
        Row(
            "Brevitas `ClampedBinaryQuant`",
            "sign(clamp_learned(x, -s, s, edges='inclusive')) * s",
            lambda x, s: ClampedBinaryQuant(Given(s))(x)[0],
            lambda x, s: gw.ste.sign(gw.ste.clamp_learned(x, -s, s, edges="inclusive")) * s,
            EXACT,
        ),
        Row(
            "Brevitas `TernaryQuant`",
            "(x.abs() > t * s) * sign(x) * s",
            lambda x, s: TernaryQuant(Given(s), threshold)(x)[0],
            dead_zone,
            EXACT,
            why="It can be had, but seldom is what is wanted: in the dead zone, where the code is 0, the gradient is "
            "0, so that nothing there is learned. The paper on ternary weights passes it, as `twn` and `ttq` do.",
        ),
    ]


def torchao() -> list[Row]:
    """Return the rows of torchao."""
    from torchao.quantization.qat import IntxFakeQuantizeConfig
    from torchao.quantization.qat.fake_quantizer import IntxFakeQuantizer
    from torchao.quantization.quant_primitives import MappingType, _fake_quantize_affine, choose_qparams_affine

    def affine(x: Tensor, scale: Tensor, zero_point: Tensor | None = None, *, group: int | None = None) -> Any:
        zero = torch.zeros_like(scale) if zero_point is None else zero_point
        block = (1, group or x.shape[-1]) if x.dim() == 2 else tuple(x.shape)
        return _fake_quantize_affine(x, block, scale, zero, torch.int8, LOW, HIGH)

    def dynamic(config: Any, mapping: Any, low: int, high: int) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
        """Return the quantiser of a configuration, and the same on steps and zero points that torchao chooses."""

        def ours(x: Tensor) -> Tensor:
            scale, zero = choose_qparams_affine(x, mapping, (1, x.shape[-1]), torch.int8, low, high, config.eps)
            scale, zero = scale.reshape(-1), zero.reshape(-1)
            return gw.ste.fake_quantize(x, scale, zero, low=low, high=high, axis=0, reciprocal=True, edges=edges)

        return IntxFakeQuantizer(config), ours

    edges = clamp_edges()

    def composed(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        codes = gw.ste.clamp(gw.ste.round(x * (1.0 / scale)) + zero_point, LOW, HIGH, edges=edges)
        return (codes - zero_point) * scale

    order = (
        "Autograd multiplies the gradient of `x` by the step and by its reciprocal, and sums that of the step in two "
        "parts; gradwright returns `g` itself and sums `g * (q - x / s)`. Its codes go through `torch.clamp`, whose "
        "gradient at a bound passes up to PyTorch 2.13; later it does not, and then `edges='exclusive'` is what gives "
        "the same."
    )
    rounding: dict[str, Claim] = {"value": "same", "x": "last bits", "scale": "last bits", "zero_point": "last bits"}
    tokens = dynamic(
        IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False), MappingType.ASYMMETRIC, -128, 127
    )
    channels = dynamic(IntxFakeQuantizeConfig(torch.int4, "per_channel"), MappingType.SYMMETRIC, LOW, HIGH)
    settings = "fake_quantize(x, s, z, low=n, high=p, reciprocal=True"
    return [
        Row(
            "torchao `_fake_quantize_affine`, symmetric",
            "fake_quantize(x, s, 0, low=n, high=p, reciprocal=True)",
            affine,
            lambda x, s: quantised(x, s, 0, reciprocal=True, edges=edges),
            {"value": "same", "x": "last bits", "scale": "last bits"},
            why=order,
        ),
        Row(
            "torchao `_fake_quantize_affine`, symmetric",
            "(clamp(round(x * (1 / s)) + 0, n, p) - 0) * s",
            affine,
            lambda x, s: composed(x, s, torch.zeros(1)),
            EXACT,
        ),
        Row(
            "torchao, range learning, per channel or token",
            settings + ", axis=0)",
            affine,
            functools.partial(quantised, axis=0, reciprocal=True, edges=edges),
            rounding,
            BOTH,
            "channel",
            why=order,
        ),
        Row(
            "torchao, range learning, per channel or token",
            "(clamp(round(x * (1 / s)) + z, n, p) - z) * s",
            affine,
            lambda x, s, z: composed(x, s[:, None], z[:, None]),
            {**EXACT, "zero_point": "same"},
            BOTH,
            "channel",
        ),
        Row(
            "torchao, range learning, per group",
            settings + ", axis=-1, group_size=m)",
            functools.partial(affine, group=GROUP),
            functools.partial(quantised, axis=-1, group_size=GROUP, reciprocal=True, edges=edges),
            rounding,
            BOTH,
            "group",
            why=order,
        ),
        Row(
            "torchao `IntxFakeQuantizer`, dynamic, symmetric, per channel",
            settings + ", axis=0)",
            *channels,
            {"value": "same", "x": "last bits"},
            (),
            "whole",
            why=order,
        ),
        Row(
            "torchao `IntxFakeQuantizer`, dynamic, asymmetric, per token",
            settings + ", axis=0)",
            *tokens,
            {"value": "same", "x": "last bits"},
            (),
            "whole",
            why=order,
        ),
        Row(
            "torchao `Float8FakeQuantizer`",
            "float8(x, amax=x.detach().abs().amax(-1), axis=0)",
            _ste_anchors.torchao_float8(),
            lambda x: gw.ste.float8(x, amax=x.detach().abs().amax(-1), axis=0),
            {"value": "same", "x": "differs"},
            (),
            "whole",
            why="Its rounding returns a tensor of FP8, so that the engine casts the gradient to FP8 too, without a "
            "scale: gradients of 0.01 become zero, but for what passes through the scale. That cannot be "
            "reproduced, and should not be; `float8` keeps the gradient in the dtype of `x`.",
        ),
    ]


def main() -> int:
    """Compare, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="PyTorch alone, nothing installed")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/ste-converting.md")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--write needs every row, --quick leaves some out")
    torch.set_num_threads(1)
    groups = [operators, compositions]
    if not options.quick:
        _ste_anchors.install()
        groups += [brevitas, torchao]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # TorchScript, in Brevitas
        rows = [row for group in groups for row in group()]
        found = [measured(row) for row in rows]
    worse = [row.name for row, levels in zip(rows, found) if not is_held(row, levels)]
    tables = {"converters": table(rows, found), "differences": differences(rows)}
    print("\n\n".join(tables.values()))
    for name in worse:
        print(f"{name}: less close than claimed", file=sys.stderr)
    if options.write:
        write_tables(PAGE, tables)
    if options.json:
        options.json.write_text(json.dumps(figures(rows, found), indent=2), encoding="utf-8")
    return 1 if worse else 0


def is_held(row: Row, found: dict[str, Claim]) -> bool:
    """Tell whether every part is at least as close as the row claims."""
    return all(CLAIMS.index(found[name]) <= CLAIMS.index(claim) for name, claim in row.claims.items())


def table(rows: Sequence[Row], found: Sequence[dict[str, Claim]]) -> str:
    """Return a Markdown table, a line for each row."""
    lines = ["| theirs | `gw.ste` | value | gradient of `x` | of parameters |", "|---" * 5 + "|"]
    for row, levels in zip(rows, found):
        others = ", ".join(f"`{name}` {levels[name]}" for name in row.arguments if row.learned(name))
        lines.append(f"| {cell(row.name)} | `{row.settings}` | {levels['value']} | {levels['x']} | {others} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """Return a text that a table can hold."""
    return text.replace("|", "\\|")


def differences(rows: Sequence[Row]) -> str:
    """Return what there is to say about rows, as a Markdown list, once for those that have it in common."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(row.why, []).append(row.name)
    return "\n".join(f"- **{'; '.join(together)}.** {why}" for why, together in names.items() if why)


def figures(rows: Sequence[Row], found: Sequence[dict[str, Claim]]) -> list[dict[str, Any]]:
    """Return one row for each part that was compared; the value is its place in ``CLAIMS``, 0 for the same."""
    return [
        {
            "name": f"{row.name}: {name}",
            "value": CLAIMS.index(found[index][name]),
            "unit": "closeness",
            "against": row.settings,
            "ratio": None,
            "goal": CLAIMS.index(claim),
            "met": CLAIMS.index(found[index][name]) <= CLAIMS.index(claim),
        }
        for index, row in enumerate(rows)
        for name, claim in row.claims.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
