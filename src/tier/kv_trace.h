// Recorded block selections of decoded rows, as a file: written while a model runs (--kv-trace), read
// by terrace sim. Little-endian 32-bit words.
//
//   header  "TKVT", version 1, sparse layers, block_tokens
//   record  step, layer (0-based among the sparse ones), sequence slot, position, n, n block numbers
//
// Block numbers are those of the pool, ascending by place in the sequence; the incomplete block that
// a row attends to as well comes last. Rows short enough to attend to everything are not recorded.
// One thread.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"

namespace terrace {

struct KvTraceRecord {
    uint32_t step = 0, layer = 0, sequence = 0, position = 0;
    std::vector<uint32_t> blocks;
};

struct KvTrace {
    uint32_t layers = 0, block_tokens = 0;
    std::vector<KvTraceRecord> records;
};

class KvTraceWriter {
  public:
    static Result<KvTraceWriter> create(const std::filesystem::path& file, uint32_t layers,
                                        uint32_t block_tokens);
    // Failures show in close().
    void add(const KvTraceRecord& record);
    Status close();

  private:
    struct CloseFile {
        void operator()(std::FILE* f) const { std::fclose(f); }
    };
    void put(std::span<const uint32_t> words);
    std::unique_ptr<std::FILE, CloseFile> file_;
    std::filesystem::path name_;
    bool failed_ = false;
};

// corrupt_data tells where the file stops making sense.
Result<KvTrace> read_kv_trace(const std::filesystem::path& file);

}  // namespace terrace
