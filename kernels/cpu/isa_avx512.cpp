// The operations, compiled for AVX-512 with BF16.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <utility>

#include "operations.h"

#define CITYBUS_ISA avx512
#include "simd_avx512.h"

namespace citybus {
namespace avx512 {

constexpr int kTileRows = 12;  // rows of a product whose sums are kept in registers
constexpr int kTilePanels = 2;
constexpr int kAttentionRows = 6;
constexpr int kAttentionPanels = 4;
constexpr int kScoreGroups = 2;

}  // namespace avx512
}  // namespace citybus

#include "exponential.h"
#include "product_rows.h"
#include "rotation.h"
#include "product.h"
#include "likeliest.h"
#include "row_operations.h"
#include "attention_softmax.h"
#include "attention_rows.h"
#include "attention.h"
#include "sampling_cut.h"
#include "sampling.h"

namespace citybus {

const Operations& avx512_operations() {
  using namespace avx512;
  static constexpr Operations operations{multiply_product, multiply_likeliest_product, multiply_add_product,
                                         multiply_gate_product, multiply_rotate_product, rms_norm, attend, sample};
  return operations;
}

}  // namespace citybus
