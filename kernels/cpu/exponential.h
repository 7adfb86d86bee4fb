// Functions of 16 numbers.
namespace citybus {
namespace CITYBUS_ISA {

constexpr float kLog2OfE = 1.44269504088896341f;

// e to the power of x, to within 2 units in the last place; of 0 it is exactly 1.
// Powers are cut to [-87, 88], where neither they nor their inverses overflow. NaN stays NaN.
inline Lanes exponential(Lanes x) {
  x = minimum(fill(88.0f), maximum(fill(-87.0f), x));
  Lanes n = round_to_integer(multiply(x, fill(kLog2OfE)));
  Lanes r = multiply_add(n, fill(-0.693359375f), x);  // ln 2 in two parts; the first has few bits: n times it is exact
  r = multiply_add(n, fill(2.12194440e-4f), r);
  // Taylor's series: |r| <= ln 2 / 2 leaves an error below 2^-26.
  Lanes sum = fill(1.0f / 5040);
  sum = multiply_add(sum, r, fill(1.0f / 720));
  sum = multiply_add(sum, r, fill(1.0f / 120));
  sum = multiply_add(sum, r, fill(1.0f / 24));
  sum = multiply_add(sum, r, fill(1.0f / 6));
  sum = multiply_add(sum, r, fill(0.5f));
  sum = multiply_add(sum, r, fill(1.0f));
  sum = multiply_add(sum, r, fill(1.0f));
  return times_power_of_two(sum, n);
}

// 2 to the power of x, at most 126 of them, to within 2^-18: for what is rounded to bf16. Powers below -126 are cut. NaN
// stays NaN.
inline Lanes power_of_two(Lanes x) {
  x = maximum(fill(-126.0f), x);
  Lanes n = round_to_integer(x), r = subtract(x, n);
  // Taylor's series of e to the power of r * ln 2, of which |r| <= 1 / 2.
  Lanes sum = fill(1.33335581e-3f);
  sum = multiply_add(sum, r, fill(9.61812911e-3f));
  sum = multiply_add(sum, r, fill(5.55041087e-2f));
  sum = multiply_add(sum, r, fill(2.40226507e-1f));
  sum = multiply_add(sum, r, fill(6.93147181e-1f));
  sum = multiply_add(sum, r, fill(1.0f));
  return times_power_of_two(sum, n);
}

// x / (1 + e to the power of -x), to within 2^-17. NaN stays NaN.
inline Lanes silu(Lanes x) {
  Lanes power = power_of_two(minimum(fill(126.0f), multiply(x, fill(-kLog2OfE))));
  return multiply(x, reciprocal(add(fill(1.0f), power)));
}

// To within 2^-22 of the cap. NaN stays NaN.
inline Lanes soft_capped(Lanes x, float cap) {
  Lanes power = exponential(multiply(x, fill(2.0f / cap)));  // cap * tanh(x / cap) = cap - 2 * cap / (power + 1)
  return subtract(fill(cap), divide(fill(2.0f * cap), add(power, fill(1.0f))));
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
