// From an op's attributes and inputs to the core's description of the call, for the op kernels and
// XLA's. The only place where arguments are checked.
#ifndef TF_FUSED_LSTM_CC_KERNELS_LSTM_CALL_H_
#define TF_FUSED_LSTM_CC_KERNELS_LSTM_CALL_H_

#include <string>
#include <vector>

#include "cc/kernels/lstm_stack.h"
#include "cc/lstm/lstm.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fused_lstm {

// What a node's attributes fix once for all its calls. A cell is one direction of a layer; lists
// hold one tensor a cell, the directions of a layer side by side.
class LstmCall {
 public:
  // Reports a bad attribute to `ctx`.
  explicit LstmCall(tensorflow::OpKernelConstruction* ctx);

  // Checks the inputs that forward and gradient share, then fills in the sizes and pointers.
  absl::Status Describe(tensorflow::OpKernelContext* ctx, StackSpec* spec,
                        std::vector<tfl_lstm_inputs>* inputs) const;

  // Likewise for FusedLSTMGrad's further inputs but the reserve.
  absl::Status DescribeSaved(tensorflow::OpKernelContext* ctx, const StackSpec& spec,
                             std::vector<tfl_lstm_saved>* saved) const;

  // As errors name the op's input `index`.
  std::string NameOfInput(tensorflow::OpKernelContext* ctx, int index) const;

 private:
  // The tensor of input `name` for a cell after its shape was found to be `wanted`, which `meaning`
  // spells; null where the list is empty.
  absl::Status Checked(tensorflow::OpKernelContext* ctx, const char* name, size_t cell,
                       const char* meaning, const tensorflow::TensorShape& wanted,
                       const void** data) const;
  absl::Status CheckedMasks(tensorflow::OpKernelContext* ctx, const char* name, size_t cell,
                            int64_t batch, int64_t width, uint8_t* count, const void** data) const;
  absl::Status DescribeLayer(tensorflow::OpKernelContext* ctx, size_t layer, int64_t input_size,
                             tfl_lstm_spec* spec, tfl_lstm_inputs* inputs) const;

  // "kernel", or "kernel[2]" where there are several cells.
  std::string Named(const char* name, size_t cell) const;

  tfl_lstm_spec spec_ = {};
  size_t cells_ = 1;
  bool return_sequences_ = true;  // of the last layer
};

tensorflow::TensorShape RowsShape(const tfl_lstm_spec& spec, int64_t last);
// The output of a layer: the op's if it is the last.
tensorflow::TensorShape OutputShape(const tfl_lstm_spec& spec);
tensorflow::TensorShape StateShape(const tfl_lstm_spec& spec);

// Whether FusedLSTMGrad's reserve holds what FusedLSTM kept, or is empty; no other shape is valid.
absl::Status CheckReserve(const tensorflow::TensorShape& shape, const StackPlan& plan, bool* keeps);

absl::Status ToStatus(const tfl_status& status);

// How many threads of TensorFlow's pool take part in a call. More than there are cores for the
// caller to run on would wait for each other at every step.
int ThreadsOf(const tensorflow::DeviceBase::CpuWorkerThreads& pool);

}  // namespace tf_fused_lstm

#endif  // TF_FUSED_LSTM_CC_KERNELS_LSTM_CALL_H_
