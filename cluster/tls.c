/* See tls.h. */
#include "cluster/tls.h"

#include <assert.h>
#include <errno.h>

#include "base/errmsg.h"

#ifdef HAVE_OPENSSL

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "daemon/loop/log.h"

enum { TLS_FILES = 3 };

struct tls_client {
    const struct tls_settings *settings;
    SSL_CTX *context;
    struct stat seen[TLS_FILES]; /* of the files, when they were read; zeros: none */
    uint64_t n_refused;          /* changed files that could not be read */
};

struct tls {
    SSL *ssl;
    const char *host; /* the name that the certificate must have */
    bool wants_out;
};

/* ---- the context ---- */

/* The newest error of OpenSSL in words. */
static const char *tls_reason(void)
{
    const char *text = ERR_reason_error_string(ERR_peek_last_error());

    return text ? text : "unknown error";
}

static int tls_load(SSL_CTX *x, const struct tls_settings *s, struct errmsg *e)
{
    ERR_clear_error();
    if (s->ca_file && SSL_CTX_load_verify_file(x, s->ca_file) != 1)
        return fail(e, -EINVAL, "cannot read certificates of authorities from tls-ca-file %s: %s", s->ca_file,
                    tls_reason());
    if (!s->ca_file && SSL_CTX_set_default_verify_paths(x) != 1)
        return fail(e, -EINVAL, "cannot find the authorities that this system trusts: set tls-ca-file");
    if (s->cert_file && SSL_CTX_use_certificate_chain_file(x, s->cert_file) != 1)
        return fail(e, -EINVAL, "cannot read a certificate from tls-cert-file %s: %s", s->cert_file,
                    tls_reason());
    if (s->cert_file && SSL_CTX_use_PrivateKey_file(x, s->key_file, SSL_FILETYPE_PEM) != 1)
        return fail(e, -EINVAL, "cannot use the key in tls-key-file %s: %s", s->key_file, tls_reason());
    return 0;
}

/* A pass phrase cannot be typed into a service. */
static int tls_has_no_phrase(char *text, int bytes, int is_written, void *ctx)
{
    (void) text, (void) bytes, (void) is_written, (void) ctx;
    return -1;
}

static int tls_make_context(const struct tls_settings *s, SSL_CTX **ret, struct errmsg *e)
{
    SSL_CTX *x = SSL_CTX_new(TLS_client_method());
    int r;

    if (!x)
        return fail(e, -ENOMEM, "out of memory for TLS");

    SSL_CTX_set_default_passwd_cb(x, tls_has_no_phrase);
    SSL_CTX_set_verify(x, SSL_VERIFY_PEER, NULL);
    (void) SSL_CTX_set_min_proto_version(x, TLS1_2_VERSION);
    (void) SSL_CTX_set_options(x, SSL_OP_NO_RENEGOTIATION);
    (void) SSL_CTX_set_session_cache_mode(x, SSL_SESS_CACHE_OFF);
    /* what waits to be sent moves when more is added; an idle connection keeps no buffers */
    (void) SSL_CTX_set_mode(x, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                   SSL_MODE_RELEASE_BUFFERS);
    r = tls_load(x, s, e);
    if (r < 0) {
        SSL_CTX_free(x);
        return r;
    }
    *ret = x;
    return 0;
}

static void tls_look(const struct tls_settings *s, struct stat ret[static TLS_FILES])
{
    const char *const files[TLS_FILES] = {s->ca_file, s->cert_file, s->key_file};

    memset(ret, 0, TLS_FILES * sizeof(*ret));
    for (unsigned i = 0; i < TLS_FILES; i++)
        if (files[i])
            (void) stat(files[i], &ret[i]); /* zeros, as of a file that is not there */
}

static bool tls_is_same(const struct stat a[static TLS_FILES], const struct stat b[static TLS_FILES])
{
    for (unsigned i = 0; i < TLS_FILES; i++)
        if (a[i].st_ino != b[i].st_ino || a[i].st_dev != b[i].st_dev || a[i].st_size != b[i].st_size ||
            a[i].st_mtim.tv_sec != b[i].st_mtim.tv_sec || a[i].st_mtim.tv_nsec != b[i].st_mtim.tv_nsec)
            return false;
    return true;
}

int tls_client_new(const struct tls_settings *s, struct tls_client **ret, struct errmsg *e)
{
    _cleanup_(freep) struct tls_client *c = calloc(1, sizeof(*c));
    int r;

    if (!c)
        return fail(e, -ENOMEM, "out of memory");

    c->settings = s;
    tls_look(s, c->seen);
    r = tls_make_context(s, &c->context, e);
    if (r == 0)
        *ret = take_ptr(c);
    return r;
}

struct tls_client *tls_client_free(struct tls_client *c)
{
    if (!c)
        return NULL;

    SSL_CTX_free(c->context);
    free(c);
    return NULL;
}

/* Files that cannot be read, perhaps since they are being replaced, leave the old certificates in use. */
static void tls_client_renew(struct tls_client *c)
{
    struct stat now[TLS_FILES];
    struct errmsg e = {""};
    SSL_CTX *x;

    tls_look(c->settings, now);
    if (tls_is_same(now, c->seen))
        return;

    if (tls_make_context(c->settings, &x, &e) < 0) {
        if (log_is_due(++c->n_refused))
            log_event(LOG_WARNING, "certificates", "message=\"%s\", keeping the old ones", e.text);
        return;
    }
    SSL_CTX_free(c->context);
    c->context = x;
    memcpy(c->seen, now, sizeof(c->seen));
    c->n_refused = 0;
    log_event(LOG_INFO, "certificates", "message=\"read again\"");
}

/* ---- a connection ---- */

/* @host is an address, or a name. Return: 1; 0: no name that can be compared. */
static int tls_expect(SSL *ssl, const char *host)
{
    uint8_t address[sizeof(struct in6_addr)];
    bool is_address = inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;

    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (is_address)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host);
    return (int) SSL_set_tlsext_host_name(ssl, host) == 1 && SSL_set1_host(ssl, host) == 1;
}

int tls_new(struct tls_client *c, int fd, const char *host, struct tls **ret, struct errmsg *e)
{
    _cleanup_(freep) struct tls *t = calloc(1, sizeof(*t));

    if (!t)
        return fail(e, -ENOMEM, "out of memory");

    tls_client_renew(c);
    t->host = c->settings->server_name ? c->settings->server_name : host;
    t->ssl = SSL_new(c->context);
    if (!t->ssl || SSL_set_fd(t->ssl, fd) != 1) {
        SSL_free(t->ssl);
        return fail(e, -ENOMEM, "out of memory for a TLS connection");
    }
    if (tls_expect(t->ssl, t->host) != 1) {
        SSL_free(t->ssl);
        return fail(e, -EINVAL, "no certificate can name %.100s: set tls-server-name", t->host);
    }
    SSL_set_connect_state(t->ssl);
    *ret = take_ptr(t);
    return 0;
}

struct tls *tls_free(struct tls *t)
{
    if (!t)
        return NULL;

    SSL_free(t->ssl);
    free(t);
    return NULL;
}

/* The sentence of a certificate that was refused. Return: false: none was. */
static bool tls_say_certificate(const struct tls *t, struct errmsg *e)
{
    long why = SSL_get_verify_result(t->ssl);

    switch (why) {
    case X509_V_OK:
        return false;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        errmsg_set(e, "the server's certificate is not for %.100s: see tls-server-name", t->host);
        return true;
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
        errmsg_set(e, "the server's certificate is not valid now: %s", X509_verify_cert_error_string(why));
        return true;
    default:
        errmsg_set(e, "the server's certificate is not trusted: %s; see tls-ca-file",
                   X509_verify_cert_error_string(why));
        return true;
    }
}

/* The newest error of OpenSSL is what an answer without TLS leads to. */
static bool tls_is_no_tls(void)
{
    unsigned long error = ERR_peek_last_error();

    if (ERR_GET_LIB(error) != ERR_LIB_SSL)
        return false;
    switch (ERR_GET_REASON(error)) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
        return true;
    default:
        return false;
    }
}

static void tls_say(const struct tls *t, int kind, struct errmsg *e)
{
    if (tls_say_certificate(t, e))
        return;
    if (tls_is_no_tls())
        errmsg_set(e, "the server does not speak TLS on this port");
    else if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
        errmsg_set(e, "the server ended the TLS connection without a word");
    else if (kind == SSL_ERROR_SSL)
        errmsg_set(e, "TLS failed: %s", tls_reason());
    else
        errmsg_set(e, "the server ended the TLS connection: %s", errno ? strerror(errno) : "without a word");
}

/* What a call came to that returned @r, below 1. Return: -EAGAIN; 0: closed; -ECONNRESET with a sentence. */
static int tls_outcome(struct tls *t, int r, struct errmsg *e)
{
    int kind = SSL_get_error(t->ssl, r);

    switch (kind) {
    case SSL_ERROR_WANT_READ:
        t->wants_out = false;
        return -EAGAIN;
    case SSL_ERROR_WANT_WRITE:
        t->wants_out = true;
        return -EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        tls_say(t, kind, e);
        return -ECONNRESET;
    }
}

int tls_handshake(struct tls *t, struct errmsg *e)
{
    int r;

    ERR_clear_error();
    errno = 0;
    r = SSL_do_handshake(t->ssl);
    if (r == 1) {
        t->wants_out = false;
        return 1;
    }
    r = tls_outcome(t, r, e);
    if (r == 0)
        return fail(e, -ECONNABORTED, "the server ended the TLS handshake");
    return r == -EAGAIN ? 0 : -ECONNABORTED;
}

ssize_t tls_read(struct tls *t, void *bytes, size_t n, struct errmsg *e)
{
    size_t got;
    int r;

    ERR_clear_error();
    errno = 0;
    r = SSL_read_ex(t->ssl, bytes, n, &got);
    if (r == 1) {
        t->wants_out = false;
        return (ssize_t) got;
    }
    return tls_outcome(t, r, e);
}

ssize_t tls_write(struct tls *t, const void *bytes, size_t n)
{
    struct errmsg why = {""}; /* the next read says it */
    size_t sent;
    int r;

    ERR_clear_error();
    errno = 0;
    r = SSL_write_ex(t->ssl, bytes, n, &sent);
    if (r == 1)
        return (ssize_t) sent;
    r = tls_outcome(t, r, &why);
    t->wants_out = false; /* the caller polls for room as long as bytes wait */
    return r == 0 ? -ECONNRESET : r;
}

bool tls_wants_out(const struct tls *t)
{
    return t->wants_out;
}

bool tls_has_more(const struct tls *t)
{
    return SSL_pending(t->ssl) > 0;
}

#else /* there is no context, so no connection either */

int tls_client_new(const struct tls_settings *s, struct tls_client **ret, struct errmsg *e)
{
    (void) s, (void) ret;
    return fail(e, -EOPNOTSUPP, "this kvcobra-cluster was built without TLS");
}

struct tls_client *tls_client_free(struct tls_client *c)
{
    assert(!c);
    return c;
}

int tls_new(struct tls_client *c, int fd, const char *host, struct tls **ret, struct errmsg *e)
{
    (void) c, (void) fd, (void) host, (void) ret;
    return fail(e, -EOPNOTSUPP, "this kvcobra-cluster was built without TLS");
}

struct tls *tls_free(struct tls *t)
{
    assert(!t);
    return t;
}

int tls_handshake(struct tls *t, struct errmsg *e)
{
    (void) t;
    return fail(e, -EOPNOTSUPP, "this kvcobra-cluster was built without TLS");
}

ssize_t tls_read(struct tls *t, void *bytes, size_t n, struct errmsg *e)
{
    (void) t, (void) bytes, (void) n;
    return fail(e, -EOPNOTSUPP, "this kvcobra-cluster was built without TLS");
}

ssize_t tls_write(struct tls *t, const void *bytes, size_t n)
{
    (void) t, (void) bytes, (void) n;
    return -EOPNOTSUPP;
}

bool tls_wants_out(const struct tls *t)
{
    (void) t;
    return false;
}

bool tls_has_more(const struct tls *t)
{
    (void) t;
    return false;
}

#endif
