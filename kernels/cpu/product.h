// Matrix products, from the sums that product_rows.h or product_tiles.h makes.
namespace citybus {
namespace CITYBUS_ISA {

// Whole lines that go to memory at once: a core that writes many lines as usual reads each of them before, and has its
// weights wait for that.
inline void write_past_caches(const Product& product, int64_t group, float* outputs, int64_t stride) {
  for_each_row(product, group, [&](int64_t row, const float* sums) {
    float* to = outputs + row * stride + group * kColumns;
    for (int column = 0; column < kColumns; column += kLanes) store_past_caches(to + column, load(sums + column));
  });
  _mm_sfence();
}

void multiply_product(const Product& product, int64_t group, float* outputs, int64_t stride, int64_t columns) {
  int64_t kept = columns - group * kColumns < kColumns ? columns - group * kColumns : kColumns;
  bool aligned = reinterpret_cast<uintptr_t>(outputs) % 64 == 0 && stride % kLanes == 0;
  if (kept == kColumns && aligned) return write_past_caches(product, group, outputs, stride);
  for_each_row(product, group, [&](int64_t row, const float* sums) {
    std::memcpy(outputs + row * stride + group * kColumns, sums, size_t(kept) * sizeof(float));
  });
}

void multiply_add_product(const Product& product, int64_t group, float* outputs, int64_t stride) {
  for_each_row(product, group, [&](int64_t row, const float* sums) {
    float* to = outputs + row * stride + group * kColumns;
    for (int column = 0; column < kColumns; column += kLanes)
      store(to + column, add(load(to + column), load(sums + column)));
  });
}

void multiply_gate_product(const Product& product, int64_t group, bf16* outputs, int64_t stride) {
  for_each_row(product, group, [&](int64_t row, const float* sums) {
    store_bf16(outputs + row * stride + group * kLanes, multiply(silu(load(sums)), load(sums + kLanes)));
  });
}

void multiply_rotate_product(const Product& product, int64_t group, const Rotation& rotation) {
  Part part(rotation, group);
  if (part.count == kLanes)
    for_each_row(product, group, [&](int64_t row, const float* sums) { part.rotate_and_store<true>(row, sums); });
  else
    for_each_row(product, group, [&](int64_t row, const float* sums) { part.rotate_and_store<false>(row, sums); });
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
