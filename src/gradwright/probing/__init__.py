"""What the installed torch gets wrong, measured: probes against high-precision truth, and what ``gw.stable`` returns."""
