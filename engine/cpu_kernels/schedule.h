// How one step's attention is cut into units that threads take from a queue.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "attention.h"
#include "model.h"

namespace ps {

// Positions first..first+count-1 of one sequence for one KV head; `split` is -1 for all splits, else a single one whose
// state goes to `state` and is merged by the last thread of `join` to finish.
struct Unit {
    int32_t sequence, head;
    int64_t first, count;
    int64_t split, num_splits;
    int64_t state;  // floats into the state buffer, of split 0
    int64_t join;
};

class Schedule {
  public:
    std::vector<Unit> units;
    int64_t state_floats = 0;

    // Rebuilds the units. Long decode contexts are split over threads when whole sequences would not balance.
    void build(const Model& model, const Step& step, int num_threads) {
        units.clear();
        state_floats = 0;
        int64_t num_joins = 0;
        const int64_t group = model.heads / model.kv_heads;
        const int64_t tile = kTileRows / group > 0 ? kTileRows / group : 1;
        double total = 0;
        for (int64_t s = 0; s < step.num_sequences; ++s) total += cost(step, s);
        for (int64_t s = 0; s < step.num_sequences; ++s) {
            const int64_t queries = step.query_start[s + 1] - step.query_start[s], context = step.context_len[s];
            const int64_t splits = (context + kSplit - 1) / kSplit;
            const bool share = queries <= tile && splits > 1 && cost(step, s) > total / kUnitsPerThread / num_threads;
            // From the last tile, the costliest, to the first.
            for (int64_t from = (queries - 1) / tile * tile; from >= 0; from -= tile) {
                const int64_t count = queries - from < tile ? queries - from : tile, first = context - queries + from;
                for (int32_t h = 0; h < model.kv_heads; ++h) {
                    Unit unit{static_cast<int32_t>(s),
                              h,
                              first,
                              count,
                              -1,
                              (first + count + kSplit - 1) / kSplit,
                              state_floats,
                              num_joins};
                    if (!share) {
                        units.push_back(unit);
                        continue;
                    }
                    for (unit.split = 0; unit.split < splits; ++unit.split) units.push_back(unit);
                    state_floats += splits * AttentionScratch::state_floats(count * group, model.head_dim);
                    ++num_joins;
                }
            }
        }
        reset_counters(model.num_layers, num_joins);
    }

    Unit* take(int64_t layer) {
        const int64_t i = queue_[layer].fetch_add(1, std::memory_order_relaxed);
        return i < static_cast<int64_t>(units.size()) ? &units[i] : nullptr;
    }

    // Whether this was the last split of its join in this layer.
    bool is_last(const Unit& unit) {
        if (finished_[unit.join].fetch_add(1, std::memory_order_acq_rel) + 1 < unit.num_splits) return false;
        finished_[unit.join].store(0, std::memory_order_relaxed);
        return true;
    }

  private:
    static constexpr double kUnitsPerThread = 4;

    static double cost(const Step& step, int64_t s) {
        return static_cast<double>(step.context_len[s]) * (step.query_start[s + 1] - step.query_start[s]);
    }

    void reset_counters(int64_t num_layers, int64_t num_joins) {
        queue_.reset(new std::atomic<int64_t>[num_layers]());
        finished_.reset(new std::atomic<int32_t>[num_joins + 1]());
    }

    std::unique_ptr<std::atomic<int64_t>[]> queue_;
    std::unique_ptr<std::atomic<int32_t>[]> finished_;
};

}  // namespace ps
