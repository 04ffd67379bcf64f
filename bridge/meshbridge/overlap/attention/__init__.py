"""Attention over gathered keys: rings, their gradients, and what scales a softmax."""
