// A team of threads inside one OpenMP parallel region: a light barrier, and fair static splits of work.
#pragma once

#include <atomic>
#include <cstdint>
#include <sched.h>

#include "simd.h"

namespace ps {

struct Range {
    int64_t first, last;
};

// Generation barrier. Spins briefly (steps are short and threads finish together), then yields, so that an
// oversubscribed machine makes progress instead of burning the core that a late thread needs.
class Barrier {
  public:
    explicit Barrier(int num_threads) : num_threads_(num_threads) {}

    void wait() {
        if (num_threads_ == 1) return;
        const uint32_t generation = generation_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
            arrived_.store(0, std::memory_order_relaxed);
            generation_.store(generation + 1, std::memory_order_release);
            return;
        }
        int spins = 0;
        while (generation_.load(std::memory_order_acquire) == generation) {
            if (++spins < kSpins) {
                pause();
            } else {
                sched_yield();
            }
        }
    }

  private:
    static constexpr int kSpins = 4000;

    static void pause() {
#if defined(__x86_64__)
        _mm_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    const int num_threads_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> generation_{0};
};

// What a thread knows inside the region.
struct Team {
    int thread, num_threads;
    Barrier* barrier;

    void sync() const { barrier->wait(); }

    // This thread's share of `count` equal items, consecutive.
    Range share(int64_t count) const { return {count * thread / num_threads, count * (thread + 1) / num_threads}; }
};

}  // namespace ps
