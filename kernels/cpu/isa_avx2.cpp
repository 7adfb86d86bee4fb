// The operations, compiled for AVX2 with FMA.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <utility>

#include "operations.h"

#define CITYBUS_ISA avx2
#include "simd_avx2.h"

namespace citybus {
namespace avx2 {

constexpr int kTileRows = 4;  // rows of a product whose sums are kept in registers
constexpr int kTilePanels = 1;
constexpr int kAttentionRows = 4;
constexpr int kAttentionPanels = 1;
constexpr int kScoreGroups = 1;

}  // namespace avx2
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

const Operations& avx2_operations() {
  using namespace avx2;
  static constexpr Operations operations{multiply_product, multiply_likeliest_product, multiply_add_product,
                                         multiply_gate_product, multiply_rotate_product, rms_norm, attend, sample};
  return operations;
}

}  // namespace citybus
