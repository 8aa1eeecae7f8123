// What all parts share: the integer of sizes, memory that is kept, and the way an entry point reports.

#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <vector>

#if defined(_WIN32)
#define API extern "C" __declspec(dllexport)
#else
#define API extern "C" __attribute__((visibility("default")))
#endif

namespace {

using Int = std::int64_t;

// Memory that outlives the call, so that a training loop allocates it once.
template <typename T>
T* reserve(std::vector<T>& memory, Int size) {
    if (Int(memory.size()) < size) memory.resize(size);
    return memory.data();
}

// Bits of a status, 0 for success; vmg/fused/library.py has the same.
constexpr int NOT_FINITE = 1, NOT_POSITIVE = 2, NO_MEMORY = 4, BROKEN = 8;

// Every entry point runs inside this: no exception may reach a caller that is not C++.
template <typename Action>
int guarded(Action action) noexcept {
    try {
        return action();
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    } catch (const std::length_error&) {  // more than a vector can ever hold
        return NO_MEMORY;
    } catch (...) {
        return BROKEN;
    }
}

}  // namespace
