// One layer's K/V planes with random bytes and a mirror of them on any backend: rows ask for blocks,
// and check() holds the tables and every published slot to what device/block_mirror.h promises. Test
// thread only.
// SPDX-License-Identifier: MIT
#pragma once
#include <vector>

#include "ops/mirror_args.h"
#include "support/op_cases.h"

namespace terrace::test {

class MirrorRig {
  public:
    struct Shape {
        int32_t slots = 64, pages = 8, top = 16;
        int32_t kv_heads = 2, head_dim = 16, block_tokens = 4;
    };
    MirrorRig(Rig& rig, const Shape& shape, uint64_t seed);
    ~MirrorRig() { rig_.forget_buffers(); }

    // A row at position `pos` of a sequence on these physical pages. Its list, or with `dense` all
    // complete blocks.
    struct Row {
        std::vector<int32_t> pages;
        int32_t pos = 0;
        std::vector<int32_t> blocks;
    };
    enum class Lists { given, dense };
    // What a call of these rows is, for calls that are captured.
    ResolveBlocksArgs args(const std::vector<Row>& rows, Lists lists);
    void resolve(const std::vector<Row>& rows, Lists lists = Lists::given);

    // New bytes at home of a page, and its blocks forgotten.
    void rewrite_page(int32_t page);
    // Only the first, as nobody may.
    void rewrite_page_behind(int32_t page);

    // Fails the test where a table or a byte is wrong.
    void check(const std::string& what);
    bool contents_are_right();

    MirrorCall call = MirrorCall::later;  // of the next calls
    MirrorHead head();
    void set_epoch(uint32_t epoch);
    // By block number: its slot, or below zero.
    std::vector<int32_t> slots();
    int32_t number(const Row& row, int32_t block) const;

  private:
    size_t extent() const { return 2 * kv_.half_extent_bytes(); }

    Rig& rig_;
    Shape shape_;
    Random random_;
    RowSource kv_;
    BlockMirror mirror_;
    std::vector<SeqRows> host_seqs_;
};

// n different blocks below `end`, ascending.
std::vector<int32_t> some_blocks(Random& random, int32_t n, int32_t end);

}  // namespace terrace::test
