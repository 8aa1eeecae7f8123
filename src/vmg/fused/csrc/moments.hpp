// Mean and variance of a ReLU network's outputs, carried through it without samples: vmg/math/moments.py states the
// mathematics and has the same in PyTorch, vmg/prediction/propagation.py makes the small matrices read here. A strip of rows goes
// through the whole network at once and lies along the vectors: every array is [features, STRIP].

#pragma once

#include "products.hpp"
#include "records.hpp"

namespace moments {

constexpr Int STRIP = 32;

// A diagonal layer with its pseudo-data folded in; vmg/fused/library.py packs the same fields, and SmallMatrices in
// vmg/fused/moments.py says what they are. A pointer may be null where the layer has no such thing. E is P in a hidden
// layer and C in the last; without noise of the pseudo-inputs it is zero.
#define MOMENTS_LAYER_FIELDS(INT, REAL, IN, OUT)                                                                       \
    INT(R) INT(I) INT(C) INT(P) INT(E)                                                                                 \
    IN(first) IN(inputs) IN(squares) IN(spread) IN(carry) IN(weight) IN(level) IN(cross) IN(slopes) IN(noise) IN(row)

template <typename T>
struct Layer {
    MEMBERS(MOMENTS_LAYER_FIELDS)
};

// What goes in and comes out: x [n_rows, I], mean and variance [n_rows, C]. Layers stand behind it in memory. lowest is
// the first layer whose pseudo-inputs have noise, n_layers where none has.
#define MOMENTS_NETWORK_FIELDS(INT, REAL, IN, OUT) INT(n_layers) INT(n_rows) INT(lowest) IN(x) OUT(mean) OUT(variance)

template <typename T>
struct Network {
    MEMBERS(MOMENTS_NETWORK_FIELDS)
};

// What a layer keeps of a strip.
template <typename T>
struct Pass {
    T *x, *mean, *gain, *left, *lever, *row, *variance, *slope;
};

// exp of a number that is not positive: a power of two, and a Taylor series on ±½ log 2 (error 1 ulp).
inline float exp_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 · 2²³: rounds to an integer, which is in the low bits
    const float n = shifted - 12582912.0f, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    std::uint32_t bits, power;
    std::memcpy(&bits, &p, 4);
    std::memcpy(&power, &shifted, 4);
    bits += power << 23;
    std::memcpy(&p, &bits, 4);
    return p;
}

// e^(−a²/2) and Φ(a) − ½. Φ(−|a|) e^(a²/2) is a polynomial in 1/(1 + 0.3|a|), fitted to an error of 1e-8.
inline void normal_shares(float a, float& density, float& above) {
    const float size = std::fabs(a), t = 1.0f / (1.0f + 0.3f * size);
    density = exp_negative(-0.5f * a * a);
    float p = -0.035221285f;
    p = p * t + 0.0222728059f;
    p = p * t + 0.349871456f;
    p = p * t - 0.219848819f;
    p = p * t + 0.313780232f;
    p = p * t + 0.0622690779f;
    p = p * t + 0.00687652343f;
    above = std::copysign(0.5f - p * density, a);
}

inline void normal_shares(double a, double& density, double& above) {
    density = std::exp(-0.5 * a * a);
    above = 0.5 * std::erf(a * 0.70710678118654752);
}

// max(0, h) for h ~ N(mean, variance): relu_moments of vmg/math/moments.py.
template <typename T>
void rectify(Int n, const T* mean, const T* variance, T* to_mean, T* to_variance, T* slope) {
#pragma omp simd
    for (Int i = 0; i < n; ++i) {
        const T least = std::numeric_limits<T>::min();
        const T scale = std::sqrt(variance[i] < least ? least : variance[i]), a = mean[i] / scale;
        T density, above;
        normal_shares(a, density, above);
        const T q = a * above + T(0.39894228040143268) * density, plus = T(0.5) * a + q, minus = T(0.5) * a - q;
        const T share = above + T(0.5) + plus * minus;
        to_mean[i] = plus * scale;
        to_variance[i] = (share < 0 ? T(0) : share) * variance[i];
        slope[i] = above + T(0.5);
    }
}

// C [m, columns] = alpha·Wᵀ·B, or added to C; W is [k, m] and B is [k, columns].
template <typename T>
void times(const T* W, const T* B, T* C, Int m, Int k, Int columns = STRIP, T alpha = 1, bool add = false) {
    thread_local std::vector<T> unused;  // whole vectors are never copied
    multiply<T>({W, 1, m}, {B, columns, 1}, {C, columns, 1}, m, k, columns, alpha, add, unused);
}

// Mean and variance of the layer's outputs, given those of its inputs.
template <typename T>
void forward(const Layer<T>& l, const Pass<T>& p, const T* variance, T* scratch) {
    times(l.first, p.x, p.mean, l.C + l.P, l.R);
    std::copy(p.x, p.x + l.R * STRIP, p.left);
    if (l.P) times(l.inputs, p.gain, p.left, l.R, l.P, STRIP, T(-1), true);
    for (Int i = 0; i < l.R * STRIP; ++i) scratch[i] = p.left[i] * p.left[i];
    times(l.squares, scratch, p.lever, l.E + 1, l.R);
    T* power = p.row + STRIP;
    for (Int i = 0; i < l.P * STRIP; ++i) power[i] = p.gain[i] * p.gain[i];
    times(l.spread, p.row, p.variance, l.C, 1 + l.P);
    if (l.carry) times(l.carry, variance, p.variance, l.C, l.I, STRIP, T(1), true);
}

// The share of the last layer's pseudo-inputs in the variance of each output, in place of its levers.
template <typename T>
void last_share(const Layer<T>& l, const Pass<T>& p, T* scratch) {
    times(l.level, p.row + STRIP, p.lever, l.C, l.P, STRIP, T(1), true);
    times(l.cross, p.left, scratch, l.C * l.P, l.R);
    for (Int c = 0; c < l.C; ++c)
        for (Int k = 0; k < l.P; ++k)
            for (Int s = 0; s < STRIP; ++s)
                p.lever[c * STRIP + s] -= 2 * p.gain[k * STRIP + s] * scratch[(c * l.P + k) * STRIP + s];
}

// Adds a hidden layer's share to `total`, given the slope g [C] of an output at this layer's outputs; `back` [R+E]
// becomes its slope at the inputs, and then H.
template <typename T>
void hidden_share(const Layer<T>& l, const Pass<T>& p, const T* g, T* back, T* scratch, T* total) {
    times(l.slopes, g, back, l.R + l.E, l.C);
    if (!l.E) return;
    for (Int r = 0; r < l.R; ++r) {
        const T *slope = back + r * STRIP, *left = p.left + r * STRIP, u = l.row[r];
        T* to = scratch + r * 2 * STRIP;
        for (Int s = 0; s < STRIP; ++s) {
            to[s] = u * left[s] * slope[s];
            to[STRIP + s] = slope[s] * slope[s];
        }
    }
    T* sums = scratch + l.R * 2 * STRIP;  // [P, 2·STRIP]
    times(l.noise, scratch, sums, l.P, l.R, 2 * STRIP);
    T share[STRIP] = {};
    for (Int k = 0; k < l.P; ++k) {
        const T *H = back + (l.R + k) * STRIP, *G = p.gain + k * STRIP, *lever = p.lever + k * STRIP;
        const T *across = sums + k * 2 * STRIP, *along = across + STRIP;
        for (Int s = 0; s < STRIP; ++s)
            share[s] += H[s] * H[s] * lever[s] + G[s] * (G[s] * along[s] - 2 * H[s] * across[s]);
    }
    for (Int s = 0; s < STRIP; ++s) total[s] += share[s] < 0 ? T(0) : share[s];
}

// Entries of a strip that a layer keeps, and of the scratch it needs.
template <typename T>
Int kept(const Layer<T>& l) {
    return STRIP * (2 * l.R + 3 * l.C + 2 * l.P + l.E + 1);
}

template <typename T>
Int needed(const Layer<T>& l) {
    return STRIP * std::max(2 * (l.R + l.P), l.C * l.P);
}

template <typename T>
void propagate(const Network<T>& network) {
    const Int n = network.n_layers;
    const Layer<T>* layers = reinterpret_cast<const Layer<T>*>(&network + 1);
    const Layer<T>& last = layers[n - 1];
    Int total = 0, widest = 0, scratch_size = 0;
    for (Int k = 0; k < n; ++k) {
        total += kept(layers[k]);
        scratch_size = std::max(scratch_size, needed(layers[k]));
        widest = std::max({widest, layers[k].R + layers[k].E, layers[k].C});
    }
    thread_local std::vector<T> memory;
    T* scratch = reserve(memory, total + scratch_size + 3 * widest * STRIP);
    T *g = scratch + scratch_size, *back = g + widest * STRIP, *variance = back + widest * STRIP;
    T* place = variance + widest * STRIP;
    std::vector<Pass<T>> passes(n);
    for (Int k = 0; k < n; ++k) {
        const Layer<T>& l = layers[k];
        Pass<T>& p = passes[k];
        const auto take = [&place](Int rows) {
            T* at = place;
            place += rows * STRIP;
            return at;
        };
        p.x = take(l.R), p.mean = take(l.C), p.gain = take(l.P), p.left = take(l.R);
        p.lever = take(l.E), p.row = take(1 + l.P), p.variance = take(l.C), p.slope = take(l.C);
        if (l.R > l.I) std::fill(p.x + l.I * STRIP, p.x + l.R * STRIP, T(1));  // of the bias
    }
    const Pass<T>& end = passes[n - 1];
    const Int I = layers[0].I, C = last.C;
    for (Int done = 0; done < network.n_rows; done += STRIP) {
        const Int rows = std::min(STRIP, network.n_rows - done);
        const T* x = network.x + done * I;
        if (rows < STRIP) std::fill(passes[0].x, passes[0].x + I * STRIP, T(0));
        for (Int s = 0; s < rows; ++s)
            for (Int i = 0; i < I; ++i) passes[0].x[i * STRIP + s] = x[s * I + i];
        for (Int k = 0; k < n; ++k) {
            forward(layers[k], passes[k], variance, scratch);
            if (k + 1 < n)
                rectify(layers[k].C * STRIP, passes[k].mean, passes[k].variance, passes[k + 1].x, variance,
                        passes[k].slope);
        }
        if (last.E) last_share(last, end, scratch);
        for (Int c = 0; c < C && network.lowest < n; ++c) {
            T share[STRIP] = {};
            if (last.E)
                for (Int s = 0; s < STRIP; ++s) share[s] = std::max(end.lever[c * STRIP + s], T(0));
            for (Int k = n - 2; k >= network.lowest; --k) {
                const T* slope = passes[k].slope;
                for (Int d = 0; d < layers[k].C; ++d)
                    for (Int s = 0; s < STRIP; ++s)
                        g[d * STRIP + s] =
                            slope[d * STRIP + s] * (k == n - 2 ? last.weight[d * C + c] : back[d * STRIP + s]);
                hidden_share(layers[k], passes[k], g, back, scratch, share);
            }
            for (Int s = 0; s < STRIP; ++s) end.variance[c * STRIP + s] += share[s];
        }
        for (Int s = 0; s < rows; ++s)
            for (Int c = 0; c < C; ++c) {
                network.mean[(done + s) * C + c] = end.mean[c * STRIP + s];
                network.variance[(done + s) * C + c] = end.variance[c * STRIP + s];
            }
    }
}

}  // namespace moments

API int vmg_moments_f32(const moments::Network<float>* network) noexcept {
    return guarded([&] { return moments::propagate(*network), 0; });
}
API int vmg_moments_f64(const moments::Network<double>* network) noexcept {
    return guarded([&] { return moments::propagate(*network), 0; });
}
