#include "cc/lstm/cuda/vector/common.cuh"

namespace tfl::cuda {
namespace vector {

// k counts 32 block + 8 gate + unit, the order in which blocks publish. A lane multiplies for unit
// lane % 8 and a quarter of its warp's k; then, as forward, it is gate lane / 8 of that unit.
template <typename T, int kPerWarp>
__global__ void __launch_bounds__(kThreads, 1)
    VectorBackwardKernel(const TFL_GRID_CONSTANT VectorBackwardParams p) {
  extern __shared__ __align__(16) float shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int any_group = blockIdx.x / p.blocks_per_group, block = blockIdx.x % p.blocks_per_group;
  const int group = any_group % p.groups;
  const VectorBackwardDirection& q = p.directions[any_group / p.groups];
  const int gate = lane / kVectorUnits, local_unit = lane % kVectorUnits;
  const int hidden = p.hidden_size, unit = block * kVectorUnits + local_unit;
  const bool lives = unit < hidden;
  const int words = p.blocks_per_group * 32;  // of gate gradients, a row
  const int64_t first_row = int64_t(group) * p.rows;
  const int rows = static_cast<int>(min(int64_t(p.rows), p.batch - first_row));
  float* in = shared;  // [rows][words], then zeros where the last warps' k is padding
  float* sums = shared + p.rows * words + 4 * kPerWarp * kVectorWarps;  // [rows][warps][8]
  uint64_t* exchange = p.exchange + int64_t(any_group) * 2 * p.rows * words;

  const unsigned cleared = ClearExchange(exchange, p.rows, words, block * 32, 32);
  const int first_k = warp * 4 * kPerWarp + gate * 4;  // then 16 further for every 4 weights
  float weights[kPerWarp];
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    const int k = first_k + i / 4 * 16 + i % 4;
    const int from_unit = k / 32 * kVectorUnits + k % kVectorUnits, from_gate = k / 8 % 4;
    weights[i] = lives && from_unit < hidden
                     ? ReadWeight<T>(p, q.recurrent_kernel,
                                     (int64_t(unit) * 4 + from_gate) * hidden + from_unit)
                     : 0.f;
  }
  for (int i = threadIdx.x; i < 4 * kPerWarp * kVectorWarps; i += kThreads) {
    in[rows * words + i] = 0;
  }
  float dh[kRowsAWarp], dc[kRowsAWarp], passed[kRowsAWarp], c[kRowsAWarp], dropout[kRowsAWarp];
  int64_t first_valid[kRowsAWarp];
  struct Input {
    float y;  // this lane's gate
    float previous_c;
    float grad_output;
    bool valid;
  };
  Input now[kRowsAWarp], next[kRowsAWarp];
  const auto load_step = [&](int step, Input(&input)[kRowsAWarp]) {
    const int64_t time = q.go_backwards ? p.steps - 1 - step : step;
#pragma unroll
    for (int n = 0; n < kRowsAWarp; ++n) {
      const int row = warp + n * kVectorWarps;
      input[n] = {0.f, 0.f, 0.f, true};
      if (row >= rows) continue;
      const int64_t b = first_row + row, at = step * p.batch + b;
      if (p.mask != nullptr) {
        input[n].valid = p.mask[b * p.batch_stride + time * p.step_stride] != 0;
      }
      if (!lives) continue;
      input[n].y = Read<T>(q.gates, (at * 4 + gate) * hidden + unit);
      if (step > 0) {
        input[n].previous_c = q.cell[(at - p.batch) * hidden + unit];
      } else if (q.initial_c != nullptr) {
        input[n].previous_c = Read<T>(q.initial_c, b * hidden + unit);
      }
      if (q.grad_output != nullptr && (p.return_sequences || step + 1 == p.steps)) {
        input[n].grad_output = Read<T>(q.grad_output, OutputAt(p, q, b, step) + unit);
      }
    }
  };
#pragma unroll
  for (int n = 0; n < kRowsAWarp; ++n) {
    const int row = warp + n * kVectorWarps;
    const int64_t b = first_row + row, state = b * hidden + unit;
    const bool there = row < rows && lives;
    dh[n] = there && q.grad_final_h != nullptr ? Read<T>(q.grad_final_h, state) : 0.f;
    dc[n] = there && q.grad_final_c != nullptr ? Read<T>(q.grad_final_c, state) : 0.f;
    c[n] = there ? q.cell[(p.steps - 1) * p.batch * hidden + state] : 0.f;
    first_valid[n] = row < rows && p.mask != nullptr ? q.first_valid[b] : 0;
    passed[n] = 0;
    dropout[n] =
        there && q.recurrent_dropout != nullptr ? Read<T>(q.recurrent_dropout, state) : 1.f;
  }
  load_step(p.steps - 1, now);
  ExchangeIsClear(cleared);

  // What publication `number` brings back to this block's units, for the rows this warp finishes.
  const auto collect = [&](uint32_t number) {
    Collect(exchange + (number & 1) * p.rows * words, rows * words, number, in);
    __syncthreads();
    for (int row = 0; row < rows; row += 2) {
      const float* first = in + row * words + first_k;
      const bool two = row + 1 < rows;
      float2 both = Dot(first, two ? first + words : first, 16, weights);
      both.x += __shfl_xor_sync(~0u, both.x, 8);
      both.y += __shfl_xor_sync(~0u, both.y, 8);
      both.x += __shfl_xor_sync(~0u, both.x, 16);
      both.y += __shfl_xor_sync(~0u, both.y, 16);
      if (gate == 0) {
        sums[(row * kVectorWarps + warp) * kVectorUnits + local_unit] = both.x;
        if (two) sums[((row + 1) * kVectorWarps + warp) * kVectorUnits + local_unit] = both.y;
      }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kRowsAWarp; ++n) {
      const int row = warp + n * kVectorWarps;
      if (row >= rows) continue;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kVectorWarps; ++w) {
        sum += sums[(row * kVectorWarps + w) * kVectorUnits + local_unit];
      }
      dh[n] = fmaf(sum, dropout[n], passed[n]);
    }
  };

  uint32_t published = 0;
  for (int step = p.steps - 1; step >= 0; --step) {
    load_step(step > 0 ? step - 1 : 0, next);
    if (published > 0) collect(published);
    const bool publishes = step > 0 || q.grad_initial_h != nullptr;
    if (publishes) ++published;
    const int64_t time = q.go_backwards ? p.steps - 1 - step : step;
#pragma unroll
    for (int n = 0; n < kRowsAWarp; ++n) {
      const int row = warp + n * kVectorWarps;
      if (row >= rows) continue;
      const Input& input = now[n];
      const float i = __shfl_sync(~0u, input.y, local_unit);
      const float f = __shfl_sync(~0u, input.y, local_unit + kVectorUnits);
      const float g = __shfl_sync(~0u, input.y, local_unit + 2 * kVectorUnits);
      const float o = __shfl_sync(~0u, input.y, local_unit + 3 * kVectorUnits);
      if (input.valid || (!p.zero_output_for_mask && step > first_valid[n])) {
        dh[n] += input.grad_output;
      }
      float d = 0;
      passed[n] = dh[n];
      if (input.valid) {
        const float tanh_c = Activate(p.activation, c[n]);
        const float d_cell = dc[n] + dh[n] * o * ActivationSlope(p.activation, tanh_c);
        const float other = gate == 0 ? g : (gate == 1 ? input.previous_c : i);
        d = (gate == 3 ? dh[n] * tanh_c : d_cell * other) *
            ActivationSlope(gate == 2 ? p.activation : p.recurrent_activation, input.y);
        d = Round<T>(d);
        dc[n] = d_cell * f;
        passed[n] = 0;
      }
      if (publishes) {
        Publish(exchange + (published & 1) * p.rows * words + row * words + block * 32 + lane, d,
                published);
      }
      if (lives) {
        const int64_t at = (first_row + row) * p.batch_stride + time * p.step_stride;
        Write<T>(q.grad_gates, (at * 4 + gate) * hidden + unit, d);
      }
      c[n] = input.previous_c;
      now[n] = next[n];
    }
  }
  if (q.grad_initial_h != nullptr) collect(published);
#pragma unroll
  for (int n = 0; n < kRowsAWarp; ++n) {
    const int row = warp + n * kVectorWarps;
    if (row >= rows || !lives) continue;
    const int64_t state = (first_row + row) * hidden + unit;
    if (gate == 0 && q.grad_initial_h != nullptr) Write<T>(q.grad_initial_h, state, dh[n]);
    if (gate == 1 && q.grad_initial_c != nullptr) Write<T>(q.grad_initial_c, state, dc[n]);
  }
}

}  // namespace vector

tfl_status LaunchVectorBackward(const VectorPlan& plan, tfl_dtype dtype, int directions,
                                VectorBackwardParams params, cudaStream_t stream) {
  return DispatchType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, double>) {
      return Error(TFL_INTERNAL, "the vector family has no float64 kernel");
    } else {
      return vector::Launch(TFL_VECTOR_KERNEL(vector::VectorBackwardKernel, T, plan.per_warp), plan,
                            directions, plan.backward_shared_bytes, &params, stream);
    }
  });
}

}  // namespace tfl::cuda
