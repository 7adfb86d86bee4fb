// Making a model and packing its weights.
#include <algorithm>

#include "llama.h"

namespace citybus {
namespace {

// Hands out the parts of one buffer.
struct Carver {
  bf16* next;

  Matrix matrix(int64_t columns, int64_t size) {
    Matrix made{next, round_up(columns, kColumns) / kColumns, round_up(size, 2 * kTilePairs) / 2};
    next += Matrix::numbers(columns, size);
    return made;
  }
};

}  // namespace

Llama::Llama(const citybus_shape& shape, const Operations& operations, ThreadPool& threads)
    : shape_(shape), operations_(operations), threads_(threads) {
  int64_t hidden = shape.hidden_size, inner = shape.intermediate_size;
  int64_t queries = shape.num_heads * shape.head_dim;
  int64_t all_heads = (shape.num_heads + 2 * shape.num_kv_heads) * 2 * round_up(shape.head_dim / 2, kLanes);
  int64_t gate_up = 2 * round_up(inner, kLanes);
  sizes_ = {round_up(hidden, kColumns), round_up(queries, kColumns), round_up(inner, kColumns)};
  int64_t layer_numbers = Matrix::numbers(all_heads, hidden) + Matrix::numbers(hidden, queries) +
                          Matrix::numbers(gate_up, hidden) + Matrix::numbers(hidden, inner);
  Carver carver{weights_.reserve(size_t(shape.num_layers * layer_numbers + Matrix::numbers(shape.vocab_size, hidden)))};
  float* norms = norms_.reserve(size_t((2 * shape.num_layers + 1) * sizes_.hidden));
  for (int64_t index = 0; index < shape.num_layers; ++index, norms += 2 * sizes_.hidden)
    layers_.push_back({norms, carver.matrix(all_heads, hidden), carver.matrix(hidden, queries), norms + sizes_.hidden,
                       carver.matrix(gate_up, hidden), carver.matrix(hidden, inner), shape.windows[index]});
  shape_.windows = nullptr;
  last_norm_ = norms;
  head_ = carver.matrix(shape.vocab_size, hidden);
  if (!shape.tied_embeddings) table_.reserve(size_t(shape.vocab_size * hidden));
}

bool Llama::set_weight(citybus_weight weight, int64_t index, const bf16* data) {
  int64_t hidden = shape_.hidden_size, inner = shape_.intermediate_size, vocab = shape_.vocab_size;
  int64_t heads = shape_.num_heads, kv_heads = shape_.num_kv_heads;
  if (index < 0 || index >= shape_.num_layers) return false;
  Layer& layer = layers_[size_t(index)];
  switch (weight) {
    case CITYBUS_EMBEDDING:
      if (shape_.tied_embeddings) {
        pack(head_, 0, kLanes, vocab, hidden, data);
      } else {
        std::copy(data, data + vocab * hidden, table_.data());
      }
      return true;
    case CITYBUS_HEAD: return pack(head_, 0, kLanes, vocab, hidden, data), true;
    case CITYBUS_LAST_NORM: return set_norm(last_norm_, data), true;
    case CITYBUS_ATTENTION_NORM: return set_norm(layer.attention_norm, data), true;
    case CITYBUS_QUERY: return pack_heads(layer.qkv, 0, heads, data), true;
    case CITYBUS_KEY: return pack_heads(layer.qkv, heads, kv_heads, data), true;
    case CITYBUS_VALUE: return pack_heads(layer.qkv, heads + kv_heads, kv_heads, data), true;
    case CITYBUS_ATTENTION_OUT:
      return pack(layer.attention_out, 0, kLanes, hidden, heads * shape_.head_dim, data), true;
    case CITYBUS_MLP_NORM: return set_norm(layer.mlp_norm, data), true;
    case CITYBUS_GATE: return pack(layer.gate_up, 0, kColumns, inner, hidden, data), true;
    case CITYBUS_UP: return pack(layer.gate_up, kLanes, kColumns, inner, hidden, data), true;
    case CITYBUS_DOWN: return pack(layer.down, 0, kLanes, hidden, inner, data), true;
  }
  return false;
}

void Llama::pack_heads(const Matrix& matrix, int64_t first, int64_t count, const bf16* data) {
  int64_t half = shape_.head_dim / 2, hidden = shape_.hidden_size;
  for (int64_t head = 0; head < count; ++head)
    for (int64_t side = 0; side < 2; ++side)
      pack(matrix, (first + head) * 2 * round_up(half, kLanes) + side * kLanes, kColumns, half, hidden,
           data + (2 * head + side) * half * hidden);
}

void Llama::pack(const Matrix& matrix, int64_t first, int64_t step, int64_t columns, int64_t size, const bf16* data) {
  int64_t panels = round_up(columns, kLanes) / kLanes;
  threads_.run(uint32_t(panels), [&](uint32_t panel, int) {
    int64_t from = int64_t(panel) * kLanes, count = std::min<int64_t>(kLanes, columns - from);
    for (int64_t pair = 0; pair < matrix.pairs; ++pair)
      for (int64_t column = 0; column < count; ++column) {
        const bf16* numbers = data + (from + column) * size + 2 * pair;
        bf16* to = matrix.at(first + panel * step + column, pair);
        if (2 * pair < size) to[0] = numbers[0];
        if (2 * pair + 1 < size) to[1] = numbers[1];
      }
  });
}

void Llama::set_norm(float* norm, const bf16* data) {
  for (int64_t i = 0; i < shape_.hidden_size; ++i) norm[i] = to_float(data[i]);
}

}  // namespace citybus
