/*
 * Names at which others find this kvcobrad: sockets, locks, the state folder. Once a second a thread compares
 * what they mean with what was opened, since cleaners and operators remove or replace files while they are in
 * use. A loss is logged once, with what to do, and STATUS counts it.
 *
 * A name that is lost is never made again: another process may have it.
 */
#pragma once

#include <stdint.h>

struct errmsg;
struct ev;
struct names;
struct work;

/* @work: borrowed. Return: 0; -ENOMEM; errno of the timer. */
int names_new(struct ev *ev, struct work *work, struct names **ret, struct errmsg *e);

/* After work_free(). NULL is allowed; returns NULL. */
struct names *names_free(struct names *n);

/**
 * names_add() - watch a name
 * @what: for the log: "client socket"; @path is copied
 * @fd:   of the file that has the name, borrowed; -1: the file that has it now
 * @remedy: what an operator should do if the name is lost; a sentence. @what and @remedy are borrowed
 *
 * Return: 0; -ENOMEM; errno of the file; with a sentence.
 */
int names_add(struct names *n, const char *what, const char *path, int fd, const char *remedy,
              struct errmsg *e);

/* How many names are lost now. NULL is allowed. */
uint32_t names_n_lost(const struct names *n);
