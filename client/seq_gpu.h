/* A sequence on a GPU: what publishing, matching and reconnecting tell it and ask of it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct kvc_seq;

/**
 * seq_gpu_pages_changed() - s->payloads[first .. first + n - 1] are other addresses now: pages were published, moved, matched
 *
 * The device's page table follows in stream order, queued before this returns: a captured graph may be launched without
 * another call of ours. Old places stay readable for what was queued before.
 *
 * Return: 0; -EIO, with a sentence in the client.
 */
int seq_gpu_pages_changed(struct kvc_seq *s, size_t first, size_t n);

/* s->layers[].length and n_packed were set by matching: the device's lengths follow, queued likewise. Return: 0; -EIO. */
int seq_gpu_lengths_changed(struct kvc_seq *s);

/* The sequence's flag (gpu.h) for inputs that are not finite. */
uint32_t seq_gpu_flag(const struct kvc_seq *s);
