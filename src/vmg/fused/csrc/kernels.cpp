// Entry points of everything in a diagonal layer that is not a large matrix product: plain loops over contiguous arrays.
//
// vmg/conditional.py states the mathematics and has the same in PyTorch. Letters: n replicas, B rows of a batch, I inputs,
// R = I or I + 1 (bias), C outputs, P pseudo-points. Arrays are row-major with the replicas first. No dependencies, so
// that any C++17 compiler builds it.

#include "divergence.hpp"
#include "layer.hpp"
#include "normals.hpp"

#if defined(_WIN32)
#define API extern "C" __declspec(dllexport)
#else
#define API extern "C" __attribute__((visibility("default")))
#endif

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

// Whether this processor, and the system on it, run code of the level x86-64-v3; asked of the library for any processor.
API int vmg_runs_v3() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
#else
    return 0;
#endif
}
