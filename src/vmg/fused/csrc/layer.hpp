// What a diagonal layer reads and writes, and the steps of its forward and backward pass.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "products.hpp"
#include "records.hpp"

namespace {

// Everything a layer's forward and backward pass read and write; vmg/fused/library.py packs the same fields.
// A pointer may be null where the layer has no such thing (M of the zero-mean layer, a gradient nobody asked for).
// x_stride is between replicas, 0 where all share one x. factored says whether log √α is a factor per entry [R+C] plus
// one per point [P], or one for Ã and one for B̃. What z to scale hold is kept for the backward pass. AU, g_variance,
// factors and rows are scratch, which is set here and not by the caller.
#define LAYER_FIELDS(INT, REAL, IN, OUT)                                                                               \
    INT(n) INT(B) INT(I) INT(R) INT(C) INT(P) INT(x_stride) INT(factored)                                              \
    REAL(input_scale) REAL(damping)                                                                                    \
    IN(x) IN(M) IN(log_row) IN(log_column) IN(points) IN(log_noise) IN(log_point_noise) IN(point_noise) IN(noise)      \
    OUT(z) OUT(u) OUT(v) OUT(entry_scale) OUT(point_scale) OUT(outputs) OUT(gain) OUT(root) OUT(scale) OUT(out)        \
    OUT(AU) IN(g) OUT(g_variance) OUT(factors) OUT(rows)                                                               \
    OUT(g_x) OUT(g_M) OUT(g_log_row) OUT(g_log_column) OUT(g_points) OUT(g_log_noise) OUT(g_log_point_noise)

template <typename T>
struct Layer {
    MEMBERS(LAYER_FIELDS)

    Int width() const { return R + C; }               // of a pseudo-point
    Int stride() const { return B + P; }              // rows of z, and columns of [gain, Σ₁₁]
    Int n_log() const { return factored ? R + C : 2; }

    // An input layer needs D = gMᵀ only within gB̃ᵀ − DÃᵀ = g(B̃ − ÃM)ᵀ and GD = (Gg)Mᵀ; with few pseudo-points the
    // right-hand sides are cheaper.
    bool around_D() const { return P && M && !g_x && 2 * P * C < B * (C + P); }

    // The same layer with every pointer moved to replica k.
    Layer replica(Int k) const {
        Layer l = *this;
        const auto move = [k](auto& pointer, Int size) {
            if (pointer) pointer += k * size;
        };
        move(l.x, x_stride), move(l.M, R * C), move(l.log_row, R), move(l.log_column, C);
        move(l.points, P * width()), move(l.log_noise, n_log()), move(l.log_point_noise, P);
        move(l.point_noise, P * width()), move(l.noise, B * C);
        move(l.z, stride() * R), move(l.u, R), move(l.v, C), move(l.entry_scale, width()), move(l.point_scale, P);
        move(l.outputs, P * C), move(l.gain, P * stride()), move(l.root, P * P), move(l.scale, B), move(l.out, B * C);
        move(l.AU, P * R), move(l.g, B * C), move(l.g_variance, B), move(l.factors, P * 2 * B);
        move(l.rows, 2 * B * R), move(l.g_x, B * I), move(l.g_M, R * C), move(l.g_log_row, R);
        move(l.g_log_column, C), move(l.g_points, P * width()), move(l.g_log_noise, n_log());
        move(l.g_log_point_noise, P);
        return l;
    }
};


// ------------------------------------------------------------------------------------------------ the steps, forwards

// z = [x̂; Ã], AU = Ã∘u, B̃, u = σ_r², v = σ_c, √α = point_scale ⊗ entry_scale, and σ₂₂ (in `scale`, for the time being).
// False where a σ₂₂ is not finite, as is the case if some x is not.
template <typename T>
bool prepare(const Layer<T>& l) {
    const T input_scale = T(l.input_scale);
    for (Int r = 0; r < l.R; ++r) l.u[r] = std::exp(2 * l.log_row[r]);
    for (Int c = 0; c < l.C; ++c) l.v[c] = std::exp(l.log_column[c]);
    if (l.point_noise) {
        for (Int p = 0; p < l.P; ++p) l.point_scale[p] = l.factored ? std::exp(l.log_point_noise[p]) : T(1);
        if (l.factored) {
            for (Int j = 0; j < l.width(); ++j) l.entry_scale[j] = std::exp(l.log_noise[j]);
        } else {
            std::fill(l.entry_scale, l.entry_scale + l.R, std::exp(l.log_noise[0]));
            std::fill(l.entry_scale + l.R, l.entry_scale + l.width(), std::exp(l.log_noise[1]));
        }
    }
    const T *u = l.u, *entry_scale = l.entry_scale;
    bool finite = true;
    for (Int b = 0; b < l.B; ++b) {
        const T* x = l.x + b * l.I;
        T *z = l.z + b * l.R, variance = 0;
#pragma omp simd reduction(+ : variance)
        for (Int i = 0; i < l.I; ++i) {
            z[i] = input_scale * x[i];
            variance += u[i] * z[i] * z[i];
        }
        if (l.R > l.I) {
            z[l.I] = input_scale;
            variance += u[l.I] * input_scale * input_scale;
        }
        l.scale[b] = variance;
        finite = finite && std::isfinite(variance);
    }
    for (Int p = 0; p < l.P; ++p) {
        T *A = l.z + (l.B + p) * l.R, *AU = l.AU + p * l.R, *outputs = l.outputs + p * l.C;
        const T* points = l.points + p * l.width();
        if (l.point_noise) {
            const T* e = l.point_noise + p * l.width();
            const T a = l.point_scale[p];
#pragma omp simd
            for (Int r = 0; r < l.R; ++r) {
                A[r] = input_scale * points[r] * (1 + a * entry_scale[r] * e[r]);
                AU[r] = A[r] * u[r];
            }
            points += l.R, e += l.R;
#pragma omp simd
            for (Int c = 0; c < l.C; ++c) outputs[c] = points[c] * (1 + a * entry_scale[l.R + c] * e[c]);
        } else {
#pragma omp simd
            for (Int r = 0; r < l.R; ++r) {
                A[r] = input_scale * points[r];
                AU[r] = A[r] * u[r];
            }
            std::copy(points + l.R, points + l.width(), outputs);
        }
    }
    return finite;
}

// Upper Cholesky factor, rootᵀ root = S + damping·I, of S [P, P] with row stride `stride`; upper, because then the inner
// loop runs along memory. False where a pivot is not positive.
template <typename T>
bool factorise(Int P, const T* S, Int stride, T damping, T* root) {
    bool good = true;
    for (Int i = 0; i < P; ++i) {
        T* row = root + i * P;
        std::fill(row, row + i, T(0));
        std::copy(S + i * stride + i, S + i * stride + P, row + i);
        row[i] += damping;
        for (Int k = 0; k < i; ++k) {
            const T *above = root + k * P, factor = above[i];
#pragma omp simd
            for (Int j = i; j < P; ++j) row[j] -= factor * above[j];
        }
        good = good && row[i] > 0;  // false for NaN too
        const T pivot = std::sqrt(row[i]);
        for (Int j = i; j < P; ++j) row[j] /= pivot;
    }
    return good;
}

// The same with growing jitter where it fails: the rule of vmg/math/linalg.py:cholesky.
template <typename T>
bool factorise_with_jitter(Int P, const T* S, Int stride, T damping, T* root) {
    if (factorise(P, S, stride, damping, root)) return true;
    T level = 0, relative = std::max(T(1e-8), std::numeric_limits<T>::epsilon());
    for (Int i = 0; i < P; ++i) level += (S[i * stride + i] + damping) / T(P);
    for (int k = 0; k < 6; ++k, relative *= 10)
        if (factorise(P, S, stride, damping + relative * level, root)) return true;
    return false;
}

// `vectors` vectors of columns of (rootᵀ root)⁻¹ X, of which n exist, by way of a copy in `strip` that stays in cache.
template <typename T, Int vectors>
void solve_strip(Int P, const T* root, T* X, Int stride, Int n, T* strip) {
    using V = Vector<T>;
    constexpr Int width = vectors * V::width;
    for (Int i = 0; i < P; ++i) {
        std::copy(X + i * stride, X + i * stride + n, strip + i * width);
        std::fill(strip + i * width + n, strip + (i + 1) * width, T(0));
    }
    // row i, less its products with rows [first, last), over the pivot
    const auto eliminate = [&](Int i, Int first, Int last, const T* factor, Int factor_stride) {
        typename V::type sum[vectors];
        std::memcpy(sum, strip + i * width, sizeof sum);
        for (Int k = first; k < last; ++k)
            for (Int v = 0; v < vectors; ++v)
                sum[v] -= factor[k * factor_stride] * V::load(strip + k * width + v * V::width);
        const T pivot = 1 / root[i * P + i];
        for (Int v = 0; v < vectors; ++v) sum[v] *= pivot;
        std::memcpy(strip + i * width, sum, sizeof sum);
    };
    for (Int i = 0; i < P; ++i) eliminate(i, 0, i, root + i, P);
    for (Int i = P - 1; i >= 0; --i) eliminate(i, i + 1, P, root + i * P, 1);
    for (Int i = 0; i < P; ++i) std::copy(strip + i * width, strip + i * width + n, X + i * stride);
}

// X <- (rootᵀ root)⁻¹ X in place; X [P, columns] with row stride `stride`.
template <typename T>
void solve(Int P, const T* root, T* X, Int stride, Int columns) {
    constexpr Int many = 8, few = 2;  // vectors: eight sums hide the latency of a multiply-add, two waste less at the end
    constexpr Int width = Vector<T>::width;
    thread_local std::vector<T> memory;
    T* strip = reserve(memory, P * many * width);
    Int j = 0;
    for (; columns - j > 2 * few * width; j += many * width)
        solve_strip<T, many>(P, root, X + j, stride, std::min(many * width, columns - j), strip);
    for (; j < columns; j += few * width)
        solve_strip<T, few>(P, root, X + j, stride, std::min(few * width, columns - j), strip);
}

// out += scale ∘ noise ∘ v with scale² = Σ u x'² + σ² Σ gain², kept above the rounding error of σ₂₂, which is in `scale`
// on entry. A scale at that floor is stored with a minus sign: it passes no gradient.
template <typename T>
void add_noise(const Layer<T>& l) {
    using Limits = std::numeric_limits<T>;
    const T damping = T(l.damping), *u = l.u, *v = l.v;
    thread_local std::vector<T> memory;
    T* variance = reserve(memory, l.B);
    for (Int b = 0; b < l.B; ++b) {
        const T* x = l.z + b * l.R;
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (Int r = 0; r < l.R; ++r) sum += u[r] * x[r] * x[r];
        variance[b] = sum;
    }
    for (Int p = 0; p < l.P; ++p) {
        const T* gain = l.gain + p * l.stride();
        for (Int b = 0; b < l.B; ++b) variance[b] += damping * gain[b] * gain[b];
    }
    for (Int b = 0; b < l.B; ++b) {
        const T floor = 10 * Limits::epsilon() * l.scale[b] + Limits::min();
        const T root = std::sqrt(variance[b] <= floor ? floor : variance[b]);
        l.scale[b] = variance[b] <= floor ? -root : root;
        const T* noise = l.noise + b * l.C;
        T* out = l.out + b * l.C;
#pragma omp simd
        for (Int c = 0; c < l.C; ++c) out[c] += root * (noise[c] * v[c]);
    }
}


// ----------------------------------------------------------------------------------------------- the steps, backwards

// Gradients of the row variances and of log σ_c.
template <typename T>
void backward_noise(const Layer<T>& l) {
    T* g_log_column = l.g_log_column;
    const T* v = l.v;
    std::fill(g_log_column, g_log_column + l.C, T(0));
    for (Int b = 0; b < l.B; ++b) {
        const T *g = l.g + b * l.C, *noise = l.noise + b * l.C, root = std::abs(l.scale[b]);
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (Int c = 0; c < l.C; ++c) {
            const T product = g[c] * noise[c] * v[c];
            sum += product;
            g_log_column[c] += root * product;
        }
        l.g_variance[b] = l.scale[b] > 0 ? sum / (2 * root) : T(0);
    }
}

// factors [P, 2B]: the right half is Eᵀ on entry and Hᵀ = Σ₁₁⁻¹Eᵀ on return, the left half becomes −gain / input_scale.
template <typename T>
void backward_solve(const Layer<T>& l) {
    const T factor = T(-1 / l.input_scale);
    for (Int p = 0; p < l.P; ++p) {
        T* to = l.factors + p * 2 * l.B;
        const T* gain = l.gain + p * l.stride();
        for (Int b = 0; b < l.B; ++b) to[b] = factor * gain[b];
    }
    solve(l.P, l.root, l.factors + l.B, 2 * l.B, l.B);
}

// rows [2B, R]: [D; Q] on entry, [gradient of x̂ times input_scale; x'∘u] on return; and the gradient of log σ_r.
template <typename T>
void backward_inputs(const Layer<T>& l) {
    T* g_log_row = l.g_log_row;
    const T* u = l.u;
    const T input_scale = T(l.input_scale);
    std::fill(g_log_row, g_log_row + l.R, T(0));
    for (Int b = 0; b < l.B; ++b) {
        T *D = l.rows + b * l.R, *Q = l.rows + (l.B + b) * l.R;
        const T *x = l.z + b * l.R, g_variance = l.g_variance[b];
#pragma omp simd
        for (Int r = 0; r < l.R; ++r) {
            const T q = Q[r] + g_variance * x[r], ux = u[r] * x[r];
            g_log_row[r] += 2 * ux * q;
            D[r] = input_scale * (D[r] + u[r] * q + g_variance * ux);
            Q[r] = ux;
        }
        if (l.g_x) std::copy(D, D + l.I, l.g_x + b * l.I);
    }
}

// g_points [P, R+C]: gradient of [Ã, B̃] on entry, of their means on return; and those of the logarithms of √α.
template <typename T>
void backward_points(const Layer<T>& l) {
    const Int width = l.width();
    if (!l.point_noise) {
        for (Int p = 0; p < l.P; ++p)
            for (Int r = 0; r < l.R; ++r) l.g_points[p * width + r] *= T(l.input_scale);
        return;
    }
    thread_local std::vector<T> scratch;
    scratch.assign(width, T(0));
    T* sums = scratch.data();  // over points
    const T* entry_scale = l.entry_scale;
    for (Int p = 0; p < l.P; ++p) {
        const T *points = l.points + p * width, *noise = l.point_noise + p * width, a = l.point_scale[p];
        T *g_points = l.g_points + p * width, sum = 0;
        const auto part = [&](Int first, Int last, T scale) {
            T total = 0;
#pragma omp simd reduction(+ : total)
            for (Int j = first; j < last; ++j) {
                const T change = a * entry_scale[j] * noise[j], g = scale * g_points[j], g_log = g * points[j] * change;
                sums[j] += g_log;
                total += g_log;
                g_points[j] = g * (1 + change);
            }
            sum += total;
        };
        part(0, l.R, T(l.input_scale));
        part(l.R, width, T(1));
        if (l.factored) l.g_log_point_noise[p] = sum;
    }
    if (l.factored) {
        std::copy(sums, sums + width, l.g_log_noise);
    } else {
        l.g_log_noise[0] = l.g_log_noise[1] = 0;
        for (Int j = 0; j < width; ++j) l.g_log_noise[j >= l.R] += sums[j];
    }
}


// ---------------------------------------------------------------------------------------- all of it for one replica

template <typename T>
int forward(Layer<T> l, Int threads) {
    thread_local std::vector<T> memory;
    l.AU = reserve(memory, l.P * l.R);
    int status = prepare(l) ? 0 : NOT_FINITE;
    if (l.P) {
        const View<const T> gain_t{l.gain, 1, l.stride()};
        multiply<T>({l.z, l.R, 1}, {l.AU, 1, l.R}, {l.gain, 1, l.stride()}, l.stride(), l.R, l.P, 1, false, threads);
        if (!factorise_with_jitter(l.P, l.gain + l.B, l.stride(), T(l.damping), l.root)) return status | NOT_POSITIVE;
        solve(l.P, l.root, l.gain, l.stride(), l.B);
        multiply<T>(gain_t, {l.z + l.B * l.R, l.R, 1}, {l.z, l.R, 1}, l.B, l.P, l.R, -1, true, threads);
        multiply<T>(gain_t, {l.outputs, l.C, 1}, {l.out, l.C, 1}, l.B, l.P, l.C, 1, false, threads);
    }
    if (l.M) multiply<T>({l.z, l.R, 1}, {l.M, l.C, 1}, {l.out, l.C, 1}, l.B, l.R, l.C, 1, l.P > 0, threads);
    add_noise(l);
    return status;
}

template <typename T>
int backward(Layer<T> l, Int threads) {
    thread_local std::vector<T> memory_rows, memory_factors, memory_variance, memory_residual;
    l.rows = reserve(memory_rows, 2 * l.B * l.R);
    l.factors = reserve(memory_factors, 2 * l.B * l.P);
    l.g_variance = reserve(memory_variance, l.B);
    const Int width = l.width();
    T *D = l.rows, *Q = D + l.B * l.R, *E = l.factors + l.B;
    const T* A = l.z + l.B * l.R;
    const bool around_D = l.around_D();
    backward_noise(l);
    if (l.M && !around_D)
        multiply<T>({l.g, l.C, 1}, {l.M, 1, l.C}, {D, l.R, 1}, l.B, l.C, l.R, 1, false, threads);
    else
        std::fill(D, Q, T(0));
    if (l.g_M) multiply<T>({l.z, 1, l.R}, {l.g, l.C, 1}, {l.g_M, l.C, 1}, l.R, l.B, l.C, 1, false, threads);
    if (l.P) {
        const T* outputs = l.outputs;
        if (around_D) {  // B̃ − ÃM
            T* residual = reserve(memory_residual, l.P * l.C);
            std::copy(outputs, outputs + l.P * l.C, residual);
            multiply<T>({A, l.R, 1}, {l.M, l.C, 1}, {residual, l.C, 1}, l.P, l.R, l.C, -1, true, threads);
            outputs = residual;
        }
        multiply<T>({l.g, l.C, 1}, {outputs, 1, l.C}, {E, 1, 2 * l.B}, l.B, l.C, l.P, 1, false, threads);
        if (l.M && !around_D)
            multiply<T>({D, l.R, 1}, {A, 1, l.R}, {E, 1, 2 * l.B}, l.B, l.R, l.P, -1, true, threads);
        backward_solve(l);
        multiply<T>({E, 1, 2 * l.B}, {A, l.R, 1}, {Q, l.R, 1}, l.B, l.P, l.R, 1, false, threads);
    } else {
        std::fill(Q, Q + l.B * l.R, T(0));
    }
    backward_inputs(l);
    if (!l.P) return 0;
    const View<T> g_A{l.g_points, width, 1}, g_B{l.g_points + l.R, width, 1};
    multiply<T>({l.factors, 2 * l.B, 1}, {D, l.R, 1}, g_A, l.P, 2 * l.B, l.R, 1, false, threads);
    multiply<T>({l.gain, l.stride(), 1}, {l.g, l.C, 1}, g_B, l.P, l.B, l.C, 1, false, threads);
    if (around_D) multiply<T>({g_B.data, width, 1}, {l.M, 1, l.C}, g_A, l.P, l.C, l.R, -1, true, threads);
    backward_points(l);
    return 0;
}

// One of them for all replicas, which share the threads, or for the one that there is, whose products do.
template <typename T, typename Pass>
int over_replicas(const Layer<T>& layer, Int threads, Pass pass) {
    if (layer.n == 1) return pass(layer, threads);
    return in_parts(threads, layer.n, [&](Int first, Int last) {
        int status = 0;
        for (Int k = first; k < last; ++k) status |= pass(layer.replica(k), 1);
        return status;
    });
}

}  // namespace
