// Weights as the products read them: panels of 16 outputs, [panel][word][16]; a word holds one input of
// float32 or int8, two of bfloat16.

#pragma once

#include <cstdint>
#include <cstring>

#include "numbers.hpp"

namespace {

// rows [LANES], of `bytes` each -> to [words][LANES]; a row at null is zeros, as is what lacks of the last word.
template <class Word>
void pack_panel(const char* const* rows, int64_t bytes, Word* to) {
    constexpr int64_t STEP = 64 / sizeof(Word);  // a line of the cache of every row
    int64_t words = (bytes + sizeof(Word) - 1) / sizeof(Word);
    for (int64_t begin = 0; begin < words; begin += STEP) {
        Word lines[LANES][STEP] = {};
        int64_t missing = bytes - begin * int64_t(sizeof(Word));
        for (int lane = 0; lane < LANES; lane++) {
            if (!rows[lane]) continue;
            const char* from = rows[lane] + begin * sizeof(Word);
            if (missing >= 64) std::memcpy(lines[lane], from, 64);
            else std::memcpy(lines[lane], from, missing);
        }
        int64_t count = words - begin < STEP ? words - begin : STEP;
        for (int64_t word = 0; word < count; word++)
            for (int lane = 0; lane < LANES; lane++) to[(begin + word) * LANES + lane] = lines[lane][word];
    }
}

}  // namespace
