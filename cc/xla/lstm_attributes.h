// The description of a call, as the attributes that an XLA custom call carries.
#ifndef TF_FUSED_LSTM_CC_XLA_LSTM_ATTRIBUTES_H_
#define TF_FUSED_LSTM_CC_XLA_LSTM_ATTRIBUTES_H_

#include <cstdint>
#include <string>

#include "cc/kernels/lstm_stack.h"
#include "xla/ffi/api/ffi.h"

namespace tf_fused_lstm {

constexpr char kForwardTarget[] = "tf_fused_lstm_forward";
constexpr char kBackwardTarget[] = "tf_fused_lstm_backward";

// The last result of every custom call is its workspace. XLA promises it no alignment, so that it
// is this much larger than the core asks for.
constexpr int64_t kWorkspaceAlignment = 64;

struct LstmAttributes {
  StackSpec spec;
  // Whether the op has the lists, perhaps of no mask for any layer.
  uint8_t has_dropout_mask = 0;
  uint8_t has_recurrent_dropout_mask = 0;
  int32_t num_threads = 1;  // that the sizes were asked for; CPU
};

// As the text of an MLIR dictionary attribute, the form that XLA's typed custom calls take.
std::string ToText(const LstmAttributes& attributes);
xla::ffi::Error FromDictionary(const xla::ffi::Dictionary& dictionary, LstmAttributes* attributes);

}  // namespace tf_fused_lstm

#endif  // TF_FUSED_LSTM_CC_XLA_LSTM_ATTRIBUTES_H_
