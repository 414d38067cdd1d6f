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
        : values(rows * PIECES, Native{} + NONE), places(rows * PIECES, NativeInts{} + NOWHERE), rounds(rounds) {}

    // Sums [rows] of 16 outputs from `first` on; those beyond `out` are padding.
    void see(const Vec* sums, int64_t first, const float* bias, int64_t out) {
        for (int p = 0; p < PIECES; p++) {
            NativeInts place = {};
            Native more = {};
            for (int j = 0; j < NATIVE; j++) {
                place[j] = int32_t(first) + p * NATIVE + j;
                if (bias && place[j] < out) more[j] = bias[place[j]];
            }
            NativeInts is_output = place < int32_t(out);
            const float* piece = reinterpret_cast<const float*>(sums) + p * NATIVE;
            for (size_t i = p; i < values.size(); i += PIECES, piece += LANES) {
                auto value = read<Native>(piece);
                if (bias) value += more;
                if (rounds) value = rounded(value);
                NativeInts wins = is_output & ((value > values[i]) | ((value == values[i]) & (place < places[i])));
                values[i] = wins ? value : values[i];
                places[i] = wins ? place : places[i];
            }
        }
    }

    // The better of an id with its value and this row's.
    void join(int64_t row, float& value, int64_t& id) const {
        for (int j = 0; j < LANES; j++) {
            float own = values[row * PIECES + j / NATIVE][j % NATIVE];
            int64_t place = places[row * PIECES + j / NATIVE][j % NATIVE];
            if (own > value || (own == value && place < id)) value = own, id = place;
        }
    }

    static constexpr float NONE = -std::numeric_limits<float>::infinity();
    static constexpr int32_t NOWHERE = std::numeric_limits<int32_t>::max();

   private:
    std::vector<Native> values;  // [rows][PIECES]
    std::vector<NativeInts> places;
    bool rounds;

    static Native rounded(Native v) {  // to nearest, ties to even
        auto bits = cast<NativeWords>(v);
        auto near = cast<Native>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
        return v == v ? near : v;
    }
};

}  // namespace
