/*
 * TLS to servers, by OpenSSL where it is built. A context for all connections, and an object for each.
 * Nothing here waits: the caller's socket does not block, and tls_wants_out() says for what to poll it.
 *
 * A server must show a certificate that an authority of the context signed, and that names the host that was
 * connected to, or server_name. Files of certificates are read again, when a connection begins, if they have
 * changed: certificates of a fleet are renewed while it runs.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct errmsg;
struct tls;
struct tls_client;

struct tls_settings {                 /* borrowed by the context */
    const char *ca_file;              /* NULL: the authorities that this system trusts */
    const char *server_name;          /* in all certificates; NULL: the host */
    const char *cert_file, *key_file; /* of this client; NULL: it shows no certificate */
};

/* Return: 0; -EOPNOTSUPP: built without TLS; -EINVAL, -ENOMEM: a file; each with a sentence. */
int tls_client_new(const struct tls_settings *s, struct tls_client **ret, struct errmsg *e);
/* After all connections. NULL is allowed; returns NULL. */
struct tls_client *tls_client_free(struct tls_client *c);

/* @fd: connected; borrowed. @host: a name or an address. Return: 0; errno with a sentence. */
int tls_new(struct tls_client *c, int fd, const char *host, struct tls **ret, struct errmsg *e);
struct tls *tls_free(struct tls *t); /* NULL is allowed; returns NULL */

/* Return: 1: it is done; 0: call again when the socket is ready; -ECONNABORTED with a sentence. */
int tls_handshake(struct tls *t, struct errmsg *e);

/* Return: bytes; 0: the server closed the connection; -EAGAIN; -ECONNRESET with a sentence. */
ssize_t tls_read(struct tls *t, void *bytes, size_t n, struct errmsg *e);
/* Return: bytes; -EAGAIN: the next call has these bytes again, and perhaps more; -ECONNRESET. */
ssize_t tls_write(struct tls *t, const void *bytes, size_t n);

/* The handshake, or what was read last, waits until the socket takes bytes. */
bool tls_wants_out(const struct tls *t);
/* Bytes were received that no poll() shows. */
bool tls_has_more(const struct tls *t);
