"""Writing custom gradients: rules attached to plain functions, and everything that follows from them."""

from gradwright import torch_compat as torch_compat  # before all others, since it says so when PyTorch is missing
