/*
 * The sections [tenant NAME] of the configuration: which users and groups share a tenant, and what the tenant
 * may use. The sections are tried in the order of the file; the first that names the user, or one of the
 * groups, of a process decides. A process that no section names belongs to the tenant of its user, "uid-N".
 *
 * A part of struct config; config_keys.c fills it from the file.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "daemon/config/limits.h"

struct errmsg;

#define TENANT_SECTION_PREFIX "tenant "

struct tenant_limit { /* on one kind of device */
    bool has_quota, has_guarantee;
    uint64_t quota_bytes, guarantee_bytes;
};

struct tenant_section {
    char name[ACCOUNT_NAME_BYTES];
    struct tenant_limit host, gpu;
};

struct tenant_users { /* of one section */
    uint32_t first, last, section;
};

struct tenant_group {
    uint32_t gid, section;
};

struct tenant_rules {
    struct tenant_section *sections; /* [n_sections] in the order of the file */
    struct tenant_users *users;      /* [n_users] in the order of the file */
    struct tenant_group *groups;     /* [n_groups] by gid, then by section */
    uint32_t n_sections, n_users, n_groups;
};

/* A section begins in a file. Return: 0; -EINVAL with a sentence: its name is wrong or known; -ENOMEM. */
int tenant_rules_begin(struct tenant_rules *r, const char *section, struct errmsg *e);

/**
 * tenant_rules_set() - add what a line of the file says; begins the section if it is new
 * @section: as in the file, "tenant NAME"
 * @key:     users, groups, quota-bytes, guarantee-bytes, gpu-quota-bytes or gpu-guarantee-bytes
 *
 * Looks up names of users and groups, which may take long. Return: 0; -EINVAL with a sentence that names the
 * section; -ENOMEM; -EAGAIN: a look-up failed.
 */
int tenant_rules_set(struct tenant_rules *r, const char *section, const char *key, const char *value,
                     struct errmsg *e);
void tenant_rules_deinit(struct tenant_rules *r);

/* The credentials of a process, as the kernel reported them when it connected. */
struct tenant_peer {
    uid_t uid;
    gid_t gid;
    const gid_t *groups; /* [n_groups] supplementary groups, in any order */
    size_t n_groups;
};

/* The section of a process; NULL: none, its tenant is that of its user. */
const struct tenant_section *tenant_rules_match(const struct tenant_rules *r, const struct tenant_peer *peer);

/* The section of that name, or NULL. */
const struct tenant_section *tenant_rules_find(const struct tenant_rules *r, const char *name);

/* Whether the user itself belongs to the section, whatever its groups are. */
bool tenant_rules_has_user(const struct tenant_rules *r, const struct tenant_section *s, uid_t uid);

/* Prints what --check-config shows: each section with its users and groups as numbers. */
void tenant_rules_print(const struct tenant_rules *r, FILE *f);
