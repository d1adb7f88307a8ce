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
    const struct setting *s = settings_find(settings, settings_n, name);

    return s ? setting_set(s, c, &c->texts, value, e) : config_keys_fail_name(name, e);
}

void config_deinit(struct config *c)
{
    setting_texts_free(&c->texts);
    free(c->file);
    c->file = NULL;
    tenant_rules_deinit(&c->tenants);
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
