// Paged attention, softmax taken along the way over runs of keys that begin at multiples of kRun: the sums of a row do
// not depend on the rows beside it, nor on whether it is computed in a prefill or as a decode. With a window, groups of
// 16 keys of which no row of a task sees one are not read; runs begin where they do without.
namespace citybus {
namespace CITYBUS_ISA {

constexpr int kRun = 128;  // keys
constexpr int kRunGroups = kRun / kGroupTokens;

// Keys `begin` to `end` - 1.
struct Span {
  int64_t begin, end;
};

// Rows of a task, token by token and head by head.
struct Rows {
  const Attention& attention;
  const AttentionTask& task;
  int64_t heads_per_kv_head;
  int64_t end;    // keys that the last row sees
  float* output;  // [rows, D], not yet divided by `sum`
  float* peak;    // [rows]
  float* sum;     // [rows]
  bf16* tail;     // values of the last group, zero from `end` on: what is beyond may be NaN

  int64_t count() const { return task.count * heads_per_kv_head; }
  Span seen(int64_t row) const {
    int64_t visible = end - task.count + 1 + row / heads_per_kv_head;
    return {attention.window && attention.window < visible ? visible - attention.window : 0, visible};
  }
  int64_t token(int64_t row) const {
    return attention.query_starts[task.sequence] + task.first + row / heads_per_kv_head;
  }
  int64_t head(int64_t row) const { return task.kv_head * heads_per_kv_head + row % heads_per_kv_head; }

  // Where the keys, and the values, of group `index` of the sequence are.
  int64_t offset(int64_t index) const {
    int64_t block = attention.block_tables[task.sequence * attention.table_width + index / attention.block_groups];
    return attention.kv.offset(block * attention.block_groups + index % attention.block_groups, task.kv_head);
  }
};

// Keys and values of up to kRun keys from `first` on, a multiple of 16.
struct Run {
  int64_t first;
  int groups;
  const bf16* keys[kRunGroups];
  const bf16* values[kRunGroups];
};

// The weights of R rows for a run, of which the values before are to be scaled by `decay`.
struct Weights {
  float scores[kAttentionRows][kRun];
  bf16 rounded[kAttentionRows][kRun];
  float decay[kAttentionRows];
};

// Scores [R, G * 16] of `R` rows and the G groups of keys from `group` on. Meanwhile the keys of the next groups and
// the values of these are fetched: blocks lie anywhere, so the processor cannot foresee them.
template <int R, int G>
void score(const bf16* const* queries, const Run& run, int group, int64_t head_dim, Weights& weights) {
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
      PairScalar query = broadcast_pair(queries[r] + i);
      for (int g = 0; g < G; ++g) sums[r][g] = dot(sums[r][g], pairs[g], query);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int g = 0; g < G; ++g) store(weights.scores[r] + (group + g) * kGroupTokens, sums[r][g]);
}

// Of the 16 keys from `key` of a run on, lanes of those that a row sees, and `other` in the rest.
template <bool Limited>
Lanes keep_seen(Lanes x, Span seen, int64_t key, float other) {
  int64_t end = seen.end - key, begin = seen.begin - key;
  if (end < kGroupTokens) x = keep_first(x, end > 0 ? int(end) : 0, fill(other));
  if (Limited && begin > 0) x = keep_first(fill(other), begin < kGroupTokens ? int(begin) : kGroupTokens, x);
  return x;
}

// Scores of a row become weights, relative to its peak so far. `seen` counts from the run's first key. Limited: by a
// window or a soft cap.
template <bool Limited>
void soften(float* scores, bf16* rounded, int groups, Span seen, float scale, float cap, float& peak, float& sum,
            float& decay) {
  if (Limited && seen.begin >= groups * kGroupTokens) {
    std::memset(rounded, 0, size_t(groups) * kGroupTokens * sizeof(bf16));
    decay = 1.0f;
    return;
  }
  Lanes peaks = fill(-INFINITY);
  for (int g = 0; g < groups; ++g) {
    Lanes x = multiply(load(scores + g * kGroupTokens), fill(scale));
    if (Limited && cap > 0) x = soft_capped(x, cap);
    x = keep_seen<Limited>(x, seen, g * kGroupTokens, -INFINITY);
    store(scores + g * kGroupTokens, x);
    peaks = maximum(peaks, x);
  }
  float before = peak, highest = largest(peaks);
  peak = highest > before ? highest : before;
  Lanes sums = fill(0.0f);
  for (int g = 0; g < groups; ++g) {
    Lanes x = exponential(subtract(load(scores + g * kGroupTokens), fill(peak)));
    x = keep_seen<Limited>(x, seen, g * kGroupTokens, 0.0f);
    store_bf16(rounded + g * kGroupTokens, x);
    sums = add(sums, load_bf16(rounded + g * kGroupTokens));
  }
  alignas(64) float factor[kLanes];
  store(factor, exponential(fill(before - peak)));
  decay = factor[0];
  sum = sum * decay + total(sums);
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
  const Attention& attention = rows.attention;
  int64_t head_dim = attention.kv.head_dim;
  if (rows.seen(first + R - 1).end <= run.first) return;
  if (rows.seen(first).begin >= run.first + run.groups * kGroupTokens) return;
  Weights weights;
  const bf16* queries[R];
  for (int r = 0; r < R; ++r)
    queries[r] = attention.queries + (rows.token(first + r) * attention.heads + rows.head(first + r)) * head_dim;
  int group = 0;
  for (; group + kScoreGroups <= run.groups; group += kScoreGroups)
    score<R, kScoreGroups>(queries, run, group, head_dim, weights);
  for (; group < run.groups; ++group) score<R, 1>(queries, run, group, head_dim, weights);
  float scale = 1.0f / std::sqrt(float(head_dim));
  auto soften_row = attention.window || attention.soft_cap > 0 ? soften<true> : soften<false>;
  for (int r = 0; r < R; ++r) {
    Span seen = rows.seen(first + r);
    soften_row(weights.scores[r], weights.rounded[r], run.groups, {seen.begin - run.first, seen.end - run.first}, scale,
               attention.soft_cap, rows.peak[first + r], rows.sum[first + r], weights.decay[r]);
  }
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

// Values of the last group as far as they were ever written.
inline void copy_tail(const bf16* values, int64_t tokens, int64_t head_dim, bf16* tail) {
  for (int64_t i = 0; i < kGroupTokens / 2 * head_dim; ++i) {
    int64_t token = i / head_dim * 2;
    tail[2 * i] = token < tokens ? values[2 * i] : 0;
    tail[2 * i + 1] = token + 1 < tokens ? values[2 * i + 1] : 0;
  }
}

// The run that `first` is in, from there on.
inline Run make_run(const Rows& rows, int64_t first) {
  int64_t end = first / kRun * kRun + kRun;
  Run run{first, 0, {}, {}};
  for (int64_t key = first; key < rows.end && key < end; key += kGroupTokens, ++run.groups) {
    int64_t offset = rows.offset(key / kGroupTokens);
    run.keys[run.groups] = rows.attention.keys + offset;
    run.values[run.groups] = rows.attention.values + offset;
    if (rows.end - key < kGroupTokens) {
      copy_tail(run.values[run.groups], rows.end - key, rows.attention.kv.head_dim, rows.tail);
      run.values[run.groups] = rows.tail;
    }
  }
  return run;
}

inline void write_output(const Rows& rows) {
  const Attention& attention = rows.attention;
  int64_t head_dim = attention.kv.head_dim;
  for (int64_t row = 0; row < rows.count(); ++row) {
    bf16* to = attention.output + rows.token(row) * attention.output_stride + rows.head(row) * head_dim;
    Lanes sum = fill(rows.sum[row]);
    for (int64_t i = 0; i < head_dim; i += kLanes)
      store_bf16(to + i, divide(load(rows.output + row * head_dim + i), sum));
  }
}

void attend(const Attention& attention, const AttentionTask& task, float* scratch) {
  int64_t group = attention.heads / attention.kv.kv_heads, head_dim = attention.kv.head_dim;
  int64_t count = task.count * group;
  int64_t tokens = attention.query_starts[task.sequence + 1] - attention.query_starts[task.sequence];
  int64_t end = attention.lengths[task.sequence] - tokens + task.first + task.count;
  float *peak = scratch + count * head_dim, *sum = peak + count;
  Rows rows{attention, task, group, end, scratch, peak, sum, reinterpret_cast<bf16*>(sum + count)};
  for (int64_t i = 0; i < count * head_dim; ++i) rows.output[i] = 0.0f;
  for (int64_t i = 0; i < count; ++i) rows.peak[i] = -INFINITY, rows.sum[i] = 0.0f;
  int64_t tiles = (count + kAttentionRows - 1) / kAttentionRows;
  int64_t begin = rows.seen(0).begin / kGroupTokens * kGroupTokens;
  for (int64_t first = begin; first < end; first = first / kRun * kRun + kRun) {
    Run run = make_run(rows, first);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      int64_t row = count * tile / tiles, together = count * (tile + 1) / tiles - row;
      attend_rows_of(together, std::make_integer_sequence<int, kAttentionRows>())(rows, run, row);
    }
  }
  write_output(rows);
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
