// SPDX-License-Identifier: MIT
#include "io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

namespace terrace {
namespace {

Error os_error(const std::filesystem::path& path, const char* what) {
    const Code code = errno == ENOENT ? Code::not_found : Code::io;
    return Error{code, fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(errno))};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
    // O_NONBLOCK: opening a pipe by mistake must fail, not wait for its writer.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return os_error(path, "open");
    struct stat st{};
    std::optional<Error> refused;
    if (fstat(fd, &st) != 0) {
        refused = os_error(path, "examine");
    } else if (!S_ISREG(st.st_mode)) {
        refused = Error{Code::invalid_argument,
                        fmt::format("{}: is {}, need a file", path.string(),
                                    S_ISDIR(st.st_mode) ? "a directory" : "a device or a pipe")};
    }
    if (refused) {
        ::close(fd);
        return *std::move(refused);
    }
    MappedFile file;
    file.path_ = path;
    file.size_ = static_cast<size_t>(st.st_size);
    if (file.size_ > 0) {
        void* p = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            const Error e = os_error(path, "map");
            ::close(fd);
            file.size_ = 0;
            return e;
        }
        file.data_ = static_cast<const std::byte*>(p);
    }
    ::close(fd);
    return file;
}

MappedFile::~MappedFile() {
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::advise_random(size_t offset, size_t size) const {
    TERRACE_CHECK(offset <= size_ && size <= size_ - offset);
    if (size == 0) return;
    const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t first = offset / page * page;
    ::madvise(const_cast<std::byte*>(data_) + first, offset + size - first, MADV_RANDOM);
}

Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes) {
    TERRACE_ASSIGN(const MappedFile file, MappedFile::open(path));
    if (file.bytes().size() > max_bytes)
        return Error{Code::invalid_argument,
                     fmt::format("{}: has {} bytes, at most {} are read", path.string(),
                                 file.bytes().size(), max_bytes)};
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace terrace
