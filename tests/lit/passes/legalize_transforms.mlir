// RUN: mesh-opt %s --legalize | filecheck %s

// CHECK-LABEL: func.func @main
// CHECK:         stablehlo.fft %arg0, type = {{ *}}FFT, length = [16] : (tensor<8x16xcomplex<f32>>)
// CHECK-NEXT:    stablehlo.transpose {{.*}} dims = [1, 0]
// CHECK-NEXT:    stablehlo.fft {{.*}} length = [8] : (tensor<16x8xcomplex<f32>>)
// CHECK-NEXT:    stablehlo.transpose {{.*}} dims = [1, 0]
// CHECK-NOT:     stablehlo.fft
func.func @main(%x: tensor<8x16xcomplex<f32>>) -> tensor<8x16xcomplex<f32>> {
  %0 = stablehlo.fft %x, type = FFT, length = [8, 16] : (tensor<8x16xcomplex<f32>>) -> tensor<8x16xcomplex<f32>>
  return %0 : tensor<8x16xcomplex<f32>>
}
