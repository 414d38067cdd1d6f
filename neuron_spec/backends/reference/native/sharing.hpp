// How the threads of a pass share its work, and where they wait for each other, hundreds of times a
// pass.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <sched.h>
#include <vector>

namespace {

// The work of a pass, phase by phase, each unit of which one thread does. A thread has a share that it
// goes through from front to back; then it takes from the ends of others' shares, so that one whose core
// does something else in between does not hold up all.
class Work {
   public:
    struct Piece {
        int64_t begin, end;
        explicit operator bool() const { return begin < end; }
    };

    Work(int64_t phases, int threads) : threads(threads), taken(phases * threads) {}

    // The next `size` of a phase's `count` units, or fewer; none when all are taken.
    Piece take(int64_t phase, int64_t count, int me, int64_t size = 1) {
        for (int number = 0; number < threads; number++) {
            int owner = (me + number) % threads;
            int64_t begin = count * owner / threads, end = count * (owner + 1) / threads;
            std::atomic<uint64_t>& own = taken[phase * threads + owner];
            for (uint64_t seen = own.load(std::memory_order_relaxed);;) {
                int64_t first = begin + int64_t(seen & FRONT), last = end - int64_t(seen >> 32);
                int64_t length = std::min(size, last - first);
                if (length <= 0) break;
                bool is_mine = owner == me;
                uint64_t after = seen + (is_mine ? uint64_t(length) : uint64_t(length) << 32);
                if (own.compare_exchange_weak(seen, after, std::memory_order_relaxed))
                    return is_mine ? Piece{first, first + length} : Piece{last - length, last};
            }
        }
        return {0, 0};
    }

   private:
    static constexpr uint64_t FRONT = 0xffffffffu;
    int threads;
    std::vector<std::atomic<uint64_t>> taken;  // units of each share: from its front, from its end
};

// OpenMP's own barrier spins for milliseconds; where a server's other threads push two of ours onto one
// core, each waiting would last as long as the other's time slice. This one soon gives the core away.
class Barrier {
   public:
    void wait(int threads) {
        int round = rounds.load(std::memory_order_acquire);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            arrived.store(0, std::memory_order_relaxed);
            rounds.fetch_add(1, std::memory_order_release);
            return;
        }
        for (int spins = 0; rounds.load(std::memory_order_acquire) == round;)
            if (++spins > SPINS) sched_yield();
    }

   private:
    static constexpr int SPINS = 2000;  // some microseconds
    std::atomic<int> arrived{0}, rounds{0};
};

}  // namespace
