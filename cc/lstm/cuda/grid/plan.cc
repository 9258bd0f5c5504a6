#include "cc/lstm/cuda/grid/plan.h"

#include <algorithm>

#include "cc/lstm/cuda/dtype.h"

namespace tfl::cuda {
namespace {

// Weights are staged in shared memory on their way to the registers, in rows of 64 (forward) and
// padded_hidden (backward) values, padded against bank conflicts.
constexpr int kPadding = 16;
constexpr int kMaxPasses = 3;

}  // namespace

bool MakeGridPlan(const tfl_lstm_spec& spec, const DeviceLimits& limits, GridDirection direction,
                  int resident_blocks, GridPlan* plan) {
  if (limits.compute_capability != 90 || !limits.cooperative_launch) return false;
  if (spec.num_recurrent_dropout_masks > 1) return false;
  // Of float32, with leave to round, forward multiplies scaled float16, and backward, whose factors
  // no scale known beforehand fits, TF32: its weights fill the registers at half the hidden size.
  const bool wide = spec.dtype == TFL_FLOAT32 && spec.allow_tf32;
  const bool wide_factors = wide && direction == GridDirection::kBackward;
  if (!wide && !Is16Bit(spec.dtype)) return false;
  if (spec.activation != TFL_TANH || spec.recurrent_activation != TFL_SIGMOID) return false;
  // Weights are read, and states written, in vectors of 8 and 4 units.
  if (spec.hidden_size % 8 != 0 || spec.hidden_size > (wide_factors ? 512 : 1024)) {
    return false;
  }
  plan->padded_hidden = spec.hidden_size <= 512 ? 512 : (spec.hidden_size <= 768 ? 768 : 1024);
  if (spec.hidden_size <= plan->padded_hidden / 2) return false;
  plan->blocks_per_group = plan->padded_hidden / kGridUnits;
  // Two blocks of a cluster share a pair of multiprocessors.
  int blocks = limits.multiprocessors / kGridClusterBlocks * kGridClusterBlocks;
  if (resident_blocks != 0) blocks = std::min(blocks, resident_blocks);
  const int groups = blocks / plan->blocks_per_group;
  if (groups == 0) return false;
  plan->rows = spec.batch <= 16 * groups ? 16 : 32;
  plan->slices = (spec.batch + plan->rows - 1) / plan->rows;
  plan->groups = static_cast<int>(std::min<int64_t>(groups, plan->slices));
  // Every pass runs through all steps: for large batches a product a step is faster.
  if (plan->slices > int64_t{kMaxPasses} * groups) return false;
  // Counters of arrivals are 32 bits wide.
  if (spec.steps > (int64_t{1} << 24)) return false;
  // While it runs: two buffers of what comes in, and what sums pass through.
  const int element = wide_factors ? 4 : 2;
  const int buffers = 2 * plan->padded_hidden * plan->rows * element;
  const int sums = plan->rows * kGridRowBytes;
  const int staged_rows = 4 * kGridUnits;
  const int forward_staging = plan->padded_hidden * (staged_rows * element + kPadding);
  const int backward_staging = staged_rows * (plan->padded_hidden * element + kPadding);
  plan->shared_bytes = std::max({buffers + sums, forward_staging, backward_staging});
  constexpr int kStaticBytes = 10 << 10;
  return plan->shared_bytes + kStaticBytes <= limits.shared_bytes_per_block;
}

}  // namespace tfl::cuda
