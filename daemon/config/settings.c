/* Reading the table of settings, whose rows are in settings_table.c; see settings.h. */
#include "daemon/config/settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include "daemon/loop/log.h"

const struct setting *settings_find(const struct setting *s, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(s[i].name, name) == 0)
            return &s[i];
    return NULL;
}

const char *const *settings_choices(const struct setting *s)
{
    return s->kind == SETTING_LEVEL ? log_level_names : s->choices;
}

const char *settings_group_title(enum setting_group group)
{
    static const char *const titles[SETTINGS_N_GROUPS] = {
        [SETTINGS_SOCKETS] = "Sockets and files",
        [SETTINGS_MEMORY] = "Memory (sizes such as 65536, 64K, 2G)",
        [SETTINGS_GPUS] = "GPUs",
        [SETTINGS_TIER] = "Disk tier",
        [SETTINGS_CLUSTER] = "Cluster tier",
        [SETTINGS_TIME] = "Time (milliseconds)",
        [SETTINGS_COUNTS] = "Counts",
        [SETTINGS_RUNNING] = "Running",
    };

    return titles[group];
}

bool settings_has_range(const struct setting *s)
{
    bool is_number = s->kind == SETTING_BYTES || s->kind == SETTING_U64 || s->kind == SETTING_U32;

    return is_number && s->max != UINT64_MAX;
}

/* ---- defaults ---- */

const char *settings_number(const struct setting *s, uint64_t v, char ret[static SETTINGS_VALUE_BYTES])
{
    static const char suffixes[] = "KMGT";
    size_t n = 0;

    if (s->kind == SETTING_BYTES)
        for (; v > 0 && v % 1024 == 0 && n < strlen(suffixes); n++)
            v /= 1024;

    (void) snprintf(ret, SETTINGS_VALUE_BYTES, "%" PRIu64 "%.1s", v, n > 0 ? &suffixes[n - 1] : "");
    return ret;
}

const char *settings_default(const struct setting *s, char ret[static SETTINGS_VALUE_BYTES])
{
    const char *text = NULL;

    if (s->default_from)
        text = s->default_from;
    else if (s->kind == SETTING_PATH || s->kind == SETTING_TEXT)
        text = s->text ? s->text : "none";
    else if (settings_choices(s))
        text = settings_choices(s)[s->number];
    else if (s->kind == SETTING_BOOL)
        text = s->number ? "yes" : "no";

    if (text)
        (void) snprintf(ret, SETTINGS_VALUE_BYTES, "%s", text);
    else if (s->kind == SETTING_MODE)
        (void) snprintf(ret, SETTINGS_VALUE_BYTES, "%04" PRIo64, s->number);
    else
        (void) settings_number(s, s->number, ret);
    return ret;
}

static void settings_init_one(const struct setting *s, void *base)
{
    char *at = (char *) base + s->offset;

    switch (s->kind) {
    case SETTING_PATH:
    case SETTING_TEXT:
        *(const char **) at = s->text;
        return;
    case SETTING_BYTES:
    case SETTING_U64:
        *(uint64_t *) at = s->number;
        return;
    case SETTING_U32:
        *(uint32_t *) at = (uint32_t) s->number;
        return;
    case SETTING_CHOICE:
    case SETTING_LEVEL:
        *(int *) at = (int) s->number;
        return;
    case SETTING_MODE:
        *(mode_t *) at = (mode_t) s->number;
        return;
    case SETTING_BOOL:
        *(bool *) at = s->number != 0;
        return;
    }
}

void settings_init(const struct setting *s, size_t n, void *base)
{
    for (size_t i = 0; i < n; i++)
        settings_init_one(&s[i], base);
}

size_t settings_value_bytes(const struct setting *s)
{
    switch (s->kind) {
    case SETTING_PATH:
    case SETTING_TEXT:
        return sizeof(const char *);
    case SETTING_BYTES:
    case SETTING_U64:
        return sizeof(uint64_t);
    case SETTING_U32:
        return sizeof(uint32_t);
    case SETTING_CHOICE:
    case SETTING_LEVEL:
        return sizeof(int);
    case SETTING_MODE:
        return sizeof(mode_t);
    case SETTING_BOOL:
        return sizeof(bool);
    }

    return 0;
}
