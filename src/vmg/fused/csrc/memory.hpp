// What all parts share: the integer of sizes, memory that is kept, threads, and the way an entry point reports.

#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
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

// part(first, last) for all of 0 ... n − 1, on so many threads that end before this returns; the statuses of all.
template <typename Part>
int in_parts(Int threads, Int n, Part part) {
    threads = std::min(threads, n);
    if (threads <= 1) return part(0, n);
    std::vector<int> statuses(threads, 0);
    std::vector<std::thread> others;
    others.reserve(threads - 1);
    const auto run = [&](Int t) { statuses[t] = guarded([&] { return part(n * t / threads, n * (t + 1) / threads); }); };
    for (Int t = 1; t < threads; ++t) {
        try {
            others.emplace_back(run, t);
        } catch (const std::system_error&) {  // there is no other thread to be had
            run(t);
        }
    }
    run(0);
    for (std::thread& other : others) other.join();
    int all = 0;
    for (const int status : statuses) all |= status;
    return all;
}

}  // namespace
