/* See prompts_fixture.h. */
#include "tests/e2e/prompts_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/e2e/raw_service_fixture.h"
#include "tests/e2e/supervisor_fixture.h"
#include "tests/lib/random_table.h"
#include "tests/lib/test.h"

const char *const prompts_args[] = {"--pool-bytes=16M",
                                    "--extent-bytes=1M",
                                    "--span-bytes=256K",
                                    "--arena-bytes=4M",
                                    "--quota-bytes=64M",
                                    "--socket-mode=0666",
                                    NULL};

void prompts_open_client(struct prompts *p)
{
    Kvcobra__ListTablesReply *tables = NULL;

    p->m = scene_client(&p->sc);
    p->tokens = scene_tokens(0, TOKENS);
    (void) snprintf(p->tenant, sizeof(p->tenant), "uid-%lu", (unsigned long) geteuid());
    CU_ASSERT_EQUAL_FATAL(operator_list_tables(p->sc.control, &tables, NULL), 0);
    CU_ASSERT_EQUAL_FATAL(tables->n_tables, 1);
    memcpy(p->digest, tables->tables[0]->digest.data, sizeof(p->digest));
    operator_message_freep(&tables);
}

void prompts_begin(struct prompts *p)
{
    supervisor_begin(prompts_args);
    scene_attach(&p->sc, &raw_daemon, random_table_geometry(2, 4, 2, 64), 3, 1);
    prompts_open_client(p);
}

void prompts_finish(struct prompts *p)
{
    free(p->tokens);
    embedded_free(&p->m);
    scene_detach(&p->sc);
    supervisor_finish();
}

Kvcobra__Prefix prompts_prefix(const struct prompts *p, const char *salt)
{
    Kvcobra__Prefix prefix = KVCOBRA__PREFIX__INIT;

    prefix.tenant = (char *) p->tenant;
    prefix.table_digest = operator_digest(p->digest);
    prefix.salt = (ProtobufCBinaryData){salt ? strlen(salt) : 0, (uint8_t *) salt};
    return prefix;
}

/* ---- texts ---- */

kvc_seq *prompts_new_seq(const struct embedded *m, const char *salt, uint32_t flags)
{
    const kvc_seq_options o = {
        .struct_bytes = sizeof(o), .salt = salt, .salt_bytes = salt ? strlen(salt) : 0, .flags = flags};
    kvc_seq *s = NULL;

    CU_ASSERT_EQUAL_FATAL(kvc_seq_new_with(m->model, &o, &s), 0);
    return s;
}

kvc_seq *prompts_publish(const struct embedded *m, const uint32_t *tokens, const char *salt, uint32_t flags)
{
    kvc_seq *s = prompts_new_seq(m, salt, flags);
    size_t n = 0;

    for (size_t at = 0; at < TOKENS; at += 64) {
        CU_ASSERT_EQUAL_FATAL(embedded_append(m, s, 0, at, 64), 0);
        CU_ASSERT_EQUAL_FATAL(kvc_seq_commit(s, tokens, at + 64, &n), 0);
    }
    CU_ASSERT(n >= SHARED);
    return s;
}

size_t prompts_found(const struct embedded *m, const uint32_t *tokens, const char *salt, uint32_t flags)
{
    kvc_seq *s = prompts_new_seq(m, salt, flags);
    size_t n = 0;

    CU_ASSERT_EQUAL(kvc_seq_match(s, tokens, SHARED + 1, &n), 0);
    kvc_seq_free(s);
    return n;
}
