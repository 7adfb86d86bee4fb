// A Llama whose weights are packed once, and its forward pass over a step's tokens.
#pragma once

#include <vector>

#include "api.h"
#include "buffer.h"
#include "layout.h"
#include "operations.h"
#include "threads.h"

namespace citybus {

struct Layer {
  float* attention_norm;
  Matrix qkv;  // a group has 16 columns of the first half of a head, and 16 of its second half
  Matrix attention_out;
  float* mlp_norm;
  Matrix gate_up;  // a group has 16 columns of the gate and the same 16 of up
  Matrix down;
  int64_t window;  // keys that a token sees; 0: all
};

class Llama {
 public:
  // Throws std::bad_alloc. `shape.windows` may go afterwards.
  Llama(const citybus_shape& shape, const Operations& operations, ThreadPool& threads);

  int64_t weights_bytes() const { return int64_t(weights_.bytes() + norms_.bytes() + table_.bytes()); }

  // Pack `data`, bf16 row by row. False where the model has no such weight.
  bool set_weight(citybus_weight weight, int64_t layer, const bf16* data);

  // False where the step names a token, slot, row or length that does not exist. Throws std::bad_alloc.
  bool forward(const citybus_step& step);

 private:
  // Numbers of a token, rounded up so that every row begins at a multiple of 64 bytes.
  struct Sizes {
    int64_t hidden, attended, inner;
  };

  // Pack the weight of `count` heads, from head `first` of queries, keys and values on.
  void pack_heads(const Matrix& matrix, int64_t first, int64_t count, const bf16* data);

  // Pack `data`, bf16 [columns, size]: its 16 columns number i begin at column `first + i * step` of `matrix`.
  void pack(const Matrix& matrix, int64_t first, int64_t step, int64_t columns, int64_t size, const bf16* data);
  void set_norm(float* norm, const bf16* data);
  void reserve(const citybus_step& step);
  bool valid(const citybus_step& step) const;
  int64_t scratch_of_thread() const;
  void plan_attention(const citybus_step& step);
  void embed(const citybus_step& step);
  void norm(const float* weight, int64_t tokens);
  void attend(const citybus_step& step, const Layer& layer, int64_t index);
  template <typename Body>
  void for_pairs_of_groups(const Matrix& weight, Body body);
  void project_and_add(const bf16* inputs, int64_t stride, int64_t tokens, const Matrix& weight);
  void predict(const citybus_step& step);
  void find_likeliest(const citybus_step& step, const Product& product);

  citybus_shape shape_;
  const Operations& operations_;
  ThreadPool& threads_;
  Sizes sizes_;
  Buffer<bf16> weights_;
  Buffer<float> norms_;
  Buffer<bf16> table_;  // embeddings [vocab_size, hidden_size] where the head is another matrix
  std::vector<Layer> layers_;
  float* last_norm_ = nullptr;
  Matrix head_{};

  Buffer<float> residual_;
  Buffer<bf16> normed_;
  Buffer<bf16> queries_;
  Buffer<bf16> attended_;
  Buffer<bf16> gated_;
  Buffer<float> scratch_;
  std::vector<Likeliest> likeliest_;  // [threads, rows that draw]
  std::vector<AttentionTask> tasks_;
};

}  // namespace citybus
