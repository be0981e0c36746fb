// forge_cpu.hpp: what generated CPU kernels stand on.
//
// Everything here is branch-free where it can be, so that compilers vectorise loops that call it. Float functions state their
// error in units in the last place (ulp), measured over all float inputs by tests of this project.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// Dim functions (Python's // and %, as in the IR).
static inline int64_t floordiv(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}
static inline int64_t mod(int64_t a, int64_t b) { return a - floordiv(a, b) * b; }
static inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }

namespace forge {

#define FORGE_INLINE static inline __attribute__((always_inline))

FORGE_INLINE float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
FORGE_INLINE uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// ---- half-precision storage: convert on load, round to nearest even on store ----

FORGE_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  // Normal numbers: shift into place and re-bias; subnormals: exact by scaling; inf and NaN: exponent all ones.
  const float normal = bits_to_float((magnitude << 13) + (112u << 23));
  const float subnormal = float(int32_t(magnitude)) * 0x1p-24f;
  const float special = bits_to_float((magnitude << 13) | 0x7f800000u);
  const float value = magnitude < 0x0400u ? subnormal : (magnitude >= 0x7c00u ? special : normal);
  return bits_to_float(float_to_bits(value) | sign);
}

FORGE_INLINE uint16_t float_to_half(float f) {
  const uint32_t bits = float_to_bits(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Adding a power of two whose ulp is the half subnormal spacing rounds in hardware.
  const uint32_t subnormal = float_to_bits(bits_to_float(magnitude) + 0.5f) - float_to_bits(0.5f);
  const uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t nan = 0x7e00u;
  uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // rounds past 65504
  half = magnitude > 0x7f800000u ? nan : half;
  return uint16_t(half | sign);
}

FORGE_INLINE float bfloat16_to_float(uint16_t b) { return bits_to_float(uint32_t(b) << 16); }

FORGE_INLINE uint16_t float_to_bfloat16(float f) {
  const uint32_t bits = float_to_bits(f);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? ((bits >> 16) | 0x40u) : rounded);
}

struct half {
  uint16_t bits;
  half() = default;
  half(float f) : bits(float_to_half(f)) {}
  operator float() const { return half_to_float(bits); }
};
struct bfloat16 {
  uint16_t bits;
  bfloat16() = default;
  bfloat16(float f) : bits(float_to_bfloat16(f)) {}
  operator float() const { return bfloat16_to_float(bits); }
};

FORGE_INLINE float round_to_half(float f) { return half_to_float(float_to_half(f)); }
FORGE_INLINE float round_to_bfloat16(float f) { return bfloat16_to_float(float_to_bfloat16(f)); }

// ---- elementary functions on float: polynomials fitted by least squares on Chebyshev nodes, vectorisable ----

// e^x. Cody-Waite reduction x = n ln2 + r, |r| <= ln2/2. <= 1.1 ulp; overflows to inf, underflows through subnormals to 0.
FORGE_INLINE float exp(float x) {
  const float clamped = x > 89.0f ? 89.0f : (x < -104.0f ? -104.0f : x);
  const float n = std::rint(clamped * 1.44269504088896341f);
  float r = std::fma(n, -6.93145752e-1f, clamped);
  r = std::fma(n, -1.42860677e-6f, r);
  float q = 1.395060186e-3f;
  q = std::fma(q, r, 8.368953508e-3f);
  q = std::fma(q, r, 4.166620414e-2f);
  q = std::fma(q, r, 1.666651831e-1f);
  q = std::fma(q, r, 5.000000096e-1f);
  const float p = std::fma(q * r, r, r) + 1.0f;
  // Two factors, so that results in the subnormal range round once and 2^128 does not overflow early.
  const int32_t e = int32_t(n);
  const int32_t e1 = e >> 1;
  const float s1 = bits_to_float(uint32_t(e1 + 127) << 23);
  const float s2 = bits_to_float(uint32_t(e - e1 + 127) << 23);
  const float y = p * s1 * s2;
  return x != x ? x : y;
}

// erf(x). |x| <= 1: odd polynomial; beyond: 1 - exp(-x P(x)). <= 1.5 ulp.
FORGE_INLINE float erf(float x) {
  const float a = std::fabs(x);
  const float s = x * x;
  float p = 7.889123055e-5f;
  p = std::fma(p, s, -8.020842313e-4f);
  p = std::fma(p, s, 5.189535453e-3f);
  p = std::fma(p, s, -2.685444465e-2f);
  p = std::fma(p, s, 1.128360018e-1f);
  p = std::fma(p, s, -3.761262714e-1f);
  p = std::fma(p, s, 1.283791660e-1f);
  const float small = std::fma(x, p, x);
  const float t = a > 4.1f ? 4.1f : a;
  float q = 4.314265570e-6f;
  q = std::fma(q, t, -3.793133402e-5f);
  q = std::fma(q, t, -8.883743188e-5f);
  q = std::fma(q, t, 3.039435734e-3f);
  q = std::fma(q, t, -2.285249434e-2f);
  q = std::fma(q, t, 1.054334332e-1f);
  q = std::fma(q, t, 6.355364623e-1f);
  q = std::fma(q, t, 1.128571126f);
  const float big = std::copysign(1.0f - exp(-q * t), x);
  const float y = a <= 1.0f ? small : big;
  return x != x ? x : y;
}

// tanh(x). |x| <= 0.625: odd polynomial; beyond: 1 - 2/(e^2x + 1). <= 2 ulp.
FORGE_INLINE float tanh(float x) {
  const float a = std::fabs(x);
  const float s = x * x;
  float p = -5.660788724e-3f;
  p = std::fma(p, s, 2.060200743e-2f);
  p = std::fma(p, s, -5.372922994e-2f);
  p = std::fma(p, s, 1.333132896e-1f);
  p = std::fma(p, s, -3.333327832e-1f);
  const float small = std::fma(x * s, p, x);
  const float t = a > 10.0f ? 10.0f : a;
  const float big = std::copysign(1.0f - 2.0f / (exp(2.0f * t) + 1.0f), x);
  const float y = a <= 0.625f ? small : big;
  return x != x ? x : y;
}

// 1 / (1 + e^-x), through e^-|x| so that neither tail overflows. <= 2.5 ulp.
FORGE_INLINE float sigmoid(float x) {
  const float e = exp(-std::fabs(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

FORGE_INLINE double exp(double x) { return std::exp(x); }
FORGE_INLINE double erf(double x) { return std::erf(x); }
FORGE_INLINE double tanh(double x) { return std::tanh(x); }
FORGE_INLINE double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

template <class T> FORGE_INLINE T softplus(T x) { return x > T(20) ? x : std::log1p(std::exp(x)); }
template <class T> FORGE_INLINE T sign(T x) { return x > T(0) ? T(1) : (x < T(0) ? T(-1) : x); }

// NaN from either operand; +0 above -0.
template <class T> FORGE_INLINE T maximum(T a, T b) {
  if (std::numeric_limits<T>::has_quiet_NaN) return a != a ? a : (b != b ? b : (a > b ? a : (b > a ? b : a + b == T(0) && std::signbit(double(a)) ? b : a)));
  return a > b ? a : b;
}
template <class T> FORGE_INLINE T minimum(T a, T b) {
  if (std::numeric_limits<T>::has_quiet_NaN) return a != a ? a : (b != b ? b : (a < b ? a : (b < a ? b : a + b == T(0) && std::signbit(double(a)) ? a : b)));
  return a < b ? a : b;
}
template <class T> FORGE_INLINE T relu(T x) { return x < T(0) ? T(0) : x; }

// ---- integer arithmetic with every case defined ----

template <class T> FORGE_INLINE T wrapping_neg(T a) { return T(uint64_t(0) - uint64_t(a)); }
template <class T> FORGE_INLINE T wrapping_add(T a, T b) { return T(uint64_t(a) + uint64_t(b)); }
template <class T> FORGE_INLINE T wrapping_sub(T a, T b) { return T(uint64_t(a) - uint64_t(b)); }
template <class T> FORGE_INLINE T wrapping_mul(T a, T b) { return T(uint64_t(a) * uint64_t(b)); }
template <class T> FORGE_INLINE T int_div(T a, T b) {
  if (b == T(0)) return T(0);
  if (std::numeric_limits<T>::is_signed && b == T(-1)) return wrapping_neg(a);
  return T(a / b);
}
template <class T> FORGE_INLINE T int_rem(T a, T b) {
  if (b == T(0) || (std::numeric_limits<T>::is_signed && b == T(-1))) return T(0);
  return T(a % b);
}
template <class T> FORGE_INLINE T int_mod(T a, T b) {
  const T r = int_rem(a, b);
  return (r != T(0) && ((r < T(0)) != (b < T(0)))) ? T(r + b) : r;
}
template <class T> FORGE_INLINE T float_mod(T a, T b) {
  const T r = std::fmod(a, b);
  return (r != T(0) && ((r < T(0)) != (b < T(0)))) ? r + b : r;
}
template <class T> FORGE_INLINE T int_pow(T base, T exponent) {
  if (exponent < T(0)) return base == T(1) ? T(1) : (base == T(-1) ? ((exponent & T(1)) ? T(-1) : T(1)) : T(0));
  uint64_t result = 1, b = uint64_t(base), e = uint64_t(exponent);
  while (e) {
    if (e & 1) result *= b;
    b *= b;
    e >>= 1;
  }
  return T(result);
}
template <class T> FORGE_INLINE T shift_left(T a, T b) { return uint64_t(b) >= 8 * sizeof(T) ? T(0) : T(uint64_t(a) << uint64_t(b)); }
template <class T> FORGE_INLINE T shift_right(T a, T b) { return uint64_t(b) >= 8 * sizeof(T) ? T(a < T(0) ? -1 : 0) : T(a >> b); }

// Float to integer: truncate, saturate, NaN to 0.
template <class I, class F> FORGE_INLINE I float_to_int(F x) {
  const F low = F(std::numeric_limits<I>::min());
  const F high = F(std::numeric_limits<I>::max());
  if (x != x) return I(0);
  if (x <= low) return std::numeric_limits<I>::min();
  if (x >= high) return std::numeric_limits<I>::max();
  return I(x);
}

// An index from data: negative counts from the end; out of range is clamped, so that no kernel reads outside its buffer.
FORGE_INLINE int64_t wrap_index(int64_t index, int64_t extent) {
  const int64_t i = index < 0 ? index + extent : index;
  return i < 0 ? 0 : (i >= extent ? extent - 1 : i);
}

}  // namespace forge
