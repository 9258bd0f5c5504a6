#include "cc/lstm/cuda/block/instantiations/instantiate.cuh"

namespace tfl::cuda::block {

const KernelSet* Bfloat16Blocks128() { return Sets<sm90::Bfloat16, 128>(); }

}  // namespace tfl::cuda::block
