/* Bytes that wait to be sent to a server: commands in RESP. They have a limit. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct command;
struct tls;

struct out {
    uint8_t *bytes;       /* [room]; NULL: none */
    size_t sent, n, room; /* bytes [sent, n) wait */
    size_t bytes_max;     /* of those that wait */
};

/* Return: 0; -ENOBUFS: above the limit; -ENOMEM. On failure nothing was added. */
int out_add_command(struct out *o, const struct command *c);
int out_add_words(struct out *o, const char *const *words, size_t n_words);

/*
 * Sends what the socket takes, through @t if that is no NULL. Return: 1: all is sent; 0: the socket is full;
 * errno of the socket.
 */
int out_send(struct out *o, int fd, struct tls *t);

static inline size_t out_waiting(const struct out *o)
{
    return o->n - o->sent;
}

void out_clear(struct out *o);
