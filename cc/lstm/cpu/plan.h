// What a call will do and where its scratch lies: a pure function of the spec, the thread count and
// the machine.
#ifndef TF_FUSED_LSTM_CC_LSTM_CPU_PLAN_H_
#define TF_FUSED_LSTM_CC_LSTM_CPU_PLAN_H_

#include <cstdint>

#include "cc/lstm/lstm.h"

namespace tfl::cpu {

// Hidden units are padded to whole vectors of the widest target, so that every row of a buffer of
// ours starts a cache line and no kernel needs a tail.
inline constexpr int64_t kUnitPadding = 16;
// The widest panel of columns a tile computes: four vectors of 16.
inline constexpr int64_t kMaxPanel = 64;
// Blocking of matrix products: depth and panels of a packed block of the right factor, held in the
// second-level cache, and tiles of rows of the left one, where that is packed.
inline constexpr int64_t kBlockDepth = 512;
inline constexpr int64_t kBlockPanels = 4;
inline constexpr int64_t kBlockTiles = 172;
inline constexpr int64_t kMaxPackedRows = 8;
// Units up to which a single row reads recurrent_kernel as it lies instead of packed: beyond, its
// rows are too many pages apart.
inline constexpr int64_t kDirectUnits = 256;
// Whether it may, with this much second-level cache in a core, or 0 where that is unknown: it
// should hold three quarters of the float32 values, as what comes from the next level comes faster
// packed.
constexpr bool ReadsDirectly(int64_t hidden, int64_t cache_bytes) {
  return hidden <= kDirectUnits && (cache_bytes <= 0 || 12 * hidden * hidden <= cache_bytes);
}
// Tiles that a step of the recurrence takes through a block of its depth together.
inline constexpr int64_t kStepTiles = 16;

// Byte offsets into a direction's part of the reserve or workspace; each is a multiple of 64.
// Buffers of width H_p hold hidden_padded units a row; elements are of the compute type: double for
// float64, else float.
struct ReserveLayout {
  int64_t gates = 0;   // [steps, batch, 4, H_p]  activated i, f, g, o
  int64_t cell = 0;    // [steps + 1, batch, H_p]  c before each step and after the last
  int64_t hidden = 0;  // [steps + 1, batch, H_p]  h likewise
  int64_t bytes = 0;
};

struct ForwardLayout {
  int64_t gates = 0;             // [chunk_steps, batch, 4, H_p]    unless training
  int64_t cell = 0;              // [batch, H_p]                    unless training
  int64_t hidden = 0;            // [2, batch, H_p]                 unless training
  int64_t recurrent = 0;         // packed recurrent_kernel
  int64_t packed_kernel = 0;     // packed kernel                   if keep_packed
  int64_t bias = 0;              // [4, H_p]
  int64_t first_valid = 0;       // int64 [batch]                   if has_mask
  int64_t x = 0;                 // [masks or 1, chunk_steps, batch, input]  if copy_chunk
  int64_t kernel = 0;            // [input, 4 hidden]               if weights are converted
  int64_t recurrent_kernel = 0;  // [hidden, 4 hidden]              if weights are converted
  int64_t recurrent_mask = 0;    // [masks, batch, H_p]             if recurrent dropout
  int64_t dropped = 0;           // [2, batch, masks, H_p]          h * recurrent_mask, likewise
  int64_t member = 0;            // [shares, member_size]
  int64_t member_size = 0;       // elements of scratch that a product needs
  int64_t bytes = 0;
};

struct BackwardLayout {
  int64_t grad_gates = 0;        // [steps, batch, 4, H_p]  gradients of z
  int64_t grad_cell = 0;         // [batch, H_p]
  int64_t carry = 0;             // [batch, H_p]  gradient of h that a masked step hands on
  int64_t recurrent = 0;         // packed transpose of recurrent_kernel
  int64_t first_valid = 0;       // int64 [batch]                if has_mask
  int64_t x = 0;                 // [steps, batch, input]        if copy_x
  int64_t kernel = 0;            // [input, 4 hidden]            if weights are converted
  int64_t recurrent_kernel = 0;  // [hidden, 4 hidden]           if weights are converted
  int64_t grad_x = 0;            // [steps, batch, input]        if x is converted
  int64_t dropout_mask = 0;      // [masks, batch, input]        if dropout
  int64_t recurrent_mask = 0;    // [masks, batch, H_p]          if recurrent dropout
  int64_t grad_kernel = 0;       // [input + hidden, 4, H_p]    if converted or padded
  int64_t grad_bias = 0;         // [4, H_p]
  int64_t member = 0;            // [shares, member_size]
  int64_t member_size = 0;
  int64_t bytes = 0;
};

struct Plan {
  int64_t hidden_padded = 0;
  bool convert_x = false;         // dtype is not the compute type
  bool copy_chunk = false;        // forward reads copies of x: converted, or with dropout
  bool copy_x = false;            // backward reads a copy: converted, zeros at masked steps
  bool convert_weights = false;   // weight_dtype is not
  bool plain_gates = false;       // hidden_padded == hidden
  bool direct_recurrent = false;  // the recurrence reads recurrent_kernel unpacked
  int shares = 1;                 // places in the team
  // Rows of the batch are independent, and directions too: with few hidden units each share takes
  // some rows of a direction through all steps, in so many tasks a direction. Else (0) every step
  // is one phase whose tasks split the hidden units.
  int row_tasks = 0;
  int grad_row_tasks = 0;    // likewise in the backward pass
  int step_tasks = 1;        // tasks per share of such a phase
  bool keep_packed = false;  // there are several chunks, whose products have the kernel in common
  int64_t chunk_steps = 0;   // steps of the input projection that precede their recurrence
  ReserveLayout reserve;
  ForwardLayout forward;
  BackwardLayout backward;
};

// Checks the spec. TFL_INVALID_ARGUMENT names what is wrong, an overflow of any size included.
tfl_status MakePlan(const tfl_lstm_spec& spec, int32_t num_threads, Plan* plan);

}  // namespace tfl::cpu

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_PLAN_H_
