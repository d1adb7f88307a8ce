/* The keys of the server, and its slower tiers. See server_parts.h. */
#include "daemon/server_parts.h"

#include <errno.h>

#include "base/errmsg.h"
#include "base/secret_memory.h"
#include "daemon/config/config.h"
#include "daemon/loop/ev.h"
#include "daemon/offload/offload.h"
#include "daemon/requests/state.h"
#include "daemon/store/device.h"
#include "daemon/tables/state_folder.h"
#include "daemon/tables/table_entry.h"
#include "daemon/tier/disk_io.h"
#include "daemon/tier/keyring.h"

/* ---- start ---- */

/*
 * Chunk keys derive from the index secret of the key ring. Without a file, the state folder has the secret.
 */
static int server_tier_start_keys(struct server *s, struct errmsg *e)
{
    const char *file = s->config->key_file;
    uint8_t *secret;
    int r;

    if (file) {
        r = keyring_read_named(file, &s->frame->keyring, e);
    } else {
        secret = secret_memory_new(KEYRING_SECRET_BYTES);
        r = secret ? state_folder_secret(s->config->state_dir, secret, e) : -ENOMEM;
        if (r == 0)
            r = keyring_of_host(secret, &s->frame->keyring, e);
        else if (!secret)
            r = fail(e, r, "out of memory for the secret of the index keys");
        (void) secret_memory_free(secret, KEYRING_SECRET_BYTES);
    }
    if (r == 0)
        s->devices->secret = keyring_index_secret(s->frame->keyring);
    return r;
}

static void server_tier_on_table_retired(void *ctx, const uint8_t *digest)
{
    const struct server *s = ctx;

    offload_drop_table(s->offload, digest);
}

int server_tier_start(struct server *s, struct errmsg *e)
{
    const struct offload_rooms rooms = {s->config, s->ev, s->work, s->devices, disk_engines};
    int r = server_tier_start_keys(s, e);

    if (r < 0)
        return r;

    s->tables->retired = server_tier_on_table_retired;
    s->tables->ctx = s;
    return s->config->disk_dir || s->config->cluster_socket
               ? offload_new(&rooms, s->frame->keyring, &s->offload, e)
               : 0;
}

void server_tier_set_keyring(struct server *s, struct keyring *ring)
{
    (void) keyring_unref(s->frame->keyring);
    s->frame->keyring = keyring_ref(ring);
    s->devices->secret = keyring_index_secret(ring); /* the same bytes */
    if (s->offload)
        offload_set_keyring(s->offload, ring);
}

/* ---- end ---- */

bool server_tier_begin_stop(struct server *s, uint64_t most_ms)
{
    if (!s->offload || s->frame->stop_by_ms > 0) {
        ev_stop(s->ev);
        return false;
    }

    s->frame->stop_by_ms = ev_now_ms(s->ev) + most_ms;
    offload_write_all(s->offload);
    return true;
}

void server_tier_stop_if_flushed(struct server *s)
{
    if (s->frame->stop_by_ms > 0 &&
        (offload_has_written_all(s->offload) || ev_now_ms(s->ev) >= s->frame->stop_by_ms))
        ev_stop(s->ev);
}
