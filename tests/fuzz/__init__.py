"""Bad input by the thousand: every command answers a mutated program by success or by a diagnostic, in time.

    python -m tests.fuzz --count 500 testdata tests/lit/converters     # what is found is kept under build/fuzz

`mutators` makes bad input out of good, as text and as bytes; `runner` runs a command on it in a forked child, which may crash,
hang or take too much memory, and judges how it ended; `sources` collects the programs. For another kind of input add a mutator to
MUTATORS, a way to read it to `sources`, or a command to COMMANDS: a command is the arguments of `meshbridge`, with {} for the
input.
"""
