// Sums of matrix products by vectors: a sum runs over the pairs of its row in order, however many rows there are.
namespace citybus {
namespace CITYBUS_ISA {

constexpr int64_t kAhead = 4096;  // bytes of the weight that are fetched ahead of their use

// Sums [R, kColumns] of `R` rows and P panels of a group; `weight` and `sums` begin at the first panel.
template <int R, int P>
void sum_tile(const bf16* inputs, int64_t stride, const bf16* weight, int64_t pairs, float* sums) {
  Lanes tile[R][P];
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) tile[r][p] = fill(0.0f);
  for (int64_t pair = 0; pair < pairs; ++pair, weight += kColumns * 2, inputs += 2) {
    PairVector columns[P];
    for (int p = 0; p < P; ++p) {
      columns[p] = load_pairs(weight + p * kLanes * 2);
      _mm_prefetch(reinterpret_cast<const char*>(weight + p * kLanes * 2) + kAhead, _MM_HINT_T0);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      PairScalar input = broadcast_pair(inputs + r * stride);
      for (int p = 0; p < P; ++p) tile[r][p] = dot(tile[r][p], columns[p], input);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) store(sums + r * kColumns + p * kLanes, tile[r][p]);
}

using SumTile = void (*)(const bf16*, int64_t, const bf16*, int64_t, float*);

template <int... R>
SumTile sum_tile_of(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr SumTile table[] = {sum_tile<R + 1, kTilePanels>...};
  return table[rows - 1];
}

// Calls `finish(row, sums)` for every row with its kColumns sums of `group`.
template <typename Finish>
void for_each_row(const Product& product, int64_t group, Finish finish) {
  float sums[kTileRows * kColumns];
  int64_t tiles = (product.rows + kTileRows - 1) / kTileRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    int64_t first = product.rows * tile / tiles, rows = product.rows * (tile + 1) / tiles - first;
    SumTile sum = sum_tile_of(rows, std::make_integer_sequence<int, kTileRows>());
    for (int panel = 0; panel < kPanels; panel += kTilePanels)
      sum(product.inputs + first * product.input_stride, product.input_stride,
          product.weight.group(group) + panel * kLanes * 2, product.weight.pairs, sums + panel * kLanes);
    for (int64_t row = 0; row < rows; ++row) finish(first + row, sums + row * kColumns);
  }
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
