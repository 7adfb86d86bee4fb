// The likeliest token of each row, without its logits: they are many, and to write and read them takes a tenth of a step.
namespace citybus {
namespace CITYBUS_ISA {

// NaN is impossible; infinity is the greatest number, and -0 is 0.
inline Lanes cleaned(Lanes logits) {
  return add(maximum(minimum(fill(FLT_MAX), logits), fill(-INFINITY)), fill(0.0f));
}

// Lanes of a panel of `columns`, which may end before it or within it.
inline Lanes panel(const float* sums, int64_t columns) {
  Lanes logits = cleaned(load(sums));
  return columns < kLanes ? keep_first(logits, int(std::max<int64_t>(columns, 0)), fill(-INFINITY)) : logits;
}

inline void keep_likelier(Likeliest& likeliest, Lanes logits, int64_t token) {
  if (!at_least(logits, fill(likeliest.logit))) return;
  float greatest = largest(logits);
  if (greatest > likeliest.logit) likeliest = {greatest, token + __builtin_ctz(at_least(logits, fill(greatest)))};
}

void multiply_likeliest_product(const Product& product, int64_t group, int64_t columns, Likeliest* likeliest) {
  int64_t first = group * kColumns;
  for_each_row(product, group, [&](int64_t row, const float* sums) {
    for (int64_t column = 0; column < kColumns; column += kLanes)
      keep_likelier(likeliest[row], panel(sums + column, columns - first - column), first + column);
  });
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
