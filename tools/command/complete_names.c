/* See complete_names.h. */
#include "tools/command/complete_names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "tools/command/client_model.h"
#include "tools/command/operator_pages.h"
#include "tools/command/operator_tables.h"

enum { TIMEOUT_MS = 2000 }; /* a person waits for the shell */

static void complete_names_tenants(kvc_client *client, const struct completion *c)
{
    _cleanup_(operator_message_freep) Kvcobra__StatusReply *s = NULL;

    if (operator_get_status(client, &s, NULL) < 0)
        return;
    for (size_t i = 0; i < s->n_tenants; i++)
        completion_offer(c, s->tenants[i]->name, NULL);
}

/* As 'kvcobra table list' prints them. */
static void complete_names_tables(kvc_client *client, const struct completion *c)
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;
    char digest[DIGEST_HEX_BYTES];

    if (operator_list_tables(client, &list, NULL) < 0)
        return;
    for (size_t i = 0; i < list->n_tables; i++)
        completion_offer(c, digest_short(list->tables[i]->digest.data, digest),
                         operator_table_state(list->tables[i]->state));
}

/* Those that have tables, each once. */
static void complete_names_models(kvc_client *client, const struct completion *c)
{
    _cleanup_(operator_message_freep) Kvcobra__ListTablesReply *list = NULL;
    char digest[DIGEST_HEX_BYTES];

    if (operator_list_tables(client, &list, NULL) < 0)
        return;
    for (size_t i = 0; i < list->n_tables; i++) {
        const uint8_t *model = list->tables[i]->model_digest.data;
        size_t k = 0;

        while (k < i && memcmp(list->tables[k]->model_digest.data, model, KVC_DIGEST_BYTES) != 0)
            k++;
        if (k == i)
            completion_offer(c, digest_hex(model, digest), NULL);
    }
}

/* The first sessions that the daemon lists. */
static void complete_names_sessions(kvc_client *client, const struct completion *c)
{
    _cleanup_(operator_message_freep) Kvcobra__ListSessionsReply *list = NULL;
    const Kvcobra__ListSessions ask = KVCOBRA__LIST_SESSIONS__INIT;
    char number[24];

    if (operator_call(client, KVCOBRA__REQUEST__BODY_LIST_SESSIONS, &ask.base, &list, NULL) < 0)
        return;
    for (size_t i = 0; i < list->n_sessions; i++) {
        (void) snprintf(number, sizeof(number), "%" PRIu64, list->sessions[i]->session);
        completion_offer(c, number, list->sessions[i]->client_name);
    }
}

void complete_names(const struct completion *c, const char *kind)
{
    static const struct {
        const char *kind;
        void (*offer)(kvc_client *client, const struct completion *c);
    } kinds[] = {
        {"TENANT", complete_names_tenants},   {"DIGEST", complete_names_tables},
        {"TABLE", complete_names_tables},     {"MODEL-ID", complete_names_models},
        {"SESSION", complete_names_sessions},
    };
    const char *socket = completion_value(c, "socket");
    int r;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        _cleanup_(kvc_client_freep) kvc_client *client = NULL;

        if (strcmp(kinds[i].kind, kind) != 0)
            continue;
        r = client_open_at(KVC_SOCKET_OPERATORS, socket, TIMEOUT_MS, &client, NULL);
        if (r == -EACCES && !socket) /* no operator: what the user's own tenant has */
            r = client_open_at(KVC_SOCKET_CLIENTS, NULL, TIMEOUT_MS, &client, NULL);
        if (r == 0)
            kinds[i].offer(client, c);
    }
}
