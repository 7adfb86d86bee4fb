// 16 float32 lanes in two AVX registers, pairs of bf16 taken apart into two float32. Whoever includes
// this names CITYBUS_ISA.
#pragma once

#include <immintrin.h>

#include "bf16.h"

namespace citybus {
namespace CITYBUS_ISA {

struct Lanes {
  __m256 low, high;
};
struct PairVector {  // 16 pairs
  Lanes first, second;
};
struct PairScalar {  // one pair, 8 times
  __m256 first, second;
};

inline Lanes load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void store(float* to, Lanes x) {
  _mm256_storeu_ps(to, x.low);
  _mm256_storeu_ps(to + 8, x.high);
}
inline void store_past_caches(float* to, Lanes x) {  // `to` is a multiple of 64
  _mm256_stream_ps(to, x.low);
  _mm256_stream_ps(to + 8, x.high);
}
inline Lanes fill(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes subtract(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes multiply(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Lanes divide(Lanes a, Lanes b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

inline __m256 reciprocal_half(__m256 x) {
  __m256 near = _mm256_rcp_ps(x);
  return _mm256_mul_ps(near, _mm256_fnmadd_ps(x, near, _mm256_set1_ps(2.0f)));
}
// To within 2^-22, where it is a normal number.
inline Lanes reciprocal(Lanes x) { return {reciprocal_half(x.low), reciprocal_half(x.high)}; }

// Lane by lane; `b` where one of them is NaN.
inline Lanes maximum(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Lanes minimum(Lanes a, Lanes b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }

inline float total(Lanes x) {
  __m256 eight = _mm256_add_ps(x.low, x.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Lanes x) {
  __m256 eight = _mm256_max_ps(x.low, x.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// A bit for each lane whose `x` is at least `bound`.
inline unsigned at_least(Lanes x, Lanes bound) {
  int low = _mm256_movemask_ps(_mm256_cmp_ps(x.low, bound.low, _CMP_GE_OQ));
  return unsigned(low | _mm256_movemask_ps(_mm256_cmp_ps(x.high, bound.high, _CMP_GE_OQ)) << 8);
}
inline Lanes where_at_least(Lanes x, Lanes bound, Lanes value) {  // 0 in the other lanes
  return {_mm256_and_ps(_mm256_cmp_ps(x.low, bound.low, _CMP_GE_OQ), value.low),
          _mm256_and_ps(_mm256_cmp_ps(x.high, bound.high, _CMP_GE_OQ), value.high)};
}

// 8 sums in float64, of a lane and the one 8 lanes on.
struct Sums {
  __m256d low, high;
};
inline Sums no_sums() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
inline Sums add_half(Sums sums, __m256 x) {
  return {_mm256_add_pd(sums.low, _mm256_cvtps_pd(_mm256_castps256_ps128(x))),
          _mm256_add_pd(sums.high, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)))};
}
inline Sums add(Sums sums, Lanes x) { return add_half(add_half(sums, x.low), x.high); }
inline double total(Sums sums) {
  __m256d four = _mm256_add_pd(sums.low, sums.high);
  __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// The first `count` lanes of `x`, and those of `other` in the rest.
inline Lanes keep_first(Lanes x, int count, Lanes other) {
  __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
  __m256 high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), lane));
  return {_mm256_blendv_ps(other.low, x.low, low), _mm256_blendv_ps(other.high, x.high, high)};
}

inline __m256 round_half(__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Lanes round_to_integer(Lanes x) { return {round_half(x.low), round_half(x.high)}; }

// For exponents of which 2 to the power is a normal number.
inline __m256 scale_half(__m256 x, __m256 exponent) {
  __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
  return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
}
inline Lanes times_power_of_two(Lanes x, Lanes exponent) {
  return {scale_half(x.low, exponent.low), scale_half(x.high, exponent.high)};
}

inline __m256 widen(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline Lanes load_bf16(const bf16* from) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(from);
  return {widen(_mm_loadu_si128(halves)), widen(_mm_loadu_si128(halves + 1))};
}

// As to_bf16, in the lower 16 bits of each lane.
inline __m256i narrow(__m256 x) {
  __m256i bits = _mm256_castps_si256(x);
  __m256i upper = _mm256_srli_epi32(bits, 16);
  __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, is_nan);
}
inline void store_bf16(bf16* to, Lanes x) {
  __m256i mixed = _mm256_packus_epi32(narrow(x.low), narrow(x.high));  // quarters in the order 0, 2, 1, 3
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(mixed, 0xD8));
}

// What is stored, as float32 again.
inline Lanes store_rounded(bf16* to, Lanes x) {
  store_bf16(to, x);
  return load_bf16(to);
}

inline __m256 first_of_pairs(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 second_of_pairs(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xFFFF0000u))));
}
inline PairVector load_pairs(const bf16* from) {
  const __m256i* halves = reinterpret_cast<const __m256i*>(from);
  __m256i low = _mm256_loadu_si256(halves), high = _mm256_loadu_si256(halves + 1);
  return {{first_of_pairs(low), first_of_pairs(high)}, {second_of_pairs(low), second_of_pairs(high)}};
}
inline PairScalar broadcast_pair(const bf16* from) {
  int pair;
  std::memcpy(&pair, from, sizeof pair);
  __m256i all = _mm256_set1_epi32(pair);
  return {first_of_pairs(all), second_of_pairs(all)};
}

// `sums` plus the products of both numbers of each pair.
inline Lanes dot(Lanes sums, PairVector a, PairScalar b) {
  sums.low = _mm256_fmadd_ps(a.first.low, b.first, sums.low);
  sums.high = _mm256_fmadd_ps(a.first.high, b.first, sums.high);
  sums.low = _mm256_fmadd_ps(a.second.low, b.second, sums.low);
  sums.high = _mm256_fmadd_ps(a.second.high, b.second, sums.high);
  return sums;
}

}  // namespace CITYBUS_ISA
}  // namespace citybus
