/* The settings in effect, as a file. See config_file.h. */
#include "daemon/config/config_file.h"

#include <inttypes.h>
#include <string.h>

#include "daemon/config/config.h"
#include "daemon/config/settings.h"

/* The value of a setting as the file has it. Returns @ret or the text of the setting. */
static const char *config_print_value(const struct config *c, const struct setting *s,
                                      char ret[static SETTINGS_VALUE_BYTES])
{
    const char *at = (const char *) c + s->offset, *text;
    int number;

    switch (s->kind) {
    case SETTING_PATH:
    case SETTING_TEXT:
        text = *(const char *const *) at;
        return text ? text : "none";
    case SETTING_BYTES:
    case SETTING_U64:
        return settings_number(s, *(const uint64_t *) at, ret);
    case SETTING_U32:
        return settings_number(s, *(const uint32_t *) at, ret);
    case SETTING_MODE:
        (void) snprintf(ret, SETTINGS_VALUE_BYTES, "%04o", (unsigned) *(const mode_t *) at);
        return ret;
    case SETTING_BOOL:
        return *(const bool *) at ? "yes" : "no";
    case SETTING_CHOICE:
    case SETTING_LEVEL:
        break;
    }

    memcpy(&number, at, sizeof(number));
    return settings_choices(s)[number];
}

/* Quotation marks keep what would else be a comment, and blanks at the ends; see ini_file.h. */
static void config_print_setting(FILE *f, const char *key, const char *value)
{
    size_t n = strlen(value);
    bool quotes = value[0] == '"' || value[0] == ' ' || (n > 0 && value[n - 1] == ' ') || value[0] == '#' ||
                  value[0] == ';' || strstr(value, " #") || strstr(value, " ;");

    if (!quotes) {
        fprintf(f, "%s = %s\n", key, value);
        return;
    }

    fprintf(f, "%s = \"", key);
    for (; *value; value++)
        fprintf(f, *value == '"' ? "\"%c" : "%c", *value);
    fputs("\"\n", f);
}

/* A list goes on in lines of its own: a person reads it. */
static void config_print_member(FILE *f, const char *key, bool is_first, uint32_t first, uint32_t last)
{
    fprintf(f, is_first ? "%s = %" PRIu32 : "%s%" PRIu32, is_first ? key : ",\n  ", first);
    if (last > first)
        fprintf(f, "-%" PRIu32, last);
}

static void config_print_members(const struct tenant_rules *r, uint32_t section, FILE *f)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->n_users; i++)
        if (r->users[i].section == section)
            config_print_member(f, "users", n++ == 0, r->users[i].first, r->users[i].last);
    if (n > 0)
        fputc('\n', f);

    n = 0;
    for (uint32_t i = 0; i < r->n_groups; i++)
        if (r->groups[i].section == section)
            config_print_member(f, "groups", n++ == 0, r->groups[i].gid, r->groups[i].gid);
    if (n > 0)
        fputc('\n', f);
}

static void config_print_limit(const char *prefix, const struct tenant_limit *l, FILE *f)
{
    if (l->has_quota)
        fprintf(f, "%squota-bytes = %" PRIu64 "\n", prefix, l->quota_bytes);
    if (l->has_guarantee)
        fprintf(f, "%sguarantee-bytes = %" PRIu64 "\n", prefix, l->guarantee_bytes);
}

void config_print(const struct config *c, FILE *f)
{
    char value[SETTINGS_VALUE_BYTES];

    for (unsigned group = 0; group < SETTINGS_N_GROUPS; group++) {
        fprintf(f, "%s# %s\n", group > 0 ? "\n" : "", settings_group_title((enum setting_group) group));
        for (size_t i = 0; i < settings_n; i++)
            if (settings[i].group == group)
                config_print_setting(f, settings[i].name, config_print_value(c, &settings[i], value));
    }

    for (uint32_t i = 0; i < c->tenants.n_sections; i++) {
        const struct tenant_section *s = &c->tenants.sections[i];

        fprintf(f, "\n[" TENANT_SECTION_PREFIX "%s]\n", s->name);
        config_print_members(&c->tenants, i, f);
        config_print_limit("", &s->host, f);
        config_print_limit("gpu-", &s->gpu, f);
    }
}
