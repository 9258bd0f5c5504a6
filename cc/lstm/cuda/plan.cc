#include "cc/lstm/cuda/plan.h"

#include <cstring>

#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace {

constexpr char kWavefront[] = "wavefront";

bool Preferred(const Family& family, const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  return family.preferred == nullptr || family.preferred(spec, limits);
}

// The preferred family whose backward reads `layout`, with `first` before all others.
const Family* BackwardFor(const tfl_lstm_spec& spec, const DeviceLimits& limits,
                          const std::vector<Family>& families, ReserveLayout layout,
                          const Family* first) {
  if (first != nullptr && first->backward_supported(spec, limits)) return first;
  for (const Family& family : families) {
    if (family.reserve_layout == layout && family.backward_supported(spec, limits) &&
        Preferred(family, spec, limits)) {
      return &family;
    }
  }
  return nullptr;
}

bool RunsBoth(bool (*supported)(const tfl_lstm_spec&, const DeviceLimits&),
              const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  return spec.num_directions == 2 && supported != nullptr && supported(spec, limits);
}

}  // namespace

StackForce StackForceOf(const char* forced) {
  if (forced == nullptr) return StackForce::kWhereFaster;
  return std::strcmp(forced, kWavefront) == 0 ? StackForce::kAlways : StackForce::kNever;
}

tfl_status MakePlan(const tfl_lstm_spec& spec, const DeviceLimits& limits,
                    const std::vector<Family>& families, const char* forced, Plan* plan) {
  if (StackForceOf(forced) == StackForce::kAlways) forced = "cluster";
  bool known = forced == nullptr;
  for (const Family& family : families) {
    if (forced != nullptr && std::strcmp(family.name, forced) != 0) continue;
    known = true;
    if (!family.forward_supported(spec, limits)) continue;
    if (forced == nullptr && !Preferred(family, spec, limits)) continue;
    plan->forward = &family;
    plan->backward = nullptr;
    plan->forward_both = RunsBoth(family.forward_both_supported, spec, limits);
    plan->backward_both = false;
    if (!spec.training) return Ok();
    plan->backward = BackwardFor(spec, limits, families, family.reserve_layout,
                                 forced == nullptr ? nullptr : &family);
    if (plan->backward == nullptr) continue;
    plan->backward_both = RunsBoth(plan->backward->backward_both_supported, spec, limits);
    return Ok();
  }
  if (!known) {
    return Error(TFL_INVALID_ARGUMENT,
                 "%s must be step, vector, grid, tile, cluster, block or wavefront; got '%s'",
                 kForcePlanVariable, forced);
  }
  return Error(forced == nullptr ? TFL_INTERNAL : TFL_INVALID_ARGUMENT,
               "%s=%s: no such kernel for batch %lld, hidden size %lld, dtype %d on compute "
               "capability %d.%d",
               kForcePlanVariable, forced == nullptr ? "" : forced,
               static_cast<long long>(spec.batch), static_cast<long long>(spec.hidden_size),
               spec.dtype, limits.compute_capability / 10, limits.compute_capability % 10);
}

}  // namespace tfl::cuda
