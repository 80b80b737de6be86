// SPDX-License-Identifier: MIT
#include "tier/ngram_table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "base/half.h"
#include "exl3/ngram_codec.h"

namespace terrace {

// One stored piece: rows_per_shard_ rows, the last piece may be shorter.
struct NgramTable::Shard {
    TensorView tensor;
    std::vector<std::byte> copy;  // placement ram
    int fd = -1;                  // placement pread

    Shard() = default;
    Shard(Shard&& o) noexcept : tensor(std::move(o.tensor)), copy(std::move(o.copy)), fd(o.fd) {
        o.fd = -1;
    }
    Shard& operator=(Shard&&) = delete;
    ~Shard() {
        if (fd >= 0) ::close(fd);
    }
};

NgramTable::NgramTable(NgramTable&&) noexcept = default;
NgramTable& NgramTable::operator=(NgramTable&& o) noexcept {
    if (this != &o) {
        this->~NgramTable();
        new (this) NgramTable(std::move(o));
    }
    return *this;
}
NgramTable::~NgramTable() = default;

namespace {

Result<std::vector<int64_t>> read_i64(const Checkpoint& checkpoint, const std::string& name,
                                      int64_t n) {
    TERRACE_ASSIGN(const TensorView view, checkpoint.require(name, {DType::i64}, {n}));
    std::vector<int64_t> values(static_cast<size_t>(n));
    std::memcpy(values.data(), view.data, view.bytes);
    return values;
}

Result<NgramHash> read_hash(const Checkpoint& checkpoint, const std::string& prefix,
                            const ModelConfig& config, int32_t ple_index) {
    NgramHash hash = NgramHash::derive(config, ple_index);
    const std::string codec = prefix + "ngram_embedding.";
    const auto read = [&](const char* own, const char* in_codec,
                          std::vector<int64_t>& to) -> Status {
        std::string name = prefix + own;
        if (!checkpoint.contains(name)) name = codec + in_codec;
        if (!checkpoint.contains(name)) return {};  // derived values stand
        TERRACE_ASSIGN(to, read_i64(checkpoint, name, static_cast<int64_t>(to.size())));
        return {};
    };
    TERRACE_TRY(read("layer_multipliers", "layer_multipliers", hash.multipliers));
    TERRACE_TRY(read("ngram_heads_vocab_sizes", "head_vocab_sizes", hash.primes));
    TERRACE_TRY(read("ngram_heads_offsets", "head_offsets", hash.offsets));
    for (size_t h = 0; h < hash.primes.size(); ++h)
        if (hash.primes[h] < 1 || hash.offsets[h] < 0 || hash.offsets[h] > INT64_MAX / 4 ||
            hash.primes[h] > INT64_MAX / 4)
            return Error{Code::corrupt_data,
                         fmt::format("{}: head {} has {} rows from {}: need positive sizes", prefix,
                                     h, hash.primes[h], hash.offsets[h])};
    for (const int64_t m : hash.multipliers)
        if (m < 0 || m > INT64_MAX / config.vocab)
            return Error{Code::corrupt_data,
                         fmt::format("{}layer_multipliers: {} overflows 63 bits with vocabulary {}",
                                     prefix, m, config.vocab)};
    return hash;
}

}  // namespace

Result<NgramTable> NgramTable::open(const Checkpoint& checkpoint, const std::string& prefix,
                                    const ModelConfig& config, int32_t ple_index,
                                    NgramPlacement placement, Budget& budget) {
    NgramTable table;
    table.placement_ = placement;
    table.row_values_ = config.ngram_head_dim();
    TERRACE_ASSIGN(table.hash_, read_hash(checkpoint, prefix, config, ple_index));

    const std::string base = prefix + "ngram_embedding.";
    // Names in order of preference: the codec, then plain rows; one tensor, then pieces.
    std::vector<std::string> names;
    for (const char* suffix : {"trellis", "weight"}) {
        if (!names.empty()) break;
        if (checkpoint.contains(base + suffix)) names.push_back(base + suffix);
        for (int i = 0; names.empty() || i > 0; ++i) {
            std::string name = fmt::format("{}shard_{}.{}", base, i, suffix);
            if (!checkpoint.contains(name)) break;
            names.push_back(std::move(name));
        }
    }
    if (names.empty())
        return checkpoint.require(base + "shard_0.weight").error().in("n-gram table");

    int64_t rows = 0, bytes = 0;
    for (size_t i = 0; i < names.size(); ++i) {
        Shard shard;
        TERRACE_ASSIGN(shard.tensor, checkpoint.require(names[i]));
        const TensorView& t = shard.tensor;
        const bool codec = t.dtype == DType::i16;
        const bool plain = t.dtype == DType::bf16 || t.dtype == DType::f16 || t.dtype == DType::f32;
        if (t.shape.size() != 2 || (!codec && !plain))
            return Error{Code::corrupt_data,
                         fmt::format("{}: {} is {}, need [rows, {}] of BF16, F16 or F32, or [rows, "
                                     "words] of I16",
                                     t.file->path().string(), t.name, describe(t.dtype, t.shape),
                                     table.row_values_)};
        if (i == 0) {
            table.dtype_ = t.dtype;
            table.rows_per_shard_ = t.shape[0];
            table.row_bytes_ = t.shape[1] * static_cast<int64_t>(dtype_bytes(t.dtype));
            if (codec) {
                // words = 1 + values * K / 16
                const int64_t k16 = (t.shape[1] - 1) * 16;
                const int64_t bits = k16 / table.row_values_;
                if (bits < 1 || bits > 8 || k16 % table.row_values_ != 0)
                    return Error{
                        Code::corrupt_data,
                        fmt::format("{}: {} has {} words a row: need 1 + {} K / 16, K 1..8",
                                    t.file->path().string(), t.name, t.shape[1],
                                    table.row_values_)};
                table.trellis_bits_ = static_cast<int32_t>(bits);
                if (Status s = check_ngram_shape(table.row_values_, table.trellis_bits_); !s)
                    return s.error().in(t.file->path().string() + ": " + t.name);
            } else if (t.shape[1] != table.row_values_) {
                return Error{
                    Code::corrupt_data,
                    fmt::format("{}: {} has rows of {}, config.json asks for {}",
                                t.file->path().string(), t.name, t.shape[1], table.row_values_)};
            }
        }
        const int64_t row_bytes = t.shape[1] * static_cast<int64_t>(dtype_bytes(t.dtype));
        const bool last = i + 1 == names.size();
        if (t.dtype != table.dtype_ || row_bytes != table.row_bytes_ ||
            (last ? t.shape[0] > table.rows_per_shard_ : t.shape[0] != table.rows_per_shard_))
            return Error{Code::corrupt_data,
                         fmt::format("{}: {} is {}, unlike the pieces before it ({} rows of {} "
                                     "bytes)",
                                     t.file->path().string(), t.name, describe(t.dtype, t.shape),
                                     table.rows_per_shard_, table.row_bytes_)};
        rows += t.shape[0];
        bytes += static_cast<int64_t>(t.bytes);
        table.shards_.push_back(std::move(shard));
    }
    for (size_t h = 0; h < table.hash_.primes.size(); ++h)
        if (table.hash_.offsets[h] + table.hash_.primes[h] > rows)
            return Error{
                Code::corrupt_data,
                fmt::format("{}: head {} needs row {}, the table ends after {} rows with {}: is "
                            "{} missing, or in a file that is?",
                            table.shards_.back().tensor.file->path().string(), h,
                            table.hash_.offsets[h] + table.hash_.primes[h] - 1, rows, names.back(),
                            fmt::format("{}shard_{}.*", base, names.size()))};
    if (table.trellis_bits_ > 0) {
        const int64_t heads = table.hash_.heads();
        TERRACE_ASSIGN(const TensorView bias, checkpoint.require(base + "head_bias", {DType::f16},
                                                                 {heads, table.row_values_}));
        table.head_bias_.resize(static_cast<size_t>(bias.elements()));
        std::memcpy(table.head_bias_.data(), bias.data, bias.bytes);
    }
    table.scratch_.resize(static_cast<size_t>(table.row_bytes_));
    if (placement == NgramPlacement::ram) {
        TERRACE_ASSIGN(table.charge_,
                       budget.reserve(Role::ngram, static_cast<size_t>(bytes), "n-gram table"));
    }
    for (Shard& shard : table.shards_) {
        const TensorView& t = shard.tensor;
        if (placement == NgramPlacement::ram) {
            try {
                shard.copy.assign(t.data, t.data + t.bytes);
            } catch (const std::bad_alloc&) {
                return Error{Code::out_of_memory,
                             fmt::format("n-gram table: {} needs {} bytes of memory, the system "
                                         "refused: leave the table on disk (--ngram mapped)",
                                         t.name, t.bytes)};
            }
        } else if (placement == NgramPlacement::pread) {
            shard.fd = ::open(t.file->path().c_str(), O_RDONLY | O_CLOEXEC);
            if (shard.fd < 0)
                return Error{Code::io, fmt::format("{}: cannot open: {}", t.file->path().string(),
                                                   std::strerror(errno))};
            // Rows are a few hundred bytes at random places: read-ahead would fetch 100x too much.
            ::posix_fadvise(shard.fd, 0, 0, POSIX_FADV_RANDOM);
        } else {
            t.file->advise_random(t.file_offset, t.bytes);
        }
    }
    return table;
}

Result<NgramTable> NgramTable::synthetic(const ModelConfig& config, int32_t ple_index,
                                         Budget& budget) {
    NgramTable table;
    table.placement_ = NgramPlacement::ram;
    table.row_values_ = config.ngram_head_dim();
    table.row_bytes_ = 2 * table.row_values_;
    table.hash_ = NgramHash::derive(config, ple_index);
    table.rows_per_shard_ = table.hash_.rows_used();
    table.scratch_.resize(static_cast<size_t>(table.row_bytes_));
    Shard shard;
    shard.tensor.bytes = static_cast<size_t>(table.rows_per_shard_ * table.row_bytes_);
    TERRACE_ASSIGN(table.charge_, budget.reserve(Role::ngram, shard.tensor.bytes, "n-gram table"));
    shard.copy.resize(shard.tensor.bytes);
    uint64_t state = 1;
    for (size_t i = 0; i < shard.copy.size(); i += 2) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const uint16_t bits =  // uniform in +-0.5
            f32_to_bf16(static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-32f);
        std::memcpy(&shard.copy[i], &bits, 2);
    }
    table.shards_.push_back(std::move(shard));
    return table;
}

int64_t NgramTable::bytes() const {
    int64_t sum = 0;
    for (const Shard& s : shards_)
        sum += static_cast<int64_t>(s.tensor.bytes);
    return sum;
}

Status NgramTable::gather(std::span<const int64_t> rows, float* out) {
    const size_t heads = static_cast<size_t>(hash_.heads());
    const auto width = static_cast<size_t>(row_values_);
    for (size_t i = 0; i < rows.size(); ++i, out += width) {
        const Shard& shard = shards_[static_cast<size_t>(rows[i] / rows_per_shard_)];
        const auto offset = static_cast<size_t>(rows[i] % rows_per_shard_ * row_bytes_);
        const auto bytes = static_cast<size_t>(row_bytes_);
        // One copy to an aligned place: rows in a file have any alignment.
        if (placement_ == NgramPlacement::pread) {
            const ssize_t got = ::pread(shard.fd, scratch_.data(), bytes,
                                        static_cast<off_t>(shard.tensor.file_offset + offset));
            if (got != static_cast<ssize_t>(bytes))
                return Error{
                    Code::io,
                    fmt::format("{}: {} row {}: read {} of {} bytes: {}",
                                shard.tensor.file->path().string(), shard.tensor.name, rows[i], got,
                                bytes, got < 0 ? std::strerror(errno) : "file cut short")};
        } else {
            const std::byte* from = shard.copy.empty() ? shard.tensor.data : shard.copy.data();
            std::memcpy(scratch_.data(), from + offset, bytes);
        }
        ++rows_read_;
        if (trellis_bits_ > 0) {
            decode_ngram_row(reinterpret_cast<const uint16_t*>(scratch_.data()), row_values_,
                             trellis_bits_, &head_bias_[i % heads * width], out);
        } else if (dtype_ == DType::f32) {
            std::memcpy(out, scratch_.data(), bytes);
        } else {
            for (size_t j = 0; j < width; ++j) {
                uint16_t bits;
                std::memcpy(&bits, scratch_.data() + 2 * j, 2);
                out[j] = dtype_ == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
            }
        }
    }
    return {};
}

}  // namespace terrace
