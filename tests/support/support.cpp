// SPDX-License-Identifier: MIT
#include "support/support.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

namespace terrace::test {

TempDir::TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "terrace-test-XXXXXX").string();
    TERRACE_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
}

TempDir::~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

uint64_t Random::next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

double Random::normal() {
    const double u = 1.0 - uniform();
    const double v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * 3.14159265358979323846 * v);
}

std::vector<float> Random::normals(size_t n, float scale) {
    std::vector<float> out(n);
    for (float& x : out)
        x = static_cast<float>(normal()) * scale;
    return out;
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    TERRACE_CHECK(out.good());
}

}  // namespace terrace::test
