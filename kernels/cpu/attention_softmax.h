// What attention knows of a task's rows, and their softmax over a run of keys.
namespace citybus {
namespace CITYBUS_ISA {

constexpr int kRun = 128;  // keys
constexpr int kRunGroups = kRun / kGroupTokens;

// Keys `begin` to `end` - 1.
struct Span {
  int64_t begin, end;
};

// Keys and values of up to kRun keys from `first` on, a multiple of 16, of some key-value heads, one after another.
struct Run {
  int64_t first;
  int groups;
  const bf16* keys[kRunGroups];
  const bf16* values[kRunGroups];

  // The same from `numbers` further on.
  Run after(int64_t numbers) const {
    Run run = *this;
    for (int group = 0; group < groups; ++group) run.keys[group] += numbers, run.values[group] += numbers;
    return run;
  }
};

// A run that a thread comes to next, fetched little by little, as memory is slow, and stalls who asks for much at once.
// Blocks lie anywhere: the processor cannot foresee them.
class RunAhead {
 public:
  // `lines` of 64 bytes, at most, at each fetch; a group has `lines_of_group`.
  RunAhead(const Run& run, int64_t lines_of_group, int64_t calls)
      : run_(run), lines_of_group_(lines_of_group), lines_((2 * run.groups * lines_of_group + calls - 1) / calls) {}

  void fetch() {
    for (int64_t left = lines_; left > 0 && group_ < 2 * run_.groups;) {
      int64_t now = std::min(left, lines_of_group_ - line_);
      const bf16* from = group_ < run_.groups ? run_.keys[group_] : run_.values[group_ - run_.groups];
      for (int64_t line = line_; line < line_ + now; ++line)
        _mm_prefetch(reinterpret_cast<const char*>(from) + line * 64, _MM_HINT_T1);
      left -= now;
      line_ += now;
      if (line_ == lines_of_group_) ++group_, line_ = 0;
    }
  }

 private:
  const Run run_;
  int64_t lines_of_group_, lines_;
  int group_ = 0;
  int64_t line_ = 0;
};

// The keys that the rows of a task see.
struct Keys {
  const Attention& attention;
  const AttentionTask& task;
  int64_t begin, end;  // `begin` is a multiple of 16

  Keys(const Attention& attention, const AttentionTask& task) : attention(attention), task(task) {
    int64_t tokens = attention.query_starts[task.sequence + 1] - attention.query_starts[task.sequence];
    end = attention.lengths[task.sequence] - tokens + task.first + task.count;
    begin = seen(0).begin / kGroupTokens * kGroupTokens;
  }

  // What a token of the task sees.
  Span seen(int64_t token) const {
    int64_t visible = end - task.count + 1 + token;
    return {attention.window && attention.window < visible ? visible - attention.window : 0, visible};
  }

  // The run that key `first` is in, from there on.
  Run run(int64_t first) const {
    int64_t last = std::min(end, first / kRun * kRun + kRun);
    Run run{first, 0, {}, {}};
    for (int64_t group = first / kGroupTokens; group * kGroupTokens < last; ++group, ++run.groups) {
      int64_t block = attention.block_tables[task.sequence * attention.table_width + group / attention.block_groups];
      int64_t at =
          attention.kv.offset(block * attention.block_groups + group % attention.block_groups, task.kv_head);
      run.keys[run.groups] = attention.keys + at;
      run.values[run.groups] = attention.values + at;
    }
    return run;
  }
};

// Rows of a task under one of its key-value heads, token by token and head by head.
struct Rows {
  const Attention& attention;
  const AttentionTask& task;
  const Keys& keys;
  int64_t kv_head;
  int64_t heads_per_kv_head;
  float* output;  // [rows, D], not yet divided by `sum`
  bf16* queries;  // [rows, D]
  float* peak;    // [rows]
  float* sum;     // [rows]
  bf16* tail;     // values of the last group, zero from the last key on: what is beyond may be NaN

  int64_t count() const { return task.count * heads_per_kv_head; }
  Span seen(int64_t row) const { return keys.seen(row / heads_per_kv_head); }
  int64_t token(int64_t row) const {
    return attention.query_starts[task.sequence] + task.first + row / heads_per_kv_head;
  }
  int64_t head(int64_t row) const { return kv_head * heads_per_kv_head + row % heads_per_kv_head; }

  // Whether one of `some` rows from `first` on sees a key of `run`.
  bool see(const Run& run, int64_t first, int64_t some) const {
    return seen(first + some - 1).end > run.first && seen(first).begin < run.first + run.groups * kGroupTokens;
  }
};

// The weights of some rows for a run, of which the values before are to be scaled by `decay`.
struct Weights {
  alignas(64) float scores[kAttentionRows][kRun];
  alignas(64) bf16 rounded[kAttentionRows][kRun];
  float decay[kAttentionRows];
};

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
    Lanes x = load(scores + g * kGroupTokens);
    if (Limited && cap > 0) store(scores + g * kGroupTokens, x = soft_capped(multiply(x, fill(scale)), cap));
    peaks = maximum(peaks, keep_seen<Limited>(x, seen, g * kGroupTokens, -INFINITY));
  }
  if (Limited && cap > 0) scale = 1.0f;
  float before = peak, highest = largest(peaks);
  peak = highest > before ? highest : before;
  Lanes sums = fill(0.0f), unit = fill(scale * kLog2OfE);
  for (int g = 0; g < groups; ++g) {
    Lanes x = power_of_two(multiply(subtract(load(scores + g * kGroupTokens), fill(peak)), unit));
    sums = add(sums, store_rounded(rounded + g * kGroupTokens, keep_seen<Limited>(x, seen, g * kGroupTokens, 0.0f)));
  }
  alignas(64) float factor[kLanes];
  store(factor, exponential(fill((before - peak) * scale)));
  decay = factor[0];
  sum = sum * decay + total(sums);
}

// The same for `count` rows of a task from `first` on.
inline void soften_rows(const Rows& rows, const Run& run, int64_t first, int64_t count, Weights& weights) {
  const Attention& attention = rows.attention;
  float scale = 1.0f / std::sqrt(float(attention.kv.head_dim));
  auto soften_row = attention.window || attention.soft_cap > 0 ? soften<true> : soften<false>;
  for (int64_t r = 0; r < count; ++r) {
    Span seen = rows.seen(first + r);
    soften_row(weights.scores[r], weights.rounded[r], run.groups, {seen.begin - run.first, seen.end - run.first}, scale,
               attention.soft_cap, rows.peak[first + r], rows.sum[first + r], weights.decay[r]);
  }
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
