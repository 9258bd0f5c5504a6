#include "cc/lstm/cuda/sm90/stack.h"

#include <algorithm>
#include <limits>

#include "cc/lstm/cuda/block/block.h"
#include "cc/lstm/cuda/block/plan.h"
#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/sm90/cluster.h"
#include "cc/lstm/cuda/sm90/launch.h"
#include "cc/lstm/cuda/sm90/params.h"
#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace sm90 {

namespace {

// Where layers are not 16-bit ones of at most 256 units, as measured
// (docs/performance/clusters.md), by type and padded units: how many percent of the estimate by
// which the cluster's plan chooses slices a step of one layer takes; nanoseconds of a step of all
// layers at once, forward what it adds to that estimate, backward with one row tile.
struct StepTimes {
  int element_bytes, hidden;
  int64_t forward_percent, backward_percent, stack_forward_ns, stack_backward_ns;
};
constexpr StepTimes kStepTimes[] = {
    {4, 64, 125, 150, 220, 1200},  {4, 128, 150, 180, 420, 1500},  {4, 256, 200, 230, 1250, 2600},
    {2, 384, 180, 240, 650, 2150}, {2, 512, 160, 160, 1300, 2150},
};

const StepTimes* TimesOf(const KernelSet& set) {
  for (const StepTimes& times : kStepTimes) {
    if (times.element_bytes == set.element_bytes && times.hidden == set.hidden) return &times;
  }
  return nullptr;
}

// Nanoseconds of a step of all layers. A layer backward works at its row tiles one after the other,
// and at each reads four times what it reads forward.
int64_t StackStepCost(const KernelSet& set, int64_t rows, bool forward) {
  const StepTimes* times = TimesOf(set);
  if (forward) {
    const int64_t more = times == nullptr ? 200 : times->stack_forward_ns;
    const int64_t many_tf32 = set.element_bytes == 4 && set.rows > 16 ? 50 * rows : 0;
    return StepCost(set, rows) + set.hidden * set.rows / 32 + more + many_tf32;
  }
  const int64_t tiles = (rows + 7) / 8, one = times == nullptr ? 1270 : times->stack_backward_ns;
  return tiles * (one + 215 * (tiles - 1)) + set.rows;
}

}  // namespace

StackSlices ChooseStackSlices(const KernelList& sets, const int* clusters, int64_t batch,
                              int layers, bool forward) {
  StackSlices best = {-1, 0, 0, std::numeric_limits<int64_t>::max()};
  for (int i = 0; i < sets.count; ++i) {
    const KernelSet& set = sets.sets[i];
    const int64_t a_layer = clusters[i] / layers;
    if (a_layer == 0 || a_layer * set.rows < batch) continue;
    const int64_t rows = ((batch + a_layer - 1) / a_layer + 1) / 2 * 2;
    const int64_t step_ns = StackStepCost(set, rows, forward);
    if (step_ns < best.step_ns) best = {i, rows, (batch + rows - 1) / rows, step_ns};
  }
  return best;
}

int64_t SingleStepCost(const KernelSet& set, int64_t estimate_ns, bool forward) {
  const StepTimes* times = TimesOf(set);
  if (times == nullptr) return forward ? estimate_ns : estimate_ns * 7 / 5;
  return estimate_ns * (forward ? times->forward_percent : times->backward_percent) / 100;
}

bool StackPays(int64_t steps, int layers, int64_t step_ns, int64_t single_step_ns) {
  // A layer begins so many steps after its neighbour. Launch, weights and a projection take their
  // time once, or in every layer.
  constexpr int64_t kLag = 6, kOnceNs = 13000, kLayerNs = 10000;
  return (steps + kLag * (layers - 1)) * step_ns + kOnceNs <
         layers * (steps * single_step_ns + kLayerNs);
}

namespace {

constexpr int kMostSets = 4;

// Those that share the layout of the single layers' reserve.
KernelList Find(const tfl_lstm_spec& spec) {
  const int hidden = ClusterPaddedHidden(spec);
#define TFL_FIND(type, padded) \
  if (spec.dtype == k##type && hidden == padded) return type##Stacks##padded();
  constexpr tfl_dtype kBfloat16 = TFL_BFLOAT16, kFloat16 = TFL_FLOAT16, kTf32 = TFL_FLOAT32;
  TFL_STACK_LISTS(TFL_FIND)
#undef TFL_FIND
  return {nullptr, 0};
}

StackSlices Choose(const tfl_lstm_spec& spec, int layers, bool forward) {
  const KernelList list = Find(spec);
  int clusters[kMostSets] = {};
  for (int i = 0; i < std::min(list.count, kMostSets); ++i) {
    if (LaunchOf(list.sets[i], forward).kernel == nullptr) continue;
    clusters[i] = MaxClusters(list.sets[i], forward);
  }
  return ChooseStackSlices(list, clusters, spec.batch, layers, forward);
}

// Whether `upper` can take its rows from `lower` while both run.
bool Follows(const tfl_lstm_spec& upper, const tfl_lstm_spec& lower) {
  return upper.batch == lower.batch && upper.steps == lower.steps && upper.dtype == lower.dtype &&
         upper.weight_dtype == lower.weight_dtype && upper.allow_tf32 == lower.allow_tf32 &&
         upper.hidden_size == lower.hidden_size && upper.input_size == lower.hidden_size &&
         upper.time_major == lower.time_major && upper.has_mask == lower.has_mask &&
         upper.training == lower.training &&
         upper.zero_output_for_mask == lower.zero_output_for_mask && upper.num_directions == 1 &&
         upper.num_dropout_masks == 0 && lower.return_sequences;
}

bool Supported(const tfl_lstm_spec* specs, int layers, bool only_if_faster,
               const DeviceLimits& limits, bool forward) {
  const tfl_lstm_spec& spec = specs[0];
  if (layers < 2 || layers > kMaxStackLayers || spec.num_directions != 1 || spec.go_backwards ||
      spec.hidden_size * SizeOf(spec.dtype) % 16 != 0) {
    return false;
  }
  for (int l = 0; l < layers; ++l) {
    if (specs[l].go_backwards || (l > 0 && !Follows(specs[l], specs[l - 1]))) return false;
    if (forward ? !ClusterForwardSupported(specs[l], limits)
                : !ClusterBackwardSupported(specs[l], limits)) {
      return false;
    }
  }
  const StackSlices slices = Choose(spec, layers, forward);
  if (slices.set < 0) return false;
  if (!only_if_faster) return true;
  // One after the other the layers are calls of the block family where it can run them.
  BlockPlan block;
  const int64_t single_ns = BlockSupported(spec, limits) && MakeBlockPlan(spec, limits, &block)
                                ? BlockStepNanoseconds(block, forward)
                                : SingleStepCost(Find(spec).sets[slices.set],
                                                 ClusterStepNanoseconds(spec, forward), forward);
  return StackPays(spec.steps, layers, slices.step_ns, single_ns);
}

// Fills in how job i reads that of i - 1, and is read.
void Link(const tfl_lstm_spec& spec, const void* source, const void* kernel, uint32_t* counts,
          int64_t stride, int i, int jobs, CommonParams* p, StackPart* part) {
  if (i > 0) p->weight_load = std::max(p->weight_load, WeightLoadOf(spec, kernel));
  part->source = i == 0 ? nullptr : source;
  part->kernel = i == 0 ? nullptr : kernel;
  part->source_counts = i == 0 ? nullptr : counts + (i - 1) * stride;
  part->counts = i + 1 == jobs ? nullptr : counts + i * stride;
  part->weights_are_float = spec.weight_dtype == TFL_FLOAT32;
  part->layer_returns_sequences = spec.return_sequences;
}

template <class Params>
tfl_status Run(const tfl_lstm_spec& spec, int layers, bool forward, const StackSlices& slices,
               uint32_t* counts, Params params, cudaStream_t stream) {
  const int64_t bytes = (layers - 1) * slices.slices * kCountStride * int64_t{sizeof(uint32_t)};
  TFL_RETURN_IF_ERROR(FromCuda(cudaMemsetAsync(counts, 0, bytes, stream), "clearing counts"));
  params.rows = static_cast<int32_t>(slices.rows);
  const KernelSet& set = Find(spec).sets[slices.set];
  cudaLaunchConfig_t config;
  cudaLaunchAttribute attributes[2];
  Describe(set, forward, static_cast<int>(slices.slices), layers, sm90::Start::kAtOnce, &config,
           attributes);
  config.stream = stream;
  void* arguments[] = {&params};
  return FromCuda(cudaLaunchKernelExC(&config, LaunchOf(set, forward).kernel, arguments),
                  forward ? "StackForwardKernel" : "StackBackwardKernel");
}

}  // namespace
}  // namespace sm90

bool ClusterStackForwardSupported(const tfl_lstm_spec* specs, int layers, bool only_if_faster,
                                  const DeviceLimits& limits) {
  return sm90::Supported(specs, layers, only_if_faster, limits, true);
}

bool ClusterStackBackwardSupported(const tfl_lstm_spec* specs, int layers, bool only_if_faster,
                                   const DeviceLimits& limits) {
  return sm90::Supported(specs, layers, only_if_faster, limits, false);
}

int64_t ClusterStackWorkspaceBytes(const tfl_lstm_spec& spec, int layers) {
  return layers * ((spec.batch + 1) / 2) * sm90::kCountStride * int64_t{sizeof(uint32_t)};
}

tfl_status ClusterStackForward(const ForwardRecurrence* calls, const void* const* kernels,
                               int layers, cudaStream_t stream) {
  const tfl_lstm_spec& spec = calls[0].spec;
  const sm90::StackSlices slices = sm90::Choose(spec, layers, true);
  if (slices.set < 0) return Error(TFL_INTERNAL, "the layers of this stack do not fit at once");
  auto* const counts = static_cast<uint32_t*>(calls[0].workspace);
  sm90::StackForwardParams p = {};
  sm90::SetCommon(spec, calls[0].mask, &p);
  p.projection_is_float = true;
  p.weights_are_float = spec.weight_dtype == TFL_FLOAT32;
  for (int l = 0; l < layers; ++l) {
    sm90::SetJob(calls[l], &p, &p.jobs[l]);
    sm90::Link(calls[l].spec, l == 0 ? nullptr : calls[l - 1].output, kernels[l], counts,
               slices.slices * sm90::kCountStride, l, layers, &p, &p.jobs[l]);
  }
  return sm90::Run(spec, layers, true, slices, counts, p, stream);
}

tfl_status ClusterStackBackward(const BackwardRecurrence* calls, const void* const* kernels,
                                int layers, cudaStream_t stream) {
  const tfl_lstm_spec& spec = calls[0].spec;
  const sm90::StackSlices slices = sm90::Choose(spec, layers, false);
  if (slices.set < 0) return Error(TFL_INTERNAL, "the layers of this stack do not fit at once");
  auto* const counts = static_cast<uint32_t*>(calls[0].workspace);
  sm90::StackBackwardParams p = {};
  sm90::SetCommon(spec, calls[0].mask, &p);
  p.grad_gates_are_float = false;
  for (int i = 0; i < layers; ++i) {  // the top first
    const int l = layers - 1 - i;
    sm90::SetJob(calls[l], &p, &p.jobs[i]);
    const bool top = i == 0;
    sm90::Link(calls[l].spec, top ? nullptr : calls[l + 1].grad_gates,
               top ? nullptr : kernels[l + 1], counts, slices.slices * sm90::kCountStride, i,
               layers, &p, &p.jobs[i]);
  }
  return sm90::Run(spec, layers, false, slices, counts, p, stream);
}

}  // namespace tfl::cuda
