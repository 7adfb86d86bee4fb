// Paged attention, softmax taken along the way over runs of keys that begin at multiples of kRun: the sums of a row do
// not depend on the rows beside it, nor on whether it is computed in a prefill or as a decode. With a window, groups of
// 16 keys of which no row of a task sees one are not read; runs begin where they do without.
namespace citybus {
namespace CITYBUS_ISA {

// Values of the last group as far as they were ever written.
inline void copy_tail(const bf16* values, int64_t tokens, int64_t head_dim, bf16* tail) {
  for (int64_t i = 0; i < kGroupTokens / 2 * head_dim; ++i) {
    int64_t token = i / head_dim * 2;
    tail[2 * i] = token < tokens ? values[2 * i] : 0;
    tail[2 * i + 1] = token + 1 < tokens ? values[2 * i + 1] : 0;
  }
}

// The run that `first` is in, from there on, with the tail in the place of the last group's values.
inline Run make_run(const Rows& rows, int64_t first) {
  Run run = rows.keys.run(first);
  int64_t left = rows.keys.end - first - (run.groups - 1) * kGroupTokens;
  if (left < kGroupTokens) {
    copy_tail(run.values[run.groups - 1], left, rows.attention.kv.head_dim, rows.tail);
    run.values[run.groups - 1] = rows.tail;
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

inline void copy_queries(const Rows& rows) {
  const Attention& attention = rows.attention;
  int64_t head_dim = attention.kv.head_dim;
  for (int64_t row = 0; row < rows.count(); ++row)
    std::memcpy(rows.queries + row * head_dim,
                attention.queries + (rows.token(row) * attention.heads + rows.head(row)) * head_dim,
                size_t(head_dim) * sizeof(bf16));
}

void attend(const Attention& attention, const AttentionTask& task, const AttentionTask* next, float* scratch) {
  int64_t group = attention.heads / attention.kv.kv_heads, head_dim = attention.kv.head_dim;
  int64_t count = task.count * group, room = round_up(count, kScratchRows);
  Keys keys(attention, task);
  bf16* queries = reinterpret_cast<bf16*>(scratch + room * head_dim);
  float *peak = scratch + room * head_dim * 3 / 2, *sum = peak + room;
  Rows rows{attention, task, keys, group, scratch, queries, peak, sum, reinterpret_cast<bf16*>(sum + room)};
  copy_queries(rows);
  std::fill(rows.output, rows.output + room * head_dim, 0.0f);
  std::fill(rows.peak, rows.peak + count, -INFINITY);
  std::fill(rows.sum, rows.sum + count, 0.0f);
  for (int64_t first = keys.begin, after; first < keys.end; first = after) {
    after = first / kRun * kRun + kRun;
    Run run = make_run(rows, first), ahead{};
    if (after < keys.end)
      ahead = keys.run(after);
    else if (next)
      ahead = Keys(attention, *next).run(Keys(attention, *next).begin);
    for (int64_t row = 0; row < count; row += kAttentionRows) {
      int64_t together = std::min<int64_t>(kAttentionRows, count - row);
      if (rows.see(run, row, together)) attend_some(rows, run, ahead, row, together);
      ahead.groups = 0;
    }
  }
  write_output(rows);
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
