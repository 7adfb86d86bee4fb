#include "llama.h"

#include <algorithm>
#include <cmath>

namespace citybus {
namespace {

constexpr int64_t kTasksOfThread = 4;  // sequences a thread from which on a task has all of a sequence's heads
constexpr int64_t kRowsOfPiece = 8;  // rows that a thread takes at once where a row is little work

bool in_range(const int64_t* numbers, int64_t count, int64_t limit) {
  return std::all_of(numbers, numbers + count, [limit](int64_t number) { return 0 <= number && number < limit; });
}

}  // namespace

bool Llama::forward(const citybus_step& step) {
  if (!valid(step)) return false;
  reserve(step);
  plan_attention(step);
  embed(step);
  for (int64_t index = 0; index < shape_.num_layers; ++index) {
    const Layer& layer = layers_[size_t(index)];
    norm(layer.attention_norm, step.num_tokens);
    attend(step, layer, index);
    norm(layer.mlp_norm, step.num_tokens);
    Product gate_up{normed_.data(), sizes_.hidden, step.num_tokens, layer.gate_up, 2 * threads_.size()};
    for_pairs_of_groups(layer.gate_up, [&](int64_t group) {
      operations_.multiply_gate(gate_up, group, gated_.data(), sizes_.inner);
    });
    project_and_add(gated_.data(), sizes_.inner, step.num_tokens, layer.down);
  }
  predict(step);
  return true;
}

bool Llama::valid(const citybus_step& step) const {
  if (step.block_size < 1 || step.block_size % kGroupTokens) return false;
  if (step.num_sequences < 1 || step.query_starts[step.num_sequences] != step.num_tokens) return false;
  for (int64_t row = 0; row < step.num_sequences; ++row) {
    int64_t tokens = step.query_starts[row + 1] - step.query_starts[row];
    int64_t blocks = (step.lengths[row] + step.block_size - 1) / step.block_size;
    if (tokens < 1 || tokens > step.lengths[row] || blocks > step.table_width) return false;
    if (!in_range(step.block_tables + row * step.table_width, blocks, step.num_blocks)) return false;
  }
  return step.query_starts[0] == 0 && step.num_drawing <= step.num_tokens &&
         in_range(step.token_ids, step.num_tokens, shape_.vocab_size) &&
         in_range(step.slots, step.num_tokens, step.num_blocks * step.block_size) &&
         in_range(step.drawing_rows, step.num_drawing, step.num_tokens);
}

void Llama::reserve(const citybus_step& step) {
  size_t tokens = size_t(input_rows(step.num_tokens));
  residual_.reserve(tokens * size_t(sizes_.hidden));
  normed_.reserve(tokens * size_t(sizes_.hidden));
  queries_.reserve(tokens * size_t(shape_.num_heads * shape_.head_dim));
  attended_.reserve(tokens * size_t(sizes_.attended));
  gated_.reserve(tokens * size_t(sizes_.inner));
  scratch_.reserve(size_t(threads_.size()) * size_t(scratch_of_thread()));
}

int64_t Llama::scratch_of_thread() const {
  return shape_.num_kv_heads * attention_scratch(shape_.num_heads / shape_.num_kv_heads, shape_.head_dim);
}

// Keys of all heads lie side by side, and are read best together; but every thread is to have something to do.
void Llama::plan_attention(const citybus_step& step) {
  int64_t most = tokens_of_task(shape_.num_heads / shape_.num_kv_heads);
  int64_t together = step.num_sequences >= kTasksOfThread * threads_.size() ? shape_.num_kv_heads : 1;
  tasks_.clear();
  for (int64_t row = 0; row < step.num_sequences; ++row) {
    int64_t tokens = step.query_starts[row + 1] - step.query_starts[row];
    for (int64_t first = 0; first < tokens; first += most)
      for (int64_t head = 0; head < shape_.num_kv_heads; head += together)
        tasks_.push_back({row, first, std::min(most, tokens - first), head, together});
  }
}

void Llama::embed(const citybus_step& step) {
  int64_t hidden = shape_.hidden_size;
  for (int64_t row = 0; row < step.num_tokens; ++row) {
    float* to = residual_.data() + row * sizes_.hidden;
    int64_t token = step.token_ids[row];
    for (int64_t i = 0; i < hidden; ++i)
      to[i] = to_float(shape_.tied_embeddings ? head_.at(token, i / 2)[i % 2] : table_.data()[token * hidden + i]);
    std::fill(to + hidden, to + sizes_.hidden, 0.0f);  // a row before may have left NaN there
  }
}

void Llama::norm(const float* weight, int64_t tokens) {
  int64_t pieces = (tokens + kRowsOfPiece - 1) / kRowsOfPiece;
  threads_.run(uint32_t(pieces), [&](uint32_t piece, int) {
    for (int64_t row = piece * kRowsOfPiece; row < std::min((piece + 1) * kRowsOfPiece, tokens); ++row)
      operations_.rms_norm(residual_.data() + row * sizes_.hidden, weight, shape_.hidden_size,
                           float(shape_.rms_norm_eps), normed_.data() + row * sizes_.hidden);
  });
}

void Llama::attend(const citybus_step& step, const Layer& layer, int64_t index) {
  int64_t tokens = step.num_tokens;
  KvShape kv{shape_.num_kv_heads, shape_.head_dim};
  int64_t pool = step.num_blocks * step.block_size * kv.kv_heads * kv.head_dim;
  bf16 *keys = step.pools + 2 * index * pool, *values = keys + pool;
  Product qkv{normed_.data(), sizes_.hidden, tokens, layer.qkv, 2 * threads_.size()};
  Rotation rotation{step.cos, step.sin, step.slots, shape_.num_heads, kv, queries_.data(), keys, values};
  for_pairs_of_groups(layer.qkv, [&](int64_t group) { operations_.multiply_rotate(qkv, group, rotation); });
  Attention attention{queries_.data(), attended_.data(), sizes_.attended, keys, values, kv, shape_.num_heads,
                      step.block_tables, step.table_width, step.block_size / kGroupTokens, step.lengths,
                      step.query_starts, layer.window, float(shape_.soft_cap)};
  threads_.run(uint32_t(tasks_.size()), [&](uint32_t task, int thread) {
    size_t after = size_t(task) + size_t(threads_.size());
    const AttentionTask* next = after < tasks_.size() ? &tasks_[after] : nullptr;
    operations_.attend(attention, tasks_[task], next, scratch_.data() + thread * scratch_of_thread());
  });
  project_and_add(attended_.data(), sizes_.attended, tokens, layer.attention_out);
}

// Two groups fill lines of 64 bytes with bf16, which two threads would otherwise take from each other.
template <typename Body>
void Llama::for_pairs_of_groups(const Matrix& weight, Body body) {
  threads_.run(uint32_t((weight.groups + 1) / 2), [&](uint32_t pair, int) {
    body(2 * pair);
    if (2 * pair + 1 < weight.groups) body(2 * pair + 1);
  });
}

void Llama::project_and_add(const bf16* inputs, int64_t stride, int64_t tokens, const Matrix& weight) {
  Product product{inputs, stride, tokens, weight, threads_.size()};
  threads_.run(uint32_t(weight.groups), [&](uint32_t group, int) {
    operations_.multiply_add(product, group, residual_.data(), sizes_.hidden);
  });
}

// Only the rows that draw have logits: in a step of chunks of prompts none has.
void Llama::predict(const citybus_step& step) {
  if (step.num_drawing == 0) return;
  for (int64_t row = 0; row < step.num_drawing; ++row)
    operations_.rms_norm(residual_.data() + step.drawing_rows[row] * sizes_.hidden, last_norm_, shape_.hidden_size,
                         float(shape_.rms_norm_eps), normed_.data() + row * sizes_.hidden);
  Product product{normed_.data(), sizes_.hidden, step.num_drawing, head_, threads_.size()};
  if (step.likeliest != nullptr) return find_likeliest(step, product);
  threads_.run(uint32_t(head_.groups), [&](uint32_t group, int) {
    operations_.multiply(product, group, step.logits, shape_.vocab_size, shape_.vocab_size);
  });
}

// A thread takes groups in rising order; what several threads found is compared in the end.
void Llama::find_likeliest(const citybus_step& step, const Product& product) {
  int64_t rows = step.num_drawing;
  likeliest_.assign(size_t(threads_.size() * rows), {-INFINITY, 0});
  threads_.run(uint32_t(head_.groups), [&](uint32_t group, int thread) {
    operations_.multiply_likeliest(product, group, shape_.vocab_size, likeliest_.data() + thread * rows);
  });
  for (int64_t row = 0; row < rows; ++row) {
    Likeliest best = likeliest_[size_t(row)];
    for (int64_t other = row + rows; other < threads_.size() * rows; other += rows) {
      const Likeliest& found = likeliest_[size_t(other)];
      if (found.logit > best.logit || (found.logit == best.logit && found.token < best.token)) best = found;
    }
    step.likeliest[row] = best.token;
  }
}

}  // namespace citybus
