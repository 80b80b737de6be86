// Arguments of the operation on the hot-block mirror; see ops/args.h for what all share.
// SPDX-License-Identifier: MIT
#pragma once
#include "device/block_mirror.h"
#include "ops/args.h"

namespace terrace {

// Brings the blocks that rows are about to attend to into the layer's mirror: every block of their
// lists, and the incomplete block behind the last complete one. An absent block gets a spare slot
// while there are any, and its bytes are copied there from home; else it stays absent and is read at
// home. Several rows that ask for one block bring it once. The same call picks the spares of the next
// one (device/block_mirror.h). Changes no bit of what attend computes. Meant for decoded rows: a
// prefilled row's blocks would push out those of others.
//
// The first call on a layer's mirror in a step may pick spares while earlier operations of the step
// still run: whatever used the mirror before has been waited for by the step's upload.
enum class MirrorCall : uint8_t { first_of_step, later };
struct ResolveBlocksArgs {
    StepRows step;
    RowSource kv;  // of single blocks: slots are mirror.slots, group_shift is 0
    BlockMirror mirror;
    DevSpan<const int32_t> blocks;  // [rows][top], or empty: every complete block (dense)
    DevSpan<const int32_t> counts;  // [rows] or empty
    int32_t first_row = 0, rows = 0, top = 0;
    MirrorCall call = MirrorCall::later;
};

}  // namespace terrace
