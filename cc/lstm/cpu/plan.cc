#include "cc/lstm/cpu/plan.h"

#include <unistd.h>

#include <algorithm>
#include <initializer_list>

#include "cc/lstm/cpu/status.h"

namespace tfl::cpu {
namespace {

// Multiplies and adds sizes, and remembers whether any result was beyond int64.
class Sizes {
 public:
  int64_t Product(std::initializer_list<int64_t> factors) {
    int64_t product = 1;
    for (int64_t factor : factors) {
      // A zero anywhere makes the whole product zero, whatever the others would overflow to.
      if (factor == 0) return 0;
    }
    for (int64_t factor : factors) {
      overflow_ |= __builtin_mul_overflow(product, factor, &product);
    }
    return overflow_ ? 0 : product;
  }

  // Appends `count` elements to a buffer of `*bytes` and returns their offset.
  int64_t Append(int64_t count, int64_t element_bytes, int64_t* bytes) {
    const int64_t offset = *bytes;
    const int64_t size = Product({count, element_bytes});
    overflow_ |= __builtin_add_overflow(*bytes, size, bytes);
    overflow_ |= __builtin_add_overflow(*bytes, int64_t{63}, bytes);
    if (overflow_) *bytes = 0;
    *bytes &= ~int64_t{63};
    return offset;
  }

  int64_t RoundUp(int64_t value, int64_t multiple) {
    overflow_ |= value > INT64_MAX - multiple;
    return overflow_ ? 0 : (value + multiple - 1) / multiple * multiple;
  }

  bool overflow() const { return overflow_; }

 private:
  bool overflow_ = false;
};

// Bytes of a core's second-level cache, 0 where they are unknown.
int64_t SecondLevelCache() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes;
#else
  return 0;
#endif
}

// Multiply-adds of a phase below which another thread costs more than it brings.
constexpr int64_t kMinShareWork = 12 << 10;
// Multiply-adds of a task large enough that dealing it out separately costs nothing.
constexpr int64_t kTaskWork = 4 << 20;
constexpr int kMaxTasksPerShare = 4;
// Rows of the input that are projected at once.
constexpr int64_t kChunkRows = 512;
// Recurrent weights, in elements, that every core may read by itself at each step.
constexpr int64_t kSmallRecurrent = 64 << 10;
// Larger ones that every core may read by itself in the backward pass, where a step's input is four
// times as long and would else come from the other cores, if it has kShareRows rows to read them
// for, or more where more cores than that share the third-level cache.
constexpr int64_t kSharedRecurrent = 2 << 20;
constexpr int64_t kShareRows = 8;
// Rows that make a full tile on every target.
constexpr int64_t kTileRows = 6;

tfl_status CheckSpec(const tfl_lstm_spec& spec) {
  const struct {
    const char* name;
    int64_t value;
  } sizes[] = {{"batch", spec.batch},
               {"steps", spec.steps},
               {"input_size", spec.input_size},
               {"hidden_size", spec.hidden_size}};
  for (const auto& size : sizes) {
    if (size.value < 0) {
      return InvalidArgument("%s must not be negative, got %lld", size.name,
                             static_cast<long long>(size.value));
    }
  }
  if (spec.dtype < TFL_FLOAT32 || spec.dtype > TFL_BFLOAT16) {
    return InvalidArgument("dtype must be one of tfl_dtype, got %d", static_cast<int>(spec.dtype));
  }
  const bool half = spec.dtype == TFL_FLOAT16 || spec.dtype == TFL_BFLOAT16;
  if (spec.weight_dtype != spec.dtype && !(half && spec.weight_dtype == TFL_FLOAT32)) {
    return InvalidArgument(
        "weight_dtype must be dtype, or float32 below a 16-bit dtype; got weight_dtype %d with "
        "dtype %d",
        static_cast<int>(spec.weight_dtype), static_cast<int>(spec.dtype));
  }
  if (spec.num_directions < 1 || spec.num_directions > TFL_MAX_DIRECTIONS) {
    return InvalidArgument("num_directions must be 1 or 2, got %d", spec.num_directions);
  }
  if (spec.num_directions == 2 && spec.go_backwards) {
    return InvalidArgument("go_backwards must not be set with two directions");
  }
  for (const int masks : {spec.num_dropout_masks, spec.num_recurrent_dropout_masks}) {
    if (masks != 0 && masks != 1 && masks != 4) {
      return InvalidArgument(
          "num_dropout_masks and num_recurrent_dropout_masks must be 0, 1 or 4, "
          "got %d",
          masks);
    }
  }
  if (spec.activation < TFL_TANH || spec.activation > TFL_LINEAR) {
    return InvalidArgument("activation must be one of tfl_activation, got %d",
                           static_cast<int>(spec.activation));
  }
  if (spec.recurrent_activation < TFL_TANH || spec.recurrent_activation > TFL_LINEAR) {
    return InvalidArgument("recurrent_activation must be one of tfl_activation, got %d",
                           static_cast<int>(spec.recurrent_activation));
  }
  return Ok();
}

// How the team divides the work; its sizes are known not to overflow.
void PlanTeam(const tfl_lstm_spec& spec, int32_t num_threads, Plan* plan) {
  const int64_t step_work =
      std::min(spec.batch,
               INT64_MAX / std::max<int64_t>(1, 4 * spec.hidden_size * plan->hidden_padded)) *
      4 * spec.hidden_size * plan->hidden_padded;
  const double whole_work = static_cast<double>(spec.steps) * spec.batch * 4 * plan->hidden_padded *
                            (static_cast<double>(spec.input_size) + spec.hidden_size + 16) *
                            spec.num_directions;
  plan->shares = static_cast<int>(
      std::clamp<double>(whole_work / (8 * kMinShareWork), 1.0, std::max(num_threads, 1)));
  const int64_t row_tasks = std::min<int64_t>(spec.batch / kTileRows, plan->shares);
  if (step_work < kMinShareWork * 2) {
    plan->row_tasks = static_cast<int>(std::max<int64_t>(1, row_tasks));
  } else if (spec.num_directions == 2 && plan->shares == 2) {
    plan->row_tasks = 1;  // a direction each, and nobody waits at every step
  } else if (4 * spec.hidden_size * plan->hidden_padded <= kSmallRecurrent &&
             row_tasks >= plan->shares) {
    plan->row_tasks = static_cast<int>(row_tasks);
  } else {
    plan->shares = static_cast<int>(std::min<int64_t>(plan->shares, step_work / kMinShareWork));
  }
  plan->grad_row_tasks = plan->row_tasks;
  if (plan->row_tasks == 0 && 4 * spec.hidden_size * plan->hidden_padded <= kSharedRecurrent &&
      spec.batch / plan->shares >= std::max<int64_t>(kShareRows, plan->shares)) {
    plan->grad_row_tasks = plan->shares;
  }
  plan->step_tasks = static_cast<int>(
      std::clamp<int64_t>(step_work / plan->shares / kTaskWork, 1, kMaxTasksPerShare));
  plan->chunk_steps =
      std::min(spec.steps, std::max<int64_t>(1, kChunkRows / std::max<int64_t>(1, spec.batch)));
}

}  // namespace

tfl_status MakePlan(const tfl_lstm_spec& spec, int32_t num_threads, Plan* plan) {
  *plan = Plan();
  if (tfl_status status = CheckSpec(spec); status.code != TFL_OK) return status;
  if (num_threads < 1) {
    return InvalidArgument("num_threads must be at least 1, got %d", static_cast<int>(num_threads));
  }
  const int64_t batch = spec.batch, steps = spec.steps;
  const int64_t masks = spec.num_dropout_masks;
  const int64_t recurrent_masks = spec.num_recurrent_dropout_masks;
  const int64_t input = spec.input_size, hidden = spec.hidden_size;
  Sizes sizes;
  const int64_t padded = sizes.RoundUp(hidden, kUnitPadding);
  const int64_t panel_padded = sizes.RoundUp(hidden, kMaxPanel);
  // The caller's own tensors, and the padded ones that bound all products of ours.
  sizes.Product({batch, steps, std::max<int64_t>(input, 1), int64_t{8}});
  sizes.Product({batch, sizes.RoundUp(steps, 1) + 1, 4, std::max<int64_t>(padded, 1), 8});
  sizes.Product({std::max({input, hidden, int64_t{1}}), 8, padded, 8});
  const tfl_status too_large = InvalidArgument(
      "x and recurrent_kernel must have sizes whose scratch fits in 63 bits of bytes, got batch "
      "%lld, steps %lld, input_size %lld, hidden_size %lld",
      static_cast<long long>(batch), static_cast<long long>(steps), static_cast<long long>(input),
      static_cast<long long>(hidden));
  if (sizes.overflow()) return too_large;

  const tfl_dtype compute = spec.dtype == TFL_FLOAT64 ? TFL_FLOAT64 : TFL_FLOAT32;
  const int64_t element = compute == TFL_FLOAT64 ? 8 : 4;
  plan->hidden_padded = padded;
  plan->convert_x = spec.dtype != compute;
  plan->copy_chunk = plan->convert_x || masks > 0;
  plan->copy_x = plan->convert_x || spec.has_mask;
  plan->convert_weights = spec.weight_dtype != compute;
  plan->plain_gates = padded == hidden;
  plan->direct_recurrent =
      batch == 1 && plan->plain_gates && ReadsDirectly(hidden, SecondLevelCache());
  PlanTeam(spec, num_threads, plan);
  const int64_t state = sizes.Product({batch, padded});
  const int64_t step_gates = sizes.Product({state, 4});
  const int64_t kernel = sizes.Product({input, 4, hidden});
  const int64_t recurrent_kernel = sizes.Product({hidden, 4, hidden});

  if (spec.training) {
    ReserveLayout& reserve = plan->reserve;
    int64_t* bytes = &reserve.bytes;
    reserve.gates = sizes.Append(sizes.Product({steps, step_gates}), element, bytes);
    reserve.cell = sizes.Append(sizes.Product({steps + 1, state}), element, bytes);
    reserve.hidden = sizes.Append(sizes.Product({steps + 1, state}), element, bytes);
  }

  ForwardLayout& forward = plan->forward;
  int64_t* bytes = &forward.bytes;
  if (!spec.training) {
    forward.gates = sizes.Append(sizes.Product({plan->chunk_steps, step_gates}), element, bytes);
    forward.cell = sizes.Append(state, element, bytes);
    forward.hidden = sizes.Append(sizes.Product({2, state}), element, bytes);
  }
  if (!plan->direct_recurrent) {
    forward.recurrent = sizes.Append(sizes.Product({hidden, 4, padded}), element, bytes);
  }
  plan->keep_packed = plan->chunk_steps < steps && masks < 4;
  if (plan->keep_packed) {
    const int64_t columns = sizes.RoundUp(4 * padded, kMaxPanel);
    forward.packed_kernel = sizes.Append(sizes.Product({input, columns}), element, bytes);
  }
  forward.bias = sizes.Append(4 * padded, element, bytes);
  if (spec.has_mask) forward.first_valid = sizes.Append(batch, 8, bytes);
  if (plan->copy_chunk) {
    forward.x =
        sizes.Append(sizes.Product({std::max<int64_t>(masks, 1), plan->chunk_steps, batch, input}),
                     element, bytes);
  }
  if (plan->convert_weights) {
    forward.kernel = sizes.Append(kernel, element, bytes);
    forward.recurrent_kernel = sizes.Append(recurrent_kernel, element, bytes);
  }
  if (recurrent_masks > 0) {
    forward.recurrent_mask = sizes.Append(sizes.Product({recurrent_masks, state}), element, bytes);
    forward.dropped = sizes.Append(sizes.Product({2, recurrent_masks, state}), element, bytes);
  }
  forward.member_size = std::min(kBlockDepth, input) * kBlockPanels * kMaxPanel;
  forward.member = sizes.Append(sizes.Product({plan->shares, forward.member_size}), element, bytes);

  BackwardLayout& backward = plan->backward;
  bytes = &backward.bytes;
  backward.grad_gates = sizes.Append(sizes.Product({steps, step_gates}), element, bytes);
  backward.grad_cell = sizes.Append(state, element, bytes);
  backward.carry = sizes.Append(state, element, bytes);
  if (!plan->direct_recurrent) {
    backward.recurrent = sizes.Append(sizes.Product({panel_padded, 4, padded}), element, bytes);
  }
  if (spec.has_mask) backward.first_valid = sizes.Append(batch, 8, bytes);
  const int64_t x = sizes.Product({steps, batch, input});
  if (plan->copy_x) backward.x = sizes.Append(x, element, bytes);
  if (plan->convert_x) backward.grad_x = sizes.Append(x, element, bytes);
  if (masks > 0) {
    backward.dropout_mask = sizes.Append(sizes.Product({masks, batch, input}), element, bytes);
  }
  if (recurrent_masks > 0) {
    backward.recurrent_mask = sizes.Append(sizes.Product({recurrent_masks, state}), element, bytes);
  }
  if (plan->convert_weights) {
    backward.kernel = sizes.Append(kernel, element, bytes);
    backward.recurrent_kernel = sizes.Append(recurrent_kernel, element, bytes);
  }
  if (plan->convert_weights || !plan->plain_gates) {
    backward.grad_kernel = sizes.Append(sizes.Product({input + hidden, 4, padded}), element, bytes);
  }
  backward.grad_bias = sizes.Append(4 * padded, element, bytes);
  // A packed tile takes 4 elements for each 3 of its rows, and up to 8 more where it is not full.
  const int64_t rows = steps * batch;
  const int64_t packed_rows =
      std::min(kBlockTiles * kMaxPackedRows, (input + hidden + 5) / 3 * 4 + 16);
  backward.member_size =
      std::min(kBlockDepth, std::max(rows, 4 * padded)) * kBlockPanels * kMaxPanel +
      std::min(kBlockDepth, rows) * packed_rows;
  backward.member =
      sizes.Append(sizes.Product({plan->shares, backward.member_size}), element, bytes);
  for (const int64_t part : {plan->reserve.bytes, forward.bytes, backward.bytes}) {
    sizes.Product({part, spec.num_directions});
  }
  return sizes.overflow() ? too_large : Ok();
}

}  // namespace tfl::cpu
