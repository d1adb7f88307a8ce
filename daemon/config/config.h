/* Every limit and path of kvcobrad in one place. Command line and file fill it (config_keys.h); SIGHUP
 * changes some of it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/loop/ev.h"
#include "daemon/loop/supervisor.h"

struct errmsg;

#define CONFIG_SOCKET_DEFAULT "/run/kvcobra/kvcobra.sock"
#define CONFIG_OPERATOR_SOCKET_DEFAULT "/run/kvcobra/operator.sock"
#define CONFIG_GPUS_MAX 16

struct config {
    /* where */
    const char *socket_path; /* NULL: only listen_fd */
    const char *operator_socket_path;
    int listen_fd, operator_fd;      /* already listening sockets, or -1 */
    int ready_fd;                    /* a byte is written here when the sockets listen; or -1 */
    mode_t socket_mode;              /* of socket_path; the operator socket is always 0600 */
    const char *metrics_socket_path; /* HTTP for monitoring; NULL: not there */
    const char *metrics_address;     /* or at a loopback address; NULL */
    mode_t metrics_socket_mode;
    const char *state_dir;          /* tables and the active set; NULL: forgotten at exit */
    enum supervisor_keep keep_pool; /* pages outlive a restart; not without state_dir */
    enum ev_backend backend;
    int log_level; /* syslog(3): 3 errors .. 7 debug */

    /* memory */
    uint64_t pool_bytes;        /* all extents together */
    uint64_t extent_bytes;      /* one memory object */
    uint64_t span_bytes;        /* unit that extents are cut in */
    uint64_t arena_bytes;       /* of each session that opens a model */
    uint64_t quota_bytes;       /* per tenant: slots and arenas */
    uint64_t guarantee_bytes;   /* per tenant, of the pool; tenants_max of them fit it */
    uint32_t lendable_percent;  /* of an unused guarantee */
    uint64_t moments_bytes_max; /* live statistics that clients may report; 0: none are taken */
    uint32_t ghosts_per_tenant; /* evicted keys remembered, for miss reasons and readmission */

    /* GPUs */
    const char *gpu;         /* UUIDs with commas, or "first"; NULL: none */
    uint64_t gpu_pool_bytes; /* of each */
    uint64_t gpu_extent_bytes;
    uint64_t gpu_span_bytes;
    uint64_t gpu_quota_bytes; /* per tenant: its pages on one GPU */
    uint64_t gpu_guarantee_bytes;
    uint32_t gpu_spare_extents; /* of each GPU, made ahead: nobody waits for them */
    bool gpu_lend;              /* clients may lend memory of their own to a GPU's pool */
    uint64_t gpu_reuse_ms;      /* slots of a dead process rest this long after the driver forgot it */
    const char *mover_path;     /* of kvcobra-mover */

    /* time */
    uint64_t lease_ms;     /* grants and reservations end this long after a session's last sign of life */
    uint64_t handshake_ms; /* from connection to CONFIRM */
    uint64_t drain_ms;     /* a replaced table takes commits this long */

    /* threads beside the loop */
    uint32_t work_threads;
    uint32_t work_queue_max; /* requests that wait for one or have it */
    uint64_t
        work_inline_bytes; /* up to this the loop copies or checks itself: handing it over takes longer */

    /* counts */
    uint32_t connections_max;
    uint32_t connections_per_uid_max;
    uint32_t sessions_per_tenant_max; /* with those whose process disconnected but still holds pages */
    uint32_t tenants_max;
    uint32_t models_per_session_max;
    uint32_t leases_per_session_max;
    uint32_t reservations_per_session_max;
    uint32_t lent_extents_per_session_max;
    uint32_t tables_max;      /* in any state */
    uint64_t table_bytes_max; /* one table file */

    char **owned; /* texts of config_set() */
    size_t n_owned;
};

void config_init(struct config *c);

/* Return: 0; -EINVAL with a sentence naming the option and what it must be. */
int config_check(const struct config *c, struct errmsg *e);

/* "auto", "yes", "no". Return: 0; -EINVAL. */
int config_parse_keep(const char *text, enum supervisor_keep *ret);

/* "65536", "64K", "64M", "2G" (powers of 1024). Return: 0; -EINVAL; -ERANGE. */
int config_parse_bytes(const char *text, uint64_t *ret);
