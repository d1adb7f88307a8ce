/* See attend_scene.h. */
#include "tests/unit/gpu/attend_scene.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/half.h"
#include "gpu/cpu/attend_decode.h"
#include "gpu/cpu.h"
#include "tests/lib/test.h"
#include "tests/unit/gpu/attend_oracle.h"

/* The heads 1 and 2, or all heads if values need all of them. */
static struct shard shard_of(enum prediction v_from)
{
    return v_from == PREDICT_LAYER ? (struct shard){0, N_KV} : (struct shard){1, 2};
}

struct fenced fenced_new(size_t bytes, size_t align)
{
    size_t page = (size_t) sysconf(_SC_PAGESIZE), body = (bytes + page) / page * page;
    struct fenced f = {.map_bytes = body + page};

    f.map = mmap(NULL, f.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(f.map != MAP_FAILED);
    assert(mprotect(f.map + body, page, PROT_NONE) == 0);
    f.data = f.map + (body - bytes) / align * align;
    return f;
}

void fenced_free(struct fenced f)
{
    (void) munmap(f.map, f.map_bytes);
}

#define HALF_MAX 65504.0

static void random_half(uint16_t *p, size_t n, double size)
{
    for (size_t i = 0; i < n; i++)
        p[i] =
            f32_to_f16((float) fmax(-HALF_MAX, fmin(HALF_MAX, (size > 0 ? size : 1) * test_rand_normal())));
}

static void make_page(struct attend_scene *s, const struct attend_shape *shape, size_t i)
{
    enum page_class class = i == 0 ? PAGE_FIRST : PAGE_REST;
    size_t bytes = s->layout.payload_bytes[class];
    uint8_t *p;

    s->pages[i] = fenced_new(bytes, 1); /* ends at the fence; the start of a payload may then be odd */
    p = (uint8_t *) s->pages[i].data;
    for (size_t x = 0; x < bytes; x++)
        p[x] = (uint8_t) test_rand();
    if (class == PAGE_FIRST)
        for (size_t x = 0; x < (size_t) 2 * 2 * s->layout.shard.n_heads * shape->n_sink * shape->d; x++) {
            uint16_t h = f32_to_f16((float) test_rand_normal());

            memcpy(p + s->layout.sinks_off + 2 * x, &h, sizeof(h));
        }
    ((const uint8_t **) s->args.payloads)[i] = p;
}

void attend_scene_init(struct attend_scene *s, const struct attend_shape *shape)
{
    struct memory_table_options o = {
        .geometry = memory_table_geometry(2, N_KV * shape->group, N_KV, shape->d, shape->n_rot),
        .n_sink = shape->n_sink,
        .v_from = shape->v_from,
        .bits = shape->bits,
        .key_rank = shape->key_rank,
        .fast_planes = shape->fast_planes,
        .state_bits = shape->state_bits,
        .mean_norm = shape->mean_norm,
    };
    size_t row = (size_t) shape->group * shape->d, stride = row + 5,
           n_q_floats = (shape->n_q - 1) * stride + row;
    size_t end = shape->n_pages * CHUNK_TOKENS + shape->n_exact, exact_stride = 2 * shape->d;
    size_t n_exact_halves = shape->n_exact == 0 ? 0 : (shape->n_exact - 1) * exact_stride + shape->d;

    *s = (struct attend_scene){0};
    memory_table_init(&s->memory, &o);
    assert(page_layout_init(&s->layout, &s->memory.table, shard_of(shape->v_from)) == 0);
    s->pages = calloc(shape->n_pages + 1, sizeof(*s->pages));
    s->args.payloads = calloc(shape->n_pages + 1, sizeof(*s->args.payloads));
    assert(s->pages && s->args.payloads);
    for (size_t i = 0; i < shape->n_pages; i++)
        make_page(s, shape, i);
    s->exact_k = fenced_new(n_exact_halves * 2, 2);
    s->exact_v = fenced_new(n_exact_halves * 2, 2);
    s->q = fenced_new(n_q_floats * sizeof(float), sizeof(float));
    s->out = fenced_new(n_q_floats * sizeof(float), sizeof(float));
    s->scratch = fenced_new(attend_scratch_bytes(&s->layout, shape->n_q), 64);
    random_half((uint16_t *) s->exact_k.data, n_exact_halves, shape->exact_size);
    random_half((uint16_t *) s->exact_v.data, n_exact_halves, 0);
    for (size_t i = 0; i < n_q_floats; i++)
        ((float *) s->q.data)[i] = (float) ((shape->q_size > 0 ? shape->q_size : 1) * test_rand_normal());
    s->args = (struct attend_args){
        .layout = &s->layout,
        .layer = LAYER,
        .head = HEAD - s->layout.shard.first_head,
        .payloads = s->args.payloads,
        .n_pages = shape->n_pages,
        .n_sink = shape->n_sink,
        .exact_k = (const uint16_t *) s->exact_k.data,
        .exact_v = (const uint16_t *) s->exact_v.data,
        .exact_stride = exact_stride,
        .exact_first = shape->n_pages * CHUNK_TOKENS,
        .n_exact = shape->n_exact,
        .q = (const float *) s->q.data,
        .q_stride = stride,
        .out = (float *) s->out.data,
        .out_stride = stride,
        .q_first = shape->q_first == SIZE_MAX ? end - shape->n_q : shape->q_first,
        .n_q = shape->n_q,
        .scratch = s->scratch.data,
        .window = shape->window,
    };
}

void attend_scene_deinit(struct attend_scene *s)
{
    for (size_t i = 0; i < s->args.n_pages; i++)
        fenced_free(s->pages[i]);
    free(s->pages);
    free((void *) s->args.payloads);
    fenced_free(s->exact_k);
    fenced_free(s->exact_v);
    fenced_free(s->q);
    fenced_free(s->out);
    fenced_free(s->scratch);
    page_layout_deinit(&s->layout);
    memory_table_deinit(&s->memory);
}

size_t attend_scene_variants(const struct ops *ret[ATTEND_SCENE_VARIANTS])
{
    static const unsigned masks[ATTEND_SCENE_VARIANTS] = {
        0,
        CPU_AVX2,
        CPU_AVX2 | CPU_AVX_VNNI,
        CPU_AVX2 | CPU_AVX512,
        CPU_AVX2 | CPU_AVX512 | CPU_VNNI,
        CPU_AVX2 | CPU_AVX512 | CPU_VNNI | CPU_VBMI,
    };
    size_t n = 0;

    for (size_t i = 0; i < ATTEND_SCENE_VARIANTS; i++)
        if ((masks[i] & ~cpu_capabilities()) == 0 && (n == 0 || ret[n - 1] != ops_select(masks[i])))
            ret[n++] = ops_select(masks[i]);
    return n;
}

void attend_scene_check(const struct attend_shape *shape)
{
    const struct ops *ops[ATTEND_SCENE_VARIANTS];
    size_t n_ops = attend_scene_variants(ops);
    struct attend_scene s;

    attend_scene_init(&s, shape);
    for (size_t i = 0; i < 2 * n_ops; i++) { /* each with and without folding of slow planes */
        const struct ops *variant = ops[i / 2];
        struct oracle_report r;

        memset(s.scratch.data, 0xff, attend_scratch_bytes(&s.layout, shape->n_q)); /* NaN everywhere */
        memset(s.out.data, 0xff, sizeof(float));
        s.args.exact_rope = i % 2 == 1;
        if (s.args.exact_rope && !variant->decode)
            continue;
        attend_with(&s.args, variant);
        r = oracle_packed(&s.args, variant->decode);
        CU_ASSERT_TRUE(r.error <= r.tolerance); /* false for NaN */
        if (!(r.error <= r.tolerance))
            printf("    %s%s: d %u n_rot %u g %u bits %d states 2^%u sinks %u v_from %d pages %zu exact %zu "
                   "n_q %zu: %g "
                   "> %g\n",
                   variant->name, s.args.exact_rope ? ", exact" : "", shape->d, shape->n_rot, shape->group,
                   shape->bits, shape->state_bits, shape->n_sink, shape->v_from, shape->n_pages,
                   shape->n_exact, shape->n_q, r.error, r.tolerance);
    }
    attend_scene_deinit(&s);
}
