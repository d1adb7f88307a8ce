/*
 * Allocation tables and which of them is active for each model. DESIGN 5.4, this part of it:
 *
 *     STAGE --parse--> VERIFIED --ACTIVATE--> ACTIVE --ACTIVATE of another--> DRAINING --no reference, no
 * hold--> RETIRED
 *         \--bad--> REJECTED        ^--------------- ACTIVATE, ROLLBACK --------/
 *
 * A VERIFIED table can be tried beside the active one (trial.h): as SHADOW, or as a canary for some new
 * sequences.
 *
 * The table that ROLLBACK would return to stays DRAINING until its drain time is over, referenced or not.
 * RETIRE ends the drain time at once. A restart forgets who had references: a table that drained before it
 * takes new ones until its drain time is over, and waits --lease-ms for the first of them.
 *
 * With a state folder everything but references survives a restart: DIR/tables/DIGEST.kvct are the files,
 * DIR/active names the active one of each model. ACTIVATE writes that file before it publishes the word.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "alloc/table.h"
#include "base/errmsg.h"
#include "gpu/page_layout.h"
#include "proto/protocol.h"

struct config;
struct devices;
struct space;

#define TRIAL_TENANTS_MAX 64
#define TRIAL_NAME_BYTES 64

struct table_entry;

struct trials {                          /* trial.h */
    struct table_entry *shadow, *canary; /* NULL: none */
    uint32_t shadow_ppm;                 /* of new chunks */
    uint32_t canary_share;               /* of 256 new sequences */
    uint32_t n_tenants;                  /* whose new sequences all use the canary */
    char tenants[TRIAL_TENANTS_MAX][TRIAL_NAME_BYTES];
};

enum table_state { /* values of the protocol's TableState */
                   TABLE_STAGED = 1,
                   TABLE_VERIFIED = 2,
                   TABLE_SHADOW = 3,
                   TABLE_ACTIVE = 4,
                   TABLE_DRAINING = 5,
                   TABLE_RETIRED = 6,
                   TABLE_REJECTED = 7,
};

enum table_outcome { /* values of the protocol's Outcome */
                     OUTCOME_APPLIED = 1,
                     OUTCOME_ALREADY = 2,
                     OUTCOME_STALE = 3,
                     OUTCOME_CONFLICT = 4,
};

struct table_entry {
    struct table_entry *next;     /* in order of id */
    uint64_t id;                  /* cursor of LIST */
    uint8_t digest[DIGEST_BYTES]; /* REJECTED: SHA-256 of the bytes that came */
    uint8_t model_digest[DIGEST_BYTES];
    enum table_state state;
    double bpd_code;
    uint64_t file_bytes;
    uint64_t n_refs;         /* of all sessions */
    uint64_t revision;       /* of the last change of state */
    uint64_t activated;      /* revision that activated it last */
    bool rolled_back;        /* it was left by ROLLBACK: not what the next ROLLBACK returns to */
    uint64_t drain_until_ms; /* DRAINING: commits are taken until then */
    bool from_before; /* it drained already when this process started: who had a reference may ask for it
                         again */
    char reason[WIRE_TEXT_BYTES_MAX]; /* REJECTED */
    struct fit *fit;                  /* what clients report of its codes; NULL: nothing yet */
    bool has_expected;
    double expected[2];  /* by side: the errors that its solver saw; see fit_expected() */
    struct table *table; /* NULL when RETIRED or REJECTED */
    int fd;              /* sealed, read-only copy for FETCH; -1 until the first one */
    struct space *spaces;
};

struct table_model { /* the active set */
    struct table_model *next;
    uint8_t digest[DIGEST_BYTES];
    uint64_t revision;
    struct table_entry *active; /* not NULL */
    struct trials trials;
};

struct tables {
    const struct config *config;
    struct devices *devices; /* whose pages are of these tables */
    struct table_entry *entries;
    struct table_model *models;
    uint32_t n_entries, n_draining;
    uint64_t next_id, next_space;
    uint64_t returns_until_ms; /* clients of the process before this one come back until then */
};

/* Loads the state folder, if one is configured. What cannot be read there is logged and left alone. */
int tables_init(struct tables *ts, const struct config *config, struct devices *devices, struct errmsg *e);
void tables_deinit(struct tables *ts); /* after every page is gone from the store */

struct table_entry *tables_find(const struct tables *ts, const uint8_t *digest);
struct table_model *tables_model(const struct tables *ts, const uint8_t *model_digest);

/*
 * Taking a table's bytes in, in four steps: parsing and writing take long and touch nothing of @ts, so a
 * thread may do them; deciding and accepting are the loop's. One table at a time.
 */
struct staging {
    const void *bytes;
    size_t n_bytes;
    uint64_t revision;   /* 0, or what the operator believes the model's revision to be at least */
    struct table *table; /* what was parsed; staging_deinit() it */
    int err;             /* of the last step */
    struct errmsg why;
    uint8_t digest[DIGEST_BYTES]; /* of bytes that are no table */
};

#define STAGING_WRITE 1 /* tables_stage_decide(): tables_stage_write() comes next */

void tables_stage_parse(struct staging *s);
void tables_stage_write(const struct config *c, struct staging *s);
void staging_deinit(struct staging *s);

/**
 * tables_stage_decide() - what becomes of a parsed table
 * @ret_entry: also set on -EBADMSG: the REJECTED entry with the reason, or NULL if there is no room to
 * remember it
 *
 * Return: 0: nothing more to do; STAGING_WRITE; -EBADMSG; -ESTALE: @revision is older than the model's;
 * -ENOMEM.
 */
int tables_stage_decide(struct tables *ts, struct staging *s, enum table_outcome *ret_outcome,
                        struct table_entry **ret_entry, struct errmsg *e);

/* Its file is written. Return: 0; -ENOSPC: too many tables, or the state folder is full; errno of the file.
 */
int tables_stage_accept(struct tables *ts, struct staging *s, enum table_outcome *ret_outcome,
                        struct table_entry **ret_entry, struct errmsg *e);

/* All steps at once. Return: as the two above. */
int tables_stage(struct tables *ts, const void *bytes, size_t n_bytes, uint64_t revision,
                 enum table_outcome *ret_outcome, struct table_entry **ret_entry, struct errmsg *e);

/**
 * tables_activate() - new sequences of the table's model use it
 * @revision:     0 = the next one
 * @ret_revision: the model's revision afterwards, whatever the outcome
 * @ret_previous: [DIGEST_BYTES] the table that drains now; zeros if none
 *
 * Return: 0, see *ret_outcome; -ENOENT: no such table; -EBADMSG: rejected or retired; errno of the active-set
 * file.
 */
int tables_activate(struct tables *ts, const uint8_t *digest, uint64_t revision, uint64_t now_ms,
                    enum table_outcome *ret_outcome, uint64_t *ret_revision, uint8_t *ret_previous,
                    struct errmsg *e);

/**
 * tables_rollback() - leave @digest for the table that was active before it
 * @ret_active: [DIGEST_BYTES] the active table afterwards
 *
 * Return: 0, see *ret_outcome (OUTCOME_ALREADY: it is not active); -ENOENT: no such table; -ENODATA: nothing
 * to return to drains any more; errno of the active-set file.
 */
int tables_rollback(struct tables *ts, const uint8_t *digest, uint64_t revision, uint64_t now_ms,
                    enum table_outcome *ret_outcome, uint64_t *ret_revision, uint8_t *ret_active,
                    struct errmsg *e);

/**
 * tables_retire() - a table that is not active goes as soon as nobody references or holds its pages
 * @revision: 0, or what the operator believes the model's revision to be at least
 *
 * Return: 0, see *ret_outcome and the entry's state; -ENOENT; -EBUSY: it is active.
 */
int tables_retire(struct tables *ts, const uint8_t *digest, uint64_t revision, uint64_t now_ms,
                  enum table_outcome *ret_outcome, struct table_entry **ret_entry, struct errmsg *e);

/* The space of (table, shard), made if it is new. Return: 0; -EINVAL: shard outside the heads; -ENOMEM. */
int tables_space(struct tables *ts, struct table_entry *t, struct shard shard, struct space **ret_space,
                 struct errmsg *e);
uint64_t table_entry_pages(const struct table_entry *t);

/**
 * tables_adopt_space() - the space of pages that an earlier process left
 * @slot_bytes, @page_bytes: [2] by class, as recorded
 *
 * A table that is not here any more gets an entry that says so: its pages are of no use, but who holds them
 * goes on holding them. Return: 0; -EBADMSG: the table makes pages of other sizes; -ENOMEM; -ENOSPC: too many
 * tables.
 */
int tables_adopt_space(struct tables *ts, const uint8_t *digest, struct shard shard, unsigned page_class,
                       size_t slot_bytes, size_t page_bytes, struct space **ret_space, struct errmsg *e);

/* After the last tables_adopt_space(): tables with pages that are not active drain. */
void tables_adopt_done(struct tables *ts, uint64_t now_ms);

/* Whether a session that has no reference on the table may get one. */
bool tables_may_ref(const struct tables *ts, const struct table_entry *t, uint64_t now_ms);

/* DRAINING tables that nobody references or holds pages of become RETIRED; their pages and files go. */
void tables_retire_idle(struct tables *ts, uint64_t now_ms);

/* Borrowed descriptor of the table's bytes: memfd, sealed, read-only. */
int table_entry_fd(struct table_entry *t, int *ret_fd, struct errmsg *e);

const char *table_state_name(enum table_state s);
