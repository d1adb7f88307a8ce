/* The copy of a table's bytes that clients map: a memfd that no process can change. */
#pragma once

struct errmsg;
struct table;

/*
 * Makes the copy, which may have megabytes: threads call this, and the start of the daemon. @ret_fd: sealed
 * and read-only. Return: 0; errno of the memory, with a sentence.
 */
int table_copy_new(const struct table *t, int *ret_fd, struct errmsg *e);

/*
 * Opens the copy @fd again. Clients of different tenants get open file descriptions of their own: they share
 * neither file offset nor flags. @ret_fd: for the caller. Return: 0; -EAGAIN: no descriptor is left; errno.
 */
int table_copy_open(int fd, int *ret_fd, struct errmsg *e);
