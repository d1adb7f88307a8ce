/* The rows of the table of settings, in the order of the man pages; see settings.h. */
#include "daemon/config/settings.h"

#include "daemon/config/config.h"
#include "daemon/config/limits.h"
#include "proto/cluster_wire.h"
#include "proto/sockets.h"

#ifndef KVCOBRA_MOVER_PATH
#error "the build defines KVCOBRA_MOVER_PATH"
#endif

#define DAY_MS UINT64_C(86400000)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

/* The member of struct config, whose type the compiler compares with the setting's kind. */
#define MEMBER(type, member)                                                                                 \
    .offset = _Generic(((struct config *) 0)->member, type : offsetof(struct config, member))

/* The members of a setting that all have; help and others follow. */
#define ROW(the_name, the_kind, the_group, type, member, the_argument, ...)                                  \
    {                                                                                                        \
        .name = the_name, .kind = the_kind, .group = the_group, MEMBER(type, member),                        \
        .argument = the_argument, __VA_ARGS__                                                                \
    }

/* A limit of a count, from 1 to @most, which a reload changes; help and details follow. */
#define COUNT(the_name, member, most, value, ...)                                                            \
    {                                                                                                        \
        .name = the_name, .kind = SETTING_U32, .group = SETTINGS_COUNTS, .reloads = true,                    \
        MEMBER(uint32_t, member), .argument = "N", .min = 1, .max = most, .number = value, __VA_ARGS__       \
    }

/* Bytes; whether a reload changes them, a maximum, help and details follow. */
#define BYTES_OF(the_group, the_name, member, least, value, ...)                                             \
    {                                                                                                        \
        .name = the_name, .kind = SETTING_BYTES, .group = the_group, MEMBER(uint64_t, member),               \
        .argument = "SIZE", .min = least, .number = value, __VA_ARGS__                                       \
    }
#define HOST_BYTES(the_name, member, value, ...)                                                             \
    BYTES_OF(SETTINGS_MEMORY, the_name, member, 1, value, .max = UINT64_MAX, __VA_ARGS__)

static const char *const keep_names[] = {[KEEP_AUTO] = "auto", [KEEP_YES] = "yes", [KEEP_NO] = "no", NULL};

const struct setting settings[] = {
    /* ---- sockets and files ---- */
    {
        .name = "socket",
        .letter = 's',
        .kind = SETTING_PATH,
        .group = SETTINGS_SOCKETS,
        MEMBER(const char *, socket_path),
        .argument = "PATH",
        .text = SOCKET_SYSTEM_FOLDER "/" SOCKET_CLIENTS,
        .help = "Path of the client socket",
    },
    {
        .name = "socket-mode",
        .kind = SETTING_MODE,
        .group = SETTINGS_SOCKETS,
        MEMBER(mode_t, socket_mode),
        .argument = "OCTAL",
        .max = 0777,
        .number = 0660,
        .help = "Mode of the client socket",
    },
    {
        .name = "operator-socket",
        .letter = 'o',
        .kind = SETTING_PATH,
        .group = SETTINGS_SOCKETS,
        MEMBER(const char *, operator_socket_path),
        .argument = "PATH",
        .text = SOCKET_SYSTEM_FOLDER "/" SOCKET_OPERATORS,
        .help = "Path of the operator socket, whose mode is 0600, or 0660 with operator-group",
    },
    {
        .name = "operator-group",
        .kind = SETTING_TEXT,
        .group = SETTINGS_SOCKETS,
        MEMBER(const char *, operator_group),
        .argument = "GROUP",
        .help = "Name or number of the group whose members may use the operator socket, beside root and the "
                "user of kvcobrad",
        .details =
            "kvcobrad gives this group to the operator socket that it makes, and must be root or in the "
            "group for it. A socket that systemd makes needs SocketGroup= and SocketMode=0660 too.",
    },
    {
        .name = "metrics-socket",
        .kind = SETTING_PATH,
        .group = SETTINGS_SOCKETS,
        MEMBER(const char *, metrics_socket_path),
        .argument = "PATH",
        .help = "Path of a Unix socket that serves metrics over HTTP",
    },
    {
        .name = "metrics-socket-mode",
        .kind = SETTING_MODE,
        .group = SETTINGS_SOCKETS,
        MEMBER(mode_t, metrics_socket_mode),
        .argument = "OCTAL",
        .max = 0777,
        .number = 0600,
        .help = "Mode of the metrics socket",
        .details = "Metrics contain the names of all tenants.",
    },
    {
        .name = "metrics-address",
        .kind = SETTING_TEXT,
        .group = SETTINGS_SOCKETS,
        MEMBER(const char *, metrics_address),
        .argument = "ADDRESS",
        .help =
            "Loopback address that serves metrics over HTTP, such as 127.0.0.1:9110 or [::1]:9110; excludes "
            "metrics-socket",
        .details = "Every user of the host can read the metrics at this address. Addresses that are not "
                   "loopback are refused. Under systemd the unit of the metrics socket has the address: see "
                   "kvcobrad-metrics(7).",
    },
    {
        .name = "state-dir",
        .letter = 'd',
        .kind = SETTING_PATH,
        .group = SETTINGS_SOCKETS,
        MEMBER(const char *, state_dir),
        .argument = "DIR",
        .help = "Folder for tables, the active set and the secret of the keys; without a folder, kvcobrad "
                "loses them when it exits",
    },
    {
        .name = "keep-pool",
        .letter = 'k',
        .kind = SETTING_CHOICE,
        .group = SETTINGS_SOCKETS,
        MEMBER(enum supervisor_keep, keep_pool),
        .argument = "auto|yes|no",
        .choices = keep_names,
        .number = KEEP_AUTO,
        .help = "Persist pages over a restart in the descriptor store of systemd",
        .details = "Pages are persisted only if state-dir is set. auto means yes if systemd sets $FDSTORE to "
                   "more than 0, else no.",
    },
    /* ---- memory ---- */
    HOST_BYTES(
        "pool-bytes", pool_bytes, 4 * GIB, .help = "Maximum bytes of the pool of pages in host memory",
        .details =
            "Must be a multiple of extent-bytes. At a restart, a persisted pool can grow, but not shrink."),
    HOST_BYTES(
        "extent-bytes", extent_bytes, 64 * MIB,
        .help = "Bytes of an extent, the memory object that the pool grows by",
        .details =
            "Must be a multiple of span-bytes. A persisted pool is lost if this value changes. An "
            "extent has pages of one tenant, so a pool has room for as many tenants as it has extents. "
            "Without a value, a pool below 4G has extents of a 64th of its size, in whole spans."),
    HOST_BYTES("span-bytes", span_bytes, 2 * MIB,
               .help = "Bytes of a span, the unit that extents are divided into",
               .details = "Must be a multiple of 4096. A persisted pool is lost if this value changes."),
    {
        .name = "spare-extents",
        .kind = SETTING_U32,
        .group = SETTINGS_MEMORY,
        MEMBER(uint32_t, spare_extents),
        .argument = "N",
        .max = PREALLOCATED_MAX,
        .number = 1,
        .help = "Number of extents that are preallocated in host memory, within pool-bytes",
        .details = "A request that needs an extent while none is preallocated waits until one is created, "
                   "which takes milliseconds.",
    },
    HOST_BYTES("arena-bytes", arena_bytes, 64 * MIB,
               .help = "Bytes of each client's arena, the memory that the client writes new pages to",
               .details = "Must be a multiple of 4096."),
    HOST_BYTES(
        "arenas-bytes", arenas_bytes, 16 * GIB, .reloads = true,
        .help = "Maximum bytes of the arenas of all clients together",
        .details =
            "The last eighth is for tenants that have at most 1/64. An arena counts with its whole size, "
            "but takes memory only where its client wrote."),
    HOST_BYTES("quota-bytes", quota_bytes, 4 * GIB, .reloads = true, .default_from = "pool-bytes",
               .help = "Maximum bytes of pages and arenas per tenant",
               .details = "Index and records of a tenant's pages beyond the first 4096 count, too."),
    {
        .name = "guarantee-bytes",
        .kind = SETTING_BYTES,
        .group = SETTINGS_MEMORY,
        MEMBER(uint64_t, guarantee_bytes),
        .argument = "SIZE",
        .max = GUARANTEE_BYTES_MAX,
        .help = "Bytes of the pool that are guaranteed to each tenant",
        .details = "The value is rounded up to whole extents. The guarantees of the maximum number of "
                   "tenants together must fit the pool: see tenants.",
    },
    {
        .name = "lendable",
        .kind = SETTING_U32,
        .group = SETTINGS_MEMORY,
        .reloads = true,
        MEMBER(uint32_t, lendable_percent),
        .argument = "PERCENT",
        .max = 100,
        .number = 75,
        .help = "Percent of an unused guarantee that other tenants may borrow",
    },
    {
        .name = "moments-bytes",
        .kind = SETTING_BYTES,
        .group = SETTINGS_MEMORY,
        .reloads = true,
        MEMBER(uint64_t, moments_bytes_max),
        .argument = "SIZE",
        .max = UINT64_MAX,
        .help = "Maximum bytes of the second moments of live keys and values that clients may report; 0 "
                "refuses them",
        .details = "\"kvcobra recalibrate\" makes a table from these moments.",
    },
    {
        .name = "exact",
        .kind = SETTING_BOOL,
        .group = SETTINGS_MEMORY,
        .reloads = true,
        MEMBER(bool, exact),
        .argument = "yes|no",
        .help = "Whether engines of a model without an active table share the bytes of their own caches",
        .details =
            "Such pages take as many bytes as the engine's cache, five times those of 3 bits per number, "
            "within the quota of the tenant. They are for engines of the same number type, and are "
            "dropped when a table is activated. A model has one number type and shape at a time: those of "
            "the client that opened it first, while any client uses them, so an account can keep others "
            "from sharing that model. no makes no new ones.",
    },
    {
        .name = "ghosts",
        .kind = SETTING_U32,
        .group = SETTINGS_MEMORY,
        MEMBER(uint32_t, ghosts_per_tenant),
        .argument = "N",
        .min = 16,
        .max = 1u << 24,
        .number = 16384,
        .help = "Number of evicted pages per tenant whose keys are remembered",
    },
    {
        .name = "table-bytes",
        .kind = SETTING_BYTES,
        .group = SETTINGS_MEMORY,
        .reloads = true,
        MEMBER(uint64_t, table_bytes_max),
        .argument = "SIZE",
        .min = 1,
        .max = UINT64_MAX,
        .number = 1 * GIB,
        .help = "Maximum bytes of a table file",
    },
    /* ---- GPUs ---- */
    ROW("gpu", SETTING_TEXT, SETTINGS_GPUS, const char *, gpu, "UUIDS",
        .help = "GPUs that get a pool: up to 16 UUIDs separated by commas, or \"first\", which is the GPU "
                "that the "
                "driver lists first",
        .details =
            "\"nvidia-smi -L\" prints UUIDs. Persisted pages of a GPU that is not in the list are lost."),
    ROW("gpu-pool-bytes", SETTING_BYTES, SETTINGS_GPUS, uint64_t, gpu_pool_bytes, "SIZE", .min = 1,
        .max = UINT64_MAX, .number = 1 * GIB, .help = "Maximum bytes of the pool of pages on each GPU",
        .details = "Must be a multiple of gpu-extent-bytes. The GPU must have enough other memory for the "
                   "models and "
                   "their own caches."),
    ROW("gpu-extent-bytes", SETTING_BYTES, SETTINGS_GPUS, uint64_t, gpu_extent_bytes, "SIZE", .min = 1,
        .max = UINT64_MAX, .number = 64 * MIB, .help = "Bytes of an extent of GPU memory",
        .details =
            "Must be a multiple of gpu-span-bytes and of the unit in which the driver shares memory, 2M on "
            "most GPUs."),
    ROW("gpu-span-bytes", SETTING_BYTES, SETTINGS_GPUS, uint64_t, gpu_span_bytes, "SIZE", .min = 1,
        .max = UINT64_MAX, .number = 2 * MIB,
        .help = "Bytes of a span, the unit that extents of GPU memory are divided into",
        .details = "Must be a multiple of 4096."),
    ROW("gpu-quota-bytes", SETTING_BYTES, SETTINGS_GPUS, uint64_t, gpu_quota_bytes, "SIZE", .reloads = true,
        .min = 1, .max = UINT64_MAX, .number = 1 * GIB, .default_from = "gpu-pool-bytes",
        .help = "Maximum bytes of pages per tenant on one GPU",
        .details = "Arenas are host memory, which quota-bytes limits."),
    ROW("gpu-guarantee-bytes", SETTING_BYTES, SETTINGS_GPUS, uint64_t, gpu_guarantee_bytes, "SIZE",
        .max = GUARANTEE_BYTES_MAX, .help = "Bytes of each GPU's pool that are guaranteed to each tenant",
        .details = "The value is rounded up to whole extents, as guarantee-bytes is."),
    ROW("gpu-spare-extents", SETTING_U32, SETTINGS_GPUS, uint32_t, gpu_spare_extents, "N",
        .max = PREALLOCATED_MAX, .number = 1, .help = "Number of extents that are preallocated on each GPU",
        .details = "A client that needs an extent while none is preallocated gets EAGAIN and retries."),
    ROW("gpu-reuse-ms", SETTING_U64, SETTINGS_GPUS, uint64_t, gpu_reuse_ms, "MS", .max = DAY_MS,
        .number = 2000,
        .help = "Delay before GPU memory of an exited process is reused; it begins when the driver no longer "
                "lists the process",
        .details = "Kernels of a process may still run, and write, after the process has exited."),
    ROW("mover", SETTING_PATH, SETTINGS_GPUS, const char *, mover_path, "PATH", .text = KVCOBRA_MOVER_PATH,
        .help = "Path of kvcobra-mover, the process that uses the GPU driver",
        .details =
            "With --user a kvcobra-mover beside kvcobrad, or in ../libexec from there, goes before the "
            "default."),
    /* ---- disk tier ---- */
    ROW("disk-dir", SETTING_PATH, SETTINGS_TIER, const char *, disk_dir, "DIR",
        .help = "Folder on a disk for pages that leave memory; without a folder there is no disk tier",
        .details = "The folder is empty or of an earlier kvcobrad, and only the user of kvcobrad may write "
                   "to it. Pages are encrypted. Pages of GPUs have no disk tier."),
    BYTES_OF(SETTINGS_TIER, "disk-bytes", disk_bytes, MIB, 64 * GIB, .max = DISK_BYTES_MAX,
             .help = "Maximum bytes of the disk tier"),
    BYTES_OF(SETTINGS_TIER, "disk-quota-bytes", disk_quota_bytes, MIB, 64 * GIB, .max = DISK_BYTES_MAX,
             .reloads = true, .default_from = "disk-bytes",
             .help = "Maximum bytes of the disk tier per tenant"),
    BYTES_OF(SETTINGS_TIER, "disk-buffer-bytes", disk_buffer_bytes, MIB, 64 * MIB, .max = 64 * MIB,
             .help = "Bytes of memory through which pages go to the disk and come back",
             .details = "A page of more than half of it is not written."),
    ROW("key-file", SETTING_TEXT, SETTINGS_TIER, const char *, key_file, "FILE",
        .help = "File with the keys of a fleet of hosts, or, without a '/', the name of a credential of the "
                "unit; without a file, the keys derive from the secret in state-dir",
        .details =
            "Lines \"index\", \"seal N\" and \"open N\" have 64 hexadecimal digits each: the highest N of a "
            "\"seal\" line encrypts, all decrypt. A new key comes to all hosts as \"open\" first. SIGHUP "
            "reads the file again; another index needs a restart and an empty disk-dir."),
    /* ---- cluster tier ---- */
    ROW("cluster-socket", SETTING_PATH, SETTINGS_CLUSTER, const char *, cluster_socket, "PATH",
        .help =
            "Path of the socket at which kvcobra-cluster connects; without a path there is no cluster tier",
        .details = "Needs key-file and cluster-tenants. Pages are encrypted before kvcobra-cluster(8) gets "
                   "them. Pages of GPUs have no cluster tier."),
    ROW("cluster-user", SETTING_TEXT, SETTINGS_CLUSTER, const char *, cluster_user, "USER",
        .help =
            "Name or number of the user whose process may connect at cluster-socket; without a user, that "
            "of kvcobrad"),
    ROW("cluster-tenants", SETTING_TEXT, SETTINGS_CLUSTER, const char *, cluster_tenants, "NAMES",
        .help = "Tenants whose pages are shared through the cluster, separated by commas",
        .details =
            "A name is uid-N or that of a section [tenant NAME]. Hosts share pages of tenants that have "
            "the same name on each of them: sections, unless users have the same numbers everywhere."),
    BYTES_OF(SETTINGS_CLUSTER, "cluster-memory-bytes", cluster_memory_bytes, MIB, 32 * MIB, .max = 64 * MIB,
             .help = "Bytes of memory through which pages go to kvcobra-cluster and come back",
             .details = "A page of more than half of it is neither written nor read."),
    ROW("cluster-ttl-s", SETTING_U64, SETTINGS_CLUSTER, uint64_t, cluster_ttl_s, "SECONDS", .min = 8,
        .max = CLUSTER_TTL_MS_MAX / 1000, .number = 86400,
        .help = "Time after which the cluster forgets a page that no host uses",
        .details = "A page in use gets its time anew, at most once in a quarter of it."),
    ROW("cluster-answer-ms", SETTING_U32, SETTINGS_CLUSTER, uint32_t, cluster_answer_ms, "MS",
        .reloads = true, .min = 1, .max = 10000, .number = 50,
        .help = "How long a match waits for the cluster to say which pages it has",
        .details =
            "Only the pages that it named in time are fetched. While pages come from it, a match waits "
            "twice as long."),
    /* ---- time ---- */
    {
        .name = "lease-ms",
        .kind = SETTING_U64,
        .group = SETTINGS_TIME,
        .reloads = true,
        MEMBER(uint64_t, lease_ms),
        .argument = "MS",
        .min = 100,
        .max = DAY_MS,
        .number = 30000,
        .help = "Time after which leases and reservations of a silent client end",
    },
    {
        .name = "handshake-ms",
        .kind = SETTING_U64,
        .group = SETTINGS_TIME,
        .reloads = true,
        MEMBER(uint64_t, handshake_ms),
        .argument = "MS",
        .min = 100,
        .max = DAY_MS,
        .number = 5000,
        .help = "Time limit from a client's connection to the end of its handshake",
    },
    {
        .name = "drain-ms",
        .kind = SETTING_U64,
        .group = SETTINGS_TIME,
        .reloads = true,
        MEMBER(uint64_t, drain_ms),
        .argument = "MS",
        .max = 365 * DAY_MS,
        .number = 600000,
        .help = "Time after the replacement of a table during which it still accepts pages and a rollback "
                "can restore it",
    },
    /* ---- counts ---- */
    {
        .name = "connections",
        .kind = SETTING_U32,
        .group = SETTINGS_COUNTS,
        MEMBER(uint32_t, connections_max),
        .argument = "N",
        .min = 1,
        .max = 1u << 20,
        .number = 1024,
        .help = "Maximum number of open connections of clients",
    },
    {
        .name = "connections-per-tenant",
        .kind = SETTING_U32,
        .group = SETTINGS_COUNTS,
        .reloads = true,
        MEMBER(uint32_t, connections_per_tenant_max),
        .argument = "N",
        .min = 1,
        .max = 1u << 20,
        .number = 256,
        .help = "Maximum number of open connections per tenant",
        .details = "The last eighth of all connections is for tenants that have few. Operators have "
                   "connections of their own.",
    },
    {
        .name = "sessions-per-tenant",
        .kind = SETTING_U32,
        .group = SETTINGS_COUNTS,
        MEMBER(uint32_t, sessions_per_tenant_max),
        .argument = "N",
        .min = 1,
        .max = 1u << 20,
        .number = 512,
        .help =
            "Maximum number of sessions per tenant, including disconnected sessions that still hold pages",
    },
    {
        .name = "tenants",
        .kind = SETTING_U32,
        .group = SETTINGS_COUNTS,
        .reloads = true,
        MEMBER(uint32_t, tenants_max),
        .argument = "N",
        .min = 1,
        .max = 1u << 16,
        .number = 256,
        .help = "Maximum number of tenants on each device at one time",
        .details =
            "A tenant without a session, a page, and a quota or guarantee of its own is forgotten: when "
            "another tenant needs its place, else after lease-ms.",
    },
    {
        .name = "models-per-session",
        .kind = SETTING_U32,
        .group = SETTINGS_COUNTS,
        .reloads = true,
        MEMBER(uint32_t, models_per_session_max),
        .argument = "N",
        .min = 1,
        .max = 1u << 16,
        .number = 16,
        .help = "Maximum number of models that a session may open",
    },
    {
        .name = "leases-per-session",
        .kind = SETTING_U32,
        .group = SETTINGS_COUNTS,
        .reloads = true,
        MEMBER(uint32_t, leases_per_session_max),
        .argument = "N",
        .min = 1,
        .max = 1u << LEASE_INDEX_BITS,
        .number = 65536,
        .help = "Maximum number of leases per session",
    },
    COUNT(
        "groups-per-tenant", groups_per_tenant_max, 1u << 16, 128,
        .help = "Maximum number of groups of pages of a tenant",
        .details =
            "A group is the pages of one table, shard and class. A tensor-parallel client has two groups for "
            "each shard."),
    COUNT("leases-per-tenant", leases_per_tenant_max, 1u << 24, 65536,
          .help = "Maximum number of leases of all sessions of a tenant"),
    COUNT("leased-pages-per-session", leased_pages_per_session_max, 1u << 24, 131072,
          .help = "Maximum number of pages in the leases of a session",
          .details =
              "A page counts once for each lease that has it, until all pages of the lease are released."),
    COUNT(
        "leased-pages-per-tenant", leased_pages_per_tenant_max, 1u << 24, 262144,
        .help = "Maximum number of pages in the leases of all sessions of a tenant",
        .details =
            "Each takes 20 bytes of memory. There are places for 16777216 pages of all tenants; a tenant may "
            "have no more than are left."),
    COUNT("reservations-per-session", reservations_per_session_max, 1u << 24, 8192,
          .help = "Maximum number of reserved pages per session"),
    COUNT("tables", tables_max, 1u << 16, 256, .help = "Maximum number of tables in all states"),
    /* ---- running ---- */
    {
        .name = "work-threads",
        .kind = SETTING_U32,
        .group = SETTINGS_RUNNING,
        MEMBER(uint32_t, work_threads),
        .argument = "N",
        .min = 1,
        .max = 64,
        .number = 2,
        .help = "Number of worker threads, which copy and check pages and tables",
    },
    {
        .name = "work-queue",
        .kind = SETTING_U32,
        .group = SETTINGS_RUNNING,
        MEMBER(uint32_t, work_queue_max),
        .argument = "N",
        .min = 1,
        .max = 1u << 16,
        .number = 256,
        .help = "Maximum number of requests that wait for or run on worker threads; a tenant may have as "
                "many as are "
                "free, and gets EAGAIN for more",
    },
    {
        .name = "work-inline-bytes",
        .kind = SETTING_BYTES,
        .group = SETTINGS_RUNNING,
        .reloads = true,
        MEMBER(uint64_t, work_inline_bytes),
        .argument = "SIZE",
        .max = 1 * GIB,
        .number = 65536,
        .help = "Maximum bytes that the event loop copies or checks without a worker thread",
        .details = "Handing a small copy to a thread takes longer than the copy.",
    },
    {
        .name = "waiting-bytes",
        .kind = SETTING_BYTES,
        .group = SETTINGS_RUNNING,
        .reloads = true,
        MEMBER(uint64_t, waiting_bytes_max),
        .argument = "SIZE",
        .min = 65536,
        .max = 64 * GIB,
        .number = 48 * MIB,
        .help = "Maximum memory of all requests that wait for a thread, a disk, a cluster or an extent",
        .details = "Beyond it requests get EAGAIN, and chunks of slower tiers are not fetched. The last "
                   "eighth is for tenants whose "
                   "requests keep little.",
    },
    {
        .name = "waiting-bytes-per-tenant",
        .kind = SETTING_BYTES,
        .group = SETTINGS_RUNNING,
        .reloads = true,
        MEMBER(uint64_t, waiting_bytes_per_tenant_max),
        .argument = "SIZE",
        .min = 65536,
        .max = 64 * GIB,
        .number = 10 * MIB,
        .help = "Maximum memory of the requests of one tenant that wait; beyond it, a request gets EDQUOT",
        .details = "A LEASE of 512 chunks that waits for a slower tier keeps some 90 KB.",
    },
    {
        .name = "log-level",
        .kind = SETTING_LEVEL,
        .group = SETTINGS_RUNNING,
        .reloads = true,
        MEMBER(int, log_level),
        .argument = "LEVEL",
        .number = LOG_INFO,
        .help = "Most detailed level that is logged: error, warning, notice, info or debug",
        .details =
            "All levels of syslog(3) are known, by their names or as numbers from 0 (emerg) to 7 (debug).",
    },
    {
        .name = "log-format",
        .kind = SETTING_CHOICE,
        .group = SETTINGS_RUNNING,
        .reloads = true,
        MEMBER(enum log_format, log_format),
        .argument = "logfmt|json",
        .choices = log_format_names,
        .number = LOG_FORMAT_LOGFMT,
        .help = "Form of the lines of the log: logfmt (key=value) or json, an object per line",
        .details =
            "Lines have the time in UTC, except those of logfmt in the journal of systemd, which has it.",
    },
};

_Static_assert(sizeof(settings) / sizeof(settings[0]) <= SETTINGS_MAX, "raise SETTINGS_MAX");
const size_t settings_n = sizeof(settings) / sizeof(settings[0]);
