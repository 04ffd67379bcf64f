// RUN: mesh-opt %s --mesh-specialize=md=4x2,other=?x8 | filecheck %s

// CHECK: mesh.mesh @md(shape = 4x2)
mesh.mesh @md(shape = 4x?)
// CHECK: mesh.mesh @other(shape = ?x8)
mesh.mesh @other(shape = ?x?)
// CHECK: mesh.mesh @fixed(shape = 3)
mesh.mesh @fixed(shape = 3)
