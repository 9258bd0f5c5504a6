// What the entry points demand of a call before anything runs.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_CHECK_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_CHECK_H_

#include "cc/lstm/lstm.h"

namespace tfl::cuda {

tfl_status CheckSpec(const tfl_lstm_spec& spec);
tfl_status CheckInputs(const tfl_lstm_spec& spec, const tfl_lstm_inputs& inputs);
tfl_status CheckOutputs(const tfl_lstm_spec& spec, const tfl_lstm_outputs& outputs);
tfl_status CheckSaved(const tfl_lstm_spec& spec, const tfl_lstm_saved& saved);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_CHECK_H_
