// The largest output of every row, found while the outputs are made: they are never written.

#pragma once

#include <limits>
#include <vector>

#include "numbers.hpp"

namespace {

// What a thread has seen, lane by lane; of equals the first counts, in whatever order panels come.
class Largest {
   public:
    // `rounds`: outputs count as the bfloat16 numbers that they would be written as.
    Largest(int64_t rows, bool rounds)
        : values(rows, splat(NONE)), places(rows, Ints{} + NOWHERE), rounds(rounds) {}

    // Sums [rows] of 16 outputs from `first` on; those beyond `out` are padding.
    void see(const Vec* sums, int64_t first, const float* bias, int64_t out) {
        Ints place = {};
        Vec more = {};
        for (int j = 0; j < LANES; j++) {
            place[j] = int32_t(first) + j;
            if (bias && place[j] < out) more[j] = bias[place[j]];
        }
        Ints is_output = place < int32_t(out);
        for (size_t r = 0; r < values.size(); r++) {
            Vec value = bias ? sums[r] + more : sums[r];
            if (rounds) value = rounded(value);
            Ints wins = is_output & ((value > values[r]) | ((value == values[r]) & (place < places[r])));
            values[r] = wins ? value : values[r];
            places[r] = wins ? place : places[r];
        }
    }

    // The better of an id with its value and this row's.
    void join(int64_t row, float& value, int64_t& id) const {
        for (int j = 0; j < LANES; j++) {
            float own = values[row][j];
            int64_t place = places[row][j];
            if (own > value || (own == value && place < id)) value = own, id = place;
        }
    }

    static constexpr float NONE = -std::numeric_limits<float>::infinity();
    static constexpr int32_t NOWHERE = std::numeric_limits<int32_t>::max();

   private:
    std::vector<Vec> values;
    std::vector<Ints> places;
    bool rounds;

    static Vec rounded(Vec v) {  // to nearest, ties to even
        Words bits = cast<Words>(v);
        Vec near = cast<Vec>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
        return v == v ? near : v;
    }
};

}  // namespace
