// A read-only memory map of a whole file. Move-only; the bytes live as long as the object. The file
// must not shrink while mapped: a truncated file is refused at open, not found later.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

#include "base/error.h"

namespace terrace {

class MappedFile {
  public:
    static Result<MappedFile> open(const std::filesystem::path& path);

    MappedFile() = default;
    MappedFile(MappedFile&& other) noexcept { swap(other); }
    MappedFile& operator=(MappedFile&& other) noexcept {
        MappedFile moved(std::move(other));
        swap(moved);
        return *this;
    }
    ~MappedFile();

    std::span<const std::byte> bytes() const { return {data_, size_}; }
    const std::filesystem::path& path() const { return path_; }

    // Tells the kernel that [offset, offset + size) will be read at random (n-gram rows).
    void advise_random(size_t offset, size_t size) const;

  private:
    void swap(MappedFile& o) noexcept {
        std::swap(data_, o.data_);
        std::swap(size_, o.size_);
        std::swap(path_, o.path_);
    }
    const std::byte* data_ = nullptr;
    size_t size_ = 0;
    std::filesystem::path path_;
};

// The whole file as text, at most `max_bytes`.
Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes);

}  // namespace terrace
