"""Products divided into pieces, each beside a collective."""
