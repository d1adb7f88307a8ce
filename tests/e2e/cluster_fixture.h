/*
 * Hosts of a fleet on one machine: a redis-server, and for each host a kvcobrad with its kvcobra-cluster.
 *
 * Environment: KVC_CLUSTER names kvcobra-cluster; redis-server is looked for in PATH.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "tests/e2e/client_fixture.h"

struct redis {
    pid_t pid;
    int port;
    char folder[64];
};

/* False: there is no redis-server. Other failures are asserted. */
bool redis_start(struct redis *r);
void redis_end(struct redis *r);

/* Sends a command of words without blanks. Return: the number of its reply; of a list: its length. */
long redis_ask(const struct redis *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Waits until the server has @n keys, that of the fleet's id too. */
bool redis_reaches(const struct redis *r, long n);

/* Writes over bytes of all values that are pages. Return: how many. */
long redis_damage_pages(const struct redis *r);

/* The least time that a page has to live, in milliseconds; negative: there is none. */
long redis_page_ttl_ms(const struct redis *r);

struct host {
    struct scene scene;
    char folder[64], keys[96], key_arg[128], socket_arg[128], config[96];
    char tenants_arg[64];
    char disk[96], disk_arg[128]; /* "": no disk tier */
    const char *args[16];
    pid_t process; /* kvcobra-cluster; 0: none */
};

/*
 * A daemon of the fleet whose keys consist of the digit @index. @tenants: those of the cluster; NULL: this
 * user's.
 */
void host_start(struct host *h, const struct redis *r, char index, const char *tenants);
/* Files and arguments of a host with memory for a few texts, a disk for some more, and the default waits. */
void host_prepare_small(struct host *h, const char *servers, char index);
void host_run(struct host *h);           /* starts what was prepared */
void host_start_process(struct host *h); /* its kvcobra-cluster */
void host_kill_process(struct host *h);
/* The daemon ends, and starts with an empty memory. */
void host_restart(struct host *h);
void host_end(struct host *h);
