// What is done to the row of a token by itself.
namespace citybus {
namespace CITYBUS_ISA {

void rms_norm(const float* hidden, const float* weight, int64_t size, float eps, bf16* output) {
  Lanes squares = fill(0.0f);
  for (int64_t i = 0; i < size; i += kLanes) {
    Lanes x = load(hidden + i);
    squares = multiply_add(x, x, squares);
  }
  Lanes scale = fill(1.0f / std::sqrt(total(squares) / float(size) + eps));
  for (int64_t i = 0; i < size; i += kLanes)
    store_bf16(output + i, multiply(load(weight + i), multiply(load(hidden + i), scale)));
}

// Number i of a head is turned together with number i + D / 2.
static inline void rotate(const float* head, const float* cos, const float* sin, int64_t half, bf16* turned) {
  for (int64_t i = 0; i < half; ++i) {
    turned[i] = to_bf16(head[i] * cos[i] - head[i + half] * sin[i]);
    turned[i + half] = to_bf16(head[i + half] * cos[i] + head[i] * sin[i]);
  }
}

void rotate_and_store(const Rotation& rotation, int64_t token) {
  int64_t head_dim = rotation.kv.head_dim, half = head_dim / 2;
  const float* head = rotation.heads + token * rotation.stride;
  const float *cos = rotation.cos + token * half, *sin = rotation.sin + token * half;
  bf16* query = rotation.queries + token * rotation.query_heads * head_dim;
  for (int64_t index = 0; index < rotation.query_heads; ++index, head += head_dim, query += head_dim)
    rotate(head, cos, sin, half, query);
  int64_t group = rotation.slots[token] / kGroupTokens, lane = rotation.slots[token] % kGroupTokens;
  for (int64_t index = 0; index < rotation.kv.kv_heads; ++index, head += head_dim) {
    bf16* keys = rotation.keys + rotation.kv.offset(group, index) + lane * 2;
    for (int64_t i = 0; i < half; ++i) {
      float first = head[i] * cos[i] - head[i + half] * sin[i];
      float second = head[i + half] * cos[i] + head[i] * sin[i];
      keys[i / 2 * kGroupTokens * 2 + i % 2] = to_bf16(first);
      keys[(i + half) / 2 * kGroupTokens * 2 + (i + half) % 2] = to_bf16(second);
    }
  }
  for (int64_t index = 0; index < rotation.kv.kv_heads; ++index, head += head_dim) {
    bf16* values = rotation.values + rotation.kv.offset(group, index) + lane / 2 * head_dim * 2 + lane % 2;
    for (int64_t i = 0; i < head_dim; ++i) values[i * 2] = to_bf16(head[i]);
  }
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
