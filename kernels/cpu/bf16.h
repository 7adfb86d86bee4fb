// Bfloat16: the upper half of a float32.
#pragma once

#include <cstdint>
#include <cstring>

namespace citybus {

using bf16 = uint16_t;

static inline float to_float(bf16 value) {
  uint32_t bits = uint32_t(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// Rounded to nearest, ties to even; a NaN stays one.
static inline bf16 to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  uint32_t quiet = (bits >> 16) | 0x40;
  return bf16((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
}

}  // namespace citybus
