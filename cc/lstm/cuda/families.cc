#include <vector>

#include "cc/lstm/cuda/grid/grid.h"
#include "cc/lstm/cuda/plan.h"
#include "cc/lstm/cuda/step/step.h"
#if __has_include("cc/lstm/cuda/sm90/cluster.h")
#include "cc/lstm/cuda/sm90/cluster.h"
#define TFL_HAS_CLUSTER 1
#endif

namespace tfl::cuda {
namespace {

bool Never(const tfl_lstm_spec&, const DeviceLimits&) { return false; }
bool Always(const tfl_lstm_spec&, const DeviceLimits&) { return true; }

}  // namespace

const std::vector<Family>& Families() {
  static const auto* families = new std::vector<Family>{
#ifdef TFL_HAS_CLUSTER
      {"cluster", ReserveLayout::kCluster, ClusterForwardSupported, ClusterBackwardSupported,
       ClusterReserveBytes, ClusterForwardWorkspaceBytes, ClusterBackwardWorkspaceBytes,
       ClusterForward, ClusterBackward},
#endif
      {"grid", ReserveLayout::kSteps, GridForwardSupported, Never, StepReserveBytes,
       GridForwardWorkspaceBytes, StepBackwardWorkspaceBytes, GridForward, StepBackward},
      {"step", ReserveLayout::kSteps, Always, Always, StepReserveBytes, StepForwardWorkspaceBytes,
       StepBackwardWorkspaceBytes, StepForward, StepBackward},
  };
  return *families;
}

}  // namespace tfl::cuda
