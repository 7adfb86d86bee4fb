// Queries, keys and values on their way from the product to where they are read.
namespace citybus {
namespace CITYBUS_ISA {

// `count` numbers of a head's first half, at most 16, and those of its second half that are turned with them.
struct Turned {
  alignas(64) bf16 first[kLanes], second[kLanes];

  Turned(const float* sums, const float* cos, const float* sin, int64_t count) {
    const float* others = sums + kLanes;
    if (count == kLanes) {
      Lanes a = load(sums), b = load(others), c = load(cos), s = load(sin);
      store_bf16(first, subtract(multiply(a, c), multiply(b, s)));
      store_bf16(second, add(multiply(b, c), multiply(a, s)));
    } else {
      for (int64_t i = 0; i < count; ++i) {
        first[i] = to_bf16(sums[i] * cos[i] - others[i] * sin[i]);
        second[i] = to_bf16(others[i] * cos[i] + sums[i] * sin[i]);
      }
    }
  }
};

// A token's numbers for a group of keys: a pair lies every 16 pairs.
inline void store_key(const bf16* numbers, int64_t count, bf16* to) {
  for (int64_t i = 0; i < count; i += 2) std::memcpy(to + i * kGroupTokens, numbers + i, 2 * sizeof(bf16));
}

// A token's numbers for a group of values: beside each lies that of the token before or after.
inline void store_value(const float* numbers, int64_t count, bf16* to) {
  alignas(64) bf16 rounded[kLanes];
  store_bf16(rounded, load(numbers));
  for (int64_t i = 0; i < count; ++i) to[i * 2] = rounded[i];
}

// The numbers that a group of the product has: `count` from `i` on of both halves of a head of queries, keys or values.
struct Part {
  const Rotation& rotation;
  int64_t head, i, count;

  Part(const Rotation& rotation, int64_t group)
      : rotation(rotation), head(group / rotation.groups_of_head()), i(group % rotation.groups_of_head() * kLanes),
        count(std::min<int64_t>(kLanes, rotation.kv.head_dim / 2 - i)) {}

  // Where the part of a token's key or value begins, but for its place in the group.
  int64_t at(int64_t token, int64_t heads_before) const {
    return rotation.kv.offset(rotation.slots[token] / kGroupTokens, head - heads_before);
  }

  // Stores of whole parts have a size that the compiler knows.
  template <bool Whole>
  void rotate_and_store(int64_t token, const float* sums) const {
    const KvShape& kv = rotation.kv;
    int64_t half = kv.head_dim / 2, numbers = Whole ? kLanes : count, lane = rotation.slots[token] % kGroupTokens;
    if (head >= rotation.query_heads + kv.kv_heads) {
      bf16* value = rotation.values + at(token, rotation.query_heads + kv.kv_heads) +
                    (lane / 2 * kv.head_dim + i) * 2 + lane % 2;
      store_value(sums, numbers, value);
      store_value(sums + kLanes, numbers, value + half * 2);
      return;
    }
    Turned turned(sums, rotation.cos + token * half + i, rotation.sin + token * half + i, numbers);
    if (head < rotation.query_heads) {
      bf16* query = rotation.queries + (token * rotation.query_heads + head) * kv.head_dim + i;
      std::memcpy(query, turned.first, size_t(numbers) * sizeof(bf16));
      std::memcpy(query + half, turned.second, size_t(numbers) * sizeof(bf16));
    } else {
      bf16* key = rotation.keys + at(token, rotation.query_heads) + i * kGroupTokens + lane * 2;
      store_key(turned.first, numbers, key);
      store_key(turned.second, numbers, key + half * kGroupTokens);
    }
  }
};

}  // namespace CITYBUS_ISA
}  // namespace citybus
