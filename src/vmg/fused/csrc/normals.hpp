// Normal numbers, many at once.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "memory.hpp"

namespace {

// 16 generators side by side (two vectors of 32-bit integers): xoshiro128++ of Blackman & Vigna (2021).
constexpr int LANES = 16;

struct Generators {
    std::uint32_t s[4][LANES];

    explicit Generators(std::uint64_t seed) {
        for (int lane = 0; lane < LANES; ++lane)
            for (int half = 0; half < 2; ++half) {  // splitmix64, as its authors advise for seeding
                std::uint64_t x = (seed += 0x9e3779b97f4a7c15u);
                x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
                x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
                x ^= x >> 31;
                s[2 * half][lane] = std::uint32_t(x);
                s[2 * half + 1][lane] = std::uint32_t(x >> 32) | (half == 1);  // a state must not be all zero
            }
    }

    static std::uint32_t rotate(std::uint32_t x, int k) { return (x << k) | (x >> (32 - k)); }

    void next(std::uint32_t* result) {
        for (int l = 0; l < LANES; ++l) {
            result[l] = rotate(s[0][l] + s[3][l], 7) + s[0][l];
            const std::uint32_t t = s[1][l] << 9;
            s[2][l] ^= s[0][l];
            s[3][l] ^= s[1][l];
            s[1][l] ^= s[2][l];
            s[0][l] ^= s[3][l];
            s[2][l] ^= t;
            s[3][l] = rotate(s[3][l], 11);
        }
    }
};

// log of a positive normal float: exponent by bits, mantissa in [√½, √2) by the Cephes polynomial (error 1 ulp).
inline float log_positive(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const std::uint32_t shifted = bits - 0x3f3504f3u;  // √½
    const std::int32_t exponent = std::int32_t(shifted) >> 23;
    bits = (shifted & 0x007fffffu) + 0x3f3504f3u;
    float m;
    std::memcpy(&m, &bits, 4);
    m -= 1.0f;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    return m + m * m * (p * m - 0.5f) + float(exponent) * 0.69314718056f;
}

// Standard normals by Box and Muller: pairs r·(cos, sin) of angles 2πt with t uniform, r² = −2 log of a uniform.
void normals(float* out, Int n, std::uint64_t seed) {
    Generators generators(seed);
    float buffer[2 * LANES];
    for (Int done = 0; done < n; done += 2 * LANES) {
        std::uint32_t first[LANES], second[LANES];
        generators.next(first);
        generators.next(second);
        float* to = n - done >= 2 * LANES ? out + done : buffer;
        for (int l = 0; l < LANES; ++l) {
            const float uniform = float(std::int32_t(first[l] >> 8) + 1) * 0x1p-24f;  // (0, 1], as the logarithm needs
            const float r = std::sqrt(-2.0f * log_positive(uniform));
            // the top two bits choose the quarter turn, the rest an angle within ±⅛ turn, where short series suffice
            const float angle = float(std::int32_t(second[l] << 2) >> 8) * (0x1p-24f * 1.57079632679f);
            const float a2 = angle * angle;
            const float sine =
                angle + angle * a2 * (-1.6666654611e-1f + a2 * (8.3321608736e-3f - a2 * 1.9515295891e-4f));
            const float cosine =
                1.0f - 0.5f * a2 + a2 * a2 * (4.166664568e-2f + a2 * (-1.388731625e-3f + a2 * 2.443315711e-5f));
            const bool swap = second[l] >> 31, negative = (second[l] >> 30) & 1;
            const float c = swap ? sine : cosine, s = swap ? cosine : sine;
            to[l] = r * (negative ? -c : c);
            to[LANES + l] = r * (negative ? -s : s);
        }
        if (to == buffer) std::copy(buffer, buffer + (n - done), out + done);
    }
}

}  // namespace
