// What the library of XLA's kernels offers to the op library.
#ifndef TF_FUSED_LSTM_CC_KERNELS_XLA_ON_DEMAND_H_
#define TF_FUSED_LSTM_CC_KERNELS_XLA_ON_DEMAND_H_

namespace tensorflow {
class OpKernel;
class OpKernelConstruction;
}  // namespace tensorflow

namespace tf_fused_lstm {

// The kernel of the op that is being constructed, FusedLSTM or FusedLSTMGrad.
using MakeXlaKernel = tensorflow::OpKernel*(tensorflow::OpKernelConstruction*);

constexpr char kMakeXlaKernel[] = "tf_fused_lstm_make_xla_kernel";

}  // namespace tf_fused_lstm

#endif  // TF_FUSED_LSTM_CC_KERNELS_XLA_ON_DEMAND_H_
