// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

// expected-error @+1 {{rank of mesh is expected to be a positive integer}}
mesh.mesh @m(shape = [])

// -----

// expected-error @+1 {{dimension size of a mesh is expected to be non-negative or dynamic}}
mesh.mesh @m(shape = -1)

// -----

// expected-error @+1 {{dimension size of a mesh is expected to be positive or dynamic}}
mesh.mesh @m(shape = 0x4)

// -----

// expected-error @+1 {{expected a shape such as 2x?x4, or [] for rank 0, found ')'}}
mesh.mesh @m(shape = )
