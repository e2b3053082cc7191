"""Code that autograd cannot see, as differentiable functions of tensors."""
