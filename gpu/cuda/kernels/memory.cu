/* Writes words to device memory from the parameters of a launch, and computes checksums of device memory. */
#include "gpu/cuda/kernels/crc.h"
#include "gpu/cuda/kernels/device.h"

/* Grid: one block. */
KERNEL void __launch_bounds__(LAUNCH_THREADS) kvc_write_words(PARAMETER struct launch_write_words p)
{
    for (uint32_t i = threadIdx.x; i < p.n_words; i += LAUNCH_THREADS)
        p.to[i] = p.words[i];
}

/* Grid: one block. Sets each checksum to its start value, before any byte of
 * its payload; kvc_crc adds the rest. */
KERNEL void __launch_bounds__(LAUNCH_CRC_THREADS) kvc_crc_begin(PARAMETER struct launch_crc p)
{
    for (uint32_t i = threadIdx.x; i < p.n; i += LAUNCH_CRC_THREADS)
        p.crc32c[i] = p.begin;
}

/* Tables of s x^(32 LAUNCH_CRC_THREADS), by the four bytes of s, to shared [4][256]. Ends with a barrier. */
DEVICE void make_tables(const struct launch_crc *p, uint32_t *ret)
{
    uint32_t stride = crc_shift(CRC_ONE, LAUNCH_CRC_THREADS, p->powers);

    for (uint32_t i = threadIdx.x; i < 4 * 256; i += LAUNCH_CRC_THREADS)
        ret[i] = crc_product(stride, i % 256 << i / 256 * 8);
    __syncthreads();
}

/* Grid: (payloads, shares of one payload). Thread t of a block reads every LAUNCH_CRC_THREADS-th word, so
 * that a warp reads consecutive words, and skips the words of other threads with a table. Shares are
 * counted from their end: a share that is not a multiple is preceded by zeros, which change nothing. */
KERNEL void __launch_bounds__(LAUNCH_CRC_THREADS) kvc_crc(PARAMETER struct launch_crc p)
{
    uint32_t *tables = (uint32_t *) dynamic_shared, *sum = tables + 4 * 256, s = 0;
    uint64_t n_words = p.bytes / 4, share = (n_words + gridDim.y - 1) / gridDim.y, first = blockIdx.y * share;
    uint64_t end = first + share < n_words ? first + share : n_words, n_passes;
    const uint32_t *words = (const uint32_t *) p.payloads[blockIdx.x];

    if (first >= end)
        return;
    if (threadIdx.x == 0)
        *sum = 0;
    make_tables(&p, tables);
    n_passes = (end - first + LAUNCH_CRC_THREADS - 1) / LAUNCH_CRC_THREADS;
    for (uint64_t i = n_passes; i > 0; i--) {
        /* words from this one to the end, including it */
        uint64_t behind = i * LAUNCH_CRC_THREADS - threadIdx.x;

        s = tables[s & 255] ^ tables[256 + (s >> 8 & 255)] ^ tables[512 + (s >> 16 & 255)] ^
            tables[768 + (s >> 24)];
        s ^= behind <= end - first ? words[end - behind] : 0;
    }
    xor_into(sum, crc_shift(s, LAUNCH_CRC_THREADS - threadIdx.x, p.powers));
    __syncthreads();
    if (threadIdx.x == 0)
        xor_into(p.crc32c + blockIdx.x, crc_shift(*sum, n_words - end, p.powers));
}
