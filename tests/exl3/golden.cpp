// SPDX-License-Identifier: MIT
#include "exl3/golden.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"

namespace terrace::test {
namespace {

constexpr uint32_t kRoundConstants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void sha256_block(uint32_t h[8], const uint8_t* p) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i)
        w[i] = uint32_t{p[4 * i]} << 24 | uint32_t{p[4 * i + 1]} << 16 |
               uint32_t{p[4 * i + 2]} << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; ++i) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    uint32_t v[8];
    std::copy(h, h + 8, v);
    for (int i = 0; i < 64; ++i) {
        const uint32_t e = v[4], a = v[0];
        const uint32_t t1 = v[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                            ((e & v[5]) ^ (~e & v[6])) + kRoundConstants[i] + w[i];
        const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                            ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        for (int j = 7; j > 0; --j)
            v[j] = v[j - 1];
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; ++i)
        h[i] += v[i];
}

}  // namespace

std::string read_text(const std::string& name) {
    std::ifstream f(std::string(TERRACE_TEST_DATA) + "/" + name, std::ios::binary);
    TERRACE_CHECK(f.good());
    std::ostringstream s;
    s << f.rdbuf();
    return s.str();
}

GoldenFile read_golden(const std::string& name) {
    const std::string text = read_text(name);
    uint64_t header_bytes = 0;
    TERRACE_CHECK(text.size() > 8);
    std::memcpy(&header_bytes, text.data(), 8);
    TERRACE_CHECK(header_bytes < text.size() - 8);
    const auto header = nlohmann::json::parse(text.substr(8, header_bytes));
    GoldenFile out;
    for (const auto& [key, h] : header.items()) {
        if (key == "__metadata__") continue;
        const size_t begin = 8 + header_bytes + h["data_offsets"][0].get<size_t>();
        const size_t end = 8 + header_bytes + h["data_offsets"][1].get<size_t>();
        TERRACE_CHECK(begin <= end && end <= text.size());
        out[key] = GoldenTensor{h["dtype"], h["shape"].get<std::vector<int64_t>>(),
                                std::vector<uint8_t>(text.begin() + static_cast<int64_t>(begin),
                                                     text.begin() + static_cast<int64_t>(end))};
    }
    return out;
}

std::vector<uint8_t> from_hex(const std::string& hex) {
    std::vector<uint8_t> out;
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
        out.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
    return out;
}

std::vector<uint16_t> words_from_hex(const std::string& hex) {
    const std::vector<uint8_t> bytes = from_hex(hex);
    std::vector<uint16_t> out(bytes.size() / 2);
    for (size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8);
    return out;
}

std::string sha256_hex(const void* data, size_t n) {
    const auto* p = static_cast<const uint8_t*>(data);
    std::vector<uint8_t> message(p, p + n);
    message.push_back(0x80);
    while (message.size() % 64 != 56)
        message.push_back(0);
    for (int i = 7; i >= 0; --i)
        message.push_back(static_cast<uint8_t>(uint64_t{n} * 8 >> (8 * i)));
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    for (size_t i = 0; i < message.size(); i += 64)
        sha256_block(h, message.data() + i);
    std::string out;
    for (const uint32_t word : h)
        for (int i = 28; i >= 0; i -= 4)
            out += "0123456789abcdef"[(word >> i) & 15];
    return out;
}

Codebook codebook_named(const std::string& name) {
    for (const Codebook c : {Codebook::three_inst, Codebook::mcg, Codebook::mul1})
        if (to_string(c) == name) return c;
    check_failed("known codebook name", __FILE__, __LINE__, name);
}

}  // namespace terrace::test
