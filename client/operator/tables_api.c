/* Tables as an operator sees them: list, stage, activate. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc/table.h"
#include "base/cleanup.h"
#include "client/connection/client.h"
#include "client/operator/trial_api.h"

/* ---- list ---- */

static int tables_api_read_info(const Kvcobra__TableInfo *from, kvc_table_info *to, struct errmsg *e)
{
    if (!bytes_are(from->digest, KVC_DIGEST_BYTES) || !bytes_are(from->model_digest, KVC_DIGEST_BYTES))
        return fail(e, -EPROTO, "kvcobrad listed a table without a digest");
    *to = (kvc_table_info){
        .state = (enum kvc_table_state) from->state,
        .bpd_code = from->bpd_code,
        .file_bytes = from->file_bytes,
        .references = from->references,
        .pages = from->pages,
        .revision = from->revision,
    };
    memcpy(to->digest, from->digest.data, KVC_DIGEST_BYTES);
    memcpy(to->model_digest, from->model_digest.data, KVC_DIGEST_BYTES);
    (void) snprintf(to->reason, sizeof(to->reason), "%s", from->reason);
    to->shadow_ppm = from->shadow_ppm;
    to->canary_share = from->canary_share;
    to->canary_tenants = from->canary_tenants;
    fit_read(from->fit, &to->fit);
    return 0;
}

static int tables_api_list_page(kvc_client *c, uint64_t *cursor, kvc_table_info **tables, size_t *n)
{
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    const Kvcobra__ListTablesReply *got;
    struct reply reply;
    kvc_table_info *more;
    int r;

    list.cursor = *cursor;
    request.body_case = KVCOBRA__REQUEST__BODY_LIST_TABLES;
    request.list_tables = &list;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_LIST_TABLES, &reply,
                           &c->error);
    if (r < 0)
        return r;
    got = reply.message->list_tables;
    more = realloc(*tables, (*n + got->n_tables + 1) * sizeof(*more));
    if (!more)
        r = fail(&c->error, -ENOMEM, "out of memory for %zu tables", *n + got->n_tables);
    else
        *tables = more;
    for (size_t i = 0; r == 0 && i < got->n_tables; i++) {
        r = tables_api_read_info(got->tables[i], &more[*n], &c->error);
        if (r == 0)
            ++*n;
    }
    if (r == 0 && got->next_cursor != 0 && (got->n_tables == 0 || got->next_cursor == *cursor))
        r = fail(&c->error, -EPROTO, "kvcobrad's list of tables does not end");
    *cursor = got->next_cursor;
    reply_free(&reply);
    return r;
}

int kvc_table_list(kvc_client *c, kvc_table_info **ret_tables, size_t *ret_n)
{
    _cleanup_(freep) kvc_table_info *tables = NULL;
    uint64_t cursor = 0;
    size_t n = 0;
    int r = client_enter_connected(c);

    if (r < 0)
        return r;
    if (!ret_tables || !ret_n)
        return fail(&c->error, -EINVAL, "kvc_table_list: ret_tables or ret_n is NULL");
    do
        r = tables_api_list_page(c, &cursor, &tables, &n);
    while (r == 0 && cursor != 0);
    if (r < 0)
        return r;
    *ret_tables = take_ptr(tables);
    *ret_n = n;
    return 0;
}

/* ---- stage ---- */

/* The bytes in a memory object that nobody can change any more: what the daemon checks is what it keeps. */
static int tables_api_seal_bytes(const void *bytes, size_t n_bytes, int *ret_fd)
{
    _cleanup_(closep) int fd = memfd_create("kvcobra-table", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -errno;
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = write(fd, (const char *) bytes + done, n_bytes - done);

        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t) n : 0;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return -errno;
    *ret_fd = take_fd(&fd);
    return 0;
}

static int tables_api_stage_answer(kvc_client *c, const Kvcobra__StageTableReply *got, uint8_t *ret_digest)
{
    const char *why = got->reason[0] ? got->reason : "no reason given";

    if (got->state == KVCOBRA__TABLE_STATE__TABLE_REJECTED)
        return fail(&c->error, -EBADMSG, "kvcobrad rejected the table: %s", why);
    if (!bytes_are(got->digest, KVC_DIGEST_BYTES))
        return fail(&c->error, -EPROTO, "kvcobrad staged a table without saying its digest");
    if (got->outcome != KVCOBRA__OUTCOME__OUTCOME_APPLIED &&
        got->outcome != KVCOBRA__OUTCOME__OUTCOME_ALREADY)
        return fail(&c->error, -EBADMSG, "kvcobrad did not stage the table: %s", why);
    memcpy(ret_digest, got->digest.data, KVC_DIGEST_BYTES);
    return got->outcome == KVCOBRA__OUTCOME__OUTCOME_ALREADY;
}

int kvc_table_stage(kvc_client *c, const void *bytes, size_t n_bytes, uint8_t ret_digest[KVC_DIGEST_BYTES])
{
    Kvcobra__StageTable stage = KVCOBRA__STAGE_TABLE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    _cleanup_(closep) int fd = -1;
    struct reply reply;
    int r = client_enter_connected(c);

    if (r < 0)
        return r;
    if (!bytes || !ret_digest)
        return fail(&c->error, -EINVAL, "kvc_table_stage: bytes or ret_digest is NULL");
    if (n_bytes == 0 || n_bytes > TABLE_FILE_BYTES_MAX)
        return fail(&c->error, -EBADMSG, "%zu bytes are not a table: at most %zu", n_bytes,
                    (size_t) TABLE_FILE_BYTES_MAX);
    r = tables_api_seal_bytes(bytes, n_bytes, &fd);
    if (r < 0)
        return fail(&c->error, r, "cannot seal %zu bytes for kvcobrad: %s", n_bytes, strerror(-r));
    stage.bytes = n_bytes;
    request.body_case = KVCOBRA__REQUEST__BODY_STAGE_TABLE;
    request.stage_table = &stage;
    r = connection_request(&c->connection, &request, &fd, 1, KVCOBRA__REPLY__BODY_STAGE_TABLE, &reply,
                           &c->error);
    if (r < 0)
        return r;
    r = tables_api_stage_answer(c, reply.message->stage_table, ret_digest);
    reply_free(&reply);
    return r;
}

/* ---- activate ---- */

static int tables_api_activate_answer(kvc_client *c, const Kvcobra__ActivateTableReply *got,
                                      uint64_t *ret_revision)
{
    switch (got->outcome) {
    case KVCOBRA__OUTCOME__OUTCOME_APPLIED:
    case KVCOBRA__OUTCOME__OUTCOME_ALREADY:
        if (ret_revision)
            *ret_revision = got->revision;
        return got->outcome == KVCOBRA__OUTCOME__OUTCOME_ALREADY;
    case KVCOBRA__OUTCOME__OUTCOME_STALE:
        return fail(&c->error, -ESTALE, "kvcobrad is at revision %" PRIu64 " already", got->revision);
    case KVCOBRA__OUTCOME__OUTCOME_CONFLICT:
        return fail(&c->error, -EEXIST, "revision %" PRIu64 " activated another table", got->revision);
    default:
        return fail(&c->error, -EPROTO, "kvcobrad's answer to ACTIVATE makes no sense");
    }
}

int kvc_table_activate(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                       uint64_t *ret_revision)
{
    Kvcobra__ActivateTable activate = KVCOBRA__ACTIVATE_TABLE__INIT;
    Kvcobra__Request request = KVCOBRA__REQUEST__INIT;
    struct reply reply;
    int r = client_enter_connected(c);

    if (r < 0)
        return r;
    if (!digest)
        return fail(&c->error, -EINVAL, "kvc_table_activate: digest is NULL");
    activate.digest = (ProtobufCBinaryData){KVC_DIGEST_BYTES, (uint8_t *) digest};
    activate.revision = revision;
    request.body_case = KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE;
    request.activate_table = &activate;
    r = connection_request(&c->connection, &request, NULL, 0, KVCOBRA__REPLY__BODY_ACTIVATE_TABLE, &reply,
                           &c->error);
    if (r < 0)
        return r;
    r = tables_api_activate_answer(c, reply.message->activate_table, ret_revision);
    reply_free(&reply);
    return r;
}
