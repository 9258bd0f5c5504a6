// Which kernel family runs a call: a pure function of the call's description and the device.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_PLAN_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_PLAN_H_

#include <vector>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/family.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

struct Plan {
  const Family* forward;
  const Family* backward;  // reads forward's reserve; null unless spec.training
  bool forward_both;       // two directions at once
  bool backward_both;
};

// All families of this build, the preferred first.
const std::vector<Family>& Families();

// `forced` is null, "wavefront" or the name of the family to run forward (and backward where it
// can, with spec.training); a name that is unknown or cannot run the call is an error.
tfl_status MakePlan(const tfl_lstm_spec& spec, const DeviceLimits& limits,
                    const std::vector<Family>& families, const char* forced, Plan* plan);

// Whether layers of a stack run at once (sm90/stack.h): where it is faster, or as forced.
enum class StackForce { kWhereFaster, kAlways, kNever };
StackForce StackForceOf(const char* forced);

// The environment variable that forces a family, for tests: a family's name for all layers one
// after the other, or "wavefront" for the cluster family and layers at once wherever they can be.
constexpr char kForcePlanVariable[] = "TF_FUSED_LSTM_CUDA_PLAN";

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_PLAN_H_
