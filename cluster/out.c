/* See out.h. */
#include "cluster/out.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "cluster/node.h"
#include "cluster/tls.h"

enum {
    OUT_WORD_BYTES = 32,     /* "$", a length and two line ends */
    OUT_WORDS_MAX = 8,       /* of a command */
    OUT_ROOM_MIN = 1 << 16,  /* the first allocation */
    OUT_ROOM_KEPT = 1 << 18, /* a larger buffer is freed when all is sent */
    OUT_NUMBER_BYTES = 24,
};

struct out_word {
    const void *bytes;
    size_t n;
};

static int out_reserve(struct out *o, size_t bytes)
{
    size_t waiting = out_waiting(o), room = o->room ? o->room : OUT_ROOM_MIN;
    uint8_t *grown;

    if (bytes > o->bytes_max || waiting > o->bytes_max - bytes)
        return -ENOBUFS;
    if (o->sent > 0 && waiting > 0 && o->room - o->n < bytes)
        memmove(o->bytes, o->bytes + o->sent, waiting);
    if (waiting == 0 || o->room - o->n < bytes) {
        o->n = waiting;
        o->sent = 0;
    }
    if (o->bytes && o->room - o->n >= bytes)
        return 0;

    while (room < waiting + bytes) /* below twice the limit */
        room *= 2;
    grown = realloc(o->bytes, room);
    if (!grown)
        return -ENOMEM;
    o->bytes = grown;
    o->room = room;
    return 0;
}

static int out_add(struct out *o, const struct out_word *words, size_t n_words)
{
    size_t bytes = OUT_WORD_BYTES;
    int r;

    assert(n_words <= OUT_WORDS_MAX);
    for (size_t i = 0; i < n_words; i++)
        bytes += OUT_WORD_BYTES + words[i].n;
    r = out_reserve(o, bytes);
    if (r < 0)
        return r;

    o->n += (size_t) sprintf((char *) o->bytes + o->n, "*%zu\r\n", n_words);
    for (size_t i = 0; i < n_words; i++) {
        o->n += (size_t) sprintf((char *) o->bytes + o->n, "$%zu\r\n", words[i].n);
        memcpy(o->bytes + o->n, words[i].bytes, words[i].n);
        o->n += words[i].n;
        memcpy(o->bytes + o->n, "\r\n", 2);
        o->n += 2;
    }
    return 0;
}

int out_add_words(struct out *o, const char *const *words, size_t n_words)
{
    struct out_word list[OUT_WORDS_MAX];

    assert(n_words <= OUT_WORDS_MAX);
    for (size_t i = 0; i < n_words; i++)
        list[i] = (struct out_word){words[i], strlen(words[i])};
    return out_add(o, list, n_words);
}

static struct out_word out_text(const char *text)
{
    return (struct out_word){text, strlen(text)};
}

/*
 * GET is sent as GETRANGE, which returns at most one byte more than there is room for: a huge value costs one
 * miss, not the connection.
 */
int out_add_command(struct out *o, const struct command *c)
{
    const struct out_word key = {c->key, c->key_bytes};
    struct out_word w[OUT_WORDS_MAX];
    char number[OUT_NUMBER_BYTES];
    size_t n = 0;

    (void) snprintf(number, sizeof(number), "%" PRIu64, c->kind == COMMAND_GET ? c->value_bytes : c->ttl_ms);
    switch (c->kind) {
    case COMMAND_EXISTS:
        w[n++] = out_text("EXISTS");
        w[n++] = key;
        break;
    case COMMAND_GET:
        w[n++] = out_text("GETRANGE");
        w[n++] = key;
        w[n++] = out_text("0");
        w[n++] = out_text(number);
        break;
    case COMMAND_SET:
        w[n++] = out_text("SET");
        w[n++] = key;
        w[n++] = (struct out_word){c->value, c->value_bytes};
        if (c->ttl_ms > 0) {
            w[n++] = out_text("PX");
            w[n++] = out_text(number);
        }
        w[n++] = out_text("NX");
        break;
    case COMMAND_EXPIRE:
        w[n++] = out_text("PEXPIRE");
        w[n++] = key;
        w[n++] = out_text(number);
        break;
    case COMMAND_UNLINK:
        w[n++] = out_text("UNLINK");
        w[n++] = key;
        break;
    case COMMAND_SLOTS:
        w[n++] = out_text("CLUSTER");
        w[n++] = out_text("SLOTS");
        break;
    }

    return out_add(o, w, n);
}

/* Return: bytes; -EINTR, -EAGAIN; errno of the socket. */
static ssize_t out_send_part(const struct out *o, int fd, struct tls *t)
{
    ssize_t n;

    if (t)
        return tls_write(t, o->bytes + o->sent, out_waiting(o));
    n = send(fd, o->bytes + o->sent, out_waiting(o), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 ? -errno : n;
}

int out_send(struct out *o, int fd, struct tls *t)
{
    while (out_waiting(o) > 0) {
        ssize_t n = out_send_part(o, fd, t);

        if (n == -EINTR)
            continue;
        if (n < 0)
            return n == -EAGAIN ? 0 : (int) n;
        o->sent += (size_t) n;
    }

    if (o->room > OUT_ROOM_KEPT)
        out_clear(o);
    o->sent = o->n = 0;
    return 1;
}

void out_clear(struct out *o)
{
    free(o->bytes);
    *o = (struct out){.bytes_max = o->bytes_max};
}
