"""Passes: IR -> IR, one file per pass, each runnable alone by name. `base` says what a pass is."""
