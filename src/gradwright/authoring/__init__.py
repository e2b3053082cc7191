"""Writing custom gradients: rules attached to plain functions, and everything that follows from them."""
