/* The pages of a sequence: claiming, dropping, and their addresses. Used by every kind of
 * sequence, and by matching and publishing. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/sequence/seq.h"

/* Room for @n pages in the arrays. Return: 0; -ENOMEM. */
int seq_reserve_pages(struct kvc_seq *s, size_t n);

/**
 * seq_claim() - private pages up to @n_pages, all or none
 * Return: 0; -ENOSPC with a sentence: the arena is full; -ENOMEM, on a GPU -EBUSY and -EIO too.
 */
int seq_claim(struct kvc_seq *s, size_t n_pages);

/* Takes over the reference. seq_reserve_pages() made room. */
void seq_add_page(struct kvc_seq *s, struct page *p);

/* Keeps the first @n pages. client_leases_flush() sends the releases of the others. */
void seq_drop_pages(struct kvc_seq *s, size_t n);

/* Addresses of the payloads, refreshed if pages moved. */
const uint8_t *const *seq_payloads(struct kvc_seq *s);

/* seq_ops.truncate of sequences whose chunks stay in the tail until they are due. */
size_t seq_truncate_pages(struct kvc_seq *s, size_t n);
