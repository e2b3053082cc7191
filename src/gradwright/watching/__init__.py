"""Watches a running program: what its custom gradients are called with is kept, and checked on that."""
