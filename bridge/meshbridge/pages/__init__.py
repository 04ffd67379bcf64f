"""Pages: a report as one HTML file that needs no network, and as a notebook shows it."""
