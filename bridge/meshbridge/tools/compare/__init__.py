"""`meshbridge compare`: our partitioner beside XLA's two, each in a process of its own."""
