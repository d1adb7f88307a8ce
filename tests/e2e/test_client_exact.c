/*
 * A model without a calibrated table: processes share the bytes of their own caches, until a table is
 * activated. What a client reads is what the other one appended, byte for byte, or it finds nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/half.h"
#include "tests/e2e/client_fixture.h"
#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/e2e/tier_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"
#include "tests/lib/wait.h"

enum { TOKENS = 300, WHOLE = 256, BF16 = KVC_EXACT_BF16 + KVC_EXACT_AFTER_ROPE };

static const char *const args[] = {"--pool-bytes=64M", "--extent-bytes=64M", "--arena-bytes=8M",
                                   "--exact=yes", NULL};

/* A daemon without a table. */
static void begin(struct scene *sc, const char *const *options)
{
    struct daemon d;

    CU_ASSERT_FATAL(daemon_start(&d, DAEMON_BY_PATH | DAEMON_WITH_STATE, options));
    *sc = (struct scene){.daemon = d, .g = random_table_geometry(2, 6, 2, 64)};
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&sc->control), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_client_connect(sc->control, sc->daemon.operator_socket), 0);
}

/* A client that opens the model; *ret_open: what kvc_model_open() returned. */
static struct embedded client(const struct scene *sc, uint32_t exact, int *ret_open)
{
    struct embedded m = {.g = sc->g, .n_heads = sc->g.n_kv_heads};
    kvc_model_id id = embedded_id(&m);

    id.exact = exact;
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&m.client), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_client_connect(m.client, sc->daemon.socket), 0);
    *ret_open = kvc_model_open(m.client, &id, &m.model);
    return m;
}

static struct embedded good_client(const struct scene *sc)
{
    int r = 0;
    struct embedded m = client(sc, BF16, &r);

    CU_ASSERT_EQUAL_FATAL(r, 0);
    return m;
}

static kvc_seq *new_seq(const struct embedded *m)
{
    const kvc_seq_options o = {.struct_bytes = sizeof(o),
                               .keys = KVC_KEYS_AFTER_ROPE,
                               .flags = KVC_SEQ_PUBLISH_ALL,
                               .fetch_ms = 8000};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &s), 0);
    return s;
}

/* Vectors of a layer and side as bf16: [n, heads, d]. */
static uint16_t *vectors(const struct embedded *m, uint32_t layer, enum kvc_side side, size_t n)
{
    size_t count = n * m->n_heads * m->g.d;
    float *x = embedded_input(m, 5, layer, side, 0, n);
    uint16_t *to = malloc(count * sizeof(*to));

    assert(to);
    for (size_t i = 0; i < count; i++)
        to[i] = f32_to_bf16(x[i]);
    free(x);
    return to;
}

static int publish(const struct embedded *m, kvc_seq *s, const uint32_t *tokens, size_t *ret_published)
{
    for (uint32_t layer = 0; layer < m->g.n_layers; layer++) {
        _cleanup_(freep) uint16_t *k = vectors(m, layer, KVC_K, TOKENS),
                                  *v = vectors(m, layer, KVC_V, TOKENS);

        int r = kvc_seq_append(s, layer, KVC_BF16, k, v, TOKENS);

        if (r < 0)
            printf("    append: %s\n", kvc_last_error(m->client));
        CU_ASSERT_EQUAL_FATAL(r, 0);
    }
    return kvc_seq_commit(s, tokens, TOKENS, ret_published);
}

static void check_bytes(const struct embedded *m, kvc_seq *s, size_t n)
{
    size_t bytes = n * m->n_heads * m->g.d * sizeof(uint16_t);
    void *bases[4];
    const kvc_blocks to = {.struct_bytes = sizeof(to), .bases = bases, .dtype = KVC_BF16};

    for (unsigned i = 0; i < 4; i++) {
        bases[i] = malloc(bytes);
        assert(bases[i]);
    }
    CU_ASSERT_EQUAL(kvc_seq_read_blocks(s, 0, n, &to), 0);
    for (unsigned i = 0; i < 4; i++) {
        _cleanup_(freep) uint16_t *want = vectors(m, i / 2, (enum kvc_side)(i % 2), n);

        CU_ASSERT_EQUAL(memcmp(bases[i], want, bytes), 0);
        free(bases[i]);
    }
}

/* A client publishes the text, and is gone. */
static void publish_text(const struct scene *sc, const uint32_t *tokens)
{
    struct embedded m = good_client(sc);
    kvc_seq *s = new_seq(&m);
    size_t published = 0;

    CU_ASSERT_EQUAL(publish(&m, s, tokens, &published), 0);
    CU_ASSERT_EQUAL(published, WHOLE);
    embedded_free(&m);
}

/* What a new client finds of the text. */
static size_t find_text(const struct scene *sc, const uint32_t *tokens)
{
    struct embedded m = good_client(sc);
    kvc_seq *s = new_seq(&m);
    size_t n = 0;

    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, TOKENS, &n), 0);
    if (n > 0)
        check_bytes(&m, s, n);
    embedded_free(&m);
    return n;
}

static void test_shared_bytes(void)
{
    _cleanup_(freep) uint32_t *tokens = scene_tokens(0, TOKENS);
    struct embedded m, other;
    struct scene sc;
    int r = 0;

    begin(&sc, args);
    publish_text(&sc, tokens);
    CU_ASSERT_EQUAL(find_text(&sc, tokens), WHOLE);

    m = good_client(&sc);
    other = client(&sc, KVC_EXACT_F16 + KVC_EXACT_AFTER_ROPE, &r);
    CU_ASSERT_EQUAL(r, -ENODATA);
    CU_ASSERT(strstr(kvc_last_error(other.client), "bf16, keys after RoPE") != NULL);
    embedded_free(&other);
    other = client(&sc, 0, &r); /* as a client of an earlier version, which does not ask */
    CU_ASSERT_EQUAL(r, -ENODATA);
    CU_ASSERT(strstr(kvc_last_error(other.client), "stage and activate") != NULL);
    embedded_free(&other);
    sc.g.n_layers = 3;
    other = client(&sc, BF16, &r);
    CU_ASSERT_EQUAL(r, -ENODATA);
    sc.g.n_layers = 2;
    embedded_free(&other);
    embedded_free(&m);
    CU_ASSERT_EQUAL(find_text(&sc, tokens), WHOLE);
    scene_end(&sc);
}

/* A client that runs follows to the table; the exact pages are not found, its sequence goes on. */
static void test_activate(void)
{
    _cleanup_(freep) uint32_t *tokens = scene_tokens(0, TOKENS);
    kvc_model_info info = {.struct_bytes = sizeof(info)};
    uint8_t digest[KVC_DIGEST_BYTES];
    struct embedded m;
    struct scene sc;
    kvc_seq *s, *next;
    size_t n = 0;

    begin(&sc, args);
    publish_text(&sc, tokens);
    m = good_client(&sc);
    s = new_seq(&m);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, TOKENS, &n), 0);
    CU_ASSERT_EQUAL(n, WHOLE);
    CU_ASSERT_EQUAL(kvc_model_get_info(m.model, &info), 0);
    CU_ASSERT(info.exact == BF16 && info.revision == 0 && info.bpd_code == 16);
    scene_activate(&sc, 3, 1, digest);
    CU_ASSERT_EQUAL(kvc_model_get_info(m.model, &info), 0);
    CU_ASSERT(info.exact == 0 && info.revision == 1);
    CU_ASSERT_EQUAL(memcmp(info.table_digest, digest, sizeof(digest)), 0);
    next = new_seq(&m);
    CU_ASSERT_EQUAL(kvc_seq_match(next, tokens, TOKENS, &n), 0);
    CU_ASSERT_EQUAL(n, 0);
    check_bytes(&m, s, WHOLE);
    embedded_free(&m);
    scene_end(&sc);
}

/* Without room for a page nothing is published, and the sequence stays whole. */
static void test_quota(void)
{
    static const char *const small[] = {"--pool-bytes=64M",
                                        "--extent-bytes=1M",
                                        "--span-bytes=1M",
                                        "--arena-bytes=1M",
                                        "--quota-bytes=1200K",
                                        "--exact=yes",
                                        NULL};
    _cleanup_(freep) uint32_t *tokens = scene_tokens(0, TOKENS);
    size_t published = 7;
    struct embedded m;
    struct scene sc;
    kvc_seq *s;
    int r;

    begin(&sc, small);
    m = good_client(&sc);
    s = new_seq(&m);
    r = publish(&m, s, tokens, &published);
    CU_ASSERT((r < 0 && published == 7) || published < WHOLE);
    check_bytes(&m, s, TOKENS);
    embedded_free(&m);
    CU_ASSERT(find_text(&sc, tokens) < WHOLE);
    scene_end(&sc);
}

static void test_restart(void)
{
    static const char *const options[] = {"--pool-bytes=4M", "--extent-bytes=2M", "--arena-bytes=4M",
                                          "--exact=yes", NULL};
    _cleanup_(freep) uint32_t *tokens = scene_tokens(0, TOKENS);
    struct scene sc = {.g = random_table_geometry(2, 6, 2, 64)};
    char path[128];

    supervisor_begin(options);
    sc.daemon = raw_daemon;
    publish_text(&sc, tokens);
    /* until then a daemon that is killed loses the table, and so its pages */
    (void) snprintf(path, sizeof(path), "%s/exact", raw_daemon.state);
    for (struct wait w = wait_begin(); access(path, F_OK) < 0 && wait_again(&w);)
        ;
    supervisor_kill();
    CU_ASSERT_FATAL(supervisor_again());
    CU_ASSERT_EQUAL(find_text(&sc, tokens), WHOLE);
    supervisor_finish();
}

/* Pages that left memory come back from the disk, also after a restart. */
static void test_disk(void)
{
    _cleanup_(freep) uint32_t *tokens = scene_tokens(0, TOKENS);
    struct tier t;

    tier_prepare(&t);
    for (size_t i = 0; i < sizeof(t.args) / sizeof(t.args[0]) - 1; i++)
        if (!t.args[i]) {
            t.args[i] = "--exact=yes";
            break;
        }
    begin(&t.scene, t.args);
    CU_ASSERT(tier_reaches(&t, "ready"));
    publish_text(&t.scene, tokens);
    (void) tier_write_all(&t);
    CU_ASSERT_EQUAL(scene_evict(t.scene.control, ""), WHOLE / 64);
    CU_ASSERT_EQUAL(find_text(&t.scene, tokens), WHOLE);
    CU_ASSERT(tier_ask(&t, KVCOBRA__TIER_ACTION__TIER_ASK)->read_pages > 0);
    tier_restart(&t);
    CU_ASSERT(tier_reaches(&t, "ready"));
    CU_ASSERT_EQUAL(find_text(&t.scene, tokens), WHOLE);
    tier_finish(&t);
}

const char test_suite[] = "client_exact";
const struct test_case test_cases[] = {
    TEST(test_shared_bytes), TEST(test_activate), TEST(test_quota),
    TEST(test_restart),      TEST(test_disk),     TEST_END,
};
