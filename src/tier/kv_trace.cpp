// SPDX-License-Identifier: MIT
#include "tier/kv_trace.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace terrace {
namespace {

constexpr uint32_t kMagic = 0x54564B54;  // "TKVT"
constexpr uint32_t kVersion = 1;
constexpr uint32_t kMostBlocks = 1 << 20;  // of a record: more is a broken file

Error io_error(const std::filesystem::path& file) {
    return Error{Code::io, fmt::format("{}: {}", file.string(), std::strerror(errno))};
}

}  // namespace

Result<KvTraceWriter> KvTraceWriter::create(const std::filesystem::path& file, uint32_t layers,
                                            uint32_t block_tokens) {
    KvTraceWriter w;
    w.file_.reset(std::fopen(file.c_str(), "wb"));
    if (!w.file_) return io_error(file);
    w.name_ = file;
    w.put(std::array{kMagic, kVersion, layers, block_tokens});
    return w;
}

void KvTraceWriter::put(std::span<const uint32_t> words) {
    if (words.empty()) return;
    failed_ |= std::fwrite(words.data(), 4, words.size(), file_.get()) != words.size();
}

void KvTraceWriter::add(const KvTraceRecord& r) {
    put(std::array{r.step, r.layer, r.sequence, r.position,
                   static_cast<uint32_t>(r.blocks.size())});
    put(r.blocks);
}

Status KvTraceWriter::close() {
    std::FILE* const f = file_.release();
    const bool closed = !f || std::fclose(f) == 0;
    if (closed && !failed_) return {};
    return io_error(name_);
}

Result<KvTrace> read_kv_trace(const std::filesystem::path& file) {
    const auto closer = [](std::FILE* f) { std::fclose(f); };
    const std::unique_ptr<std::FILE, decltype(closer)> f(std::fopen(file.c_str(), "rb"), closer);
    if (!f) return io_error(file);
    const auto bad = [&](const char* what, size_t record) {
        return Error{Code::corrupt_data,
                     fmt::format("{}: {} in record {}", file.string(), what, record)};
    };
    std::array<uint32_t, 4> head{};
    if (std::fread(head.data(), 4, 4, f.get()) != 4 || head[0] != kMagic)
        return Error{Code::corrupt_data,
                     fmt::format("{}: is no trace of block selections", file.string())};
    if (head[1] != kVersion)
        return Error{Code::unsupported,
                     fmt::format("{}: has version {}, need {}", file.string(), head[1], kVersion)};
    KvTrace trace;
    trace.layers = head[2];
    trace.block_tokens = head[3];
    for (std::array<uint32_t, 5> r{};;) {
        const size_t got = std::fread(r.data(), 4, 5, f.get());
        if (got == 0) return trace;
        if (got != 5) return bad("the file ends", trace.records.size());
        if (r[1] >= trace.layers || r[4] > kMostBlocks)
            return bad("a number is out of range", trace.records.size());
        KvTraceRecord record{r[0], r[1], r[2], r[3], std::vector<uint32_t>(r[4])};
        if (std::fread(record.blocks.data(), 4, r[4], f.get()) != r[4])
            return bad("the file ends", trace.records.size());
        trace.records.push_back(std::move(record));
    }
}

}  // namespace terrace
