#include "cc/lstm/cuda/tile/plan.h"

#include <algorithm>

namespace tfl::cuda {
namespace {

constexpr int kStaticBytes = 2 << 10;  // barriers, bias

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Cycles of a step; kChunk is what a warp loses at each chunk of h. The flights' instructions share
// a multiprocessor's schedulers, of which each has one warp of each team; a flight's own chain also
// waits for h to travel.
int64_t StepCycles(const TilePlan& cut) {
  const TileShape& shape = kTileShapes[cut.shape];
  constexpr int kTravel = 3000, kChunk = 350, kReduction = 500, kCell = 150;
  const int64_t depth = CeilDiv(cut.blocks_per_group, kTileWarps) * shape.units() / shape.depth();
  const int64_t instructions = 33 * shape.thread_units + 3;
  const int64_t cells = CeilDiv(shape.rows() * shape.units(), kTileWarps * 32);
  const int64_t flight =
      depth * instructions + cut.warp_chunks * kChunk + kReduction + cells * kCell;
  return std::max(cut.flights * flight, flight + kTravel);
}

}  // namespace

bool MakeTilePlan(const tfl_lstm_spec& spec, const DeviceLimits& limits, int directions,
                  TilePlan* plan) {
  constexpr int64_t kMaxHidden = 2048;
  if (limits.compute_capability != 90 || !limits.cooperative_launch) return false;
  if (spec.dtype != TFL_FLOAT32 || spec.num_recurrent_dropout_masks > 1) return false;
  if (spec.hidden_size < 1 || spec.hidden_size > kMaxHidden || spec.batch < 1) return false;
  if (spec.steps > (int64_t{1} << 24)) return false;  // arrivals are counted in 32 bits
  const int hidden = static_cast<int>(spec.hidden_size);
  bool found = false;
  for (int s = 0; s < kTileShapeCount; ++s) {
    const TileShape& shape = kTileShapes[s];
    TilePlan cut = {};
    cut.shape = s;
    cut.blocks_per_group = static_cast<int>(CeilDiv(hidden, shape.units()));
    cut.slices = CeilDiv(spec.batch, shape.rows());
    cut.groups = static_cast<int>(
        std::min<int64_t>(limits.multiprocessors / directions / cut.blocks_per_group, cut.slices));
    if (cut.groups == 0) continue;
    const int64_t flights = CeilDiv(cut.slices, cut.groups);
    if (flights > kTileMaxFlights) continue;
    cut.flights = static_cast<int>(flights);
    const int warp_blocks = static_cast<int>(CeilDiv(cut.blocks_per_group, kTileWarps));
    const auto bytes = [&](int chunk_blocks) {
      return TileLayout(shape, cut.blocks_per_group * shape.units(), cut.flights, chunk_blocks)
          .bytes;
    };
    cut.chunk_blocks = static_cast<int>(CeilDiv(warp_blocks, kTileStages / kTileTeams));
    while (cut.chunk_blocks > 0 &&
           bytes(cut.chunk_blocks) + kStaticBytes > limits.shared_bytes_per_block) {
      --cut.chunk_blocks;
    }
    if (cut.chunk_blocks == 0) continue;
    cut.warp_chunks = static_cast<int>(CeilDiv(warp_blocks, cut.chunk_blocks));
    cut.shared_bytes = bytes(cut.chunk_blocks);
    cut.step_cycles = StepCycles(cut);
    if (found && cut.step_cycles >= plan->step_cycles) continue;
    *plan = cut;
    found = true;
  }
  return found;
}

}  // namespace tfl::cuda
