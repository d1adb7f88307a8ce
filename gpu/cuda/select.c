/* See select.h. */
#include "gpu/cuda/select.h"

#include "gpu/cuda/device_table.h"

/* Whether @n_rows rows are enough for the query rows of a tile in calls of @n_q queries. */
static bool select_takes_rows(const struct page_layout *l, uint32_t n_q, uint32_t n_rows)
{
    uint32_t group = geometry_group(&l->table->geometry), tile_queries = LAUNCH_TILE_QUERIES(group);

    return (n_q < tile_queries ? n_q : tile_queries) * group <= n_rows;
}

/* ---- general kernels ---- */

bool select_attend_takes(enum attend_kernel kernel, const struct page_layout *l, uint32_t n_q)
{
    static const struct {
        uint32_t n_key_coords, n_columns, n_rows;
    } most[ATTEND_COUNT] = {
#define KERNEL_MOST(name, n_key_coords, n_columns, n_rows) {n_key_coords, n_columns, n_rows},
        ATTEND_KERNELS(KERNEL_MOST)
#undef KERNEL_MOST
    };
    return device_table_rank_max(l, SIDE_K) <= most[kernel].n_key_coords &&
           device_table_columns_max(l) <= most[kernel].n_columns &&
           select_takes_rows(l, n_q, most[kernel].n_rows);
}

enum attend_kernel select_attend(const struct page_layout *l, uint32_t n_q)
{
    unsigned i = 0;

    while (i + 1 < ATTEND_COUNT && !select_attend_takes((enum attend_kernel) i, l, n_q))
        i++;
    return (enum attend_kernel) i; /* the last kernel takes all that device_table_check() accepts */
}

/* ---- kernels for compute capability 8.0 and later ---- */

static const struct {
    uint32_t d, n_key_coords, n_columns, n_rows;
} select_kernels_80[ATTEND_80_COUNT] = {
#define KERNEL_80(name, d, n_key_coords, n_columns, n_rows) {d, n_key_coords, n_columns, n_rows},
    ATTEND_80_KERNELS(KERNEL_80)
#undef KERNEL_80
};

size_t select_attend_80_shared_bytes(enum attend_80_kernel kernel, const struct page_layout *l)
{
    uint32_t d = l->table->geometry.d;

    return attend_80_shape(d, select_kernels_80[kernel].n_rows, device_table_rank_max(l, SIDE_K),
                           device_table_columns_max(l), device_table_block_bytes_max(l),
                           launch_exact_shared_bytes(d, d / 2))
        .bytes;
}

bool select_attend_80_takes(enum attend_80_kernel kernel, const struct page_layout *l, uint32_t n_q)
{
    return l->table->geometry.d == select_kernels_80[kernel].d &&
           device_table_rank_max(l, SIDE_K) <= select_kernels_80[kernel].n_key_coords &&
           device_table_columns_max(l) <= select_kernels_80[kernel].n_columns &&
           select_takes_rows(l, n_q, select_kernels_80[kernel].n_rows) &&
           select_attend_80_shared_bytes(kernel, l) <= ATTEND_80_SHARED_MAX;
}

enum attend_80_kernel select_attend_80(const struct page_layout *l, uint32_t n_q)
{
    unsigned i = 0;

    while (i < ATTEND_80_COUNT && !select_attend_80_takes((enum attend_80_kernel) i, l, n_q))
        i++;
    return (enum attend_80_kernel) i;
}
