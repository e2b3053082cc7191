"""Where functions change from a series to their closed form; made by ``tools/switch_points.py``."""

from __future__ import annotations

import torch

from gradwright.stable.singularity import Switch, Switches

SWITCHES: dict[str, Switches] = {
    "sinc": {
        torch.float64: (Switch(3.35276e-09, 1), Switch(0.267572, 8), Switch(0.0795495, 6), Switch(0.267572, 8)),
        torch.float32: (Switch(0.000109863, 1), Switch(0.267572, 5), Switch(0.0729472, 4), Switch(0.267572, 5)),
    },
    "sin_over_x": {
        torch.float64: (Switch(1.11759e-08, 1), Switch(0.630672, 8), Switch(0.222976, 6), Switch(0.630672, 8)),
        torch.float32: (Switch(0.000366211, 1), Switch(0.75, 5), Switch(0.1875, 3), Switch(0.75, 5)),
    },
    "one_minus_cos_over_x2": {
        torch.float64: (Switch(2.23517e-08, 1), Switch(1.78381, 11), Switch(1.06066, 9), Switch(1.5, 10)),
        torch.float32: (Switch(0.000366211, 1), Switch(1.63576, 6), Switch(0.817881, 5), Switch(1.63576, 6)),
    },
    "x_minus_sin_over_x3": {
        torch.float64: (Switch(0.681567, 8), Switch(2.97302, 13), Switch(1.92776, 11), Switch(2.97302, 13)),
        torch.float32: (Switch(0.681567, 4), Switch(3.53553, 8), Switch(1.92776, 7), Switch(2.72627, 8)),
    },
    "x_over_tan": {
        torch.float64: (Switch(1.11759e-08, 1), Switch(0.53033, 12), Switch(0.20447, 8), Switch(0.687753, 15)),
        torch.float32: (Switch(0.000183105, 1), Switch(0.687753, 7), Switch(0.171938, 4), Switch(0.687753, 8)),
    },
    "tanh_over_x": {
        torch.float64: (Switch(7.45058e-09, 1), Switch(0.594604, 22), Switch(0.272627, 13), Switch(0.458502, 19)),
        torch.float32: (Switch(0.000244141, 1), Switch(0.707107, 13), Switch(0.229251, 6), Switch(0.545254, 12)),
    },
    "sinh_over_x": {
        torch.float64: (Switch(1.49012e-08, 1), Switch(0.917004, 9), Switch(0.32421, 7), Switch(0.917004, 9)),
        torch.float32: (Switch(0.000244141, 1), Switch(0.771105, 5), Switch(0.353553, 4), Switch(0.771105, 5)),
    },
    "expm1_over_x": {
        torch.float64: (Switch(1.11022e-16, 1), Switch(0.297302, 13), Switch(0.272627, 13), Switch(0.545254, 15)),
        torch.float32: (Switch(5.96046e-08, 1), Switch(0.32421, 7), Switch(0.229251, 7), Switch(0.545254, 9)),
    },
    "log1p_over_x": {
        torch.float64: (Switch(5.55112e-17, 1), Switch(0.385553, 41), Switch(0.210224, 27), Switch(0.385553, 49)),
        torch.float32: (Switch(2.98023e-08, 1), Switch(0.353553, 19), Switch(0.192776, 13), Switch(0.353553, 24)),
    },
    "log_over_x_minus_1": {
        torch.float64: (Switch(5.55112e-17, 1), Switch(0.353553, 38), Switch(0.192776, 26), Switch(0.353553, 45)),
        torch.float32: (Switch(2.98023e-08, 1), Switch(0.385553, 20), Switch(0.176777, 13), Switch(0.385553, 27)),
    },
    "acos_squared": {
        torch.float64: (Switch(2.22045e-16, 2), Switch(1.11022e-16, 1), Switch(0.0220971, 9), Switch(0.176777, 18)),
        torch.float32: (Switch(1.19209e-07, 2), Switch(5.96046e-08, 1), Switch(0.0202631, 5), Switch(0.162105, 9)),
    },
    "acosh_squared": {
        torch.float64: (Switch(2.22045e-16, 2), Switch(1.11022e-16, 1), Switch(0.024097, 9), Switch(0.210224, 19)),
        torch.float32: (Switch(1.19209e-07, 2), Switch(5.96046e-08, 1), Switch(0.0371627, 5), Switch(0.32421, 12)),
    },
}
