// RUN: mesh-opt %s | filecheck %s --check-prefix=PRETTY
// RUN: mesh-opt %s --mlir-print-op-generic | filecheck %s --check-prefix=GENERIC
// RUN: mesh-opt %s --mlir-print-debuginfo | filecheck %s --check-prefix=DEBUG
// RUN: mesh-opt %s --mlir-elide-elementsattrs-if-larger=2 | filecheck %s --check-prefix=ELIDE
// RUN: mesh-opt %s --emit-bytecode | mesh-opt | filecheck %s --check-prefix=PRETTY
// RUN: mesh-opt %s --emit-spelling=portable | mesh-opt | filecheck %s --check-prefix=PRETTY
// RUN: mesh-opt < %s | filecheck %s --check-prefix=PRETTY
// RUN: not mesh-opt %s --emit-spelling=llvm21 --mlir-print-op-generic 2>&1 | filecheck %s --check-prefix=FORM

// FORM: error: --mlir-print-op-generic has no effect with --emit-spelling=llvm21, which has one form only

// PRETTY:  stablehlo.constant dense<[1, 2, 3]>
// GENERIC: "stablehlo.constant"() <{value = dense<[1, 2, 3]> : tensor<3xi32>}>
// DEBUG:   loc(
// ELIDE:   stablehlo.constant dense_resource<__elided__>
func.func @main() -> tensor<3xi32> {
  %0 = stablehlo.constant dense<[1, 2, 3]> : tensor<3xi32>
  return %0 : tensor<3xi32>
}
