// Entry points of a diagonal layer's draw, forwards and backwards, and of its divergence: loops over contiguous arrays.
//
// vmg/fused/passes.py states the mathematics. Letters: n replicas, B rows of a batch, I inputs, R = I or I + 1
// (bias), C outputs, P pseudo-points. Arrays are row-major with the replicas first. No dependencies, so that any C++17
// compiler builds it. Python checks sizes, types and strides before it passes addresses; every entry point returns a
// status and lets no exception out.

#include "divergence.hpp"
#include "layer.hpp"
#include "normals.hpp"

#define ENTRY_POINTS(T, NAME)                                                                                          \
    API int vmg_forward_##NAME(const Layer<T>* l, Int threads) noexcept {                                              \
        return guarded([&] { return over_replicas(*l, threads, forward<T>); });                                        \
    }                                                                                                                  \
    API int vmg_backward_##NAME(const Layer<T>* l, Int threads) noexcept {                                             \
        return guarded([&] { return over_replicas(*l, threads, backward<T>); });                                       \
    }                                                                                                                  \
    API int vmg_divergence_##NAME(const Divergence<T>* d) noexcept {                                                   \
        return guarded([&] { return divergence(*d), 0; });                                                             \
    }                                                                                                                  \
    API int vmg_add_divergence_gradient_##NAME(const Divergence<T>* d) noexcept {                                      \
        return guarded([&] { return add_divergence_gradient(*d), 0; });                                                \
    }

ENTRY_POINTS(float, f32)
ENTRY_POINTS(double, f64)

API int vmg_normals(float* out, Int n, std::uint64_t seed) noexcept {
    return guarded([&] { return normals(out, n, seed), 0; });
}

// The digest of these sources, which the build defines: Python refuses a library that was compiled from others.
API const char* vmg_sources() noexcept { return VMG_SOURCES; }

// Names and types of all records' fields, for the test that Python packs the same ones.
API const char* vmg_fields() noexcept {
    return "layer{" LAYOUT(LAYER_FIELDS) "}divergence{" LAYOUT(DIVERGENCE_FIELDS) "}";
}

// Whether this processor, and the system on it, run code of the level x86-64-v3; asked of the library for any processor.
API int vmg_runs_v3() noexcept {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
#else
    return 0;
#endif
}
