// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include "io/json.h"
#include "io/safetensors.h"

namespace terrace {
namespace {

Error os_error(const std::filesystem::path& path, const char* what) {
    return Error{Code::io,
                 fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(errno))};
}

// A file under a temporary name that becomes `path` on commit and is removed otherwise.
class AtomicFile {
  public:
    explicit AtomicFile(std::filesystem::path path)
        : path_(std::move(path)), temp_(fmt::format("{}.{}.tmp", path_.string(), ::getpid())) {}
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;
    ~AtomicFile() {
        if (fd_ < 0) return;
        ::close(fd_);
        ::unlink(temp_.c_str());
    }

    Status open() {
        fd_ = ::open(temp_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (fd_ < 0) return os_error(temp_, "create");
        return {};
    }

    Status write(const void* data, size_t size) {
        const char* at = static_cast<const char*>(data);
        while (size > 0) {
            // One call writes at most 2^31 bytes on Linux.
            const ssize_t n = ::write(fd_, at, std::min<size_t>(size, size_t{1} << 30));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) return os_error(temp_, "write");
            at += n;
            size -= static_cast<size_t>(n);
        }
        return {};
    }

    // The data reaches the disk before the name does, and the name before this returns.
    Status commit() {
        if (::fsync(fd_) != 0) return os_error(temp_, "flush");
        if (::rename(temp_.c_str(), path_.c_str()) != 0)
            return os_error(path_, "rename the new file to");
        ::close(fd_);
        fd_ = -1;
        const auto parent =
            path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
        const int dir = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir >= 0) {
            ::fsync(dir);
            ::close(dir);
        }
        return {};
    }

  private:
    std::filesystem::path path_;
    std::filesystem::path temp_;
    int fd_ = -1;
};

Status check_source(const std::filesystem::path& path, const TensorSource& t) {
    uint64_t need = dtype_bytes(t.dtype);
    bool bad = t.name.empty() || t.name == "__metadata__";
    for (const int64_t n : t.shape)
        bad |= n < 0 || __builtin_mul_overflow(need, static_cast<uint64_t>(n), &need);
    if (bad || need != t.bytes.size())
        return Error{
            Code::invalid_argument,
            fmt::format("{}: cannot store tensor \"{}\" of {} from {} bytes", path.string(), t.name,
                        describe(t.dtype, t.shape), t.bytes.size())};
    return {};
}

}  // namespace

Status write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors,
                         const std::map<std::string, std::string>& metadata) {
    std::unordered_set<std::string_view> names;
    std::vector<const TensorSource*> order;
    for (const TensorSource& t : tensors) {
        TERRACE_TRY(check_source(path, t));
        if (!names.insert(t.name).second)
            return Error{Code::invalid_argument,
                         fmt::format("{}: tensor {} is given twice", path.string(), t.name)};
        order.push_back(&t);
    }
    std::sort(order.begin(), order.end(), [](const TensorSource* a, const TensorSource* b) {
        const size_t bytes_a = dtype_bytes(a->dtype), bytes_b = dtype_bytes(b->dtype);
        return bytes_a != bytes_b ? bytes_a > bytes_b : a < b;  // one array: the order given
    });

    std::string header = "{";
    if (!metadata.empty()) {
        header += "\"__metadata__\":{";
        for (const auto& [key, value] : metadata) {
            if (header.back() != '{') header += ',';
            header += quote_json(key) + ":" + quote_json(value);
        }
        header += '}';
    }
    uint64_t offset = 0;
    for (const TensorSource* t : order) {
        if (header.size() > 1) header += ',';
        header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                              quote_json(t->name), to_string(t->dtype), fmt::join(t->shape, ","),
                              offset, offset + t->bytes.size());
        offset += t->bytes.size();
    }
    header += '}';
    header.resize((header.size() + 7) / 8 * 8, ' ');
    if (header.size() > kMaxSafetensorsHeader)
        return Error{Code::invalid_argument,
                     fmt::format("{}: header of {} bytes, at most {}: split the tensors over files",
                                 path.string(), header.size(), kMaxSafetensorsHeader)};
    unsigned char length[8];
    for (size_t i = 0; i < 8; ++i)
        length[i] = static_cast<unsigned char>(static_cast<uint64_t>(header.size()) >> (8 * i));

    AtomicFile file(path);
    TERRACE_TRY(file.open());
    TERRACE_TRY(file.write(length, sizeof length));
    TERRACE_TRY(file.write(header.data(), header.size()));
    for (const TensorSource* t : order)
        TERRACE_TRY(file.write(t->bytes.data(), t->bytes.size()));
    return file.commit();
}

}  // namespace terrace
