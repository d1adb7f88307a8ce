/*
 * Flushing a prefix through the library: what continues it is not found, also while a sequence holds the page
 * and after a restart of the daemon. Other prefixes, other salts, other tenants and earlier chunks stay. The
 * disk tier is in test_client_tier.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/other_user_fixture.h"
#include "tests/e2e/prompts_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

static Kvcobra__FlushReply flush(struct prompts *f, size_t n_tokens, const char *salt)
{
    Kvcobra__Prefix o = prompts_prefix(f, salt);
    Kvcobra__FlushReply state;

    CU_ASSERT_EQUAL(operator_flush(f->sc.control, &o, f->tokens, n_tokens, 64, &state, NULL), 0);
    return state;
}

/* ---- tests ---- */

static void test_prefix(void)
{
    struct prompts f;
    uint32_t *other, *branch;
    Kvcobra__FlushReply state;

    prompts_begin(&f);
    other = scene_tokens(1, TOKENS);
    branch = scene_tokens(0, TOKENS); /* text 0 up to the chunk that is flushed, then another one */
    branch[PREFIX - 64]++;
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    kvc_seq_free(prompts_publish(&f.m, f.tokens, "salt", 0));
    kvc_seq_free(prompts_publish(&f.m, other, NULL, 0));
    kvc_seq_free(prompts_publish(&f.m, branch, NULL, 0));
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, NULL, 0), SHARED);

    state = flush(&f, PREFIX + 63, NULL); /* 63 tokens are no chunk */
    CU_ASSERT(state.pages == 1 && state.held == 0);
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, NULL, 0), PREFIX - 64);
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, "salt", 0), SHARED);
    CU_ASSERT_EQUAL(prompts_found(&f.m, other, NULL, 0), SHARED);
    CU_ASSERT_EQUAL(prompts_found(&f.m, branch, NULL, 0), SHARED);
    state = flush(&f, PREFIX, NULL); /* again */
    CU_ASSERT(state.pages == 0 && state.held == 0);

    state = flush(&f, 64, "salt"); /* a first chunk, in one message */
    CU_ASSERT_EQUAL(state.pages, 1);
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, "salt", 0), 0);
    CU_ASSERT_EQUAL(prompts_found(&f.m, other, NULL, 0), SHARED);

    /* a client that computes the prefix again publishes it again */
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, NULL, 0), SHARED);
    free(other);
    free(branch);
    prompts_finish(&f);
}

/* The end of a prompt, in one message and in several: all its pages go, and earlier ones stay. */
static void test_end_of_prompt(void)
{
    static const size_t flushed[] = {64, 5 * 64, PREFIX - 64, PREFIX};
    struct prompts f;

    prompts_begin(&f);
    for (size_t i = 0; i < sizeof(flushed) / sizeof(flushed[0]); i++) {
        Kvcobra__Prefix o = prompts_prefix(&f, NULL);
        Kvcobra__LookupReply *places = NULL;
        Kvcobra__FlushReply state;

        kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
        CU_ASSERT_EQUAL(operator_flush(f.sc.control, &o, f.tokens, PREFIX + 1, flushed[i], &state, NULL), 0);
        CU_ASSERT_EQUAL(state.pages, flushed[i] / 64);
        CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, NULL, 0), PREFIX - flushed[i]);
        CU_ASSERT_EQUAL_FATAL(operator_lookup(f.sc.control, &o, f.tokens, SHARED, false, &places, NULL), 0);
        for (size_t k = 0; k < places->n_places; k += 2)
            CU_ASSERT_EQUAL(places->places[k]->in_memory,
                            k / 2 * 64 < PREFIX - flushed[i] || k / 2 * 64 >= PREFIX);
        operator_message_freep(&places);
    }
    prompts_finish(&f);
}

/* Pages with which several prompts begin are shared; without a next chunk, two must continue a page. */
static void test_shared(void)
{
    Kvcobra__Prefix o;
    Kvcobra__LookupReply *places = NULL;
    struct prompts f;
    uint32_t *branch;

    prompts_begin(&f);
    branch = scene_tokens(0, TOKENS);
    branch[8 * 64]++; /* shares chunks 0 to 7: in the last message, chunk 7 has no next one */
    o = prompts_prefix(&f, NULL);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    for (unsigned n_published = 1; n_published <= 2; n_published++) {
        CU_ASSERT_EQUAL_FATAL(operator_lookup(f.sc.control, &o, f.tokens, SHARED, true, &places, NULL), 0);
        for (size_t k = 0; k < places->n_places; k++)
            CU_ASSERT_EQUAL(places->places[k]->is_shared, n_published == 2 && k == 14);
        operator_message_freep(&places);
        CU_ASSERT_EQUAL_FATAL(operator_lookup(f.sc.control, &o, f.tokens, 8 * 64 + 1, true, &places, NULL),
                              0);
        for (size_t k = 0; k < places->n_places; k++)
            CU_ASSERT_EQUAL(places->places[k]->is_shared, n_published == 2 && k == 14);
        operator_message_freep(&places);
        if (n_published == 1)
            kvc_seq_free(prompts_publish(&f.m, branch, NULL, 0));
    }
    CU_ASSERT_EQUAL_FATAL(operator_lookup(f.sc.control, &o, f.tokens, SHARED, false, &places, NULL), 0);
    for (size_t k = 0; k < places->n_places; k++)
        CU_ASSERT_EQUAL(places->places[k]->is_shared, 0);
    operator_message_freep(&places);
    free(branch);
    prompts_finish(&f);
}

static void test_repeatable(void)
{
    struct prompts f;
    Kvcobra__FlushReply state;

    prompts_begin(&f);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, KVC_SEQ_PUBLISH_ALL));
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, KVC_SEQ_PUBLISH_ALL | KVC_SEQ_REPEATABLE));
    state = flush(&f, PREFIX, NULL);
    CU_ASSERT_EQUAL(state.pages, 2);
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, NULL, 0), PREFIX - 64);
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, NULL, KVC_SEQ_REPEATABLE), PREFIX - 64);
    prompts_finish(&f);
}

/* The holder keeps its bytes; the page leaves with it, and the accounts are right after that. */
static void test_held(void)
{
    struct prompts f;
    Kvcobra__StatusReply *status;
    kvc_seq *holder;
    Kvcobra__FlushReply state;
    float *before, *after;
    uint64_t pages;

    prompts_begin(&f);
    holder = prompts_publish(&f.m, f.tokens, NULL, 0);
    before = scene_attend(&f.m, holder, 0);
    state = flush(&f, PREFIX, NULL);
    CU_ASSERT(state.pages == 1 && state.held == 1);
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, NULL, 0), PREFIX - 64);
    after = scene_attend(&f.m, holder, 0);
    CU_ASSERT_EQUAL(memcmp(before, after, scene_attend_floats(&f.m) * sizeof(*after)), 0);
    status = scene_status(&f.sc);
    pages = status->tenants[0]->pages;
    CU_ASSERT_EQUAL(pages, SHARED / 64);
    status = scene_status_free(status);

    /* another sequence publishes the chunk beside it */
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, NULL, 0), SHARED);
    kvc_seq_free(holder);
    pages = scene_evict(f.sc.control, NULL);
    CU_ASSERT_EQUAL(pages, SHARED / 64 + 1);
    free(before);
    free(after);
    prompts_finish(&f);
}

static void test_restart(void)
{
    struct prompts f;
    kvc_seq *holder;
    float *before, *after;

    prompts_begin(&f);
    holder = prompts_publish(&f.m, f.tokens, NULL, 0);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, "salt", 0));
    before = scene_attend(&f.m, holder, 0);
    (void) flush(&f, PREFIX, NULL); /* held: gets another key */
    (void) flush(&f, PREFIX, "salt");
    supervisor_kill();
    CU_ASSERT_FATAL(supervisor_again());
    scene_reconnect(f.sc.control, f.sc.daemon.operator_socket);
    scene_reconnect(f.m.client, f.sc.daemon.socket);
    after = scene_attend(&f.m, holder, 0);
    CU_ASSERT_EQUAL(memcmp(before, after, scene_attend_floats(&f.m) * sizeof(*after)), 0);
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, NULL, 0), PREFIX - 64);
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, "salt", 0), PREFIX - 64);
    CU_ASSERT_EQUAL(flush(&f, PREFIX, NULL).pages, 0);
    kvc_seq_free(holder);
    free(before);
    free(after);
    prompts_finish(&f);
}

/* ---- other tenants ---- */

static bool other_tenant(const struct scene *sc, int from_parent, int to_parent)
{
    uint32_t *tokens = scene_tokens(0, TOKENS);
    struct embedded m;

    other_user_become(OTHER_USER_UID);
    m = scene_client(sc);
    kvc_seq_free(prompts_publish(&m, tokens, NULL, 0));
    pipe_signal(to_parent);
    (void) pipe_wait(from_parent);
    CU_ASSERT_EQUAL(prompts_found(&m, tokens, NULL, 0), SHARED);
    free(tokens);
    embedded_free(&m);
    return true;
}

static void test_other_tenants(void)
{
    struct prompts f;
    struct child c;

    if (!other_user_is_possible())
        return;

    scene_start(&f.sc, random_table_geometry(2, 4, 2, 64), 3, 1, prompts_args);
    CU_ASSERT_EQUAL_FATAL(chmod(f.sc.daemon.folder, 0711), 0); /* other users reach the socket */
    prompts_open_client(&f);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    c = child_start(other_tenant, &f.sc);
    CU_ASSERT_FATAL(pipe_wait(c.from));
    CU_ASSERT_EQUAL(flush(&f, PREFIX, NULL).pages, 1);
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, NULL, 0), PREFIX - 64);
    pipe_signal(c.to);
    CU_ASSERT(child_end(&c));
    free(f.tokens);
    embedded_free(&f.m);
    scene_end(&f.sc);
}

/* A client asks about its own tenant, and about nothing else. */
static void test_own_view(void)
{
    Kvcobra__LookupReply *places = NULL;
    Kvcobra__StatusReply *status = NULL;
    Kvcobra__Prefix o;
    struct prompts f;

    prompts_begin(&f);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    CU_ASSERT_EQUAL_FATAL(operator_get_status(f.m.client, &status, NULL), 0);
    CU_ASSERT(status->n_tenants == 1 && status->n_devices == 0 && status->n_spaces == 0);
    CU_ASSERT(status->pid == 0 && status->pool_bytes == 0 && status->sessions == 0);
    CU_ASSERT_STRING_EQUAL(status->tenants[0]->name, f.tenant);
    CU_ASSERT(status->tenants[0]->pages == SHARED / 64 && status->tenants[0]->quota_bytes > 0);
    status = scene_status_free(status);

    o = prompts_prefix(&f, NULL);
    o.tenant = (char *) "";
    CU_ASSERT_EQUAL(operator_lookup(f.m.client, &o, f.tokens, SHARED, false, &places, NULL), 0);
    CU_ASSERT(places->n_places == SHARED / 64 * 2 && places->places[0]->in_memory);
    operator_message_freep(&places);
    CU_ASSERT_EQUAL(operator_lookup(f.m.client, &o, f.tokens, SHARED, true, &places, NULL), -EPERM);
    o = prompts_prefix(&f, NULL);
    o.tenant = (char *) "uid-4711";
    CU_ASSERT_EQUAL(operator_lookup(f.m.client, &o, f.tokens, SHARED, false, &places, NULL), -EPERM);
    CU_ASSERT_PTR_NOT_NULL(strstr(kvc_last_error(f.m.client), "only operators ask about others"));
    prompts_finish(&f);
}

/* ---- arguments ---- */

static void refuse(struct prompts *f, const Kvcobra__Prefix *o, size_t n_tokens, int want, const char *text)
{
    Kvcobra__FlushReply state = {.pages = 7};
    struct errmsg e = {""};
    int r = operator_flush(f->sc.control, o, f->tokens, n_tokens, 64, &state, &e);

    CU_ASSERT_EQUAL(r, want);
    CU_ASSERT_PTR_NOT_NULL(strstr(e.text, text));
    if (r != want || !strstr(e.text, text))
        printf("    %d: %s\n", r, e.text);
    CU_ASSERT_EQUAL(state.pages, 7);
}

static void test_arguments(void)
{
    static const uint8_t unknown[KVC_DIGEST_BYTES];
    static const char salt[KVC_SALT_BYTES_MAX + 1];
    Kvcobra__Prefix o;
    struct prompts f;

    prompts_begin(&f);
    kvc_seq_free(prompts_publish(&f.m, f.tokens, NULL, 0));
    o = prompts_prefix(&f, NULL);
    CU_ASSERT_EQUAL(operator_flush(f.m.client, &o, f.tokens, 64, 64, NULL, NULL), -EPERM);
    refuse(&f, &o, 63, -EINVAL, "a prefix of 63 tokens has no page");
    o = prompts_prefix(&f, NULL);
    o.tenant = (char *) "uid-4711";
    refuse(&f, &o, 64, -ENOENT, "there is no tenant \"uid-4711\"");
    o = prompts_prefix(&f, NULL);
    o.table_digest = operator_digest(unknown);
    refuse(&f, &o, 64, -ENOENT, "table");
    o = prompts_prefix(&f, NULL);
    o.salt = (ProtobufCBinaryData){sizeof(salt), (uint8_t *) salt};
    refuse(&f, &o, 64, -EINVAL, "the salt has 1025 bytes");
    o = prompts_prefix(&f, NULL);
    for (uint32_t first = 0; first < 3; first++) { /* two KV heads */
        o.first_kv_head = first;
        o.n_kv_heads = 3 - first + (first == 2);
        refuse(&f, &o, 64, -EINVAL, "KV heads from");
    }
    CU_ASSERT_EQUAL(prompts_found(&f.m, f.tokens, NULL, 0), SHARED); /* nothing was flushed */
    prompts_finish(&f);
}

const struct test_case test_cases[] = {
    TEST(test_prefix),    TEST(test_repeatable),
    TEST(test_held),      TEST(test_restart),
    TEST(test_shared),    TEST(test_end_of_prompt),
    TEST(test_own_view),  TEST(test_other_tenants),
    TEST(test_arguments), TEST_END,
};
const char test_suite[] = "client_flush";
