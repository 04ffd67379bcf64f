// RUN: mesh-opt %s --split-input-file --verify-diagnostics -o /dev/null

// expected-error @+1 {{rank of mesh is expected to be a positive integer}}
mesh.mesh @m(shape = [])

// -----

// expected-error @+1 {{custom op 'mesh.mesh' Failed parsing dimension list. Did you mean an empty list? It must be denoted by "[]".}}
mesh.mesh @m(shape = -1)

// -----

// expected-error @+1 {{dimension size of a mesh is expected to be positive or dynamic}}
mesh.mesh @m(shape = 0x4)

// -----

// expected-error @+1 {{custom op 'mesh.mesh' Failed parsing dimension list.}}
mesh.mesh @m(shape = )
