#include <vector>

#include "cc/lstm/cuda/grid/grid.h"
#include "cc/lstm/cuda/plan.h"
#include "cc/lstm/cuda/step/step.h"
#include "cc/lstm/cuda/vector/vector.h"
#if __has_include("cc/lstm/cuda/sm90/cluster.h") && !defined(TFL_WITHOUT_CLUSTER)
#include "cc/lstm/cuda/sm90/cluster.h"
#define TFL_HAS_CLUSTER 1
#endif

namespace tfl::cuda {
namespace {

bool Always(const tfl_lstm_spec&, const DeviceLimits&) { return true; }

}  // namespace

const std::vector<Family>& Families() {
  static const auto* families = new std::vector<Family>{
#ifdef TFL_HAS_CLUSTER
      {"cluster", ReserveLayout::kCluster, ClusterForwardSupported, ClusterBackwardSupported,
       nullptr, ClusterReserveBytes, ClusterForwardWorkspaceBytes, ClusterBackwardWorkspaceBytes,
       ClusterForward, ClusterBackward},
#endif
      {"vector", ReserveLayout::kSteps, VectorSupported, VectorSupported, VectorPreferred,
       StepReserveBytes, VectorForwardWorkspaceBytes, VectorBackwardWorkspaceBytes, VectorForward,
       VectorBackward},
      {"grid", ReserveLayout::kSteps, GridSupported, GridSupported, nullptr, StepReserveBytes,
       GridForwardWorkspaceBytes, GridBackwardWorkspaceBytes, GridForward, GridBackward},
      {"step", ReserveLayout::kSteps, Always, Always, nullptr, StepReserveBytes,
       StepForwardWorkspaceBytes, StepBackwardWorkspaceBytes, StepForward, StepBackward},
  };
  return *families;
}

}  // namespace tfl::cuda
