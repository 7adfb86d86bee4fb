// Paged attention, softmax taken along the way over runs of keys that begin at multiples of kRun: the sums of a row do
// not depend on the rows beside it, nor on whether it is computed in a prefill or as a decode. With a window, groups of
// 16 keys of which no row of a task sees one are not read; runs begin where they do without.
namespace citybus {
namespace CITYBUS_ISA {

// Values of the last group as far as they were ever written: a row has those of two tokens, side by side.
inline void copy_tail(const bf16* values, int64_t tokens, int64_t head_dim, bf16* tail) {
  int64_t row = 2 * head_dim, whole = tokens / 2 * row, written = whole;
  std::memcpy(tail, values, size_t(whole) * sizeof(bf16));
  if (tokens % 2) {
    for (int64_t i = whole; i < whole + row; i += 2) tail[i] = values[i], tail[i + 1] = 0;
    written += row;
  }
  std::fill(tail + written, tail + kGroupTokens * head_dim, bf16(0));
}

// `run` under the key-value head of `rows`, with the tail in the place of its last group's values.
inline Run run_of_head(const Rows& rows, const Run& run) {
  int64_t head_dim = rows.attention.kv.head_dim;
  Run own = run.after((rows.kv_head - rows.task.kv_head) * kGroupTokens * head_dim);
  int64_t left = rows.keys.end - run.first - (run.groups - 1) * kGroupTokens;
  if (left < kGroupTokens) {
    copy_tail(own.values[run.groups - 1], left, head_dim, rows.tail);
    own.values[run.groups - 1] = rows.tail;
  }
  return own;
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

inline Rows rows_of_head(const Attention& attention, const AttentionTask& task, const Keys& keys, int64_t index,
                         float* scratch) {
  int64_t heads_per_kv_head = attention.heads / attention.kv.kv_heads, head_dim = attention.kv.head_dim;
  int64_t count = task.count * heads_per_kv_head;
  float* output = scratch + index * attention_scratch(heads_per_kv_head, head_dim);
  float *peak = output + count * head_dim * 3 / 2, *sum = peak + count;
  return {attention, task, keys, task.kv_head + index, heads_per_kv_head, output,
          reinterpret_cast<bf16*>(output + count * head_dim), peak, sum, reinterpret_cast<bf16*>(sum + count)};
}

inline void begin(const Rows& rows) {
  int64_t count = rows.count(), head_dim = rows.attention.kv.head_dim;
  copy_queries(rows);
  std::fill(rows.output, rows.output + count * head_dim, 0.0f);
  std::fill(rows.peak, rows.peak + count, -INFINITY);
  std::fill(rows.sum, rows.sum + count, 0.0f);
}

// What follows the run that ends before key `after`: of this task, or of the next one.
inline Run run_ahead(const Keys& keys, int64_t after, const AttentionTask* next) {
  if (after < keys.end) return keys.run(after);
  if (next == nullptr) return {};
  Keys others(keys.attention, *next);
  return others.run(others.begin);
}

void attend(const Attention& attention, const AttentionTask& task, const AttentionTask* next, float* scratch) {
  Keys keys(attention, task);
  int64_t count = task.count * (attention.heads / attention.kv.kv_heads);
  int64_t tiles = (count + kAttentionRows - 1) / kAttentionRows;
  int64_t lines_of_group = task.kv_heads * kGroupTokens * attention.kv.head_dim / 32;
  for (int64_t head = 0; head < task.kv_heads; ++head) begin(rows_of_head(attention, task, keys, head, scratch));
  for (int64_t first = keys.begin, after; first < keys.end; first = after) {
    after = first / kRun * kRun + kRun;
    Run run = keys.run(first);
    RunAhead ahead(run_ahead(keys, after, next), lines_of_group,
                   task.kv_heads * tiles * fetches(attention.kv.head_dim, run.groups));
    for (int64_t head = 0; head < task.kv_heads; ++head) {
      Rows rows = rows_of_head(attention, task, keys, head, scratch);
      Run own = run_of_head(rows, run);
      for (int64_t row = 0; row < count; row += kAttentionRows) {
        int64_t together = std::min<int64_t>(kAttentionRows, count - row);
        if (rows.see(own, row, together)) attend_some(rows, own, ahead, row, together);
      }
    }
  }
  for (int64_t head = 0; head < task.kv_heads; ++head) write_output(rows_of_head(attention, task, keys, head, scratch));
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
