#include <vector>

#include "cc/lstm/cuda/grid/grid.h"
#include "cc/lstm/cuda/plan.h"
#include "cc/lstm/cuda/sm90/cluster.h"
#include "cc/lstm/cuda/step/step.h"
#include "cc/lstm/cuda/vector/vector.h"

namespace tfl::cuda {
namespace {

bool Always(const tfl_lstm_spec&, const DeviceLimits&) { return true; }

// Not float32 (TF32): those kernels are to be run on a device again first (docs/performance.md).
// That also keeps the reserve's layout the same when TensorFlow's TF32 switch moves between forward
// and backward.
bool ClusterPreferred(const tfl_lstm_spec& spec, const DeviceLimits&) {
  return spec.dtype != TFL_FLOAT32;
}

}  // namespace

const std::vector<Family>& Families() {
  static const auto* families = new std::vector<Family>{
      {"cluster", ReserveLayout::kCluster, ClusterForwardSupported, ClusterBackwardSupported,
       ClusterPreferred, ClusterReserveBytes, ClusterForwardWorkspaceBytes,
       ClusterBackwardWorkspaceBytes, ClusterForward, ClusterBackward},
      {"vector", ReserveLayout::kSteps, VectorSupported, VectorSupported, VectorPreferred,
       StepReserveBytes, VectorForwardWorkspaceBytes, VectorBackwardWorkspaceBytes, VectorForward,
       VectorBackward},
      {"grid", ReserveLayout::kSteps, GridForwardSupported, GridBackwardSupported, nullptr,
       StepReserveBytes, GridForwardWorkspaceBytes, GridBackwardWorkspaceBytes, GridForward,
       GridBackward},
      {"step", ReserveLayout::kSteps, Always, Always, nullptr, StepReserveBytes,
       StepForwardWorkspaceBytes, StepBackwardWorkspaceBytes, StepForward, StepBackward},
  };
  return *families;
}

}  // namespace tfl::cuda
