// Products of matrices: no call of a library, and no copy of what lies well in memory.

#pragma once

#include <algorithm>
#include <cstring>

#include "memory.hpp"

namespace {

// The widest register, and as many rows of a block as leave room for the panel beside the sums. Eight sums hide the
// latency of a fused multiply-add; more of them read the panel less often.
#if defined(__AVX512F__)
constexpr Int VECTOR_BYTES = 64, BLOCK_ROWS = 8;
#elif defined(__AVX__)
constexpr Int VECTOR_BYTES = 32, BLOCK_ROWS = 4;
#else
constexpr Int VECTOR_BYTES = 16, BLOCK_ROWS = 4;
#endif
constexpr Int BLOCK_VECTORS = 2;

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

// All m rows: blocks of `rows` while they last, and the rest in blocks of half as many.
template <typename T, Int rows, Int vectors>
void multiply_blocks(View<const T> A, const T* panel, Int panel_stride, Int k, T alpha, bool add, View<T> C,
                     Int columns, Int m) {
    if constexpr (rows > 0) {
        for (; m >= rows; m -= rows, A = A.rows(rows), C = C.rows(rows))
            multiply_block<T, rows, vectors>(A, panel, panel_stride, k, alpha, add, C, columns);
        multiply_blocks<T, rows / 2, vectors>(A, panel, panel_stride, k, alpha, add, C, columns, m);
    }
}

template <typename T, Int vectors>
void multiply_panel(View<const T> A, View<const T> B, View<T> C, Int m, Int k, Int columns, T alpha, bool add) {
    constexpr Int width = vectors * Vector<T>::width;
    const T* panel = B.data;
    Int stride = B.row;
    if (B.column != 1 || columns < width) {  // copy what cannot be read as whole vectors
        thread_local std::vector<T> memory;
        T* copy = reserve(memory, k * width);
        for (Int l = 0; l < k; ++l) {
            T* to = copy + l * width;
            if (B.column == 1)
                std::copy(B.data + l * B.row, B.data + l * B.row + columns, to);
            else
                for (Int j = 0; j < columns; ++j) to[j] = B(l, j);
            std::fill(to + columns, to + width, T(0));
        }
        panel = copy;
        stride = width;
    }
    multiply_blocks<T, BLOCK_ROWS, vectors>(A, panel, stride, k, alpha, add, C, columns, m);
}

constexpr Int THREAD_WORK = 1 << 21;  // multiply-adds, some 60 microseconds: a thread takes 15 to start and end

// C = alpha·A·B, or C += alpha·A·B; A is m × k, B is k × c. Where B is a transpose it is copied, so the smaller factor
// should come second; C may be a transpose too. Threads share the panels, so their number changes no bit.
template <typename T>
void multiply(View<const T> A, View<const T> B, View<T> C, Int m, Int k, Int c, T alpha, bool add, Int threads) {
    constexpr Int width = Vector<T>::width, panel = BLOCK_VECTORS * width;
    const int status = in_parts(std::min(threads, m * k * c / THREAD_WORK), (c + panel - 1) / panel,
                                [=](Int first, Int last) {
        const Int end = std::min(c, last * panel);
        Int j = first * panel;
        for (; end - j > width; j += panel)
            multiply_panel<T, BLOCK_VECTORS>(A, B.columns(j), C.columns(j), m, k, std::min(panel, end - j), alpha, add);
        if (j < end) multiply_panel<T, 1>(A, B.columns(j), C.columns(j), m, k, end - j, alpha, add);
        return 0;
    });
    if (status) throw std::bad_alloc();  // nothing else can go wrong in it
}

}  // namespace
