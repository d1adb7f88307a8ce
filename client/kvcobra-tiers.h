/*
 * libkvcobra with pages beyond memory. For schedulers of engines: where the chunks of a prompt are, in memory
 * or on a disk, and how to bring them to memory before the prompt's turn comes; these calls lease nothing and
 * need no sequence. Then pages in files, for other hosts or for later. Operators look a prompt up, flush or
 * pin it by requests of kvcobra.proto (kvcobra-call.h).
 */
#ifndef KVCOBRA_TIERS_H
#define KVCOBRA_TIERS_H

#include "kvcobra.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * kvc_model_peek_tiers() - kvc_model_peek() with two numbers
 * @ret_memory: tokens that a match would find in memory
 * @ret_all:    those in memory or probably on a disk, which is wrong for one chunk in a thousand
 *
 * Sends one message more than kvc_model_peek() after the daemon has made another list of the chunks on the
 * disk, which is rare.
 *
 * Return: as kvc_model_peek().
 */
KVC_EXPORT int kvc_model_peek_tiers(kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens,
                                    size_t n_tokens, size_t *ret_memory, size_t *ret_all);

#define KVC_PREFETCH_PARTS_MAX 64 /* of a client at one time; a part has 512 chunks of a prompt, or fewer */

/**
 * kvc_model_prefetch() - start to bring a prompt's chunks from a disk to memory
 * @o:            as for kvc_model_peek(), and fetch_ms: how long the daemon may take for a part of the prompt
 * @ret_prefetch: number for kvc_model_prefetch_cancel(); 0: there is nothing to fetch, or no connection
 *
 * For prompts that wait for their turn: a later match finds in memory what arrived. The call does not wait
 * for the disk. It sends messages as kvc_model_peek_tiers() does, and one per part, whose reply it does not
 * wait for. The parts of a client are sent two at a time; its later calls, of any kind that talks to the
 * daemon, send the others. A call that maps memory of the daemon for the first time waits for the parts that
 * were sent.
 *
 * Nothing is leased, so what arrived can be evicted again, and neither hits nor misses are counted. Only
 * chunks of tables that this client has open are fetched: after a swap, those of the new table once the
 * client has a sequence of it. With KVC_FETCH_NEVER nothing is fetched.
 *
 * Return: 0; -EAGAIN: more than KVC_PREFETCH_PARTS_MAX parts, and nothing was started; -EINVAL, -EOPNOTSUPP:
 * see kvc_seq_new_with(); -ENOMEM; -EPROTO, -EBADMSG: the daemon's reply is invalid.
 */
KVC_EXPORT int kvc_model_prefetch(kvc_model *m, const kvc_seq_options *o, const uint32_t *tokens,
                                  size_t n_tokens, uint64_t *ret_prefetch);

/**
 * kvc_model_prefetch_cancel() - drop what was not sent yet of a prefetch
 * @prefetch: number from kvc_model_prefetch(); 0: all prefetches of the model
 *
 * What the daemon fetches already still arrives, within fetch_ms.
 *
 * Return: 0, also if the prefetch has ended; -EINVAL: @m is NULL.
 */
KVC_EXPORT int kvc_model_prefetch_cancel(kvc_model *m, uint64_t prefetch);

/* ---- pages in files ---- */

/**
 * kvc_seq_export() - write the published pages of a sequence
 * @fd:         written to from its position on; a file or a pipe
 * @ret_tokens: tokens of the pages: a multiple of 64; may be NULL
 *
 * The pages are sealed: only clients of the same tenant open them, of this daemon or of one with the same key
 * file. For a prompt, match it first, with kvc_fetch_start() and n_leave 0 if its last token belongs to a
 * whole chunk.
 *
 * Return: 0; -ENODATA: no page is published; -EINVAL: a match of a window left out the first pages; -ESTALE:
 * see kvc_seq_append(); the errno of write(2), with some bytes written.
 */
KVC_EXPORT int kvc_seq_export(kvc_seq *s, int fd, size_t *ret_tokens);

typedef struct kvc_import {
    size_t struct_bytes; /* sizeof(kvc_import) */
    uint64_t n_pages;    /* in the file, as its header says */
    uint64_t n_taken;    /* leading pages of it that the daemon has now */
    uint64_t n_present;  /* of them, those that it had before */
    int32_t end_err;     /* why the next page was not taken, which kvc_last_error() explains; 0: all were */
    uint32_t unused;     /* 0 */
    uint8_t table_digest[KVC_DIGEST_BYTES];
    uint8_t model_digest[KVC_DIGEST_BYTES];
} kvc_import;

/**
 * kvc_client_import() - publish the pages of a file
 * @fd: read from its position to its end; a file or a pipe
 *
 * The daemon checks each page as it checks one that a client encoded. The first page that is not taken ends
 * the call: no client would find those behind it. end_err is then -ENODATA: the file was cut; -EBADMSG: a
 * page is damaged; -EDQUOT, -ENOSPC, -EAGAIN: there is no room; or another errno of a commit.
 *
 * Return: 0, also if not all pages were taken; -EBADMSG: not a file of pages, or its header is damaged;
 * -EACCES: the pages are of another tenant or fleet; -ENODATA: the daemon has no active table for their
 * model; -ENOENT, -ESTALE: their table is not active; -ENOTCONN; -EOPNOTSUPP: this client is on a GPU;
 * -ENOMEM.
 */
KVC_EXPORT int kvc_client_import(kvc_client *c, int fd, kvc_import *ret_import);

#ifdef __cplusplus
}
#endif

#endif
