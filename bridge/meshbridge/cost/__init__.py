"""What a program costs one device: wire bytes, FLOPs, memory."""
