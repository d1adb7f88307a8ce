/*
 * Every limit and path of kvcobrad in one structure. Members are settings, which settings_table.c describes,
 * unless a comment says otherwise. The command line (command_line.h) and the file (config_keys.h) set them;
 * SIGHUP changes some.
 *
 * While the daemon serves, only config_reload() changes it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/config/setting_value.h"
#include "daemon/config/tenant_rules.h"
#include "daemon/loop/ev.h"
#include "daemon/loop/log.h"
#include "daemon/loop/supervisor.h"

struct errmsg;
struct state_folder;

#define CONFIG_GPUS_MAX 16

struct config {
    /* descriptors that only the command line passes; -1: none */
    int listen_fd, operator_fd; /* sockets that already listen */
    int ready_fd;               /* gets a byte once the sockets listen */
    bool allows_core;           /* core files; only the command line says so */

    /* sockets and files; NULL: none */
    const char *socket_path, *operator_socket_path, *metrics_socket_path, *metrics_address;
    mode_t socket_mode, metrics_socket_mode;
    const char *operator_group;
    const char *state_dir;
    const struct state_folder *state_folder; /* of state_dir; NULL until the server has opened it */
    enum supervisor_keep keep_pool;

    /* memory */
    uint64_t pool_bytes, extent_bytes, span_bytes, arena_bytes, arenas_bytes;
    uint64_t quota_bytes, guarantee_bytes;
    uint32_t lendable_percent;
    uint64_t moments_bytes_max;
    uint32_t ghosts_per_tenant;
    uint64_t table_bytes_max;
    bool exact;

    /* GPUs */
    const char *gpu; /* UUIDs separated by commas, or "first"; NULL: none */
    uint64_t gpu_pool_bytes, gpu_extent_bytes, gpu_span_bytes;
    uint64_t gpu_quota_bytes, gpu_guarantee_bytes;
    uint32_t spare_extents, gpu_spare_extents;
    uint64_t gpu_reuse_ms;
    const char *mover_path;

    /* disk tier; NULL: none */
    const char *disk_dir, *key_file;
    uint64_t disk_bytes, disk_quota_bytes, disk_buffer_bytes;

    /* cluster tier; NULL: none */
    const char *cluster_socket, *cluster_user, *cluster_tenants;
    uint64_t cluster_memory_bytes, cluster_ttl_s;
    uint32_t cluster_answer_ms;

    /* time */
    uint64_t lease_ms, handshake_ms, drain_ms;

    /* counts */
    uint32_t connections_max, connections_per_tenant_max;
    uint32_t sessions_per_tenant_max, tenants_max;
    uint32_t models_per_session_max, reservations_per_session_max;
    uint32_t groups_per_tenant_max;
    uint32_t leases_per_session_max, leases_per_tenant_max;
    uint32_t leased_pages_per_session_max, leased_pages_per_tenant_max;
    uint32_t tables_max;

    /* running */
    uint32_t work_threads, work_queue_max;
    uint64_t work_inline_bytes;
    uint64_t waiting_bytes_max, waiting_bytes_per_tenant_max;
    int log_level; /* of syslog(3) */
    enum log_format log_format;

    struct tenant_rules tenants; /* the sections of the file */

    gid_t operator_gid; /* of operator_group; (gid_t) -1: none */
    uid_t cluster_uid;  /* of cluster_user; else that of this process */

    char *file; /* that config_load_all() read; NULL: none */

    /* that config_set() copied */
    struct setting_texts texts;
};

/* Sets every setting to its default. */
void config_init(struct config *c);

/*
 * Replaces values of 0, which means not set: a quota by the size of its pool, extent-bytes by a size that
 * follows from the pool's.
 */
void config_fill_derived(struct config *c);

#define CONFIG_EXTENTS_MANY 64 /* of a pool without extent-bytes */
#define CONFIG_EXTENTS_FEW 16

/* Whether the pool has room for few tenants. @e: the sentence that says so. @c: checked. */
bool config_has_few_extents(const struct config *c, struct errmsg *e);

/*
 * Looks up operator_group and cluster_user, which may take long. Return: 0; see id_lookup_group() and
 * id_lookup_user().
 */
int config_resolve(struct config *c, struct errmsg *e);

/* Return: 0; -EINVAL with a sentence that has the option and its permitted values. */
int config_check(const struct config *c, struct errmsg *e);

/* Whether cluster_tenants, names with commas between them, has @tenant. */
bool config_has_cluster_tenant(const struct config *c, const char *tenant);
