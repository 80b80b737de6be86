// resolve_blocks on the host: rows ask for their blocks in order, absent ones are copied.
// SPDX-License-Identifier: MIT
#include <cstring>

#include "ops/mirror_args.h"
#include "ops/ops.h"

namespace terrace {

Status resolve_blocks_on_host(const ResolveBlocksArgs& a) {
    const int32_t bt = a.kv.block_tokens;
    const size_t bytes = 2 * a.kv.half_extent_bytes();
    for (int32_t r = 0; r < a.rows; ++r) {
        const int32_t row = a.first_row + r;
        const SeqRows& seq = a.step.seqs.device_pointer()[a.step.row_seq.device_pointer()[row]];
        const int32_t* table = a.step.block_tables.device_pointer() + seq.table_offset;
        const int32_t end = seq.pos0 + row - seq.row0 + 1, complete = end / bt;
        const auto ask = [&](int32_t block) {
            const int32_t page = table[block * bt / kPageTokens];
            const int32_t in_page = block * bt % kPageTokens / bt;
            const AskedBlock asked = ask_block(a.mirror, a.kv.number(page, in_page));
            if (asked.what == Asked::copy)
                std::memcpy(a.kv.mirror + static_cast<size_t>(asked.slot) * bytes,
                            a.kv.home(page, in_page), bytes);
        };
        const int32_t n = a.counts.empty() ? complete : a.counts.device_pointer()[r];
        for (int32_t i = 0; i < n; ++i)
            ask(a.blocks.empty() ? i : a.blocks.device_pointer()[int64_t{r} * a.top + i]);
        if (end % bt != 0) ask(complete);
    }
    end_epoch(a.mirror, a.rows);
    return {};
}

}  // namespace terrace
