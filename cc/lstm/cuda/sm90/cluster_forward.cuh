// The forward recurrence in one launch: R in registers, h through distributed shared memory.
//
// Step s: every warp multiplies its 16 gate rows with h of the step before, its lanes apply the
// cell, the block's part of the new h goes to its own shared memory and from there by one bulk copy
// to each other block of the cluster.
//
// Why two buffers of h suffice: a block sends h of step s (into buffer (s + 1) % 2) after it has
// received all of step s - 1, and every block sent its part of step s - 1 after a block barrier
// behind its products with step s - 2, the last content of that buffer. A block's own part is
// overwritten two steps later, when every receiver has answered with its next part, so the copies
// have left. The last step sends nothing, and a cluster barrier at the end keeps every block's
// shared memory alive until its last copies have been received.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_FORWARD_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_FORWARD_CUH_

#include "cc/lstm/cuda/sm90/cluster_common.cuh"

namespace tfl::cuda::sm90 {

// The transpose of R as the A operand: rows are the warp's gates, K the units of the whole cluster.
template <class C>
__device__ void LoadForwardWeights(uint32_t (&a)[1][C::kForwardSteps][4], unsigned char* stage,
                                   const ForwardParams& p, const Place<C>& place) {
  const int lane = place.lane;
  constexpr int kStepsPerStage = C::kStageRows * C::kBytes / C::kStepBytes;
#pragma unroll
  for (int part = 0; part < C::kHidden / C::kStageRows; ++part) {
    StageWeights<C, true>(stage, p, part * C::kStageRows, place.first_unit);
    __syncthreads();
    unsigned char* warp_stage = stage + place.warp * 16 * C::kBytes;
#pragma unroll
    for (int k = 0; k < kStepsPerStage; ++k) {
      uint32_t(&d)[4] = a[0][part * kStepsPerStage + k];
      if constexpr (C::kBytes == 2) {
        const int row = 16 * k + (lane & 7) + ((lane >> 4) << 3);
        LdMatrixX4Trans(d, SharedAddress(warp_stage + row * C::kStagePitch + (lane & 8) * 2));
      } else {
        const unsigned char* at =
            warp_stage + (8 * k + (lane & 3)) * C::kStagePitch + (lane >> 2) * 4;
        d[0] = *reinterpret_cast<const uint32_t*>(at);
        d[1] = *reinterpret_cast<const uint32_t*>(at + 32);
        d[2] = *reinterpret_cast<const uint32_t*>(at + 4 * C::kStagePitch);
        d[3] = *reinterpret_cast<const uint32_t*>(at + 4 * C::kStagePitch + 32);
      }
    }
    __syncthreads();
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    ClusterForwardKernel(const __grid_constant__ ForwardParams p) {
  using E = typename C::Element;
  using S = typename C::Storage;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) uint64_t barrier_words[2];
  const Place<C> place;
  const int lane = place.lane, warp = place.warp, rank = place.rank;
  const int hidden = p.hidden;
  const int unit = place.first_unit + place.LocalUnit();
  const bool unit_exists = unit < hidden;

  uint32_t a[1][C::kForwardSteps][4];
  LoadForwardWeights<C>(a, shared, p, place);

  // The hidden state before the first step, all of it in every block.
  for (int i = threadIdx.x; i < C::kHidden * C::kRows; i += C::kThreads) {
    const int u = i % C::kHidden, row = i / C::kHidden, b = place.slice * C::kRows + row;
    float h = 0.0f;
    if (p.initial_h != nullptr && u < hidden && b < p.batch) {
      h = E::To(static_cast<const S*>(p.initial_h)[int64_t{b} * hidden + u]);
    }
    *reinterpret_cast<S*>(shared + u / C::kGroup * C::kGroupBytes + row * 16 +
                          u % C::kGroup * C::kBytes) = Factor<E>(h);
  }
  const uint32_t base = SharedAddress(shared);
  const Mailbox mailbox{SharedAddress(barrier_words),
                        uint32_t{(C::kClusterSize - 1) * C::kOwnBytes}};
  if (threadIdx.x == 0) mailbox.Init();
  FenceProxyAsync();
  ClusterBarrier();

  // The thread's cells: one unit, one row of each tile. Rows beyond the batch repeat its last row
  // and are stored nowhere.
  float bias[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  if (p.bias != nullptr && unit_exists) {
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const int at = g * hidden + unit;
      bias[g] = p.weights_are_float ? static_cast<const float*>(p.bias)[at]
                                    : E::To(static_cast<const S*>(p.bias)[at]);
    }
  }
  float c[C::kTiles], h[C::kTiles];
  const char* x[C::kTiles];
  const uint8_t* mask[C::kTiles];
  const int x_bytes = p.projection_is_float ? 4 : C::kBytes;
  const int64_t gate_stride = int64_t{hidden} * x_bytes;
  const int64_t x_step = p.input_rows.step_stride * 4 * gate_stride;
#pragma unroll
  for (int n = 0; n < C::kTiles; ++n) {
    const int b = min(place.Row(n), p.batch - 1);
    const int64_t row = b * p.input_rows.batch_stride + p.input_rows.first;
    x[n] = static_cast<const char*>(p.projection) + row * 4 * gate_stride +
           min(unit, hidden - 1) * x_bytes;
    mask[n] = p.mask == nullptr ? nullptr : p.mask + row;
    const int64_t at = int64_t{b} * hidden + unit;
    c[n] = h[n] = 0.0f;
    if (unit_exists) {
      if (p.initial_c != nullptr) c[n] = E::To(static_cast<const S*>(p.initial_c)[at]);
      if (p.initial_h != nullptr) h[n] = E::To(static_cast<const S*>(p.initial_h)[at]);
    }
  }
  // The projection comes one step ahead, unconverted, so that nothing waits for it too early.
  uint32_t raw[C::kTiles][4];
  uint8_t valid[C::kTiles];
  auto fetch = [&] {
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const char* at = x[n] + g * gate_stride;
        raw[n][g] = p.projection_is_float ? __ldg(reinterpret_cast<const uint32_t*>(at))
                                          : __ldg(reinterpret_cast<const uint16_t*>(at));
      }
      x[n] += x_step;
      valid[n] = 1;
      if (p.mask != nullptr) {
        valid[n] = __ldg(mask[n]);
        mask[n] += p.input_rows.step_stride;
      }
    }
  };
  auto input = [&](uint32_t bits) {
    if constexpr (C::kBytes == 2) {
      if (!p.projection_is_float) {
        const uint16_t low = static_cast<uint16_t>(bits);
        S value;
        memcpy(&value, &low, 2);
        return E::To(value);
      }
    }
    return __uint_as_float(bits);
  };
  fetch();

  // Some threads also write one 16-byte piece of the output a step.
  constexpr int kWriters = C::kUnitGroups * C::kRows;
  static_assert(kWriters <= C::kThreads, "one piece of the output a thread");
  const int piece = static_cast<int>(threadIdx.x) - (C::kThreads - kWriters);
  const int piece_row = piece < 0 ? 0 : piece / C::kUnitGroups;
  const int piece_group = piece < 0 ? 0 : piece % C::kUnitGroups;
  const int piece_batch = place.slice * C::kRows + piece_row;
  const int piece_unit = place.first_unit + piece_group * C::kGroup;
  const bool writes = piece >= 0 && piece_batch < p.batch && piece_unit < hidden;
  const uint8_t* piece_mask =
      p.mask == nullptr || !writes
          ? nullptr
          : p.mask + piece_batch * p.input_rows.batch_stride + p.input_rows.first;
  uint8_t piece_valid = piece_mask == nullptr ? 1 : __ldg(piece_mask);
  bool seen = false;
  const uint32_t own = rank * C::kOwnBytes;

  for (int s = 0; s < p.steps; ++s) {
    const uint32_t before = (s & 1) * C::kHiddenBytes, after = C::kHiddenBytes - before;
    float acc[1][C::kTiles * 4];
#pragma unroll
    for (int i = 0; i < C::kTiles * 4; ++i) acc[0][i] = 0.0f;
    // Message s - 1 is h after step s - 1; it lies in buffer s % 2, its barrier is (s - 1) % 2.
    if (s > 0) mailbox.Wait(s - 1);
    Multiply<C, C::kForwardSteps, 1>(acc, a, base + before, lane);

    float z[C::kTiles][4], c_before[C::kTiles], h_before[C::kTiles];
    bool kept[C::kTiles];
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      const float* v = &acc[0][4 * n];  // gates i and g of two columns, or f and o
      const float first = __shfl_xor_sync(~0u, place.upper ? v[0] : v[1], 16);
      const float second = __shfl_xor_sync(~0u, place.upper ? v[2] : v[3], 16);
      z[n][0] = place.upper ? first : v[0];
      z[n][1] = place.upper ? v[1] : first;
      z[n][2] = place.upper ? second : v[2];
      z[n][3] = place.upper ? v[3] : second;
#pragma unroll
      for (int g = 0; g < 4; ++g) z[n][g] += input(raw[n][g]) + bias[g];
      kept[n] = valid[n] == 0;
    }
    if (s + 1 < p.steps) fetch();
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      z[n][0] = E::Sigmoid(z[n][0]);
      z[n][1] = E::Sigmoid(z[n][1]);
      z[n][2] = E::Tanh(z[n][2]);
      z[n][3] = E::Sigmoid(z[n][3]);
      c_before[n] = c[n];
      h_before[n] = h[n];
      const float c_new = fmaf(z[n][1], c[n], z[n][0] * z[n][2]);
      const S h_new = Factor<E>(z[n][3] * E::Tanh(c_new));
      c[n] = kept[n] ? c[n] : c_new;
      h[n] = kept[n] ? h[n] : E::To(h_new);
      const int u = place.LocalUnit();
      *reinterpret_cast<S*>(shared + after + own + u / C::kGroup * C::kGroupBytes +
                            (n * 8 + place.column) * 16 + u % C::kGroup * C::kBytes) =
          Factor<E>(h[n]);
    }
    FenceProxyAsync();
    __syncthreads();
    if (s + 1 < p.steps) {
      const uint32_t source = base + after + own, barrier = mailbox.Barrier(s);
#ifdef TFL_ST_ASYNC
      for (int d = warp; d < C::kClusterSize - 1; d += C::kWarps) {
        const uint32_t other = (rank + 1 + d) % C::kClusterSize;
        const uint32_t remote = Mapa(source, other), rb = Mapa(barrier, other);
        for (int i = lane; i < C::kOwnBytes / 16; i += 32) {
          StAsync16(remote + 16 * i, *reinterpret_cast<const uint4*>(shared + after + own + 16 * i),
                    rb);
        }
      }
#else
      if (lane == 0) {
        for (int d = warp; d < C::kClusterSize - 1; d += C::kWarps) {
          const uint32_t other = (rank + 1 + d) % C::kClusterSize;
          CpAsyncBulk(Mapa(source, other), source, C::kOwnBytes, Mapa(barrier, other));
        }
      }
#endif
    }
    if (p.reserve != nullptr) {
#pragma unroll
      for (int n = 0; n < C::kTiles; ++n) {
        const int64_t tiles = (p.batch + 7) / 8;
        if (place.slice * C::kTiles + n >= tiles) continue;
        const int64_t cell = s * tiles * (C::kHidden * 8) + place.ReserveCell(n);
        if constexpr (C::kBytes == 2) {
          static_cast<uint4*>(p.reserve)[cell] =
              make_uint4(E::Pack(z[n][0], z[n][1]), E::Pack(z[n][2], z[n][3]),
                         __float_as_uint(c_before[n]), E::Pack(h_before[n], 0.0f));
        } else {
          const int64_t cells = (p.steps + int64_t{1}) * tiles * (C::kHidden * 8);
          static_cast<float4*>(p.reserve)[cell] = make_float4(z[n][0], z[n][1], z[n][2], z[n][3]);
          reinterpret_cast<float2*>(static_cast<float4*>(p.reserve) + cells)[cell] =
              make_float2(c_before[n], h_before[n]);
        }
      }
    }
    if (writes) {
      const bool is_valid = piece_valid != 0;
      seen |= is_valid;
      if (p.return_sequences || s + 1 == p.steps) {
        uint4 group = *reinterpret_cast<const uint4*>(
            shared + after + own + piece_group * C::kGroupBytes + piece_row * 16);
        if (!is_valid && (p.zero_output_for_mask || !seen)) group = make_uint4(0, 0, 0, 0);
        const int64_t row = piece_batch * p.output_rows.batch_stride + p.output_rows.first +
                            (p.return_sequences ? s * p.output_rows.step_stride : 0);
        StoreGroup<E>(static_cast<S*>(p.output) + row * hidden + piece_unit, group,
                      hidden - piece_unit, p.vector_rows);
      }
      if (piece_mask != nullptr && s + 1 < p.steps) {
        piece_mask += p.input_rows.step_stride;
        piece_valid = __ldg(piece_mask);
      }
    }
  }

#pragma unroll
  for (int n = 0; n < C::kTiles; ++n) {
    const int b = place.Row(n);
    if (b < p.batch && unit_exists) {
      const int64_t at = int64_t{b} * hidden + unit;
      static_cast<S*>(p.final_h)[at] = E::From(h[n]);
      static_cast<S*>(p.final_c)[at] = E::From(c[n]);
    }
    const int64_t tiles = (p.batch + 7) / 8;
    if (p.reserve != nullptr && place.slice * C::kTiles + n < tiles) {
      const int64_t cell = p.steps * tiles * (C::kHidden * 8) + place.ReserveCell(n);
      if constexpr (C::kBytes == 2) {
        static_cast<uint4*>(p.reserve)[cell] =
            make_uint4(0, 0, __float_as_uint(c[n]), E::Pack(h[n], 0.0f));
      } else {
        const int64_t cells = (p.steps + int64_t{1}) * tiles * (C::kHidden * 8);
        static_cast<float4*>(p.reserve)[cell] = make_float4(0, 0, 0, 0);
        reinterpret_cast<float2*>(static_cast<float4*>(p.reserve) + cells)[cell] =
            make_float2(c[n], h[n]);
      }
    }
  }
  ClusterBarrier();
}

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_FORWARD_CUH_
