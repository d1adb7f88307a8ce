/* Loads and launches kernels; see kernels.h. */
#include "gpu/cuda/kernels.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "gpu/cuda/kernels/crc.h"
#include "gpu/cuda/module.h"
#include "gpu/cuda/device_table.h"
#include "gpu/cuda/select.h"

enum {
    SOME_BLOCKS = 2, /* of attention on a multiprocessor, for the general kernels */
    DECODE_16_COMPUTE = 80,
    CRC_SHARE_BYTES = 128 << 10,
    CRC_SHARES_MAX = 256,
    CRC_SHARED_BYTES = (4 * 256 + 1) * sizeof(uint32_t),
};

/* All kernels, those of attention first, in the order of enum attend_kernel. */
enum {
    LAST_OF_ATTENTION = ATTEND_COUNT - 1,
#define KERNEL_NUMBER(kernel, parameters) number_of_##kernel,
    MERGE_KERNELS(KERNEL_NUMBER) APPEND_KERNELS(KERNEL_NUMBER) READ_KERNELS(KERNEL_NUMBER)
        STAGED_KERNELS(KERNEL_NUMBER) MEMORY_KERNELS(KERNEL_NUMBER)
#undef KERNEL_NUMBER
            FIRST_OF_80, /* in the order of enum attend_80_kernel */
    N_KERNELS = FIRST_OF_80 + ATTEND_80_COUNT
};

/* The images to load. An image has the kernels from @first to the first kernel of the next image. */
static const struct {
    const struct cuda_image *image;
    unsigned first;
} images[] = {
    {&cuda_image_attend, 0},
    {&cuda_image_append, number_of_kvc_pack_keys},
    {&cuda_image_read, number_of_kvc_read},
    {&cuda_image_staged, number_of_kvc_store_rows},
    {&cuda_image_memory, number_of_kvc_write_words},
    {&cuda_image_attend_80, FIRST_OF_80},
};

enum { N_IMAGES = sizeof(images) / sizeof(images[0]) };

struct cuda_kernels {
    struct cuda_space *space;
    int compute;
    struct cuda_module modules[N_IMAGES];
    struct cuda_kernel kernels[N_KERNELS];
};

struct cuda_kernels *cuda_kernels_free(struct cuda_kernels *k)
{
    if (!k)
        return NULL;

    for (unsigned i = 0; i < N_IMAGES; i++)
        cuda_module_unload(&k->modules[i]);
    free(k);
    return NULL;
}

int cuda_kernels_new(struct cuda_space *s, struct cuda_kernels **ret_kernels, struct errmsg *e)
{
    _cleanup_(cuda_kernels_freep) struct cuda_kernels *k = calloc(1, sizeof(*k));

    if (!k)
        return fail(e, -ENOMEM, "out of memory");

    *k = (struct cuda_kernels){
        .space = s,
        .compute = cuda_space_device(s)->compute,
        .kernels =
            {
#define KERNEL_NAME(kernel, parameters) {.name = #kernel},
#define ATTEND_NAME(kernel, n_key_coords, n_columns, n_rows) KERNEL_NAME(kernel, launch_attend)
                ATTEND_KERNELS(ATTEND_NAME) MERGE_KERNELS(KERNEL_NAME) APPEND_KERNELS(KERNEL_NAME)
                    READ_KERNELS(KERNEL_NAME) STAGED_KERNELS(KERNEL_NAME) MEMORY_KERNELS(KERNEL_NAME)
#define NAME_80(kernel, d, n_key_coords, n_columns, n_rows) KERNEL_NAME(kernel, launch_attend)
                        ATTEND_80_KERNELS(NAME_80)
#undef NAME_80
#undef ATTEND_NAME
#undef KERNEL_NAME
            },
    };
    for (unsigned i = 0; i < N_IMAGES; i++) {
        unsigned first = images[i].first, end = i + 1 < N_IMAGES ? images[i + 1].first : (unsigned) N_KERNELS;
        int r;

        r = cuda_module_load(s, images[i].image, &k->kernels[first], end - first, &k->modules[i], e);
        if (r < 0)
            return r;
    }
    *ret_kernels = take_ptr(k);
    return 0;
}

/* ---- launching ---- */

/* The kernel that attends for a table and calls of @n_q > 0 queries: the newest one that the device runs
 * and that takes them. */
struct choice {
    unsigned kernel, n_threads;
    unsigned n_blocks; /* that run on a multiprocessor at a time */
    size_t shared_bytes;
};

/* Blocks on a multiprocessor. */
static unsigned kernels_blocks_of_80(enum attend_80_kernel kernel, size_t shared_bytes)
{
    static const unsigned by_registers[ATTEND_80_COUNT] = {
#define BLOCKS_80(name, d, n_key_coords, n_columns, n_rows) ATTEND_80_BLOCKS(d, n_key_coords, n_rows),
        ATTEND_80_KERNELS(BLOCKS_80)
#undef BLOCKS_80
    };
    unsigned by_memory = (unsigned) (ATTEND_80_SHARED_ALL / (shared_bytes + 1024));

    return by_memory < by_registers[kernel] ? by_memory : by_registers[kernel];
}

static struct choice kernels_choose(const struct cuda_kernels *k, const struct page_layout *l, uint32_t n_q)
{
    enum attend_80_kernel of_80 = select_attend_80(l, n_q);

    if (k->compute >= ATTEND_80_COMPUTE && of_80 < ATTEND_80_COUNT) {
        size_t shared_bytes = select_attend_80_shared_bytes(of_80, l);

        return (struct choice){FIRST_OF_80 + of_80, LAUNCH_THREADS, kernels_blocks_of_80(of_80, shared_bytes),
                               shared_bytes};
    }

    return (struct choice){select_attend(l, n_q), LAUNCH_THREADS, SOME_BLOCKS,
                           device_table_attend_shared_bytes(l)};
}

void cuda_kernels_limit(struct cuda_kernels *k, int compute)
{
    k->compute = compute < k->compute ? compute : k->compute;
}

const char *cuda_attend_name(const struct cuda_kernels *k, const struct page_layout *l, unsigned n_q)
{
    return k->kernels[kernels_choose(k, l, n_q).kernel].name;
}

unsigned cuda_attend_blocks(const struct cuda_kernels *k, const struct page_layout *l, unsigned n_q)
{
    return kernels_choose(k, l, n_q).n_blocks;
}

int cuda_attend(struct cuda_kernels *k, const struct page_layout *l, const struct launch_attend *a,
                unsigned n_items, cu_stream stream, struct errmsg *e)
{
    unsigned group = geometry_group(&l->table->geometry);
    struct cuda_grid attend = {l->shard.n_heads * LAUNCH_TILES(group, a->n_q), a->n_splits, n_items};
    struct cuda_grid merge = {group * a->n_q, l->shard.n_heads, n_items};
    struct choice c;
    int r;

    assert(n_items <= LAUNCH_ITEMS_MAX);
    if (n_items == 0 || a->n_q == 0)
        return 0;

    c = kernels_choose(k, l, a->n_q);
    r = cuda_launch(k->space, &k->kernels[c.kernel], attend, c.n_threads, c.shared_bytes, a, stream, e);
    if (r < 0)
        return r;

    return cuda_launch(k->space, &k->kernels[number_of_kvc_merge], merge, LAUNCH_THREADS,
                       device_table_merge_shared_bytes(l), a, stream, e);
}

static unsigned kernels_pieces_of(uint64_t amount, uint64_t piece, unsigned most)
{
    uint64_t n = (amount + piece - 1) / piece;

    if (n < 1)
        return 1;

    return n < most ? (unsigned) n : most;
}

int cuda_append(struct cuda_kernels *k, const struct page_layout *l, const struct launch_append *a,
                unsigned n_items, cu_stream stream, struct errmsg *e)
{
    static const int pack[] = {[SIDE_K] = number_of_kvc_pack_keys, [SIDE_V] = number_of_kvc_pack_values};
    struct cuda_grid rows = {n_items * l->shard.n_heads,
                             kernels_pieces_of(l->table->geometry.d, LAUNCH_SLICE, UINT_MAX), 0};
    /* n_packing: items up to the last one that packs; n_pack, n_new: largest of the items */
    uint32_t n_packing = 0, n_pack = 0, n_new = 0;

    assert(n_items <= LAUNCH_ITEMS_MAX);
    if (n_items == 0)
        return 0;

    for (uint32_t i = 0; i < n_items; i++) {
        n_packing = a->items[i].n_pack > 0 ? i + 1 : n_packing;
        n_pack = a->items[i].n_pack > n_pack ? a->items[i].n_pack : n_pack;
        n_new = a->items[i].n_new > n_new ? a->items[i].n_new : n_new;
    }

    rows.z = 2 * launch_append_shares(n_new);
    for (unsigned side = SIDE_K; n_pack > 0 && side <= SIDE_V; side++) {
        struct cuda_grid grid = {
            n_packing * l->shard.n_heads, n_pack,
            kernels_pieces_of(device_table_rank_max(l, (enum side) side), LAUNCH_TILE_ROWS, UINT_MAX)};
        int r = cuda_launch(k->space, &k->kernels[pack[side]], grid, LAUNCH_THREADS,
                            device_table_coding_shared_bytes(l), a, stream, e);

        if (r < 0)
            return r;
    }

    return cuda_launch(k->space, &k->kernels[number_of_kvc_append_rows], rows, LAUNCH_THREADS, 0, a, stream,
                       e);
}

int cuda_read(struct cuda_kernels *k, const struct page_layout *l, const struct launch_read *r,
              cu_stream stream, struct errmsg *e)
{
    struct cuda_grid grid = {(r->first % CHUNK_TOKENS + r->n + CHUNK_TOKENS - 1) / CHUNK_TOKENS,
                             l->shard.n_heads,
                             kernels_pieces_of(l->table->geometry.d, LAUNCH_TILE_ROWS, UINT_MAX)};

    if (r->n == 0)
        return 0;

    return cuda_launch(k->space, &k->kernels[number_of_kvc_read], grid, LAUNCH_THREADS,
                       device_table_coding_shared_bytes(l), r, stream, e);
}

/* ---- pages in host memory ---- */

int cuda_store_rows(struct cuda_kernels *k, const struct page_layout *l, const struct launch_rows *a,
                    unsigned n_items, cu_stream stream, struct errmsg *e)
{
    struct cuda_grid grid = {n_items * l->shard.n_heads, 1, 2};

    assert(n_items <= LAUNCH_ROWS_ITEMS_MAX);
    if (n_items == 0)
        return 0;

    for (unsigned i = 0; i < n_items; i++) {
        unsigned shares = kernels_pieces_of(a->items[i].n, CHUNK_TOKENS, UINT_MAX);

        grid.y = shares > grid.y ? shares : grid.y;
    }
    return cuda_launch(k->space, &k->kernels[number_of_kvc_store_rows], grid, LAUNCH_THREADS, 0, a, stream,
                       e);
}

int cuda_move_rows(struct cuda_kernels *k, const struct page_layout *l, const struct launch_move *a,
                   cu_stream stream, struct errmsg *e)
{
    struct cuda_grid grid = {l->shard.n_heads, kernels_pieces_of(a->n, CHUNK_TOKENS, UINT_MAX), 2};

    if (a->n == 0)
        return 0;

    return cuda_launch(k->space, &k->kernels[number_of_kvc_move_rows], grid, LAUNCH_THREADS, 0, a, stream, e);
}

int cuda_encode(struct cuda_kernels *k, const struct page_layout *l, const struct launch_encode *a,
                unsigned n_chunks, cu_stream stream, struct errmsg *e)
{
    static const int encode[] = {
        [SIDE_K] = number_of_kvc_encode_keys, [SIDE_V] = number_of_kvc_encode_values};
    int r = 0;

    assert(n_chunks <= LAUNCH_CHUNKS_MAX);
    for (unsigned side = SIDE_K; r == 0 && n_chunks > 0 && side <= SIDE_V; side++) {
        unsigned n_tiles =
            kernels_pieces_of(device_table_rank_max(l, (enum side) side), LAUNCH_TILE_ROWS, UINT_MAX);
        struct cuda_grid grid = {n_chunks * l->shard.n_heads, n_tiles, 1};

        r = cuda_launch(k->space, &k->kernels[encode[side]], grid, LAUNCH_THREADS,
                        device_table_coding_shared_bytes(l), a, stream, e);
    }
    return r;
}

int cuda_decode(struct cuda_kernels *k, const struct page_layout *l, const struct launch_decode *a,
                cu_stream stream, struct errmsg *e)
{
    unsigned n_tiles = kernels_pieces_of(l->table->geometry.d / 2, LAUNCH_TILE_PLANES, UINT_MAX);
    struct cuda_grid grid = {(a->first % CHUNK_TOKENS + a->n + CHUNK_TOKENS - 1) / CHUNK_TOKENS,
                             l->shard.n_heads * n_tiles, 2 * a->n_layers};

    uint32_t k_columns = device_table_rank_max(l, SIDE_K), columns = device_table_columns_max(l);

    if (a->n == 0 || a->n_layers == 0)
        return 0;

    assert(grid.x <= LAUNCH_DECODE_CHUNKS_MAX);
    columns = k_columns > columns ? k_columns : columns;
    if (a->dtype != LAUNCH_F32 && k->compute >= DECODE_16_COMPUTE && columns <= DEVICE_COLUMNS_MAX) {
        grid.y = l->shard.n_heads;
        return cuda_launch(k->space, &k->kernels[number_of_kvc_decode_16], grid, LAUNCH_THREADS,
                           launch_decode_16_shared_bytes(columns), a, stream, e);
    }

    return cuda_launch(k->space, &k->kernels[number_of_kvc_decode], grid, LAUNCH_THREADS,
                       device_table_coding_shared_bytes(l), a, stream, e);
}

int cuda_copy_numbers(struct cuda_kernels *k, const struct launch_copy *a, cu_stream stream, struct errmsg *e)
{
    const struct cuda_grid grid = {a->n, 1, 1};

    if (a->n == 0)
        return 0;

    return cuda_launch(k->space, &k->kernels[number_of_kvc_copy_numbers], grid, LAUNCH_THREADS, 0, a, stream,
                       e);
}

/* ---- memory ---- */

int cuda_write_words(struct cuda_kernels *k, cu_ptr to, const void *from, size_t bytes, cu_stream stream,
                     struct errmsg *e)
{
    const struct cuda_grid grid = {1, 1, 1};
    const char *at = from;

    assert(to % sizeof(uint32_t) == 0 && bytes % sizeof(uint32_t) == 0);
    while (bytes > 0) {
        struct launch_write_words p = {.to = (uint32_t *) (uintptr_t) to};
        size_t n = bytes < sizeof(p.words) ? bytes : sizeof(p.words);
        int r;

        p.n_words = (uint32_t) (n / sizeof(uint32_t));
        memcpy(p.words, at, n);
        r = cuda_launch(k->space, &k->kernels[number_of_kvc_write_words], grid, LAUNCH_THREADS, 0, &p, stream,
                        e);
        if (r < 0)
            return r;

        to += n;
        at += n;
        bytes -= n;
    }

    return 0;
}

int cuda_crc(struct cuda_kernels *k, const struct launch_crc *c, cu_stream stream, struct errmsg *e)
{
    const struct cuda_grid one = {1, 1, 1},
                           grid = {c->n, kernels_pieces_of(c->bytes, CRC_SHARE_BYTES, CRC_SHARES_MAX), 1};
    struct launch_crc p = *c;
    int r;

    assert(c->bytes % sizeof(uint32_t) == 0);
    if (c->n == 0)
        return 0;

    p.powers[0] = CRC_POLYNOMIAL;
    for (unsigned i = 1; i < LAUNCH_CRC_POWERS; i++)
        p.powers[i] = crc_product(p.powers[i - 1], p.powers[i - 1]);
    p.begin = ~crc_shift(~0u, c->bytes / sizeof(uint32_t), p.powers);
    r = cuda_launch(k->space, &k->kernels[number_of_kvc_crc_begin], one, LAUNCH_CRC_THREADS, 0, &p, stream,
                    e);
    if (r < 0)
        return r;

    return cuda_launch(k->space, &k->kernels[number_of_kvc_crc], grid, LAUNCH_CRC_THREADS, CRC_SHARED_BYTES,
                       &p, stream, e);
}
