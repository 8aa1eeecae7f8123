// Products of small matrices, for which a library call costs more than the arithmetic.

#pragma once

#include <algorithm>
#include <cstring>

#include "memory.hpp"

namespace {

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

}  // namespace
