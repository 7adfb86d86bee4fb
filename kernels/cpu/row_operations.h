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

// Up to 16 numbers of a head's first half, from number `i` on, and those of its second half that are turned with them.
struct Turned {
  alignas(64) bf16 first[kLanes], second[kLanes];
  int64_t count;

  Turned(const float* head, const float* cos, const float* sin, int64_t half, int64_t i) {
    count = half - i < kLanes ? half - i : kLanes;
    if (count == kLanes) {
      Lanes a = load(head + i), b = load(head + i + half), c = load(cos + i), s = load(sin + i);
      store_bf16(first, subtract(multiply(a, c), multiply(b, s)));
      store_bf16(second, add(multiply(b, c), multiply(a, s)));
    } else {
      for (int64_t k = 0; k < count; ++k) {
        float a = head[i + k], b = head[i + k + half], c = cos[i + k], s = sin[i + k];
        first[k] = to_bf16(a * c - b * s);
        second[k] = to_bf16(b * c + a * s);
      }
    }
  }
};

// `count` numbers, of which a pair lies every 16 pairs.
inline void store_pairs(const bf16* numbers, int64_t count, bf16* to) {
  for (int64_t i = 0; i < count; i += 2) std::memcpy(to + i * kGroupTokens, numbers + i, 2 * sizeof(bf16));
}

void rotate_and_store(const Rotation& rotation, int64_t token) {
  int64_t head_dim = rotation.kv.head_dim, half = head_dim / 2;
  const float* head = rotation.heads + token * rotation.stride;
  const float *cos = rotation.cos + token * half, *sin = rotation.sin + token * half;
  bf16* query = rotation.queries + token * rotation.query_heads * head_dim;
  for (int64_t index = 0; index < rotation.query_heads; ++index, head += head_dim, query += head_dim)
    for (int64_t i = 0; i < half; i += kLanes) {
      Turned turned(head, cos, sin, half, i);
      std::memcpy(query + i, turned.first, size_t(turned.count) * sizeof(bf16));
      std::memcpy(query + half + i, turned.second, size_t(turned.count) * sizeof(bf16));
    }
  int64_t group = rotation.slots[token] / kGroupTokens, lane = rotation.slots[token] % kGroupTokens;
  for (int64_t index = 0; index < rotation.kv.kv_heads; ++index, head += head_dim) {
    bf16* keys = rotation.keys + rotation.kv.offset(group, index) + lane * 2;
    for (int64_t i = 0; i < half; i += kLanes) {
      Turned turned(head, cos, sin, half, i);
      store_pairs(turned.first, turned.count, keys + i * kGroupTokens);
      store_pairs(turned.second, turned.count, keys + (half + i) * kGroupTokens);
    }
  }
  for (int64_t index = 0; index < rotation.kv.kv_heads; ++index, head += head_dim) {
    bf16* values = rotation.values + rotation.kv.offset(group, index) + lane / 2 * head_dim * 2 + lane % 2;
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      alignas(64) bf16 rounded[kLanes];
      store_bf16(rounded, load(head + i));
      for (int64_t k = 0; k < kLanes; ++k) values[(i + k) * 2] = rounded[k];
    }
  }
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
