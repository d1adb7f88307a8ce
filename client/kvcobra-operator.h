/*
 * libkvcobra for operators: tables, trials on live traffic, aliases of models, quotas, draining and the
 * status of kvcobrad. For programs that manage a daemon; inference engines need kvcobra.h only.
 *
 * The calls need a connected client (kvc_client_connect()), usually on the operator socket: kvc_socket_path()
 * finds it. On the socket of inference clients they return -EPERM, except those that are marked "either
 * socket".
 *
 * Threads, errors and structs are as in kvcobra.h. Every call returns -ENOTCONN without a daemon, -EPROTO if
 * the daemon's reply is not valid, and -EINVAL for an argument that is NULL and must not be.
 *
 * Revisions: the daemon counts the changes of a model's tables. A call with revision 0 takes the next
 * number. Programs that agree on numbers pass their own. -ESTALE means that the daemon is at a newer
 * revision, -EEXIST that this revision is a different change.
 */
#ifndef KVCOBRA_OPERATOR_H
#define KVCOBRA_OPERATOR_H

#include "kvcobra-call.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tables ---- */

enum kvc_table_state {
    KVC_TABLE_STAGED = 1,
    KVC_TABLE_VERIFIED = 2,
    KVC_TABLE_SHADOW = 3,
    KVC_TABLE_ACTIVE = 4,
    KVC_TABLE_DRAINING = 5,
    KVC_TABLE_RETIRED = 6,
    KVC_TABLE_REJECTED = 7
};

/* How well the codes of a table fit live vectors, as clients reported (kvc_model_report()). An error is
 * |x - decoded|^2 / |x - mean|^2, averaged over layers. Arrays are indexed by enum kvc_side. */
typedef struct kvc_fit {
    size_t struct_bytes;    /* sizeof(kvc_fit) */
    uint64_t reports;       /* number of reports */
    uint64_t tokens;        /* tokens measured */
    double error[2];        /* of this table */
    uint64_t coded[2];      /* coordinates quantised */
    uint64_t saturated[2];  /* coded coordinates beyond the last threshold */
    uint64_t shadow_tokens; /* state SHADOW: tokens measured with the active table and with this one */
    double active_error[2]; /* of the active table on shadow_tokens */
    double shadow_error[2]; /* of this table on shadow_tokens */
} kvc_fit;

typedef struct kvc_layer_fit {
    size_t struct_bytes; /* sizeof(kvc_layer_fit) */
    double error[2];     /* the errors of kvc_fit, of one layer */
    double active_error[2];
    double shadow_error[2];
} kvc_layer_fit;

typedef struct kvc_table_info {
    size_t struct_bytes; /* sizeof(kvc_table_info) */
    uint8_t digest[KVC_DIGEST_BYTES];
    uint8_t model_digest[KVC_DIGEST_BYTES];
    enum kvc_table_state state;
    double bpd_code; /* stored code bits per number */
    uint64_t file_bytes;
    uint64_t references; /* number of references of sessions */
    uint64_t pages;      /* pages in the pool that are encoded with the table */
    uint64_t revision;
    char reason[256];        /* empty: rejected files are not listed */
    uint32_t shadow_ppm;     /* share of new chunks that clients also encode with the table, in millionths */
    uint32_t canary_share;   /* number of new sequences, out of 256, that use the table */
    uint32_t canary_tenants; /* number of tenants whose new sequences all use the table */
    kvc_fit fit;
} kvc_table_info;

/**
 * kvc_table_list() - list all tables of the daemon; either socket
 * @item_bytes: sizeof(kvc_table_info)
 * @ret_tables: malloc'ed array of *ret_n items; free() it
 *
 * Return: 0; -ENOMEM.
 */
KVC_EXPORT int kvc_table_list(kvc_client *c, size_t item_bytes, kvc_table_info **ret_tables, size_t *ret_n);

/**
 * kvc_table_fetch() - get the contents of a table; either socket
 * @ret_bytes: malloc'ed image of *ret_n_bytes of a table file; free() it
 *
 * Return: 0; -ENOENT: no such table; -ESTALE: the table is retired; -ENOMEM.
 */
KVC_EXPORT int kvc_table_fetch(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], void **ret_bytes,
                               size_t *ret_n_bytes);

/**
 * kvc_table_stage() - send a table to the daemon, which verifies it before it replies
 * @bytes: [n_bytes] contents of a table file; borrowed during the call
 *
 * Return: 0; 1: already staged; -EBADMSG: the table was rejected, and the sentence has the reason; -EBUSY:
 * its model is an alias of another one (kvc_model_alias()).
 */
KVC_EXPORT int kvc_table_stage(kvc_client *c, const void *bytes, size_t n_bytes,
                               uint8_t ret_digest[KVC_DIGEST_BYTES]);

/**
 * kvc_table_activate() - make a table the one that new sequences of its model use
 * @revision:     0 = the next one
 * @ret_revision: the revision of this change; may be NULL
 *
 * Return: 0; 1: already active; -ESTALE, -EEXIST: see Revisions above; -ENOENT: no such table.
 */
KVC_EXPORT int kvc_table_activate(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                                  uint64_t *ret_revision);

/**
 * kvc_table_rollback() - replace the active table @digest by the table that was active before it
 * @revision:     0 = the next one
 * @ret_active:   the digest of the table that is active after the call; may be NULL
 * @ret_revision: may be NULL
 *
 * This works while the earlier table is DRAINING.
 *
 * Return: 0; 1: no change, @digest is not active; -ENODATA: no earlier table is draining; -ESTALE, -EEXIST:
 * see Revisions above; -ENOENT: no such table.
 */
KVC_EXPORT int kvc_table_rollback(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                                  uint8_t ret_active[KVC_DIGEST_BYTES], uint64_t *ret_revision);

/**
 * kvc_table_retire() - end the use of a table
 * @revision:  0, or at least the daemon's
 * @ret_state: KVC_TABLE_RETIRED, or KVC_TABLE_DRAINING while a client references the table or holds pages;
 *             may be NULL
 *
 * The daemon refuses new commits and references with the table, and
 * evicts its pages before those of other tables.
 *
 * Return: 0; 1: no change, the table is draining or retired already; -EBUSY: the table is active; -ESTALE:
 * see Revisions above; -ENOENT: no such table.
 */
KVC_EXPORT int kvc_table_retire(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint64_t revision,
                                enum kvc_table_state *ret_state);

/* ---- trials on live traffic ---- */

/**
 * kvc_table_shadow() - try a table that is not in use on a share of new chunks
 * @ppm:          share of new chunks, in millionths; 0 = end the trial
 * @revision:     0 = the next one; the same counter as that of kvc_table_activate()
 * @ret_revision: may be NULL
 *
 * Clients encode these chunks with the active table and also with the shadow table, and report the errors of
 * both. The table must be VERIFIED. A model has at most one shadow table.
 *
 * Return: 0; 1: no change, already in this state; -ENOENT: no such table; -ENODATA: no table is active to
 * compare with; -EBUSY: the table is in use; -ESTALE, -EEXIST: see Revisions above.
 */
KVC_EXPORT int kvc_table_shadow(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint32_t ppm,
                                uint64_t revision, uint64_t *ret_revision);

/**
 * kvc_table_canary() - use a table that is not active for some new sequences
 * @share:        number of new sequences, out of 256, that use the table; at most 255. 0 without tenants =
 *                end the trial; the table then drains if it was used
 * @tenants:      [n_tenants] names of at most 64 tenants whose new sequences all use the table
 * @revision:     0 = the next one
 * @ret_revision: may be NULL
 *
 * Return: as kvc_table_shadow(); -EINVAL: the share is above 255, or a name is not a tenant's.
 */
KVC_EXPORT int kvc_table_canary(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], uint32_t share,
                                const char *const *tenants, size_t n_tenants, uint64_t revision,
                                uint64_t *ret_revision);

/**
 * kvc_table_get_fit() - get the fit of a table, over all layers and by layer
 * @ret_fit:    struct_bytes set by the caller
 * @item_bytes: sizeof(kvc_layer_fit)
 * @ret_layers: malloc'ed array of *ret_n layers; free() it
 *
 * Return: 0; -ENOENT: no such table; -ENOMEM.
 */
KVC_EXPORT int kvc_table_get_fit(kvc_client *c, const uint8_t digest[KVC_DIGEST_BYTES], kvc_fit *ret_fit,
                                 size_t item_bytes, kvc_layer_fit **ret_layers, size_t *ret_n);

/**
 * kvc_moments_fetch() - get joint second moments of live traffic, merged over tenants
 * @tenants:    [n_tenants] at most 64; none = all tenants
 * @ret_bytes:  malloc'ed image of *ret_n_bytes of a moments file, which "kvcobra solve" reads; free() it
 * @ret_tokens: number of tokens measured; may be NULL
 *
 * Return: 0; -ENODATA: no client has reported moments of this model; -ENOENT: no such tenant; -ENOMEM.
 */
KVC_EXPORT int kvc_moments_fetch(kvc_client *c, const uint8_t model_digest[KVC_DIGEST_BYTES],
                                 const char *const *tenants, size_t n_tenants, void **ret_bytes,
                                 size_t *ret_n_bytes, uint64_t *ret_tokens);

/* ---- memory and load ---- */

/**
 * kvc_evict() - remove pages that no client holds
 * @tenant:                NULL = pages of all tenants
 * @digest:                NULL = pages of all tables
 * @ret_pages, @ret_bytes: pages and bytes that were evicted; may be NULL
 *
 * Return: 0; -ENOENT: no such tenant or table.
 */
KVC_EXPORT int kvc_evict(kvc_client *c, const char *tenant, const uint8_t digest[KVC_DIGEST_BYTES],
                         uint64_t *ret_pages, uint64_t *ret_bytes);

#define KVC_QUOTA_KEEP UINT64_MAX /* leave this value unchanged */

typedef struct kvc_quota_state {
    size_t struct_bytes; /* sizeof(kvc_quota_state) */
    uint64_t max_bytes;  /* after the call */
    uint64_t guarantee_bytes;
    uint64_t previous_max_bytes; /* before the call */
    uint64_t previous_guarantee_bytes;
    uint64_t used_bytes;         /* after eviction of unheld pages to meet a lower maximum */
    uint64_t client_arena_bytes; /* that each client takes of the maximum; 0 on a GPU */
    uint64_t pool_bytes;         /* of the tenant's device */
} kvc_quota_state;

/**
 * kvc_quota_set() - change the quota of a tenant, or read it
 * @tenant:          "uid-1000" or the name of a section in kvcobrad.conf, on a GPU "uid-1000@gpu0"; a change
 *                   creates a tenant that does not exist
 * @max_bytes:       maximum bytes of pages and arenas; or KVC_QUOTA_KEEP
 * @guarantee_bytes: bytes of the pool, in whole extents, that the tenant can always get; or KVC_QUOTA_KEEP
 * @ret_state:       struct_bytes set by the caller; may be NULL
 *
 * If both values are KVC_QUOTA_KEEP, nothing is changed or created; @ret_state has the limits that apply. A
 * change survives a restart if the daemon has a state folder.
 *
 * Return: 0; -ENOENT: not a tenant's name; -ENOSPC: the guarantees of all tenants would not fit the pool;
 * -EINVAL: the maximum is 0 or below the guarantee.
 */
KVC_EXPORT int kvc_quota_set(kvc_client *c, const char *tenant, uint64_t max_bytes, uint64_t guarantee_bytes,
                             kvc_quota_state *ret_state);

enum kvc_drain { KVC_DRAIN_OFF = 0, KVC_DRAIN_ON = 1, KVC_DRAIN_ASK = 2 };

typedef struct kvc_drain_state {
    size_t struct_bytes; /* sizeof(kvc_drain_state) */
    int draining;        /* 1: new sessions, models and pages are refused */
    uint64_t sessions;
    uint64_t reservations; /* pages that clients are writing */
    uint64_t held_pages;   /* the daemon is idle if this and reservations are 0 */
} kvc_drain_state;

/**
 * kvc_drain() - start draining, end it, or only get its state (KVC_DRAIN_ASK)
 * @ret_state: struct_bytes set by the caller; may be NULL
 *
 * A daemon that drains refuses new sessions, models and pages (-ESHUTDOWN); existing ones stay usable.
 *
 * Return: 0; -EINVAL: @what is not an enum kvc_drain.
 */
KVC_EXPORT int kvc_drain(kvc_client *c, enum kvc_drain what, kvc_drain_state *ret_state);

/* ---- sessions and events ---- */

typedef struct kvc_session_info {
    size_t struct_bytes;  /* sizeof(kvc_session_info) */
    uint64_t session;     /* its number in the daemon's log: kvc_client_info.session of the client */
    char client_name[72]; /* what the client calls itself, such as "libkvcobra 0.1.0" */
    char tenant[64];
    uint32_t pid;
    uint32_t uid;
    uint32_t connected; /* 0: the process lives and holds pages, without a connection */
    uint64_t models;    /* models that it opened */
    uint64_t age_ms;    /* since it was opened, or restored at a restart of the daemon */
    uint64_t idle_ms;   /* since its last sign of life */
    uint64_t leases;
    uint64_t held_pages; /* pages that cannot be evicted because of it */
    uint64_t reservations;
    uint64_t arena_bytes;
    uint64_t hits; /* chunks looked up and found, and not found, as the client reports */
    uint64_t misses;
} kvc_session_info;

/**
 * kvc_session_list() - list the sessions of all clients
 * @item_bytes:   sizeof(kvc_session_info)
 * @ret_sessions: malloc'ed array of *ret_n items in the order of their numbers; free() it
 *
 * Return: 0; -ENOMEM.
 */
KVC_EXPORT int kvc_session_list(kvc_client *c, size_t item_bytes, kvc_session_info **ret_sessions,
                                size_t *ret_n);

/**
 * kvc_session_disconnect() - close the connection of a session
 * @ret_pid: its process; may be NULL
 *
 * The client loses its reservations and the protection of its grants from eviction; pages that it maps stay
 * as they are until the process exits. libkvcobra connects again: to keep a client away, end its process or
 * take its user's right to the socket.
 *
 * Return: 0; -ENOENT: no such session; -ENOTCONN: it is not connected.
 */
KVC_EXPORT int kvc_session_disconnect(kvc_client *c, uint64_t session, uint32_t *ret_pid);

typedef struct kvc_event {
    size_t struct_bytes; /* sizeof(kvc_event) */
    uint64_t number;     /* of the line, from 1 since the daemon started */
    uint64_t time_us;    /* since 1970 */
    uint32_t level;      /* of syslog(3): 3 error .. 6 event, 7 debugging */
    char json[2048];     /* an object with the key "event" and the fields of the line */
} kvc_event;

/**
 * kvc_event_list() - read lines of the daemon's log
 * @after:      number of the last line that the caller has; 0: none
 * @item_bytes: sizeof(kvc_event)
 * @ret_events: malloc'ed array of *ret_n items, oldest first; free() it
 * @ret_last:   number of the newest line; may be NULL. If it is above the last item's, call again
 *
 * The daemon keeps the newest 512 lines of level 6 and below. A gap in the numbers is lines that are lost. A
 * daemon that was restarted begins with 1 again: *ret_last is then below @after.
 *
 * Return: 0; -ENOMEM.
 */
KVC_EXPORT int kvc_event_list(kvc_client *c, uint64_t after, size_t item_bytes, kvc_event **ret_events,
                              size_t *ret_n, uint64_t *ret_last);

/* ---- aliases of models ---- */

typedef struct kvc_model_alias_info {
    size_t struct_bytes; /* sizeof(kvc_model_alias_info) */
    uint8_t alias[KVC_DIGEST_BYTES];
    uint8_t model[KVC_DIGEST_BYTES];
} kvc_model_alias_info;

/**
 * kvc_model_alias() - declare that digest @alias is the same model as @model
 *
 * Quantised weights have another digest than the original ones, and a GGUF file another one than a folder of
 * safetensors. After this call kvc_model_open() with @alias opens @model: clients of both share tables and
 * pages. The daemon cannot check that the models are the same: if they are not, clients read keys and values
 * of another model.
 *
 * A client that has a model open keeps what it opened; the alias applies when a client opens the model next.
 * Aliases survive a restart if the daemon has a state folder. Embedded clients (kvc_model_open_table()) do
 * not know aliases: their table must have the digest that they pass.
 *
 * Return: 0; 1: no change; -EINVAL: the digests are equal, or @model is itself an alias; -EBUSY: @alias
 * has tables or aliases of its own; -EEXIST: it is an alias of another model; -ENOSPC: the daemon has 256
 * aliases.
 */
KVC_EXPORT int kvc_model_alias(kvc_client *c, const uint8_t alias[KVC_DIGEST_BYTES],
                               const uint8_t model[KVC_DIGEST_BYTES]);

/**
 * kvc_model_unalias() - end an alias
 * @ret_model: the model that it was an alias of; may be NULL
 *
 * Clients that opened the model by the alias keep it until they open it again.
 *
 * Return: 0; -ENOENT: @alias is not an alias.
 */
KVC_EXPORT int kvc_model_unalias(kvc_client *c, const uint8_t alias[KVC_DIGEST_BYTES],
                                 uint8_t ret_model[KVC_DIGEST_BYTES]);

/**
 * kvc_model_alias_list() - list all aliases of the daemon; either socket
 * @item_bytes:  sizeof(kvc_model_alias_info)
 * @ret_aliases: malloc'ed array of *ret_n items; free() it
 *
 * Return: 0; -ENOMEM.
 */
KVC_EXPORT int kvc_model_alias_list(kvc_client *c, size_t item_bytes, kvc_model_alias_info **ret_aliases,
                                    size_t *ret_n);

/* ---- status ---- */

/*
 * What another capacity would hit. Chunks count that clients leased, which they found, and chunks that they
 * published, which were not there; a chunk that a client neither found nor published does not count. The most
 * that any cache could have found in a window is lookups - distinct. Estimated hits are those of a cache that
 * drops the least recently used chunk, from a sample, within some hundredths of lookups. All begin with 0
 * when the daemon starts.
 */
typedef struct kvc_advice {
    uint64_t hour_lookups, hour_found, hour_distinct; /* chunks of the last hour; distinct ones: estimated */
    uint64_t day_lookups, day_found, day_distinct;    /* of the last day */
    uint64_t lookups;        /* chunks of the last one to two days; those that would be hits: */
    uint64_t capacity_bytes; /* with this capacity: the pool, or the tenant's quota if that is smaller */
    uint64_t millibits;      /* thousandths of a bit of the pool per number, of the chunks looked up last */
    uint64_t hits_pool_half, hits_pool_same, hits_pool_2x, hits_pool_4x,
        hits_pool_8x;                                               /* times the capacity */
    uint64_t hits_bits_16, hits_bits_4_5, hits_bits_3, hits_bits_2; /* with so many bits per number */
} kvc_advice;

typedef struct kvc_tenant_status {
    size_t struct_bytes; /* sizeof(kvc_tenant_status) */
    char name[64];
    uint64_t quota_bytes; /* maximum of used_bytes */
    uint64_t used_bytes;  /* bytes of pages, arenas, and the index and records of many pages */
    uint64_t held_bytes;  /* bytes of leased and reserved pages, which cannot be evicted */
    uint64_t arena_bytes;
    uint64_t pages;
    uint64_t sessions;
    uint64_t hits, misses, evictions; /* since the daemon started */
    int isolated; /* 0: a client with the daemon's own uid or root can write this memory */
    uint64_t leases;
    uint64_t guarantee_bytes;  /* bytes of the pool that the tenant can always get */
    uint64_t extent_bytes;     /* bytes of the extents that the tenant has */
    uint64_t asked_back_bytes; /* the part of extent_bytes that is lent and being reclaimed for its owner */
    /* sequences by the reason why their first missing chunk was not found */
    uint64_t misses_unknown, misses_evicted, misses_other_table, misses_retired_table;
    uint64_t misses_slow_tier; /* only a slower tier had it, and the client did not wait */
    kvc_advice advice;         /* zeros if the daemon keeps none for this tenant: it does for 64 */
    uint64_t pinned_bytes;     /* the part of held_bytes that kvc_pin() holds */
} kvc_tenant_status;

/* Pages of one table and shard. */
typedef struct kvc_space_status {
    size_t struct_bytes; /* sizeof(kvc_space_status) */
    uint8_t table_digest[KVC_DIGEST_BYTES];
    uint32_t first_kv_head, n_kv_heads; /* the shard */
    uint64_t pages;
    uint64_t page_bytes;
    uint64_t tokens;
    uint64_t tokens_free; /* tokens that still fit */
    uint64_t held_pages;
    uint64_t leased, evictions; /* pages, since the daemon started */
} kvc_space_status;

enum kvc_device_state { KVC_DEVICE_READY = 1, KVC_DEVICE_OPENING = 2, KVC_DEVICE_UNAVAILABLE = 3 };

/* Memory in which pages are stored: host memory first, then each GPU. */
typedef struct kvc_device_status {
    size_t struct_bytes; /* sizeof(kvc_device_status) */
    char name[16];       /* "cpu", "gpu0" */
    char uuid[48];       /* "" for host memory, and for a GPU that was never opened */
    char product[128];   /* product name of the GPU; "" where uuid is "" */
    int state;           /* enum kvc_device_state */
    char message[512];   /* UNAVAILABLE: why; READY: why the last allocation of memory failed */
    uint64_t pool_bytes;
    uint64_t extent_bytes;
    uint64_t page_bytes;
    uint64_t waste_bytes;
    uint64_t held_bytes;
    uint64_t guaranteed_bytes;
    uint64_t pages;
    uint64_t sessions;
    uint32_t spare_extents;     /* preallocated, not yet owned by a tenant */
    uint32_t retired_extents;   /* take no new pages, because an exited process may still access them */
    uint64_t quarantined_slots; /* written by exited processes, not reused yet */
    kvc_advice advice;          /* of all tenants of the device together */
} kvc_device_status;

/* The state of a daemon. pool_bytes, extent_bytes, page_bytes,
 * waste_bytes and guaranteed_bytes count host memory. */
typedef struct kvc_status {
    size_t struct_bytes; /* sizeof(kvc_status) */
    uint64_t pid, uptime_ms;
    uint64_t pool_bytes, extent_bytes, page_bytes, waste_bytes;
    uint64_t sessions, leases, held_pages, refused_packets;
    char version[32], restart[16];
    size_t n_tenants, n_spaces;
    kvc_tenant_status *tenants; /* [n_tenants] */
    kvc_space_status *spaces;   /* [n_spaces] */
    int draining;
    uint64_t evictions;
    uint64_t slot_record_bytes, index_bytes, hold_bytes,
        heap_bytes;                      /* memory of the daemon beside the pages */
    uint32_t work_threads, work_waiting; /* threads beside the main loop; requests in their queue */
    uint64_t work_done, work_refused, work_expired;
    uint64_t guaranteed_bytes; /* sum over tenants */
    size_t n_devices;
    kvc_device_status *devices;         /* [n_devices] */
    uint64_t mover_pid, mover_restarts; /* of kvcobra-mover; pid 0: kvcobra-mover does not run */
    char disk_tier[16];                 /* "none", "ready", "opening", "off" */
    uint32_t lost_names; /* sockets, locks, the state folder: removed or replaced while kvcobrad runs */
} kvc_status;

/* The sizes of the caller's structs. A size of 0 for tenants, spaces or devices leaves that list out. */
typedef struct kvc_status_sizes {
    size_t struct_bytes; /* sizeof(kvc_status_sizes) */
    size_t status_bytes; /* sizeof(kvc_status) */
    size_t tenant_bytes; /* sizeof(kvc_tenant_status) */
    size_t space_bytes;  /* sizeof(kvc_space_status) */
    size_t device_bytes; /* sizeof(kvc_device_status) */
} kvc_status_sizes;

/* const kvc_status_sizes sizes = KVC_STATUS_SIZES; */
#define KVC_STATUS_SIZES                                                                                     \
    {                                                                                                        \
        sizeof(kvc_status_sizes), sizeof(kvc_status), sizeof(kvc_tenant_status), sizeof(kvc_space_status),   \
            sizeof(kvc_device_status)                                                                        \
    }

/**
 * kvc_status_get() - get the present state of the daemon
 * @sizes:      borrowed
 * @ret_status: kvc_status_free() frees it with its arrays
 *
 * A client that is connected to the socket of clients gets its own tenant: the version, draining and one
 * tenant; all else is 0.
 *
 * Return: 0; -EINVAL: a size that is not valid; -ENOMEM.
 */
KVC_EXPORT int kvc_status_get(kvc_client *c, const kvc_status_sizes *sizes, kvc_status **ret_status);

/* Frees a status with its arrays. @s may be NULL. Return: NULL. */
KVC_EXPORT kvc_status *kvc_status_free(kvc_status *s);

#ifdef __cplusplus
}
#endif

#endif
