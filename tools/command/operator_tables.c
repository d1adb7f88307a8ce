/* The tables of a daemon; see operator_tables.h. */
#include "tools/command/operator_tables.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc/table/table_types.h"
#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/fd_io.h"
#include "base/memory_file.h"
#include "proto/protocol.h"

#define MOMENTS_BYTES_MAX ((uint64_t) 8 << 30)

/* ---- fit ---- */

/* A table that was never reported has an empty fit. */
static int operator_check_fit(Kvcobra__Fit **fit, struct errmsg *e)
{
    if (!*fit) {
        *fit = malloc(sizeof(**fit));
        if (!*fit)
            return fail(e, -ENOMEM, "out of memory for the fit of a table");
        kvcobra__fit__init(*fit);
    }

    if (!isfinite((*fit)->error_k + (*fit)->error_v + (*fit)->active_error_k + (*fit)->active_error_v +
                  (*fit)->shadow_error_k + (*fit)->shadow_error_v))
        return fail(e, -EPROTO, "kvcobrad's answer is not valid: an error of a table is no number");
    return 0;
}

int operator_get_fit(kvc_client *c, const uint8_t digest[static KVC_DIGEST_BYTES], Kvcobra__GetFitReply **ret,
                     struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__GetFitReply *got = NULL;
    Kvcobra__GetFit get = KVCOBRA__GET_FIT__INIT;
    int r;

    get.digest = operator_digest(digest);
    r = operator_call(c, KVCOBRA__REQUEST__BODY_GET_FIT, &get.base, &got, e);
    if (r == 0)
        r = operator_check_fit(&got->fit, e);
    if (r < 0)
        return r;
    if (got->n_live != got->n_shadow)
        return fail(e, -EPROTO, "kvcobrad's answer is not valid: fit of %zu and of %zu layers", got->n_live,
                    got->n_shadow);

    *ret = take_ptr(got);
    return 0;
}

/* ---- list ---- */

static int operator_check_table(Kvcobra__TableInfo *t, struct errmsg *e)
{
    int r = operator_check_is_digest(t->digest, "a table", e);

    if (r == 0)
        r = operator_check_is_digest(t->model_digest, "the model of a table", e);
    return r < 0 ? r : operator_check_fit(&t->fit, e);
}

/* The part of the list from @cursor on. */
static int operator_list_some(kvc_client *c, uint64_t cursor, void *ret, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *got = NULL;
    Kvcobra__ListTables list = KVCOBRA__LIST_TABLES__INIT;
    int r;

    list.cursor = cursor;
    r = operator_call(c, KVCOBRA__REQUEST__BODY_LIST_TABLES, &list.base, &got, e);
    for (size_t i = 0; r == 0 && i < got->n_tables; i++)
        r = operator_check_table(got->tables[i], e);
    if (r < 0)
        return r;
    if (got->next_cursor != 0 && got->n_tables == 0)
        return fail(e, -EPROTO, "kvcobrad's answer is not valid: the list of tables does not end");

    *(Kvcobra__ListTablesReply **) ret = take_ptr(got);
    return 0;
}

int operator_list_tables(kvc_client *c, Kvcobra__ListTablesReply **ret, struct errmsg *e)
{
    return operator_get_parts(c, operator_list_some, "the list of tables", ret, e);
}

const char *operator_table_state(Kvcobra__TableState state)
{
    static const char *const names[] = {
        [KVCOBRA__TABLE_STATE__TABLE_STAGED] = "staged",
        [KVCOBRA__TABLE_STATE__TABLE_VERIFIED] = "verified",
        [KVCOBRA__TABLE_STATE__TABLE_SHADOW] = "shadow",
        [KVCOBRA__TABLE_STATE__TABLE_ACTIVE] = "active",
        [KVCOBRA__TABLE_STATE__TABLE_DRAINING] = "draining",
        [KVCOBRA__TABLE_STATE__TABLE_RETIRED] = "retired",
        [KVCOBRA__TABLE_STATE__TABLE_REJECTED] = "rejected",
    };

    return (size_t) state < sizeof(names) / sizeof(names[0]) && names[state] ? names[state] : "unknown";
}

/* ---- bytes ---- */

int operator_fetch_table(kvc_client *c, const uint8_t digest[static KVC_DIGEST_BYTES], void **ret_bytes,
                         size_t *ret_n_bytes, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__FetchTableReply *got = NULL;
    _cleanup_(closep) int fd = -1;
    Kvcobra__FetchTable fetch = KVCOBRA__FETCH_TABLE__INIT;
    int r;

    fetch.digest = operator_digest(digest);
    r = operator_call_fd(c, KVCOBRA__REQUEST__BODY_FETCH_TABLE, &fetch.base, -1, &got, &fd, e);
    if (r == 0)
        r = operator_read_fd(fd, got->bytes, TABLE_FILE_BYTES_MAX, ret_bytes, e);
    if (r == 0)
        *ret_n_bytes = (size_t) got->bytes;
    return r;
}

int operator_fetch_moments(kvc_client *c, const uint8_t model_digest[static KVC_DIGEST_BYTES],
                           const char *const *tenants, size_t n_tenants, void **ret_bytes,
                           size_t *ret_n_bytes, uint64_t *ret_tokens, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__FetchMomentsReply *got = NULL;
    _cleanup_(closep) int fd = -1;
    Kvcobra__FetchMoments fetch = KVCOBRA__FETCH_MOMENTS__INIT;
    int r;

    fetch.model_digest = operator_digest(model_digest);
    fetch.tenants = (char **) tenants; /* packing only reads */
    fetch.n_tenants = n_tenants;
    r = operator_call_fd(c, KVCOBRA__REQUEST__BODY_FETCH_MOMENTS, &fetch.base, -1, &got, &fd, e);
    if (r == 0)
        r = operator_read_fd(fd, got->bytes, MOMENTS_BYTES_MAX, ret_bytes, e);
    if (r < 0)
        return r;

    *ret_n_bytes = (size_t) got->bytes;
    *ret_tokens = got->tokens;
    return 0;
}

/* A sealed memory object, so that the daemon keeps exactly the bytes that it verified. */
static int operator_seal_bytes(const void *bytes, size_t n_bytes, int *ret_fd)
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

int operator_stage_table(kvc_client *c, const void *bytes, size_t n_bytes,
                         uint8_t ret_digest[static KVC_DIGEST_BYTES], struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__StageTableReply *got = NULL;
    _cleanup_(closep) int fd = -1;
    Kvcobra__StageTable stage = KVCOBRA__STAGE_TABLE__INIT;
    const char *why;
    int r;

    if (n_bytes == 0 || n_bytes > TABLE_FILE_BYTES_MAX)
        return fail(e, -EBADMSG, "%zu bytes are not a table: at most %zu", n_bytes,
                    (size_t) TABLE_FILE_BYTES_MAX);

    r = operator_seal_bytes(bytes, n_bytes, &fd);
    if (r < 0)
        return fail(e, r, "cannot seal %zu bytes for kvcobrad: %s", n_bytes, strerror(-r));

    stage.bytes = n_bytes;
    r = operator_call_fd(c, KVCOBRA__REQUEST__BODY_STAGE_TABLE, &stage.base, fd, &got, NULL, e);
    if (r < 0)
        return r;

    why = got->reason[0] ? got->reason : "no reason given";
    if (got->state == KVCOBRA__TABLE_STATE__TABLE_REJECTED)
        return fail(e, -EBADMSG, "kvcobrad rejected the table: %s", why);
    r = operator_check_is_digest(got->digest, "a staged table", e);
    if (r < 0)
        return r;
    if (operator_outcome(got->outcome, NULL) < 0)
        return fail(e, -EBADMSG, "kvcobrad did not stage the table: %s", why);

    memcpy(ret_digest, got->digest.data, KVC_DIGEST_BYTES);
    return operator_outcome(got->outcome, e);
}

/* ---- use ---- */

/* The end of a change: its outcome, and *ret_revision, which may be NULL. */
static int operator_changed(Kvcobra__Outcome outcome, uint64_t revision, uint64_t *ret_revision,
                            struct errmsg *e)
{
    int r = operator_outcome(outcome, e);

    if (r >= 0 && ret_revision)
        *ret_revision = revision;
    return r;
}

int operator_activate_table(kvc_client *c, const uint8_t digest[static KVC_DIGEST_BYTES], uint64_t revision,
                            uint64_t *ret_revision, struct errmsg *e)
{
    uint8_t one[1][KVC_DIGEST_BYTES];

    memcpy(one[0], digest, KVC_DIGEST_BYTES);
    return operator_activate_tables(c, one, 1, revision, ret_revision, e);
}

int operator_activate_tables(kvc_client *c, uint8_t (*digests)[KVC_DIGEST_BYTES], size_t n, uint64_t revision,
                             uint64_t *ret_revisions, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__ActivateTableReply *got = NULL;
    Kvcobra__ActivateTable activate = KVCOBRA__ACTIVATE_TABLE__INIT;
    ProtobufCBinaryData others[WIRE_TABLES_MAX];
    int r;

    if (n > WIRE_TABLES_MAX)
        return fail(e, -EINVAL, "%zu tables; at most %d change together", n, WIRE_TABLES_MAX);

    activate.digest = operator_digest(digests[0]);
    activate.revision = revision;
    activate.others = others;
    activate.n_others = n - 1;
    for (size_t i = 1; i < n; i++)
        others[i - 1] = operator_digest(digests[i]);
    r = operator_call(c, KVCOBRA__REQUEST__BODY_ACTIVATE_TABLE, &activate.base, &got, e);
    if (r < 0)
        return r;
    if (got->n_other_revisions != n - 1)
        return fail(e, -EPROTO, "this kvcobrad activates one table at a time: the others did not change");

    for (size_t i = 1; i < n; i++)
        ret_revisions[i] = got->other_revisions[i - 1];
    return operator_changed(got->outcome, got->revision, ret_revisions, e);
}

int operator_shadow_table(kvc_client *c, const uint8_t digest[static KVC_DIGEST_BYTES], uint32_t ppm,
                          uint64_t revision, uint64_t *ret_revision, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__ShadowTableReply *got = NULL;
    Kvcobra__ShadowTable shadow = KVCOBRA__SHADOW_TABLE__INIT;
    int r;

    shadow.digest = operator_digest(digest);
    shadow.ppm = ppm;
    shadow.revision = revision;
    r = operator_call(c, KVCOBRA__REQUEST__BODY_SHADOW_TABLE, &shadow.base, &got, e);
    return r < 0 ? r : operator_changed(got->outcome, got->revision, ret_revision, e);
}

int operator_canary_table(kvc_client *c, const uint8_t digest[static KVC_DIGEST_BYTES], uint32_t share,
                          const char *const *tenants, size_t n_tenants, uint64_t revision,
                          uint64_t *ret_revision, struct errmsg *e)
{
    _cleanup_(operator_message_freep) Kvcobra__CanaryTableReply *got = NULL;
    Kvcobra__CanaryTable canary = KVCOBRA__CANARY_TABLE__INIT;
    int r;

    canary.digest = operator_digest(digest);
    canary.share = share;
    canary.tenants = (char **) tenants; /* packing only reads */
    canary.n_tenants = n_tenants;
    canary.revision = revision;
    r = operator_call(c, KVCOBRA__REQUEST__BODY_CANARY_TABLE, &canary.base, &got, e);
    return r < 0 ? r : operator_changed(got->outcome, got->revision, ret_revision, e);
}
