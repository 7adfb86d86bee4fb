// Attention of a few rows over a run of keys, by vectors.
namespace citybus {
namespace CITYBUS_ISA {

// Scores [R, G * 16] of `R` rows and the G groups of keys from `group` on. Meanwhile the keys of the next groups and
// the values of these are fetched: blocks lie anywhere, so the processor cannot foresee them.
template <int R, int G>
void score(const bf16* queries, const Run& run, int group, int64_t head_dim, Weights& weights) {
  const bf16* const* keys = run.keys + group;
  const bf16* const* values = run.values + group;
  const bf16* const* next = group + 2 * G <= run.groups ? keys + G : keys;
  Lanes sums[R][G];
  for (int r = 0; r < R; ++r)
    for (int g = 0; g < G; ++g) sums[r][g] = fill(0.0f);
  for (int64_t i = 0; i < head_dim; i += 2) {
    PairVector pairs[G];
    for (int g = 0; g < G; ++g) {
      pairs[g] = load_pairs(keys[g] + i * kGroupTokens);
      _mm_prefetch(reinterpret_cast<const char*>(next[g] + i * kGroupTokens), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(values[g] + i * kGroupTokens), _MM_HINT_T0);
    }
    for (int r = 0; r < R; ++r) {
      PairScalar query = broadcast_pair(queries + r * head_dim + i);
      for (int g = 0; g < G; ++g) sums[r][g] = dot(sums[r][g], pairs[g], query);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int g = 0; g < G; ++g) store(weights.scores[r] + (group + g) * kGroupTokens, sums[r][g]);
}

// Output of R rows, P panels of 16 numbers: what it was times its decay, plus weights times values.
template <int R, int P>
void accumulate(const Weights& weights, const Run& run, int64_t head_dim, int64_t column, float* output) {
  Lanes sums[R][P];
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p)
      sums[r][p] = multiply(load(output + r * head_dim + p * kLanes), fill(weights.decay[r]));
  for (int g = 0; g < run.groups; ++g) {
    const bf16* values = run.values[g] + column * 2;
    for (int token = 0; token < kGroupTokens; token += 2, values += head_dim * 2) {
      PairVector pairs[P];
      for (int p = 0; p < P; ++p) pairs[p] = load_pairs(values + p * kLanes * 2);
      for (int r = 0; r < R; ++r) {
        PairScalar weight = broadcast_pair(weights.rounded[r] + g * kGroupTokens + token);
        for (int p = 0; p < P; ++p) sums[r][p] = dot(sums[r][p], pairs[p], weight);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) store(output + r * head_dim + p * kLanes, sums[r][p]);
}

// Rows `first` to `first + R - 1` of a task over one run.
template <int R>
void attend_rows(const Rows& rows, const Run& run, int64_t first) {
  int64_t head_dim = rows.attention.kv.head_dim;
  Weights weights;
  const bf16* queries = rows.queries + first * head_dim;
  int group = 0;
  for (; group + kScoreGroups <= run.groups; group += kScoreGroups)
    score<R, kScoreGroups>(queries, run, group, head_dim, weights);
  for (; group < run.groups; ++group) score<R, 1>(queries, run, group, head_dim, weights);
  soften_rows(rows, run, first, R, weights);
  float* output = rows.output + first * head_dim;
  int64_t column = 0;
  for (; column + kAttentionPanels * kLanes <= head_dim; column += kAttentionPanels * kLanes)
    accumulate<R, kAttentionPanels>(weights, run, head_dim, column, output + column);
  for (; column < head_dim; column += kLanes) accumulate<R, 1>(weights, run, head_dim, column, output + column);
}

using AttendRows = void (*)(const Rows&, const Run&, int64_t);

template <int... R>
AttendRows attend_rows_of(int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr AttendRows table[] = {attend_rows<R + 1>...};
  return table[rows - 1];
}

// What is ahead is not fetched: `score` fetches by itself.
inline int64_t fetches(int64_t, int64_t) { return 1; }

// `count` rows of a task, at most kAttentionRows, over one run.
inline void attend_some(const Rows& rows, const Run& run, RunAhead&, int64_t first, int64_t count) {
  attend_rows_of(count, std::make_integer_sequence<int, kAttentionRows>())(rows, run, first);
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
