/*
 * Tenants as people name them: a section of kvcobrad.conf, "uid-1000", or the user's name; with "@gpu0" on a
 * GPU. Used by the commands of operators that take or print tenants.
 */
#pragma once

#include <stddef.h>

#include "tools/command/operator.h"
#include "tools/command/operator_pages.h"

#define TENANT_NAME_BYTES 128

/**
 * tenant_name_find() - the tenant that a person means, as the daemon names it
 * @text: a name of the daemon's; else, if it is that of a user of this host, this user's tenant "uid-N"
 * @ret_status: of operator_get_tenant(); may be NULL
 *
 * Return: an exit code; COMMAND_FAILED with a sentence: neither.
 */
int tenant_name_find(kvc_client *c, const char *text, char ret[static TENANT_NAME_BYTES],
                     Kvcobra__StatusReply **ret_status);

/* The tenants of repeated options --tenant, as the daemon names them. */
struct tenant_names {
    const char *names[OPERATOR_TENANTS_MAX];
    char text[OPERATOR_TENANTS_MAX][TENANT_NAME_BYTES];
};

/* @ret: not to be copied. Return: as tenant_name_find(). */
int tenant_names_find(kvc_client *c, const struct operator_tenants *typed, struct tenant_names *ret);

/* "uid-1000 (alice)" for the tenant of a user of this host, else the name as it is. Returns @ret. */
const char *tenant_name_show(const char *name, char ret[static TENANT_NAME_BYTES]);
