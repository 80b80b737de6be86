// SPDX-License-Identifier: MIT
#include "io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "io/json.h"

namespace terrace {
namespace dom = simdjson::dom;

namespace {

// {name: {shape: [..]}} is three levels; more than this is not a header.
constexpr size_t kMaxDepth = 16;
constexpr size_t kMaxRank = 16;

constexpr DType kDTypes[] = {DType::f32,     DType::f16,     DType::bf16,   DType::f64,
                             DType::i8,      DType::u8,      DType::i16,    DType::u16,
                             DType::i32,     DType::u32,     DType::i64,    DType::u64,
                             DType::boolean, DType::f8_e4m3, DType::f8_e5m2};

// Names come from the file: shortened and made printable before they reach a message.
std::string shown(std::string_view name) {
    constexpr size_t kMax = 160;
    std::string s(name.substr(0, kMax));
    for (char& c : s) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return name.size() > kMax ? s + "..." : s;
}

// The reader of one header; every method reports against the same file.
class HeaderReader {
  public:
    HeaderReader(uint64_t file_size, std::string_view where)
        : file_size_(file_size), where_(where) {}

    Result<SafetensorsHeader> read(std::span<const std::byte> head) {
        TERRACE_ASSIGN(const std::string_view text, locate(head));
        dom::parser parser;
        if (const auto e = parser.allocate(std::max<size_t>(text.size(), 64), kMaxDepth))
            return Error{Code::out_of_memory,
                         fmt::format("{}: {}", where_, simdjson::error_message(e))};
        const simdjson::padded_string padded(text);
        const auto parsed = parser.parse(padded);
        if (parsed.error() == simdjson::DEPTH_ERROR)
            return corrupt(fmt::format("header nested deeper than {} levels", kMaxDepth));
        if (parsed.error())
            return corrupt(
                fmt::format("header is not valid JSON ({}): not a safetensors file, or damaged",
                            simdjson::error_message(parsed.error())));
        dom::object root;
        if (parsed.get(root)) return corrupt("header is not a JSON object");
        bool has_metadata = false;
        for (const auto& field : root) {
            if (field.key == "__metadata__") {
                if (has_metadata) return corrupt("header has __metadata__ twice");
                has_metadata = true;
                TERRACE_TRY(read_metadata(field.value));
            } else {
                TERRACE_TRY(read_entry(field.key, field.value));
            }
        }
        TERRACE_TRY(check_overlap());
        TERRACE_TRY(sort_by_name());
        return std::move(header_);
    }

  private:
    Error corrupt(std::string_view problem) const {
        return Error{Code::corrupt_data, fmt::format("{}: {}", where_, problem)};
    }
    Error corrupt(std::string_view tensor, std::string_view problem) const {
        return corrupt(fmt::format("tensor {} {}", shown(tensor), problem));
    }

    Result<std::string_view> locate(std::span<const std::byte> head) {
        if (file_size_ < 8 || head.size() < 8)
            return corrupt(
                fmt::format("has {} bytes, a safetensors file has at least 8: truncated download?",
                            file_size_));
        uint64_t length = 0;
        for (size_t i = 8; i-- > 0;)
            length = length << 8 | std::to_integer<uint64_t>(head[i]);
        if (length > kMaxSafetensorsHeader)
            return corrupt(fmt::format(
                "header length is {}, at most {} are read: not a safetensors file, or damaged",
                length, kMaxSafetensorsHeader));
        if (length < 2) return corrupt(fmt::format("header length is {}, need at least 2", length));
        if (length > file_size_ - 8 || length > head.size() - 8)
            return corrupt(fmt::format("header ends at byte {}, file has {}: truncated download?",
                                       length + 8, std::min<uint64_t>(file_size_, head.size())));
        header_.data_begin = 8 + length;
        return std::string_view(reinterpret_cast<const char*>(head.data()) + 8,
                                static_cast<size_t>(length));
    }

    Status read_metadata(dom::element value) {
        dom::object map;
        if (value.get(map)) return corrupt("__metadata__ is not an object");
        for (const auto& field : map) {
            std::string_view text;
            if (field.value.get(text))
                return corrupt(fmt::format("__metadata__ {} is not a string", shown(field.key)));
            if (!header_.metadata.emplace(field.key, text).second)
                return corrupt(fmt::format("__metadata__ has {} twice", shown(field.key)));
        }
        return {};
    }

    Status read_entry(std::string_view name, dom::element value) {
        dom::object fields;
        if (value.get(fields)) return corrupt(name, "is not described by an object");
        TensorEntry t;
        std::string_view dtype;
        uint64_t offsets[2] = {0, 0};
        int seen_dtype = 0, seen_shape = 0, seen_offsets = 0;
        for (const auto& field : fields) {
            if (field.key == "dtype") {
                ++seen_dtype;
                if (field.value.get(dtype))
                    return corrupt(name, "has a dtype that is not a string");
            } else if (field.key == "shape") {
                ++seen_shape;
                TERRACE_TRY(read_shape(name, field.value, t.shape));
            } else if (field.key == "data_offsets") {
                ++seen_offsets;
                TERRACE_TRY(read_offsets(name, field.value, offsets));
            } else {
                return corrupt(name, fmt::format("has an unknown field {}", shown(field.key)));
            }
        }
        if (seen_dtype != 1 || seen_shape != 1 || seen_offsets != 1)
            return corrupt(name, "needs dtype, shape and data_offsets, each once");
        const auto type = dtype_from_string(dtype);
        if (!type)
            return Error{Code::unsupported,
                         fmt::format("{}: tensor {} has dtype {}, known are {}", where_,
                                     shown(name), shown(dtype), known_dtypes())};
        t.name = std::string(name);
        t.dtype = *type;
        TERRACE_TRY(place(t, offsets));
        header_.tensors.push_back(std::move(t));
        return {};
    }

    Status read_shape(std::string_view name, dom::element value,
                      std::vector<int64_t>& shape) const {
        dom::array dims;
        if (value.get(dims)) return corrupt(name, "has a shape that is not an array");
        for (dom::element dim : dims) {
            int64_t n = 0;
            if (dim.get(n) || n < 0)
                return corrupt(name, "has a shape with an entry that is not an integer >= 0");
            if (shape.size() == kMaxRank)
                return corrupt(name, fmt::format("has more than {} dimensions", kMaxRank));
            shape.push_back(n);
        }
        return {};
    }

    Status read_offsets(std::string_view name, dom::element value, uint64_t (&offsets)[2]) const {
        dom::array pair;
        size_t n = 0;
        if (value.get(pair)) return corrupt(name, "has data_offsets that are not an array");
        for (dom::element e : pair) {
            if (n == 2 || e.get(offsets[n]))
                return corrupt(name, "has data_offsets that are not two integers >= 0");
            ++n;
        }
        if (n != 2) return corrupt(name, "has data_offsets that are not two integers >= 0");
        return {};
    }

    // Bounds and size; offsets in the header count from the end of the header.
    Status place(TensorEntry& t, const uint64_t (&offsets)[2]) const {
        if (offsets[0] > offsets[1])
            return corrupt(t.name, fmt::format("has data_offsets [{}, {}], which run backwards",
                                               offsets[0], offsets[1]));
        uint64_t need = dtype_bytes(t.dtype);
        bool overflow = false;
        for (const int64_t n : t.shape)
            overflow |= __builtin_mul_overflow(need, static_cast<uint64_t>(n), &need);
        // A zero dimension makes any product zero, also one that overflowed on the way.
        if (std::find(t.shape.begin(), t.shape.end(), 0) != t.shape.end()) {
            need = 0;
            overflow = false;
        }
        if (overflow)
            return corrupt(
                t.name, fmt::format("of {} has more than 2^64 bytes", describe(t.dtype, t.shape)));
        if (offsets[1] - offsets[0] != need)
            return corrupt(t.name,
                           fmt::format("of {} needs {} bytes, its data_offsets span {}",
                                       describe(t.dtype, t.shape), need, offsets[1] - offsets[0]));
        if (offsets[1] > file_size_ - header_.data_begin) {
            uint64_t end = 0;
            if (__builtin_add_overflow(header_.data_begin, offsets[1], &end))
                return corrupt(t.name, fmt::format("has data_offsets up to {}", offsets[1]));
            return corrupt(t.name, fmt::format("ends at byte {}, file has {}: truncated download?",
                                               end, file_size_));
        }
        t.begin = header_.data_begin + offsets[0];
        t.end = header_.data_begin + offsets[1];
        return {};
    }

    Status check_overlap() {
        auto& all = header_.tensors;
        const auto by_offset = [](const TensorEntry& a, const TensorEntry& b) {
            return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
        };
        if (!std::is_sorted(all.begin(), all.end(), by_offset))
            std::sort(all.begin(), all.end(), by_offset);
        for (size_t i = 1; i < all.size(); ++i) {
            if (all[i].begin < all[i - 1].end)
                return corrupt(all[i].name,
                               fmt::format("starts at byte {}, inside tensor {} which ends at {}",
                                           all[i].begin, shown(all[i - 1].name), all[i - 1].end));
        }
        return {};
    }

    Status sort_by_name() {
        auto& all = header_.tensors;
        const auto by_name = [](const TensorEntry& a, const TensorEntry& b) {
            return a.name < b.name;
        };
        if (!std::is_sorted(all.begin(), all.end(), by_name))
            std::sort(all.begin(), all.end(), by_name);
        for (size_t i = 1; i < all.size(); ++i) {
            if (all[i].name == all[i - 1].name)
                return corrupt(all[i].name, "appears twice in the header");
        }
        return {};
    }

    static std::string known_dtypes() {
        std::vector<std::string_view> names;
        for (const DType t : kDTypes)
            names.push_back(to_string(t));
        return fmt::format("{}", fmt::join(names, ", "));
    }

    uint64_t file_size_;
    std::string_view where_;
    SafetensorsHeader header_;
};

}  // namespace

std::string describe(DType dtype, std::span<const int64_t> shape) {
    return fmt::format("{} [{}]", to_string(dtype), fmt::join(shape, ", "));
}

std::optional<DType> dtype_from_string(std::string_view name) {
    for (const DType t : kDTypes) {
        if (to_string(t) == name) return t;
    }
    return std::nullopt;
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> head,
                                                   uint64_t file_size, std::string_view where) try {
    return HeaderReader(file_size, where).read(head);
} catch (const std::bad_alloc&) {
    return Error{Code::out_of_memory, fmt::format("{}: no memory for the header", where)};
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
    TERRACE_ASSIGN(MappedFile mapped, MappedFile::open(path));
    SafetensorsFile out;
    out.file_ = std::make_shared<const MappedFile>(std::move(mapped));
    const std::span<const std::byte> bytes = out.file_->bytes();
    TERRACE_ASSIGN(SafetensorsHeader header,
                   parse_safetensors_header(bytes, bytes.size(), path.string()));
    out.metadata_ = std::move(header.metadata);
    out.tensors_.reserve(header.tensors.size());
    for (TensorEntry& t : header.tensors) {
        out.tensors_.push_back(
            TensorView{std::move(t.name), t.dtype, std::move(t.shape), bytes.data() + t.begin,
                       static_cast<size_t>(t.end - t.begin), t.begin, out.file_});
    }
    return out;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
    const auto it = std::lower_bound(
        tensors_.begin(), tensors_.end(), name,
        [](const TensorView& t, std::string_view key) { return std::string_view(t.name) < key; });
    return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

Result<TensorView> SafetensorsFile::require(std::string_view name) const {
    if (const TensorView* t = find(name)) return *t;
    return Error{Code::not_found, fmt::format("{}: has no tensor {} ({} tensors in the file)",
                                              path().string(), name, tensors_.size())};
}

}  // namespace terrace
