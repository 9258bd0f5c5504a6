#include "cc/lstm/cuda/vector/common.cuh"

namespace tfl::cuda {
namespace vector {

// A lane is a gate of a unit: lane = 8 gate + unit. All four lanes of a unit keep its state.
template <typename T, int kPerWarp>
__global__ void __launch_bounds__(kThreads, 1)
    VectorForwardKernel(const TFL_GRID_CONSTANT VectorForwardParams p) {
  extern __shared__ __align__(16) float shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int any_group = blockIdx.x / p.blocks_per_group, block = blockIdx.x % p.blocks_per_group;
  const int group = any_group % p.groups;
  const VectorForwardDirection& q = p.directions[any_group / p.groups];
  const int gate = lane / kVectorUnits, local_unit = lane % kVectorUnits;
  const int hidden = p.hidden_size, unit = block * kVectorUnits + local_unit;
  const bool lives = unit < hidden;
  const int words = p.blocks_per_group * kVectorUnits;  // of h, a row
  const int64_t first_row = int64_t(group) * p.rows;
  const int rows = static_cast<int>(min(int64_t(p.rows), p.batch - first_row));
  float* h_in = shared;  // [rows][words], then zeros where the last warps' k is padding
  float* sums = shared + p.rows * words + kPerWarp * kVectorWarps;  // [rows][warps][32]
  uint64_t* exchange = p.exchange + int64_t(any_group) * 2 * p.rows * words;

  const unsigned cleared =
      ClearExchange(exchange, p.rows, words, block * kVectorUnits, kVectorUnits);
  float weights[kPerWarp];
#pragma unroll
  for (int i = 0; i < kPerWarp; ++i) {
    const int k = warp * kPerWarp + i;
    weights[i] = lives && k < hidden
                     ? ReadWeight<T>(p, q.recurrent_kernel, (int64_t(k) * 4 + gate) * hidden + unit)
                     : 0.f;
  }
  for (int i = threadIdx.x; i < kPerWarp * kVectorWarps; i += kThreads) {
    h_in[rows * words + i] = 0;
  }
  const float bias =
      q.bias != nullptr && lives ? ReadWeight<T>(p, q.bias, gate * hidden + unit) : 0.f;
  if (q.initial_h != nullptr) {
    for (int i = threadIdx.x; i < rows * words; i += kThreads) {
      const int row = i / words, from = i - row * words;
      const int64_t state = (first_row + row) * hidden + from;
      float value = from < hidden ? Read<T>(q.initial_h, state) : 0.f;
      if (q.recurrent_dropout != nullptr && from < hidden) {
        value = Round<T>(value * Read<T>(q.recurrent_dropout, state));
      }
      h_in[i] = value;
    }
  }
  // A warp finishes rows warp, warp + 8. The parts of a projection are summed where they are used:
  // nothing waits for those of the next step until then.
  float x[kRowsAWarp][kMostParts];
  float c[kRowsAWarp], h[kRowsAWarp], dropout[kRowsAWarp];
  const int64_t part_size = p.batch * p.steps * 4 * hidden;
  bool valid[kRowsAWarp], seen[kRowsAWarp];
  const auto load_step = [&](int step, float(&values)[kRowsAWarp][kMostParts],
                             bool(&mask)[kRowsAWarp]) {
    const int64_t time = q.go_backwards ? p.steps - 1 - step : step;
#pragma unroll
    for (int n = 0; n < kRowsAWarp; ++n) {
      const int row = warp + n * kVectorWarps;
      mask[n] = true;
#pragma unroll
      for (int part = 0; part < kMostParts; ++part) values[n][part] = 0;
      if (row >= rows) continue;
      const int64_t at = (first_row + row) * p.batch_stride + time * p.step_stride;
      if (p.mask != nullptr) mask[n] = p.mask[at] != 0;
#pragma unroll
      for (int part = 0; part < kMostParts; ++part) {
        if (lives && part < p.projection_parts) {
          values[n][part] = q.projection[part * part_size + (at * 4 + gate) * hidden + unit];
        }
      }
    }
  };
#pragma unroll
  for (int n = 0; n < kRowsAWarp; ++n) {
    const int row = warp + n * kVectorWarps;
    const int64_t state = (first_row + row) * hidden + unit;
    const bool there = row < rows && lives;
    c[n] = there && q.initial_c != nullptr ? Read<T>(q.initial_c, state) : 0.f;
    h[n] = there && q.initial_h != nullptr ? Read<T>(q.initial_h, state) : 0.f;
    dropout[n] =
        there && q.recurrent_dropout != nullptr ? Read<T>(q.recurrent_dropout, state) : 1.f;
    seen[n] = false;
  }
  load_step(0, x, valid);
  ExchangeIsClear(cleared);

  for (int step = 0; step < p.steps; ++step) {
    const bool last = step + 1 == p.steps;
    float next_x[kRowsAWarp][kMostParts];
    bool next_valid[kRowsAWarp];
    load_step(last ? step : step + 1, next_x, next_valid);
    if (step > 0) {
      Collect(exchange + (step & 1) * p.rows * words, rows * words, step, h_in);
      __syncthreads();
    }
    const bool multiplies = step > 0 || q.initial_h != nullptr;
    if (multiplies) {
      for (int row = 0; row < rows; row += 2) {
        const float* first = h_in + row * words + warp * kPerWarp;
        const bool two = row + 1 < rows;
        const float2 both = Dot(first, two ? first + words : first, 4, weights);
        sums[(row * kVectorWarps + warp) * 32 + lane] = both.x;
        if (two) sums[((row + 1) * kVectorWarps + warp) * 32 + lane] = both.y;
      }
      __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < kRowsAWarp; ++n) {
      const int row = warp + n * kVectorWarps;
      if (row >= rows) continue;
      float z = (x[n][0] + x[n][1]) + (x[n][2] + x[n][3]) + bias;
      if (multiplies) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < kVectorWarps; ++w) sum += sums[(row * kVectorWarps + w) * 32 + lane];
        z += sum;
      }
      const float y = Activate(gate == 2 ? p.activation : p.recurrent_activation, z);
      const float i = __shfl_sync(~0u, y, local_unit);
      const float f = __shfl_sync(~0u, y, local_unit + kVectorUnits);
      const float g = __shfl_sync(~0u, y, local_unit + 2 * kVectorUnits);
      const float o = __shfl_sync(~0u, y, local_unit + 3 * kVectorUnits);
      if (valid[n]) {
        c[n] = f * c[n] + i * g;
        h[n] = Round<T>(o * Activate(p.activation, c[n]));
        seen[n] = true;
      }
      if (!last && gate == 0) {
        Publish(exchange + ((step + 1) & 1) * p.rows * words + row * words + unit,
                q.recurrent_dropout != nullptr ? Round<T>(h[n] * dropout[n]) : h[n], step + 1);
      }
      // Nobody waits for what follows; the four lanes of a unit share it.
      if (lives) {
        const int64_t b = first_row + row, at = step * p.batch + b;
        if (gate == 1 && (p.return_sequences || last)) {
          const bool repeats = valid[n] || (seen[n] && !p.zero_output_for_mask);
          Write<T>(q.output, OutputAt(p, q, b, step) + unit, repeats ? h[n] : 0.f);
        }
        if (q.gates != nullptr) {
          Write<T>(q.gates, (at * 4 + gate) * hidden + unit, y);
          if (gate == 2) q.cell[at * hidden + unit] = c[n];
          if (gate == 3 && q.hidden != nullptr) Write<T>(q.hidden, at * hidden + unit, h[n]);
        }
        if (last && gate == 2) Write<T>(q.final_h, b * hidden + unit, h[n]);
        if (last && gate == 3) Write<T>(q.final_c, b * hidden + unit, c[n]);
      }
#pragma unroll
      for (int part = 0; part < kMostParts; ++part) x[n][part] = next_x[n][part];
      valid[n] = next_valid[n];
    }
  }
}

}  // namespace vector

tfl_status LaunchVectorForward(const VectorPlan& plan, tfl_dtype dtype, int directions,
                               VectorForwardParams params, cudaStream_t stream) {
  return DispatchType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, double>) {
      return Error(TFL_INTERNAL, "the vector family has no float64 kernel");
    } else {
      return vector::Launch(TFL_VECTOR_KERNEL(vector::VectorForwardKernel, T, plan.per_warp), plan,
                            directions, plan.forward_shared_bytes, &params, stream);
    }
  });
}

}  // namespace tfl::cuda
