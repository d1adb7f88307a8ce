/*
 * What `kvcobra bench tier` does with a kvcobrad: prompts of random pages are published, matched by one
 * client or by several at once, and decoded; another client asks for something small all the time. Prompts
 * have numbers, and as many pages as the caller says.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/errmsg.h"
#include "tools/bench/bench_service_model.h"

struct tier_place;

enum { TIER_CLIENTS = 8 };

struct tier_client {
    kvc_client *handle;
    kvc_model *model;
};

struct tier_load {
    struct tier_place *place;
    struct bench_shape shape;
    struct bench_model model;
    struct tier_client clients[TIER_CLIENTS];
    float *vectors;    /* of the tokens that are appended at a time, for one layer and side */
    uint16_t *decoded; /* of all tokens of a prompt, both sides of all layers; made when it is needed */
    size_t n_decoded;  /* tokens */
};

/* A shape whose pages have about @page_bytes, at least 8 KiB. */
struct bench_shape tier_load_shape(uint64_t page_bytes);

/* Activates the table and connects the clients. @l: zeros. Return: 0; errno with a sentence. */
int tier_load_begin(struct tier_load *l, struct tier_place *p, const struct bench_shape *s, struct errmsg *e);
/* The same after tier_place_restart(). */
int tier_load_again(struct tier_load *l, struct errmsg *e);
void tier_load_end(struct tier_load *l); /* usable with _cleanup_ */

size_t tier_load_page_bytes(const struct tier_load *l);

/* Return: 0; errno with a sentence, as of all functions below. */
int tier_load_publish(struct tier_load *l, uint32_t prompt, size_t n_pages, struct errmsg *e);

/* Matches prompts first .. first + n - 1, @n at most TIER_CLIENTS, each by a client and thread of its own.
 * *ret_s: until all are found. Return: also -ENODATA: not all pages were found. */
int tier_load_match(struct tier_load *l, uint32_t first, unsigned n, size_t n_pages, double *ret_s,
                    struct errmsg *e);

/* Matches a prompt and decodes all its keys and values to binary16. */
int tier_load_read(struct tier_load *l, uint32_t prompt, size_t n_pages, double *ret_s, struct errmsg *e);

/* Opens sealed pages of that size in @n_threads threads. *ret: bytes per second of all. */
int tier_load_opening_rate(size_t page_bytes, unsigned n_threads, double *ret, struct errmsg *e);

/* ---- a client that asks ---- */

enum { TIER_ANSWERS_MAX = 1 << 16 };

struct tier_asker {
    pthread_t thread;
    const char *socket;
    bool stops; /* atomic */
    size_t n;
    double seconds[TIER_ANSWERS_MAX]; /* [n] */
    int err;
    struct errmsg why;
};

int tier_asker_begin(struct tier_asker *a, const char *socket, struct errmsg *e);
/* Also the failure of a question. */
int tier_asker_end(struct tier_asker *a, struct errmsg *e);
/* How many answers it has by now. */
size_t tier_asker_count(const struct tier_asker *a);
