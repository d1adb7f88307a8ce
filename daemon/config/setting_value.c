/* See setting_value.h. */
#include "daemon/config/setting_value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/errmsg.h"
#include "daemon/config/config.h"
#include "daemon/config/settings.h"

/* ---- texts ---- */

void setting_texts_free(struct setting_texts *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->list[i]);
    free(t->list);
    *t = (struct setting_texts){NULL};
}

static int setting_keep_text(struct setting_texts *t, const char *value, const char **ret, struct errmsg *e)
{
    _cleanup_(freep) char *copy = strdup(value);
    char **list = copy ? reallocarray(t->list, t->n + 1, sizeof(*list)) : NULL;

    if (!list)
        return fail(e, -ENOMEM, "out of memory");

    t->list = list;
    *ret = copy;
    list[t->n++] = take_ptr(copy);
    return 0;
}

/* A name with a control character could not stand in a file, and would break lines of the log. */
static bool setting_has_control(const char *value)
{
    for (const char *at = value; *at; at++)
        if ((unsigned char) *at < ' ' || *at == 0x7f)
            return true;
    return false;
}

static int setting_set_text(const struct setting *s, void *at, struct setting_texts *texts, const char *value,
                            struct errmsg *e)
{
    if (strcmp(value, "none") == 0) {
        *(const char **) at = NULL;
        return 0;
    }

    if (value[0] == '\0')
        return fail(e, -EINVAL, "%s has no value", s->name);
    if (setting_has_control(value))
        return fail(e, -EINVAL, "%s: the value has a control character", s->name);
    if (s->kind == SETTING_PATH && value[0] == '~')
        return fail(e, -EINVAL, "%s: \"%s\" begins with ~, which only a shell replaces: write the whole path",
                    s->name, value);
    if (s->kind == SETTING_PATH && value[0] != '.' && !strchr(value, '/'))
        return fail(e, -EINVAL, "%s: \"%s\" is neither \"none\" nor a path that has a \"/\"", s->name, value);
    return setting_keep_text(texts, value, at, e);
}

/* ---- numbers ---- */

int config_parse_bytes(const char *text, uint64_t *ret)
{
    static const char suffixes[] = "KMGT";
    const char *suffix;
    unsigned shift = 0;
    uint64_t v;
    char *end;

    if (*text < '0' || *text > '9') /* strtoull() accepts signs and blanks */
        return -EINVAL;

    errno = 0;
    v = strtoull(text, &end, 10);
    if (errno == ERANGE)
        return -ERANGE;

    if (*end != '\0') {
        suffix = strchr(suffixes, *end);
        if (!suffix || end[1] != '\0')
            return -EINVAL;

        shift = 10 * (unsigned) (suffix - suffixes + 1);
    }

    if (v > UINT64_MAX >> shift)
        return -ERANGE;

    *ret = v << shift;
    return 0;
}

int setting_parse_size(const char *value, uint64_t min, uint64_t max, uint64_t *ret, struct errmsg *e)
{
    static const struct setting size = {.kind = SETTING_BYTES};
    char least[SETTINGS_VALUE_BYTES], most[SETTINGS_VALUE_BYTES];
    uint64_t v;
    int r = config_parse_bytes(value, &v);

    if (r == -EINVAL)
        return fail(e, r, "\"%.60s\" is not a size such as 65536, 64K, 64M or 2G", value);
    if (r == 0 && v >= min && v <= max) {
        *ret = v;
        return 0;
    }
    if (max == UINT64_MAX)
        return fail(e, -EINVAL, "\"%.60s\" is not a size of at least %s", value,
                    settings_number(&size, min, least));
    return fail(e, -EINVAL, "\"%.60s\" is not a size from %s to %s", value,
                settings_number(&size, min, least), settings_number(&size, max, most));
}

static int setting_set_number(const struct setting *s, void *at, const char *value, struct errmsg *e)
{
    struct errmsg why;
    uint64_t v;

    if (s->kind == SETTING_BYTES) {
        int r = setting_parse_size(value, s->min, s->max, at, &why);

        return r < 0 ? fail(e, r, "%s: %s", s->name, why.text) : 0;
    }

    if (config_parse_bytes(value, &v) < 0 || v < s->min || v > s->max)
        return fail(e, -EINVAL, "%s: \"%s\" is not a number from %" PRIu64 " to %" PRIu64, s->name, value,
                    s->min, s->max);
    if (s->kind == SETTING_U64)
        *(uint64_t *) at = v;
    else
        *(uint32_t *) at = (uint32_t) v;
    return 0;
}

static int setting_set_mode(const struct setting *s, void *at, const char *value, struct errmsg *e)
{
    char *end;
    unsigned long v = strtoul(value, &end, 8);

    if (*value < '0' || *value > '7' || *end != '\0' || v > s->max)
        return fail(e, -EINVAL, "%s: \"%s\" is not an octal mode up to 0777", s->name, value);
    *(mode_t *) at = (mode_t) v;
    return 0;
}

/* ---- names ---- */

static int setting_set_bool(const struct setting *s, void *at, const char *value, struct errmsg *e)
{
    bool yes = strcmp(value, "yes") == 0;

    if (!yes && strcmp(value, "no") != 0)
        return fail(e, -EINVAL, "%s: \"%s\" is neither yes nor no", s->name, value);
    *(bool *) at = yes;
    return 0;
}

static int setting_fail_choice(const struct setting *s, const char *value, struct errmsg *e)
{
    const char *const *names = settings_choices(s);
    char list[128] = "";
    size_t n = 0;

    for (size_t i = 0; names[i] && n < sizeof(list); i++)
        n += (size_t) snprintf(list + n, sizeof(list) - n, "%s%s", i > 0 ? ", " : "", names[i]);
    if (s->kind == SETTING_LEVEL)
        return fail(e, -EINVAL, "%s: \"%s\" is neither a number from 0 to 7 nor one of %s", s->name, value,
                    list);
    return fail(e, -EINVAL, "%s: \"%s\" is not one of %s", s->name, value, list);
}

static int setting_set_choice(const struct setting *s, void *at, const char *value, struct errmsg *e)
{
    const char *const *names = settings_choices(s);

    if (s->kind == SETTING_LEVEL && value[0] >= '0' && value[0] <= '7' && value[1] == '\0') {
        *(int *) at = value[0] - '0';
        return 0;
    }

    for (int i = 0; names[i]; i++) {
        if (strcmp(value, names[i]) == 0) {
            *(int *) at = i;
            return 0;
        }
    }
    return setting_fail_choice(s, value, e);
}

/* ---- all ---- */

int setting_set(const struct setting *s, void *base, struct setting_texts *texts, const char *value,
                struct errmsg *e)
{
    void *at = (char *) base + s->offset;

    switch (s->kind) {
    case SETTING_PATH:
    case SETTING_TEXT:
        return setting_set_text(s, at, texts, value, e);
    case SETTING_MODE:
        return setting_set_mode(s, at, value, e);
    case SETTING_CHOICE:
    case SETTING_LEVEL:
        return setting_set_choice(s, at, value, e);
    case SETTING_BOOL:
        return setting_set_bool(s, at, value, e);
    case SETTING_BYTES:
    case SETTING_U64:
    case SETTING_U32:
        break;
    }

    return setting_set_number(s, at, value, e);
}
