// Vectors of 16 lanes, and the numbers that weights and caches are stored as. Vectors are those of GCC
// and Clang, wide or narrow as the machine has them.

#pragma once

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif
#if defined(__AVX512BF16__) && defined(__AVX512F__)
#define NEURON_SPEC_PAIRS
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))  // in the innermost loop

namespace {

constexpr int LANES = 16;

typedef float Vec __attribute__((vector_size(4 * LANES)));
// As wide as the machine's registers, for the innermost loops: GCC keeps wider ones in memory.
#if defined(__AVX512F__)
constexpr int NATIVE = 16;
constexpr int SUMS = 2;  // of every output: input i goes into sum i % SUMS; two need not wait for each other
#elif defined(__AVX__)
constexpr int NATIVE = 8;
constexpr int SUMS = 1;  // registers are for more rows
#else
constexpr int NATIVE = 4;
constexpr int SUMS = 1;
#endif
constexpr int PIECES = LANES / NATIVE;  // of a vector
typedef float Native __attribute__((vector_size(4 * NATIVE)));
typedef uint32_t NativeWords __attribute__((vector_size(4 * NATIVE)));
typedef int32_t NativeInts __attribute__((vector_size(4 * NATIVE)));

typedef float Vec8 __attribute__((vector_size(32)));
typedef float Vec4 __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));

template <class To, class From>
inline To cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class To>
inline To read(const void* from) {
    To to;
    std::memcpy(&to, from, sizeof to);
    return to;
}

template <class V>
inline void write(float* to, V v) {
    std::memcpy(to, &v, sizeof v);
}
inline Vec splat(float x) { return Vec{} + x; }

inline float sum_of(Vec v) {
    Vec8 halves[2];
    std::memcpy(halves, &v, sizeof v);
    Vec4 quarters[2];
    Vec8 eight = halves[0] + halves[1];
    std::memcpy(quarters, &eight, sizeof eight);
    Vec4 four = quarters[0] + quarters[1];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// Cephes' polynomial; relative error below 2e-7.
template <class V>
ALWAYS_INLINE V exponential(V x) {
    typedef decltype(x < x) Integers;  // as many
    x = x > 88.0f ? V{} + 88.0f : x;
    x = x < -87.0f ? V{} - 87.0f : x;
    const float round = 12582912.0f;  // 1.5 * 2^23
    V n = (x * 1.44269504088896341f + round) - round;
    V r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    V p = V{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return p * cast<V>((__builtin_convertvector(n, Integers) + 127) << 23);
}

// ---- Stored numbers ------------------------------------------------------------------------------

// What a row's inputs are multiplied as, one at a time.
struct FloatInputs {
    typedef float Input;
    ALWAYS_INLINE static void add(Native& sum, Native weights, float input) { sum += weights * input; }
};

// Weights of 16 outputs for input i, a piece of them at a time.
struct Float32Weights : FloatInputs {
    const float* data;
    static constexpr int64_t panel_words(int64_t in) { return in * LANES; }
    ALWAYS_INLINE static Native one(const float* panel, int64_t i, int piece) {
        return read<Native>(panel + i * LANES + piece * NATIVE);
    }
    static constexpr bool IS_FLOAT = true, IS_SCALED = false;
    static constexpr int PARTS = 3;  // see tiles.hpp
};

// A word has inputs i (low half) and i + 1 of one output: a shift or a mask makes a float32.
struct BFloat16Weights : FloatInputs {
    const uint32_t* data;
    static constexpr int64_t panel_words(int64_t in) { return (in + 1) / 2 * LANES; }
    ALWAYS_INLINE static Native one(const uint32_t* panel, int64_t i, int piece) {
        auto words = read<NativeWords>(panel + i / 2 * LANES + piece * NATIVE);
        return cast<Native>(i % 2 ? words & 0xffff0000u : words << 16);
    }
    static constexpr bool IS_FLOAT = false, IS_SCALED = false;
    static constexpr int PARTS = 1;  // see tiles.hpp
};

#ifdef NEURON_SPEC_PAIRS

// The same words, and rows of such words: inputs are rounded to bfloat16, and two are multiplied at a time.
struct BFloat16Pairs {
    const uint32_t* data;
    typedef uint32_t Input;
    ALWAYS_INLINE static void add(Native& sum, Native weights, uint32_t inputs) {
        sum = Native(_mm512_dpbf16_ps(__m512(sum), cast<__m512bh>(weights), cast<__m512bh>(NativeWords{} + inputs)));
    }
    static constexpr int64_t panel_words(int64_t in) { return in * LANES; }  // of pairs
    ALWAYS_INLINE static Native one(const uint32_t* panel, int64_t i, int piece) {
        return read<Native>(panel + i * LANES + piece * NATIVE);
    }
    static constexpr bool IS_SCALED = false;
};

// x [in] -> to [(in + 1) / 2]
inline void put_pairs(const float* x, int64_t in, uint32_t* to) {
    int64_t i = 0;
    for (; i + LANES <= in; i += LANES) {
        auto halves = cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i / 2), halves);
    }
    if (i == in) return;
    auto few = __mmask16((1u << (in - i)) - 1u);
    auto halves = cast<__m256i>(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(few, x + i)));
    std::memcpy(to + i / 2, &halves, (in - i + 1) / 2 * sizeof(uint32_t));
}

#endif

// The scale of an output comes after the sum.
struct Int8Weights : FloatInputs {
    const int8_t* data;
    const float* scales;
    static constexpr int64_t panel_words(int64_t in) { return in * LANES; }
    ALWAYS_INLINE static Native one(const int8_t* panel, int64_t i, int piece) {
        return __builtin_convertvector(wide(panel + i * LANES + piece * NATIVE), Native);
    }
    ALWAYS_INLINE static NativeInts wide(const int8_t* from) {
#if defined(__AVX512F__)
        return NativeInts(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
        return NativeInts(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX__)
        __m128i low = _mm_cvtepi8_epi32(_mm_cvtsi32_si128(read<int32_t>(from)));
        __m128i high = _mm_cvtepi8_epi32(_mm_cvtsi32_si128(read<int32_t>(from + 4)));
        return NativeInts(_mm256_insertf128_si256(_mm256_castsi128_si256(low), high, 1));
#elif defined(__SSE2__)
        __m128i bytes = _mm_cvtsi32_si128(read<int32_t>(from));
        __m128i halves = _mm_unpacklo_epi8(bytes, bytes);
        return NativeInts(_mm_srai_epi32(_mm_unpacklo_epi16(halves, halves), 24));
#else
        typedef int8_t Bytes __attribute__((vector_size(NATIVE)));
        return __builtin_convertvector(read<Bytes>(from), NativeInts);
#endif
    }
    static constexpr bool IS_FLOAT = false, IS_SCALED = true;
};

// An entry of the KV cache.
struct Float32Cache {
    typedef float Number;
    ALWAYS_INLINE static Native native(const float* from) { return read<Native>(from); }
    static float get(const float* from) { return *from; }
    static void put(float* to, float value) { *to = value; }
    static constexpr bool IS_FLOAT = true;
    static constexpr int PARTS = 3;  // see tiles.hpp
};

struct BFloat16Cache {
    typedef uint16_t Number;
    ALWAYS_INLINE static Native native(const uint16_t* from) {
        typedef uint16_t Halves __attribute__((vector_size(2 * NATIVE)));
        typedef uint32_t Wholes __attribute__((vector_size(4 * NATIVE)));
        return cast<Native>(__builtin_convertvector(read<Halves>(from), Wholes) << 16);
    }
    static float get(const uint16_t* from) { return cast<float>(uint32_t(*from) << 16); }
    static void put(uint16_t* to, float value) {  // to nearest, ties to even
        uint32_t bits = cast<uint32_t>(value);
        bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        *to = uint16_t((is_nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
    }
    static constexpr bool IS_FLOAT = false;
    static constexpr int PARTS = 1;  // see tiles.hpp
};

}  // namespace
