"""Reading and writing programs: file formats, sharding notations, and the pass that turns shardings into annotations."""
