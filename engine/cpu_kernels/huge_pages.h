// Advice to the kernel: weights, cache and activations are streamed, and 4 KiB pages cost a third of the rate.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ps {

constexpr int64_t kHugePage = 2 * 1024 * 1024;

// Asks for huge pages under [memory, memory + bytes). Whatever the system answers, the memory works.
static inline void advise_huge(void* memory, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    constexpr uintptr_t kPage = 4096;
    const uintptr_t first = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage;
    const uintptr_t last = (reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(bytes)) / kPage * kPage;
    if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

}  // namespace ps
