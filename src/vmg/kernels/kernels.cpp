// Everything of a diagonal layer that is not a large matrix product, as plain loops over contiguous arrays.
//
// vmg/conditional.py states the mathematics and has the same in PyTorch. Letters: n replicas, B rows of a batch, I inputs, R = I or I + 1 (bias), C outputs, P pseudo-points.
// Arrays are row-major with the replicas first. No dependencies, so that any C++17 compiler builds it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#if defined(_WIN32)
#define API extern "C" __declspec(dllexport)
#else
#define API extern "C" __attribute__((visibility("default")))
#endif

namespace {

using Int = std::int64_t;

// Everything a layer's forward and backward pass read and write; vmg/kernels/__init__.py declares the same fields.
// A pointer may be null where the layer has no such thing (M of the zero-mean layer, a gradient nobody asked for).
template <typename T>
struct Layer {
    Int n, B, I, R, C, P;
    Int x_stride;  // between replicas; 0 where all share one x
    Int factored;  // whether log √α is a factor per entry [R+C] plus one per point [P], or one for Ã and one for B̃
    double input_scale, damping;
    const T *x, *M, *log_row, *log_column, *points, *log_noise, *log_point_noise, *point_noise, *noise;
    T *z, *u, *v, *entry_scale, *point_scale, *outputs, *gain, *root, *scale, *out;  // kept for the backward pass
    T* AU;
    const T* g;
    T *g_variance, *factors, *rows;
    T *g_x, *g_M, *g_log_row, *g_log_column, *g_points, *g_log_noise, *g_log_point_noise;

    Int width() const { return R + C; }               // of a pseudo-point
    Int stride() const { return B + P; }              // rows of z, and columns of [gain, Σ₁₁]
    Int n_log() const { return factored ? R + C : 2; }

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

// Memory that outlives the call, so that a training loop allocates it once.
template <typename T>
T* reserve(std::vector<T>& memory, Int size) {
    if (Int(memory.size()) < size) memory.resize(size);
    return memory.data();
}

// ---------------------------------------------------------------------------------------------- small matrix products

// 32 bytes is one AVX register; elsewhere the compiler splits it into what the machine has.
constexpr Int VECTOR_BYTES = 32;
// Rows × vectors of one block: 4 × 2 accumulators hide the latency of a fused multiply-add and fit 16 registers.
constexpr Int BLOCK_ROWS = 4, BLOCK_VECTORS = 2;

template <typename T>
struct Vector {
    static constexpr Int width = VECTOR_BYTES / Int(sizeof(T));
    typedef T type __attribute__((vector_size(VECTOR_BYTES)));
    static type load(const T* p) {
        type v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
};

// A matrix seen through its strides, so that a transpose is free.
template <typename T>
struct View {
    T* data;
    Int row, column;
    T& operator()(Int i, Int j) const { return data[i * row + j * column]; }
    View rows(Int first) const { return {data + first * row, row, column}; }
    View columns(Int first) const { return {data + first * column, row, column}; }
};

// One block of C: `rows` rows of A times a panel of `vectors` vectors, of which `columns` entries exist in C.
template <typename T, Int rows, Int vectors>
void multiply_block(View<const T> A, const T* panel, Int panel_stride, Int k, T alpha, bool add, View<T> C,
                    Int columns) {
    using V = Vector<T>;
    typename V::type sum[rows][vectors] = {};
    for (Int l = 0; l < k; ++l, panel += panel_stride) {
        typename V::type b[vectors];
        for (Int v = 0; v < vectors; ++v) b[v] = V::load(panel + v * V::width);
        for (Int i = 0; i < rows; ++i)
            for (Int v = 0; v < vectors; ++v) sum[i][v] += A(i, l) * b[v];
    }
    for (Int i = 0; i < rows; ++i) {
        if (columns == vectors * V::width && C.column == 1) {
            T* c = &C(i, 0);
            for (Int v = 0; v < vectors; ++v, c += V::width) {
                typename V::type result = alpha * sum[i][v];
                if (add) result += V::load(c);
                std::memcpy(c, &result, sizeof result);
            }
        } else {
            T result[vectors * V::width];
            std::memcpy(result, sum[i], sizeof result);
            for (Int j = 0; j < columns; ++j) C(i, j) = alpha * result[j] + (add ? C(i, j) : T(0));
        }
    }
}

template <typename T, Int vectors>
void multiply_panel(View<const T> A, View<const T> B, View<T> C, Int m, Int k, Int columns, T alpha, bool add,
                    std::vector<T>& scratch) {
    constexpr Int width = vectors * Vector<T>::width;
    const T* panel = B.data;
    Int stride = B.row;
    if (B.column != 1 || columns < width) {  // copy what cannot be read as whole vectors
        T* copy = reserve(scratch, k * width);
        if (B.column == 1) {
            for (Int l = 0; l < k; ++l)
                for (Int j = 0; j < width; ++j) copy[l * width + j] = j < columns ? B(l, j) : T(0);
        } else {
            for (Int j = 0; j < width; ++j)
                for (Int l = 0; l < k; ++l) copy[l * width + j] = j < columns ? B(l, j) : T(0);
        }
        panel = copy;
        stride = width;
    }
    Int i = 0;
    for (; i + BLOCK_ROWS <= m; i += BLOCK_ROWS)
        multiply_block<T, BLOCK_ROWS, vectors>(A.rows(i), panel, stride, k, alpha, add, C.rows(i), columns);
    switch (m - i) {  // the rest
        case 3: multiply_block<T, 3, vectors>(A.rows(i), panel, stride, k, alpha, add, C.rows(i), columns); break;
        case 2: multiply_block<T, 2, vectors>(A.rows(i), panel, stride, k, alpha, add, C.rows(i), columns); break;
        case 1: multiply_block<T, 1, vectors>(A.rows(i), panel, stride, k, alpha, add, C.rows(i), columns); break;
    }
}

// C = alpha·A·B, or C += alpha·A·B; A is m × k, B is k × c. Where B is a transpose it is copied, so the smaller factor
// should come second; C may be a transpose too.
template <typename T>
void multiply(View<const T> A, View<const T> B, View<T> C, Int m, Int k, Int c, T alpha, bool add,
              std::vector<T>& scratch) {
    constexpr Int width = Vector<T>::width;
    Int j = 0;
    for (; c - j > width; j += BLOCK_VECTORS * width)
        multiply_panel<T, BLOCK_VECTORS>(A, B.columns(j), C.columns(j), m, k, std::min(BLOCK_VECTORS * width, c - j),
                                         alpha, add, scratch);
    if (j < c) multiply_panel<T, 1>(A, B.columns(j), C.columns(j), m, k, c - j, alpha, add, scratch);
}

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

// ----------------------------------------------------------------------------------- small layers: all of it in one call

constexpr int NOT_FINITE = 1, NOT_POSITIVE = 2;

// The first half: up to the Cholesky factors, which may fail.
template <typename T>
int begin(const Layer<T>& layer) {
    thread_local std::vector<T> memory, scratch;
    int status = 0;
    for (Int k = 0; k < layer.n; ++k) {
        Layer<T> l = layer.replica(k);
        l.AU = reserve(memory, l.P * l.R);
        if (!prepare(l)) status |= NOT_FINITE;
        if (!l.P) continue;
        multiply<T>({l.z, l.R, 1}, {l.AU, 1, l.R}, {l.gain, 1, l.stride()}, l.stride(), l.R, l.P, 1, false, scratch);
        if (!factorise(l.P, l.gain + l.B, l.stride(), T(l.damping), l.root)) status |= NOT_POSITIVE;
    }
    return status;
}

// The second half.
template <typename T>
void finish(const Layer<T>& layer) {
    thread_local std::vector<T> scratch;
    for (Int k = 0; k < layer.n; ++k) {
        const Layer<T> l = layer.replica(k);
        if (l.P) {
            const View<const T> gain_t{l.gain, 1, l.stride()};
            solve(l.P, l.root, l.gain, l.stride(), l.B);
            multiply<T>(gain_t, {l.z + l.B * l.R, l.R, 1}, {l.z, l.R, 1}, l.B, l.P, l.R, -1, true, scratch);
            multiply<T>(gain_t, {l.outputs, l.C, 1}, {l.out, l.C, 1}, l.B, l.P, l.C, 1, false, scratch);
        }
        if (l.M) multiply<T>({l.z, l.R, 1}, {l.M, l.C, 1}, {l.out, l.C, 1}, l.B, l.R, l.C, 1, l.P > 0, scratch);
        add_noise(l);
    }
}

template <typename T>
void backward(const Layer<T>& layer) {
    thread_local std::vector<T> memory_rows, memory_factors, memory_variance, scratch;
    for (Int k = 0; k < layer.n; ++k) {
        Layer<T> l = layer.replica(k);
        l.rows = reserve(memory_rows, 2 * l.B * l.R);
        l.factors = reserve(memory_factors, 2 * l.B * l.P);
        l.g_variance = reserve(memory_variance, l.B);
        T *D = l.rows, *Q = D + l.B * l.R, *E = l.factors + l.B;
        const T* A = l.z + l.B * l.R;
        backward_noise(l);
        if (l.M)
            multiply<T>({l.g, l.C, 1}, {l.M, 1, l.C}, {D, l.R, 1}, l.B, l.C, l.R, 1, false, scratch);
        else
            std::fill(D, Q, T(0));
        if (l.g_M) multiply<T>({l.z, 1, l.R}, {l.g, l.C, 1}, {l.g_M, l.C, 1}, l.R, l.B, l.C, 1, false, scratch);
        if (l.P) {
            multiply<T>({l.g, l.C, 1}, {l.outputs, 1, l.C}, {E, 1, 2 * l.B}, l.B, l.C, l.P, 1, false, scratch);
            if (l.M) multiply<T>({D, l.R, 1}, {A, 1, l.R}, {E, 1, 2 * l.B}, l.B, l.R, l.P, -1, true, scratch);
            backward_solve(l);
            multiply<T>({E, 1, 2 * l.B}, {A, l.R, 1}, {Q, l.R, 1}, l.B, l.P, l.R, 1, false, scratch);
        } else {
            std::fill(Q, Q + l.B * l.R, T(0));
        }
        backward_inputs(l);
        if (!l.P) continue;
        const Int width = l.width();
        multiply<T>({l.factors, 2 * l.B, 1}, {D, l.R, 1}, {l.g_points, width, 1}, l.P, 2 * l.B, l.R, 1, false, scratch);
        multiply<T>({l.gain, l.stride(), 1}, {l.g, l.C, 1}, {l.g_points + l.R, width, 1}, l.P, l.B, l.C, 1, false,
                    scratch);
        backward_points(l);
    }
}

// ---------------------------------------------------------------------------------------------------- the KL divergence

constexpr double C1 = 1.16145124, C2 = -1.50204118, C3 = 0.58629921;  // as in vmg/functional.py

// Sums of α, α² and α³ and of log √α over factors that multiply.
struct PowerSums {
    double first = 0, second = 0, third = 0, logs = 0;
    template <typename T>
    PowerSums(const T* log_scale, Int n) {
        for (Int i = 0; i < n; ++i) {
            const double alpha = std::exp(2 * double(log_scale[i]));
            first += alpha;
            second += alpha * alpha;
            third += alpha * alpha * alpha;
            logs += log_scale[i];
        }
    }
};

// −(½ log α + c₁α + c₂α² + c₃α³) summed over all pairs of a factor of `a` (n_a of them) and one of `b`.
double log_uniform_sum(const PowerSums& a, Int n_a, const PowerSums& b, Int n_b) {
    return -(C1 * a.first * b.first + C2 * a.second * b.second + C3 * a.third * b.third + n_b * a.logs + n_a * b.logs);
}

// Its derivative by the logarithm of one factor of `a`.
template <typename T>
T log_uniform_slope(T log_scale, const PowerSums& b, Int n_b) {
    const double alpha = std::exp(2 * double(log_scale));
    return T(-(n_b + 2 * alpha * (C1 * b.first + alpha * (2 * C2 * b.second + alpha * 3 * C3 * b.third))));
}

// The KL divergence of a layer's posteriors; vmg/kernels/__init__.py declares the same fields.
template <typename T>
struct Divergence {
    Int n, R, C, P, factored;
    double precision, concentration, rate, constant;  // the prior, see Coefficients in vmg/priors.py
    double at_bound;                                  // of one entry of the pseudo-data
    const T *M, *log_row, *log_column, *log_noise, *log_point_noise;
    T *value, *precisions, *row_trace, *column_trace;  // all but the value kept for the backward pass
    const T* g;
    T *g_M, *g_log_row, *g_log_column, *g_log_noise, *g_log_point_noise;
};

template <typename T>
double log_uniform_total(const Divergence<T>& d, Int k) {
    const Int width = d.R + d.C;
    if (d.factored) {
        const PowerSums points(d.log_point_noise + k * d.P, d.P), entries(d.log_noise + k * width, width);
        return log_uniform_sum(points, d.P, entries, width);
    }
    const T *l = d.log_noise + 2 * k, unit = 0;
    const PowerSums inputs(l, 1), outputs(l + 1, 1), one(&unit, 1);
    return d.P * (d.R * log_uniform_sum(inputs, 1, one, 1) + d.C * log_uniform_sum(outputs, 1, one, 1));
}

template <typename T>
void divergence(const Divergence<T>& d) {
    for (Int k = 0; k < d.n; ++k) {
        double rows = 0, columns = 0, logs = 0;
        for (Int r = k * d.R; r < (k + 1) * d.R; ++r) {
            rows += std::exp(2 * d.log_row[r]);
            logs += d.C * double(d.log_row[r]);
        }
        for (Int c = k * d.C; c < (k + 1) * d.C; ++c) {
            columns += std::exp(2 * d.log_column[c]);
            logs += d.R * double(d.log_column[c]);
        }
        double energy = rows * columns;
        if (d.M) {
            const T* M = d.M + k * d.R * d.C;
            for (Int r = 0; r < d.R; ++r, M += d.C) {  // row by row, so that single precision adds few numbers at once
                T sum = 0;
#pragma omp simd reduction(+ : sum)
                for (Int c = 0; c < d.C; ++c) sum += M[c] * M[c];
                energy += sum;
            }
        }
        double precision = d.precision, total = d.constant - logs;
        if (d.concentration > 0) {
            const double b = 0.5 * (d.rate + std::sqrt(d.rate * d.rate + 2 * d.concentration * energy));
            precision = (d.concentration / b) * (d.concentration / b);
            total += 2 * d.concentration * (std::log(b) + d.rate / b);
        }
        total += 0.5 * precision * energy;
        if (d.log_noise) total += log_uniform_total(d, k) + d.at_bound * d.P * (d.R + d.C);
        d.value[k] = T(total);
        d.precisions[k] = T(precision);
        d.row_trace[k] = T(rows);
        d.column_trace[k] = T(columns);
    }
}

template <typename T>
void divergence_backward(const Divergence<T>& d) {
    const Int width = d.R + d.C;
    for (Int k = 0; k < d.n; ++k) {
        const T g = d.g[k], slope = g * d.precisions[k];
        if (d.g_M)
            for (Int i = k * d.R * d.C; i < (k + 1) * d.R * d.C; ++i) d.g_M[i] = slope * d.M[i];
        for (Int r = k * d.R; r < (k + 1) * d.R; ++r)
            d.g_log_row[r] = slope * d.column_trace[k] * std::exp(2 * d.log_row[r]) - d.C * g;
        for (Int c = k * d.C; c < (k + 1) * d.C; ++c)
            d.g_log_column[c] = slope * d.row_trace[k] * std::exp(2 * d.log_column[c]) - d.R * g;
        if (!d.log_noise) continue;
        if (d.factored) {
            const T *l = d.log_noise + k * width, *lp = d.log_point_noise + k * d.P;
            const PowerSums points(lp, d.P), entries(l, width);
            for (Int p = 0; p < d.P; ++p) d.g_log_point_noise[k * d.P + p] = g * log_uniform_slope(lp[p], entries, width);
            for (Int j = 0; j < width; ++j) d.g_log_noise[k * width + j] = g * log_uniform_slope(l[j], points, d.P);
        } else {
            const T *l = d.log_noise + 2 * k, unit = 0;
            const PowerSums one(&unit, 1);
            d.g_log_noise[2 * k] = g * d.P * d.R * log_uniform_slope(l[0], one, 1);
            d.g_log_noise[2 * k + 1] = g * d.P * d.C * log_uniform_slope(l[1], one, 1);
        }
    }
}

// ------------------------------------------------------------------------------------------------------ normal numbers

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

// --------------------------------------------------------------------------------------------------------- entry points

// Each step over all replicas; those that can fail return a status, 0 for success.
#define ENTRY_POINTS(T, NAME)                                                                                          \
    API int vmg_prepare_##NAME(const Layer<T>* l) {                                                                    \
        int status = 0;                                                                                                \
        for (Int k = 0; k < l->n; ++k)                                                                                 \
            if (!prepare(l->replica(k))) status |= NOT_FINITE;                                                         \
        return status;                                                                                                 \
    }                                                                                                                  \
    API int vmg_factorise_##NAME(const Layer<T>* l) {                                                                  \
        int status = 0;                                                                                                \
        for (Int k = 0; k < l->n; ++k) {                                                                               \
            const Layer<T> r = l->replica(k);                                                                          \
            if (!factorise(r.P, r.gain + r.B, r.stride(), T(r.damping), r.root)) status |= NOT_POSITIVE;                  \
        }                                                                                                              \
        return status;                                                                                                 \
    }                                                                                                                  \
    API void vmg_solve_##NAME(const Layer<T>* l) {                                                                     \
        for (Int k = 0; k < l->n; ++k) {                                                                               \
            const Layer<T> r = l->replica(k);                                                                          \
            solve(r.P, r.root, r.gain, r.stride(), r.B);                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    API void vmg_add_noise_##NAME(const Layer<T>* l) {                                                                 \
        for (Int k = 0; k < l->n; ++k) add_noise(l->replica(k));                                                       \
    }                                                                                                                  \
    API void vmg_backward_noise_##NAME(const Layer<T>* l) {                                                            \
        for (Int k = 0; k < l->n; ++k) backward_noise(l->replica(k));                                                  \
    }                                                                                                                  \
    API void vmg_backward_solve_##NAME(const Layer<T>* l) {                                                            \
        for (Int k = 0; k < l->n; ++k) backward_solve(l->replica(k));                                                  \
    }                                                                                                                  \
    API void vmg_backward_inputs_##NAME(const Layer<T>* l) {                                                           \
        for (Int k = 0; k < l->n; ++k) backward_inputs(l->replica(k));                                                 \
    }                                                                                                                  \
    API void vmg_backward_points_##NAME(const Layer<T>* l) {                                                           \
        for (Int k = 0; k < l->n; ++k) backward_points(l->replica(k));                                                 \
    }                                                                                                                  \
    API int vmg_forward_##NAME(const Layer<T>* l) {                                                                    \
        const int status = begin(*l);                                                                                  \
        if (!(status & NOT_POSITIVE)) finish(*l);                                                                      \
        return status;                                                                                                 \
    }                                                                                                                  \
    API void vmg_finish_##NAME(const Layer<T>* l) { finish(*l); }                                                      \
    API void vmg_backward_##NAME(const Layer<T>* l) { backward(*l); }                                                  \
    API void vmg_divergence_##NAME(const Divergence<T>* d) { divergence(*d); }                                         \
    API void vmg_divergence_backward_##NAME(const Divergence<T>* d) { divergence_backward(*d); }

ENTRY_POINTS(float, f32)
ENTRY_POINTS(double, f64)

API void vmg_normals(float* out, Int n, std::uint64_t seed) { normals(out, n, seed); }

#include "filtering.hpp"  // entry points of its own
#include "moments.hpp"    // and these

// Sizes of the records, by which Python knows a library of another version.
API Int vmg_layout() {
    return Int(sizeof(Layer<float>)) | Int(sizeof(Divergence<float>)) << 16 |
           Int(sizeof(moments::Network<float>)) << 32 | Int(sizeof(moments::Layer<float>)) << 48;
}
