/* Settings by name; see config_keys.h. */
#include "daemon/config/config_keys.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "base/nearest.h"
#include "daemon/config/config.h"
#include "daemon/config/settings.h"
#include "daemon/loop/log.h"

/* ---- values ---- */

/* Copies of texts live as long as the configuration. */
static int config_keys_set_text(struct config *c, const struct setting *k, const char *value,
                                struct errmsg *e)
{
    const char **at = (const char **) ((char *) c + k->offset);
    _cleanup_(freep) char *copy = NULL;
    char **owned;

    if (strcmp(value, "none") == 0) {
        *at = NULL;
        return 0;
    }

    if (k->kind == SETTING_PATH && value[0] != '/' && value[0] != '.' && !strchr(value, '/'))
        return fail(e, -EINVAL, "%s: \"%s\" is neither \"none\" nor a path that has a \"/\"", k->name, value);

    copy = strdup(value);
    owned = copy ? reallocarray(c->owned, c->n_owned + 1, sizeof(*owned)) : NULL;
    if (!owned)
        return fail(e, -ENOMEM, "out of memory");

    c->owned = owned;
    *at = copy;
    owned[c->n_owned++] = take_ptr(copy);
    return 0;
}

static int config_keys_set_number(struct config *c, const struct setting *k, const char *value,
                                  struct errmsg *e)
{
    char *at = (char *) c + k->offset;
    uint64_t v;

    if (config_parse_bytes(value, &v) < 0 || v < k->min || v > k->max) {
        if (k->kind == SETTING_BYTES)
            return fail(e, -EINVAL, "%s: \"%s\" is not a size such as 65536, 64K, 64M or 2G", k->name, value);

        return fail(e, -EINVAL, "%s: \"%s\" is not a number from %" PRIu64 " to %" PRIu64, k->name, value,
                    k->min, k->max);
    }

    if (k->kind == SETTING_BYTES || k->kind == SETTING_U64)
        *(uint64_t *) at = v;
    else if (k->kind == SETTING_U32)
        *(uint32_t *) at = (uint32_t) v;
    else
        *(int *) at = (int) v;
    return 0;
}

static int config_keys_set_mode(struct config *c, const struct setting *k, const char *value,
                                struct errmsg *e)
{
    char *end;
    unsigned long v = strtoul(value, &end, 8);

    if (*value < '0' || *value > '7' || *end != '\0' || v > k->max)
        return fail(e, -EINVAL, "%s: \"%s\" is not an octal mode up to 0777", k->name, value);
    *(mode_t *) ((char *) c + k->offset) = (mode_t) v;
    return 0;
}

static int config_keys_set_bool(struct config *c, const struct setting *k, const char *value,
                                struct errmsg *e)
{
    bool yes = strcmp(value, "yes") == 0;

    if (!yes && strcmp(value, "no") != 0)
        return fail(e, -EINVAL, "%s: \"%s\" is neither yes nor no", k->name, value);
    *(bool *) ((char *) c + k->offset) = yes;
    return 0;
}

static int config_keys_fail_choice(const struct setting *k, const char *value, struct errmsg *e)
{
    char list[128] = "";
    size_t n = 0;

    for (size_t i = 0; k->choices[i] && n < sizeof(list); i++)
        n += (size_t) snprintf(list + n, sizeof(list) - n, "%s%s", i > 0 ? ", " : "", k->choices[i]);
    return fail(e, -EINVAL, "%s: \"%s\" is not one of %s", k->name, value, list);
}

static int config_keys_set_choice(struct config *c, const struct setting *k, const char *value,
                                  struct errmsg *e)
{
    for (int i = 0; k->choices[i]; i++) {
        if (strcmp(value, k->choices[i]) == 0) {
            *(int *) ((char *) c + k->offset) = i;
            return 0;
        }
    }
    return config_keys_fail_choice(k, value, e);
}

static int config_keys_fail_name(const char *name, struct errmsg *e)
{
    struct nearest n;

    nearest_init(&n, name);
    for (size_t i = 0; i < settings_n; i++)
        nearest_try(&n, settings[i].name);
    if (n.best)
        return fail(e, -ENOENT, "there is no setting \"%.60s\"; did you mean %s?", name, n.best);
    return fail(e, -ENOENT, "there is no setting \"%.60s\"; kvcobrad.conf(5) lists all settings", name);
}

int config_set(struct config *c, const char *name, const char *value, struct errmsg *e)
{
    const struct setting *k = settings_find(name);

    if (!k)
        return config_keys_fail_name(name, e);

    switch (k->kind) {
    case SETTING_PATH:
    case SETTING_TEXT:
        return config_keys_set_text(c, k, value, e);
    case SETTING_MODE:
        return config_keys_set_mode(c, k, value, e);
    case SETTING_CHOICE:
        return config_keys_set_choice(c, k, value, e);
    case SETTING_BOOL:
        return config_keys_set_bool(c, k, value, e);
    case SETTING_BYTES:
    case SETTING_U64:
    case SETTING_U32:
    case SETTING_INT:
        break;
    }

    return config_keys_set_number(c, k, value, e);
}

void config_deinit(struct config *c)
{
    for (size_t i = 0; i < c->n_owned; i++)
        free(c->owned[i]);
    free(c->owned);
    free(c->file);
    tenant_rules_deinit(&c->tenants);
    c->owned = NULL;
    c->file = NULL;
    c->n_owned = 0;
}

/* ---- reload ---- */

static bool config_keys_differs(const struct config *a, const struct config *b, const struct setting *k)
{
    const char *pa = (const char *) a + k->offset, *pb = (const char *) b + k->offset;
    const char *ta, *tb;

    if (k->kind != SETTING_PATH && k->kind != SETTING_TEXT)
        return memcmp(pa, pb, settings_value_bytes(k)) != 0;
    ta = *(const char *const *) pa;
    tb = *(const char *const *) pb;
    if (!ta || !tb)
        return ta != tb;
    return strcmp(ta, tb) != 0;
}

void config_reload(struct config *c, struct config *fresh)
{
    struct tenant_rules before = c->tenants;

    c->tenants = fresh->tenants;
    fresh->tenants = before;
    for (size_t i = 0; i < settings_n; i++) {
        const struct setting *k = &settings[i];

        if (!config_keys_differs(c, fresh, k))
            continue;
        if (!k->reloads) {
            log_event(LOG_WARNING, "setting-needs-restart", "key=%s", k->name);
            continue;
        }

        memcpy((char *) c + k->offset, (const char *) fresh + k->offset, settings_value_bytes(k));
        log_event(LOG_INFO, "setting-changed", "key=%s", k->name);
    }
}
