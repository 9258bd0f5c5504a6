#include "cc/lstm/cuda/block/instantiations/instantiate.cuh"

namespace tfl::cuda::block {

const KernelSet* Bfloat16Blocks64() { return Sets<sm90::Bfloat16, 64>(); }

}  // namespace tfl::cuda::block
