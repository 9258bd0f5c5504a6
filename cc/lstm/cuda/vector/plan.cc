#include "cc/lstm/cuda/vector/plan.h"

#include <algorithm>

namespace tfl::cuda {

bool MakeVectorPlan(const tfl_lstm_spec& spec, const DeviceLimits& limits, int directions,
                    VectorPlan* plan) {
  constexpr int64_t kMaxHidden = 128 * kVectorWarps;
  if (!limits.cooperative_launch || spec.dtype == TFL_FLOAT64) return false;
  if (spec.num_recurrent_dropout_masks > 1) return false;
  if (spec.hidden_size < 1 || spec.hidden_size > kMaxHidden || spec.batch < 1) return false;
  if (spec.steps > (int64_t{1} << 24)) return false;  // steps are counted in 32 bits
  const int hidden = static_cast<int>(spec.hidden_size);
  plan->per_warp = 16;
  while (plan->per_warp * kVectorWarps < hidden) plan->per_warp *= 2;
  plan->blocks_per_group = (hidden + kVectorUnits - 1) / kVectorUnits;
  const int64_t groups =
      std::min<int64_t>(limits.multiprocessors / directions / plan->blocks_per_group, spec.batch);
  if (groups == 0) return false;
  const int64_t rows = (spec.batch + groups - 1) / groups;
  if (rows > kVectorMaxRows) return false;
  plan->rows = static_cast<int>(rows);
  plan->groups = static_cast<int>((spec.batch + rows - 1) / rows);
  // What comes in, with zeros behind it up to the padded length, and each warp's sums.
  const int units = plan->blocks_per_group * kVectorUnits;
  const int padded = plan->per_warp * kVectorWarps;
  plan->forward_shared_bytes = 4 * (plan->rows * (units + kVectorWarps * 32) + padded);
  plan->backward_shared_bytes =
      4 * (plan->rows * (4 * units + kVectorWarps * kVectorUnits) + 4 * padded);
  return std::max(plan->forward_shared_bytes, plan->backward_shared_bytes) <=
         limits.shared_bytes_per_block;
}

}  // namespace tfl::cuda
