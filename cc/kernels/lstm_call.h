// From an op's attributes and inputs to the core's description of the call. The only place where
// arguments are checked.
#ifndef TF_FUSED_LSTM_CC_KERNELS_LSTM_CALL_H_
#define TF_FUSED_LSTM_CC_KERNELS_LSTM_CALL_H_

#include "cc/lstm/lstm.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fused_lstm {

// What a node's attributes fix once for all its calls.
class LstmCall {
 public:
  // Reports a bad attribute to `ctx`.
  explicit LstmCall(tensorflow::OpKernelConstruction* ctx);

  // Checks the inputs that forward and gradient share, then fills in the sizes and pointers.
  absl::Status Describe(tensorflow::OpKernelContext* ctx, tfl_lstm_spec* spec,
                        tfl_lstm_inputs* inputs) const;

  // Likewise for FusedLSTMGrad's further inputs but the reserve.
  absl::Status DescribeSaved(tensorflow::OpKernelContext* ctx, const tfl_lstm_spec& spec,
                             tfl_lstm_saved* saved) const;

 private:
  // The tensor of input `name` after its shape was found to be `wanted`, which `meaning` spells.
  absl::Status Checked(tensorflow::OpKernelContext* ctx, const char* name, const char* meaning,
                       const tensorflow::TensorShape& wanted, const void** data) const;

  tfl_lstm_spec spec_ = {};
};

tensorflow::TensorShape RowsShape(const tfl_lstm_spec& spec, int64_t last);
tensorflow::TensorShape OutputShape(const tfl_lstm_spec& spec);
tensorflow::TensorShape StateShape(const tfl_lstm_spec& spec);

// Whether FusedLSTMGrad's reserve holds what FusedLSTM kept, or is empty; no other shape is valid.
absl::Status CheckReserve(const tensorflow::TensorShape& shape, const tfl_lstm_sizes& sizes,
                          bool* keeps);

absl::Status ToStatus(const tfl_status& status);

}  // namespace tf_fused_lstm

#endif  // TF_FUSED_LSTM_CC_KERNELS_LSTM_CALL_H_
