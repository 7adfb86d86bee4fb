// Attention of up to 16 rows over a run of keys, by tiles.
namespace citybus {
namespace CITYBUS_ISA {

// 0 to 3 take sums of `rows` rows. 4 times 5 is for 16 numbers of a row, 6 times 7 for 32.
inline Tiles attention_tiles(int64_t rows) {
  uint8_t count = uint8_t(rows);
  const Tiles::Shape shapes[8] = {{count, 64}, {count, 64}, {count, 64}, {count, 64},
                                  {count, 32}, {8, 64},     {count, 64}, {16, 64}};
  return Tiles(shapes);
}

// How often a run's rows fetch what is ahead, at least: once for each product of keys or values.
inline int64_t fetches(int64_t head_dim, int64_t groups) {
  return std::max<int64_t>(1, (head_dim / 32 + head_dim / 64 * 4) * groups);
}

// Scores [rows, 64] of four groups of keys.
inline void score_four(const bf16* queries, const bf16* const* keys, int64_t head_dim, RunAhead& ahead, float* scores) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  int64_t i = 0;
  for (; i + 32 <= head_dim; i += 32) {
    _tile_loadd(6, queries + i, head_dim * 2);
    _tile_loadd(7, keys[0] + i * kGroupTokens, kGroupTokens * 4);
    ahead.fetch();
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(7, keys[1] + i * kGroupTokens, kGroupTokens * 4);
    ahead.fetch();
    _tile_dpbf16ps(1, 6, 7);
    _tile_loadd(7, keys[2] + i * kGroupTokens, kGroupTokens * 4);
    ahead.fetch();
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(7, keys[3] + i * kGroupTokens, kGroupTokens * 4);
    ahead.fetch();
    _tile_dpbf16ps(3, 6, 7);
  }
  if (i < head_dim) {
    _tile_loadd(4, queries + i, head_dim * 2);
    _tile_loadd(5, keys[0] + i * kGroupTokens, kGroupTokens * 4);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, keys[1] + i * kGroupTokens, kGroupTokens * 4);
    _tile_dpbf16ps(1, 4, 5);
    _tile_loadd(5, keys[2] + i * kGroupTokens, kGroupTokens * 4);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(5, keys[3] + i * kGroupTokens, kGroupTokens * 4);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, scores, kRun * 4);
  _tile_stored(1, scores + kGroupTokens, kRun * 4);
  _tile_stored(2, scores + 2 * kGroupTokens, kRun * 4);
  _tile_stored(3, scores + 3 * kGroupTokens, kRun * 4);
}

// Four panels of the output, from `column` on, plus weights times values.
inline void accumulate_four(const Weights& weights, const Run& run, RunAhead& ahead, int64_t head_dim, int64_t column,
                            float* output) {
  float* to = output + column;
  _tile_loadd(0, to, head_dim * 4);
  _tile_loadd(1, to + kLanes, head_dim * 4);
  _tile_loadd(2, to + 2 * kLanes, head_dim * 4);
  _tile_loadd(3, to + 3 * kLanes, head_dim * 4);
  for (int g = 0; g < run.groups; ++g) {
    const bf16* values = run.values[g] + column * 2;
    _tile_loadd(4, weights.rounded[0] + g * kGroupTokens, kRun * 2);
    _tile_loadd(5, values, head_dim * 4);
    ahead.fetch();
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, values + 2 * kLanes, head_dim * 4);
    ahead.fetch();
    _tile_dpbf16ps(1, 4, 5);
    _tile_loadd(5, values + 4 * kLanes, head_dim * 4);
    ahead.fetch();
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(5, values + 6 * kLanes, head_dim * 4);
    ahead.fetch();
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, to, head_dim * 4);
  _tile_stored(1, to + kLanes, head_dim * 4);
  _tile_stored(2, to + 2 * kLanes, head_dim * 4);
  _tile_stored(3, to + 3 * kLanes, head_dim * 4);
}

// The same for one panel.
inline void accumulate_one(const Weights& weights, const Run& run, int64_t head_dim, int64_t column, float* output) {
  _tile_loadd(0, output + column, head_dim * 4);
  for (int g = 0; g < run.groups; ++g) {
    _tile_loadd(4, weights.rounded[0] + g * kGroupTokens, kRun * 2);
    _tile_loadd(5, run.values[g] + column * 2, head_dim * 4);
    _tile_dpbf16ps(0, 4, 5);
  }
  _tile_stored(0, output + column, head_dim * 4);
}

// `count` rows of a task, at most kAttentionRows, over one run.
inline void attend_some(const Rows& rows, const Run& run, RunAhead& ahead, int64_t first, int64_t count) {
  int64_t head_dim = rows.attention.kv.head_dim;
  Tiles tiles = attention_tiles(count);
  Weights weights;
  for (int group = 0; group < run.groups; group += 4) {
    const bf16* keys[4];
    for (int g = 0; g < 4; ++g) keys[g] = run.keys[std::min(group + g, run.groups - 1)];
    score_four(rows.queries + first * head_dim, keys, head_dim, ahead, weights.scores[0] + group * kGroupTokens);
  }
  soften_rows(rows, run, first, count, weights);
  float* output = rows.output + first * head_dim;
  for (int64_t row = 0; row < count; ++row)
    for (int64_t i = 0; i < head_dim; i += kLanes)
      store(output + row * head_dim + i, multiply(load(output + row * head_dim + i), fill(weights.decay[row])));
  int64_t column = 0;
  for (; column + 4 * kLanes <= head_dim; column += 4 * kLanes)
    accumulate_four(weights, run, ahead, head_dim, column, output);
  for (; column < head_dim; column += kLanes) accumulate_one(weights, run, head_dim, column, output);
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
