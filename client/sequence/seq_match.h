/*
 * Starting a sequence from published pages, in steps: the chunk keys and the index, then one LEASE per batch
 * of pages. kvc_seq_match() waits for each reply; an asynchronous fetch runs the same steps without waiting.
 *
 *     seq_match_init()             checks, memory
 *     seq_match_look_up()          the chunks that a tier has and the match needs (seq_window.h); the model
 *                                  must be connected
 *     while seq_match_request()    fills in a LEASE
 *         seq_match_add_reply()    adds the granted pages
 *     seq_match_finish()           the new length
 *     seq_match_deinit()
 *
 * Between look_up and finish the sequence has pages beyond its length: no other call may use it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra.h"
#include "client/sequence/seq.h"
#include "proto/index.h"
#include "proto/wire.h"

/* A chunk that the index has, or probably a slower tier. */
struct seq_match_found {
    struct chunk_key key;
    struct index_hit hit;
};

/* Zeros: empty. */
struct seq_match {
    struct kvc_seq *seq;
    const uint32_t *tokens; /* during a look-up */
    size_t first;           /* chunks that the sequence had before */
    size_t n_chunks;        /* whole chunks of the text that may be matched, the first ones included */
    size_t n_found;         /* chunks of the text that the look-up found: those from @needed on */
    size_t needed;          /* chunks from @first on before it are left out, since no window has them */
    /* [n_chunks - first] chunks first .. n_found - 1, and the key of the next one; with a window all keys */
    struct seq_match_found *found;
    unsigned n_lookups;        /* that a LEASE led to which granted too little for the window */
    Kvcobra__LeaseItem *items; /* of one LEASE */
    Kvcobra__LeaseItem **pointers;
    size_t n_asked; /* found chunks in the LEASE */
    bool fetches;   /* some of the found chunks are in a slower tier only: their slot is UINT32_MAX */
    struct client_lease *lease; /* of the LEASE whose reply is awaited; NULL: none */
    bool has_ended;             /* a LEASE was granted only in part */
    bool has_reopened;          /* the index had moved, and was opened again */
    int err;                    /* of opening it */
};

/**
 * seq_match_init() - check a sequence and its text before a match
 * @n_leave: tokens at the end that are not matched
 * @ret:     borrows @s; seq_match_deinit() it in any case
 *
 * Return: 0; -EINVAL with a sentence: the sequence has tokens that were not matched, or others than @tokens;
 * -ESTALE, -EBUSY; -ENOMEM.
 */
int seq_match_init(struct kvc_seq *s, const uint32_t *tokens, size_t n_tokens, size_t n_leave,
                   struct seq_match *ret);
void seq_match_deinit(struct seq_match *m);

/* Finds the chunks that the index or a slower tier has; may be repeated until a page was added. A
 * moved index is opened again, once. While the daemon reclaims memory nothing is found. Return: 0; -ESTALE,
 * -EINVAL: the pages that the sequence had were lost with the connection, or have other tokens; as
 * model_remote_open(). */
int seq_match_look_up(struct seq_match *m, const uint32_t *tokens);

/**
 * seq_match_request() - the LEASE of the next batch of found chunks
 * @ret: the items belong to @m
 *
 * If the daemon granted only a part of a window, that part is given up, and a shorter text is looked for.
 *
 * The first missing chunk is added to the last batch if there is room: the daemon counts the reason why it is
 * missing, and that costs no message of its own.
 *
 * Return: 1; 0: there is nothing more to lease; -ENOMEM with a sentence.
 */
int seq_match_request(struct seq_match *m, Kvcobra__Lease *ret);

/* Adds the pages of the reply to that LEASE. The first page that cannot be used, and all after it, are
 * released. Pages granted before an error stay. Return: 0; as seq_map_granted(), -ENOMEM. */
int seq_match_add_reply(struct seq_match *m, const Kvcobra__LeaseReply *reply);

/**
 * seq_match_finish() - give all layers the length of the pages
 * @r: the error that ended the match; 0: none
 *
 * Granted pages are used also after an error, but not a part of a window. Return: 0; @r if the match added
 * nothing and the caller should know why; -EIO: the GPU is lost.
 */
int seq_match_finish(struct seq_match *m, int r);

/* ---- a fetch, which runs the steps without waiting (seq_fetch.c) ---- */

/*
 * Ends the fetch, if it has not ended, and gives its sequence back: with the pages that it had before the
 * fetch, if it had not ended. The handle stays, with the result -ECANCELED. A lease whose reply is still
 * awaited is released when the reply comes.
 */
void seq_fetch_cancel(struct kvc_fetch *f);
