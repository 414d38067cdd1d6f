// Decoding on a CPU: products with few rows, and whole decoder layers in one parallel region.
//
// What comes out for a row depends on that row alone: sums have an order of their own, which neither
// the number of rows nor the number of threads changes. Verifying k + 1 positions in one pass gives
// the same bits as decoding them one at a time.
//
// Weights are packed in panels of 16 outputs, which are read once from front to back. Activations are
// float32 whatever the weights are. Where the processor has tiles (AMX), bfloat16 weights go through
// them, and float32 ones in wide passes. Where it multiplies pairs of bfloat16 (AVX512_BF16) bfloat16
// weights do so in wide passes, with rows that are rounded to it, as PyTorch's products have them.

#include <omp.h>

#include "attention.hpp"
#include "interface.hpp"
#include "largest.hpp"
#include "packing.hpp"
#include "products.hpp"
#include "prompts.hpp"
#include "sharing.hpp"

namespace {

template <class W>
W weights_of(const Weights& w);
template <>
Float32Weights weights_of(const Weights& w) {
    return {{}, static_cast<const float*>(w.data)};
}
template <>
BFloat16Weights weights_of(const Weights& w) {
    return {{}, static_cast<const uint32_t*>(w.data)};
}
template <>
Int8Weights weights_of(const Weights& w) {
    return {{}, static_cast<const int8_t*>(w.data), w.scales};
}

// What a thread of a pass has of its own.
template <class W, class C>
struct Scratch {
    std::vector<float> normed;
    Inputs<W> inputs;
    Desk<typename C::Number> desk;
    PromptDesk prompt_desk;
};

// How products are made. In tiles those of bfloat16 weights always are, so that a row's bits do not depend
// on the rows beside it; what rounds otherwise is for wide passes.
Way way_of(int64_t numbers, int64_t wide) {
    if (has_tiles() && (numbers == BFLOAT16 || (numbers == FLOAT32 && wide))) return Way::TILES;
    if (HAS_PAIRS && numbers == BFLOAT16 && wide) return Way::PAIRS;
    return Way::INPUTS;
}

template <class W, class C>
class Run {
    typedef typename C::Number Number;

   public:
    Run(const Stack& stack, const Pass& pass)
        : s(stack), p(pass), tokens(pass.rows * pass.count), dim(stack.head_dim),
          mixed_width((stack.heads + 2 * stack.kv_heads) * dim),
          mixed(tokens * mixed_width), joined(tokens * stack.heads * dim), act(tokens * stack.ffn),
          attention(stack, pass, mixed.data(), mixed_width, joined.data()),
          prompts(stack, pass, joined.data()), way(way_of(stack.weights, pass.wide)),
          is_prompt(way == Way::TILES && prompts.takes(pass)), shares(way == Way::TILES && tokens > FEW),
          work(stack.num_layers * PHASES, int(stack.threads)) {
        if (is_prompt) prompts.begin();
        else attention.begin();
        if (!shares) return;
        common[0].shape(tokens, input_width());
        common[1].shape(tokens, s.heads * dim);
        common[2].shape(tokens, s.hidden);
        common[3].shape(tokens, s.ffn);
    }

    void thread(int me, int threads) {
        TileScope scope(way == Way::TILES, tokens);
        Scratch<W, C> own;
        int64_t tap = 0;
        for (int64_t number = 0; number < s.num_layers; number++) {
            const LayerParts& layer = s.layers[number];
            const float* x = number == 0 ? p.x : p.out;
            int64_t phase = number * PHASES;
            if (tap < p.num_taps && p.tap_layers[tap] == number) {
                if (me == 0) std::memcpy(p.taps + tap * tokens * s.hidden, x, tokens * s.hidden * sizeof(float));
                tap++;
            }
            take_normed(0, input_width(), [&](int64_t t, float* to) { norm_input(layer, x, t, to); }, own, phase, me,
                        threads);
            product(weights_of<W>(layer.qkv), layer.qkv.bias, own.inputs, mixed_width, mixed.data(), false, work,
                    phase + 1, me);
            if (number == 0 && me == 0) residual(x);
            barrier.wait(threads);
            while (auto piece = work.take(phase + 2, tokens * (s.heads + 2 * s.kv_heads), me, 16))
                for (int64_t i = piece.begin; i < piece.end; i++) settle(layer, i);
            barrier.wait(threads);
            if (is_prompt) attend(prompts, layer, own.prompt_desk, phase + 3, me, threads);
            else attend(attention, layer, own.desk, phase + 3, me, threads);
            barrier.wait(threads);
            take(1, joined.data(), s.heads * dim, own, phase + 5, me, threads);
            product(weights_of<W>(layer.output), layer.output.bias, own.inputs, s.hidden, p.out, true, work,
                    phase + 6, me);
            barrier.wait(threads);
            auto norm_mlp = [&](int64_t t, float* to) {
                norm(p.out + t * s.hidden, layer.mlp_norm, s.hidden, float(s.eps), to);
            };
            take_normed(2, s.hidden, norm_mlp, own, phase + 7, me, threads);
            gated(weights_of<W>(layer.gate_up), own.inputs, s.ffn, act.data(), work, phase + 8, me);
            barrier.wait(threads);
            take(3, act.data(), s.ffn, own, phase + 9, me, threads);
            product(weights_of<W>(layer.down), layer.down.bias, own.inputs, s.hidden, p.out, true, work, phase + 10,
                    me);
            barrier.wait(threads);
        }
    }

   private:
    const Stack& s;
    const Pass& p;
    int64_t tokens, dim, mixed_width;
    std::vector<float> mixed, joined, act;  // of queries, keys, values; of heads; of the MLP
    Attention<C> attention;
    PromptAttention<C> prompts;
    Way way;
    bool is_prompt;
    static constexpr int64_t FEW = 2 * TILE_ROWS;  // of so many rows a thread makes the tiles sooner than it waits
    bool shares;                                   // whether the threads make tiles of the inputs together
    TiledRows common[4];                           // of a layer's products, in their order
    Barrier barrier;
    static constexpr int64_t PHASES = 11;  // of a layer
    Work work;

    // Makes x [tokens, in] the inputs of product `number` of a layer.
    void take(int number, const float* x, int64_t in, Scratch<W, C>& own, int64_t phase, int me, int threads) {
        if (!shares) return own.inputs.set(x, tokens, in, way);
        while (auto piece = work.take(phase, tokens, me, TILE_ROWS))
            for (int64_t t = piece.begin; t < piece.end; t++) common[number].set_row(t, x + t * in, in);
        barrier.wait(threads);
        own.inputs.share(common[number], tokens, in);
    }

    // The same of what `norm_row` writes of a token.
    template <class NormRow>
    void take_normed(int number, int64_t in, NormRow norm_row, Scratch<W, C>& own, int64_t phase, int me, int threads) {
        own.normed.resize(shares ? in : tokens * in);
        if (!shares) {
            for (int64_t t = 0; t < tokens; t++) norm_row(t, own.normed.data() + t * in);
            return own.inputs.set(own.normed.data(), tokens, in, way);
        }
        while (auto piece = work.take(phase, tokens, me, TILE_ROWS))
            for (int64_t t = piece.begin; t < piece.end; t++) {
                norm_row(t, own.normed.data());
                common[number].set_row(t, own.normed.data(), in);
            }
        barrier.wait(threads);
        own.inputs.share(common[number], tokens, in);
    }

    int64_t input_width() const { return s.is_eagle3 ? 2 * s.hidden : s.hidden; }

    // The attention's input of a token.
    void norm_input(const LayerParts& layer, const float* x, int64_t t, float* to) {
        const float* from = x + t * input_width();
        norm(from, layer.input_norm, s.hidden, float(s.eps), to);
        if (s.is_eagle3) norm(from + s.hidden, layer.hidden_norm, s.hidden, float(s.eps), to + s.hidden);
    }

    // Two phases: segments, and what they make together.
    template <class Attending, class Place>
    void attend(Attending& attending, const LayerParts& layer, Place& desk, int64_t phase, int me, int threads) {
        while (auto piece = work.take(phase, attending.num_units(), me))
            for (int64_t i = piece.begin; i < piece.end; i++) attending.unit(layer, i, desk);
        barrier.wait(threads);
        while (auto piece = work.take(phase + 1, attending.num_joints(), me, 8))
            for (int64_t i = piece.begin; i < piece.end; i++) attending.join(i, desk);
    }

    // What the first layer adds to: its input, in EAGLE-3 the feature.
    void residual(const float* x) {
        int64_t in = s.is_eagle3 ? 2 * s.hidden : s.hidden;
        for (int64_t t = 0; t < tokens; t++)
            std::memcpy(p.out + t * s.hidden, x + t * in + (in - s.hidden), s.hidden * sizeof(float));
    }

    Number* entry(void* cache, int64_t row, int64_t head, int64_t place) const {
        int64_t slot = p.first_slot + row;
        return static_cast<Number*>(cache) + ((slot * s.kv_heads + head) * s.cache_length + place) * dim;
    }

    // Norm and rotate a head of queries or keys; keys and values go into the cache.
    void settle(const LayerParts& layer, int64_t index) {
        int64_t t = index / (s.heads + 2 * s.kv_heads), head = index % (s.heads + 2 * s.kv_heads);
        int64_t row = t / p.count, place = p.starts[row] + t % p.count;
        float* x = mixed.data() + t * mixed_width + head * dim;
        bool is_query = head < s.heads, is_key = !is_query && head < s.heads + s.kv_heads;
        if (is_query || is_key) {
            const float* weight = is_query ? layer.query_norm : layer.key_norm;
            if (weight) norm(x, weight, dim, float(s.eps), x);
            rotate(x, p.positions ? p.positions[t] : place);
        }
        if (is_query && is_prompt) prompts.take(t, head, x);
        if (is_query) return;
        head -= is_key ? s.heads : s.heads + s.kv_heads;
        Number* to = entry(is_key ? layer.keys : layer.values, row, head, place);
        for (int64_t d = 0; d < dim; d++) C::put(to + d, x[d]);
    }

    void rotate(float* x, int64_t position) const {
        const float *cos = s.cos + position * dim, *sin = s.sin + position * dim;
        for (int64_t d = 0, half = dim / 2; d < half; d++) {
            float low = x[d], high = x[d + half];
            x[d] = low * cos[d] - high * sin[d];
            x[d + half] = high * cos[d + half] + low * sin[d + half];
        }
    }
};

template <class W, class C>
void run(const Stack& stack, const Pass& pass) {
    Run<W, C> state(stack, pass);
#pragma omp parallel num_threads(int(stack.threads))
    state.thread(omp_get_thread_num(), omp_get_num_threads());
}

template <class W>
void run(const Stack& stack, const Pass& pass) {
    if (stack.cache == BFLOAT16) run<W, BFloat16Cache>(stack, pass);
    else run<W, Float32Cache>(stack, pass);
}

template <class W>
void multiply(const Weights& weights, const float* x, int64_t rows, int64_t in, int64_t out, float* y,
              Way way, int64_t threads) {
    W w = weights_of<W>(weights);
    Work work(1, int(threads));
#pragma omp parallel num_threads(int(threads))
    {
        TileScope scope(way == Way::TILES, rows);
        Inputs<W> inputs;
        inputs.set(x, rows, in, way);
        product(w, weights.bias, inputs, out, y, false, work, 0, omp_get_thread_num());
    }
}

// ids [rows]: the largest output's; 0 where there is none, among numbers that are none.
template <class W>
void find_largest(const Weights& weights, const float* x, int64_t rows, int64_t in, int64_t out, int64_t* ids,
                  bool rounds, Way way, int64_t threads) {
    W w = weights_of<W>(weights);
    Work work(1, int(threads));
    std::vector<Largest> seen(threads, Largest(rows, rounds));
#pragma omp parallel num_threads(int(threads))
    {
        int me = omp_get_thread_num();
        TileScope scope(way == Way::TILES, rows);
        Inputs<W> inputs;
        inputs.set(x, rows, in, way);
        while (auto piece = work.take(0, num_panels(out), me, 2)) {
            inputs.multiply(w, piece.begin, int(piece.end - piece.begin));
            for (int64_t p = piece.begin; p < piece.end; p++)
                seen[me].see(inputs.of(int(p - piece.begin)), p * LANES, weights.bias, out);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        float value = Largest::NONE;
        ids[r] = Largest::NOWHERE;
        for (const Largest& own : seen) own.join(r, value, ids[r]);
        if (ids[r] == Largest::NOWHERE) ids[r] = 0;
    }
}

// to [panels][words][LANES].
template <class Word>
void pack(const char* const* rows, int64_t panels, int64_t bytes, Word* to, int64_t threads) {
    int64_t words = (bytes + sizeof(Word) - 1) / sizeof(Word);
#pragma omp parallel for num_threads(int(threads))
    for (int64_t panel = 0; panel < panels; panel++)
        pack_panel(rows + panel * LANES, bytes, to + panel * words * LANES);
}

}  // namespace

extern "C" {

// rows [panels x 16] of so many bytes, or null, to panels of words of 1 or 4 bytes.
void neuron_spec_pack(const char* const* rows, int64_t panels, int64_t bytes, int64_t word_bytes, void* to,
                      int64_t threads) {
    if (word_bytes == 1) pack(rows, panels, bytes, static_cast<uint8_t*>(to), threads);
    else pack(rows, panels, bytes, static_cast<uint32_t*>(to), threads);
}

// Whether wide passes over such weights go another way, faster than that of any number of rows.
int64_t neuron_spec_has_wide(int64_t numbers) { return way_of(numbers, true) != Way::INPUTS; }

// x [rows, in] -> y [rows, out].
void neuron_spec_linear(const Weights* weights, int64_t numbers, const float* x, int64_t rows, int64_t in,
                        int64_t out, float* y, int64_t wide, int64_t threads) {
    Way way = way_of(numbers, wide);
    if (numbers == FLOAT32) multiply<Float32Weights>(*weights, x, rows, in, out, y, way, threads);
    else if (numbers == BFLOAT16) multiply<BFloat16Weights>(*weights, x, rows, in, out, y, way, threads);
    else multiply<Int8Weights>(*weights, x, rows, in, out, y, way, threads);
}

// x [rows, in] -> ids [rows] of the largest outputs, as bfloat16 numbers if `rounds`.
void neuron_spec_largest(const Weights* weights, int64_t numbers, const float* x, int64_t rows, int64_t in,
                         int64_t out, int64_t* ids, int64_t rounds, int64_t wide, int64_t threads) {
    Way way = way_of(numbers, wide);
    if (numbers == FLOAT32) find_largest<Float32Weights>(*weights, x, rows, in, out, ids, rounds, way, threads);
    else if (numbers == BFLOAT16)
        find_largest<BFloat16Weights>(*weights, x, rows, in, out, ids, rounds, way, threads);
    else find_largest<Int8Weights>(*weights, x, rows, in, out, ids, rounds, way, threads);
}

// The layers, keys and values into the caches.
void neuron_spec_layers(const Stack* stack, const Pass* pass) {
    if (stack->weights == FLOAT32) run<Float32Weights>(*stack, *pass);
    else if (stack->weights == BFLOAT16) run<BFloat16Weights>(*stack, *pass);
    else run<Int8Weights>(*stack, *pass);
}
}
