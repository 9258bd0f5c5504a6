#include "cc/lstm/cuda/block/plan.h"

#include <algorithm>
#include <limits>

#include "cc/lstm/cuda/block/config.h"
#include "cc/lstm/cuda/dtype.h"

namespace tfl::cuda {

bool MakeBlockPlan(const tfl_lstm_spec& spec, const DeviceLimits& limits, BlockPlan* plan) {
  constexpr int64_t kMost = int64_t{1} << 24;
  if (!Is16Bit(spec.dtype) ||
      (spec.weight_dtype != spec.dtype && spec.weight_dtype != TFL_FLOAT32)) {
    return false;
  }
  // A mask for each gate would make four factors of h.
  if (spec.num_recurrent_dropout_masks > 1) return false;
  if (spec.activation != TFL_TANH || spec.recurrent_activation != TFL_SIGMOID) return false;
  if (spec.batch < 1 || spec.steps < 1 || spec.batch > kMost || spec.steps > kMost ||
      spec.hidden_size < 1 || spec.hidden_size > kBlockMaxHidden) {
    return false;
  }
  if (limits.compute_capability < 80) return false;
  plan->padded_hidden = spec.hidden_size <= 64 ? 64 : 128;
  // R comes at once where its stage has room for all of it, else in pieces.
  const auto fits = [&](int slots) {
    constexpr int kDeclaredByName = 1024;
    constexpr int kMostRows = 8;
    const int bytes = std::max(block::SharedBytes(plan->padded_hidden, kMostRows, slots, true),
                               block::SharedBytes(plan->padded_hidden, kMostRows, slots, false));
    return bytes + kDeclaredByName <= limits.shared_bytes_per_block;
  };
  plan->slots = plan->padded_hidden / block::kGroupRows;
  if (!fits(plan->slots)) plan->slots = block::kLeastSlots;
  if (!fits(plan->slots)) return false;

  const int64_t places = std::max<int64_t>(1, limits.multiprocessors / spec.num_directions);
  int64_t best = std::numeric_limits<int64_t>::max();
  for (int kernel_rows : {2, 4, 8}) {
    BlockPlan p = *plan;
    const int64_t most = places * kernel_rows;
    p.waves = static_cast<int>((spec.batch + most - 1) / most);
    const int64_t blocks = p.waves * places;
    p.kernel_rows = kernel_rows;
    p.rows = static_cast<int>((spec.batch + blocks - 1) / blocks);
    p.blocks = static_cast<int>((spec.batch + p.rows - 1) / p.rows);
    const int64_t cost = BlockStepNanoseconds(p, true);
    if (cost >= best) continue;
    best = cost;
    *plan = p;
  }
  return true;
}

int64_t BlockStepNanoseconds(const BlockPlan& plan, bool forward) {
  const bool small = plan.padded_hidden == 64;
  const int64_t rows = plan.kernel_rows;
  if (forward) return plan.waves * (small ? 220 + 25 * rows : 370 + 30 * rows);
  return plan.waves * (small ? 230 + 25 * rows : 460 + 40 * rows);
}

}  // namespace tfl::cuda
