/*
 * One entry per table of this daemon, one model per active set: states, look-ups and counts. This is the
 * lowest file of the room. The rules for changes of state are above it, in tables_stage.c, tables_activate.c,
 * trial.c and tables.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "alloc/table/table_expected.h"
#include "alloc/table/table.h"
#include "daemon/tables/state_writer.h"
#include "gpu/page_layout.h"
#include "proto/protocol.h"

struct config;
struct devices;
struct errmsg;
struct space;
struct table_entry;

#define REVISION_MAX ((UINT64_C(1) << 40) - 1) /* the 40 bits of a control word */
#define TRIAL_TENANTS_MAX 64
#define TRIAL_NAME_BYTES 64

#define SPACE_PLACES 32
#define SPACES_UNUSED_MAX 16 /* of a table; they take time to make and, for a large model, 60 KB each */

struct trials {                          /* trial.h */
    struct table_entry *shadow, *canary; /* NULL: none */
    uint32_t shadow_ppm;                 /* of new chunks */
    uint32_t canary_share;               /* of 256 new sequences */
    uint32_t n_tenants;                  /* tenants whose new sequences all use the canary */
    char tenants[TRIAL_TENANTS_MAX][TRIAL_NAME_BYTES];
};

/* Values of the protocol's TableState. */
enum table_state {
    TABLE_STAGED = 1,
    TABLE_VERIFIED = 2,
    TABLE_SHADOW = 3,
    TABLE_ACTIVE = 4,
    TABLE_DRAINING = 5,
    TABLE_RETIRED = 6,
    TABLE_REJECTED = 7,
};

/* Values of the protocol's Outcome. */
enum table_outcome {
    OUTCOME_APPLIED = 1,
    OUTCOME_ALREADY = 2,
    OUTCOME_STALE = 3,
    OUTCOME_CONFLICT = 4,
};

struct table_entry {
    struct table_entry *next;     /* in order of id */
    uint64_t id;                  /* cursor of LIST */
    uint8_t digest[DIGEST_BYTES]; /* REJECTED: SHA-256 of the received bytes */
    uint8_t model_digest[DIGEST_BYTES];
    enum table_state state;
    double bpd_code;
    uint64_t file_bytes;
    uint64_t n_refs;         /* of all sessions */
    uint64_t revision;       /* of the last change of state */
    uint64_t activated;      /* revision that activated it last */
    bool rolled_back;        /* ROLLBACK left it: the next ROLLBACK does not return to it */
    uint64_t drain_until_ms; /* DRAINING: commits are taken until then */
    /* the table drained already when this process started: sessions that had a reference may take it again */
    bool from_before;
    char reason[WIRE_TEXT_BYTES_MAX]; /* REJECTED */
    struct fit *fit;                  /* reported by clients; NULL: nothing yet */
    bool has_expected;
    struct table_expected expected;
    struct table *table; /* NULL when RETIRED or REJECTED */
    int fd;              /* sealed, read-only copy for FETCH; -1 until the first one */
    struct space *spaces;
    struct space *by_shard[SPACE_PLACES];     /* the same, by table_shard_place() */
    uint64_t former_leased, former_evictions; /* of spaces that were freed */
};

struct table_model { /* the active set */
    struct table_model *next;
    uint8_t digest[DIGEST_BYTES];
    uint64_t revision;
    struct table_entry *active; /* not NULL */
    struct trials trials;
};

struct model_alias { /* aliases.h */
    uint8_t alias[DIGEST_BYTES], model[DIGEST_BYTES];
};

struct tables {
    const struct config *config;
    struct devices *devices; /* have the pages of these tables */
    struct table_entry *entries;
    struct table_model *models;
    uint32_t n_entries, n_draining;
    uint64_t next_id, next_space;
    struct model_alias aliases[WIRE_ALIASES_MAX];
    uint32_t n_aliases;
    uint64_t returns_until_ms; /* until then clients of the earlier process reconnect */
    void (*retired)(void *ctx, const uint8_t *digest); /* a table retired; may be NULL */
    void *ctx;
    struct state_writer state;
};

const char *table_state_name(enum table_state s);

/* The entry with @digest, or NULL. */
struct table_entry *table_find(const struct tables *ts, const uint8_t *digest);
struct table_model *table_model_find(const struct tables *ts, const uint8_t *model_digest);

/* An entry in state STAGED. Return: 0; -ENOSPC: too many tables; -ENOMEM. */
int table_entry_new(struct tables *ts, const uint8_t *digest, struct table_entry **ret, struct errmsg *e);
void table_entry_free(struct table_entry *t); /* for an entry that is in no list */

/* Removes @t from the list if it was rejected: nothing refers to such an entry. */
void table_forget_rejected(struct tables *ts, struct table_entry *t);

/*
 * The entry of a parsed table, VERIFIED. Takes a reference of its own.
 * @copy: of table_copy_new(), transferred, also on failure. Return: 0; see table_entry_new().
 */
int table_accept(struct tables *ts, struct table *table, int copy, struct table_entry **ret,
                 struct errmsg *e);

/* Changes the state, logs it, and updates the count of draining tables. */
void table_set_state(struct tables *ts, struct table_entry *t, enum table_state state);

uint64_t table_entry_pages(const struct table_entry *t); /* committed pages of all spaces */
void table_free_spaces(struct table_entry *t);           /* when the spaces have no pages */

/* The space of @shard, or NULL. */
struct space *table_find_space(const struct table_entry *t, struct shard shard);

/*
 * Adds @s, and frees older spaces that no tenant has a group of, above SPACES_UNUSED_MAX: clients choose
 * shards. Pointers to spaces that no group keeps end here.
 */
void table_add_space(struct table_entry *t, struct space *s);

int table_model_new(struct tables *ts, const uint8_t *digest, struct table_model **ret, struct errmsg *e);
void table_model_drop(struct tables *ts, struct table_model *m);

/*
 * Whether @t has exactly the geometry of the model's active table: clients compute attention of all tables of
 * a model with one geometry, which an exact table does not decide. @m: NULL for a new model. Return: 0;
 * -EINVAL with both values.
 */
int table_check_geometry(const struct table_model *m, const struct table_entry *t, struct errmsg *e);

/* Whether the model's active table is an exact one (tables_exact.h). @m: may be NULL. */
bool table_model_is_exact(const struct table_model *m);

/* Refuses an exact table where operators name one. Return: 0; -EINVAL with a sentence. */
int table_check_calibrated(const struct table_entry *t, struct errmsg *e);

/* The table that ROLLBACK from @m's active one returns to, or NULL. */
struct table_entry *table_model_previous(const struct tables *ts, const struct table_model *m);

/* Whether @t is a canary: new sequences may take references on it although it is not active. */
bool table_is_canary(const struct tables *ts, const struct table_entry *t);
