/*
 * Whether the inputs of a sequence were finite. Kernels that store them find that out, and set a flag of the
 * sequence, which the host reads later: no append waits for the device.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/gpu/gpu.h"

struct kvc_seq;

struct seq_sound {
    uint32_t flag; /* set by kernels; gpu_flag_take() */
    bool has_flag;
    bool is_faulty; /* the flag was set */
    size_t n_sound; /* tokens that were appended when the flag was last 0 */
};

/* Return: 0; as gpu_alloc(). */
int seq_sound_init(struct gpu *g, struct seq_sound *x, struct errmsg *e);
void seq_sound_deinit(struct gpu *g, struct seq_sound *x);

/* For a fork: faults that were not read from the flag yet are shared. Return: 0; as cuda_fail(). */
int seq_sound_copy(struct gpu *g, struct seq_sound *to, const struct seq_sound *from, struct errmsg *e);

/* After a cut or a match: the flag is lowered if the faulty tokens were cut off. Return: 0; -EIO. */
int seq_sound_lengths_changed(const struct kvc_seq *s, struct seq_sound *x);

/**
 * seq_sound_update() - after gpu_flags_read(): whether kernels found an error in the sequence
 * Return: 0; -EINVAL with a sentence: an input was not finite, or a captured graph was launched without its
 * replay.
 */
int seq_sound_update(const struct kvc_seq *s, struct seq_sound *x);

/* The same as of the last update, for calls that do not wait. */
int seq_sound_check(const struct kvc_seq *s, const struct seq_sound *x);
