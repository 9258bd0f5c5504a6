// The backward recurrence in one launch: R in registers, partial sums of dh through distributed
// shared memory.
//
// Step s, from the last to the first: the lanes sum the partial dh of their cells over all blocks
// and go back through the cell; the gradients of the block's gates go to its shared memory; every
// warp multiplies 16-unit tiles of R (rows: units of the whole cluster, K: the block's gates) with
// them and sends the products, rounded to the element type, to the blocks that own the units. So
// h's number of bytes travels a step; the gradients of the gates would be four times that.
//
// Why two buffers of partial sums suffice: a block sends those of step s after it has received all
// of step s + 1, which every block sent after a block barrier behind its reading of step s + 2, the
// last content of that buffer. The same answer frees a warp's send buffer. The gate gradients have
// two buffers because a warp may run ahead of the block by less than one barrier. A cluster barrier
// at the end keeps every block's shared memory alive until its last copies have been received.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_BACKWARD_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_BACKWARD_CUH_

#include "cc/lstm/cuda/sm90/cluster_common.cuh"

namespace tfl::cuda::sm90 {

// R as the A operand: a warp's rows are kGateTiles tiles of 16 units, K the block's gates.
template <class C>
__device__ void LoadBackwardWeights(uint32_t (&a)[C::kGateTiles][C::kBackwardSteps][4],
                                    unsigned char* stage, const BackwardParams& p,
                                    const Place<C>& place) {
  const int lane = place.lane;
  const uint32_t address = SharedAddress(stage) + (lane & 15) * C::kStagePitch + (lane >> 4) * 16;
  for (int part = 0; part < C::kHidden / C::kStageRows; ++part) {
    StageWeights<C, false>(stage, p, part * C::kStageRows, place.first_unit);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < C::kGateTiles; ++m) {
      const int row = (place.warp * C::kGateTiles + m) * 16 - part * C::kStageRows;
      if (row < 0 || row >= C::kStageRows) continue;
#pragma unroll
      for (int k = 0; k < C::kBackwardSteps; ++k) {
        LdMatrixX4(a[m][k], address + row * C::kStagePitch + k * C::kStepBytes);
      }
    }
    __syncthreads();
  }
}

// The sum over the cluster's blocks of the partial dh of the thread's cell in row tile `tile`.
template <class C>
__device__ __forceinline__ float SumPartials(const unsigned char* received, const Place<C>& place,
                                             int tile) {
  using E = typename C::Element;
  const int u = place.LocalUnit();
  constexpr int kBytes = sizeof(typename C::Partial);
  const unsigned char* at =
      received + u / C::kMessageUnits * C::kMessageBytes +
      ((tile * C::kMessageUnits + u % C::kMessageUnits) * 8 + (place.lane & 3) * 2) * kBytes +
      (place.upper ? C::kClusterSize / 2 * C::kSourceBytes + C::kHalfSkew : 0);
  float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int i = 0; i < C::kClusterSize / 2; ++i) {
    float2 v;
    if constexpr (kBytes == 2) {
      v = E::Unpack(*reinterpret_cast<const uint32_t*>(at + i * C::kSourceBytes));
    } else {
      v = *reinterpret_cast<const float2*>(at + i * C::kSourceBytes);
    }
    sum.x += v.x;
    sum.y += v.y;
  }
  const float other = __shfl_xor_sync(~0u, place.upper ? sum.x : sum.y, 16);
  return place.upper ? other + sum.y : sum.x + other;
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    ClusterBackwardKernel(const __grid_constant__ BackwardParams p) {
  using E = typename C::Element;
  using S = typename C::Storage;
  using P = typename C::Partial;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) uint64_t barrier_words[2];
  __shared__ int first_valid[C::kRows];
  unsigned char* const received = shared + 2 * C::kGatesBytes;
  unsigned char* const outgoing = received + 2 * C::kReceiveBytes;
  const Place<C> place;
  const int lane = place.lane, warp = place.warp, rank = place.rank;
  const int hidden = p.hidden;
  const int unit = place.first_unit + place.LocalUnit();
  const bool unit_exists = unit < hidden;
  const int64_t tiles = (p.batch + 7) / 8;

  uint32_t a[C::kGateTiles][C::kBackwardSteps][4];
  LoadBackwardWeights<C>(a, shared, p, place);

  const Mailbox mailbox{SharedAddress(barrier_words), uint32_t{C::kClusterSize * C::kSourceBytes}};
  if (threadIdx.x == 0) mailbox.Init();
  if (p.mask != nullptr) {
    for (int row = warp; row < C::kRows; row += C::kWarps) {
      const int b = min(place.slice * C::kRows + row, p.batch - 1);
      const uint8_t* mask = p.mask + b * p.input_rows.batch_stride + p.input_rows.first;
      int first = p.steps;
      for (int s = lane; s < p.steps; s += 32) {
        if (mask[s * p.input_rows.step_stride] != 0) {
          first = s;
          break;
        }
      }
      first = __reduce_min_sync(~0u, first);
      if (lane == 0) first_valid[row] = first;
    }
  }
  ClusterBarrier();

  float dh[C::kTiles], dc[C::kTiles], c[C::kTiles];
  uint4 record[C::kTiles];
  float2 state[C::kTiles];  // c and h before the step, where they do not fit in `record`
  uint32_t grad[C::kTiles];
  uint8_t valid[C::kTiles];
  int first[C::kTiles];
  bool has_tile[C::kTiles], has_cell[C::kTiles];
  auto fetch = [&](int s) {
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      record[n] = make_uint4(0, 0, 0, 0);
      state[n] = make_float2(0.0f, 0.0f);
      if (has_tile[n]) {
        const int64_t cell = s * tiles * (C::kHidden * 8) + place.ReserveCell(n);
        record[n] = __ldg(static_cast<const uint4*>(p.reserve) + cell);
        if constexpr (C::kBytes == 4) {
          const int64_t cells = (p.steps + int64_t{1}) * tiles * (C::kHidden * 8);
          state[n] = __ldg(
              reinterpret_cast<const float2*>(static_cast<const uint4*>(p.reserve) + cells) + cell);
        }
      }
      grad[n] = 0;
      if (p.grad_output != nullptr && has_cell[n] && (p.return_sequences || s + 1 == p.steps)) {
        const int64_t row = place.Row(n) * p.output_rows.batch_stride + p.output_rows.first +
                            (p.return_sequences ? s * p.output_rows.step_stride : 0);
        const S* at = static_cast<const S*>(p.grad_output) + row * hidden + unit;
        if constexpr (C::kBytes == 2) {
          grad[n] = __ldg(reinterpret_cast<const uint16_t*>(at));
        } else {
          grad[n] = __ldg(reinterpret_cast<const uint32_t*>(at));
        }
      }
      valid[n] = 1;
      if (p.mask != nullptr) {
        const int b = min(place.Row(n), p.batch - 1);
        valid[n] = __ldg(p.mask + b * p.input_rows.batch_stride + p.input_rows.first +
                         s * p.input_rows.step_stride);
      }
    }
  };
  auto state_before = [&](int n) {
    if constexpr (C::kBytes == 2) {
      return make_float2(__uint_as_float(record[n].z), E::Unpack(record[n].w).x);
    } else {
      return state[n];
    }
  };

  // The last step's c: in the records after the last step.
#pragma unroll
  for (int n = 0; n < C::kTiles; ++n) {
    has_tile[n] = place.slice * C::kTiles + n < tiles;
    has_cell[n] = place.Row(n) < p.batch && unit_exists;
    first[n] = p.mask == nullptr ? 0 : first_valid[n * 8 + place.column];
    dh[n] = dc[n] = c[n] = 0.0f;
    if (has_tile[n]) {
      const int64_t cell = p.steps * tiles * (C::kHidden * 8) + place.ReserveCell(n);
      if constexpr (C::kBytes == 2) {
        c[n] = __uint_as_float(static_cast<const uint4*>(p.reserve)[cell].z);
      } else {
        const int64_t cells = (p.steps + int64_t{1}) * tiles * (C::kHidden * 8);
        c[n] =
            reinterpret_cast<const float2*>(static_cast<const uint4*>(p.reserve) + cells)[cell].x;
      }
    }
    if (has_cell[n]) {
      const int64_t at = int64_t{place.Row(n)} * hidden + unit;
      if (p.grad_final_h != nullptr) dh[n] = E::To(static_cast<const S*>(p.grad_final_h)[at]);
      if (p.grad_final_c != nullptr) dc[n] = E::To(static_cast<const S*>(p.grad_final_c)[at]);
    }
  }
  fetch(p.steps - 1);

  const int u = place.LocalUnit();
  const int gate_offset =
      u / C::kGroup * C::kGroupBytes + place.column * 16 + u % C::kGroup * C::kBytes;
  const uint32_t source_offset =
      rank * C::kSourceBytes + (rank >= C::kClusterSize / 2 ? C::kHalfSkew : 0);
  const bool wants_grad_h = p.grad_initial_h != nullptr;

  for (int message = 0; message < p.steps; ++message) {
    const int s = p.steps - 1 - message;
    unsigned char* const gates = shared + (message & 1) * C::kGatesBytes;
    if (message > 0) {
      mailbox.Wait(message - 1);
      const unsigned char* partials = received + ((message - 1) & 1) * C::kReceiveBytes;
#pragma unroll
      for (int n = 0; n < C::kTiles; ++n) dh[n] += SumPartials<C>(partials, place, n);
    }
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      const bool is_valid = valid[n] != 0;
      float i, f, g, o, d_output;
      if constexpr (C::kBytes == 2) {
        const float2 low = E::Unpack(record[n].x), high = E::Unpack(record[n].y);
        i = low.x, f = low.y, g = high.x, o = high.y;
        d_output = E::Unpack(grad[n]).x;
      } else {
        i = __uint_as_float(record[n].x), f = __uint_as_float(record[n].y);
        g = __uint_as_float(record[n].z), o = __uint_as_float(record[n].w);
        d_output = __uint_as_float(grad[n]);
      }
      const float2 before = state_before(n);
      // A masked step's output is h of the last valid step, or a constant zero.
      if (is_valid || (!p.zero_output_for_mask && s > first[n])) dh[n] += d_output;
      const float tanh_c = E::Tanh(c[n]);
      const float dc_all = fmaf(dh[n] * o, 1.0f - tanh_c * tanh_c, dc[n]);
      float d[4];
      d[0] = dc_all * g * i * (1.0f - i);
      d[1] = dc_all * before.x * f * (1.0f - f);
      d[2] = dc_all * i * (1.0f - g * g);
      d[3] = dh[n] * tanh_c * o * (1.0f - o);
      if (is_valid) {
        dc[n] = dc_all * f;
        dh[n] = 0.0f;
      }
      c[n] = before.x;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        *reinterpret_cast<S*>(gates + k * C::kOwnBytes + gate_offset + n * 128) =
            Factor<E>(is_valid ? d[k] : 0.0f);
      }
      *reinterpret_cast<S*>(gates + 4 * C::kOwnBytes + gate_offset + n * 128) = E::From(before.y);
    }
    if (s > 0) fetch(s - 1);
    if constexpr (C::kWarpgroup) FenceProxyAsync();
    __syncthreads();

    if (s > 0 || wants_grad_h) {
      float acc[C::kGateTiles][C::kTiles * 4];
#pragma unroll
      for (int m = 0; m < C::kGateTiles; ++m) {
#pragma unroll
        for (int i = 0; i < C::kTiles * 4; ++i) acc[m][i] = 0.0f;
      }
      Multiply<C, C::kBackwardSteps, C::kGateTiles>(acc, a, SharedAddress(gates), lane);
      unsigned char* const send = outgoing + warp * C::kMessages * C::kMessageBytes;
#pragma unroll
      for (int m = 0; m < C::kGateTiles; ++m) {
#pragma unroll
        for (int n = 0; n < C::kTiles; ++n) {
          const int tile_unit = m % C::kMessageTiles * 16 + (lane >> 2);
          P* at = reinterpret_cast<P*>(send + m / C::kMessageTiles * C::kMessageBytes) +
                  (n * C::kMessageUnits + tile_unit) * 8 + (lane & 3) * 2;
          const float* v = &acc[m][4 * n];
          if constexpr (sizeof(P) == 2) {
            *reinterpret_cast<uint32_t*>(at) = E::Pack(v[0], v[1]);
            *reinterpret_cast<uint32_t*>(at + 64) = E::Pack(v[2], v[3]);
          } else {
            *reinterpret_cast<float2*>(at) = make_float2(v[0], v[1]);
            *reinterpret_cast<float2*>(at + 64) = make_float2(v[2], v[3]);
          }
        }
      }
      FenceProxyAsync();
      __syncwarp();
      if (lane == 0) {
        const uint32_t to =
            SharedAddress(received) + (message & 1) * C::kReceiveBytes + source_offset;
        const uint32_t barrier = mailbox.Barrier(message);
#pragma unroll
        for (int i = 0; i < C::kMessages; ++i) {
          const int target = (warp * C::kGateTiles + i * C::kMessageTiles) * 16;
          const uint32_t owner = target / C::kUnits;
          const uint32_t place_there = target % C::kUnits / C::kMessageUnits * C::kMessageBytes;
          CpAsyncBulk(Mapa(to + place_there, owner), SharedAddress(send + i * C::kMessageBytes),
                      C::kMessageBytes, Mapa(barrier, owner));
        }
      }
    }

    // The gradients of the gates, and h before the step, to memory.
    for (int piece = threadIdx.x; piece < C::kPlanes * C::kUnitGroups * C::kRows;
         piece += C::kThreads) {
      const int group = piece % C::kUnitGroups, row = piece / C::kUnitGroups % C::kRows;
      const int plane = piece / (C::kUnitGroups * C::kRows);
      const int b = place.slice * C::kRows + row, at = place.first_unit + group * C::kGroup;
      if (b >= p.batch || at >= hidden) continue;
      const uint4 v = *reinterpret_cast<const uint4*>(
          gates + (plane * C::kUnitGroups + group) * C::kGroupBytes + row * 16);
      const int64_t out =
          b * p.input_rows.batch_stride + p.input_rows.first + s * p.input_rows.step_stride;
      const int count = hidden - at;
      if (plane == 4) {
        StoreGroup<E>(static_cast<S*>(p.previous_h) + out * hidden + at, v, count, p.vector_rows);
      } else if (C::kBytes == 4 || !p.grad_gates_are_float) {
        StoreGroup<E>(static_cast<S*>(p.grad_gates) + (out * 4 + plane) * hidden + at, v, count,
                      p.vector_rows);
      } else {
        S values[C::kGroup];
        memcpy(values, &v, 16);
#pragma unroll
        for (int i = 0; i < C::kGroup; ++i) {
          if (i < count) {
            static_cast<float*>(p.grad_gates)[(out * 4 + plane) * hidden + at + i] =
                E::To(values[i]);
          }
        }
      }
    }
  }

  if (wants_grad_h) {
    mailbox.Wait(p.steps - 1);
    const unsigned char* partials = received + ((p.steps - 1) & 1) * C::kReceiveBytes;
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) dh[n] += SumPartials<C>(partials, place, n);
  }
#pragma unroll
  for (int n = 0; n < C::kTiles; ++n) {
    if (!has_cell[n]) continue;
    const int64_t at = int64_t{place.Row(n)} * hidden + unit;
    if (wants_grad_h) static_cast<S*>(p.grad_initial_h)[at] = E::From(dh[n]);
    if (p.grad_initial_c != nullptr) static_cast<S*>(p.grad_initial_c)[at] = E::From(dc[n]);
  }
  ClusterBarrier();
}

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_BACKWARD_CUH_
