/* See tenant_rules.h. */
#include "daemon/config/tenant_rules.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/nearest.h"
#include "daemon/config/account_name.h"
#include "daemon/config/config.h"
#include "daemon/config/id_lookup.h"
#include "daemon/config/setting_value.h"
#include "daemon/config/settings.h"

#define SEPARATORS " \t,"

/* ---- sections ---- */

const struct tenant_section *tenant_rules_find(const struct tenant_rules *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_sections; i++)
        if (strcmp(r->sections[i].name, name) == 0)
            return &r->sections[i];
    return NULL;
}

static int tenant_rules_add_section(struct tenant_rules *r, const char *name, struct errmsg *e)
{
    struct tenant_section *sections;
    int k = account_name_check(name, e);

    if (k < 0)
        return k;
    if (r->n_sections == TENANT_SECTIONS_MAX)
        return fail(e, -EINVAL, "[tenant %s]: there are %d sections already, the maximum", name,
                    TENANT_SECTIONS_MAX);

    sections = reallocarray(r->sections, r->n_sections + 1, sizeof(*sections));
    if (!sections)
        return fail(e, -ENOMEM, "out of memory");

    r->sections = sections;
    sections[r->n_sections] = (struct tenant_section){0};
    memcpy(sections[r->n_sections++].name, name, strlen(name));
    return 0;
}

/* @ret_name: in @section. */
static int tenant_rules_name(const char *section, const char **ret_name, struct errmsg *e)
{
    size_t n = strlen(TENANT_SECTION_PREFIX);

    if (strncmp(section, TENANT_SECTION_PREFIX, n) != 0)
        return fail(e, -EINVAL, "[%.60s]: sections are called [tenant NAME]", section);
    *ret_name = section + n;
    return 0;
}

static int tenant_rules_fail_second(const char *name, struct errmsg *e)
{
    return fail(e, -EINVAL, "[tenant %s] has a second section: a tenant has one section, in one file", name);
}

int tenant_rules_begin(struct tenant_rules *r, const char *section, struct errmsg *e)
{
    const char *name = NULL;
    int k = tenant_rules_name(section, &name, e);

    if (k < 0)
        return k;
    return tenant_rules_find(r, name) ? tenant_rules_fail_second(name, e)
                                      : tenant_rules_add_section(r, name, e);
}

/* The section that is being read is the last one. */
static int tenant_rules_open(struct tenant_rules *r, const char *name, struct tenant_section **ret,
                             struct errmsg *e)
{
    const struct tenant_section *known = tenant_rules_find(r, name);
    int k = 0;

    if (!known)
        k = tenant_rules_add_section(r, name, e);
    else if (known != &r->sections[r->n_sections - 1])
        k = tenant_rules_fail_second(name, e);
    if (k == 0)
        *ret = &r->sections[r->n_sections - 1];
    return k;
}

/* ---- users and groups ---- */

static int tenant_rules_check_room(const struct tenant_rules *r, struct errmsg *e)
{
    if (r->n_users + r->n_groups < TENANT_MEMBERS_MAX)
        return 0;
    return fail(e, -EINVAL, "more than %d users and groups in all sections: use ranges or groups",
                TENANT_MEMBERS_MAX);
}

static int tenant_rules_add_users(struct tenant_rules *r, const char *text, struct errmsg *e)
{
    struct tenant_users *users, u = {.section = r->n_sections - 1};
    int k = tenant_rules_check_room(r, e);

    if (k == 0)
        k = id_lookup_users(text, &u.first, &u.last, e);
    if (k < 0)
        return k;

    users = reallocarray(r->users, r->n_users + 1, sizeof(*users));
    if (!users)
        return fail(e, -ENOMEM, "out of memory");

    r->users = users;
    users[r->n_users++] = u;
    return 0;
}

/* The first entry whose gid is at least @gid. */
static uint32_t tenant_rules_group_from(const struct tenant_rules *r, uint64_t gid)
{
    uint32_t low = 0, high = r->n_groups;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (r->groups[middle].gid < gid)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int tenant_rules_add_group(struct tenant_rules *r, const char *text, struct errmsg *e)
{
    struct tenant_group *groups, g = {.section = r->n_sections - 1};
    uint32_t at;
    int k = tenant_rules_check_room(r, e);

    if (k == 0)
        k = id_lookup_group(text, &g.gid, e);
    if (k < 0)
        return k;

    groups = reallocarray(r->groups, r->n_groups + 1, sizeof(*groups));
    if (!groups)
        return fail(e, -ENOMEM, "out of memory");

    r->groups = groups;
    at = tenant_rules_group_from(r, (uint64_t) g.gid + 1); /* behind those of earlier sections */
    memmove(groups + at + 1, groups + at, (r->n_groups - at) * sizeof(*groups));
    groups[at] = g;
    r->n_groups++;
    return 0;
}

static int tenant_rules_add_list(struct tenant_rules *r, const char *value,
                                 int (*add)(struct tenant_rules *r, const char *text, struct errmsg *e),
                                 struct errmsg *e)
{
    _cleanup_(freep) char *copy = strdup(value);
    char *save_ptr = NULL;
    int k = 0;

    if (!copy)
        return fail(e, -ENOMEM, "out of memory");

    for (char *text = strtok_r(copy, SEPARATORS, &save_ptr); text && k == 0;
         text = strtok_r(NULL, SEPARATORS, &save_ptr))
        k = add(r, text, e);
    return k;
}

/* ---- keys ---- */

static int tenant_rules_set_bytes(const char *value, uint64_t min, uint64_t max, bool *is_set, uint64_t *ret,
                                  struct errmsg *e)
{
    int k;

    if (*is_set)
        return fail(e, -EINVAL, "is set a second time");

    k = setting_parse_size(value, min, max, ret, e);
    *is_set = k == 0;
    return k;
}

/* -ENOENT, without a sentence: no limit has the name @key. */
static int tenant_rules_set_limit(struct tenant_limit *l, const char *key, const char *value,
                                  struct errmsg *e)
{
    if (strcmp(key, "quota-bytes") == 0)
        return tenant_rules_set_bytes(value, 1, UINT64_MAX, &l->has_quota, &l->quota_bytes, e);
    if (strcmp(key, "guarantee-bytes") == 0)
        return tenant_rules_set_bytes(value, 0, GUARANTEE_BYTES_MAX, &l->has_guarantee, &l->guarantee_bytes,
                                      e);
    return -ENOENT;
}

static int tenant_rules_fail_key(const char *key, struct errmsg *e)
{
    static const char *const keys[] = {"users",           "groups",          "quota-bytes",
                                       "guarantee-bytes", "gpu-quota-bytes", "gpu-guarantee-bytes"};
    struct nearest n;

    nearest_init(&n, key);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        nearest_try(&n, keys[i]);
    if (n.best && !settings_find(settings, settings_n, key))
        return fail(e, -EINVAL, "there is no such key in a section of a tenant; did you mean %s?", n.best);
    return fail(e, -EINVAL,
                "there is no such key in a section of a tenant; settings of kvcobrad itself stand before the "
                "first section");
}

static int tenant_rules_set_key(struct tenant_rules *r, struct tenant_section *s, const char *key,
                                const char *value, struct errmsg *e)
{
    int k;

    if (strcmp(key, "users") == 0)
        return tenant_rules_add_list(r, value, tenant_rules_add_users, e);
    if (strcmp(key, "groups") == 0)
        return tenant_rules_add_list(r, value, tenant_rules_add_group, e);
    k = strncmp(key, "gpu-", 4) == 0 ? tenant_rules_set_limit(&s->gpu, key + 4, value, e)
                                     : tenant_rules_set_limit(&s->host, key, value, e);
    return k == -ENOENT ? tenant_rules_fail_key(key, e) : k;
}

int tenant_rules_set(struct tenant_rules *r, const char *section, const char *key, const char *value,
                     struct errmsg *e)
{
    struct tenant_section *s = NULL;
    struct errmsg why = {""};
    const char *name = NULL;
    int k = tenant_rules_name(section, &name, e);

    if (k == 0)
        k = tenant_rules_open(r, name, &s, e);
    if (k < 0)
        return k;

    k = tenant_rules_set_key(r, s, key, value, &why);
    return k < 0 ? fail(e, k, "[tenant %s] %.40s: %s", name, key, why.text) : 0;
}

void tenant_rules_deinit(struct tenant_rules *r)
{
    free(r->sections);
    free(r->users);
    free(r->groups);
    *r = (struct tenant_rules){0};
}

/* ---- matching ---- */

/* The first section that has the group; UINT32_MAX: none. */
static uint32_t tenant_rules_of_group(const struct tenant_rules *r, gid_t gid)
{
    uint32_t at = tenant_rules_group_from(r, gid);

    return at < r->n_groups && r->groups[at].gid == gid ? r->groups[at].section : UINT32_MAX;
}

static uint32_t tenant_rules_of_user(const struct tenant_rules *r, uid_t uid)
{
    for (uint32_t i = 0; i < r->n_users; i++)
        if (uid >= r->users[i].first && uid <= r->users[i].last)
            return r->users[i].section;
    return UINT32_MAX;
}

const struct tenant_section *tenant_rules_match(const struct tenant_rules *r, const struct tenant_peer *peer)
{
    uint32_t best = tenant_rules_of_user(r, peer->uid), section = tenant_rules_of_group(r, peer->gid);

    best = section < best ? section : best;
    for (size_t i = 0; i < peer->n_groups && r->n_groups > 0; i++) {
        section = tenant_rules_of_group(r, peer->groups[i]);
        best = section < best ? section : best;
    }

    return best == UINT32_MAX ? NULL : &r->sections[best];
}

bool tenant_rules_has_user(const struct tenant_rules *r, const struct tenant_section *s, uid_t uid)
{
    uint32_t section = tenant_rules_of_user(r, uid);

    return section != UINT32_MAX && &r->sections[section] == s;
}

/* ---- --check-config ---- */

static void tenant_rules_print_members(const struct tenant_rules *r, uint32_t section, FILE *f)
{
    const char *before = "users";

    for (uint32_t i = 0; i < r->n_users; i++) {
        const struct tenant_users *u = &r->users[i];

        if (u->section != section)
            continue;

        fprintf(f, "%s %" PRIu32, before, u->first);
        if (u->last > u->first)
            fprintf(f, "-%" PRIu32, u->last);
        before = ",";
    }

    before = before[0] == ',' ? "; groups" : "groups";
    for (uint32_t i = 0; i < r->n_groups; i++) {
        if (r->groups[i].section != section)
            continue;

        fprintf(f, "%s %" PRIu32, before, r->groups[i].gid);
        before = ",";
    }
}

static void tenant_rules_print_limit(const char *prefix, const struct tenant_limit *l, FILE *f)
{
    if (l->has_quota)
        fprintf(f, "; %squota-bytes %" PRIu64, prefix, l->quota_bytes);
    if (l->has_guarantee)
        fprintf(f, "; %sguarantee-bytes %" PRIu64, prefix, l->guarantee_bytes);
}

void tenant_rules_print(const struct tenant_rules *r, FILE *f)
{
    for (uint32_t i = 0; i < r->n_sections; i++) {
        fprintf(f, "tenant %s: ", r->sections[i].name);
        tenant_rules_print_members(r, i, f);
        tenant_rules_print_limit("", &r->sections[i].host, f);
        tenant_rules_print_limit("gpu-", &r->sections[i].gpu, f);
        fputc('\n', f);
    }
    if (r->n_sections > 0)
        fputs("all others: one tenant per user, uid-N\n", f);
}
