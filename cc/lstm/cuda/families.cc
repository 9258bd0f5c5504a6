#include <vector>

#include "cc/lstm/cuda/block/block.h"
#include "cc/lstm/cuda/grid/grid.h"
#include "cc/lstm/cuda/plan.h"
#include "cc/lstm/cuda/sm90/cluster.h"
#include "cc/lstm/cuda/step/step.h"
#include "cc/lstm/cuda/tile/tile.h"
#include "cc/lstm/cuda/vector/vector.h"

namespace tfl::cuda {
namespace {

bool Always(const tfl_lstm_spec&, const DeviceLimits&) { return true; }
bool Never(const tfl_lstm_spec&, const DeviceLimits&) { return false; }

}  // namespace

const std::vector<Family>& Families() {
  static const auto* families = new std::vector<Family>{
      {"block", ReserveLayout::kCluster, BlockSupported, BlockSupported, nullptr,
       ClusterReserveBytes, BlockWorkspaceBytes, BlockWorkspaceBytes, BlockForward, BlockBackward,
       BlockSupported, BlockSupported, BlockForwardBoth, BlockBackwardBoth},
      {"cluster", ReserveLayout::kCluster, ClusterForwardSupported, ClusterBackwardSupported,
       nullptr, ClusterReserveBytes, ClusterForwardWorkspaceBytes, ClusterBackwardWorkspaceBytes,
       ClusterForward, ClusterBackward, ClusterForwardSupported, ClusterBackwardSupported,
       ClusterForwardBoth, ClusterBackwardBoth},
      {"tile", ReserveLayout::kSteps, TileForwardSupported, Never, TilePreferred, StepReserveBytes,
       TileForwardWorkspaceBytes, nullptr, TileForward, nullptr, TileForwardBothSupported, nullptr,
       TileForwardBoth, nullptr},
      {"vector", ReserveLayout::kSteps, VectorSupported, VectorSupported, VectorPreferred,
       StepReserveBytes, VectorForwardWorkspaceBytes, VectorBackwardWorkspaceBytes, VectorForward,
       VectorBackward, VectorBothSupported, VectorBothSupported, VectorForwardBoth,
       VectorBackwardBoth, /*sums_projection=*/true},
      {"grid", ReserveLayout::kSteps, GridForwardSupported, GridBackwardSupported, nullptr,
       StepReserveBytes, GridForwardWorkspaceBytes, GridBackwardWorkspaceBytes, GridForward,
       GridBackward, GridForwardBothSupported, GridBackwardBothSupported, GridForwardBoth,
       GridBackwardBoth},
      {"step", ReserveLayout::kSteps, Always, Always, nullptr, StepReserveBytes,
       StepForwardWorkspaceBytes, StepBackwardWorkspaceBytes, StepForward, StepBackward},
  };
  return *families;
}

}  // namespace tfl::cuda
