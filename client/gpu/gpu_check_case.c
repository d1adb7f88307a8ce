/* See gpu_check_case.h. */
#include "client/gpu/gpu_check_case.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/half.h"
#include "base/splitmix64.h"
#include "client/sequence/pack.h"
#include "gpu/attend.h"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cpu/ops.h"

static const struct codec *gpu_check_case_codec_of(const struct gpu_check_case *s, uint32_t head,
                                                   enum side side)
{
    return table_codec(s->layout->table, s->layer, s->layout->shard.first_head + head, side);
}

/* ---- drawing ---- */

/* In -1 .. 1. */
static float gpu_check_case_draw(struct gpu_check_case *s)
{
    return (float) ((int64_t) splitmix64_next(&s->random) >> 40) * 0x1p-23f;
}

/* Order of heads by the work that they give to kernels: coordinates first, then bits of their codes. */
static size_t gpu_check_case_demand(const struct table *t, uint32_t layer, uint32_t head)
{
    const struct codec *k = table_codec(t, layer, head, SIDE_K), *v = table_codec(t, layer, head, SIDE_V);

    return ((size_t) k->r + v->r_in) * 65536 + k->code_bits + v->code_bits;
}

/* The last of the heads with most work, so that the end of the table's copy is read too. */
static void gpu_check_case_choose_heads(struct gpu_check_case *s)
{
    const struct page_layout *l = s->layout;
    size_t most = 0;

    for (uint32_t layer = 0; layer < l->table->geometry.n_layers; layer++)
        for (uint32_t h = 0; h < s->n_heads; h++) {
            size_t this = gpu_check_case_demand(l->table, layer, l->shard.first_head + h);

            if (this >= most) {
                most = this;
                s->layer = layer;
                s->heads[0] = h;
            }
        }
    s->n_checked = 1;
    if (s->n_heads > 1)
        s->heads[s->n_checked++] =
            (uint32_t) ((s->heads[0] + 1 + splitmix64_next(&s->random) % (s->n_heads - 1)) % s->n_heads);
}

bool gpu_check_case_uses(const struct gpu_check_case *s, uint32_t head, enum side side)
{
    for (uint32_t i = 0; i < s->n_checked; i++) {
        struct head_run run = table_predictors(s->layout->table, s->layout->shard.first_head + s->heads[i]);
        uint32_t in_table = s->layout->shard.first_head + head;

        if (head == s->heads[i] || (side == SIDE_K && in_table >= run.first && in_table - run.first < run.n))
            return true;
    }
    return false;
}

/*
 * Vectors that codes decode to, plus noise of a quarter of their spread per dimension, so that coordinates do
 * not lie on levels. A dimension without spread gets that of the others, or 1.
 */
static void gpu_check_case_draw_head(struct gpu_check_case *s, uint32_t head, enum side side)
{
    const float *mean = gpu_check_case_codec_of(s, head, side)->mean;
    double squares[GEOMETRY_DIM_MAX] = {0}, all = 0, fallback;
    float noise[GEOMETRY_DIM_MAX];

    chunk_decode(s->layout, s->pages[1], s->layer, head, side, s->chunk, s->d, &s->work);
    for (uint32_t t = 0; t < CHUNK_TOKENS; t++)
        for (uint32_t i = 0; i < s->d; i++) {
            s->chunk[t * s->d + i] -= mean[i];
            squares[i] += (double) s->chunk[t * s->d + i] * s->chunk[t * s->d + i];
        }
    for (uint32_t i = 0; i < s->d; i++)
        all += squares[i] / s->d;
    fallback = all > 0 ? all : CHUNK_TOKENS;
    for (uint32_t i = 0; i < s->d; i++) {
        double square = squares[i] > 0 ? squares[i] : fallback;

        noise[i] = (float) (0.25 * sqrt(3 * square / CHUNK_TOKENS));
    }

    for (uint32_t t = 0; t < CHECK_TOKENS; t++)
        for (uint32_t i = 0; i < s->d; i++) {
            float x = s->chunk[t * 29 % CHUNK_TOKENS * s->d + i] + noise[i] * gpu_check_case_draw(s);

            /* binary16 must hold the difference, as appending demands */
            s->x[side][t * gpu_check_case_width(s) + head * s->d + i] =
                mean[i] + fminf(fmaxf(x, -3e4f), 3e4f);
        }
}

/* Heads that are not used are set to their mean. */
static void gpu_check_case_set_to_mean(struct gpu_check_case *s, uint32_t head, enum side side)
{
    for (uint32_t t = 0; t < CHECK_TOKENS; t++)
        memcpy(s->x[side] + t * gpu_check_case_width(s) + head * s->d,
               gpu_check_case_codec_of(s, head, side)->mean, s->d * sizeof(float));
}

/* Vectors from random codes: any bytes are valid ones. */
static void gpu_check_case_draw_vectors(struct gpu_check_case *s)
{
    size_t first = page_block_off(s->layout, s->layer, 0),
           end = page_block_off(s->layout, s->layer, s->n_heads);

    for (size_t at = first; at < end; at += sizeof(uint64_t)) {
        uint64_t word = splitmix64_next(&s->random);

        memcpy(s->pages[1] + at, &word, sizeof(word)); /* a block is a multiple of 64 bytes */
    }

    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t h = 0; h < s->n_heads; h++)
            if (gpu_check_case_uses(s, h, (enum side) side))
                gpu_check_case_draw_head(s, h, (enum side) side);
            else
                gpu_check_case_set_to_mean(s, h, (enum side) side);
}

/* Converts x to the pieces' number types, and back: x then has the rounded numbers. */
static void gpu_check_case_convert(struct gpu_check_case *s)
{
    size_t width = gpu_check_case_width(s), first = 0;

    for (unsigned p = 0; p < CHECK_PIECES; p++) {
        size_t n = s->pieces[p].n_new * width;

        for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
            char *to = (char *) s->new_rows[side] + s->pieces[p].at;

            dtype_store(s->pieces[p].dtype, s->x[side] + first, n, to);
            dtype_load(s->pieces[p].dtype, to, 0, n, s->x[side] + first);
        }

        first += n;
    }

    assert(first == CHECK_TOKENS * width);
}

/* The second piece is binary16, unless a number is too large for it. */
static void gpu_check_case_cut_pieces(struct gpu_check_case *s)
{
    static const uint32_t n_new[CHECK_PIECES] = {100, 99, 5};
    enum dtype dtypes[CHECK_PIECES] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    size_t at = 0;

    for (size_t i = 0; i < CHECK_TOKENS * gpu_check_case_width(s); i++)
        if (fabsf(s->x[SIDE_K][i]) > 6e4f || fabsf(s->x[SIDE_V][i]) > 6e4f)
            dtypes[1] = DTYPE_F32;
    for (unsigned p = 0; p < CHECK_PIECES; p++) {
        s->pieces[p].n_new = n_new[p];
        s->pieces[p].dtype = dtypes[p];
        s->pieces[p].at = at;
        at += n_new[p] * gpu_check_case_width(s) * dtype_bytes(dtypes[p]); /* a multiple of 4, d being even */
    }

    assert(at <= s->new_bytes);
    s->new_bytes = at;
}

/*
 * Queries whose scores have a spread of about SPREAD. Every plane of keys contributes the same part, whatever
 * its size: planes in which keys have a large mean do not hide the others. Planes far below the largest
 * contribute less, so that the numbers that kernels round to binary16 are in its range.
 */
static void gpu_check_case_draw_queries(struct gpu_check_case *s)
{
    const double SPREAD = 1.5, FLOOR = 1.0 / 4096, MOST = 256;
    const struct geometry *g = &s->layout->table->geometry;
    uint32_t planes = g->n_rot / 2 + (s->d - g->n_rot);

    for (uint32_t head = 0; head < s->n_heads; head++) {
        double energy[GEOMETRY_DIM_MAX] = {0}, largest = 0;

        for (uint32_t i = 0; i < s->d; i++)
            for (uint32_t t = 0; t < CHECK_TOKENS; t++) {
                float x = s->x[SIDE_K][t * gpu_check_case_width(s) + head * s->d + i];

                energy[i < g->n_rot ? i % (g->n_rot / 2) : i] += (double) x * x / CHECK_TOKENS;
            }
        for (uint32_t i = 0; i < s->d; i++)
            largest = fmax(largest, energy[i]);
        for (uint32_t row = 0; row < s->n_q * s->group; row++) {
            float *q =
                s->q + ((size_t) (row / s->group * s->n_heads + head) * s->group + row % s->group) * s->d;

            for (uint32_t i = 0; i < s->d; i++) {
                double size =
                    sqrt(planes * fmax(energy[i < g->n_rot ? i % (g->n_rot / 2) : i], FLOOR * largest));

                q[i] = (float) (fmin(sqrt(3) * SPREAD / size, MOST) / g->attn_scale) *
                       gpu_check_case_draw(s); /* true also if size is 0 */
            }
        }
    }
}

/* ---- packing ---- */

static uint16_t *gpu_check_case_row_of(const struct gpu_check_case *s, enum side side, uint32_t head,
                                       uint32_t token)
{
    return s->rows[side] + ((size_t) head * CHECK_TOKENS + token) * s->d;
}

static void gpu_check_case_store_rows(struct gpu_check_case *s, uint32_t head, enum side side)
{
    const float *mean = gpu_check_case_codec_of(s, head, side)->mean;

    for (uint32_t t = 0; t < CHECK_TOKENS; t++) {
        const float *x = s->x[side] + t * gpu_check_case_width(s) + head * s->d;
        uint16_t *row = gpu_check_case_row_of(s, side, head, t);

        for (uint32_t i = 0; i < s->d; i++)
            row[i] = f32_to_f16(x[i] - mean[i]);
    }
}

static void gpu_check_case_pack_head(struct gpu_check_case *s, uint32_t head, enum side side, uint32_t chunk)
{
    const struct pack_head p = {
        .layout = s->layout,
        .layer = s->layer,
        .head = head,
        .side = side,
        .rows = gpu_check_case_row_of(s, side, head, chunk * CHUNK_TOKENS),
        .n_sink = chunk == 0 ? s->layout->table->n_sink : 0,
    };
    struct encode_counts ignored = {0};

    pack_head(&p, s->chunk, s->pages[chunk], &ignored, &s->work);
}

static void gpu_check_case_pack(struct gpu_check_case *s)
{
    for (unsigned side = SIDE_K; side <= SIDE_V; side++)
        for (uint32_t h = 0; h < s->n_heads; h++)
            if (gpu_check_case_uses(s, h, (enum side) side))
                gpu_check_case_store_rows(s, h, (enum side) side);
    for (uint32_t chunk = 0; chunk < CHECK_PACKED; chunk++)
        for (unsigned side = SIDE_K; side <= SIDE_V; side++)
            for (uint32_t h = 0; h < s->n_heads; h++)
                if (gpu_check_case_uses(s, h, (enum side) side))
                    gpu_check_case_pack_head(s, h, (enum side) side, chunk);
}

/* ---- creating and freeing ---- */

static bool gpu_check_case_allocate(struct gpu_check_case *s)
{
    size_t n = CHECK_TOKENS * gpu_check_case_width(s);
    bool all = true;

    s->new_bytes = n * sizeof(float);
    for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
        s->new_rows[side] = malloc(s->new_bytes);
        s->x[side] = malloc(n * sizeof(float));
        s->rows[side] = malloc(n * sizeof(uint16_t));
        all = all && s->new_rows[side] && s->x[side] && s->rows[side];
    }

    for (unsigned i = 0; i < CHECK_PACKED; i++) {
        s->pages[i] = calloc(1, s->layout->payload_bytes[i == 0 ? PAGE_FIRST : PAGE_REST] + 1);
        all = all && s->pages[i];
    }

    s->q = malloc(s->n_q * s->group * gpu_check_case_width(s) * sizeof(float));
    s->chunk = malloc((size_t) CHUNK_TOKENS * s->d * sizeof(float));
    return all && s->q && s->chunk;
}

int gpu_check_case_init(struct gpu_check_case *s, const struct page_layout *l)
{
    const struct geometry *g = &l->table->geometry;
    int r;

    *s = (struct gpu_check_case){
        .layout = l,
        .n_heads = l->shard.n_heads,
        .d = g->d,
        .group = geometry_group(g),
        .n_q = LAUNCH_TILE_QUERIES(geometry_group(g)) + 1,
    };
    memcpy(&s->random, l->table->digest, sizeof(s->random));
    gpu_check_case_choose_heads(s);
    if (!gpu_check_case_allocate(s))
        return -ENOMEM;

    r = chunk_work_init(&s->work, g, l->shard);
    if (r < 0)
        return r;

    gpu_check_case_draw_vectors(s);
    gpu_check_case_cut_pieces(s);
    gpu_check_case_convert(s);
    gpu_check_case_draw_queries(s);
    gpu_check_case_pack(s);
    return 0;
}

void gpu_check_case_deinit(struct gpu_check_case *s)
{
    for (unsigned side = SIDE_K; side <= SIDE_V; side++) {
        free(s->new_rows[side]);
        free(s->x[side]);
        free(s->rows[side]);
    }
    for (unsigned i = 0; i < CHECK_PACKED; i++)
        free(s->pages[i]);
    free(s->q);
    free(s->chunk);
    chunk_work_deinit(&s->work);
}

/* ---- results of the CPU ---- */

void gpu_check_case_read(struct gpu_check_case *s, uint32_t head, enum side side, uint32_t first, uint32_t n,
                         float *ret)
{
    const float *mean = gpu_check_case_codec_of(s, head, side)->mean;

    for (uint32_t t = first; t < first + n; t++, ret += s->d) {
        uint32_t chunk = t / CHUNK_TOKENS;

        if (chunk < CHECK_PACKED && (t == first || t % CHUNK_TOKENS == 0))
            chunk_decode(s->layout, s->pages[chunk], s->layer, head, side, s->chunk, s->d, &s->work);
        if (chunk < CHECK_PACKED && t >= s->layout->table->n_sink)
            memcpy(ret, s->chunk + t % CHUNK_TOKENS * s->d, s->d * sizeof(*ret));
        else
            for (uint32_t i = 0; i < s->d; i++)
                ret[i] = mean[i] + f16_to_f32(gpu_check_case_row_of(s, side, head, t)[i]);
    }
}

int gpu_check_case_attend(struct gpu_check_case *s, uint32_t head, uint32_t n_q, uint32_t window, float *ret)
{
    struct ops exact = *ops_best();
    size_t row = (size_t) s->group * s->d, packed = (size_t) CHECK_PAGES * CHUNK_TOKENS;
    const uint8_t *payloads[CHECK_PAGES];
    _cleanup_(freep) void *scratch = aligned_alloc(64, attend_scratch_bytes(s->layout, n_q));

    if (!scratch)
        return -ENOMEM;

    for (unsigned i = 0; i < CHECK_PAGES; i++)
        payloads[i] = s->pages[i < 1 ? 0 : 1];
    exact.decode = NULL; /* those loops round to whole numbers; the others sum in binary32 */
    attend_with(
        &(struct attend_args){
            .layout = s->layout,
            .layer = s->layer,
            .head = head,
            .payloads = payloads,
            .n_pages = CHECK_PAGES,
            .n_sink = s->layout->table->n_sink,
            .exact_k = gpu_check_case_row_of(s, SIDE_K, head, CHECK_PACKED * CHUNK_TOKENS),
            .exact_v = gpu_check_case_row_of(s, SIDE_V, head, CHECK_PACKED * CHUNK_TOKENS),
            .exact_stride = s->d,
            .exact_first = packed,
            .n_exact = CHECK_EXACT,
            .q = s->q + head * row,
            .q_stride = s->n_heads * row,
            .q_first = packed + CHECK_EXACT - n_q,
            .n_q = n_q,
            .out = ret,
            .out_stride = row,
            .scratch = scratch,
            .window = window,
        },
        &exact);
    return 0;
}
