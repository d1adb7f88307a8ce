/*
 * Threads that read memory all the time, for `kvcobra-lab bench attend --hogs`: they take bandwidth away, so
 * that one machine shows what another with less of it would.
 */
#pragma once

#include <stddef.h>

struct attend_hogs;

/* Starts @n threads, each with a buffer of its own. Return: 0; -ENOMEM, or the error of pthread_create();
 * *ret is untouched then. */
int attend_hogs_new(size_t n, struct attend_hogs **ret);
struct attend_hogs *attend_hogs_free(struct attend_hogs *h); /* ends and joins the threads */
static inline void attend_hogs_freep(struct attend_hogs **h)
{
    *h = attend_hogs_free(*h);
}
