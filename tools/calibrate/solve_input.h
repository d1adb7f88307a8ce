/*
 * The input files of `kvcobra solve`: statistics, or moments with the statistics of a metric; and a table
 * whose quantiser levels are reused.
 */
#pragma once

#include <stddef.h>

#include "alloc/kvcobra-alloc.h"

struct errmsg;
struct solve_arguments;

struct solve_input {
    kvc_alloc *alloc;
    kvc_stats *stats; /* derived from moments if the file holds moments */
    kvc_stats_info info;
    void *levels; /* [n_levels] contents of a table; NULL: not given */
    size_t n_levels;
};

/**
 * solve_input_load() - load the files that the arguments name
 *
 * Return: 0; -EINVAL: files or options that exclude each other; -EBADMSG, -ENOENT …; a sentence in @e.
 */
int solve_input_load(const struct solve_arguments *a, struct solve_input *ret, struct errmsg *e);

/* Frees and zeroes. Usable with _cleanup_. */
void solve_input_deinit(struct solve_input *in);
