"""`meshbridge compare`: our partitioner beside XLA's two, each in its own process."""
