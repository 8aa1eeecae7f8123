// Entry points of everything in a diagonal layer that is not a large matrix product: plain loops over contiguous arrays.
//
// vmg/fused/passes.py states the mathematics. Letters: n replicas, B rows of a batch, I inputs, R = I or I + 1
// (bias), C outputs, P pseudo-points. Arrays are row-major with the replicas first. No dependencies, so that any C++17
// compiler builds it. Python checks sizes, types and strides before it passes addresses; every entry point returns a
// status and lets no exception out.

#include "divergence.hpp"
#include "layer.hpp"
#include "normals.hpp"

namespace {

// A step over all replicas, for one that cannot fail and for one that says whether it succeeded.
template <typename T, typename Step>
int over_replicas(const Layer<T>& layer, Step step) noexcept {
    return guarded([&] {
        for (Int k = 0; k < layer.n; ++k) step(layer.replica(k));
        return 0;
    });
}

template <typename T, typename Step>
int over_replicas_or(int failure, const Layer<T>& layer, Step step) noexcept {
    return guarded([&] {
        int status = 0;
        for (Int k = 0; k < layer.n; ++k)
            if (!step(layer.replica(k))) status |= failure;
        return status;
    });
}

template <typename T>
bool factorise_replica(const Layer<T>& l) {
    return factorise(l.P, l.gain + l.B, l.stride(), T(l.damping), l.root);
}

template <typename T>
void solve_replica(const Layer<T>& l) {
    solve(l.P, l.root, l.gain, l.stride(), l.B);
}

template <typename T>
int forward(const Layer<T>& layer) {
    const int status = begin(layer);
    if (!(status & NOT_POSITIVE)) finish(layer);
    return status;
}

}  // namespace

#define ENTRY_POINTS(T, NAME)                                                                                          \
    API int vmg_prepare_##NAME(const Layer<T>* l) noexcept { return over_replicas_or(NOT_FINITE, *l, prepare<T>); }    \
    API int vmg_factorise_##NAME(const Layer<T>* l) noexcept {                                                         \
        return over_replicas_or(NOT_POSITIVE, *l, factorise_replica<T>);                                               \
    }                                                                                                                  \
    API int vmg_solve_##NAME(const Layer<T>* l) noexcept { return over_replicas(*l, solve_replica<T>); }               \
    API int vmg_add_noise_##NAME(const Layer<T>* l) noexcept { return over_replicas(*l, add_noise<T>); }               \
    API int vmg_backward_noise_##NAME(const Layer<T>* l) noexcept { return over_replicas(*l, backward_noise<T>); }     \
    API int vmg_backward_solve_##NAME(const Layer<T>* l) noexcept { return over_replicas(*l, backward_solve<T>); }     \
    API int vmg_backward_inputs_##NAME(const Layer<T>* l) noexcept { return over_replicas(*l, backward_inputs<T>); }   \
    API int vmg_backward_points_##NAME(const Layer<T>* l) noexcept { return over_replicas(*l, backward_points<T>); }   \
    API int vmg_forward_##NAME(const Layer<T>* l) noexcept {                                                           \
        return guarded([&] { return forward(*l); });                                                                   \
    }                                                                                                                  \
    API int vmg_finish_##NAME(const Layer<T>* l) noexcept {                                                            \
        return guarded([&] { return finish(*l), 0; });                                                                 \
    }                                                                                                                  \
    API int vmg_backward_##NAME(const Layer<T>* l) noexcept {                                                          \
        return guarded([&] { return backward(*l), 0; });                                                               \
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

// Names and types of all records' fields, by which Python knows a library of another version.
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
