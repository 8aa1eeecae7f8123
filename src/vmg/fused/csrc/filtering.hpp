// Assumed density filtering of a ReLU network's weights: vmg_paper/baselines/filtering.py states the mathematics and has the
// same in NumPy. One pass over the rows, one row at a time; replicas are independent of each other.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "memory.hpp"

namespace filtering {

constexpr double SMALLEST_VARIANCE = 1e-100, LARGEST_CAVITY_VARIANCE = 1e6;  // as in vmg_paper/baselines/filtering.py
constexpr double LOG_2PI = 1.8378770664093453, SQRT_HALF = 0.7071067811865476, INV_SQRT_2PI = 0.3989422804014327;

// Moments of N(w; m, v) p(y | w) from the gradients of its log normaliser.
inline void update_gaussian(double d_m, double d_v, double& m, double& v) {
    const double new_m = m + v * d_m, new_v = v - v * v * (d_m * d_m - 2.0 * d_v);
    const bool good = new_v > SMALLEST_VARIANCE && new_m == new_m;
    m = good ? new_m : m;
    v = good ? new_v : v;
}

// Weights of one layer, [R, C] row-major, with what a step keeps of them.
struct Layer {
    Int R, C;
    double *m, *v;                             // of the weights
    std::vector<double> in_m, in_v;            // of the inputs with the bias, [R]
    std::vector<double> in_g_m, in_g_v;        // and the gradients of log Z with respect to them
    std::vector<double> out_m, out_v;          // of the linear outputs, [C]
    std::vector<double> g_m, g_v;              // and their gradients
    std::vector<double> cdf, density;          // Φ(m/√v) and φ(m/√v)/√v of the outputs

    Layer(Int R, Int C, double* m, double* v)
        : R(R), C(C), m(m), v(v), in_m(R), in_v(R), in_g_m(R), in_g_v(R), out_m(C), out_v(C), g_m(C), g_v(C), cdf(C),
          density(C) {
        in_m[R - 1] = 1.0, in_v[R - 1] = 0.0;
    }

    void forward() {
        std::fill(out_m.begin(), out_m.end(), 0.0);
        std::fill(out_v.begin(), out_v.end(), 0.0);
        double *to_m = out_m.data(), *to_v = out_v.data();
        for (Int k = 0; k < R; ++k) {
            const double mean = in_m[k], variance = in_v[k], square = mean * mean + variance;
            const double *mk = m + k * C, *vk = v + k * C;
#pragma omp simd
            for (Int j = 0; j < C; ++j) {
                to_m[j] += mean * mk[j];
                to_v[j] += square * vk[j] + variance * mk[j] * mk[j];
            }
        }
        const double scale = 1.0 / std::sqrt(double(R));
        for (Int j = 0; j < C; ++j) to_m[j] *= scale, to_v[j] /= double(R);
    }

    // Moments of max(0, a) for a ~ N(m, v), as the inputs of the next layer.
    void rectify(Layer& next) {
        for (Int j = 0; j < C; ++j) {
            const double s = std::sqrt(out_v[j]), a = out_m[j] / s;
            const double below = 0.5 * std::erfc(a * SQRT_HALF), above = 0.5 * std::erfc(-a * SQRT_HALF);
            const double phi = INV_SQRT_2PI * std::exp(-0.5 * a * a);
            const double unit = above * (1.0 + a * a * below) + a * phi * (below - above) - phi * phi;
            next.in_m[j] = std::max(0.0, out_m[j] * above + s * phi);
            next.in_v[j] = std::max(0.0, unit) * out_v[j];
            cdf[j] = above;
            density[j] = phi / s;
        }
    }

    // The gradient of log Z from the next layer's inputs back through the rectifier.
    void rectify_backward(const Layer& next) {
        for (Int j = 0; j < C; ++j) {
            const double mean = next.in_m[j], of_m = next.in_g_m[j], of_v = next.in_g_v[j];
            g_m[j] = of_m * cdf[j] + of_v * 2.0 * mean * (1.0 - cdf[j]);
            g_v[j] = of_m * 0.5 * density[j] + of_v * (cdf[j] - mean * density[j]);
        }
    }

    // Gradients with respect to the inputs, and the Gaussian update of every weight.
    void backward_and_update(bool inputs) {
        const double scale = 1.0 / std::sqrt(double(R)), square_scale = 1.0 / double(R);
        const double *of_m = g_m.data(), *of_v = g_v.data();
        for (Int k = 0; k < R; ++k) {
            const double mean = in_m[k], variance = in_v[k], square = mean * mean + variance;
            double *mk = m + k * C, *vk = v + k * C;
            if (inputs) {
                double direct = 0.0, through_v = 0.0, of_variance = 0.0;
#pragma omp simd reduction(+ : direct, through_v, of_variance)
                for (Int j = 0; j < C; ++j) {
                    direct += of_m[j] * mk[j];
                    through_v += of_v[j] * vk[j];
                    of_variance += of_v[j] * (vk[j] + mk[j] * mk[j]);
                }
                in_g_m[k] = scale * direct + square_scale * 2.0 * mean * through_v;
                in_g_v[k] = square_scale * of_variance;
            }
#pragma omp simd
            for (Int j = 0; j < C; ++j) {
                const double d_m = scale * mean * of_m[j] + square_scale * 2.0 * variance * mk[j] * of_v[j];
                const double d_v = square_scale * square * of_v[j];
                update_gaussian(d_m, d_v, mk[j], vk[j]);
            }
        }
    }
};

// log N(r; 0, v + step) − log N(r; 0, v), accurate for small steps.
inline double log_ratio(double r, double v, double step) {
    return -0.5 * std::log1p(step / v) + 0.5 * r * r * step / (v * (v + step));
}

// The Gamma(a, b) with the first two moments of Gamma(γ; a, b) N(r; 0, v + 1/γ).
inline void update_gamma(double r, double v, double& a, double& b) {
    const double now = v + b / (a - 1.0), once = v + b / a;
    const double first = log_ratio(r, now, -b / (a * (a - 1.0)));
    const double second = log_ratio(r, once, -b / (a * (a + 1.0)));
    const double new_a = 1.0 / std::expm1(second - first + std::log1p(1.0 / a));
    const double new_b = b / (1.0 + (a + 1.0) * std::expm1(second) - a * std::expm1(first));
    if (new_a > 1.0 && new_b > 0.0 && std::isfinite(new_a) && std::isfinite(new_b)) a = new_a, b = new_b;
}

// One pass over the rows x [N, D], y [N] in the given order; returns the sum of log Z.
inline double pass(Int D, Int n_layers, const Int* sizes, Int n_rows, const double* x, const double* y,
                   const Int* order, double* m, double* v, double* noise, bool known) {
    std::vector<Layer> layers;
    for (Int l = 0; l < n_layers; ++l) {
        const Int R = sizes[l] + 1, C = sizes[l + 1];
        layers.emplace_back(R, C, m, v);
        m += R * C, v += R * C;
    }
    double total = 0.0;
    for (Int i = 0; i < n_rows; ++i) {
        std::copy(x + order[i] * D, x + (order[i] + 1) * D, layers[0].in_m.begin());
        for (Int l = 0; l < n_layers; ++l) {
            layers[l].forward();
            if (l + 1 < n_layers) layers[l].rectify(layers[l + 1]);
        }
        Layer& last = layers.back();
        const double r = y[order[i]] - last.out_m[0], v_out = last.out_v[0];
        const double v_sum = v_out + (known ? noise[1] : noise[1] / (noise[0] - 1.0));
        total += -0.5 * (LOG_2PI + std::log(v_sum) + r * r / v_sum);
        last.g_m[0] = r / v_sum;
        last.g_v[0] = 0.5 * (r * r / v_sum - 1.0) / v_sum;
        for (Int l = n_layers - 1; l >= 0; --l) {
            if (l + 1 < n_layers) layers[l].rectify_backward(layers[l + 1]);
            layers[l].backward_and_update(l > 0);
        }
        if (!known) update_gamma(r, v_out, noise[0], noise[1]);
    }
    return total;
}

// One sweep over the prior's factors of one replica; vmg_paper/baselines/filtering.py names the arrays.
inline void refine(Int W, double* m, double* v, double* precision, double* shift, double* factor_a, double* factor_b,
                   double& concentration, double& rate) {
    for (Int k = 0; k < W; ++k) {
        const double cavity_precision = 1.0 / v[k] - precision[k], cavity_shift = m[k] / v[k] - shift[k];
        const double cavity_v = 1.0 / cavity_precision, cavity_m = cavity_shift / cavity_precision;
        double a = concentration - factor_a[k], b = rate - factor_b[k];
        if (!(cavity_v > 0.0 && cavity_v < LARGEST_CAVITY_VARIANCE && a > 1.0 && b > 0.0)) continue;
        const double total = cavity_v + b / (a - 1.0), d_m = -cavity_m / total;
        const double d_v = 0.5 * (cavity_m * cavity_m / total - 1.0) / total;
        const double old_a = a, old_b = b;
        m[k] = cavity_m, v[k] = cavity_v;
        update_gaussian(d_m, d_v, m[k], v[k]);
        update_gamma(cavity_m, cavity_v, a, b);
        precision[k] = 1.0 / v[k] - cavity_precision, shift[k] = m[k] / v[k] - cavity_shift;
        factor_a[k] = a - old_a, factor_b[k] = b - old_b;
        concentration = a, rate = b;
    }
}

}  // namespace filtering

// All replicas: x [n, N, D], y [n, N], order [n, N] of which n_rows [n] count, weights [n, W] of layers one after
// another, each [inputs + 1, outputs]; noise [n, 2] holds a and b of its Gamma or, where known, nothing and a variance.
API int vmg_filter(Int n, Int N, Int n_layers, const Int* sizes, const Int* n_rows, const double* x, const double* y,
                   const Int* order, double* m, double* v, double* noise, Int known, double* log_evidence) noexcept {
    return guarded([&] {
        Int W = 0;
        for (Int l = 0; l < n_layers; ++l) W += (sizes[l] + 1) * sizes[l + 1];
        const Int D = sizes[0];
        for (Int k = 0; k < n; ++k)
            log_evidence[k] = filtering::pass(D, n_layers, sizes, n_rows[k], x + k * N * D, y + k * N, order + k * N,
                                              m + k * W, v + k * W, noise + k * 2, known != 0);
        return 0;
    });
}

// All replicas: every array is [n, W] but for the last two, [n].
API int vmg_refine(Int n, Int W, double* m, double* v, double* precision, double* shift, double* a, double* b,
                   double* concentration, double* rate) noexcept {
    return guarded([&] {
        for (Int k = 0; k < n; ++k)
            filtering::refine(W, m + k * W, v + k * W, precision + k * W, shift + k * W, a + k * W, b + k * W,
                              concentration[k], rate[k]);
        return 0;
    });
}
