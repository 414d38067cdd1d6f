// Where the threads of a pass wait for each other, hundreds of times a pass.

#pragma once

#include <atomic>
#include <sched.h>

namespace {

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
