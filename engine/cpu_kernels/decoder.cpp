// A range of decoder layers in one call: a team of threads walks norm, QKV, rotary and cache write, attention, output,
// MLP, with a barrier only where one thread reads what another wrote. No torch, no global state but the OpenMP pool.

#include <omp.h>

#include "gemm_i8.h"
#include "workspace.h"

namespace ps {

class Decoder {
  public:
    Decoder(const Model& model, const Step& step, Workspace& space, const Team& team, float* hidden)
        : model_(model),
          step_(step),
          space_(space),
          team_(team),
          hidden_(hidden),
          scratch_(space.private_scratch.floats() + team.thread * space.scratch_floats),
          attention_scratch_(scratch_, model.head_dim) {}

    void run_layer(int64_t index, OnLayerDone on_layer_done) {
        const Layer& layer = model_.layers[index];
        float *qkv = space_.qkv.floats(), *attended = space_.attended.floats(), *activated = space_.activated.floats();
        linear(prepare(hidden_, model_.hidden, model_.hidden, layer.input_norm), layer.qkv, Epilogue::kStore, qkv,
               space_.qkv_stride);
        team_.sync();
        rotate_and_cache(layer);
        team_.sync();
        // The other threads go on: what the layer still has to compute hides the call, and what it sets off.
        if (on_layer_done && team_.thread == 0) on_layer_done(index);
        attend(layer, index);
        team_.sync();
        linear(prepare(attended, space_.attended_stride, layer.o.k, nullptr), layer.o, Epilogue::kAdd, hidden_,
               model_.hidden);
        team_.sync();
        linear(prepare(hidden_, model_.hidden, model_.hidden, layer.post_norm), layer.gate_up, Epilogue::kSiluMul,
               activated, space_.activated_stride);
        team_.sync();
        linear(prepare(activated, space_.activated_stride, model_.ffn, nullptr), layer.down, Epilogue::kAdd, hidden_,
               model_.hidden);
        team_.sync();
    }

    void run_head(float* logits) {
        linear(prepare(hidden_, model_.hidden, model_.hidden, model_.final_norm), model_.lm_head, Epilogue::kStore,
               logits, model_.vocab);
    }

  private:
    // The input of a linear: normed when `norm` is given, quantised in int8. Few rows are prepared by every thread for
    // itself; many are shared out, with a barrier.
    Rows prepare(const float* x, int64_t stride, int64_t width, const float* norm) {
        if (!model_.is_int8 && !norm) return {x, stride, {}};
        const bool own = step_.num_rows <= kPrivateRows;
        const int64_t first_tile = own ? team_.thread * kAmxTile : 0;
        uint8_t* memory =
            own ? space_.private_rows.bytes() + first_tile * space_.row_bytes : space_.shared_rows.bytes();
        float* scales = own ? space_.private_scales.floats() + first_tile : space_.shared_scales.floats();
        const int64_t row_floats = width + kPad, row_bytes = kPlanes * plane_bytes(width) + 64;
        const Range mine = own ? Range{0, step_.num_rows} : team_.share(step_.num_rows);
        float* normed = scratch_ + space_.scratch_floats - (width + kPad);
        for (int64_t r = mine.first; r < mine.last; ++r) {
            if (!model_.is_int8) {
                rms_norm(x + r * stride, norm, model_.norm_eps, width,
                         reinterpret_cast<float*>(memory) + r * row_floats);
                continue;
            }
            if (norm) rms_norm(x + r * stride, norm, model_.norm_eps, width, normed);
            scales[r] = quantize_row(norm ? normed : x + r * stride, width, memory + r * row_bytes);
        }
        if (!own) team_.sync();
        return {reinterpret_cast<float*>(memory), row_floats, {memory, scales, row_bytes}};
    }

    void linear(const Rows& rows, const Linear& w, Epilogue epilogue, float* out, int64_t stride) {
        if (model_.is_int8) {
            const MatrixI8 matrix{static_cast<const int8_t*>(w.panels), w.scales, w.offsets, w.bias, w.n, w.k};
            gemm_i8(team_, rows.quantised, step_.num_rows, matrix, epilogue, out, stride);
        } else {
            const MatrixF32 matrix{static_cast<const float*>(w.panels), w.bias, w.n, w.k};
            gemm_f32(team_, rows.values, rows.stride, step_.num_rows, matrix, epilogue, out, stride);
        }
    }

    // Q and K normed and rotated; K and V written to their slots.
    void rotate_and_cache(const Layer& layer) {
        const int64_t d = model_.head_dim, heads = model_.heads, kv_heads = model_.kv_heads, size = model_.block_size;
        const Range mine = team_.share(step_.num_rows * kv_heads);
        for (int64_t i = mine.first; i < mine.last; ++i) {
            const int64_t row = i / kv_heads, g = i % kv_heads, group = heads / kv_heads;
            float* x = space_.qkv.floats() + row * space_.qkv_stride;
            const float *cosine = model_.cosine + step_.positions[row] * (d / 2),
                        *sine = model_.sine + step_.positions[row] * (d / 2);
            for (int64_t h = g * group; h < (g + 1) * group; ++h) turn(x + h * d, layer.q_norm, cosine, sine);
            float *key = x + (heads + g) * d, *value = x + (heads + kv_heads + g) * d;
            turn(key, layer.k_norm, cosine, sine);
            const int64_t slot = step_.slots[row], block = slot / size;
            float* to = layer.cache + ((block * 2 * kv_heads + g) * size + slot % size) * d;
            std::memcpy(to, key, d * sizeof(float));
            std::memcpy(to + kv_heads * size * d, value, d * sizeof(float));
        }
    }

    void turn(float* head, const float* norm, const float* cosine, const float* sine) {
        if (norm) rms_norm(head, norm, model_.norm_eps, model_.head_dim, head);
        rotate(head, cosine, sine, model_.head_dim);
    }

    void attend(const Layer& layer, int64_t index) {
        const PagedCache cache{layer.cache, model_.kv_heads, model_.block_size, model_.head_dim};
        const float scale = 1.0f / std::sqrt(static_cast<float>(model_.head_dim));
        while (const Unit* unit = space_.schedule.take(index)) {
            const QueryTile tile = queries_of(*unit);
            TileAttention attention(cache, tile, attention_scratch_, scale);
            if (unit->split < 0) {
                attend_whole(attention, *unit);
            } else {
                attend_split(attention, *unit);
            }
        }
    }

    void attend_whole(TileAttention& attention, const Unit& unit) {
        const SoftmaxState running = state_at(attention_scratch_.running, attention.rows());
        const SoftmaxState part = state_at(attention_scratch_.part, attention.rows());
        attention.compute_split(0, running);
        for (int64_t s = 1; s < unit.num_splits; ++s) {
            attention.compute_split(s, part);
            attention.merge(running, part);
        }
        attention.finish(running);
    }

    void attend_split(TileAttention& attention, const Unit& unit) {
        const int64_t floats = AttentionScratch::state_floats(attention.rows(), model_.head_dim);
        float* states = space_.states.floats() + unit.state;
        attention.compute_split(unit.split, state_at(states + unit.split * floats, attention.rows()));
        if (!space_.schedule.is_last(unit)) return;
        const SoftmaxState running = state_at(states, attention.rows());
        for (int64_t s = 1; s < unit.num_splits; ++s)
            attention.merge(running, state_at(states + s * floats, attention.rows()));
        attention.finish(running);
    }

    QueryTile queries_of(const Unit& unit) const {
        const int64_t s = unit.sequence, group = model_.heads / model_.kv_heads;
        const int64_t queries = step_.query_start[s + 1] - step_.query_start[s];
        const int64_t row = step_.query_start[s] + unit.first - (step_.context_len[s] - queries);
        const int64_t at = unit.head * group * model_.head_dim;
        return {space_.qkv.floats() + row * space_.qkv_stride + at,
                space_.attended.floats() + row * space_.attended_stride + at,
                space_.qkv_stride,
                space_.attended_stride,
                unit.first,
                unit.count,
                group,
                step_.block_table + s * step_.max_blocks,
                unit.head};
    }

    const Model& model_;
    const Step& step_;
    Workspace& space_;
    const Team team_;
    float* hidden_;
    float* scratch_;
    const AttentionScratch attention_scratch_;
};

// Runs `work(decoder)` on every thread of a team.
template <typename F>
static void with_team(const Model& model, const Step& step, Workspace& space, float* hidden, int num_threads,
                      F&& work) {
    std::unique_ptr<Barrier> barrier;
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp single
        barrier.reset(new Barrier(omp_get_num_threads()));
        const AmxSession tiles(model.is_int8 && step.num_rows >= kAmxRows);
        Decoder decoder(model, step, space, Team{omp_get_thread_num(), omp_get_num_threads(), barrier.get()}, hidden);
        work(decoder);
    }
}

}  // namespace ps

extern "C" {

int32_t ps_abi_version() { return ps::kAbiVersion; }
int64_t ps_panel_columns() { return ps::NR; }
int64_t ps_padded_k(int64_t k) { return ps::padded_k(k); }

void ps_advise_huge(void* memory, int64_t bytes) { ps::advise_huge(memory, bytes); }

void* ps_workspace_new() { return new (std::nothrow) ps::Workspace; }
void ps_workspace_free(void* space) { delete static_cast<ps::Workspace*>(space); }

// Packs row-major w [n, k]; `paired` for gate and up rows that one panel multiplies together.
void ps_pack_f32(const float* w, int64_t n, int64_t k, int32_t paired, float* panels, int32_t num_threads) {
    const int64_t count = ps::num_panels(n);
#pragma omp parallel for num_threads(num_threads)
    for (int64_t p = 0; p < count; ++p) ps::pack_panel_f32(w, n, k, paired, p, panels + p * k * ps::NR);
}

void ps_pack_i8(const float* w, int64_t n, int64_t k, int32_t paired, int8_t* panels, float* scales, int32_t* offsets,
                int32_t num_threads) {
    const int64_t count = ps::num_panels(n);
#pragma omp parallel for num_threads(num_threads)
    for (int64_t p = 0; p < count; ++p)
        ps::pack_panel_i8(w, n, k, paired, p, panels + p * ps::padded_k(k) * ps::NR, scales + p * ps::NR,
                          offsets + p * ps::NR);
}

// Layers first..last-1 on hidden [num_rows, hidden], in place; `on_layer_done` may be null and must not throw. 0, or 1
// when memory ran out (nothing was computed).
int32_t ps_run_layers(const ps::Model* model, const ps::Step* step, void* workspace, float* hidden, int64_t first,
                      int64_t last, int32_t num_threads, ps::OnLayerDone on_layer_done) {
    ps::Workspace& space = *static_cast<ps::Workspace*>(workspace);
    try {
        space.fit(*model, step->num_rows, num_threads);
        space.schedule.build(*model, *step, num_threads);
        space.states.reserve(space.schedule.state_floats * 4);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    ps::with_team(*model, *step, space, hidden, num_threads, [&](ps::Decoder& decoder) {
        for (int64_t i = first; i < last; ++i) decoder.run_layer(i, on_layer_done);
    });
    return 0;
}

// Final norm and lm_head: rows [num_rows, hidden] to logits [num_rows, vocab]. Returns as ps_run_layers.
int32_t ps_logits(const ps::Model* model, void* workspace, const float* rows, int64_t num_rows, float* logits,
                  int32_t num_threads) {
    ps::Workspace& space = *static_cast<ps::Workspace*>(workspace);
    const ps::Step step{num_rows, 0, 0, nullptr, nullptr, nullptr, nullptr, nullptr};
    try {
        space.fit(*model, num_rows, num_threads);
    } catch (const std::bad_alloc&) {
        return 1;
    }
    ps::with_team(*model, step, space, const_cast<float*>(rows), num_threads,
                  [&](ps::Decoder& decoder) { decoder.run_head(logits); });
    return 0;
}
}
