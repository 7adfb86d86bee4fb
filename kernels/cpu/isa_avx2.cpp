// The operations, compiled for AVX2 with FMA.
#include <cmath>
#include <cstring>
#include <utility>

#include "operations.h"
#include "simd_avx2.h"

#define CITYBUS_ISA avx2
#include "exponential.h"
#include "product.h"
#include "row_operations.h"
#include "attention.h"

namespace citybus {

const Operations& avx2_operations() {
  using namespace avx2;
  static constexpr Operations operations{
      "avx2", multiply_product, multiply_add_product, multiply_gate_product, rms_norm, rotate_and_store, attend};
  return operations;
}

}  // namespace citybus
