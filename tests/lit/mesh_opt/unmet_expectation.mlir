// RUN: not mesh-opt %s --verify-diagnostics 2>&1 | filecheck %s

// The command must fail where a diagnostic does not come; the comment below is one that it has to find.
func.func @good() {
  // CHECK: unmet_expectation.mlir: error: expected error at line 6 was not produced: nothing is wrong here
  return // expected-error {{nothing is wrong here}}
}
