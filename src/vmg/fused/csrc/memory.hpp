// What all parts share: the integer of sizes, and memory that is kept.

#pragma once

#include <cstdint>
#include <vector>

namespace {

using Int = std::int64_t;

// Memory that outlives the call, so that a training loop allocates it once.
template <typename T>
T* reserve(std::vector<T>& memory, Int size) {
    if (Int(memory.size()) < size) memory.resize(size);
    return memory.data();
}

}  // namespace
