/* Aliases of models: clients with different digests share pages, who may declare aliases, and a restart. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/client_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

static const char *const pool[] = {"--pool-bytes=64M", "--arena-bytes=8M", NULL};

enum { PROMPT = 256, SHARED = 192 }; /* 64 (c + 2) <= 256: three chunks */

static struct geometry small(void)
{
    return random_table_geometry(2, 4, 2, 64);
}

/* The digest of the model in its other format. */
static void other_digest(const kvc_model_id *id, uint8_t ret[KVC_DIGEST_BYTES])
{
    memcpy(ret, id->model_digest, KVC_DIGEST_BYTES);
    ret[0] ^= 0xff;
}

/* A connected client that opens @digest. Return: as kvc_model_open(). */
static int open_digest(const struct scene *sc, const uint8_t *digest, struct embedded *ret)
{
    kvc_model_id id;

    *ret = (struct embedded){.g = sc->g, .n_heads = sc->g.n_kv_heads};
    id = embedded_id(ret);
    memcpy(id.model_digest, digest, KVC_DIGEST_BYTES);
    CU_ASSERT_EQUAL_FATAL(kvc_client_new(&ret->client), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_client_connect(ret->client, sc->daemon.socket), 0);
    return kvc_model_open(ret->client, &id, &ret->model);
}

static void model_and_alias(const struct scene *sc, uint8_t ret_model[KVC_DIGEST_BYTES],
                            uint8_t ret_alias[KVC_DIGEST_BYTES])
{
    struct embedded m = {.g = sc->g, .n_heads = sc->g.n_kv_heads};
    kvc_model_id id = embedded_id(&m);

    memcpy(ret_model, id.model_digest, KVC_DIGEST_BYTES);
    other_digest(&id, ret_alias);
}

static void publish(const struct embedded *m)
{
    size_t published = 0;
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL_FATAL(scene_publish(m, s, 0, 0, PROMPT, PROMPT, &published), 0);
    CU_ASSERT_EQUAL(published, SHARED);
    kvc_seq_free(s);
}

static size_t match(const struct embedded *m)
{
    uint32_t *tokens = scene_tokens(0, PROMPT);
    kvc_seq *s = NULL;
    size_t n = 0;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(m->model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, PROMPT, &n), 0);
    free(tokens);
    kvc_seq_free(s);
    return n;
}

/* ---- requests ---- */

static int alias_as(kvc_client *c, const uint8_t *alias, const uint8_t *model)
{
    _cleanup_(operator_message_freep) Kvcobra__AliasModelReply *reply = NULL;
    Kvcobra__AliasModel m = KVCOBRA__ALIAS_MODEL__INIT;
    int r;

    m.alias = operator_digest(alias);
    m.model = operator_digest(model);
    r = operator_call(c, KVCOBRA__REQUEST__BODY_ALIAS_MODEL, &m.base, &reply, NULL);
    return r < 0 ? r : operator_outcome(reply->outcome, NULL);
}

/* @ret_model: that it was an alias of; may be NULL */
static int unalias(kvc_client *c, const uint8_t *alias, uint8_t *ret_model)
{
    _cleanup_(operator_message_freep) Kvcobra__UnaliasModelReply *reply = NULL;
    Kvcobra__UnaliasModel m = KVCOBRA__UNALIAS_MODEL__INIT;
    int r;

    m.alias = operator_digest(alias);
    r = operator_call(c, KVCOBRA__REQUEST__BODY_UNALIAS_MODEL, &m.base, &reply, NULL);
    if (r == 0 && ret_model)
        memcpy(ret_model, reply->model.data, KVC_DIGEST_BYTES);
    return r;
}

struct first_alias {
    uint8_t alias[KVC_DIGEST_BYTES], model[KVC_DIGEST_BYTES];
};

/* The number of aliases; the first one is in *ret. */
static size_t list(kvc_client *c, struct first_alias *ret)
{
    _cleanup_(operator_message_freep) Kvcobra__ListAliasesReply *got = NULL;
    const Kvcobra__ListAliases m = KVCOBRA__LIST_ALIASES__INIT;

    CU_ASSERT_EQUAL_FATAL(operator_call(c, KVCOBRA__REQUEST__BODY_LIST_ALIASES, &m.base, &got, NULL), 0);
    if (got->n_aliases > 0) {
        memcpy(ret->alias, got->aliases[0]->alias.data, KVC_DIGEST_BYTES);
        memcpy(ret->model, got->aliases[0]->model.data, KVC_DIGEST_BYTES);
    }
    return got->n_aliases;
}

/* ---- tests ---- */

/* The geometry of @digest's active table; @n_layers 0: it has none. */
static void geometry_is(const struct embedded *m, const uint8_t *digest, uint32_t n_layers)
{
    kvc_geometry g = {.struct_bytes = sizeof(g)};
    double freq[KVC_ROPE_FREQ_MAX];
    int r = kvc_client_get_geometry(m->client, digest, &g, freq);

    CU_ASSERT_EQUAL(r, n_layers == 0 ? -ENODATA : 0);
    CU_ASSERT_EQUAL(g.n_layers, n_layers);
}

/* A client of the alias publishes, a client of the model finds, and the other way round. */
static void test_pages_are_shared(void)
{
    uint8_t model[KVC_DIGEST_BYTES], alias[KVC_DIGEST_BYTES];
    struct first_alias first = {{0}, {0}};
    struct embedded a, b;
    struct scene sc;

    scene_start(&sc, small(), 3, 1, pool);
    model_and_alias(&sc, model, alias);
    CU_ASSERT_EQUAL(open_digest(&sc, alias, &a), -ENODATA);
    embedded_free(&a);

    CU_ASSERT_EQUAL(alias_as(sc.control, alias, model), 0);
    CU_ASSERT_EQUAL(alias_as(sc.control, alias, model), 1);
    CU_ASSERT_EQUAL_FATAL(list(sc.control, &first), 1);
    CU_ASSERT(memcmp(first.alias, alias, sizeof(alias)) == 0 &&
              memcmp(first.model, model, sizeof(model)) == 0);

    CU_ASSERT_EQUAL_FATAL(open_digest(&sc, alias, &a), 0);
    publish(&a);
    CU_ASSERT_EQUAL_FATAL(open_digest(&sc, model, &b), 0);
    CU_ASSERT_EQUAL(match(&b), SHARED);
    CU_ASSERT_EQUAL(match(&a), SHARED);
    CU_ASSERT_EQUAL(list(a.client, &first), 1); /* on the clients' socket */
    geometry_is(&a, alias, small().n_layers);
    embedded_free(&a);
    embedded_free(&b);
    scene_end(&sc);
}

/* The end of an alias does not touch a client that has the model open. */
static void test_end_of_an_alias(void)
{
    uint8_t model[KVC_DIGEST_BYTES], alias[KVC_DIGEST_BYTES], was[KVC_DIGEST_BYTES] = {0};
    struct embedded a, late;
    struct scene sc;

    scene_start(&sc, small(), 3, 1, pool);
    model_and_alias(&sc, model, alias);
    CU_ASSERT_EQUAL(alias_as(sc.control, alias, model), 0);
    CU_ASSERT_EQUAL_FATAL(open_digest(&sc, alias, &a), 0);
    CU_ASSERT_EQUAL(unalias(sc.control, alias, was), 0);
    CU_ASSERT_EQUAL(memcmp(was, model, sizeof(was)), 0);
    CU_ASSERT_EQUAL(unalias(sc.control, alias, NULL), -ENOENT);
    publish(&a);
    CU_ASSERT_EQUAL(match(&a), SHARED);
    CU_ASSERT_EQUAL(open_digest(&sc, alias, &late), -ENODATA);
    geometry_is(&late, alias, 0);
    geometry_is(&late, model, small().n_layers);
    embedded_free(&late);
    embedded_free(&a);
    scene_end(&sc);
}

/* Clients cannot declare or end aliases; what a daemon refuses, it refuses with a sentence. */
static void test_refusals(void)
{
    uint8_t model[KVC_DIGEST_BYTES], alias[KVC_DIGEST_BYTES];
    uint8_t digest[KVC_DIGEST_BYTES];
    struct first_alias first = {{0}, {0}};
    struct embedded m;
    struct scene sc;
    void *bytes;
    size_t n;

    scene_start(&sc, small(), 3, 1, pool);
    model_and_alias(&sc, model, alias);
    m = scene_client(&sc);
    CU_ASSERT_EQUAL(alias_as(m.client, alias, model), -EPERM);
    CU_ASSERT_EQUAL(unalias(m.client, alias, NULL), -EPERM);
    CU_ASSERT_EQUAL(alias_as(sc.control, model, model), -EINVAL);
    CU_ASSERT_EQUAL(alias_as(sc.control, NULL, model), -EINVAL);
    CU_ASSERT_EQUAL(alias_as(sc.control, model, alias), -EBUSY); /* it has a table */
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(sc.control), "tables of its own"));
    CU_ASSERT_EQUAL(list(sc.control, &first), 0);

    CU_ASSERT_EQUAL(alias_as(sc.control, alias, model), 0);
    CU_ASSERT_EQUAL_FATAL(random_table_bytes_of(&sc.g, alias, 2, 3, &bytes, &n), 0);
    CU_ASSERT_EQUAL(operator_stage_table(sc.control, bytes, n, digest, NULL),
                    -EBUSY); /* no client would use it */
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(sc.control), "alias"));
    CU_ASSERT_EQUAL(unalias(sc.control, alias, NULL), 0);
    CU_ASSERT_EQUAL(operator_stage_table(sc.control, bytes, n, digest, NULL), 0);
    free(bytes);
    embedded_free(&m);
    scene_end(&sc);
}

/* A restart keeps aliases, and clients that opened by an alias go on. */
static void test_restart(void)
{
    uint8_t model[KVC_DIGEST_BYTES], alias[KVC_DIGEST_BYTES];
    struct first_alias first = {{0}, {0}};
    struct embedded a, b;
    struct daemon d;
    struct scene sc;

    assert(daemon_start(&d, DAEMON_WITH_STATE, pool));
    scene_attach(&sc, &d, small(), 3, 1);
    model_and_alias(&sc, model, alias);
    CU_ASSERT_EQUAL(alias_as(sc.control, alias, model), 0);
    CU_ASSERT_EQUAL_FATAL(open_digest(&sc, alias, &a), 0);
    CU_ASSERT_FATAL(daemon_end(&sc.daemon));
    CU_ASSERT_FATAL(daemon_start_again(&sc.daemon, pool));
    scene_reconnect(sc.control, sc.daemon.operator_socket);
    CU_ASSERT_EQUAL_FATAL(list(sc.control, &first), 1);
    CU_ASSERT_EQUAL(memcmp(first.alias, alias, sizeof(alias)), 0);

    scene_reconnect(a.client, sc.daemon.socket);
    publish(&a);
    CU_ASSERT_EQUAL_FATAL(open_digest(&sc, model, &b), 0);
    CU_ASSERT_EQUAL(match(&b), SHARED);
    embedded_free(&a);
    embedded_free(&b);
    scene_end(&sc);
}

/* Another model of the same geometry, with an active table. */
static void activate_other(const struct scene *sc, const uint8_t model[KVC_DIGEST_BYTES])
{
    uint8_t digest[KVC_DIGEST_BYTES];
    void *bytes;
    size_t n;

    CU_ASSERT_EQUAL_FATAL(random_table_bytes_of(&sc->g, model, 2, 3, &bytes, &n), 0);
    CU_ASSERT_EQUAL_FATAL(operator_stage_table(sc->control, bytes, n, digest, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(operator_activate_table(sc->control, digest, 0, NULL, NULL), 0);
    free(bytes);
}

/*
 * The alias names another model when the client connects again. Keys and pages of its sequences have the
 * first model's digest, so the client does not open the other one: it continues privately and publishes
 * nothing.
 */
static void test_changed_alias(void)
{
    uint8_t model[KVC_DIGEST_BYTES], other[KVC_DIGEST_BYTES], alias[KVC_DIGEST_BYTES];
    kvc_model_info info = {.struct_bytes = sizeof(info)};
    uint8_t table[KVC_DIGEST_BYTES];
    struct embedded a, b;
    struct daemon d;
    struct scene sc;
    kvc_seq *s = NULL;
    size_t published = 7;

    assert(daemon_start(&d, DAEMON_WITH_STATE, pool));
    scene_attach(&sc, &d, small(), 3, 1);
    model_and_alias(&sc, model, alias);
    memcpy(other, alias, sizeof(other));
    other[1] ^= 0xff;
    activate_other(&sc, other);
    CU_ASSERT_EQUAL(alias_as(sc.control, alias, model), 0);
    CU_ASSERT_EQUAL_FATAL(open_digest(&sc, alias, &a), 0);
    CU_ASSERT_EQUAL_FATAL(kvc_model_get_info(a.model, &info), 0);
    memcpy(table, info.table_digest, sizeof(table));
    CU_ASSERT_EQUAL(alias_as(sc.control, alias, other), -EEXIST);
    CU_ASSERT_EQUAL(unalias(sc.control, alias, NULL), 0);
    CU_ASSERT_EQUAL(alias_as(sc.control, alias, other), 0);
    CU_ASSERT_FATAL(daemon_end(&sc.daemon));
    CU_ASSERT_FATAL(daemon_start_again(&sc.daemon, pool));

    scene_reconnect(a.client, sc.daemon.socket);
    CU_ASSERT_EQUAL_FATAL(kvc_seq_new(a.model, NULL, 0, &s), 0);
    CU_ASSERT_EQUAL(scene_publish(&a, s, 0, 0, PROMPT, PROMPT, &published), 0);
    CU_ASSERT_EQUAL(published, 0);
    CU_ASSERT_EQUAL(match(&a), 0);
    CU_ASSERT_EQUAL(kvc_model_get_info(a.model, &info), 0);
    CU_ASSERT_EQUAL(memcmp(table, info.table_digest, sizeof(table)), 0); /* still the first model's */
    CU_ASSERT_EQUAL_FATAL(open_digest(&sc, alias, &b), 0); /* a new client opens the other model */
    publish(&b);
    CU_ASSERT_EQUAL(match(&a), 0);
    embedded_free(&a);
    embedded_free(&b);
    scene_reconnect(sc.control, sc.daemon.operator_socket);
    scene_end(&sc);
}

/* An embedded client has no daemon that knows aliases: its table must have its digest. */
static void test_embedded_client(void)
{
    uint8_t model[KVC_DIGEST_BYTES], alias[KVC_DIGEST_BYTES];
    kvc_model *opened = NULL;
    struct embedded m;
    kvc_model_id id;
    struct scene sc;

    scene_start(&sc, small(), 3, 1, pool);
    model_and_alias(&sc, model, alias);
    CU_ASSERT_EQUAL(alias_as(sc.control, alias, model), 0);
    m = scene_client(&sc);
    id = embedded_id(&m);
    memcpy(id.model_digest, alias, sizeof(alias));
    CU_ASSERT_EQUAL(kvc_model_open_table(m.client, &id, sc.bytes, sc.n_bytes, &opened), -EINVAL);
    CU_ASSERT_PTR_NULL(opened);
    embedded_free(&m);
    scene_end(&sc);
}

const struct test_case test_cases[] = {
    TEST(test_pages_are_shared),
    TEST(test_end_of_an_alias),
    TEST(test_refusals),
    TEST(test_restart),
    TEST(test_changed_alias),
    TEST(test_embedded_client),
    TEST_END,
};
const char test_suite[] = "client_alias";
