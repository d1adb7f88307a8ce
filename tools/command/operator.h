/*
 * Code that the commands of an operator share: the options --socket and --yes, the connection to a daemon,
 * digests typed as their first digits, and the question before a change. Used by kvcobra status, top, table,
 * model, evict, quota, drain and recalibrate.
 *
 * Every function that fails prints its own sentence; commands pass exit codes on.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvcobra-call.h"
#include "tools/command/command.h"

#define OPERATOR_TENANTS_MAX 64

struct operator_options {
    struct common_options common;
    const char *socket;  /* NULL: not given, kvc_socket_path() finds it */
    uint32_t timeout_ms; /* 0: not given */
    bool yes;            /* do not ask */
    bool may_be_own;     /* set by the command: a user who is no operator gets what is his own */
    bool is_own;         /* set by operator_run(): the connection is one of clients */
};

/*
 * For the children member of a struct argp; child input 0 is a struct operator_options.
 *
 *     operator_children         --socket, --timeout, --yes, common_children
 *     operator_view_children    --socket, --timeout, common_children: for commands that change nothing
 *     operator_socket_children  --socket, --timeout: for kvcobra top, which prints no JSON
 */
extern const struct argp_child operator_children[], operator_view_children[], operator_socket_children[];

/* The parsers of the first two, for commands with other children beside. */
extern const struct argp operator_argp, operator_view_argp;

/* --tenant, repeated. One more than OPERATOR_TENANTS_MAX is a usage error. */
struct operator_tenants {
    const char *names[OPERATOR_TENANTS_MAX];
    size_t n;
};
void operator_add_tenant(const struct argp_state *state, struct operator_tenants *tenants, const char *name);

/**
 * operator_run() - connect to the daemon and run @request
 * @request: returns an exit code; @c is connected and closed after the call
 *
 * With @o->may_be_own, a user who may not open the operator socket gets the socket of clients, and a line on
 * stderr that says so.
 *
 * Return: an exit code: COMMAND_FAILED without a connection, else that of @request.
 */
int operator_run(struct operator_options *o, int (*request)(kvc_client *c, void *ctx), void *ctx);

/**
 * operator_confirm() - print what will happen on stderr, and ask unless --yes is given
 *
 * The answer comes from standard input. If standard input is not a terminal, or the answer is neither "y" nor
 * "yes", the command must not make the change.
 *
 * Return: whether to continue; if not, a sentence was printed.
 */
__attribute__((format(printf, 2, 3))) bool operator_confirm(const struct operator_options *o, const char *fmt,
                                                            ...);

/* ---- digests ---- */

/* Whether @text is 6 to 64 hexadecimal digits. Six digits distinguish the tables of a daemon. */
bool operator_is_digest(const char *text);

/* Whether @text is fewer digits than a digest needs: no file, but a digest that was cut too short. */
bool operator_is_short_digest(const char *text);

/* Usage error that names @option unless operator_is_digest(). */
void operator_check_digest(const struct argp_state *state, const char *option, const char *text);

/* Whether @digest begins with the digits @text. */
bool operator_digest_matches(const uint8_t digest[static KVC_DIGEST_BYTES], const char *text);

/**
 * operator_find_table() - the table of the daemon whose digest begins with the digits @text
 * Return: COMMAND_OK; COMMAND_FAILED: none or several.
 */
int operator_find_table(kvc_client *c, const char *text, uint8_t ret_digest[static KVC_DIGEST_BYTES]);
