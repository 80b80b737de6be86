// SPDX-License-Identifier: MIT
#include "exl3/encode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "exl3/decode.h"
#include "exl3/hadamard.h"
#include "exl3/pack.h"
#include "exl3/viterbi.h"

namespace terrace {
namespace {

// RMS that the regularised matrix is brought to, for every codebook; the global scale absorbs the
// rest (EXL3 format 5.3).
constexpr double kCodebookRms = 1.24371088;

// Tiles in the scale search; more move g by less than the flat part of its minimum is wide.
constexpr int kMaxSample = 48;

constexpr uint64_t kInputSigns = 0x243f6a8885a308d3u;  // streams of one seed
constexpr uint64_t kOutputSigns = 0x13198a2e03707344u;

// SplitMix64 finaliser of a counter: sign i does not depend on how many signs are drawn.
float random_sign(uint64_t seed, uint64_t stream, int i) {
    uint64_t v = seed + stream + 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(i) + 1);
    v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9u;
    v = (v ^ (v >> 27)) * 0x94d049bb133111ebu;
    return (v ^ (v >> 31)) & 1 ? -1.0f : 1.0f;
}

struct Matrix {
    int in;
    int out;
    std::vector<float> v;  // [in][out]

    float* row(int r) { return v.data() + static_cast<size_t>(r) * static_cast<size_t>(out); }
    const float* row(int r) const {
        return v.data() + static_cast<size_t>(r) * static_cast<size_t>(out);
    }
};

void hadamard_along_out(Matrix& m, WorkerPool& pool) {
    pool.ranges(m.in, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r)
            for (int c = 0; c < m.out; c += kHadamardSize)
                fwht128(m.row(static_cast<int>(r)) + c);
    });
}

// Whole rows are the elements of the butterflies: contiguous in memory.
void hadamard_along_in(Matrix& m, WorkerPool& pool) {
    pool.ranges(m.in / kHadamardSize, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t block = begin; block < end; ++block) {
            const int first = static_cast<int>(block) * kHadamardSize;
            for (int stride = 1; stride < kHadamardSize; stride *= 2)
                for (int i = 0; i < kHadamardSize; ++i) {
                    if (i & stride) continue;
                    float* const a = m.row(first + i);
                    float* const b = m.row(first + i + stride);
                    for (int c = 0; c < m.out; ++c) {
                        const float sum = a[c] + b[c];
                        b[c] = a[c] - b[c];
                        a[c] = sum;
                    }
                }
            for (int i = 0; i < kHadamardSize; ++i)
                for (int c = 0; c < m.out; ++c)
                    m.row(first + i)[c] *= kHadamardScale;
        }
    });
}

// Row r is multiplied by factor[r]; zero kills the row exactly.
void scale_rows(Matrix& m, const std::vector<float>& factor) {
    for (int r = 0; r < m.in; ++r)
        for (int c = 0; c < m.out; ++c)
            m.row(r)[c] *= factor[static_cast<size_t>(r)];
}

void load_tile(const Matrix& m, int a, int b, float scale, float target[kTileWeights]) {
    for (int t = 0; t < kTileWeights; ++t)
        target[t] = scale * m.row(kTileSide * a + tile_row(t))[kTileSide * b + tile_col(t)];
}

struct TileAt {
    int a, b;
};

// A three-wide wrapped diagonal of the tile grid and the tiles of lowest and highest RMS, thinned
// evenly to kMaxSample.
std::vector<TileAt> sample_tiles(const Matrix& m) {
    const int rows = m.in / kTileSide, cols = m.out / kTileSide;
    std::vector<TileAt> diagonal;
    for (int i = 0; i < std::max(rows, cols); ++i)
        for (int wide = 0; wide < 3; ++wide)
            diagonal.push_back({i % rows, (i + wide) % cols});
    std::vector<TileAt> sample;
    const auto n = static_cast<int64_t>(diagonal.size());
    const int64_t keep = std::min<int64_t>(n, kMaxSample);
    for (int64_t i = 0; i < keep; ++i)
        sample.push_back(diagonal[static_cast<size_t>(i * n / keep)]);
    TileAt low{0, 0}, high{0, 0};
    double low_power = INFINITY, high_power = -1;
    for (int a = 0; a < rows; ++a)
        for (int b = 0; b < cols; ++b) {
            double power = 0;
            for (int r = 0; r < kTileSide; ++r)
                for (int c = 0; c < kTileSide; ++c) {
                    const double v =
                        static_cast<double>(m.row(kTileSide * a + r)[kTileSide * b + c]);
                    power += v * v;
                }
            if (power < low_power) low_power = power, low = {a, b};
            if (power > high_power) high_power = power, high = {a, b};
        }
    sample.push_back(low);
    sample.push_back(high);
    return sample;
}

// From `start`, the local minimum of error(i) in low..high that going down from there leads to;
// asks for each i once.
int walk_downhill(int low, int start, int high, FunctionRef<double(int)> error) {
    int best = start;
    double best_error = error(start);
    for (const int direction : {-1, 1}) {
        for (int i = best + direction; i >= low && i <= high; i += direction) {
            const double e = error(i);
            if (e >= best_error) break;
            best = i;
            best_error = e;
        }
        if (best != start) break;
    }
    return best;
}

class Encoder {
  public:
    Encoder(const EncodeOptions& options, WorkerPool& pool)
        : pool_(pool), tables_(options.n16, options.codebook) {
        const uint16_t* const code = code_table(options.codebook);
        for (int i = 0; i < 65536; ++i)
            largest_code_ = std::max(largest_code_, f16_to_f32(code[i]));
        for (int i = 0; i < pool.size(); ++i)
            searches_.emplace_back(tables_, kTileWeights);
    }

    float search_scale(const Matrix& m);
    void encode_tiles(const Matrix& m, uint16_t* trellis);

  private:
    // Mean squared error, in units of the unscaled matrix, of every third (or every) sample tile.
    double sample_error(const Matrix& m, const std::vector<TileAt>& sample, int every, float g);
    double whole_error(const Matrix& m, const std::vector<TileAt>& sample, float g);

    WorkerPool& pool_;
    SearchTables tables_;
    float largest_code_ = 0.0f;         // on the side where the codebook ends first
    std::vector<TileSearch> searches_;  // one per worker
};

double Encoder::sample_error(const Matrix& m, const std::vector<TileAt>& sample, int every,
                             float g) {
    const int64_t n = (static_cast<int64_t>(sample.size()) + every - 1) / every;
    std::vector<float> errors(static_cast<size_t>(n));
    pool_.ranges(n, 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t i = begin; i < end; ++i) {
            const TileAt at = sample[static_cast<size_t>(i * every)];
            float target[kTileWeights];
            uint16_t states[kTileWeights];
            load_tile(m, at.a, at.b, g, target);
            errors[static_cast<size_t>(i)] =
                searches_[static_cast<size_t>(worker)].encode(target, states);
        }
    });
    double sum = 0;  // in sample order, so that the number of workers does not matter
    for (const float e : errors)
        sum += static_cast<double>(e);
    return sum / static_cast<double>(n * kTileWeights) /
           (static_cast<double>(g) * static_cast<double>(g));
}

// What clipping alone costs: squared distance beyond the largest code value, in units of the
// unscaled value.
double clip_error(float v, float limit) {
    const double beyond = static_cast<double>(std::fabs(v)) - static_cast<double>(limit);
    return beyond > 0 ? beyond * beyond : 0.0;
}

// Rare values beyond the codebook's range dominate the error at 7 and 8 bits, and a sample holds
// too few of them. So the sample's own clipping error is replaced by that of the whole matrix.
double Encoder::whole_error(const Matrix& m, const std::vector<TileAt>& sample, float g) {
    const float limit = largest_code_ / g;
    double in_sample = 0;
    for (const TileAt at : sample) {
        float tile[kTileWeights];
        load_tile(m, at.a, at.b, 1.0f, tile);
        for (const float v : tile)
            in_sample += clip_error(v, limit);
    }
    std::vector<double> rows(static_cast<size_t>(m.in));
    pool_.ranges(m.in, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r)
            for (int c = 0; c < m.out; ++c)
                rows[static_cast<size_t>(r)] += clip_error(m.row(static_cast<int>(r))[c], limit);
    });
    double everywhere = 0;
    for (const double e : rows)
        everywhere += e;
    return sample_error(m, sample, 1, g) -
           in_sample / static_cast<double>(sample.size() * kTileWeights) +
           everywhere / static_cast<double>(m.v.size());
}

// Coarse: scales 0.1, 0.3 .. 1.9 on a third of the sample, downhill from 0.9. Fine: steps of 0.075
// on all of it until the minimum is bracketed, then of half that; last, the parabola through three
// points.
float Encoder::search_scale(const Matrix& m) {
    const std::vector<TileAt> sample = sample_tiles(m);
    const auto coarse = [](int i) { return 0.1f + 0.2f * static_cast<float>(i); };
    const int best =
        walk_downhill(0, 4, 9, [&](int i) { return sample_error(m, sample, 3, coarse(i)); });
    // Fine scale i is i * 0.0375; never zero, and twice the largest coarse one at most.
    constexpr float kFine = 0.0375f;
    std::map<int, double> known;
    const auto error = [&](int i) {
        const auto [at, fresh] = known.try_emplace(i, 0.0);
        if (fresh) at->second = whole_error(m, sample, kFine * static_cast<float>(i));
        return at->second;
    };
    const int start = static_cast<int>(std::lround(coarse(best) / kFine)) / 2;
    int lowest = 2 * walk_downhill(1, std::max(1, start), 50, [&](int i) { return error(2 * i); });
    lowest = walk_downhill(std::max(2, lowest - 1), lowest, lowest + 1, error);
    const double left = error(lowest - 1), right = error(lowest + 1);
    const double curvature = left - 2 * error(lowest) + right;
    const double shift = curvature > 0 ? 0.5 * (left - right) / curvature : 0.0;
    return kFine * static_cast<float>(lowest + std::clamp(shift, -0.5, 0.5));
}

void Encoder::encode_tiles(const Matrix& m, uint16_t* trellis) {
    const int64_t cols = m.out / kTileSide;
    const int n16 = tables_.n16();
    pool_.ranges(m.in / kTileSide * cols, 1, [&](int64_t begin, int64_t end, int worker) {
        for (int64_t i = begin; i < end; ++i) {
            float target[kTileWeights];
            uint16_t states[kTileWeights];
            load_tile(m, static_cast<int>(i / cols), static_cast<int>(i % cols), 1.0f, target);
            searches_[static_cast<size_t>(worker)].encode(target, states);
            pack_states(states, n16, trellis + i * n16);
        }
    });
}

Status check_input(const float* w, int in, int out, const EncodeOptions& options) {
    if (in <= 0 || out <= 0 || in % 128 || out % 128)
        return Error{
            Code::invalid_argument,
            fmt::format("EXL3 encoder: {} x {} weights; both sizes must be positive multiples "
                        "of 128, pad with zeros",
                        in, out)};
    if (!legal_n16(options.n16, options.codebook))
        return Error{
            Code::invalid_argument,
            fmt::format("EXL3 encoder: {} bits per weight with codebook {}; legal are whole "
                        "bits 1..8, and with mul1 also halves between them",
                        options.n16 / 16.0, to_string(options.codebook))};
    if (!(options.g_scale >= 0.0f) || !std::isfinite(options.g_scale))
        return Error{Code::invalid_argument,
                     fmt::format("EXL3 encoder: global scale {}; give a positive number, or 0 to "
                                 "search for it",
                                 options.g_scale)};
    for (int r = 0; r < in; ++r)
        for (int c = 0; c < out; ++c) {
            const float v =
                w[static_cast<size_t>(r) * static_cast<size_t>(out) + static_cast<size_t>(c)];
            if (!std::isfinite(v))
                return Error{
                    Code::invalid_argument,
                    fmt::format("EXL3 encoder: weight [{}][{}] is {}; every weight must be "
                                "finite",
                                r, c, v)};
        }
    return {};
}

Error too_large(std::string_view what, int index, double value) {
    return Error{
        Code::invalid_argument,
        fmt::format("EXL3 encoder: scale of {} {} would be {:.3g}, fp16 ends at 65504; divide "
                    "the weights by a constant",
                    what, index, value)};
}

// svh: random sign times column RMS relative to their mean; 0 for columns that are zero or too
// small for fp16.
Status column_scales(const Matrix& m, uint64_t seed, std::vector<f16>& svh) {
    std::vector<double> rms(static_cast<size_t>(m.out));
    for (int r = 0; r < m.in; ++r)
        for (int c = 0; c < m.out; ++c) {
            const double v = static_cast<double>(m.row(r)[c]);
            rms[static_cast<size_t>(c)] += v * v;
        }
    double mean = 0;
    for (double& v : rms) {
        v = std::sqrt(v / m.in);
        mean += v / m.out;
    }
    svh.resize(rms.size());
    for (int c = 0; c < m.out; ++c) {
        const auto i = static_cast<size_t>(c);
        const double relative = mean > 0 ? rms[i] / mean : 0.0;
        if (relative >= 65520) return too_large("column", c, relative);
        svh[i] = f16::from(static_cast<float>(relative) * random_sign(seed, kOutputSigns, c));
    }
    return {};
}

float inverse(f16 v) {
    return v.f32() == 0.0f ? 0.0f : 1.0f / v.f32();
}

}  // namespace

Result<EncodedLinear> encode_linear(const float* w, int in, int out, const EncodeOptions& options,
                                    WorkerPool& pool) {
    TERRACE_TRY(check_input(w, in, out, options));
    EncodedLinear e{.in = in, .out = out, .n16 = options.n16, .codebook = options.codebook};
    Matrix m{in, out,
             std::vector<float>(w, w + static_cast<size_t>(in) * static_cast<size_t>(out))};

    // Scales are rounded to fp16 before the matrix is divided by them, so that the rounding is
    // absorbed by the codes instead of adding to their error.
    TERRACE_TRY(column_scales(m, options.seed, e.svh));
    for (int c = 0; c < out; ++c) {
        const float factor = inverse(e.svh[static_cast<size_t>(c)]);
        for (int r = 0; r < in; ++r)
            m.row(r)[c] *= factor;
    }
    hadamard_along_out(m, pool);

    std::vector<double> su(static_cast<size_t>(in));  // row scales before the global one
    std::vector<float> factor(static_cast<size_t>(in));
    for (int r = 0; r < in; ++r) {
        double power = 0;
        for (int c = 0; c < out; ++c) {
            const double v = static_cast<double>(m.row(r)[c]);
            power += v * v;
        }
        const auto i = static_cast<size_t>(r);
        su[i] = std::sqrt(power / out) / kCodebookRms *
                static_cast<double>(random_sign(options.seed, kInputSigns, r));
        if (!(std::fabs(su[i]) < 65520)) return too_large("row", r, su[i]);
        // Below this the stored scale will be zero whatever g is.
        factor[i] = std::fabs(su[i]) < 1e-9 ? 0.0f : static_cast<float>(1.0 / su[i]);
    }

    Encoder encoder(options, pool);
    const bool nothing =
        std::all_of(factor.begin(), factor.end(), [](float f) { return f == 0.0f; });
    e.g_scale = nothing ? 1.0f : options.g_scale;
    if (e.g_scale == 0.0f) {
        Matrix regular = m;
        scale_rows(regular, factor);
        hadamard_along_in(regular, pool);
        e.g_scale = encoder.search_scale(regular);
    }
    e.suh.resize(static_cast<size_t>(in));
    for (int r = 0; r < in; ++r) {
        const auto i = static_cast<size_t>(r);
        const double scale = su[i] / static_cast<double>(e.g_scale);
        if (std::fabs(scale) >= 65520) return too_large("row", r, scale);
        e.suh[i] = f16::from(static_cast<float>(scale));
        factor[i] = inverse(e.suh[i]);
    }
    scale_rows(m, factor);
    hadamard_along_in(m, pool);
    e.trellis.resize(m.v.size() / kTileWeights * static_cast<size_t>(e.n16));
    encoder.encode_tiles(m, e.trellis.data());
    return e;
}

}  // namespace terrace
