// What an instruction set computes. Every result depends on its own row only: not on the rows beside it, nor on who
// computes it. Plain structs and pointers: the files compiled for one instruction set share no code with others.
#pragma once

#include "layout.h"

namespace citybus {

// `inputs` bf16 [rows, input_stride], of which there is at least one, zero from the weight's size on, times `weight`.
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

// Some tokens of a sequence, `first` to `first + count - 1` of its new ones, under some key-value heads.
struct AttentionTask {
  int64_t sequence;
  int64_t first;
  int64_t count;
  int64_t kv_head;
  int64_t kv_heads;
};

// Where queries, keys and values go. A group of the product has 16 numbers of a head's first half and those of its
// second half that are turned with them.
struct Rotation {
  const float* cos;  // [N, D / 2]
  const float* sin;
  const int64_t* slots;  // [N]
  int64_t query_heads;
  KvShape kv;
  bf16* queries;  // [N, H, D]
  bf16* keys;     // as KvShape
  bf16* values;

  int64_t groups_of_head() const { return (kv.head_dim / 2 + kLanes - 1) / kLanes; }
};

// The greatest logit of a row so far, and its token: the first of several.
struct Likeliest {
  float logit;
  int64_t token;
};

// How a row is drawn; 0 in `top_k` and `min_p` and 1 in `top_p` is off.
struct Draw {
  double temperature;
  int64_t top_k;
  double top_p;
  double min_p;
  double number;  // in [0, 1): where the cumulative distribution is inverted
};

constexpr int64_t kChunk = 512;  // logits of a row whose weights are summed before they are added to those before
constexpr int64_t kBins = 2048;

// Memory of a thread for rows of up to `sampling_room` of their size.
struct SamplingScratch {
  double* bins;       // [kBins]
  double* masses;     // [room / kChunk]
  float* peaks;       // [room], and so are the others
  float* logits;
  float* weights;
  int32_t* ids;
  int32_t* members;
};

constexpr int64_t sampling_room(int64_t vocab_size) { return round_up(vocab_size, kChunk); }

struct Operations {
  // Columns of `group` of the product into `outputs` float32 [rows, stride], of which `columns` are kept.
  void (*multiply)(const Product&, int64_t group, float* outputs, int64_t stride, int64_t columns);

  // The same, of which for each row only the greatest is kept, in `likeliest` [rows]. Groups have to come in order.
  void (*multiply_likeliest)(const Product&, int64_t group, int64_t columns, Likeliest* likeliest);

  // The columns of `group` added to `outputs`, [rows, stride], which has room for every column of the weight.
  void (*multiply_add)(const Product&, int64_t group, float* outputs, int64_t stride);

  // SiLU of the group's first 16 columns times its second 16: columns 16 * group .. of bf16 `outputs` [rows, stride].
  void (*multiply_gate)(const Product&, int64_t group, bf16* outputs, int64_t stride);

  // Turn queries and keys, which the group's columns are, and store keys and values.
  void (*multiply_rotate)(const Product&, int64_t group, const Rotation&);

  // A row `hidden` of `size` numbers, zero up to a multiple of 16, over its root mean square, times `weight`; bf16.
  void (*rms_norm)(const float* hidden, const float* weight, int64_t size, float eps, bf16* output);

  // `next` is what the same thread takes next, as a rule, if anything; `scratch` has attention_scratch(...) numbers for
  // each key-value head of the task.
  void (*attend)(const Attention&, const AttentionTask&, const AttentionTask* next, float* scratch);

  // The token drawn from a row of `size` logits.
  int64_t (*sample)(const float* logits, int64_t size, const Draw&, const SamplingScratch&);
};

// Tokens of a prefill that are computed in one task.
constexpr int64_t tokens_of_task(int64_t heads_per_kv_head) {
  return heads_per_kv_head >= 48 ? 1 : 48 / heads_per_kv_head;
}

// Numbers of a key-value head of a task: for every row its output so far, its query (of half as many bytes), its peak
// and its sum; and one group of values.
constexpr int64_t attention_scratch(int64_t heads_per_kv_head, int64_t head_dim) {
  int64_t rows = tokens_of_task(heads_per_kv_head) * heads_per_kv_head;
  return round_up(rows * (head_dim * 3 / 2 + 2) + kGroupTokens * head_dim / 2, kLanes);
}

// Rows that `Product::inputs` must have room for, whatever is in those beyond its own.
constexpr int64_t input_rows(int64_t rows) { return round_up(rows, 16); }

const Operations& amx_operations();
const Operations& avx512_operations();
const Operations& avx2_operations();

}  // namespace citybus
