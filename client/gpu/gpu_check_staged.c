/*
 * The check of gpu_check.h for sequences whose pages are in host memory: rows, codes and decoded vectors of a
 * short made-up sequence must have the bits of the CPU before a table is used; turned keys in 16 bits may
 * differ in the last one.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/gpu/gpu_check.h"
#include "client/gpu/gpu_check_case.h"
#include "client/gpu/gpu_memory.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/rope.h"
#include "gpu/vectors.h"

enum {
    STAGED_BLOCKS = (CHECK_TOKENS + CHUNK_TOKENS - 1) / CHUNK_TOKENS,
    STAGED_ROWS = STAGED_BLOCKS * CHUNK_TOKENS,
    DECODED_FIRST = 2, /* from a sink to the newest */
    DECODED = CHECK_TOKENS - DECODED_FIRST,
};

enum gpu_check_staged_part { LAYER, FAULTS, NEW, ROWS, MOVED, PAGE_0, PAGE_1, ANGLES, OUT, N_PARTS };

struct gpu_check_staged {
    struct gpu *gpu;
    const struct device_table *table;
    struct errmsg *e;
    struct gpu_check_case input;
    struct gpu_memory memory;
    size_t at[N_PARTS + 1]; /* of memory */
    float *angles;          /* [STAGED_BLOCKS][2][64][n_rot / 2] */
    void *fetched, *want;
};

static void gpu_check_staged_deinit(struct gpu_check_staged *c)
{
    gpu_free_now(c->gpu, &c->memory);
    gpu_check_case_deinit(&c->input);
    free(c->angles);
    free(c->fetched);
    free(c->want);
}

/* ---- memory ---- */

static void *gpu_check_staged_at(const struct gpu_check_staged *c, enum gpu_check_staged_part p)
{
    return (void *) (uintptr_t) (c->memory.at + c->at[p]);
}

static size_t gpu_check_staged_planes(const struct gpu_check_staged *c)
{
    return c->input.layout->table->geometry.n_rot / 2;
}

/* Of one side. */
static size_t gpu_check_staged_row_bytes(const struct gpu_check_staged *c)
{
    return STAGED_ROWS * gpu_check_case_width(&c->input) * sizeof(uint16_t);
}

static size_t gpu_check_staged_angle_bytes(const struct gpu_check_staged *c)
{
    return STAGED_BLOCKS * 2 * CHUNK_TOKENS * gpu_check_staged_planes(c) * sizeof(float);
}

static void gpu_check_staged_lay_out(struct gpu_check_staged *c)
{
    const struct gpu_check_case *s = &c->input;
    const size_t bytes[N_PARTS] = {
        [LAYER] = sizeof(struct launch_decode_layer),
        [FAULTS] = sizeof(uint32_t),
        [NEW] = 2 * s->new_bytes,
        [ROWS] = 2 * gpu_check_staged_row_bytes(c),
        [MOVED] = 2 * gpu_check_staged_row_bytes(c),
        [PAGE_0] = s->layout->payload_bytes[PAGE_FIRST],
        [PAGE_1] = s->layout->payload_bytes[PAGE_REST],
        [ANGLES] = gpu_check_staged_angle_bytes(c) + 1,
        [OUT] = 2 * DECODED * gpu_check_case_width(s) * sizeof(float),
    };

    for (unsigned p = 0; p < N_PARTS; p++)
        c->at[p + 1] = c->at[p] + (bytes[p] + 255) / 256 * 256;
}

static struct launch_row_buffer gpu_check_staged_buffer(const struct gpu_check_staged *c,
                                                        enum gpu_check_staged_part p)
{
    char *at = gpu_check_staged_at(c, p);

    return (struct launch_row_buffer){
        .rows = {(uint16_t *) (void *) at, (uint16_t *) (void *) (at + gpu_check_staged_row_bytes(c))},
        .n_rows = STAGED_ROWS};
}

static int gpu_check_staged_write(struct gpu_check_staged *c, enum gpu_check_staged_part p, size_t offset,
                                  const void *from, size_t bytes)
{
    return bytes == 0 ? 0 : gpu_write(c->gpu, c->memory.at + c->at[p] + offset, from, bytes, c->e);
}

static int gpu_check_staged_fill(struct gpu_check_staged *c)
{
    static const uint32_t none = 0;
    const struct gpu_check_case *s = &c->input;
    const struct launch_decode_layer layer = {
        .to = {gpu_check_staged_at(c, OUT),
               (float *) gpu_check_staged_at(c, OUT) + DECODED * gpu_check_case_width(s)},
        .rows = gpu_check_staged_buffer(c, MOVED),
        .n_packed = CHECK_PACKED,
    };
    struct gpu *g = c->gpu;
    int r = gpu_enter(g, c->e);

    if (r < 0)
        return r;
    r = gpu_cu_result(g, g->driver->fill_async(c->memory.at, 0xff, c->at[N_PARTS], g->stream), c->e,
                      "cannot write GPU memory");
    cuda_space_leave(g->space);
    if (r == 0)
        r = gpu_check_staged_write(c, LAYER, 0, &layer, sizeof(layer));
    if (r == 0)
        r = gpu_check_staged_write(c, FAULTS, 0, &none, sizeof(none));
    for (unsigned side = SIDE_K; r == 0 && side <= SIDE_V; side++)
        r = gpu_check_staged_write(c, NEW, side * s->new_bytes, s->new_rows[side], s->new_bytes);
    return r < 0 ? r : gpu_check_staged_write(c, ANGLES, 0, c->angles, gpu_check_staged_angle_bytes(c));
}

static int gpu_check_staged_init(struct gpu_check_staged *c, const struct page_layout *l)
{
    size_t floats, planes;
    int r = gpu_check_case_init(&c->input, l);

    if (r < 0)
        return fail(c->e, r, "out of memory for checking the GPU");
    gpu_check_staged_lay_out(c);
    planes = gpu_check_staged_planes(c);
    c->angles = malloc(gpu_check_staged_angle_bytes(c) + 1);
    c->fetched = malloc(c->at[N_PARTS]);
    c->want = malloc(STAGED_ROWS * (size_t) c->input.d * sizeof(float));
    if (!c->angles || !c->fetched || !c->want)
        return fail(c->e, -ENOMEM, "out of memory for checking the GPU");

    floats = 2 * CHUNK_TOKENS * planes;
    for (size_t i = 0; i < STAGED_BLOCKS; i++)
        rope_rows(&l->table->geometry, i * CHUNK_TOKENS, CHUNK_TOKENS, c->angles + i * floats,
                  c->angles + i * floats + floats / 2);
    r = gpu_alloc(c->gpu, c->at[N_PARTS], &c->memory, c->e);
    return r < 0 ? r : gpu_check_staged_fill(c);
}

/* ---- launches ---- */

static struct launch_angles gpu_check_staged_angles(const struct gpu_check_staged *c)
{
    return (struct launch_angles){.blocks = gpu_check_staged_at(c, ANGLES), .n_blocks = STAGED_BLOCKS};
}

/* Stores piece @p of the input, whose first position is @first. */
static int gpu_check_staged_store(struct gpu_check_staged *c, unsigned p, uint32_t first, uint32_t form)
{
    const struct gpu_check_case *s = &c->input;
    size_t width = gpu_check_case_width(s);
    char *at = gpu_check_staged_at(c, NEW);
    const struct launch_rows a = {
        .table = c->table,
        .angles = gpu_check_staged_angles(c),
        .dtype = (enum launch_dtype) s->pieces[p].dtype,
        .layer = s->layer,
        .items = {{.vectors = {at + s->pieces[p].at, at + s->new_bytes + s->pieces[p].at},
                   .token_stride = {width, width},
                   .head_stride = {s->d, s->d},
                   .to = gpu_check_staged_buffer(c, ROWS),
                   .faults = gpu_check_staged_at(c, FAULTS),
                   .first = first,
                   .n = s->pieces[p].n_new,
                   .form = form}},
    };
    struct gpu *g = c->gpu;

    return gpu_result(g, cuda_store_rows(g->kernels, s->layout, &a, 1, g->stream, c->e), c->e);
}

static int gpu_check_staged_decode(struct gpu_check_staged *c, enum launch_dtype dtype, uint32_t form)
{
    const struct gpu_check_case *s = &c->input;
    const struct launch_decode a = {
        .table = c->table,
        .layers = gpu_check_staged_at(c, LAYER),
        .angles = gpu_check_staged_angles(c),
        .dim_stride = 1,
        .token_stride = gpu_check_case_width(s),
        .head_stride = s->d,
        .block_tokens = DECODED,
        .origin = DECODED_FIRST,
        .first_layer = s->layer,
        .n_layers = 1,
        .first = DECODED_FIRST,
        .n = DECODED,
        .form = form,
        .dtype = dtype,
        .payloads = {gpu_check_staged_at(c, PAGE_0), gpu_check_staged_at(c, PAGE_1)},
    };
    struct gpu *g = c->gpu;

    return gpu_result(g, cuda_decode(g->kernels, s->layout, &a, g->stream, c->e), c->e);
}

static int gpu_check_staged_fetch(struct gpu_check_staged *c, enum gpu_check_staged_part p)
{
    return gpu_read(c->gpu, c->fetched, c->memory.at + c->at[p], c->at[p + 1] - c->at[p], c->e);
}

/* ---- comparing ---- */

static int gpu_check_staged_compare(const struct gpu_check_staged *c, const char *kernel, const char *what,
                                    uint32_t head, const void *got, const void *want, size_t bytes)
{
    size_t n = gpu_check_count_other(got, want, bytes);

    if (n == 0)
        return 0;

    return gpu_check_refuse(c->gpu, c->e, kernel, "%zu of %zu bytes of %s, layer %u, KV head %u", n, bytes,
                            what, c->input.layer, c->input.layout->shard.first_head + head);
}

/* Keys of all heads first: values depend on them. */
static int gpu_check_staged_for_used(struct gpu_check_staged *c,
                                     int (*compare)(struct gpu_check_staged *c, uint32_t head,
                                                    enum side side))
{
    int r = 0;

    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t h = 0; r == 0 && h < c->input.n_heads; h++)
            if (gpu_check_case_uses(&c->input, h, (enum side) side))
                r = compare(c, h, (enum side) side);
    return r;
}

static int gpu_check_staged_compare_rows(struct gpu_check_staged *c, uint32_t head, enum side side)
{
    const struct gpu_check_case *s = &c->input;
    const char *got = (const char *) c->fetched + side * gpu_check_staged_row_bytes(c);

    return gpu_check_staged_compare(
        c, "kvc_store_rows", "rows", head, got + (size_t) head * STAGED_ROWS * s->d * sizeof(uint16_t),
        s->rows[side] + (size_t) head * CHECK_TOKENS * s->d, CHECK_TOKENS * (size_t) s->d * sizeof(uint16_t));
}

static int gpu_check_staged_compare_moved(struct gpu_check_staged *c, uint32_t head, enum side side)
{
    const struct gpu_check_case *s = &c->input;
    size_t skipped = (size_t) CHECK_PACKED * CHUNK_TOKENS * s->d;
    const uint16_t *got =
        (const uint16_t *) c->fetched + side * gpu_check_staged_row_bytes(c) / sizeof(uint16_t);

    return gpu_check_staged_compare(c, "kvc_move_rows", "rows", head,
                                    got + (size_t) head * STAGED_ROWS * s->d + skipped,
                                    s->rows[side] + (size_t) head * CHECK_TOKENS * s->d + skipped,
                                    CHECK_EXACT * (size_t) s->d * sizeof(uint16_t));
}

/* One page, which was fetched. */
static int gpu_check_staged_compare_page(struct gpu_check_staged *c, unsigned page, uint32_t head,
                                         enum side side)
{
    const struct page_layout *l = c->input.layout;
    const struct codec *k = table_codec(l->table, c->input.layer, l->shard.first_head + head, SIDE_K);
    const char *kernel = side == SIDE_K ? "kvc_encode_keys" : "kvc_encode_values", *got = c->fetched;
    size_t first = page_block_off(l, c->input.layer, head), end = page_block_off(l, c->input.layer, head + 1),
           middle = first + page_v_off(k), sinks = page_sink_off(l, c->input.layer, head, side);
    size_t from = side == SIDE_K ? first : middle, to = side == SIDE_K ? middle : end;
    int r = page > 0
                ? 0
                : gpu_check_staged_compare(c, kernel, "sinks", head, got + sinks, c->input.pages[0] + sinks,
                                           (size_t) l->table->n_sink * c->input.d * sizeof(uint16_t));

    return r < 0 ? r
                 : gpu_check_staged_compare(c, kernel, "codes", head, got + from, c->input.pages[page] + from,
                                            to - from);
}

static int gpu_check_staged_compare_first(struct gpu_check_staged *c, uint32_t head, enum side side)
{
    return gpu_check_staged_compare_page(c, 0, head, side);
}

static int gpu_check_staged_compare_second(struct gpu_check_staged *c, uint32_t head, enum side side)
{
    return gpu_check_staged_compare_page(c, 1, head, side);
}

static struct vector_form gpu_check_staged_form(const struct gpu_check_staged *c, unsigned dtype,
                                                uint32_t form, enum side side)
{
    bool is_key = side == SIDE_K;

    return (struct vector_form){.geometry = &c->input.layout->table->geometry,
                                .dtype = dtype,
                                .interleaved = is_key && form & LAUNCH_INTERLEAVED};
}

/* Angles of a position, in the blocks of the check. */
static void gpu_check_staged_set_angles(const struct gpu_check_staged *c, uint32_t position,
                                        struct vector_form *f)
{
    size_t planes = gpu_check_staged_planes(c), block = 2 * CHUNK_TOKENS * planes;

    f->cos = c->angles + position / CHUNK_TOKENS * block + position % CHUNK_TOKENS * planes;
    f->sin = f->cos + block / 2;
}

/*
 * Numbers of a vector that are not the CPU's. Numbers of 16 bits are decoded by matrix instructions, in
 * another order: they may differ by one unit in the last place, at most 2^-7 of a number, or by the errors
 * of a sum of 512 terms in binary32, 2^-15 of the largest number of the vector with room for terms that
 * cancel out. A wrong level changes a vector by more than a hundredth.
 */
static size_t gpu_check_staged_count_far(const void *got, const void *want, size_t n, unsigned dtype)
{
    float x[GEOMETRY_DIM_MAX], y[GEOMETRY_DIM_MAX], largest = 0;
    size_t far = 0;

    if (dtype == DTYPE_F32)
        return gpu_check_count_other(got, want, n * sizeof(float));

    dtype_load(dtype, got, 0, n, x);
    dtype_load(dtype, want, 0, n, y);
    for (size_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(y[i]));
    for (size_t i = 0; i < n; i++)
        far += !(fabsf(x[i] - y[i]) <= 0x1p-7f * fabsf(y[i]) + 0x1p-15f * largest); /* also not a number */
    return far;
}

/* Decoded vectors of one head and side in the caller's form, against the CPU's. */
static int gpu_check_staged_compare_decoded(struct gpu_check_staged *c, uint32_t head, enum side side,
                                            unsigned dtype, uint32_t form)
{
    struct gpu_check_case *s = &c->input;
    struct vector_form f = gpu_check_staged_form(c, dtype, form, side);
    size_t width = gpu_check_case_width(s), n = 0;
    const char *got = (const char *) c->fetched + side * DECODED * width * sizeof(float);
    _Alignas(float) uint8_t want[GEOMETRY_DIM_MAX * sizeof(float)];

    gpu_check_case_read(s, head, side, DECODED_FIRST, DECODED, c->want);
    for (uint32_t t = 0; t < DECODED; t++) {
        if (side == SIDE_K && form & LAUNCH_AFTER_ROPE)
            gpu_check_staged_set_angles(c, DECODED_FIRST + t, &f);
        vectors_store(&f, (const float *) c->want + (size_t) t * s->d, s->d, 1, want, s->d, 1);
        n += gpu_check_staged_count_far(got + (t * width + head * s->d) * dtype_bytes(dtype), want, s->d,
                                        dtype);
    }
    if (n == 0)
        return 0;

    return gpu_check_refuse(c->gpu, c->e, dtype == DTYPE_F32 ? "kvc_decode" : "kvc_decode_16",
                            "%zu of %zu decoded numbers, layer %u, KV head %u", n, (size_t) DECODED * s->d,
                            s->layer, s->layout->shard.first_head + head);
}

/* Rows of the first piece as keys after RoPE with interleaved pairs. */
static int gpu_check_staged_compare_turned(struct gpu_check_staged *c, uint32_t head, uint32_t form)
{
    const struct gpu_check_case *s = &c->input;
    const struct codec *k =
        table_codec(s->layout->table, s->layer, s->layout->shard.first_head + head, SIDE_K);
    struct vector_form f = gpu_check_staged_form(c, s->pieces[0].dtype, form, SIDE_K);
    const uint16_t *got = (const uint16_t *) c->fetched + (size_t) head * STAGED_ROWS * s->d;
    size_t bytes = dtype_bytes(s->pieces[0].dtype);
    uint16_t row[GEOMETRY_DIM_MAX];
    int r = 0;

    for (uint32_t t = 0; r == 0 && t < s->pieces[0].n_new; t++) {
        const char *from = (const char *) s->new_rows[SIDE_K] + s->pieces[0].at +
                           (t * gpu_check_case_width(s) + (size_t) head * s->d) * bytes;

        gpu_check_staged_set_angles(c, t, &f);
        vectors_load(&f, from, s->d, 1, c->want, s->d);
        (void) vectors_centre(c->want, 1, s->d, k->mean, row);
        r = gpu_check_staged_compare(c, "kvc_store_rows", "rows of turned keys", head,
                                     got + (size_t) t * s->d, row, s->d * sizeof(*row));
    }
    return r;
}

/* ---- steps ---- */

static int gpu_check_staged_rows(struct gpu_check_staged *c)
{
    const struct gpu_check_case *s = &c->input;
    const struct launch_move move = {
        .table = c->table,
        .from = gpu_check_staged_buffer(c, ROWS),
        .to = gpu_check_staged_buffer(c, MOVED),
        .first = CHECK_PACKED * CHUNK_TOKENS,
        .n = CHECK_EXACT,
    };
    uint32_t first = 0;
    int r = 0;

    for (unsigned p = 0; r == 0 && p < CHECK_PIECES; first += s->pieces[p++].n_new)
        r = gpu_check_staged_store(c, p, first, 0);
    if (r == 0)
        r = gpu_check_staged_fetch(c, ROWS);
    if (r == 0)
        r = gpu_check_staged_for_used(c, gpu_check_staged_compare_rows);
    if (r == 0)
        r = gpu_result(c->gpu, cuda_move_rows(c->gpu->kernels, s->layout, &move, c->gpu->stream, c->e), c->e);
    if (r == 0)
        r = gpu_check_staged_fetch(c, MOVED);
    return r < 0 ? r : gpu_check_staged_for_used(c, gpu_check_staged_compare_moved);
}

static int gpu_check_staged_encode(struct gpu_check_staged *c)
{
    const struct gpu_check_case *s = &c->input;
    struct launch_encode a = {.table = c->table};
    int r;

    for (uint32_t i = 0; i < CHECK_PACKED; i++)
        a.chunks[i] = (struct launch_chunk){.payload = gpu_check_staged_at(c, i == 0 ? PAGE_0 : PAGE_1),
                                            .rows = gpu_check_staged_buffer(c, ROWS),
                                            .number = i,
                                            .layer = s->layer};
    r = gpu_result(c->gpu, cuda_encode(c->gpu->kernels, s->layout, &a, CHECK_PACKED, c->gpu->stream, c->e),
                   c->e);
    if (r == 0)
        r = gpu_check_staged_fetch(c, PAGE_0);
    if (r == 0)
        r = gpu_check_staged_for_used(c, gpu_check_staged_compare_first);
    if (r == 0)
        r = gpu_check_staged_fetch(c, PAGE_1);
    return r < 0 ? r : gpu_check_staged_for_used(c, gpu_check_staged_compare_second);
}

static int gpu_check_staged_read(struct gpu_check_staged *c, enum dtype dtype, uint32_t form)
{
    int r = gpu_check_staged_decode(c, (enum launch_dtype) dtype, form);

    if (r == 0)
        r = gpu_check_staged_fetch(c, OUT);
    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t i = 0; r == 0 && i < c->input.n_checked; i++)
            r = gpu_check_staged_compare_decoded(c, c->input.heads[i], (enum side) side, dtype, form);
    return r;
}

static int gpu_check_staged_turned(struct gpu_check_staged *c)
{
    const uint32_t form = LAUNCH_AFTER_ROPE | LAUNCH_INTERLEAVED;
    int r = gpu_check_staged_store(c, 0, 0, form);

    if (r == 0)
        r = gpu_check_staged_fetch(c, ROWS);
    for (uint32_t i = 0; r == 0 && i < c->input.n_checked; i++)
        r = gpu_check_staged_compare_turned(c, c->input.heads[i], form);
    return r < 0 ? r : gpu_check_staged_read(c, DTYPE_BF16, form);
}

int gpu_check_table_staged(struct gpu *g, const struct page_layout *l, cu_ptr table, struct errmsg *e)
{
    _cleanup_(gpu_check_staged_deinit) struct gpu_check_staged c = {
        .gpu = g, .table = (const struct device_table *) (uintptr_t) table, .e = e};
    int r = gpu_check_not_capturing(g, e);

    if (r == 0)
        r = gpu_check_staged_init(&c, l);
    if (r == 0)
        r = gpu_check_staged_rows(&c);
    if (r == 0)
        r = gpu_check_staged_encode(&c);
    if (r == 0)
        r = gpu_check_staged_read(&c, DTYPE_F32, 0);
    return r < 0 ? r : gpu_check_staged_turned(&c);
}
