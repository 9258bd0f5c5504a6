// The forward recurrence of a few batch rows in one block: R in registers, h in shared memory.
//
// Step s: every warp multiplies its 64 gate rows with h of the step before, its lanes apply the
// cell and leave the new h in the other buffer; a block barrier, or with two halves one of each
// half and a wait for the other before its units are used. Two buffers suffice, since a warp
// overwrites only what all that it has waited for had read before.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_FORWARD_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_FORWARD_CUH_

#include "cc/lstm/cuda/block/common.cuh"

namespace tfl::cuda::block {

#if TFL_BLOCK_RUNS

// The product of a warp's four tiles with h: sums of K in as many independent chains as hide the
// instruction's latency.
template <class C>
struct ForwardProduct {
  using E = typename C::Element;
  static constexpr int kSteps = C::kForwardSteps, kChains = kSteps >= 8 ? 1 : 2;
  float v[kChains][4][4];

  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int i = 0; i < kChains * 16; ++i) (&v[0][0][0])[i] = 0.0f;
  }
  template <int kFirst, int kCount>
  __device__ __forceinline__ void Add(const uint32_t (&a)[kSteps][4][4],
                                      const uint4 (&b)[kCount / 2]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const uint4& h = b[k / 2];
        E::Mma(v[k % kChains][t], a[kFirst + k][t], k % 2 == 0 ? h.x : h.z, k % 2 == 0 ? h.y : h.w);
      }
    }
  }
  __device__ __forceinline__ void End() {
#pragma unroll
    for (int c = 1; c < kChains; ++c) {
#pragma unroll
      for (int i = 0; i < 16; ++i) (&v[0][0][0])[i] += (&v[c][0][0])[i];
    }
  }
  // That of a gate of the lane's cell i.
  __device__ __forceinline__ float Sum(const Place<C>& place, int i, int gate) const {
    const int t = gate % 2, e = gate / 2 * 2;
    if constexpr (C::kCells == 1) return place.lane & 2 ? v[0][t + 2][e] : v[0][t][e];
    if constexpr (C::kCells == 2) return v[0][t + 2 * i][e];
    return v[0][t + i / 2 * 2][e + i % 2];
  }
};

template <class C>
__device__ __forceinline__ void LoadForwardWeights(uint32_t (&a)[C::kForwardSteps][4][4],
                                                   unsigned char* stage, int slots,
                                                   const CommonParams& p, const void* kernel,
                                                   const Place<C>& place) {
  // A matrix of ldmatrix is 8 slots of K by 8 units of a gate: gates t % 2 and t % 2 + 2 of the
  // first 8 slots, then of the others.
  const int lane = place.lane;
  const uint32_t lane_at = ((lane & 7) + (lane >> 4) * 8) * C::kStagePitch +
                           ((lane >> 3 & 1) * 2 * C::kHidden + 16 * place.warp) * 2;
  LoadGroups<C, true>(stage, slots, p, kernel, [&](auto group, unsigned char* slot) {
    const uint32_t address = sm90::SharedAddress(slot) + lane_at;
    constexpr int kGroup = decltype(group)::value;
    const auto read = [&](auto first) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          sm90::LdMatrixX4Trans(
              a[decltype(first)::value + k][t],
              address + 16 * k * C::kStagePitch + (t % 2 * C::kHidden + t / 2 * 8) * 2);
        }
      }
    };
    if (C::kSplits && place.warp >= C::kWarps / 2) {
      read(std::integral_constant<int, 2 * ((kGroup + C::kGroups / 2) % C::kGroups)>());
    } else {
      read(std::integral_constant<int, 2 * kGroup>());
    }
  });
}

template <class C>
__device__ __forceinline__ void ForwardRecurrence(const ForwardParams& p, int slots) {
  using E = typename C::Element;
  using S = typename C::Storage;
  constexpr int kCells = C::kCells;
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const stage = shared + 2 * C::kHiddenBytes;
  const Place<C> place(p);
  const auto& job = p.jobs[blockIdx.y];
  const int hidden = p.hidden;
  BeginStaging<C, true>(stage, slots, p, job.recurrent_kernel);

  // The lane's cells, and h before the first step. Units beyond `hidden` stay zero.
  bool has_row[kCells], has_cell[kCells];
  float bias[kCells][4], c[kCells], dropout[kCells];
  S h[kCells], sent[kCells];
  int cell_at[kCells];
#pragma unroll
  for (int i = 0; i < kCells; ++i) {
    const int unit = place.Unit(i), row = place.Row(i);
    has_row[i] = place.HasRow(p, i);
    has_cell[i] = has_row[i] && unit < hidden;
    c[i] = 0.0f;
    dropout[i] = 1.0f;
    h[i] = E::From(0.0f);
#pragma unroll
    for (int g = 0; g < 4; ++g) bias[i][g] = 0.0f;
    if (has_cell[i]) {
      const int64_t at = int64_t{place.Batch(i)} * hidden + unit;
      if (job.initial_c != nullptr) c[i] = E::To(static_cast<const S*>(job.initial_c)[at]);
      if (job.initial_h != nullptr) h[i] = static_cast<const S*>(job.initial_h)[at];
      dropout[i] = DropoutOf<C>(job.recurrent_dropout, at);
      if (job.bias != nullptr) {
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          bias[i][g] = p.weights_are_float
                           ? static_cast<const float*>(job.bias)[g * hidden + unit]
                           : E::To(static_cast<const S*>(job.bias)[g * hidden + unit]);
        }
      }
    }
    sent[i] = E::From(E::To(h[i]) * dropout[i]);
    cell_at[i] = (unit / 32 * C::kRows + row) * 64 + unit % 32 * 2;
    *reinterpret_cast<S*>(shared + cell_at[i]) = sent[i];
    *reinterpret_cast<S*>(shared + C::kHiddenBytes + cell_at[i]) = E::From(0.0f);
  }

  // Of cell 0; the others are 8 units on, or a batch row.
  const int64_t first_row = place.Batch(0) * job.input_rows.batch_stride + job.input_rows.first;
  const int64_t row_step = Kept(job.input_rows.step_stride);
  const int64_t width = 4 * int64_t{hidden};
  const int64_t x_step = Kept(row_step * width);
  const int64_t x_row = Kept(C::kLaneRows == 1 ? int64_t{0} : job.input_rows.batch_stride * width);
  const float* x =
      Kept(static_cast<const float*>(job.projection) + first_row * width + place.Unit(0));
  const uint8_t* mask = Kept(p.mask == nullptr ? p.mask : p.mask + first_row);
  const int64_t mask_row = job.input_rows.batch_stride;
  S* output = Kept(static_cast<S*>(job.output) + place.Batch(0) * job.output_rows.batch_stride +
                   job.output_rows.first + place.Unit(0));
  const int64_t output_step = Kept(job.output_rows.step_stride);
  const int64_t output_row = Kept(C::kLaneRows == 1 ? int64_t{0} : job.output_rows.batch_stride);
  uint4* record = static_cast<uint4*>(job.reserve);
  const bool keeps = record != nullptr;
  record += place.ReserveCell(p, 0, 0);
  const int64_t record_step = int64_t{p.batch} * C::kHidden;
  const int64_t record_unit = 8 * int64_t{p.batch};
  // What a step leaves is stored in the next one, the first of which has nothing to store.
  output -= output_step;
  record -= record_step;
  const auto units_on = [](int i) { return kCells == 1 ? 0 : (kCells == 2 ? i : i / 2); };

  // The projection comes more than a step ahead, and to the L2 cache some steps ahead.
  constexpr int kAhead = 4;
  struct Inputs {
    float x[kCells][4];
    uint32_t valid[C::kLaneRows];
  };
  // A lane fetches ahead 8 units of one gate.
  const int ahead_gate = place.lane >> 2;
  const float* ahead = Kept(x + ahead_gate * hidden + kAhead * x_step);
  const bool masks = mask != nullptr;
  const auto fetch = [&](int s, Inputs& in) {
#pragma unroll
    for (int n = 0; n < C::kLaneRows; ++n) {
      in.valid[n] = LoadValidIf(masks && has_row[n] && s < p.steps, mask + n * mask_row);
    }
    const bool comes = ahead_gate < 4 && s + kAhead < p.steps;
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      const int64_t at = units_on(i) * 8 + place.LaneRow(i) * x_row;
#pragma unroll
      for (int g = 0; g < 4; ++g)
        in.x[i][g] = LoadIf(has_cell[i] && s < p.steps, x + at + g * hidden);
      PrefetchIf(has_cell[i] && comes, ahead + at);
    }
    x += x_step;
    ahead += x_step;
    mask += row_step;
  };
  // Launched early, the kernel has to wait for the projection, and may write only then.
  WaitForPrecedingKernel();
  Inputs inputs[2];
  fetch(0, inputs[0]);

  uint32_t a[C::kForwardSteps][4][4];
  LoadForwardWeights<C>(a, stage, slots, p, job.recurrent_kernel, place);

  // A lane's column of the factor is a batch row, its slots of K 8 units of every 32.
  const uint32_t factor_at = sm90::KeptSharedAddress(shared) +
                             Place<C>::FactorRow(place.lane >> 2) * 64 + (place.lane & 3) * 16;
  // The half of K that is the units of the warp's own half of the block, and the other one.
  constexpr int kParts = C::kSplits ? 2 : 1, kPartSteps = C::kForwardSteps / kParts;
  const int half = C::kSplits ? place.warp / (C::kWarps / 2) : 0;
  constexpr int kPartBytes = C::kHiddenBytes / kParts;
  uint4 b[kParts][kPartSteps / 2];
  const auto load_factor = [&](int s, auto part) {
    constexpr int kPart = decltype(part)::value;
    const uint32_t at = factor_at + (s & 1) * C::kHiddenBytes + (half ^ kPart) * kPartBytes;
#pragma unroll
    for (int j = 0; j < kPartSteps / 2; ++j) b[kPart][j] = LdShared16(at + j * C::kRows * 64);
  };
  constexpr std::integral_constant<int, 0> kOwn;
  [[maybe_unused]] constexpr std::integral_constant<int, 1> kOther;
  load_factor(0, kOwn);
  float half_bias[kCells][4];
#pragma unroll
  for (int i = 0; i < kCells; ++i) {
#pragma unroll
    for (int g = 0; g < 4; ++g) half_bias[i][g] = 0.5f * bias[i][g];
  }
  bool seen[C::kLaneRows] = {};
  const bool sequences = p.return_sequences, zeros = p.zero_output_for_mask;
  uint4 kept[kCells];
  S shown[kCells];
  // What a step left, to memory.
  const auto store = [&](int s, bool has_output) {
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      StoreIf(keeps && has_row[i] && s >= 0,
              record + units_on(i) * record_unit + place.LaneRow(i) * 4, kept[i]);
      StoreIf(has_cell[i] && has_output && s >= 0,
              output + units_on(i) * 8 + place.LaneRow(i) * output_row, shown[i]);
    }
    output += output_step;
    record += record_step;
  };

  const auto step = [&](int s, Inputs& now, Inputs& next) {
    const auto store_and_fetch = [&] {
      store(s - 1, sequences);
      if constexpr (C::kComesEarly) {
        fetch(s + 1, next);
      } else {
        if (s > 0) fetch(s, now);
      }
    };
    ForwardProduct<C> product;
    product.Begin();
    if constexpr (C::kSplits) {
      product.template Add<0, kPartSteps>(a, b[0]);
      store_and_fetch();
      if (s > 0) BarSync<C::kThreads>(CrossBarrier(half ^ 1, s));
      load_factor(s, kOther);
      product.template Add<kPartSteps, kPartSteps>(a, b[kParts - 1]);
    } else {
      store_and_fetch();
      product.template Add<0, C::kForwardSteps>(a, b[0]);
    }
    product.End();

    unsigned char* const to = shared + ((s & 1) ^ 1) * C::kHiddenBytes;
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      float z[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        // The input only now: added to the bias it would be waited for before the products.
        const float sum = product.Sum(place, i, g) + now.x[i][g];
        z[g] = g == 2 ? E::Tanh(sum + bias[i][g])
                      : fmaf(0.5f, E::Tanh(fmaf(0.5f, sum, half_bias[i][g])), 0.5f);  // a sigmoid
      }
      const bool is_valid = now.valid[place.LaneRow(i)] != 0;
      kept[i] =
          make_uint4(E::Pack(z[0], z[1]), E::Pack(z[2], z[3]), __float_as_uint(c[i]), Bits(h[i]));
      const float c_new = fmaf(z[1], c[i], z[0] * z[2]);
      const float tanh_c = E::Tanh(c_new);
      const S sent_new = E::From(z[3] * dropout[i] * tanh_c);
      sent[i] = is_valid ? sent_new : sent[i];
      if (has_cell[i]) *reinterpret_cast<S*>(to + cell_at[i]) = sent[i];
      c[i] = is_valid ? c_new : c[i];
      h[i] = is_valid ? E::From(z[3] * tanh_c) : h[i];
    }
#pragma unroll
    for (int n = 0; n < C::kLaneRows; ++n) seen[n] |= now.valid[n] != 0;
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
      const int n = place.LaneRow(i);
      shown[i] = now.valid[n] != 0 || (seen[n] && !zeros) ? h[i] : E::From(0.0f);
    }
    if constexpr (C::kSplits) {
      if (s + 1 < p.steps) BarArrive<C::kThreads>(CrossBarrier(half, s + 1));
      BarSync<C::kThreads / 2>(1 + half);
    } else {
      __syncthreads();
    }
    load_factor(s + 1, kOwn);
  };
  for (int s = 0; s < p.steps; s += 2) {
    step(s, inputs[0], inputs[C::kComesEarly ? 1 : 0]);
    if (s + 1 < p.steps) step(s + 1, inputs[C::kComesEarly ? 1 : 0], inputs[0]);
  }
  store(p.steps - 1, true);

#pragma unroll
  for (int i = 0; i < kCells; ++i) {
    if (has_cell[i]) {
      const int64_t at = int64_t{place.Batch(i)} * hidden + place.Unit(i);
      static_cast<S*>(job.final_h)[at] = h[i];
      static_cast<S*>(job.final_c)[at] = E::From(c[i]);
    }
    if (keeps && has_row[i]) {
      record[units_on(i) * record_unit + place.LaneRow(i) * 4] =
          make_uint4(0, 0, __float_as_uint(c[i]), Bits(h[i]));
    }
  }
}

#endif  // TFL_BLOCK_RUNS

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    BlockForwardKernel(const TFL_BLOCK_CONSTANT ForwardParams p, int slots) {
#if TFL_BLOCK_RUNS
  ForwardRecurrence<C>(p, slots);
#endif
}

}  // namespace tfl::cuda::block

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_FORWARD_CUH_
