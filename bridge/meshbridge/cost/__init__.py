"""What a program costs one device: wire bytes, FLOPs, memory, and the seconds of a collective and of an op on a machine."""
