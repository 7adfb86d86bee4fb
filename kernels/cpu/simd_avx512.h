// 16 float32 lanes in AVX-512, pairs of bf16 by its BF16 extension. Whoever includes this names CITYBUS_ISA.
#pragma once

#include <immintrin.h>

#include "bf16.h"

namespace citybus {
namespace CITYBUS_ISA {

using Lanes = __m512;
using PairVector = __m512bh;  // 16 pairs
using PairScalar = __m512bh;  // one pair, 16 times

inline Lanes load(const float* from) { return _mm512_loadu_ps(from); }
inline void store(float* to, Lanes x) { _mm512_storeu_ps(to, x); }
inline void store_past_caches(float* to, Lanes x) { _mm512_stream_ps(to, x); }  // `to` is a multiple of 64
inline Lanes fill(float x) { return _mm512_set1_ps(x); }
inline Lanes add(Lanes a, Lanes b) { return _mm512_add_ps(a, b); }
inline Lanes subtract(Lanes a, Lanes b) { return _mm512_sub_ps(a, b); }
inline Lanes multiply(Lanes a, Lanes b) { return _mm512_mul_ps(a, b); }
inline Lanes divide(Lanes a, Lanes b) { return _mm512_div_ps(a, b); }
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
// To within 2^-26, where it is a normal number.
inline Lanes reciprocal(Lanes x) {
  Lanes near = _mm512_rcp14_ps(x);
  return _mm512_mul_ps(near, _mm512_fnmadd_ps(x, near, _mm512_set1_ps(2.0f)));
}
inline float total(Lanes x) { return _mm512_reduce_add_ps(x); }
inline float largest(Lanes x) { return _mm512_reduce_max_ps(x); }

// Lane by lane; `b` where one of them is NaN.
inline Lanes maximum(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
inline Lanes minimum(Lanes a, Lanes b) { return _mm512_min_ps(a, b); }

// A bit for each lane whose `x` is at least `bound`.
inline unsigned at_least(Lanes x, Lanes bound) { return _mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ); }
inline Lanes where_at_least(Lanes x, Lanes bound, Lanes value) {  // 0 in the other lanes
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ), value);
}

// 16 sums in float64.
struct Sums {
  __m512d low, high;
};
inline Sums no_sums() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
inline Sums add(Sums sums, Lanes x) {
  __m256 high = _mm512_extractf32x8_ps(x, 1);
  return {_mm512_add_pd(sums.low, _mm512_cvtps_pd(_mm512_castps512_ps256(x))),
          _mm512_add_pd(sums.high, _mm512_cvtps_pd(high))};
}
inline double total(Sums sums) { return _mm512_reduce_add_pd(_mm512_add_pd(sums.low, sums.high)); }

// The first `count` lanes of `x`, and those of `other` in the rest.
inline Lanes keep_first(Lanes x, int count, Lanes other) {
  return _mm512_mask_blend_ps(__mmask16((1u << count) - 1), other, x);
}

inline Lanes round_to_integer(Lanes x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Lanes times_power_of_two(Lanes x, Lanes exponent) { return _mm512_scalef_ps(x, exponent); }

inline Lanes widen(__m256i half) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
inline Lanes load_bf16(const bf16* from) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// What is stored, as float32 again.
inline Lanes store_rounded(bf16* to, Lanes x) {
  __m256i half = (__m256i)_mm512_cvtneps_pbh(x);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half);
  return widen(half);
}
inline void store_bf16(bf16* to, Lanes x) { store_rounded(to, x); }

inline PairVector load_pairs(const bf16* from) { return (__m512bh)_mm512_loadu_si512(from); }
inline PairScalar broadcast_pair(const bf16* from) {
  int pair;
  std::memcpy(&pair, from, sizeof pair);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// `sums` plus the products of both numbers of each pair.
inline Lanes dot(Lanes sums, PairVector a, PairScalar b) { return _mm512_dpbf16_ps(sums, a, b); }

}  // namespace CITYBUS_ISA
}  // namespace citybus
