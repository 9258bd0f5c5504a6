#include "cc/lstm/cuda/grid/plan.h"

#include <algorithm>

#include "cc/lstm/cuda/dtype.h"

namespace tfl::cuda {
namespace {

// Weights are staged in shared memory on their way to the registers, in rows of 64 (forward) and
// padded_hidden (backward) values of 2 bytes, padded against bank conflicts.
constexpr int kForwardPitch = 144;
constexpr int kBackwardPadding = 16;
constexpr int kMaxPasses = 3;

}  // namespace

bool MakeGridPlan(const tfl_lstm_spec& spec, const DeviceLimits& limits, int resident_blocks,
                  GridPlan* plan) {
  if (limits.compute_capability != 90 || !limits.cooperative_launch) return false;
  if (!Is16Bit(spec.dtype)) return false;
  if (spec.activation != TFL_TANH || spec.recurrent_activation != TFL_SIGMOID) return false;
  // Weights are read, and states written, in vectors of 8 and 4 units.
  if (spec.hidden_size % 8 != 0 || spec.hidden_size > 1024) return false;
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
  // While it runs: two buffers of what comes in, and what the rows' sums and results pass through.
  const int buffers = 2 * plan->padded_hidden * plan->rows * 2;
  const int sums = plan->rows * kGridRowBytes;
  const int forward_staging = plan->padded_hidden * kForwardPitch;
  const int backward_staging = 4 * kGridUnits * (2 * plan->padded_hidden + kBackwardPadding);
  plan->shared_bytes = std::max({buffers + sums, forward_staging, backward_staging});
  return plan->shared_bytes + 1024 <= limits.shared_bytes_per_block;
}

}  // namespace tfl::cuda
