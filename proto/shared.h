/*
 * The two small shared pages.
 *
 * Control page: one per tenant, read-only to clients, written by the daemon's loop thread. Holds the table
 * that new sequences of a model use; swapping tables is one 64-bit store. Session page: one per session,
 * written by the client. The daemon copies it and trusts none of it.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "proto/protocol.h"

#define CONTROL_MAGIC 0x4c54434bu /* "KCTL" */
#define CONTROL_PAGE_BYTES 65536
#define CONTROL_MODELS_MAX 16
#define CONTROL_DIGESTS_MAX 64 /* per model, append-only; when full, the daemon builds a new control page */
#define SESSION_PAGE_BYTES 4096

/*
 * word: revision << 24 | canary share (8 bits, n/256 of new sequences) << 16 | canary entry << 8 | active
 * entry. Entry CONTROL_NO_TABLE: none. An entry's digest is written before the word that names it is stored
 * (release); readers load the word (acquire), then the digest.
 */
#define CONTROL_NO_TABLE 255

struct control_model {
    uint8_t model_digest[32];
    uint8_t geometry_digest[32];
    _Atomic uint64_t word;
    _Atomic uint64_t retired_below; /* entries retired so far, informative */
    uint8_t digests[CONTROL_DIGESTS_MAX][32];
};

/*
 * shadow word: share in millionths << 8 | entry + 1 in the model's digests; 0: no shadow.
 * A share of new chunks is encoded with that table too, for comparison. The words are placed after the
 * models, where older readers do not read.
 */
#define CONTROL_SHADOW_PPM_MAX 1000000u

struct control_page {
    uint32_t magic;
    uint32_t version;
    uint8_t boot_id[BOOT_ID_BYTES];
    /* non-zero: obsolete, send OPEN_MODEL for the new one. Some time later all of the page reads as zeros. */
    _Atomic uint64_t moved;
    /* extent to be reclaimed for its lender: release its pages and take no new ones; 0: none */
    _Atomic uint64_t reclaim;
    /* number of the filter over chunks of slower tiers, for GET_FILTER; 0: they have none of this tenant */
    _Atomic uint64_t filter;
    /* 1: a tier without a filter may have any chunk of this tenant: LEASE with fetch_ms finds out */
    _Atomic uint64_t asks;
    uint8_t reserved[8];
    struct control_model models[CONTROL_MODELS_MAX];
    _Atomic uint64_t shadow[CONTROL_MODELS_MAX];
};
_Static_assert(sizeof(struct control_page) <= CONTROL_PAGE_BYTES, "control page");

static inline uint64_t control_word(uint64_t revision, unsigned active, unsigned canary, unsigned share)
{
    return revision << 24 | (uint64_t) (share & 255) << 16 | (uint64_t) (canary & 255) << 8 | (active & 255);
}

static inline unsigned control_active(uint64_t word)
{
    return (unsigned) (word & 255);
}

static inline unsigned control_canary(uint64_t word)
{
    return (unsigned) (word >> 8 & 255);
}

/* The number of new sequences in 256 that use the canary. */
static inline unsigned control_canary_share(uint64_t word)
{
    return (unsigned) (word >> 16 & 255);
}

static inline uint64_t control_revision(uint64_t word)
{
    return word >> 24;
}

struct session_page {
    _Atomic uint64_t renewals; /* every library call increments it, which renews grants without a message */
    _Atomic uint64_t chunks_hit;
    _Atomic uint64_t chunks_missed;
    uint8_t reserved[SESSION_PAGE_BYTES - 24];
};
_Static_assert(sizeof(struct session_page) == SESSION_PAGE_BYTES, "session page");
