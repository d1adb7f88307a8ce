/*
 * The compressed cache behind the engine: short texts are still exact (in binary16), long ones differ, and
 * the engine returns the sentence of a failure inside the library.
 */
#include "tests/lib/test.h"

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "client/kvcobra.h"
#include "tests/lib/random_table.h"
#include "tests/lib/tiny_gguf.h"
#include "tools/engine/engine.h"
#include "tools/engine/sampler.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { N_MAX = 200 };

struct fixture {
    struct engine *en;
    struct exact_cache *exact;
    kvc_client *client;
    kvc_model *model;
    kvc_seq *seq;
};

static void fixture_deinit(struct fixture *f)
{
    (void) kvc_seq_free(f->seq);
    (void) kvc_model_free(f->model);
    (void) kvc_client_free(f->client);
    (void) exact_cache_free(f->exact);
    (void) engine_free(f->en);
}

static struct engine *open_tiny(uint32_t n_layers)
{
    const struct tiny_gguf_options o = {.architecture = "qwen3", .n_layers = n_layers, .seed = 5};
    _cleanup_(tiny_gguf_freep) struct tiny_gguf *t = tiny_gguf_new(&o);
    _cleanup_(closep) int fd = memfd_create("tiny.gguf", MFD_CLOEXEC);
    struct engine *en = NULL;
    struct errmsg e = {0};
    char path[64];

    CU_ASSERT_FATAL(fd >= 0);
    (void) snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    CU_ASSERT_EQUAL_FATAL(tiny_gguf_write(t, path), 0);
    CU_ASSERT_EQUAL_FATAL(engine_open(path, &(struct engine_options){.n_threads = 2}, &en, &e), 0);
    return en;
}

static void setup(struct fixture *f)
{
    _cleanup_(freep) void *table = NULL;
    struct errmsg e = {0};
    kvc_model_id id;
    size_t bytes;

    f->en = open_tiny(2);
    CU_ASSERT_EQUAL_FATAL(exact_cache_new(engine_geometry(f->en), N_MAX, &f->exact, &e), 0);
    CU_ASSERT_EQUAL_FATAL(random_table_bytes(engine_geometry(f->en), 1, 4.0, true, &table, &bytes), 0);
    engine_model_id(f->en, &id);
    memcpy(id.model_digest, random_table_model_digest, sizeof(id.model_digest)); /* the table's model */
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&f->client), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_model_open_table(f->client, &id, table, bytes, &f->model), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(f->model, NULL, 0, &f->seq), 0);
}

static void test_exact_while_short(void)
{
    _cleanup_(fixture_deinit) struct fixture f = {0};
    struct kv_cache packed, exact;
    double worst = 0.0, kl = 0.0;
    struct errmsg e = {0};

    setup(&f);
    packed = kvcobra_cache_ops(f.client, f.seq);
    exact = exact_cache_ops(f.exact);
    for (size_t i = 0; i < N_MAX; i++) {
        float a[TINY_GGUF_VOCAB], b[TINY_GGUF_VOCAB];
        uint32_t token = (uint32_t) test_rand_below(256);

        CU_ASSERT_EQUAL_FATAL(engine_forward(f.en, &exact, &token, 1, a, &e), 0);
        CU_ASSERT_EQUAL_FATAL(engine_forward(f.en, &packed, &token, 1, b, &e), 0);
        CU_ASSERT_EQUAL(packed.length(packed.ctx), i + 1);
        for (size_t k = 0; i < 64 && k < TINY_GGUF_VOCAB; k++)
            worst = fmax(worst, fabs((double) a[k] - (double) b[k]));
        if (i >= 128)
            kl += sampler_kl(a, b, TINY_GGUF_VOCAB);
    }

    /* up to 64 tokens nothing is packed: keys and values of size 3 rounded at 2^-11, seen through two
     * layers */
    CU_ASSERT(worst < 0.03);
    CU_ASSERT(kl / (N_MAX - 128) >
              1e-6); /* from 128 on, a chunk of 64 has been: the difference shows its use */
    printf("    exact part off by %.2g at most, packed KL %.2g\n", worst, kl / (N_MAX - 128));
}

static void test_sentences(void)
{
    _cleanup_(fixture_deinit) struct fixture f = {0};
    _cleanup_(engine_freep) struct engine *deeper = NULL;
    const uint32_t tokens[3] = {1, 2, 3};
    struct kv_cache packed;
    struct errmsg e = {0};

    setup(&f);
    deeper = open_tiny(3);
    packed = kvcobra_cache_ops(f.client, f.seq);
    CU_ASSERT_EQUAL(engine_forward(deeper, &packed, tokens, 3, NULL, &e), -EINVAL);
    CU_ASSERT_NOT_EQUAL(e.text[0], '\0');
    CU_ASSERT_STRING_EQUAL(e.text, kvc_last_error(f.client));
}

const struct test_case test_cases[] = {TEST(test_exact_while_short), TEST(test_sentences), TEST_END};
const char test_suite[] = "engine_cache_kvcobra";
