"""Reading and writing programs: file formats, sharding notations, and the pass that imports shardings as annotations."""
