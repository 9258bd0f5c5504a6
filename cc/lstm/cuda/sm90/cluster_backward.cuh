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
    StageWeights<C, false>(stage, p, place.first_unit,
                           [&](int staged) { return part * C::kStageRows + staged; });
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

// A message holds, tile by tile of 8 rows, [unit][rows of the tile]; the last tile may be narrower.
__device__ __forceinline__ int TileRows(const CommonParams& p, int tile) {
  return max(0, min(8, p.rows - 8 * tile));
}

// The sum over the cluster's blocks of the partial dh of the thread's cell in row tile `tile`.
template <class C>
__device__ __forceinline__ float SumPartials(const CommonParams& p, const unsigned char* received,
                                             const Place<C>& place, int tile) {
  using E = typename C::Element;
  const int u = place.LocalUnit();
  const int source_bytes = p.rows * C::kSourceRowBytes;
  constexpr int kBytes = sizeof(typename C::Partial);
  const unsigned char* at = received + u / C::kMessageUnits * (p.rows * C::kMessageRowBytes) +
                            (tile * C::kMessageUnits * 8 +
                             u % C::kMessageUnits * TileRows(p, tile) + (place.lane & 3) * 2) *
                                kBytes +
                            (place.upper ? C::kClusterSize / 2 * source_bytes + C::kHalfSkew : 0);
  float2 sum = make_float2(0.0f, 0.0f);
  if ((place.lane & 3) * 2 < TileRows(p, tile)) {
#pragma unroll
    for (int i = 0; i < C::kClusterSize / 2; ++i) {
      float2 v;
      if constexpr (kBytes == 2) {
        v = E::Unpack(*reinterpret_cast<const uint32_t*>(at + i * source_bytes));
      } else {
        v = *reinterpret_cast<const float2*>(at + i * source_bytes);
      }
      sum.x += v.x;
      sum.y += v.y;
    }
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
  const uint32_t group_bytes = 16 * p.rows;
  const uint32_t plane_bytes = C::kUnitGroups * group_bytes;
  const uint32_t source_bytes = p.rows * C::kSourceRowBytes;
  const uint32_t message_bytes = p.rows * C::kMessageRowBytes;

  uint32_t a[C::kGateTiles][C::kBackwardSteps][4];
  LoadBackwardWeights<C>(a, shared, p, place);

  const Mailbox<1> mailbox{KeptSharedAddress(barrier_words), C::kClusterSize * source_bytes, 0};
  if (threadIdx.x == 0) mailbox.Init();
  if (p.mask != nullptr) {
    for (int row = warp; row < p.rows; row += C::kWarps) {
      const int b = min(place.slice * p.rows + row, p.batch - 1);
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
  bool has_row[C::kTiles];
  constexpr int kAhead = 4;  // steps that the reserve comes to the L2 cache before it is read
  // Those of the first row tile at the last step; other tiles and steps follow at fixed strides.
  const int64_t cell_step = int64_t{p.batch} * C::kHidden;
  int64_t cell = place.ReserveCell(p, p.steps, place.Batch(p, 0));
  const uint4* const records = static_cast<const uint4*>(p.reserve);
  const float2* const states =
      reinterpret_cast<const float2*>(records + (p.steps + int64_t{1}) * cell_step);
  const int last = p.steps - 1;
  const S* grad_output = static_cast<const S*>(p.grad_output) +
                         (place.Batch(p, 0) * p.output_rows.batch_stride + p.output_rows.first +
                          last * p.output_rows.step_stride) *
                             hidden +
                         unit;
  const int64_t grad_step = p.output_rows.step_stride * hidden;
  const uint8_t* mask = p.mask + place.Batch(p, 0) * p.input_rows.batch_stride +
                        p.input_rows.first + last * p.input_rows.step_stride;
  const auto fetch = [&](int s) {
    cell -= cell_step;
    const bool reads_grad =
        p.grad_output != nullptr && unit_exists && (p.return_sequences || s == last);
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      record[n] = make_uint4(0, 0, 0, 0);
      state[n] = make_float2(0.0f, 0.0f);
      grad[n] = 0;
      valid[n] = 1;
      if (!has_row[n]) continue;
      record[n] = __ldg(records + cell + 32 * n);
      if constexpr (C::kBytes == 4) state[n] = __ldg(states + cell + 32 * n);
      if (s >= kAhead && (place.unit & 1) == 0) {
        PrefetchL2(records + cell + 32 * n - kAhead * cell_step);
      }
      if (reads_grad) {
        const S* at = grad_output + n * 8 * p.output_rows.batch_stride * hidden;
        if constexpr (C::kBytes == 2) {
          grad[n] = __ldg(reinterpret_cast<const uint16_t*>(at));
        } else {
          grad[n] = __ldg(reinterpret_cast<const uint32_t*>(at));
        }
        if (s >= kAhead && place.unit == 0) PrefetchL2(at - kAhead * grad_step);
      }
      if (p.mask != nullptr) valid[n] = __ldg(mask + n * 8 * p.input_rows.batch_stride);
    }
    grad_output -= grad_step;
    mask -= p.input_rows.step_stride;
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
    has_row[n] = place.HasRow(p, n);
    first[n] = p.mask == nullptr || !has_row[n] ? 0 : first_valid[n * 8 + place.column];
    dh[n] = dc[n] = c[n] = 0.0f;
    if (!has_row[n]) continue;
    if constexpr (C::kBytes == 2) {
      c[n] = __uint_as_float(records[cell + 32 * n].z);
    } else {
      c[n] = states[cell + 32 * n].x;
    }
    if (!unit_exists) continue;
    const int64_t at = int64_t{place.Batch(p, n)} * hidden + unit;
    if (p.grad_final_h != nullptr) dh[n] = E::To(static_cast<const S*>(p.grad_final_h)[at]);
    if (p.grad_final_c != nullptr) dc[n] = E::To(static_cast<const S*>(p.grad_final_c)[at]);
  }
  fetch(last);

  const int u = place.LocalUnit();
  const int gate_offset =
      u / C::kGroup * group_bytes + place.column * 16 + u % C::kGroup * C::kBytes;
  const uint32_t source_offset =
      rank * source_bytes + (rank >= C::kClusterSize / 2 ? C::kHalfSkew : 0);
  const bool wants_grad_h = p.grad_initial_h != nullptr;

  // Each thread writes one 16-byte piece of some rows to memory: of a gate's gradients, or of h.
  constexpr int kPassRows = C::kThreads / (C::kPlanes * C::kUnitGroups);
  static_assert(kPassRows > 0, "a row's pieces have a thread each");
  const int piece_group = threadIdx.x % C::kUnitGroups;
  const int piece_plane = threadIdx.x / C::kUnitGroups % C::kPlanes;
  const int piece_row = threadIdx.x / (C::kUnitGroups * C::kPlanes);
  const int piece_unit = place.first_unit + piece_group * C::kGroup;
  const bool writes = piece_row < kPassRows && piece_unit < hidden;
  const int64_t piece_width = (piece_plane == 4 ? 1 : 4) * int64_t{hidden};
  int64_t piece_at = ((place.slice * p.rows + piece_row) * p.input_rows.batch_stride +
                      p.input_rows.first + last * p.input_rows.step_stride) *
                         piece_width +
                     (piece_plane == 4 ? 0 : piece_plane * hidden) + piece_unit;

  for (int message = 0; message < p.steps; ++message) {
    const int s = p.steps - 1 - message;
    unsigned char* const gates = shared + (message & 1) * C::kGatesBytes;
    // Everything up to the sends is on the step's critical path; what does not need dh comes before
    // the wait, all else after the sends.
    float slope_c[C::kTiles], slope[C::kTiles][4], f[C::kTiles];
    float2 before[C::kTiles];
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      float i, g, o, d_output;
      if constexpr (C::kBytes == 2) {
        const float2 low = E::Unpack(record[n].x), high = E::Unpack(record[n].y);
        i = low.x, f[n] = low.y, g = high.x, o = high.y;
        d_output = E::Unpack(grad[n]).x;
      } else {
        i = __uint_as_float(record[n].x), f[n] = __uint_as_float(record[n].y);
        g = __uint_as_float(record[n].z), o = __uint_as_float(record[n].w);
        d_output = __uint_as_float(grad[n]);
      }
      before[n] = state_before(n);
      const bool is_valid = valid[n] != 0;
      const float tanh_c = E::Tanh(c[n]);
      slope_c[n] = o * (1.0f - tanh_c * tanh_c);
      slope[n][0] = is_valid ? g * i * (1.0f - i) : 0.0f;
      slope[n][1] = is_valid ? before[n].x * f[n] * (1.0f - f[n]) : 0.0f;
      slope[n][2] = is_valid ? i * (1.0f - g * g) : 0.0f;
      slope[n][3] = is_valid ? tanh_c * o * (1.0f - o) : 0.0f;
      c[n] = before[n].x;
      // A masked step's output is h of the last valid step, or a constant zero.
      if (is_valid || (!p.zero_output_for_mask && s > first[n])) dh[n] += d_output;
    }
    if (message > 0) {
      mailbox.Wait(message - 1, 0);
      const unsigned char* partials = received + ((message - 1) & 1) * C::kReceiveBytes;
#pragma unroll
      for (int n = 0; n < C::kTiles; ++n) dh[n] += SumPartials<C>(p, partials, place, n);
    }
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      const bool is_valid = valid[n] != 0;
      const float dc_all = fmaf(dh[n], slope_c[n], dc[n]);
      const float d[4] = {dc_all * slope[n][0], dc_all * slope[n][1], dc_all * slope[n][2],
                          dh[n] * slope[n][3]};
      dc[n] = is_valid ? dc_all * f[n] : dc[n];
      dh[n] = is_valid ? 0.0f : dh[n];
      if (!has_row[n]) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        *reinterpret_cast<S*>(gates + k * plane_bytes + gate_offset + n * 128) = Factor<E>(d[k]);
      }
      *reinterpret_cast<S*>(gates + 4 * plane_bytes + gate_offset + n * 128) = E::From(before[n].y);
    }
    if constexpr (C::kWarpgroup) FenceProxyAsync();
    __syncthreads();

    if (s > 0 || wants_grad_h) {
      Product<C, C::kGateTiles, C::kBackwardSteps> product;
      product.Begin();
      product.template Add<0, C::kBackwardSteps>(a, SharedAddress(gates), group_bytes, lane);
      product.End();
      unsigned char* const send = outgoing + warp * C::kMessages * message_bytes;
#pragma unroll
      for (int m = 0; m < C::kGateTiles; ++m) {
#pragma unroll
        for (int n = 0; n < C::kTiles; ++n) {
          const int tile_rows = TileRows(p, n);
          if ((lane & 3) * 2 >= tile_rows) continue;
          const int tile_unit = m % C::kMessageTiles * 16 + (lane >> 2);
          P* at = reinterpret_cast<P*>(send + m / C::kMessageTiles * message_bytes) +
                  n * C::kMessageUnits * 8 + tile_unit * tile_rows + (lane & 3) * 2;
          const float* v = &product.v[0][m][4 * n];
          if constexpr (sizeof(P) == 2) {
            *reinterpret_cast<uint32_t*>(at) = E::Pack(v[0], v[1]);
            *reinterpret_cast<uint32_t*>(at + 8 * tile_rows) = E::Pack(v[2], v[3]);
          } else {
            *reinterpret_cast<float2*>(at) = make_float2(v[0], v[1]);
            *reinterpret_cast<float2*>(at + 8 * tile_rows) = make_float2(v[2], v[3]);
          }
        }
      }
      if constexpr (!C::kAsyncStores) FenceProxyAsync();
      __syncwarp();
      const uint32_t to =
          SharedAddress(received) + (message & 1) * C::kReceiveBytes + source_offset;
      const uint32_t barrier = mailbox.Barrier(message, 0);
#pragma unroll
      for (int i = 0; i < C::kMessages; ++i) {
        const int target = (warp * C::kGateTiles + i * C::kMessageTiles) * 16;
        const uint32_t owner = target / C::kUnits;
        const uint32_t there = target % C::kUnits / C::kMessageUnits * message_bytes;
        const uint32_t remote = Mapa(to + there, owner), remote_barrier = Mapa(barrier, owner);
        const unsigned char* const from = send + i * message_bytes;
        if constexpr (C::kAsyncStores) {
#pragma unroll
          for (int j = 0; j < C::kMessageRowBytes * C::kRows; j += 16 * 32) {
            const int at = j + 16 * lane;
            if (at < static_cast<int>(message_bytes)) {
              StAsync16(remote + at, *reinterpret_cast<const uint4*>(from + at), remote_barrier);
            }
          }
        } else if (lane == 0) {
          CpAsyncBulk(remote, SharedAddress(from), message_bytes, remote_barrier);
        }
      }
    }

    if (s > 0) fetch(s - 1);

    // The gradients of the gates, and h before the step, to memory.
    if (writes) {
      for (int i = 0; i < C::kRows; i += kPassRows) {
        const int row = piece_row + i;
        if (row >= p.rows || place.slice * p.rows + row >= p.batch) break;
        const uint4 v = *reinterpret_cast<const uint4*>(
            gates + (piece_plane * C::kUnitGroups + piece_group) * group_bytes + row * 16);
        const int64_t at = piece_at + i * p.input_rows.batch_stride * piece_width;
        if (piece_plane == 4) {
          StoreGroup<E>(static_cast<S*>(p.previous_h) + at, v, hidden - piece_unit, p.vector_rows);
        } else if (C::kBytes == 4 || !p.grad_gates_are_float) {
          StoreGroup<E>(static_cast<S*>(p.grad_gates) + at, v, hidden - piece_unit, p.vector_rows);
        } else {
          S values[C::kGroup];
          memcpy(values, &v, 16);
#pragma unroll
          for (int j = 0; j < C::kGroup; ++j) {
            if (j < hidden - piece_unit)
              static_cast<float*>(p.grad_gates)[at + j] = E::To(values[j]);
          }
        }
      }
      piece_at -= p.input_rows.step_stride * piece_width;
    }
  }

  if (wants_grad_h) {
    mailbox.Wait(p.steps - 1, 0);
    const unsigned char* partials = received + ((p.steps - 1) & 1) * C::kReceiveBytes;
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) dh[n] += SumPartials<C>(p, partials, place, n);
  }
#pragma unroll
  for (int n = 0; n < C::kTiles; ++n) {
    if (!has_row[n] || !unit_exists) continue;
    const int64_t at = int64_t{place.Batch(p, n)} * hidden + unit;
    if (wants_grad_h) static_cast<S*>(p.grad_initial_h)[at] = E::From(dh[n]);
    if (p.grad_initial_c != nullptr) static_cast<S*>(p.grad_initial_c)[at] = E::From(dc[n]);
  }
  ClusterBarrier();
}

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_BACKWARD_CUH_
