// Safetensors files, read by memory map without copying: 8 bytes of little-endian header length, a
// JSON header {name: {dtype, shape, data_offsets}, "__metadata__": {string: string}}, then data.
// Any thread may read; a TensorView keeps its file mapped, so it may outlive the file object.
//
// TENSORS MAY HAVE ANY ALIGNMENT in the file, odd addresses included (EXL3 format 1.1): use the
// bytes through memcpy or copy them to an aligned buffer; never cast `data` to a wider type.
//
// Everything the header claims is checked before anything is handed out: lengths, dtypes, shapes
// (products without overflow), sizes, bounds, overlaps, duplicate names. Unclaimed bytes between or
// after tensors are tolerated: nothing reads them. Tensor contents are never looked at.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/types.h"
#include "io/mapped_file.h"

namespace terrace {

// Largest header read: an EXL3 checkpoint with 200,000 tensors needs about 30 MB.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

// One entry of a header. Offsets count from the start of the file.
struct TensorEntry {
    std::string name;
    DType dtype = DType::u8;
    std::vector<int64_t> shape;  // empty for a scalar
    uint64_t begin = 0;
    uint64_t end = 0;  // one past the last byte; end - begin = product(shape) * dtype_bytes(dtype)
};

struct SafetensorsHeader {
    std::vector<TensorEntry> tensors;  // ascending names, all different
    std::map<std::string, std::string> metadata;
    uint64_t data_begin = 0;
};

// Parses and checks a header from the first bytes of a file: `head` must hold the length and the
// whole header and may hold more; `file_size` is that of the whole file. `where` names the file.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> head,
                                                   uint64_t file_size, std::string_view where);

struct TensorView {
    std::string name;
    DType dtype = DType::u8;
    std::vector<int64_t> shape;       // row-major, outermost first; empty for a scalar
    const std::byte* data = nullptr;  // any alignment, see above
    size_t bytes = 0;
    uint64_t file_offset = 0;  // of data[0] in `file`, for readers that bypass the map
    std::shared_ptr<const MappedFile> file;

    int64_t elements() const { return static_cast<int64_t>(bytes / dtype_bytes(dtype)); }
    std::span<const std::byte> span() const { return {data, bytes}; }
};

// "BF16 [512, 128]", for messages and listings.
std::string describe(DType dtype, std::span<const int64_t> shape);
std::optional<DType> dtype_from_string(std::string_view name);  // "F32", "BF16", ...

class SafetensorsFile {
  public:
    static Result<SafetensorsFile> open(const std::filesystem::path& path);

    const std::filesystem::path& path() const { return file_->path(); }
    const std::map<std::string, std::string>& metadata() const { return metadata_; }

    // Ascending names. find: binary search, null when absent; require: else not_found.
    const std::vector<TensorView>& tensors() const { return tensors_; }
    const TensorView* find(std::string_view name) const;
    Result<TensorView> require(std::string_view name) const;

    // Moves the views out; the object is then empty.
    std::vector<TensorView> take_tensors() && { return std::move(tensors_); }

  private:
    std::shared_ptr<const MappedFile> file_;
    std::map<std::string, std::string> metadata_;
    std::vector<TensorView> tensors_;
};

// One tensor to write; `bytes` must stay valid until the write returns.
struct TensorSource {
    std::string name;
    DType dtype = DType::u8;
    std::vector<int64_t> shape;
    std::span<const std::byte> bytes;
};

// Writes a file that appears at `path` complete or not at all (temporary file beside it, fsync,
// rename). Tensors are stored by descending element size, then in the order given, and the header
// is padded with spaces to a multiple of 8: so every tensor is aligned to its own element. Errors:
// invalid_argument for a name twice or bytes that do not match dtype and shape; io.
Status write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace terrace
