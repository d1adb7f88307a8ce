/* See client_gpu_fixture.h. */
#include "client/kvcobra-gpu.h"
#include "tests/e2e/client_gpu_fixture.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/connection/client.h"
#include "client/gpu/gpu.h"
#include "client/gpu/gpu_memory.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

/* ---- the daemon ---- */

bool gpu_is_real(void)
{
    return getenv("TEST_GPU") != NULL;
}

void gpu_args_init(struct gpu_args *a, unsigned n_extents, unsigned n_preallocated)
{
    unsigned extent_mib = gpu_is_real() ? 2 : 1; /* the granularity of device memory */
    const char *mover = getenv("KVC_MOVER");

    assert(mover);
    (void) snprintf(a->extent, sizeof(a->extent), "--gpu-extent-bytes=%uM", extent_mib);
    (void) snprintf(a->pool, sizeof(a->pool), "--gpu-pool-bytes=%uM", n_extents * extent_mib);
    (void) snprintf(a->spares, sizeof(a->spares), "--gpu-spare-extents=%u", n_preallocated);
    (void) snprintf(a->mover, sizeof(a->mover), "--mover=%s", mover);
    memcpy(a->args,
           ((const char *[16]){"--pool-bytes=4M", "--extent-bytes=1M", "--span-bytes=256K",
                               "--arena-bytes=4M", "--gpu=first", "--gpu-span-bytes=256K",
                               "--gpu-quota-bytes=64M", a->pool, a->extent, a->spares, a->mover, NULL}),
           sizeof(a->args));
}

void gpu_scene_start(struct scene *sc, unsigned n_preallocated)
{
    struct gpu_args a;

    gpu_args_init(&a, 2, n_preallocated);
    scene_start(sc, random_table_geometry(2, 4, 2, 64), 3, 1, a.args);
}

bool gpu_nothing_held(const Kvcobra__StatusReply *s)
{
    return s->held_pages == 0 && s->leases == 0;
}

void gpu_scene_run(bool (*run)(const struct scene *sc, int from_parent, int to_parent))
{
    struct scene sc;
    struct child c;

    gpu_scene_start(&sc, 1);
    c = child_start(run, &sc);
    CU_ASSERT(child_end(&c));
    CU_ASSERT(scene_wait(&sc, gpu_nothing_held));
    scene_end(&sc);
}

/* ---- clients ---- */

static struct embedded open_gpu(const struct scene *sc, uint32_t pages)
{
    const kvc_gpu_options o = {.struct_bytes = sizeof(o), .pages = pages};
    struct embedded m = {.g = sc->g, .n_heads = sc->g.n_kv_heads};
    int r = kvc_client_new(&m.client);

    assert(r == 0);
    r = kvc_client_set_gpu(m.client, &o);
    if (r < 0)
        printf("    gpu: %s\n", kvc_last_error(m.client));
    assert(r == 0);
    return m;
}

void gpu_driver_load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library)
        printf("    gpu: %s\n", dlerror());
    /* never closed, so that later calls of dlopen() find the library by its name and open no file */
    assert(library);
}

struct embedded gpu_scene_client_with(const struct scene *sc, uint32_t pages)
{
    struct embedded m = open_gpu(sc, pages);
    kvc_model_id id = embedded_id(&m);
    int r = kvc_client_connect(m.client, sc->daemon.socket);

    if (r == 0)
        r = kvc_model_open(m.client, &id, &m.model);
    if (r < 0)
        printf("    client: %s\n", kvc_last_error(m.client));
    assert(r == 0);
    return m;
}

struct embedded gpu_scene_client(const struct scene *sc)
{
    return gpu_scene_client_with(sc, KVC_GPU_PAGES_DEVICE);
}

struct embedded gpu_scene_private(const struct scene *sc)
{
    struct embedded m = open_gpu(sc, KVC_GPU_PAGES_DEVICE);
    kvc_model_id id = embedded_id(&m);
    int r = kvc_model_open_table(m.client, &id, sc->bytes, sc->n_bytes, &m.model);

    assert(r == 0);
    return m;
}

/* ---- device memory ---- */

static struct gpu_memory take(const struct embedded *m, const void *from, size_t bytes)
{
    struct gpu_memory ret = {0};
    struct errmsg e = {""};
    int r = gpu_alloc(m->client->gpu, bytes, &ret, &e);

    if (r == 0 && from)
        r = gpu_write(m->client->gpu, ret.at, from, bytes, &e);
    if (r < 0)
        printf("    %s\n", e.text);
    assert(r == 0);
    return ret;
}

/* Returns the contents of @from, [bytes], which the caller frees. Frees the device memory. */
static void *copy_and_free(const struct embedded *m, struct gpu_memory *from, size_t bytes)
{
    struct errmsg e = {""};
    void *to = malloc(bytes);
    int r = to ? gpu_read(m->client->gpu, to, from->at, bytes, &e) : -1;

    if (r < 0)
        printf("    %s\n", e.text);
    assert(r == 0);
    gpu_free(m->client->gpu, from);
    return to;
}

static void *on_device(const struct gpu_memory *m)
{
    return (void *) (uintptr_t) m->at;
}

/* ---- sequences ---- */

int gpu_append(const struct embedded *m, kvc_seq *s, uint32_t text, size_t first, size_t n)
{
    size_t bytes = n * m->n_heads * m->g.d * sizeof(float);
    int r = 0;

    for (uint32_t layer = 0; r == 0 && layer < m->g.n_layers; layer++) {
        float *k = embedded_input(m, text, layer, KVC_K, first, n),
              *v = embedded_input(m, text, layer, KVC_V, first, n);
        struct gpu_memory on_k = take(m, k, bytes), on_v = take(m, v, bytes);

        r = kvc_seq_append(s, layer, KVC_F32, on_device(&on_k), on_device(&on_v), n);
        gpu_free(m->client->gpu, &on_k);
        gpu_free(m->client->gpu, &on_v);
        free(k);
        free(v);
    }
    return r;
}

int gpu_publish(const struct embedded *m, kvc_seq *s, uint32_t text, size_t first, size_t n, size_t piece,
                size_t *ret_published)
{
    uint32_t *tokens = scene_tokens(text, first + n);
    int r = 0;

    for (size_t at = first; at < first + n && r == 0; at += piece) {
        size_t k = first + n - at < piece ? first + n - at : piece;

        r = gpu_append(m, s, text, at, k);
        if (r == 0)
            r = kvc_seq_commit(s, tokens, at + k, ret_published);
    }
    if (r < 0)
        printf("    %s\n", kvc_last_error(m->client));
    free(tokens);
    return r;
}

static float *attend_layer(const struct embedded *m, kvc_seq *s, uint32_t text, uint32_t layer)
{
    size_t bytes = (size_t) m->g.n_heads * m->g.d * sizeof(float);
    float *q = embedded_queries(m, text, layer, kvc_seq_length(s) - 1, 1);
    struct gpu_memory on_q = take(m, q, bytes), out = take(m, NULL, bytes);
    int r = kvc_seq_attend(s, layer, on_device(&on_q), 1, on_device(&out));

    if (r < 0)
        printf("    %s\n", kvc_last_error(m->client));
    assert(r == 0);
    gpu_free(m->client->gpu, &on_q);
    free(q);
    return copy_and_free(m, &out, bytes);
}

float *gpu_attend(const struct embedded *m, kvc_seq *s, uint32_t text)
{
    size_t width = (size_t) m->g.n_heads * m->g.d;
    float *out = malloc(scene_attend_floats(m) * sizeof(*out));

    assert(out && kvc_seq_length(s) > 0);
    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        float *one = attend_layer(m, s, text, layer);

        memcpy(out + layer * width, one, width * sizeof(*out));
        free(one);
    }
    return out;
}

float *gpu_read_back(const struct embedded *m, kvc_seq *s, uint32_t layer, enum kvc_side side, size_t n)
{
    size_t bytes = n * m->n_heads * m->g.d * sizeof(float);
    struct gpu_memory out = take(m, NULL, bytes);
    int r = kvc_seq_read(s, layer, side, 0, n, on_device(&out));

    assert(r == 0);
    return copy_and_free(m, &out, bytes);
}

/* ---- comparing ---- */

/*
 * A sequence on the CPU with the same tokens, the first @n_packed of them in codes: a commit packs, later
 * appends do not.
 */
static kvc_seq *private_twin(const struct embedded *alone, uint32_t text, size_t n, size_t n_packed)
{
    size_t have = n_packed > 0 ? n_packed + KVC_RECENT_TOKENS : 0;
    uint32_t *tokens = scene_tokens(text, have);
    kvc_seq *s = NULL;
    int r = kvc_seq_new(alone->model, NULL, 0, &s);

    if (r == 0 && have > 0)
        r = embedded_append(alone, s, text, 0, have);
    if (r == 0)
        r = kvc_seq_commit(s, tokens, have, NULL);
    if (r == 0)
        r = kvc_seq_truncate(s, n < have ? n : have, &have); /* the tail is exact */
    if (r == 0 && n > have)
        r = embedded_append(alone, s, text, have, n - have);
    assert(r == 0);
    free(tokens);
    return s;
}

bool gpu_is_like_cpu(const struct scene *sc, const struct embedded *m, kvc_seq *s, uint32_t text,
                     size_t n_packed)
{
    struct embedded alone = scene_private(sc);
    size_t n = kvc_seq_length(s), bytes = n * m->n_heads * m->g.d * sizeof(float),
           width = (size_t) m->g.n_heads * m->g.d;
    kvc_seq *want = private_twin(&alone, text, n, n_packed);
    float *out = gpu_attend(m, s, text);
    bool like = true;

    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        float *q = embedded_queries(m, text, layer, n - 1, 1), *got[2], *expected[2];
        double *attention, error;

        for (unsigned side = 0; side < 2; side++) {
            got[side] = gpu_read_back(m, s, layer, (enum kvc_side) side, n);
            expected[side] = embedded_read(&alone, want, layer, (enum kvc_side) side, n);
            if (memcmp(got[side], expected[side], bytes) != 0) {
                printf("    layer %u side %u of %zu tokens, %zu packed: other values are read\n", layer, side,
                       n, n_packed);
                like = false;
            }
        }
        attention = embedded_attention(&alone, expected[0], expected[1], q, n - 1, 1);
        error = nmse(out + layer * width, attention, width);
        if (!(error <= embedded_nmse_max(m))) {
            printf("    layer %u of %zu tokens attends with an error of %g\n", layer, n, error);
            like = false;
        }
        for (unsigned side = 0; side < 2; side++) {
            free(got[side]);
            free(expected[side]);
        }
        free(attention);
        free(q);
    }
    free(out);
    embedded_free(&alone);
    return like;
}

size_t gpu_inodes(pid_t pid, unsigned long *inodes, size_t max)
{
    return mapped_inodes(pid, "/memfd:standin-gpu-", "", inodes, max);
}
