// RUN: mesh-opt %s --mesh-specialize=sizes=md=2x2 --verify-diagnostics -o /dev/null

// expected-error @+1 {{has size 4 along axis 0, but is given 2}}
mesh.mesh @md(shape = 4x?)
