// SPDX-License-Identifier: MIT
#include "cpu/exl3_linear.h"

#include <algorithm>

#include "base/error.h"

namespace terrace {
namespace {

constexpr int kBlock = 128;

size_t round_up64(size_t n) {
    return (n + 63) / 64 * 64;
}

size_t act_bytes(const KernelTable& k, Activations form) {
    return form == Activations::int16 ? k.exl3.act_bytes_int16 : k.exl3.act_bytes_f32;
}

const uint16_t* f16_bits(const f16* p) {
    return reinterpret_cast<const uint16_t*>(p);
}

int column_blocks(const Exl3Tensor& w) {
    return w.out / kBlock;
}

}  // namespace

const char* exl3_path(const KernelTable& kernels, const Exl3Tensor& w, int rows, Activations form) {
    return effective_form(form, w.codebook) == Activations::int16
               ? kernels.exl3.path_int16(w.n16, rows)
               : kernels.exl3.path_f32(w.n16, rows);
}

size_t packed_rows_bytes(const KernelTable& kernels, Activations form, int rows, int in) {
    const size_t cells = static_cast<size_t>(rows) * static_cast<size_t>(in / kBlock);
    return cells * act_bytes(kernels, form) + round_up64(cells * sizeof(ActScale));
}

PackedRows place_rows(const KernelTable& kernels, Activations form, int rows, int in,
                      std::byte* memory) {
    TERRACE_DCHECK(reinterpret_cast<uintptr_t>(memory) % 64 == 0);
    const size_t cells = static_cast<size_t>(rows) * static_cast<size_t>(in / kBlock);
    return {.form = form,
            .rows = rows,
            .n_blocks = in / kBlock,
            .acts = memory,
            .scales = reinterpret_cast<ActScale*>(memory + cells * act_bytes(kernels, form))};
}

void pack_row(const KernelTable& kernels, const Exl3Tensor& w, const float* x, int in_valid,
              int row, int block_begin, int block_end, const PackedRows& packed) {
    TERRACE_DCHECK(w.in == packed.n_blocks * kBlock && row < packed.rows);
    const size_t bytes = act_bytes(kernels, packed.form);
    const auto transform = packed.form == Activations::int16 ? kernels.exl3.transform_int16
                                                             : kernels.exl3.transform_f32;
    for (int b = block_begin; b < block_end; ++b) {
        const size_t cell =
            static_cast<size_t>(b) * static_cast<size_t>(packed.rows) + static_cast<size_t>(row);
        transform({.x = x + b * kBlock,
                   .n_valid = std::clamp(in_valid - b * kBlock, 0, kBlock),
                   .suh = f16_bits(w.suh) + b * kBlock,
                   .act = packed.acts + cell * bytes,
                   .scale = packed.scales + cell});
    }
}

size_t column_scratch_bytes(int rows) {
    return static_cast<size_t>(std::min(rows, kExl3RowChunk)) * kBlock * sizeof(float);
}

void column_task(const KernelTable& kernels, const ColumnTask& task, std::byte* scratch) {
    const Exl3Tensor& w = *task.w;
    const PackedRows& x = *task.x;
    TERRACE_DCHECK(x.form == effective_form(x.form, w.codebook) && w.in == x.n_blocks * kBlock);
    TERRACE_DCHECK(task.column_block < column_blocks(w) && task.row_end <= x.rows);
    auto* sums = reinterpret_cast<float*>(scratch);
    const size_t bytes = act_bytes(kernels, x.form);
    const int column = task.column_block * kBlock;
    const int valid =
        std::clamp((task.n_out_valid > 0 ? task.n_out_valid : w.out) - column, 0, kBlock);
    for (int row = task.row_begin; row < task.row_end; row += kExl3RowChunk) {
        const int rows = std::min(kExl3RowChunk, task.row_end - row);
        const bool last = row + rows == task.row_end;
        const Exl3GemmArgs args{
            .trellis = w.tile(0, column / kTileSide),
            .row_tile_stride = static_cast<size_t>(w.col_tiles()) * static_cast<size_t>(w.n16),
            .n16 = w.n16,
            .codebook = static_cast<int>(w.codebook),
            .n_blocks = x.n_blocks,
            .rows = rows,
            .acts = x.acts + static_cast<size_t>(row) * bytes,
            .scales = x.scales + row,
            .act_stride = static_cast<size_t>(x.rows),
            .y = sums,
            // The kernel fetches with the shape of its own weight.
            .prefetch = last && task.next_w != nullptr && task.next_w->n16 == w.n16 &&
                                task.next_w->out == w.out
                            ? task.next_w->tile(0, task.next_column_block * (kBlock / kTileSide))
                            : nullptr};
        (x.form == Activations::int16 ? kernels.exl3.gemm_int16 : kernels.exl3.gemm_f32)(args);
        for (int r = 0; r < rows; ++r)
            kernels.exl3.finish(
                {.sums = sums + r * kBlock,
                 .svh = f16_bits(w.svh) + column,
                 .bias = task.bias != nullptr ? task.bias + column : nullptr,
                 .y = task.y + static_cast<size_t>(row - task.row_begin + r) * task.y_stride +
                      column,
                 .n_valid = valid});
    }
}

size_t exl3_scratch_bytes(const KernelTable& kernels, int n_threads, int rows,
                          std::span<const Exl3Job> jobs, Activations form) {
    const int pass = std::min(rows, kExl3PassRows);
    size_t total = round_up64(sizeof(PackedRows) * jobs.size());
    for (const Exl3Job& job : jobs)
        total += packed_rows_bytes(kernels, effective_form(form, job.w->codebook), pass, job.w->in);
    return total + static_cast<size_t>(n_threads) * column_scratch_bytes(pass);
}

void exl3_linear(const KernelTable& kernels, WorkerPool& pool, const float* x, size_t x_stride,
                 int rows, int in_valid, std::span<const Exl3Job> jobs, Activations form,
                 std::span<std::byte> scratch) {
    if (rows <= 0 || jobs.empty()) return;
    TERRACE_CHECK(scratch.size() >= exl3_scratch_bytes(kernels, pool.size(), rows, jobs, form));
    TERRACE_CHECK(reinterpret_cast<uintptr_t>(scratch.data()) % 64 == 0);
    const int n_jobs = static_cast<int>(jobs.size());
    const int in = jobs[0].w->in;
    const int n_blocks = in / kBlock;
    int columns = 0;
    for (const Exl3Job& job : jobs) {
        TERRACE_CHECK(job.w->in == in && in_valid <= in && job.n_out_valid <= job.w->out);
        columns += column_blocks(*job.w);
    }
    const int pass_rows = std::min(rows, kExl3PassRows);
    for (int first = 0; first < rows; first += pass_rows) {
        const int n = std::min(pass_rows, rows - first);
        auto* packed = reinterpret_cast<PackedRows*>(scratch.data());
        std::byte* memory = scratch.data() + round_up64(sizeof(PackedRows) * jobs.size());
        for (int j = 0; j < n_jobs; ++j) {
            const Activations f = effective_form(form, jobs[static_cast<size_t>(j)].w->codebook);
            packed[j] = place_rows(kernels, f, n, in, memory);
            memory += packed_rows_bytes(kernels, f, n, in);
        }
        // Item = (job, row, block); eight blocks at least, a smaller share is not worth a wake-up.
        pool.ranges(
            static_cast<int64_t>(n_jobs) * n * n_blocks, 8, [&](int64_t begin, int64_t end, int) {
                while (begin < end) {
                    const int block = static_cast<int>(begin % n_blocks);
                    const int64_t line = begin / n_blocks;
                    const int j = static_cast<int>(line / n);
                    const int row = static_cast<int>(line % n);
                    const int stop =
                        static_cast<int>(std::min<int64_t>(n_blocks, block + (end - begin)));
                    pack_row(kernels, *jobs[static_cast<size_t>(j)].w,
                             x + static_cast<size_t>(first + row) * x_stride, in_valid, row, block,
                             stop, packed[j]);
                    begin += stop - block;
                }
            });
        // Item = (job, column block, chunk of rows); chunks of a block are neighbours, so that its
        // tiles are read from memory once.
        const int chunks = (n + kExl3RowChunk - 1) / kExl3RowChunk;
        pool.ranges(
            static_cast<int64_t>(columns) * chunks, 1, [&](int64_t begin, int64_t end, int worker) {
                std::byte* sums =
                    memory + static_cast<size_t>(worker) * column_scratch_bytes(pass_rows);
                int j = 0;
                int64_t base = 0;  // items before job j
                for (int64_t item = begin; item < end; ++item) {
                    while (item >= base + static_cast<int64_t>(
                                              column_blocks(*jobs[static_cast<size_t>(j)].w)) *
                                              chunks)
                        base +=
                            static_cast<int64_t>(column_blocks(*jobs[static_cast<size_t>(j++)].w)) *
                            chunks;
                    const Exl3Job& job = jobs[static_cast<size_t>(j)];
                    const int column = static_cast<int>((item - base) / chunks);
                    const int chunk = static_cast<int>((item - base) % chunks);
                    const int row = chunk * kExl3RowChunk;
                    const bool more = item + 1 < end && column + 1 < column_blocks(*job.w);
                    column_task(kernels,
                                {.w = job.w,
                                 .column_block = column,
                                 .x = &packed[j],
                                 .row_begin = row,
                                 .row_end = std::min(n, row + kExl3RowChunk),
                                 .y = job.y + static_cast<size_t>(first + row) * job.y_stride,
                                 .y_stride = job.y_stride,
                                 .n_out_valid = job.n_out_valid,
                                 .bias = job.bias,
                                 .next_w = more && chunk + 1 == chunks ? job.w : nullptr,
                                 .next_column_block = column + 1},
                                sums);
                }
            });
    }
}

}  // namespace terrace
