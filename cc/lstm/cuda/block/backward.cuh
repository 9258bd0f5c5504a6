// The backward recurrence of a few batch rows in one block: R in registers, partial sums of dh
// through shared memory.
//
// Step s, from the last to the first: the lanes sum the partial dh of their cells over all warps
// and go back through the cell; every warp multiplies R, rows: all units, K: the gates of its own
// units, with the gradients of these gates and leaves the products, in float32, for the warps that
// own the units; a block barrier. Two buffers of partial sums suffice, since a warp overwrites only
// what all had read before that barrier. The gradients of the gates need one, since only their own
// warp reads them.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_BACKWARD_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_BACKWARD_CUH_

#include "cc/lstm/cuda/block/common.cuh"

namespace tfl::cuda::block {

#if TFL_BLOCK_RUNS

// R as the A operand: tiles of 16 units, K gate by gate the warp's 16 units.
template <class C>
__device__ __forceinline__ void LoadBackwardWeights(uint32_t (&a)[C::kWarps][4][4],
                                                    unsigned char* stage, int slots,
                                                    const CommonParams& p, const void* kernel,
                                                    const Place<C>& place) {
  const int lane = place.lane;
  const uint32_t lane_at = (lane & 15) * C::kStagePitch + (16 * place.warp + (lane >> 4) * 8) * 2;
  LoadGroups<C, false>(stage, slots, p, kernel, [&](auto group, unsigned char* slot) {
    const uint32_t address = sm90::SharedAddress(slot) + lane_at;
    constexpr int kGroup = decltype(group)::value;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        sm90::LdMatrixX4(a[2 * kGroup + m][g],
                         address + 16 * m * C::kStagePitch + g * C::kHidden * 2);
      }
    }
  });
}

// The step of the first valid input of every row, for the whole block.
template <class C>
__device__ __forceinline__ void FindFirstValid(int (&first_valid)[C::kRows],
                                               const BackwardParams& p, const sm90::Rows& rows,
                                               const Place<C>& place) {
  for (int row = place.warp; row < p.rows; row += C::kWarps) {
    const int b = min(place.first_row + row, p.batch - 1);
    const uint8_t* mask = p.mask + b * rows.batch_stride + rows.first;
    int first = p.steps;
    for (int s = place.lane; s < p.steps; s += 32) {
      if (mask[s * rows.step_stride] != 0) {
        first = s;
        break;
      }
    }
    first = __reduce_min_sync(~0u, first);
    if (place.lane == 0) first_valid[row] = first;
  }
}

template <class C>
__device__ __forceinline__ void BackwardRecurrence(const BackwardParams& p, int slots) {
  using E = typename C::Element;
  using S = typename C::Storage;
  constexpr int kCells = C::kCells, kWarps = C::kWarps;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int first_valid[C::kRows];
  unsigned char* const stage = shared + C::kGatesBytes;  // then the partial sums
  const Place<C> place(p);
  const auto& job = p.jobs[blockIdx.y];
  const int hidden = p.hidden, lane = place.lane;
  BeginStaging<C, false>(stage, slots, p, job.recurrent_kernel);
  if (p.mask != nullptr) {
    FindFirstValid<C>(first_valid, p, job.input_rows, place);
    __syncthreads();
  }

  // Of cell 0; the others are 8 units on, or a batch row.
  const int last = p.steps - 1;
  const int64_t row_step = Kept(job.input_rows.step_stride);
  const int64_t row = place.Batch(0) * job.input_rows.batch_stride + job.input_rows.first +
                      last * row_step;  // of the last step
  const int64_t mask_row = job.input_rows.batch_stride;
  const uint8_t* mask = Kept(p.mask == nullptr ? p.mask : p.mask + row);
  const bool has_grad_output = job.grad_output != nullptr;
  const S* grad_output =
      Kept(static_cast<const S*>(job.grad_output) + place.Batch(0) * job.output_rows.batch_stride +
           job.output_rows.first + last * job.output_rows.step_stride + place.Unit(0));
  const int64_t grad_step = Kept(job.output_rows.step_stride);
  const int64_t grad_row = Kept(C::kLaneRows == 1 ? int64_t{0} : job.output_rows.batch_stride);
  S* grad_gates = Kept(static_cast<S*>(job.grad_gates) + row * 4 * hidden + place.Unit(0));
  S* previous_h = Kept(static_cast<S*>(job.previous_h) + row * hidden + place.Unit(0));
  const bool wants_previous = job.previous_h != nullptr;
  const int64_t h_step = Kept(row_step * hidden);
  const int64_t h_row = Kept(C::kLaneRows == 1 ? int64_t{0} : mask_row * hidden);
  const bool wants_grad_h = job.grad_initial_h != nullptr;
  const int64_t record_step = int64_t{p.batch} * C::kHidden;
  const int64_t record_unit = 8 * int64_t{p.batch};
  const uint4* record_at =
      Kept(static_cast<const uint4*>(job.reserve) + place.ReserveCell(p, p.steps, 0));
  const auto units_on = [](int i) { return kCells == 1 ? 0 : (kCells == 2 ? i : i / 2); };
  const auto record_of = [&](int i) {
    return record_at + units_on(i) * record_unit + place.LaneRow(i) * 4;
  };

  bool has_cell[kCells];
  float dh[kCells], dc[kCells], c[kCells], dropout[kCells];
  int first[C::kLaneRows];
  unsigned char* const gates = shared + place.warp * (C::kRows * kGatesPitch);
  int gate_at[kCells];
#pragma unroll
  for (int n = 0; n < C::kLaneRows; ++n) {
    first[n] = mask != nullptr && place.HasRow(p, n) ? first_valid[place.Row(n)] : 0;
  }
#pragma unroll
  for (int i = 0; i < kCells; ++i) {
    has_cell[i] = place.HasRow(p, i) && place.Unit(i) < hidden;
    dh[i] = dc[i] = c[i] = 0.0f;
    dropout[i] = 1.0f;
    gate_at[i] = place.Row(i) * kGatesPitch + place.LocalUnit(i) * 2;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      *reinterpret_cast<S*>(gates + gate_at[i] + g * 32) = E::From(0.0f);
    }
    if (!has_cell[i]) continue;
    const int64_t at = int64_t{place.Batch(i)} * hidden + place.Unit(i);
    if (job.grad_final_h != nullptr) dh[i] = E::To(static_cast<const S*>(job.grad_final_h)[at]);
    if (job.grad_final_c != nullptr) dc[i] = E::To(static_cast<const S*>(job.grad_final_c)[at]);
    dropout[i] = DropoutOf<C>(job.recurrent_dropout, at);
    c[i] = __uint_as_float(record_of(i)->z);  // the last step's, in the records after it
  }
  record_at -= record_step;

  // The inputs of a step come one step ahead, and to the L2 cache some steps ahead.
  constexpr int kAhead = 4;
  uint4 record[kCells];
  uint32_t grad[kCells];
  uint32_t valid[C::kLaneRows];
  const bool prefetches_record = (lane >> 2 & 1) == 0, prefetches_grad = lane < 4;
  const bool sequences = p.return_sequences, zeros = p.zero_output_for_mask;
  const bool masks = mask != nullptr;
  const auto fetch = [&](int s) {
    const bool reads_grad = has_grad_output && (sequences || s == last) && s >= 0;
#pragma unroll
    for (int n = 0; n < C::kLaneRows; ++n) {
      valid[n] = LoadValidIf(masks && place.HasRow(p, n) && s >= 0, mask + n * mask_row);
    }
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      record[i] = LoadIf(has_cell[i] && s >= 0, record_of(i));
      PrefetchIf(has_cell[i] && prefetches_record && s >= kAhead,
                 record_of(i) - kAhead * record_step);
      const S* const at = grad_output + units_on(i) * 8 + place.LaneRow(i) * grad_row;
      grad[i] = LoadIf(has_cell[i] && reads_grad, reinterpret_cast<const uint16_t*>(at));
      PrefetchIf(has_cell[i] && reads_grad && prefetches_grad && s >= kAhead,
                 at - kAhead * grad_step);
    }
    record_at -= record_step;
    grad_output -= grad_step;
    mask -= row_step;
  };
  // What a step needs besides dh, worked out beforehand.
  float slope_c[kCells], slope[kCells][4], forget[kCells];
  uint32_t h_before[kCells];
  bool is_valid[C::kLaneRows];
  const auto prepare = [&](int s) {
#pragma unroll
    for (int n = 0; n < C::kLaneRows; ++n) is_valid[n] = valid[n] != 0;
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      const int n = place.LaneRow(i);
      // A masked step's gates may hold anything.
      const uint32_t keep = is_valid[n] ? ~0u : 0u;
      const float2 low = E::Unpack(record[i].x & keep), high = E::Unpack(record[i].y & keep);
      const float in = low.x, f = low.y, g = high.x, o = high.y;
      const float before = __uint_as_float(record[i].z);
      const float tanh_c = E::Tanh(c[i]);
      slope_c[i] = o * (1.0f - tanh_c * tanh_c);
      slope[i][0] = g * in * (1.0f - in);
      slope[i][1] = before * f * (1.0f - f);
      slope[i][2] = in * (1.0f - g * g);
      slope[i][3] = tanh_c * o * (1.0f - o);
      forget[i] = is_valid[n] ? f : 1.0f;
      c[i] = before;
      h_before[i] = record[i].w;
      // A masked step's output is h of the last valid step, or a constant zero.
      dh[i] += is_valid[n] || (!zeros && s > first[n]) ? E::Unpack(grad[i]).x : 0.0f;
    }
  };
  fetch(last);

  uint32_t a[kWarps][4][4];
  LoadBackwardWeights<C>(a, stage, slots, p, job.recurrent_kernel, place);
  __syncthreads();  // no warp reads the stage any more
  if constexpr (C::kComesEarly) {
    prepare(last);
    fetch(last - 1);
  }

  // Two gates of the factor at once: 8 units of the first, the other 8, then of the second.
  const uint32_t factor_at = sm90::KeptSharedAddress(gates) +
                             Place<C>::FactorRow(lane & 7) * kGatesPitch + (lane >> 3) * 16;
  float* const parts = reinterpret_cast<float*>(stage);
  float* const outgoing = parts + (place.warp * kWarps * 32 + lane) * kCells;
  const float* const incoming = parts + (place.warp * 32 + lane) * kCells;
  constexpr int kBuffer = C::kPartsBytes / 4;
  const auto add_parts = [&](int message) {
    float part[kWarps][kCells];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float* const from = incoming + (message & 1) * kBuffer + w * (kWarps * 32 * kCells);
#pragma unroll
      for (int i = 0; i < kCells; ++i) part[w][i] = from[i];
    }
#pragma unroll
    for (int n = kWarps / 2; n > 0; n /= 2) {
#pragma unroll
      for (int w = 0; w < n; ++w) {
#pragma unroll
        for (int i = 0; i < kCells; ++i) part[w][i] += part[w + n][i];
      }
    }
#pragma unroll
    for (int i = 0; i < kCells; ++i) dh[i] = fmaf(part[0][i], dropout[i], dh[i]);
  };

  for (int message = 0; message < p.steps; ++message) {
    const int s = last - message;
    if constexpr (!C::kComesEarly) prepare(s);
    if (message > 0) add_parts(message - 1);
    S d[kCells][4];
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      const float dc_all = fmaf(dh[i], slope_c[i], dc[i]);
      d[i][0] = E::From(dc_all * slope[i][0]);
      d[i][1] = E::From(dc_all * slope[i][1]);
      d[i][2] = E::From(dc_all * slope[i][2]);
      d[i][3] = E::From(dh[i] * slope[i][3]);
      dc[i] = dc_all * forget[i];
      dh[i] = is_valid[place.LaneRow(i)] ? 0.0f : dh[i];
      if (has_cell[i]) {
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          *reinterpret_cast<S*>(gates + gate_at[i] + g * 32) = d[i][g];
        }
      }
    }
    __syncwarp();
    uint32_t b[2][4];
    sm90::LdMatrixX4(b[0], factor_at);
    sm90::LdMatrixX4(b[1], factor_at + 64);

    // All else, which the compiler can put among the products.
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      const int64_t to = units_on(i) * 8 + place.LaneRow(i) * h_row;
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        StoreIf(has_cell[i],
                grad_gates + units_on(i) * 8 + place.LaneRow(i) * 4 * h_row + g * hidden, d[i][g]);
      }
      const uint16_t bits = static_cast<uint16_t>(h_before[i]);
      S h;
      memcpy(&h, &bits, 2);
      StoreIf(has_cell[i] && wants_previous, previous_h + to, h);
    }
    grad_gates -= 4 * h_step;
    previous_h -= h_step;
    if constexpr (C::kComesEarly) {
      prepare(s - 1);
      fetch(s - 2);
    } else {
      fetch(s - 1);
    }
    if (s > 0 || wants_grad_h) {
      float v[kWarps][4];
#pragma unroll
      for (int i = 0; i < kWarps * 4; ++i) (&v[0][0])[i] = 0.0f;
#pragma unroll
      for (int g = 0; g < 4; ++g) {
#pragma unroll
        for (int m = 0; m < kWarps; ++m) {
          E::Mma(v[m], a[m][g], b[g / 2][g % 2 * 2], b[g / 2][g % 2 * 2 + 1]);
        }
      }
      float* const to = outgoing + (message & 1) * kBuffer;
#pragma unroll
      for (int m = 0; m < kWarps; ++m) {
        if constexpr (kCells == 1) {
          to[m * 32] = lane & 2 ? v[m][2] : v[m][0];
        } else if constexpr (kCells == 2) {
          *reinterpret_cast<float2*>(to + m * 64) = make_float2(v[m][0], v[m][2]);
        } else {
          *reinterpret_cast<float4*>(to + m * 128) =
              make_float4(v[m][0], v[m][1], v[m][2], v[m][3]);
        }
      }
    }
    __syncthreads();
  }

  if (wants_grad_h) add_parts(last);
#pragma unroll
  for (int i = 0; i < kCells; ++i) {
    if (!has_cell[i]) continue;
    const int64_t at = int64_t{place.Batch(i)} * hidden + place.Unit(i);
    if (wants_grad_h) static_cast<S*>(job.grad_initial_h)[at] = E::From(dh[i]);
    if (job.grad_initial_c != nullptr) static_cast<S*>(job.grad_initial_c)[at] = E::From(dc[i]);
  }
}

#endif  // TFL_BLOCK_RUNS

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    BlockBackwardKernel(const TFL_BLOCK_CONSTANT BackwardParams p, int slots) {
#if TFL_BLOCK_RUNS
  BackwardRecurrence<C>(p, slots);
#endif
}

}  // namespace tfl::cuda::block

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_BACKWARD_CUH_
