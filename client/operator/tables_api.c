/* Tables of the daemon: list, fetch, stage, activate, roll back, retire. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc/table.h"
#include "base/cleanup.h"
#include "base/fd_io.h"
#include "base/memory_file.h"
#include "base/options.h"
#include "client/operator/operator_call.h"
#include "client/operator/trial_api.h"

/* ---- list ---- */

static int tables_api_read_info(const Kvcobra__TableInfo *from, kvc_table_info *to, struct errmsg *e)
{
    if (!bytes_are(from->digest, KVC_DIGEST_BYTES) || !bytes_are(from->model_digest, KVC_DIGEST_BYTES))
        return fail(e, -EPROTO, "kvcobrad's answer is not valid: a table without a digest");

    *to = (kvc_table_info){
        .state = (enum kvc_table_state) from->state,
        .bpd_code = from->bpd_code,
        .file_bytes = from->file_bytes,
        .references = from->references,
        .pages = from->pages,
        .revision = from->revision,
        .shadow_ppm = from->shadow_ppm,
        .canary_share = from->canary_share,
        .canary_tenants = from->canary_tenants,
    };
    memcpy(to->digest, from->digest.data, KVC_DIGEST_BYTES);
    memcpy(to->model_digest, from->model_digest.data, KVC_DIGEST_BYTES);
    (void) snprintf(to->reason, sizeof(to->reason), "%s", from->reason);
    trial_api_read_fit(from->fit, &to->fit);
    return 0;
}

/* Appends one page of the list; *cursor becomes 0 after the last. */
static int tables_api_list_page(kvc_client *c, uint64_t *cursor, struct options_list *tables)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    const Kvcobra__ListTablesReply *got;
    int r;

    list.cursor = *cursor;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_LIST_TABLES, &list.base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->list_tables;
    if (options_list_reserve(tables, got->n_tables) < 0)
        return fail(&c->error, -ENOMEM, "out of memory for %zu tables", tables->n + got->n_tables);

    for (size_t i = 0; i < got->n_tables; i++) {
        kvc_table_info info;

        r = tables_api_read_info(got->tables[i], &info, &c->error);
        if (r < 0)
            return r;

        options_list_add(tables, &info, sizeof(info));
    }

    if (got->next_cursor != 0 && (got->n_tables == 0 || got->next_cursor == *cursor))
        return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: the list of tables does not end");

    *cursor = got->next_cursor;
    return 0;
}

int kvc_table_list(kvc_client *c, size_t item_bytes, kvc_table_info **ret_tables, size_t *ret_n)
{
    _cleanup_(options_list_deinit) struct options_list tables = {.item_bytes = item_bytes};
    uint64_t cursor = 0;
    int r;

    r = operator_enter(c, ret_tables && ret_n, "kvc_table_list: ret_tables or ret_n is NULL");
    if (r < 0)
        return r;

    r = options_check(item_bytes, sizeof(**ret_tables), "kvc_table_info", &c->error);
    if (r < 0)
        return r;

    do {
        r = tables_api_list_page(c, &cursor, &tables);
        if (r < 0)
            return r;
    } while (cursor != 0);

    *ret_n = tables.n;
    *ret_tables = take_ptr(tables.items);
    return 0;
}

/* ---- fetch ---- */

int kvc_table_fetch(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], void **ret_bytes,
                    size_t *ret_n_bytes)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__FetchTable fetch = KVCOBRA__FETCH_TABLE__INIT;
    uint64_t bytes;
    int r;

    r = operator_enter(c, digest && ret_bytes && ret_n_bytes, "kvc_table_fetch: an argument is NULL");
    if (r < 0)
        return r;

    fetch.digest = operator_bytes(digest);
    r = operator_request(c, KVCOBRA__REQUEST__BODY_FETCH_TABLE, &fetch.base, -1, &reply);
    if (r < 0)
        return r;

    bytes = reply.message->fetch_table->bytes;
    r = operator_read_image(c, &reply, bytes, TABLE_FILE_BYTES_MAX, ret_bytes);
    if (r < 0)
        return r;

    *ret_n_bytes = (size_t) bytes;
    return 0;
}

/* ---- stage ---- */

/* A sealed memory object, so that the daemon keeps exactly the bytes that it verified. */
static int tables_api_seal_bytes(const void *bytes, size_t n_bytes, int *ret_fd)
{
    _cleanup_(closep) int fd = memory_file_open("kvcobra-table");
    int r;

    if (fd < 0)
        return fd;

    r = fd_write_all(fd, bytes, n_bytes);
    if (r < 0)
        return r;

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
        return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: a staged table without a digest");
    if (got->outcome != KVCOBRA__OUTCOME__OUTCOME_APPLIED &&
        got->outcome != KVCOBRA__OUTCOME__OUTCOME_ALREADY)
        return fail(&c->error, -EBADMSG, "kvcobrad did not stage the table: %s", why);

    memcpy(ret_digest, got->digest.data, KVC_DIGEST_BYTES);
    return got->outcome == KVCOBRA__OUTCOME__OUTCOME_ALREADY;
}

int kvc_table_stage(kvc_client *c, const void *bytes, size_t n_bytes, uint8_t ret_digest[KVC_DIGEST_BYTES])
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    _cleanup_(closep) int fd = -1;
    Kvcobra__StageTable stage = KVCOBRA__STAGE_TABLE__INIT;
    int r;

    r = operator_enter(c, bytes && ret_digest, "kvc_table_stage: bytes or ret_digest is NULL");
    if (r < 0)
        return r;

    if (n_bytes == 0 || n_bytes > TABLE_FILE_BYTES_MAX)
        return fail(&c->error, -EBADMSG, "%zu bytes are not a table: at most %zu", n_bytes,
                    (size_t) TABLE_FILE_BYTES_MAX);

    r = tables_api_seal_bytes(bytes, n_bytes, &fd);
    if (r < 0)
        return fail(&c->error, r, "cannot seal %zu bytes for kvcobrad: %s", n_bytes, strerror(-r));

    stage.bytes = n_bytes;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_STAGE_TABLE, &stage.base, fd, &reply);
    if (r < 0)
        return r;

    return tables_api_stage_answer(c, reply.message->stage_table, ret_digest);
}

/* ---- activate ---- */

int kvc_table_activate(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                       uint64_t *ret_revision)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__ActivateTable activate = KVCOBRA__ACTIVATE_TABLE__INIT;
    const Kvcobra__ActivateTableReply *got;
    int r;

    r = operator_enter(c, digest != NULL, "kvc_table_activate: digest is NULL");
    if (r < 0)
        return r;

    activate.digest = operator_bytes(digest);
    activate.revision = revision;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE, &activate.base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->activate_table;
    if (got->outcome == KVCOBRA__OUTCOME__OUTCOME_STALE)
        return fail(&c->error, -ESTALE, "kvcobrad is at revision %" PRIu64 " already", got->revision);
    if (got->outcome == KVCOBRA__OUTCOME__OUTCOME_CONFLICT)
        return fail(&c->error, -EEXIST, "revision %" PRIu64 " activated another table", got->revision);

    return operator_end_change(c, got->outcome, got->revision, ret_revision);
}

/* ---- roll back, retire ---- */

int kvc_table_rollback(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                       uint8_t ret_active[KVC_DIGEST_BYTES], uint64_t *ret_revision)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__RollbackTable rollback = KVCOBRA__ROLLBACK_TABLE__INIT;
    const Kvcobra__RollbackTableReply *got;
    int r;

    r = operator_enter(c, digest != NULL, "kvc_table_rollback: digest is NULL");
    if (r < 0)
        return r;

    rollback.digest = operator_bytes(digest);
    rollback.revision = revision;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_ROLLBACK_TABLE, &rollback.base, -1, &reply);
    if (r < 0)
        return r;

    got = reply.message->rollback_table;
    if (!bytes_are(got->active, KVC_DIGEST_BYTES))
        return fail(&c->error, -EPROTO, "kvcobrad's answer is not valid: no digest of the active table");

    r = operator_end_change(c, got->outcome, got->revision, ret_revision);
    if (r >= 0 && ret_active)
        memcpy(ret_active, got->active.data, KVC_DIGEST_BYTES);
    return r;
}

int kvc_table_retire(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                     enum kvc_table_state *ret_state)
{
    _cleanup_(reply_deinit) struct reply reply = {.message = NULL};
    Kvcobra__RetireTable retire = KVCOBRA__RETIRE_TABLE__INIT;
    int r;

    r = operator_enter(c, digest != NULL, "kvc_table_retire: digest is NULL");
    if (r < 0)
        return r;

    retire.digest = operator_bytes(digest);
    retire.revision = revision;
    r = operator_request(c, KVCOBRA__REQUEST__BODY_RETIRE_TABLE, &retire.base, -1, &reply);
    if (r < 0)
        return r;

    r = operator_end_change(c, reply.message->retire_table->outcome, 0, NULL);
    if (r >= 0 && ret_state)
        *ret_state = (enum kvc_table_state) reply.message->retire_table->state;
    return r;
}
