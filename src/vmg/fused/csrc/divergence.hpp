// The KL divergence of a layer, and its gradient.

#pragma once

#include <cmath>

#include "records.hpp"

namespace {

constexpr double C1 = 1.16145124, C2 = -1.50204118, C3 = 0.58629921;  // as in vmg/priors.py

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

// The KL divergence of a layer's posteriors; vmg/fused/library.py packs the same fields. precision, concentration, rate
// and constant are the prior's, see Coefficients in vmg/priors.py; at_bound is of one entry of the
// pseudo-data. precisions, row_trace and column_trace are kept for the backward pass.
#define DIVERGENCE_FIELDS(INT, REAL, IN, OUT)                                                                          \
    INT(n) INT(R) INT(C) INT(P) INT(factored)                                                                          \
    REAL(precision) REAL(concentration) REAL(rate) REAL(constant) REAL(at_bound)                                       \
    IN(M) IN(log_row) IN(log_column) IN(log_noise) IN(log_point_noise)                                                 \
    OUT(value) OUT(precisions) OUT(row_trace) OUT(column_trace)                                                        \
    IN(g) OUT(g_M) OUT(g_log_row) OUT(g_log_column) OUT(g_log_noise) OUT(g_log_point_noise)

template <typename T>
struct Divergence {
    MEMBERS(DIVERGENCE_FIELDS)
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

// Adds to what stands in g_M and the others: a draw of the layer leaves its own gradient there.
template <typename T>
void add_divergence_gradient(const Divergence<T>& d) {
    const Int width = d.R + d.C;
    for (Int k = 0; k < d.n; ++k) {
        const T g = d.g[k], slope = g * d.precisions[k];
        if (d.g_M)
            for (Int i = k * d.R * d.C; i < (k + 1) * d.R * d.C; ++i) d.g_M[i] += slope * d.M[i];
        for (Int r = k * d.R; r < (k + 1) * d.R; ++r)
            d.g_log_row[r] += slope * d.column_trace[k] * std::exp(2 * d.log_row[r]) - d.C * g;
        for (Int c = k * d.C; c < (k + 1) * d.C; ++c)
            d.g_log_column[c] += slope * d.row_trace[k] * std::exp(2 * d.log_column[c]) - d.R * g;
        if (!d.log_noise) continue;
        if (d.factored) {
            const T *l = d.log_noise + k * width, *lp = d.log_point_noise + k * d.P;
            const PowerSums points(lp, d.P), entries(l, width);
            for (Int p = 0; p < d.P; ++p) d.g_log_point_noise[k * d.P + p] += g * log_uniform_slope(lp[p], entries, width);
            for (Int j = 0; j < width; ++j) d.g_log_noise[k * width + j] += g * log_uniform_slope(l[j], points, d.P);
        } else {
            const T *l = d.log_noise + 2 * k, unit = 0;
            const PowerSums one(&unit, 1);
            d.g_log_noise[2 * k] += g * d.P * d.R * log_uniform_slope(l[0], one, 1);
            d.g_log_noise[2 * k + 1] += g * d.P * d.C * log_uniform_slope(l[1], one, 1);
        }
    }
}

}  // namespace
