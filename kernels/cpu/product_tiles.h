// Sums of matrix products by tiles of 16 rows: a sum runs over the pairs of its row in order, 16 pairs at a time,
// however many rows there are. Rows beyond the last one are computed with the others, and dropped.
namespace citybus {
namespace CITYBUS_ISA {

constexpr int kBlockRows = 2 * kTileRows;
constexpr int64_t kStep = kTilePairs * kColumns * 2;  // numbers of a group that a step takes
constexpr int64_t kStepLines = kStep / 32;
constexpr Tiles::Shape kProductTiles[8] = {{16, 64}, {16, 64}, {16, 64}, {16, 64},
                                           {16, 64}, {16, 64}, {16, 64}, {16, 64}};

// Lines of 64 bytes that are fetched at every step of a block, a quarter of them at a time: a core that asks for many at
// once has its own tiles wait for them.
class Ahead {
 public:
  Ahead(const bf16* from, int64_t lines) : from_(from), lines_(lines), quarter_((lines + 3) / 4) {}

  void fetch(int64_t quarter) const {
    for (int64_t line = quarter * quarter_; line < std::min((quarter + 1) * quarter_, lines_); ++line)
      _mm_prefetch(reinterpret_cast<const char*>(from_) + line * 64, _MM_HINT_T1);
  }
  void next_step() { from_ += kStep; }

 private:
  const bf16* from_;
  int64_t lines_, quarter_;
};

// Sums [16 or 32, kColumns] of a group's columns.
template <bool Both>
void sum_block(const bf16* inputs, int64_t stride, const bf16* weight, int64_t pairs, Ahead ahead, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  if (Both) _tile_zero(2);
  if (Both) _tile_zero(3);
  for (int64_t pair = 0; pair < pairs; pair += kTilePairs, weight += kStep, inputs += 2 * kTilePairs) {
    _tile_loadd(6, weight, kColumns * 4);
    ahead.fetch(0);
    _tile_loadd(7, weight + kLanes * 2, kColumns * 4);
    ahead.fetch(1);
    _tile_loadd(4, inputs, stride * 2);
    _tile_dpbf16ps(0, 4, 6);
    ahead.fetch(2);
    _tile_dpbf16ps(1, 4, 7);
    ahead.fetch(3);
    ahead.next_step();
    if (Both) {
      _tile_loadd(5, inputs + kTileRows * stride, stride * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kColumns * 4);
  _tile_stored(1, sums + kLanes, kColumns * 4);
  if (Both) _tile_stored(2, sums + kTileRows * kColumns, kColumns * 4);
  if (Both) _tile_stored(3, sums + kTileRows * kColumns + kLanes, kColumns * 4);
}

// Calls `finish(row, sums)` for every row with its kColumns sums of `group`. Meanwhile the group that this thread takes
// next, as a rule, is fetched: evenly, as memory is slower than the products of few rows.
template <typename Finish>
void for_each_row(const Product& product, int64_t group, Finish finish) {
  Tiles tiles(kProductTiles);
  alignas(64) float sums[kBlockRows * kColumns];
  int64_t blocks = (product.rows + kBlockRows - 1) / kBlockRows, lines = (kStepLines + blocks - 1) / blocks;
  for (int64_t block = 0; block < blocks; ++block) {
    int64_t first = block * kBlockRows, rows = std::min<int64_t>(kBlockRows, product.rows - first);
    int64_t line = std::min(block * lines, kStepLines);
    Ahead ahead{product.weight.group(group + product.groups_ahead) + line * 32, std::min(lines, kStepLines - line)};
    auto sum = rows > kTileRows ? sum_block<true> : sum_block<false>;
    sum(product.inputs + first * product.input_stride, product.input_stride, product.weight.group(group),
        product.weight.pairs, ahead, sums);
    for (int64_t row = 0; row < rows; ++row) finish(first + row, sums + row * kColumns);
  }
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
