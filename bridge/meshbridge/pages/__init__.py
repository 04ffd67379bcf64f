"""HTML pages of reports: one file that needs no network, and the output of a notebook's cell."""
