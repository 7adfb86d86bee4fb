// The operations, compiled for AMX with BF16, and AVX-512 for what is no product.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "amx.h"
#include "operations.h"

#define CITYBUS_ISA amx
#include "simd_avx512.h"

namespace citybus {
namespace amx {

constexpr int kTileRows = 16;
constexpr int kAttentionRows = 16;

}  // namespace amx
}  // namespace citybus

#include "exponential.h"
#include "product_tiles.h"
#include "rotation.h"
#include "product.h"
#include "likeliest.h"
#include "row_operations.h"
#include "attention_softmax.h"
#include "attention_tiles.h"
#include "attention.h"
#include "sampling_cut.h"
#include "sampling.h"

namespace citybus {

const Operations& amx_operations() {
  using namespace amx;
  static constexpr Operations operations{multiply_product, multiply_likeliest_product, multiply_add_product,
                                         multiply_gate_product, multiply_rotate_product, rms_norm, attend, sample};
  return operations;
}

}  // namespace citybus
