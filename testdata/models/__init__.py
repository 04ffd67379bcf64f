"""Models of other people's libraries in tiny random configurations: what a partitioner meets that its authors did not write."""
