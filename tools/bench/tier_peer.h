/*
 * What `kvcobra bench tier` compares with: fio on the disk, redis-benchmark against the server. Both are
 * programs that may not be installed.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct errmsg;

enum { TIER_COMMAND_BYTES = 1024 };

enum tier_fio { TIER_FIO_WRITE, TIER_FIO_READ, TIER_FIO_RANDREAD };

struct tier_fio_options {
    const char *folder;   /* the file is made there, and removed */
    uint64_t block_bytes; /* rounded up to 4096 */
    uint64_t file_bytes;  /* likewise, to whole blocks */
    uint64_t io_bytes;    /* that are read or written, once, to whole blocks */
    uint32_t depth;
};

/*
 * *ret: bytes per second. @ret_command: [TIER_COMMAND_BYTES] what was run. Return: 0; -ENOENT: there is no
 * fio; errno of a run; each with a sentence.
 */
int tier_peer_fio(const struct tier_fio_options *o, enum tier_fio kind, double *ret, char *ret_command,
                  struct errmsg *e);

struct tier_redis_options {
    uint16_t port; /* of this machine */
    uint64_t value_bytes;
    uint32_t n_clients, depth; /* requests of a client in flight */
    uint32_t n_requests;
};

/* The same for redis-benchmark with GET. */
int tier_peer_redis(const struct tier_redis_options *o, double *ret, char *ret_command, struct errmsg *e);
