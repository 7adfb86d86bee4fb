// The operations, compiled for AVX-512 with BF16.
#include <cmath>
#include <cstring>
#include <utility>

#include "operations.h"
#include "simd_avx512.h"

#define CITYBUS_ISA avx512
#include "exponential.h"
#include "product.h"
#include "row_operations.h"
#include "attention.h"

namespace citybus {

const Operations& avx512_operations() {
  using namespace avx512;
  static constexpr Operations operations{
      "avx512_bf16", multiply_product, multiply_add_product, multiply_gate_product, rms_norm, rotate_and_store, attend};
  return operations;
}

}  // namespace citybus
