/*
 * The operations in which clients on a GPU differ from clients on the host: one table of functions for
 * each kind. kvc_client_new() sets the table of the host, and kvc_client_set_gpu() that of the GPU, before
 * the client has a connection or a model. The rooms below client/gpu/ call its code only through this
 * table and include none of its headers.
 *
 * The hooks are calls into a higher room too: connection/ and model/ call them after a lost connection or a
 * model was opened again, and sequences then repair their pages (client/sequence/seq_resume.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvc_client;
struct kvc_model;
struct kvc_seq;
struct model_table;
struct page_ops;
struct resumption;
struct seq_ops;

struct client_ops {
    const struct page_ops *pages; /* memory of private pages (client/sequence/pages.h) */
    const struct seq_ops *seqs;   /* of new sequences, evaluation excepted (client/sequence/seq_ops.h) */

    /* Of new sequences with table @t; NULL: @seqs, whatever the table. A call on several sequences begins and
     * ends with @seqs. */
    const struct seq_ops *(*seqs_of)(const struct model_table *t);

    bool uses_threads; /* kvc_client_set_threads() and kvc_client_set_executor() */

    /* Part of every public call. Return: 0; -EIO with a sentence: the GPU is lost. */
    int (*check)(struct kvc_client *c);

    /* Before releases are sent: see client_flush(). Return: false: releases must wait for a later call. */
    bool (*prepare_flush)(struct kvc_client *c);

    /* Publishes pages of a sequence: see publish_arena() and publish_gpu(). */
    int (*publish)(struct kvc_seq *s, size_t first, size_t n, int64_t until_ms, size_t *ret_n);

    /* Name of the kernel that decode steps run with a table; valid as long as the table. */
    const char *(*kernel_name)(struct kvc_client *c, struct model_table *t);

    /* Frees the memory of a table's image and private pages outside the host. */
    void (*free_table)(struct kvc_client *c, struct model_table *t);

    /* Return: whether all queued work has ended: after that no kernel reads the daemon's memory. */
    bool (*quiesce)(struct kvc_client *c);

    /* After everything else of the client was freed. */
    void (*close)(struct kvc_client *c);
};

struct client_hooks {
    /* A lost connection is open again. Return: 0; -ENOMEM, -ENOTCONN: the connection must be given up. */
    int (*reconnected)(struct kvc_client *c, const struct resumption *how);

    /* A model was opened again on a new connection. */
    void (*model_reopened)(struct kvc_model *m);

    /* The keys of chunks of this model changed: those that pages have are void. */
    void (*index_key_changed)(struct kvc_model *m);
};
