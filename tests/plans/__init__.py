"""Golden plans: what is planned for the programs of `testdata`, as hashes and figures that `make plans` compares."""
