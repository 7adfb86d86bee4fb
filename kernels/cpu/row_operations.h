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

}  // namespace CITYBUS_ISA
}  // namespace citybus
