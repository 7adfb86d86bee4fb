// What an instruction set computes. Every result depends on its own row only: not on the rows beside it, nor on who
// computes it. Plain structs and pointers: the files compiled for one instruction set share no code with others.
#pragma once

#include "layout.h"

namespace citybus {

// `inputs` bf16 [rows, input_stride], zero from the weight's size on, times `weight`.
struct Product {
  const bf16* inputs;
  int64_t input_stride;
  int64_t rows;
  Matrix weight;
  int64_t groups_ahead;  // from a group to the one that the same thread takes next
};

// Shapes: N tokens of S sequences, H heads, KV key-value heads, D head_dim.
struct Attention {
  const bf16* queries;          // [N, H, D]
  bf16* output;                 // [N, output_stride]
  int64_t output_stride;
  const bf16* keys;             // as KvShape
  const bf16* values;
  KvShape kv;
  int64_t heads;
  const int64_t* block_tables;  // [S, table_width]
  int64_t table_width;
  int64_t block_groups;         // groups of 16 tokens in a block
  const int64_t* lengths;       // [S]
  const int64_t* query_starts;  // [S + 1]
  int64_t window;               // keys that a token sees, its own included; 0: all
  float soft_cap;               // scores become soft_cap * tanh(score / soft_cap); 0: they do not
};

// Some tokens of a sequence under one key-value head: `first` to `first + count - 1` of its new tokens.
struct AttentionTask {
  int64_t sequence;
  int64_t first;
  int64_t count;
  int64_t kv_head;
};

struct Rotation {
  const float* heads;  // [N, stride]: queries, keys and values of a token
  int64_t stride;
  const float* cos;    // [N, D / 2]
  const float* sin;
  const int64_t* slots;  // [N]
  int64_t query_heads;
  KvShape kv;
  bf16* queries;       // [N, H, D]
  bf16* keys;          // as KvShape
  bf16* values;
};

struct Operations {
  const char* name;

  // Columns of `group` of the product into `outputs` float32 [rows, stride], of which `columns` are kept.
  void (*multiply)(const Product&, int64_t group, float* outputs, int64_t stride, int64_t columns);

  // The same added to `outputs`, [rows, stride], which has room for every column of the weight.
  void (*multiply_add)(const Product&, int64_t group, float* outputs, int64_t stride);

  // SiLU of the group's first 16 columns times its second 16: columns 16 * group .. of bf16 `outputs` [rows, stride].
  void (*multiply_gate)(const Product&, int64_t group, bf16* outputs, int64_t stride);

  // A row `hidden` of `size` numbers, zero up to a multiple of 16, over its root mean square, times `weight`; bf16.
  void (*rms_norm)(const float* hidden, const float* weight, int64_t size, float eps, bf16* output);

  // Turn queries and keys of a token, and store its keys and values.
  void (*rotate_and_store)(const Rotation&, int64_t token);

  // `next` is what the same thread takes next, as a rule, if anything; `scratch` has attention_scratch(...) numbers.
  void (*attend)(const Attention&, const AttentionTask&, const AttentionTask* next, float* scratch);
};

// Tokens of a prefill that are computed in one task.
constexpr int64_t tokens_of_task(int64_t heads_per_kv_head) {
  return heads_per_kv_head >= 48 ? 1 : 48 / heads_per_kv_head;
}

constexpr int64_t kScratchRows = 16;  // the rows of a task are rounded up to this in its scratch memory

// For every row: its output so far, its query (of half as many bytes), its peak and its sum; and one group of values.
constexpr int64_t attention_scratch(int64_t heads_per_kv_head, int64_t head_dim) {
  int64_t rows = round_up(tokens_of_task(heads_per_kv_head) * heads_per_kv_head, kScratchRows);
  return round_up(rows * (head_dim * 3 / 2 + 2) + kGroupTokens * head_dim, kLanes);
}

// Rows that `Product::inputs` must have room for, whatever is in those beyond its own.
constexpr int64_t input_rows(int64_t rows) { return round_up(rows, 16); }

const Operations& amx_operations();
const Operations& avx512_operations();
const Operations& avx2_operations();

}  // namespace citybus
